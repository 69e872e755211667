#include "swarm/swarm.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "support/sanitizers.h"
#include "swarm/target_arena.h"

// The random worlds, and whether their own instruments work: that they repeat, that everything
// happens in them, that a short story is found, and that a wrong byte is seen.

namespace fabric::swarm {
namespace {

// A sanitizer makes a world twenty times as slow, and looks at something else.
constexpr bool kSlow = test::kAddressSanitizer;

std::string failed(const Story& story, const Violation& violation) {
  return "seed " + std::to_string(story.seed) + ": " + violation.invariant + ": " +
         violation.detail + "\nreplay with: fabric sim --seed " + std::to_string(story.seed);
}

Coverage play_worlds(uint64_t first, uint64_t count) {
  Coverage coverage;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Story story = draw_story(seed);
    const Outcome outcome = play(story);
    if (outcome.violation) {
      ADD_FAILURE() << failed(story, *outcome.violation);
      break;
    }
    coverage.merge(outcome.coverage);
  }
  return coverage;
}

TEST(Swarm, EverythingThatCanHappenHappensAndEveryPromiseHolds) {
  if (kSlow) {
    play_worlds(1, 80);
    return;
  }
  // These seeds are chosen: together they reach every fault, code, end, event and step.
  const Coverage coverage = play_worlds(1, 1000);
  for (const std::string& name : coverage.missing()) ADD_FAILURE() << "never happened: " << name;
}

TEST(Swarm, OneSeedIsOneWorld) {
  for (const uint64_t seed : {3, 14, 159}) {
    const Outcome first = play(draw_story(seed)), second = play(draw_story(seed));
    EXPECT_EQ(first.trace_hash, second.trace_hash) << seed;
    EXPECT_EQ(first.operations, second.operations) << seed;
    EXPECT_NE(first.trace_hash, play(draw_story(seed + 1)).trace_hash) << seed;
  }
}

TEST(Swarm, StoriesAreToldWithEveryDeedAndFault) {
  const Story story = draw_story(7);
  const std::string told = tell(story);
  const auto lines = static_cast<size_t>(std::ranges::count(told, '\n'));
  EXPECT_EQ(lines, 1 + story.nodes.size() + story.deeds.size() + story.troubles.size());
}

/// Stands for a bug that needs one fence and one cut, whatever else goes on.
Outcome breaks_with_fence_and_cut(const Story& story) {
  Outcome outcome;
  const bool fence = std::ranges::any_of(
      story.deeds, [](const Deed& deed) { return deed.kind == Deed::Kind::kFence; });
  const bool cut = std::ranges::any_of(story.troubles, [](const Trouble& trouble) {
    return trouble.fault.kind == sim::Fault::Kind::kCut;
  });
  if (fence && cut) outcome.violation = Violation{"a promise", "", {}};
  return outcome;
}

TEST(Shrinking, LeavesWhatTheBugNeeds) {
  uint32_t shrunk_stories = 0;
  for (uint64_t seed = 1; seed < 400; ++seed) {
    const Story story = draw_story(seed);
    const Outcome outcome = breaks_with_fence_and_cut(story);
    if (!outcome.violation) continue;
    ++shrunk_stories;
    const Shrunk shrunk = shrink(story, *outcome.violation, breaks_with_fence_and_cut);
    EXPECT_EQ(shrunk.story.deeds.size(), 1u) << seed;
    EXPECT_EQ(shrunk.story.troubles.size(), 1u) << seed;
    EXPECT_EQ(shrunk.story.world.drop_control, 0) << seed;
    EXPECT_LE(shrunk.tries, 400u);
  }
  EXPECT_GT(shrunk_stories, 5u);
}

TEST(Shrinking, KeepsToTheSamePromise) {
  const Story story = draw_story(5);
  const Player another = [](const Story&) {
    Outcome outcome;
    outcome.violation = Violation{"another promise", "", {}};
    return outcome;
  };
  const Shrunk shrunk = shrink(story, {"a promise", "", {}}, another);
  EXPECT_EQ(shrunk.story.deeds.size(), story.deeds.size());
  EXPECT_EQ(shrunk.violation.invariant, "a promise");
}

class FieldTest : public testing::Test {
 protected:
  void land(uint32_t place, uint64_t from, uint64_t to) {
    const Field::Place& p = field_.place(place);
    std::vector<std::byte> bytes(p.size);
    fill_content(bytes, p.content);
    std::copy(bytes.begin() + static_cast<ptrdiff_t>(from),
              bytes.begin() + static_cast<ptrdiff_t>(to),
              field_.bytes().begin() + static_cast<ptrdiff_t>(p.offset + from));
  }
  Field field_{4096};
  uint32_t place_ = field_.take(100, 7, 3);
  uint32_t next_ = field_.take(50, 8, 1);
};

TEST_F(FieldTest, OpenPlacesHoldWhatWasThereOrWhatComes) {
  EXPECT_TRUE(field_.right(place_));
  land(place_, 10, 60);
  EXPECT_TRUE(field_.right(place_));
  field_.bytes()[field_.place(place_).offset + 70] = std::byte{1};
  EXPECT_FALSE(field_.right(place_)) << "a byte that nobody wrote";
}

TEST_F(FieldTest, WholePlacesMissNoByte) {
  land(place_, 0, 99);
  EXPECT_FALSE(field_.make_whole(place_)) << "the last byte is missing";
  land(place_, 99, 100);
  EXPECT_TRUE(field_.make_whole(place_));
}

TEST_F(FieldTest, NothingLandsInAShutPlaceUnseen) {
  field_.shut(place_);
  EXPECT_TRUE(field_.right(place_));
  land(place_, 99, 100);
  EXPECT_FALSE(field_.right(place_));
  EXPECT_TRUE(field_.right(next_));
}

TEST_F(FieldTest, GapsStayAsTheyWere) {
  EXPECT_TRUE(field_.gaps_right());
  field_.bytes()[field_.place(next_).offset - 1] = std::byte{1};
  EXPECT_FALSE(field_.gaps_right());
}

}  // namespace
}  // namespace fabric::swarm

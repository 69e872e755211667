#include "swarm/swarm.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "support/sanitizers.h"
#include "swarm/target_arena.h"

// Runs random plans and tests the swarm itself: runs repeat, coverage is complete, plans are
// shrunk, and a wrong byte is detected.

namespace fabric::swarm::swarm_test {
namespace {

// A sanitizer makes a run twenty times as slow and checks something else.
constexpr bool kSlow = test::kAddressSanitizer;

std::string failed(const Plan& plan, const Violation& violation) {
  return "seed " + std::to_string(plan.seed) + ": " + violation.invariant + ": " +
         violation.detail + "\nreplay with: fabric sim --seed " + std::to_string(plan.seed);
}

Coverage run_worlds(uint64_t first, uint64_t count) {
  Coverage coverage;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Plan plan = draw_plan(seed);
    const RunResult result = run(plan);
    if (result.violation) {
      ADD_FAILURE() << failed(plan, *result.violation);
      break;
    }
    coverage.merge(result.coverage);
  }
  return coverage;
}

TEST(Swarm, EverythingThatCanHappenHappensAndEveryPromiseHolds) {
  if (kSlow) {
    run_worlds(1, 80);
    return;
  }
  // These seeds are chosen: together they session_to every fault, code, end, event and step.
  const Coverage coverage = run_worlds(1, 1000);
  for (const std::string& name : coverage.missing()) ADD_FAILURE() << "never happened: " << name;
}

TEST(Swarm, OneSeedIsOneWorld) {
  for (const uint64_t seed : {3, 14, 159}) {
    const RunResult first = run(draw_plan(seed)), second = run(draw_plan(seed));
    EXPECT_EQ(first.trace_hash, second.trace_hash) << seed;
    EXPECT_EQ(first.operations, second.operations) << seed;
    EXPECT_NE(first.trace_hash, run(draw_plan(seed + 1)).trace_hash) << seed;
  }
}

TEST(Swarm, DescriptionListsEveryActionAndFault) {
  const Plan plan = draw_plan(7);
  const std::string text = describe(plan);
  const auto lines = static_cast<size_t>(std::ranges::count(text, '\n'));
  EXPECT_EQ(lines, 1 + plan.nodes.size() + plan.actions.size() + plan.faults.size());
}

/// Simulates a bug that needs one fence and one cut.
RunResult breaks_with_fence_and_cut(const Plan& plan) {
  RunResult result;
  const bool fence = std::ranges::any_of(
      plan.actions, [](const Action& action) { return action.kind == Action::Kind::kFence; });
  const bool cut = std::ranges::any_of(plan.faults, [](const PlannedFault& planned) {
    return planned.fault.kind == sim::Fault::Kind::kCut;
  });
  if (fence && cut) result.violation = Violation{"a promise", "", {}};
  return result;
}

TEST(Shrinking, LeavesWhatTheBugNeeds) {
  uint32_t shrunk_plans = 0;
  for (uint64_t seed = 1; seed < 400; ++seed) {
    const Plan plan = draw_plan(seed);
    const RunResult result = breaks_with_fence_and_cut(plan);
    if (!result.violation) continue;
    ++shrunk_plans;
    const Shrunk shrunk = shrink(plan, *result.violation, breaks_with_fence_and_cut);
    EXPECT_EQ(shrunk.plan.actions.size(), 1u) << seed;
    EXPECT_EQ(shrunk.plan.faults.size(), 1u) << seed;
    EXPECT_EQ(shrunk.plan.world.drop_control, 0) << seed;
    EXPECT_LE(shrunk.tries, 400u);
  }
  EXPECT_GT(shrunk_plans, 5u);
}

TEST(Shrinking, KeepsToTheSamePromise) {
  const Plan plan = draw_plan(5);
  const RunFunction another = [](const Plan&) {
    RunResult result;
    result.violation = Violation{"another promise", "", {}};
    return result;
  };
  const Shrunk shrunk = shrink(plan, {"a promise", "", {}}, another);
  EXPECT_EQ(shrunk.plan.actions.size(), plan.actions.size());
  EXPECT_EQ(shrunk.violation.invariant, "a promise");
}

class TargetArenaTest : public testing::Test {
 protected:
  void land(uint32_t slot, uint64_t from, uint64_t to) {
    const TargetArena::Slot& p = arena_.slot(slot);
    std::vector<std::byte> bytes(p.size);
    fill_content(bytes, p.content_seed);
    std::copy(bytes.begin() + static_cast<ptrdiff_t>(from),
              bytes.begin() + static_cast<ptrdiff_t>(to),
              arena_.bytes().begin() + static_cast<ptrdiff_t>(p.offset + from));
  }
  TargetArena arena_{4096};
  uint32_t slot_ = arena_.take(100, 7, 3);
  uint32_t next_ = arena_.take(50, 8, 1);
};

TEST_F(TargetArenaTest, OpenSlotsHoldInitialOrWrittenBytes) {
  EXPECT_TRUE(arena_.matches_state(slot_));
  land(slot_, 10, 60);
  EXPECT_TRUE(arena_.matches_state(slot_));
  arena_.bytes()[arena_.slot(slot_).offset + 70] = std::byte{1};
  EXPECT_FALSE(arena_.matches_state(slot_)) << "a byte that no write wrote";
}

TEST_F(TargetArenaTest, CompleteSlotsMissNoByte) {
  land(slot_, 0, 99);
  EXPECT_FALSE(arena_.mark_complete(slot_)) << "the last byte is missing";
  land(slot_, 99, 100);
  EXPECT_TRUE(arena_.mark_complete(slot_));
}

TEST_F(TargetArenaTest, NothingLandsInASealedSlotUndetected) {
  arena_.seal(slot_);
  EXPECT_TRUE(arena_.matches_state(slot_));
  land(slot_, 99, 100);
  EXPECT_FALSE(arena_.matches_state(slot_));
  EXPECT_TRUE(arena_.matches_state(next_));
}

TEST_F(TargetArenaTest, GapsStayUntouched) {
  EXPECT_TRUE(arena_.gaps_untouched());
  arena_.bytes()[arena_.slot(next_).offset - 1] = std::byte{1};
  EXPECT_FALSE(arena_.gaps_untouched());
}

}  // namespace
}  // namespace fabric::swarm::swarm_test

#include "workloads/kv/seed_table.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "harness/host.h"
#include "kv/members.h"
#include "support/log_guard.h"
#include "workloads/kv/seed_view.h"

// A seed's table, and what a watcher makes of its messages, without a network between them.

namespace fabric::test::seed_table_test {
namespace {

using kv::Member;
using kv::SeedTable;
using kv::SeedView;
using kv::ViewMessage;
using kv::WatchPosition;

PeerId session(uint32_t number) { return PeerId(number, 1); }

kv::MemberMap listed(const SeedTable& table) {
  kv::MemberMap all;
  table.each([&](const Member& member) { all[member.engine_id] = member; });
  return all;
}

/// The watcher's side and the seed's position for it.
struct Watch {
  WatchPosition position{};
  SeedView view{};
  uint64_t unsent = 0;

  ViewMessage next(const SeedTable& table, size_t bytes_max) {
    return table.after(position, bytes_max, unsent);
  }
  SeedView::Applied deliver(const ViewMessage& message) {
    position.revision = message.upto;
    return view.apply(message, 65536);
  }
  /// Returns how many messages it took.
  uint32_t catch_up(const SeedTable& table, size_t bytes_max) {
    for (uint32_t messages = 1; messages < 10'000; ++messages) {
      const ViewMessage message = next(table, bytes_max);
      if (deliver(message) == SeedView::Applied::kView && message.last) return messages;
    }
    ADD_FAILURE() << "the watcher never gets all of the view";
    return 0;
  }
};

TEST(SeedTable, ListsAnEngineOnceUnderItsLatestIncarnationAndSession) {
  SeedTable table(2);
  Member member = listed_member(1);
  ASSERT_TRUE(table.put(member, session(1)));
  ++member.incarnation;
  ASSERT_TRUE(table.put(member, session(2)));
  EXPECT_FALSE(table.remove(session(1))) << "the session of the earlier incarnation";
  EXPECT_EQ(table.size(), 1u);
  EXPECT_EQ(table.put(listed_member(1), session(3)).error().code, Errc::kPeerLost);
  ASSERT_TRUE(table.put(listed_member(2), session(4)));
  EXPECT_EQ(table.put(listed_member(3), session(5)).error().code, Errc::kExhausted);
  const uint64_t revision = table.revision();
  ASSERT_TRUE(table.put(listed_member(2), session(4)));
  EXPECT_EQ(table.revision(), revision) << "the same again is no change";
  EXPECT_TRUE(table.remove(session(2)));
  EXPECT_EQ(listed(table), (kv::MemberMap{{2, listed_member(2)}}));
}

TEST(SeedTable, SendsALongHistoryOfRemovalsAsAViewFromTheStart) {
  SeedTable table(64);
  ASSERT_TRUE(table.put(listed_member(1), session(1)));
  ASSERT_TRUE(table.put(listed_member(2), session(2)));
  Watch away;
  away.catch_up(table, 4096);
  ASSERT_TRUE(table.remove(session(1)));
  for (uint32_t i = 0; i < 5000; ++i) {  // more than it remembers
    ASSERT_TRUE(table.put(listed_member(10 + i), session(10 + i)));
    ASSERT_TRUE(table.remove(session(10 + i)));
  }
  // Small messages: the start of the view is older than all removals that are remembered.
  Watch fresh;
  for (Watch* one : {&away, &fresh}) {
    one->catch_up(table, 100);
    EXPECT_EQ(one->view.listed(), listed(table));
  }
}

TEST(SeedTable, LeavesOutAMemberThatNeverFits) {
  SeedTable table(8);
  Member large = listed_member(1);
  large.address.resize(500, std::byte{1});
  ASSERT_TRUE(table.put(large, session(1)));
  ASSERT_TRUE(table.put(listed_member(2), session(2)));
  Watch watch;
  watch.catch_up(table, 200);
  EXPECT_EQ(watch.view.listed(), (kv::MemberMap{{2, listed_member(2)}}));
  EXPECT_EQ(watch.unsent, 1u);
}

TEST(SeedView, AsksAgainAfterAGapAndKeepsWhatItHadUntilThen) {
  SeedTable table(8);
  ASSERT_TRUE(table.put(listed_member(1), session(1)));
  Watch watch;
  watch.catch_up(table, 4096);
  ASSERT_TRUE(table.put(listed_member(2), session(2)));
  const ViewMessage lost = watch.next(table, 4096);
  watch.position.revision = lost.upto;
  ASSERT_TRUE(table.put(listed_member(3), session(3)));
  EXPECT_EQ(watch.deliver(watch.next(table, 4096)), SeedView::Applied::kGap);
  EXPECT_EQ(watch.view.listed(), (kv::MemberMap{{1, listed_member(1)}}));
  EXPECT_EQ(watch.view.have(), 0u);
  watch.position = {};
  watch.catch_up(table, 4096);
  EXPECT_EQ(watch.view.listed(), listed(table));
}

TEST(SeedView, RefusesMoreMembersThanItsLimit) {
  SeedView view;
  ViewMessage message{.upto = 5, .last = true};
  for (uint64_t id = 1; id <= 3; ++id) message.members.push_back(listed_member(id));
  EXPECT_EQ(view.apply(message, 2), SeedView::Applied::kTooMany);
  EXPECT_TRUE(view.listed().empty());
  EXPECT_EQ(view.apply(message, 3), SeedView::Applied::kView);
}

TEST(SeedView, KeepsTheMembersOfASessionThatEndedUntilTheNextSeedIsWarmedUp) {
  SeedView view;
  ViewMessage before{.upto = 2, .last = true, .warmed_up = true, .members = {listed_member(1)}};
  view.apply(before, 8);
  EXPECT_TRUE(view.fresh());
  view.interrupted();
  EXPECT_FALSE(view.fresh());
  EXPECT_TRUE(view.kept().contains(1));
  // The seed was restarted: its view is empty at first.
  view.apply({.upto = 1, .last = true}, 8);
  EXPECT_FALSE(view.fresh());
  EXPECT_TRUE(view.kept().contains(1));
  view.apply({.from = 1, .upto = 2, .last = true, .members = {listed_member(2)}}, 8);
  view.interrupted();
  EXPECT_TRUE(view.kept().contains(1) && view.kept().contains(2))
      << "lost again during the warm-up";
  view.apply({.upto = 9, .last = true, .warmed_up = true, .members = {listed_member(3)}}, 8);
  EXPECT_TRUE(view.fresh());
  EXPECT_TRUE(view.kept().empty());
}

/// Random joins, changes and leaves, watchers of every speed, messages of every size: a watcher
/// that has the last message has the seed's members.
TEST(SeedTable, EveryWatcherConvergesWhateverItsMessagesCarry) {
  for (const uint64_t seed : seeds(20)) {
    SCOPED_TRACE(replay(seed));
    Rng rng(seed);
    SeedTable table(40);
    std::vector<Watch> watches(4);
    for (int step = 0; step < 3000; ++step) {
      const auto id = static_cast<uint32_t>(rng.between(1, 60));
      if (rng.chance(0.4)) {
        table.remove(session(id));
      } else {
        Member member = listed_member(id);
        member.load = static_cast<uint32_t>(rng.below(3));
        (void)table.put(member, session(id));  // refused when full
      }
      Watch& watch = watches[rng.below(watches.size())];
      if (rng.chance(0.02)) watch = {};
      if (!rng.chance(0.3)) continue;
      const ViewMessage message = watch.next(table, 100 + rng.below(900));
      const auto applied = watch.deliver(message);
      ASSERT_NE(applied, SeedView::Applied::kGap);
      if (!message.last) continue;
      ASSERT_EQ(watch.view.listed(), listed(table)) << "step " << step;
    }
    for (Watch& watch : watches) {
      watch.catch_up(table, 150);
      EXPECT_EQ(watch.view.listed(), listed(table));
    }
  }
}

}  // namespace
}  // namespace fabric::test::seed_table_test

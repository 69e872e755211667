#include <fabric/kv_router.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "kv/members.h"
#include "support/log_guard.h"

namespace fabric::test::router_test {
namespace {

using kv::Member;
using kv::PickRequest;
using kv::Router;

std::vector<Member> members(uint64_t count, uint32_t capacity = 100) {
  std::vector<Member> all;
  for (uint64_t id = 1; id <= count; ++id) all.push_back(listed_member(id, capacity));
  return all;
}

Router router_of(const std::vector<Member>& all, uint64_t seed = 1) {
  Router router = *Router::make({.seed = seed});
  router.update(view_of(all));
  return router;
}

std::string prefix(uint64_t number) { return "conversation " + std::to_string(number); }

/// Where each prefix goes when no member has load.
std::map<uint64_t, uint64_t> homes(Router& router, uint64_t prefixes) {
  std::map<uint64_t, uint64_t> found;
  for (uint64_t i = 0; i < prefixes; ++i) {
    const auto pick = router.pick({.prefix = prefix(i)});
    EXPECT_TRUE(pick && pick->preferred);
    found[i] = pick->member.engine_id;
    router.report(found[i], 0);
  }
  return found;
}

TEST(Router, RefusesClearlyWhenNoMemberCanBePicked) {
  Router router = *Router::make();
  const auto refusal = [&](const PickRequest& request = {}) {
    const auto pick = router.pick(request);
    EXPECT_FALSE(pick);
    return std::string(to_string(pick.error().code)) + ": " + pick.error().what;
  };
  EXPECT_EQ(refusal(), "NotFound: no prefiller is listed");
  Member decoder = listed_member(9);
  decoder.role = kv::Role::kDecode;
  router.update(view_of({decoder}));
  EXPECT_EQ(refusal(), "NotFound: no prefiller is listed");
  Member other = listed_member(1, 2);
  other.layout_hash = 77;
  router.update(view_of({other}));
  EXPECT_EQ(refusal({.layout_hash = 78}), "NotFound: no prefiller has this layout");
  EXPECT_TRUE(router.pick({.layout_hash = 77}));
  const uint64_t tried[] = {1};
  EXPECT_EQ(refusal({.except = tried}), "NotFound: all prefillers are lost or excepted");
  router.report(1, 2);
  EXPECT_EQ(refusal({.prefix = "p"}), "Exhausted: all prefillers are at capacity");
  router.lost(1);
  EXPECT_EQ(refusal(), "NotFound: all prefillers are lost or excepted");
  EXPECT_EQ(Router::make({.slack_percent = 10'001}).error().code, Errc::kInvalidArgument);
}

TEST(Router, FillsUnevenLoadsInProportionToCapacity) {
  std::vector<Member> all = members(4, 40);
  all[3].capacity = 80;
  Router router = router_of(all);
  router.report(1, 30);
  router.report(2, 10);
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(router.pick());
  // 100 requests on 200 places: each is half full.
  EXPECT_EQ(router.load(1), 30u) << "above its share: it got none";
  EXPECT_NEAR(router.load(2), 17.5, 1);
  EXPECT_NEAR(router.load(3), 17.5, 1);
  EXPECT_NEAR(router.load(4), 35, 1);
}

TEST(Router, SpreadsEqualMembersWithoutAPrefix) {
  Router router = router_of(members(8));
  for (int i = 0; i < 80; ++i) ASSERT_TRUE(router.pick());
  for (uint64_t id = 1; id <= 8; ++id) EXPECT_EQ(router.load(id), 10u);
}

TEST(Router, GivesEveryMemberItsShareOfThePrefixes) {
  Router router = router_of(members(8));
  std::map<uint64_t, int> share;
  for (const auto& [number, home] : homes(router, 8000)) ++share[home];
  for (uint64_t id = 1; id <= 8; ++id) EXPECT_NEAR(share[id], 1000, 150) << "member " << id;
}

TEST(Router, MovesOnlyThePrefixesOfAMemberThatLeavesOrJoins) {
  constexpr uint64_t kPrefixes = 2000;
  const std::vector<Member> all = members(8);
  Router router = router_of(all);
  const auto before = homes(router, kPrefixes);

  std::vector<Member> fewer = all;
  fewer.erase(fewer.begin() + 2);  // member 3
  router.update(view_of(fewer));
  const auto without = homes(router, kPrefixes);
  std::set<uint64_t> heirs;
  for (const auto& [number, home] : before) {
    if (home == 3) {
      heirs.insert(without.at(number));
    } else {
      EXPECT_EQ(without.at(number), home);
    }
  }
  EXPECT_EQ(heirs.size(), 7u) << "its prefixes go to all others";

  router.update(view_of(members(9)));
  const auto with = homes(router, kPrefixes);
  uint64_t moved = 0;
  for (const auto& [number, home] : with) {
    if (home == before.at(number)) continue;
    EXPECT_EQ(home, 9u) << "only to the one that joined";
    ++moved;
  }
  EXPECT_NEAR(static_cast<double>(moved), kPrefixes / 9.0, 60);
}

TEST(Router, LeavesAPrefixAtItsMemberUntilTheLoadIsAboveItsShare) {
  Router router = router_of(members(4));
  for (uint64_t id = 1; id <= 4; ++id) router.report(id, 20);
  const auto first = router.pick({.prefix = "hot"});
  ASSERT_TRUE(first);
  const uint64_t home = first->member.engine_id;
  int stayed = 1;
  std::map<uint64_t, int> spilled;
  for (int i = 0; i < 100; ++i) {
    const auto pick = router.pick({.prefix = "hot"});
    ASSERT_TRUE(pick);
    EXPECT_EQ(pick->preferred, pick->member.engine_id == home);
    if (pick->preferred)
      ++stayed;
    else
      ++spilled[pick->member.engine_id];
  }
  EXPECT_GT(stayed, 100 / 4) << "more than its share: affinity";
  EXPECT_LE(router.load(home), 57u) << "at most a quarter above the mean of 45";
  EXPECT_GE(spilled.size(), 2u);
  router.report(home, 0);
  EXPECT_TRUE(router.pick({.prefix = "hot"})->preferred) << "back when there is room";
}

TEST(Router, PicksALostMemberOnlyAfterAProofThatItIsBack) {
  std::vector<Member> all = members(2);
  Router router = router_of(all);
  const auto picked = [&] {
    std::set<uint64_t> ids;
    for (int i = 0; i < 20; ++i) ids.insert(router.pick({.prefix = prefix(i)})->member.engine_id);
    for (uint64_t id = 1; id <= 2; ++id) {
      if (ids.contains(id)) router.report(id, 0);
    }
    return ids;
  };
  const std::set<uint64_t> both = {1, 2}, second = {2};
  EXPECT_EQ(picked(), both);
  router.lost(1);
  EXPECT_EQ(picked(), second);
  router.update(view_of(all));
  EXPECT_EQ(picked(), second) << "a directory is a hint: listed is not alive";
  router.report(1, 0);
  EXPECT_EQ(picked(), both) << "it has answered";
  router.lost(1);
  ++all[0].incarnation;
  router.update(view_of(all));
  EXPECT_EQ(picked(), both) << "it was restarted";
  router.lost(1);
  --all[0].incarnation;
  router.update(view_of(all));
  EXPECT_EQ(picked(), second) << "a view that lags shows an incarnation that is gone";
  router.update(view_of({all[1]}));
  router.update(view_of(all));
  EXPECT_EQ(picked(), both) << "it left and joined again";
}

TEST(Router, KeepsReportedLoadsWhenTheViewChanges) {
  std::vector<Member> all = members(2);
  Router router = router_of(all);
  router.report(1, 50);
  all[0].load = 3;
  router.update(view_of(all));
  EXPECT_EQ(router.load(1), 50u) << "what an answer said is later than what a directory lists";
  ++all[0].incarnation;
  router.update(view_of(all));
  EXPECT_EQ(router.load(1), 3u);
  EXPECT_EQ(router.load(77), 0u);
}

/// Random members, loads and losses: no pick breaks a rule, and a seed repeats all of them.
TEST(Router, ObeysItsRulesUnderChurnAndRepeats) {
  const auto run = [](uint64_t seed) {
    Rng rng(seed);
    Router router = *Router::make({.seed = seed});
    std::vector<uint64_t> picks;
    std::set<uint64_t> lost;
    std::vector<Member> all;
    for (int step = 0; step < 3000; ++step) {
      switch (rng.below(6)) {
        case 0:
          all = members(rng.below(7), static_cast<uint32_t>(rng.between(1, 9)));
          router.update(view_of(all));
          std::erase_if(lost, [&](uint64_t id) { return id > all.size(); });
          break;
        case 1:
          if (const uint64_t id = rng.between(1, 6); id <= all.size()) {
            router.lost(id);
            lost.insert(id);
          }
          break;
        case 2:
          if (const uint64_t id = rng.between(1, 6); id <= all.size()) {
            router.report(id, static_cast<uint32_t>(rng.below(9)));
            lost.erase(id);
          }
          break;
        default: {
          const std::string text = prefix(rng.below(9));
          const auto pick = router.pick({.prefix = rng.chance(0.5) ? text : std::string()});
          picks.push_back(pick ? pick->member.engine_id : 0);
          if (!pick) break;
          EXPECT_LE(pick->member.engine_id, all.size());
          EXPECT_FALSE(lost.contains(pick->member.engine_id));
          EXPECT_LE(router.load(pick->member.engine_id), pick->member.capacity);
        }
      }
    }
    return picks;
  };
  EXPECT_EQ(run(test_seed()), run(test_seed()));
  EXPECT_NE(run(test_seed()), run(test_seed() + 1));
}

}  // namespace
}  // namespace fabric::test::router_test

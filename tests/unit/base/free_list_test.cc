#include "base/free_list.h"

#include <array>
#include <set>

#include <gtest/gtest.h>

namespace fabric::free_list_test {
namespace {

TEST(FreeList, HandsOutEverySlotOnceAndThenNone) {
  FreeList list(5);
  std::set<uint32_t> seen;
  uint32_t slot = 0;
  for (uint32_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(list.pop(slot));
    EXPECT_LT(slot, 5u);
    EXPECT_TRUE(seen.insert(slot).second);
  }
  EXPECT_FALSE(list.pop(slot));
}

TEST(FreeList, StartsWithSlotZero) {
  FreeList list(3);
  uint32_t slot = 9;
  ASSERT_TRUE(list.pop(slot));
  EXPECT_EQ(slot, 0u);
}

TEST(FreeList, HandsOutTheLastReturnedSlotFirst) {
  FreeList list(4);
  uint32_t a = 0, b = 0, again = 0;
  ASSERT_TRUE(list.pop(a));
  ASSERT_TRUE(list.pop(b));
  list.push(a);
  list.push(b);
  ASSERT_TRUE(list.pop(again));
  EXPECT_EQ(again, b);
  ASSERT_TRUE(list.pop(again));
  EXPECT_EQ(again, a);
}

TEST(FreeList, OfNothingHasNothing) {
  FreeList list(0);
  uint32_t slot = 0;
  EXPECT_FALSE(list.pop(slot));
}

TEST(FreeList, GivesAndTakesSeveralAtOnce) {
  FreeList list(5);
  std::array<uint32_t, 4> some{};
  ASSERT_EQ(list.pop_all(some), 4u);
  EXPECT_EQ(std::set<uint32_t>(some.begin(), some.end()).size(), 4u);
  std::array<uint32_t, 4> rest{};
  ASSERT_EQ(list.pop_all(rest), 1u) << "only one slot is left";
  EXPECT_EQ(list.pop_all(rest), 0u);
  list.push_all(some);
  list.push_all({});
  std::array<uint32_t, 4> again{};
  ASSERT_EQ(list.pop_all(again), 4u);
  EXPECT_EQ(again, some) << "in the order in which they were freed";
  list.push_all(std::span(again).first(1));
  uint32_t slot = 9;
  ASSERT_TRUE(list.pop(slot));
  EXPECT_EQ(slot, again[0]);
  EXPECT_FALSE(list.pop(slot));
}

}  // namespace
}  // namespace fabric::free_list_test

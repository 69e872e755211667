#include "base/free_list.h"

#include <set>

#include <gtest/gtest.h>

namespace fabric {
namespace {

TEST(FreeList, HandsOutEverySlotOnceAndThenNone) {
  FreeList list(5);
  std::set<uint32_t> seen;
  uint32_t slot = 0;
  for (uint32_t i = 0; i < 5; ++i) {
    EXPECT_EQ(list.free_count(), 5 - i);
    ASSERT_TRUE(list.pop(slot));
    EXPECT_LT(slot, 5u);
    EXPECT_TRUE(seen.insert(slot).second);
  }
  EXPECT_EQ(list.free_count(), 0u);
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
  EXPECT_EQ(list.free_count(), 4u);
  ASSERT_TRUE(list.pop(again));
  EXPECT_EQ(again, b);
  ASSERT_TRUE(list.pop(again));
  EXPECT_EQ(again, a);
}

TEST(FreeList, OfNothingHasNothing) {
  FreeList list(0);
  uint32_t slot = 0;
  EXPECT_FALSE(list.pop(slot));
  EXPECT_EQ(list.free_count(), 0u);
}

}  // namespace
}  // namespace fabric

#include "base/spsc.h"

#include <cstdint>

#include <gtest/gtest.h>

namespace fabric::spsc_test {
namespace {

TEST(SpscRing, GivesBackInOrderOverManyLaps) {
  SpscRing<uint32_t> ring(4);
  uint32_t next = 0, expected = 0, out = 0;
  for (int lap = 0; lap < 100; ++lap) {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(ring.push(next++));
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(ring.pop(out));
      ASSERT_EQ(out, expected++);
    }
  }
  EXPECT_FALSE(ring.pop(out));
}

TEST(SpscRing, RefusesWhenFullAndTakesAgainAfterOnePop) {
  SpscRing<int> ring(3);
  ASSERT_EQ(ring.capacity(), 4u);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(ring.push(i));
  EXPECT_FALSE(ring.push(4));
  int out = -1;
  ASSERT_TRUE(ring.pop(out));
  EXPECT_EQ(out, 0);
  EXPECT_TRUE(ring.push(4));
  EXPECT_FALSE(ring.push(5));
}

TEST(SpscRing, HoldsOneWhenAskedForOne) {
  SpscRing<int> ring(1);
  int out = 0;
  EXPECT_TRUE(ring.empty());
  ASSERT_TRUE(ring.push(7));
  EXPECT_FALSE(ring.empty());
  EXPECT_FALSE(ring.push(8));
  ASSERT_TRUE(ring.pop(out));
  EXPECT_EQ(out, 7);
  EXPECT_TRUE(ring.empty());
}

}  // namespace
}  // namespace fabric::spsc_test

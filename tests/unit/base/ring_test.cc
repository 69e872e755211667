#include "base/ring.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace fabric::ring_test {
namespace {

TEST(MpscRing, GivesBackInOrderOverManyLaps) {
  MpscRing<uint32_t> ring(4);
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

TEST(MpscRing, RefusesWhenFullAndTakesAgainAfterOnePop) {
  MpscRing<int> ring(8);
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(ring.push(i));
  EXPECT_FALSE(ring.push(8));
  int out = -1;
  ASSERT_TRUE(ring.pop(out));
  EXPECT_EQ(out, 0);
  EXPECT_TRUE(ring.push(8));
  EXPECT_FALSE(ring.push(9));
}

TEST(MpscRing, RoundsItsCapacityUpToAPowerOfTwo) {
  EXPECT_EQ(MpscRing<int>(0).capacity(), 2u);
  EXPECT_EQ(MpscRing<int>(1).capacity(), 2u);
  EXPECT_EQ(MpscRing<int>(5).capacity(), 8u);
  EXPECT_EQ(MpscRing<int>(8).capacity(), 8u);
}

TEST(MpscRing, TakesASpanWholeOrNotAtAll) {
  MpscRing<int> ring(8);
  const std::vector<int> five{1, 2, 3, 4, 5};
  ASSERT_TRUE(ring.push_all(five));
  EXPECT_FALSE(ring.push_all(five));  // three places are left
  EXPECT_TRUE(ring.push_all(std::vector<int>{6, 7, 8}));
  EXPECT_FALSE(ring.push(9));
  for (int expected = 1; expected <= 8; ++expected) {
    int out = 0;
    ASSERT_TRUE(ring.pop(out));
    EXPECT_EQ(out, expected);
  }
  EXPECT_TRUE(ring.empty());
}

TEST(MpscRing, TakesASpanAsLongAsItselfAtEveryPosition) {
  MpscRing<int> ring(4);
  const std::vector<int> whole{1, 2, 3, 4};
  int out = 0;
  for (int lap = 0; lap < 9; ++lap) {
    ASSERT_TRUE(ring.push_all(whole));
    ASSERT_FALSE(ring.push(5));
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE(ring.pop(out));
      ASSERT_EQ(out, i + 1);
    }
    ASSERT_TRUE(ring.push(0));  // moves the next lap by one
    ASSERT_TRUE(ring.pop(out));
  }
  EXPECT_FALSE(ring.push_all(std::vector<int>(5)));
  EXPECT_TRUE(ring.push_all({}));
  EXPECT_TRUE(ring.empty());
}

TEST(MpscRing, IsEmptyExactlyWhenPopWouldFail) {
  MpscRing<int> ring(2);
  int out = 0;
  EXPECT_TRUE(ring.empty());
  ASSERT_TRUE(ring.push(1));
  EXPECT_FALSE(ring.empty());
  ASSERT_TRUE(ring.pop(out));
  EXPECT_TRUE(ring.empty());
}

}  // namespace
}  // namespace fabric::ring_test

#include "base/rng.h"

#include <algorithm>
#include <array>

#include <gtest/gtest.h>

namespace fabric::rng_test {
namespace {

// The reference implementation of Blackman and Vigna, its state filled by splitmix64 from 0 and 42.
// Every published seed of a failed run depends on these numbers.
TEST(Rng, GivesTheSequenceOfTheReference) {
  Rng zero(0);
  EXPECT_EQ(zero.next(), 0x99ec5f36cb75f2b4u);
  EXPECT_EQ(zero.next(), 0xbf6e1f784956452au);
  EXPECT_EQ(zero.next(), 0x1a5f849d4933e6e0u);
  Rng other(42);
  EXPECT_EQ(other.next(), 0x15780b2e0c2ec716u);
}

TEST(Rng, StaysInItsBounds) {
  Rng rng(1);
  for (int i = 0; i < 10'000; ++i) {
    EXPECT_LT(rng.below(7), 7u);
    const uint64_t drawn = rng.between(10, 12);
    EXPECT_GE(drawn, 10u);
    EXPECT_LE(drawn, 12u);
  }
  EXPECT_EQ(rng.below(1), 0u);
  EXPECT_EQ(rng.between(5, 5), 5u);
}

TEST(Rng, BetweenCoversTheWholeRange) {
  Rng rng(3);
  Rng same(3);
  EXPECT_EQ(rng.between(0, UINT64_MAX), same.next());
}

TEST(Rng, DrawsEveryValueAboutEquallyOften) {
  Rng rng(5);
  std::array<int, 6> seen{};
  for (int i = 0; i < 60'000; ++i) ++seen[rng.below(seen.size())];
  // 10,000 expected, standard deviation 91: five of them.
  for (const int count : seen) EXPECT_NEAR(count, 10'000, 455);
}

TEST(Rng, ChanceFollowsItsProbability) {
  Rng rng(9);
  int hits = 0;
  for (int i = 0; i < 100'000; ++i) hits += rng.chance(0.3) ? 1 : 0;
  EXPECT_NEAR(hits, 30'000, 725);  // five standard deviations
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(rng.chance(0.0));
    EXPECT_TRUE(rng.chance(1.0));
  }
}

TEST(Rng, ChanceDrawsOnceWhateverTheProbability) {
  Rng a(4), b(4);
  a.chance(0.0);
  b.chance(1.0);
  EXPECT_EQ(a.next(), b.next());
}

TEST(Rng, ForkIsDeterministicAndDiffersFromItsParent) {
  Rng a(11), b(11);
  Rng fork_a = a.fork(), fork_b = b.fork();
  EXPECT_EQ(a.next(), b.next());
  for (int i = 0; i < 100; ++i) {
    const uint64_t drawn = fork_a.next();
    EXPECT_EQ(drawn, fork_b.next());
    EXPECT_NE(drawn, a.next());
  }
}

}  // namespace
}  // namespace fabric::rng_test

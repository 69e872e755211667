#include "core/shard.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace fabric::core::shard_test {
namespace {

/// What every cut promises, whatever the size and the rule.
void expect_sound(uint64_t size, const CutRule& rule) {
  SCOPED_TRACE(testing::Message() << size << " bytes, " << rule.shards_max << " shards, at least "
                                  << rule.stripe_bytes_min << ", aligned to " << rule.align);
  const Cut cut = cut_write(size, rule);
  ASSERT_GE(cut.count, 1u);
  ASSERT_LE(cut.count, rule.shards_max);
  ASSERT_EQ(cut.begin[0], 0u);
  ASSERT_EQ(cut.begin[cut.count], size) << "every byte is in a shard";
  if (cut.count > 1) {
    ASSERT_LE(cut.count, size / rule.stripe_bytes_min)
        << "a shard is smaller than stripe_bytes_min";
  }
  for (uint32_t i = 0; i < cut.count; ++i) {
    if (size > 0) {
      ASSERT_LT(cut.begin[i], cut.begin[i + 1]) << "shard " << i << " is empty";
    }
    ASSERT_EQ(cut.begin[i] % rule.align, 0u) << "shard " << i << " is not aligned";
  }
  // No shard is larger than an even share rounded up to the alignment.
  const uint64_t wanted = std::min<uint64_t>(rule.shards_max, size / rule.stripe_bytes_min);
  for (uint32_t i = 0; i < cut.count && wanted > 1; ++i) {
    ASSERT_LT(cut.begin[i + 1] - cut.begin[i], size / wanted + 1 + rule.align) << "shard " << i;
  }
}

TEST(CutWrite, IsSoundForEveryLengthAroundTheEdges) {
  for (uint32_t rails = 1; rails <= kRailsMax; ++rails) {
    for (const uint64_t stripe : {1u, 7u, 16u, 64u, 100u}) {
      for (const uint64_t align : {1u, 2u, 16u, 64u, 512u}) {
        for (uint64_t size = 0; size <= 10 * stripe + 2 * align + 2; ++size) {
          expect_sound(size, {rails, stripe, align});
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(CutWrite, IsSoundForTheDefaultsAndForVeryLargeWrites) {
  for (uint32_t rails = 1; rails <= kRailsMax; ++rails) {
    for (uint64_t k = 1; k <= 10; ++k) {
      for (const int64_t off : {-4097, -4096, -1, 0, 1, 4095, 4096, 4097}) {
        expect_sound(static_cast<uint64_t>(static_cast<int64_t>(k * 65536) + off),
                     {rails, 65536, 4096});
      }
    }
    for (const uint64_t size : {1ull << 40, (1ull << 62) + 1, (1ull << 63) - 1}) {
      expect_sound(size, {rails, 65536, 4096});
    }
  }
}

TEST(CutWrite, UsesOneMoreRailWithEachStripe) {
  const CutRule rule{.shards_max = 4, .stripe_bytes_min = 100, .align = 1};
  EXPECT_EQ(cut_write(0, rule).count, 1u);
  EXPECT_EQ(cut_write(199, rule).count, 1u);
  EXPECT_EQ(cut_write(200, rule).count, 2u);
  EXPECT_EQ(cut_write(299, rule).count, 2u);
  EXPECT_EQ(cut_write(300, rule).count, 3u);
  EXPECT_EQ(cut_write(400, rule).count, 4u);
  EXPECT_EQ(cut_write(1u << 30, rule).count, 4u) << "no more than there are rails";
}

TEST(CutWrite, SharesEvenlyAndLeavesTheTailToTheLast) {
  const Cut cut = cut_write(1001, {.shards_max = 4, .stripe_bytes_min = 100, .align = 1});
  EXPECT_EQ(cut.count, 4u);
  EXPECT_EQ(cut.begin, (decltype(cut.begin){0, 251, 502, 753, 1001}));
}

TEST(CutWrite, MakesFewerShardsRatherThanEmptyOnes) {
  // Three shares of 100 rounded up to 256: two hold it all.
  const Cut cut = cut_write(300, {.shards_max = 3, .stripe_bytes_min = 100, .align = 256});
  EXPECT_EQ(cut.count, 2u);
  EXPECT_EQ(cut.begin[1], 256u);
  EXPECT_EQ(cut.begin[2], 300u);
}

}  // namespace
}  // namespace fabric::core::shard_test

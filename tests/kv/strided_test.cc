#include <cstring>
#include <numeric>

#include <fabric/layout.h>

#include <gtest/gtest.h>

#include "base/rng.h"

namespace fabric::layout::strided_test {
namespace {

TEST(Strided, ShardsInEqualSharesOrByConsecutiveReplicas) {
  EXPECT_EQ(shard(8, 3, 4)->range, (IndexRange{6, 2}));
  EXPECT_EQ(shard(8, 3, 4)->replicas, 1u);
  const auto replica = shard(2, 5, 8);
  ASSERT_TRUE(replica);
  EXPECT_EQ(replica->range, (IndexRange{1, 1}));
  EXPECT_EQ(replica->replicas, 4u);
  EXPECT_EQ(replica->replica, 1u);
  EXPECT_EQ(shard(6, 0, 4).error().code, Errc::kUnsupported);
  EXPECT_EQ(shard(3, 0, 8).error().code, Errc::kUnsupported);
  EXPECT_EQ(shard(0, 0, 1).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(shard(1, 0, 0).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(shard(4, 4, 4).error().code, Errc::kInvalidArgument);
}

TEST(Strided, MergesWhatIsContiguousOnBothSides) {
  // [4][8] of 2 bytes, dense here; there rows are 32 bytes apart.
  const Block dense{.axes = {{{0, 4}, 16}, {{0, 8}, 2}}, .element_bytes = 2};
  const Block padded{.axes = {{{0, 4}, 32}, {{0, 8}, 2}}, .offset_bytes = 5, .element_bytes = 2};
  const auto one_run = merge(**intersect(dense, dense));
  EXPECT_EQ(one_run.run_bytes, 64u);
  EXPECT_TRUE(one_run.loops.empty());
  EXPECT_EQ(one_run.axes_in_run, 3u);
  const auto rows = merge(**intersect(dense, padded));
  EXPECT_EQ(rows.run_bytes, 16u);
  ASSERT_EQ(rows.loops.size(), 1u);
  EXPECT_EQ(rows.loops[0], (Loop{4, 16, 32, 1}));
  EXPECT_EQ(rows.target_offset_bytes, 5u);
  EXPECT_EQ(rows.axes_in_run, 2u);
}

TEST(Strided, MergesAdjacentLoops) {
  // Axes 0 and 1 of both sides continue each other, but not the run.
  const Block a{.axes = {{{0, 3}, 80}, {{0, 5}, 16}}, .element_bytes = 8};
  const Block b{.axes = {{{0, 3}, 160}, {{0, 5}, 32}}, .element_bytes = 8};
  const auto copy = merge(**intersect(a, b));
  ASSERT_EQ(copy.loops.size(), 1u);
  EXPECT_EQ(copy.loops[0], (Loop{15, 16, 32, 3}));
}

TEST(Strided, IntersectsInGlobalIndices) {
  const Block source{.axes = {{{4, 4}, 10}}, .offset_bytes = 1000, .element_bytes = 10};
  const Block target{.axes = {{{6, 8}, 10}}, .offset_bytes = 500, .element_bytes = 10};
  const auto copy = merge(**intersect(source, target));
  EXPECT_EQ(copy.source_offset_bytes, 1020u);
  EXPECT_EQ(copy.target_offset_bytes, 500u);
  EXPECT_EQ(copy.run_bytes, 20u);
  const Block elsewhere{.axes = {{{8, 8}, 10}}, .element_bytes = 10};
  EXPECT_FALSE(intersect(source, elsewhere)->has_value());
  const Block other_size{.axes = {{{4, 4}, 10}}, .element_bytes = 5};
  EXPECT_EQ(intersect(source, other_size).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(intersect(source, {.element_bytes = 10}).error().code, Errc::kInvalidArgument);
}

TEST(Strided, KnowsOverlapAndOverflow) {
  EXPECT_TRUE(has_distinct_elements({.axes = {{{0, 4}, 8}, {{0, 2}, 4}}, .element_bytes = 4}));
  EXPECT_FALSE(has_distinct_elements({.axes = {{{0, 4}, 8}, {{0, 3}, 4}}, .element_bytes = 4}));
  EXPECT_FALSE(has_distinct_elements({.axes = {{{0, 2}, 0}}, .element_bytes = 4}));
  EXPECT_TRUE(has_distinct_elements({.axes = {{{0, 1}, 0}}, .element_bytes = 4}));
  EXPECT_EQ(span_bytes({.axes = {{{0, 4}, 8}, {{0, 2}, 4}}, .element_bytes = 4}), 32u);
  EXPECT_EQ(span_bytes({.axes = {{{0, 0}, 8}}, .element_bytes = 4}), 0u);
  EXPECT_FALSE(span_bytes({.axes = {{{0, 3}, UINT64_MAX / 2}}, .element_bytes = 4}));
  EXPECT_FALSE(span_bytes({.axes = {{{0, UINT64_MAX}, 2}}, .element_bytes = 4}));
}

TEST(Strided, GathersAndScattersEveryElement) {
  // Random boxes with the axes in another order of strides on each side; element by element.
  Rng rng(1);
  for (int n = 0; n < 300; ++n) {
    const uint64_t lengths[3] = {rng.between(1, 5), rng.between(1, 5), rng.between(1, 5)};
    const auto draw_block = [&] {
      int order[3] = {0, 1, 2};
      for (int k = 0; k < 3; ++k) std::swap(order[k], order[k + rng.below(3 - k)]);
      Block block{.axes = std::vector<BlockAxis>(3), .element_bytes = 1};
      uint64_t stride = 1;
      for (const int axis : order) {
        block.axes[axis] = {{0, lengths[axis]}, stride};
        stride *= lengths[axis] + rng.below(2);
      }
      return block;
    };
    const Block from = draw_block();
    const Block to = draw_block();
    const auto copy = merge(**intersect(from, to));
    std::vector<std::byte> source(*span_bytes(from));
    for (auto& b : source) b = static_cast<std::byte>(rng.between(1, 255));
    std::vector<std::byte> target(*span_bytes(to));
    std::vector<std::byte> packed(copy.bytes());
    ASSERT_EQ(copy.bytes(), lengths[0] * lengths[1] * lengths[2]);
    ASSERT_TRUE(gather(copy, source, packed));
    ASSERT_TRUE(scatter(copy, packed, target));
    for (uint64_t i = 0; i < lengths[0]; ++i) {
      for (uint64_t j = 0; j < lengths[1]; ++j) {
        for (uint64_t k = 0; k < lengths[2]; ++k) {
          const auto at = [&](const Block& block) {
            return i * block.axes[0].stride_bytes + j * block.axes[1].stride_bytes +
                   k * block.axes[2].stride_bytes;
          };
          ASSERT_EQ(target[at(to)], source[at(from)]);
        }
      }
    }
    const auto short_by_one = [](auto& bytes) { return std::span(bytes).first(bytes.size() - 1); };
    EXPECT_EQ(gather(copy, short_by_one(source), packed).error().code, Errc::kOutOfBounds);
    EXPECT_EQ(gather(copy, source, short_by_one(packed)).error().code, Errc::kOutOfBounds);
    EXPECT_EQ(scatter(copy, packed, short_by_one(target)).error().code, Errc::kOutOfBounds);
    EXPECT_EQ(scatter(copy, short_by_one(packed), target).error().code, Errc::kOutOfBounds);
  }
}

TEST(Strided, HashIsTheSameOnEveryMachine) {
  // FNV-1a of "" and "a" are published; the finaliser is splitmix64's.
  const auto finalise = [](uint64_t hash) {
    hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9;
    hash = (hash ^ (hash >> 27)) * 0x94d049bb133111eb;
    return hash ^ (hash >> 31);
  };
  EXPECT_EQ(hash_bytes(""), finalise(0xcbf29ce484222325));
  EXPECT_EQ(hash_bytes("a"), finalise(0xaf63dc4c8601ec8c));
}

}  // namespace
}  // namespace fabric::layout::strided_test

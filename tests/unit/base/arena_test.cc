#include "base/arena.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"

namespace fabric::arena_test {
namespace {

TEST(Arena, AlignsEveryBlockToACacheLine) {
  Arena arena(4096);
  for (const uint64_t bytes : {1u, 16u, 63u, 64u, 65u, 200u}) {
    void* const block = arena.allocate(bytes);
    ASSERT_NE(block, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % Arena::kUnitBytes, 0u);
  }
}

TEST(Arena, FitsExactlyWhatItHolds) {
  Arena arena(64 * 200);
  std::vector<void*> blocks;
  for (int i = 0; i < 200; ++i) {
    blocks.push_back(arena.allocate(64));
    ASSERT_NE(blocks.back(), nullptr) << i;
  }
  EXPECT_EQ(arena.allocate(1), nullptr);
  arena.free(blocks[77]);
  EXPECT_EQ(arena.allocate(64), blocks[77]);
}

TEST(Arena, RefusesWhatCanNeverFit) {
  Arena arena(1000);  // sixteen units
  EXPECT_EQ(arena.largest(), 1024u);
  EXPECT_EQ(arena.allocate(1025), nullptr);
  EXPECT_EQ(arena.allocate(UINT64_MAX), nullptr);
  void* const whole = arena.allocate(1024);
  ASSERT_NE(whole, nullptr);
  EXPECT_EQ(arena.allocate(0), nullptr);
  arena.free(whole);
  EXPECT_NE(arena.allocate(0), nullptr);
}

TEST(Arena, GivesARunThatCrossesWordsOfItsBitmap) {
  Arena arena(64 * 256);
  void* const first = arena.allocate(64 * 40);
  void* const across = arena.allocate(64 * 150);  // units 40..189: three words
  ASSERT_NE(across, nullptr);
  EXPECT_EQ(static_cast<std::byte*>(across), static_cast<std::byte*>(first) + 64 * 40);
  EXPECT_EQ(arena.allocate(64 * 67), nullptr);  // 66 are left
  EXPECT_NE(arena.allocate(64 * 66), nullptr);
  EXPECT_EQ(arena.allocate(1), nullptr);
}

TEST(Arena, DoesNotReachBeyondItsEndWithinTheLastWord) {
  Arena arena(64 * 70);
  ASSERT_NE(arena.allocate(64 * 66), nullptr);
  EXPECT_EQ(arena.allocate(64 * 5), nullptr);  // four are left, and the bitmap has 58 bits to spare
  EXPECT_NE(arena.allocate(64 * 4), nullptr);
}

TEST(Arena, IsWholeAgainAfterManySmallBlocks) {
  Arena arena(1u << 16);
  std::vector<void*> blocks;
  while (void* const block = arena.allocate(64)) blocks.push_back(block);
  EXPECT_EQ(blocks.size(), (1u << 16) / 64);
  for (void* const block : blocks) arena.free(block);
  void* const whole = arena.allocate(arena.largest());
  EXPECT_NE(whole, nullptr);
}

TEST(Arena, NeverGivesTheSameBytesTwice) {
  struct Block {
    std::byte* at;
    uint64_t bytes;
    std::byte fill;
  };
  Arena arena(256u << 10);
  Rng rng(7);
  std::vector<Block> blocks;
  uint32_t refused = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (rng.chance(0.52)) {
      const uint64_t bytes = rng.chance(0.1) ? rng.between(1, 40'000) : rng.between(1, 700);
      auto* const at = static_cast<std::byte*>(arena.allocate(bytes));
      if (at == nullptr) {
        ++refused;
        continue;
      }
      const auto fill = static_cast<std::byte>(step);
      std::memset(at, static_cast<int>(fill), bytes);
      blocks.push_back({at, bytes, fill});
    } else if (!blocks.empty()) {
      const uint64_t i = rng.below(blocks.size());
      const Block block = blocks[i];
      blocks[i] = blocks.back();
      blocks.pop_back();
      const std::vector<std::byte> expected(block.bytes, block.fill);
      ASSERT_EQ(std::memcmp(block.at, expected.data(), block.bytes), 0) << step;
      arena.free(block.at);
    }
  }
  EXPECT_GT(refused, 0u);  // or the arena was never full and the test too mild
  for (const Block& block : blocks) arena.free(block.at);
  EXPECT_NE(arena.allocate(arena.largest()), nullptr);
}

TEST(ArenaDeathTest, StopsAtASecondFree) {
  Arena arena(4096);
  void* const block = arena.allocate(100);
  arena.free(block);
  EXPECT_DEATH(arena.free(block), "freed twice");
}

TEST(ArenaDeathTest, StopsAtAForeignPointer) {
  Arena arena(4096);
  int foreign = 0;
  EXPECT_DEATH(arena.free(&foreign), "not of this arena");
}

TEST(Arena, FreesNullInSilence) { Arena(64).free(nullptr); }

}  // namespace
}  // namespace fabric::arena_test

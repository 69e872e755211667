#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/arena.h"
#include "base/free_list.h"
#include "base/ring.h"
#include "base/rng.h"
#include "base/spsc.h"

namespace fabric::ring_stress_test {
namespace {

constexpr uint32_t kThreads = 4;
constexpr uint32_t kRounds = 20'000;

struct Item {
  uint32_t producer = 0;
  uint32_t number = 0;
  uint32_t left = 0;  ///< of its span, after it
};

// A small ring, so that it is full and empty all the time.
TEST(MpscRingStress, LosesNothingAndKeepsSpansAndProducersInOrder) {
  MpscRing<Item> ring(16);
  std::vector<std::thread> producers;
  for (uint32_t p = 0; p < kThreads; ++p) {
    producers.emplace_back([&ring, p] {
      Rng rng(p + 1);
      for (uint32_t number = 0; number < kRounds;) {
        std::array<Item, 7> items;
        const uint32_t n = static_cast<uint32_t>(
            std::min<uint64_t>(rng.between(1, items.size()), kRounds - number));
        for (uint32_t i = 0; i < n; ++i) items[i] = {p, number + i, n - 1 - i};
        while (!ring.push_all(std::span(items).first(n))) std::this_thread::yield();
        number += n;
      }
    });
  }
  std::array<uint32_t, kThreads> next{};
  Item last{};
  for (uint32_t taken = 0; taken < kThreads * kRounds;) {
    Item item;
    if (!ring.pop(item)) {
      std::this_thread::yield();
      continue;
    }
    ++taken;
    ASSERT_LT(item.producer, kThreads);
    ASSERT_EQ(item.number, next[item.producer]++);
    if (last.left != 0) {
      ASSERT_EQ(item.producer, last.producer) << "an element is inside a span";
      ASSERT_EQ(item.left, last.left - 1);
    }
    last = item;
  }
  for (std::thread& producer : producers) producer.join();
  EXPECT_TRUE(ring.empty());
}

TEST(SpscRingStress, LosesNothingAndKeepsTheOrder) {
  SpscRing<Item> ring(8);
  std::thread producer([&ring] {
    for (uint32_t i = 0; i < kThreads * kRounds; ++i) {
      while (!ring.push({.number = i, .left = ~i})) std::this_thread::yield();
    }
  });
  for (uint32_t i = 0; i < kThreads * kRounds; ++i) {
    Item item;
    while (!ring.pop(item)) std::this_thread::yield();
    ASSERT_EQ(item.number, i);
    ASSERT_EQ(item.left, ~i);
  }
  producer.join();
}

// The slots' contents are plain memory: the list alone orders one owner before the next. Few slots
// and a changing order of the stack, as ABA needs it: two come off, the first goes back first.
TEST(FreeListStress, GivesASlotToOneOwnerAtATime) {
  constexpr uint32_t kSlots = 3;
  FreeList list(kSlots);
  std::array<uint64_t, kSlots> slots{};
  std::array<std::atomic<bool>, kSlots> owned{};
  std::atomic<uint64_t> total{0}, clashes{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      uint64_t mine = 0;
      for (uint32_t i = 0; i < kRounds * 10 && clashes == 0; ++i) {
        uint32_t held[2];
        uint32_t n = 0;
        while (n < 2 && list.pop(held[n])) ++n;
        for (uint32_t k = 0; k < n; ++k) {
          if (owned[held[k]].exchange(true, std::memory_order_relaxed)) ++clashes;
          ++slots[held[k]];
        }
        mine += n;
        for (uint32_t k = 0; k < n; ++k) {
          owned[held[k]].store(false, std::memory_order_relaxed);
          list.push(held[k]);
        }
      }
      total += mine;
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(clashes, 0u);
  uint64_t sum = 0;
  for (const uint64_t slot : slots) sum += slot;
  EXPECT_EQ(sum, total);
  uint32_t slot = 0, there = 0;
  while (there <= kSlots && list.pop(slot)) ++there;
  EXPECT_EQ(there, kSlots);
}

TEST(ArenaStress, NeverGivesTheSameBytesToTwoThreads) {
  Arena arena(32u << 10);
  std::atomic<uint32_t> damaged{0}, refused{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      struct Block {
        uint8_t* at = nullptr;
        uint64_t bytes = 0;
        uint8_t fill = 0;
      };
      Rng rng(t + 1);
      std::array<Block, 6> blocks;
      for (uint32_t i = 0; i < kRounds / 5; ++i) {
        Block& block = blocks[rng.below(blocks.size())];
        for (uint64_t k = 0; k < block.bytes; ++k) damaged += block.at[k] != block.fill;
        arena.free(block.at);
        block = {};
        // Mostly within a word of the bitmap, sometimes over three of them.
        const uint64_t bytes = rng.chance(0.2) ? rng.between(1, 8000) : rng.between(1, 600);
        block.at = static_cast<uint8_t*>(arena.allocate(bytes));
        if (block.at == nullptr) {
          ++refused;
          continue;
        }
        block.bytes = bytes;
        block.fill = static_cast<uint8_t>(rng.next());
        std::memset(block.at, block.fill, bytes);
      }
      for (const Block& block : blocks) arena.free(block.at);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(damaged, 0u);
  EXPECT_GT(refused, 0u);  // or it was never full and the test too mild
  EXPECT_NE(arena.allocate(arena.largest()), nullptr);
}

// Runs of two and three words in an arena of four: claims collide and are taken back all the time.
TEST(ArenaStress, TakesBackAClaimThatMeetsAnother) {
  constexpr uint64_t kUnits = 256;
  Arena arena(kUnits * Arena::kUnitBytes);
  std::atomic<uint32_t> damaged{0}, got{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Rng rng(t + 1);
      for (uint32_t i = 0; i < kRounds * 5; ++i) {
        const uint64_t units = rng.between(1, 130);
        auto* const block = static_cast<uint8_t*>(arena.allocate(units * Arena::kUnitBytes));
        if (block == nullptr) continue;
        ++got;
        // Marks at both ends and around the middle: where another block could reach into it.
        const uint64_t last = (units - 1) * Arena::kUnitBytes;
        const uint64_t marks[] = {0, last / 2, last};
        for (const uint64_t at : marks) block[at] = static_cast<uint8_t>(t);
        for (const uint64_t at : marks) damaged += block[at] != static_cast<uint8_t>(t);
        arena.free(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(damaged, 0u);
  EXPECT_GT(got, kRounds);
  EXPECT_NE(arena.allocate(arena.largest()), nullptr);
}

}  // namespace
}  // namespace fabric::ring_stress_test

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/system.h"
#include "core/slot_table.h"

// Single words that many threads look at without a lock.

namespace fabric::words_stress_test {
namespace {

struct Item : core::SlotHead {
  uint32_t self = 0;                   // plain: written once, before the first publish
  std::atomic<uint32_t> published{0};  // never falls, so what is found is at least as new
};

// One owner, as under its lock; finders without.
TEST(SlotTableStress, WhoFindsASlotSeesWhatWasStoredBeforeItWasPublished) {
  constexpr uint32_t kRounds = 20'000;
  constexpr uint32_t kSlots = 4;
  core::SlotTable<Item> table(kSlots);
  std::array<std::atomic<uint32_t>, kSlots> newest{};  // relaxed: the table alone orders
  std::atomic<bool> stop{false};
  std::atomic<uint32_t> found{0}, wrong{0};
  std::vector<std::thread> finders;
  for (uint32_t t = 0; t < 2; ++t) {
    finders.emplace_back([&] {
      while (!stop.load(std::memory_order_relaxed)) {
        for (uint32_t slot = 0; slot < kSlots; ++slot) {
          const uint32_t generation = newest[slot].load(std::memory_order_relaxed);
          Item* const item = table.find(slot, generation);
          if (item == nullptr) continue;
          found.fetch_add(1, std::memory_order_relaxed);
          const bool seen =
              item->self == slot && item->published.load(std::memory_order_relaxed) >= generation;
          wrong.fetch_add(!seen, std::memory_order_relaxed);
        }
      }
    });
  }
  for (uint32_t i = 0; i < kRounds || found.load(std::memory_order_relaxed) == 0; ++i) {
    uint32_t slot = 0;
    Item* const item = table.acquire(slot);
    ASSERT_NE(item, nullptr);
    if (item->last_generation == 0) item->self = slot;
    item->published.store(core::SlotTable<Item>::next_generation(*item), std::memory_order_relaxed);
    newest[slot].store(table.publish(slot), std::memory_order_relaxed);
    if (i % 64 == 0) std::this_thread::yield();
    table.recycle(slot);
  }
  stop.store(true, std::memory_order_relaxed);
  for (std::thread& finder : finders) finder.join();
  EXPECT_EQ(wrong, 0u);
}

TEST(IncarnationStress, NoTwoThreadsGetTheSameAndEachSeesItsOwnGrow) {
  constexpr uint32_t kEach = 2'000;
  std::array<std::vector<uint64_t>, 4> drawn;
  std::vector<std::thread> threads;
  for (auto& mine : drawn) {
    threads.emplace_back([&mine] {
      for (uint32_t i = 0; i < kEach; ++i) mine.push_back(next_incarnation());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<uint64_t> all;
  for (const auto& mine : drawn) {
    EXPECT_TRUE(std::is_sorted(mine.begin(), mine.end()));
    all.insert(all.end(), mine.begin(), mine.end());
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
}

}  // namespace
}  // namespace fabric::words_stress_test

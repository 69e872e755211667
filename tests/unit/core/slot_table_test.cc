#include "core/slot_table.h"

#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"

namespace fabric::core::slot_table_test {
namespace {

struct Item : SlotHead {
  int value = 0;
};

TEST(SlotTable, AnswersOnlyForThePresentGeneration) {
  SlotTable<Item> table(4);
  uint32_t slot = 99;
  Item* item = table.acquire(slot);
  ASSERT_NE(item, nullptr);
  item->value = 7;
  EXPECT_EQ(table.find(slot, 1), nullptr) << "allocated, but not published yet";
  const uint32_t generation = table.publish(slot);
  ASSERT_EQ(table.find(slot, generation), item);
  EXPECT_EQ(table.find(slot, generation + 1), nullptr);
  EXPECT_EQ(table.find(slot, 0), nullptr) << "a default handle must not be found";
  table.hide(slot);
  EXPECT_EQ(table.find(slot, generation), nullptr);
  EXPECT_EQ(table.live(), 1u) << "hidden, but still allocated";
  table.recycle(slot);
  EXPECT_EQ(table.live(), 0u);
}

TEST(SlotTable, HandlesOutOfRangeFindNothing) {
  SlotTable<Item> table(4);
  EXPECT_EQ(table.find(0, 1), nullptr) << "before anything was made";
  EXPECT_EQ(table.find(5, 1), nullptr);
  EXPECT_EQ(table.find(UINT32_MAX, UINT32_MAX), nullptr);
  EXPECT_EQ(table.at(UINT32_MAX), nullptr);
}

TEST(SlotTable, IsFullAtItsBoundAndNotBefore) {
  SlotTable<Item> table(300);  // more than one chunk
  std::vector<uint32_t> slots(300);
  for (uint32_t& slot : slots) ASSERT_NE(table.acquire(slot), nullptr);
  uint32_t slot = 0;
  EXPECT_EQ(table.acquire(slot), nullptr);
  EXPECT_EQ(table.live(), 300u);
  table.recycle(slots[17]);
  ASSERT_NE(table.acquire(slot), nullptr);
  EXPECT_EQ(slot, slots[17]);
  EXPECT_EQ(table.acquire(slot), nullptr);
}

TEST(SlotTable, UsesAFreedSlotAgainAsLateAsPossible) {
  SlotTable<Item> table(3);
  uint32_t slot[3], again = 0;
  for (uint32_t& s : slot) table.acquire(s);
  table.recycle(slot[1]);
  table.recycle(slot[2]);
  table.recycle(slot[0]);
  for (const uint32_t expected : {slot[1], slot[2], slot[0]}) {
    ASSERT_NE(table.acquire(again), nullptr);
    EXPECT_EQ(again, expected);
  }
}

TEST(SlotTable, KnowsWhichGenerationsItHasPublished) {
  for (const uint32_t first : {0u, 1u << 20, UINT32_MAX - 2}) {
    SlotTable<Item> table(4);
    table.set_generation(first);
    EXPECT_FALSE(table.was_published(0, first + 1)) << "no slot was made";
    std::vector<uint32_t> ever;
    uint32_t slot = 0;
    for (int i = 0; i < 24; ++i) {
      ASSERT_NE(table.acquire(slot), nullptr);
      const uint32_t generation = table.publish(slot);
      if (slot == 0) ever.push_back(generation);
      table.recycle(slot);
    }
    ASSERT_EQ(ever.size(), 6u);
    for (const uint32_t generation : ever) {
      EXPECT_NE(generation, 0u);
      EXPECT_TRUE(table.was_published(0, generation)) << first;
    }
    EXPECT_FALSE(table.was_published(0, 0));
    EXPECT_FALSE(table.was_published(0, first));
    EXPECT_FALSE(table.was_published(0, ever.back() + 1));
    EXPECT_FALSE(table.was_published(0, ever.front() + (1u << 20))) << "of another engine";
    EXPECT_FALSE(table.was_published(0, ever.front() - (1u << 20)));
    EXPECT_FALSE(table.was_published(77, ever.front())) << "beyond the table";
  }
}

TEST(SlotTable, GenerationsNeverBecomeZero) {
  SlotTable<Item> table(1);
  uint32_t slot = 0;
  Item* item = table.acquire(slot);
  item->last_generation = UINT32_MAX;
  EXPECT_EQ(table.publish(slot), 1u);
  EXPECT_EQ(table.find(slot, 1), item);
}

// Against a map of what must be found, with every handle there ever was.
TEST(SlotTable, StaleHandlesNeverFindALaterGeneration) {
  Rng rng(1);
  SlotTable<Item> table(40);
  using Handle = std::pair<uint32_t, uint32_t>;
  std::map<Handle, int> alive;
  std::vector<Handle> ever;
  for (int step = 0; step < 5'000; ++step) {
    if (rng.below(2) == 0) {
      uint32_t slot = 0;
      Item* item = table.acquire(slot);
      ASSERT_EQ(item == nullptr, alive.size() == 40);
      if (item == nullptr) continue;
      item->value = step;
      const Handle handle{slot, table.publish(slot)};
      ASSERT_TRUE(alive.emplace(handle, step).second);
      ever.push_back(handle);
    } else if (!alive.empty()) {
      auto victim = alive.begin();
      std::advance(victim, static_cast<long>(rng.below(alive.size())));
      table.recycle(victim->first.first);
      alive.erase(victim);
    }
    if (ever.empty()) continue;
    const Handle& some = ever[rng.below(ever.size())];
    const Item* found = table.find(some.first, some.second);
    const auto expected = alive.find(some);
    ASSERT_EQ(found != nullptr, expected != alive.end());
    if (found != nullptr) {
      ASSERT_EQ(found->value, expected->second);
    }
    ASSERT_EQ(table.live(), alive.size());
  }
}

}  // namespace
}  // namespace fabric::core::slot_table_test

#include "core/pending.h"

#include <list>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"

namespace fabric::core {
namespace {

std::vector<uint32_t> walk(EntryPool& pool, const EntryQueue& queue) {
  std::vector<uint32_t> out;
  uint32_t before = kNone;
  for (uint32_t i = queue.head; i != kNone; i = pool.at(i).next) {
    EXPECT_EQ(pool.at(i).prev, before);
    EXPECT_EQ(pool.at(i).queue, &queue);
    out.push_back(i);
    before = i;
  }
  EXPECT_EQ(queue.tail, before);
  return out;
}

TEST(EntryPool, QueuesKeepTheirOrderWhereverAnEntryIsTakenOut) {
  for (uint32_t victim = 0; victim < 4; ++victim) {
    EntryPool pool;
    EntryQueue queue;
    std::vector<uint32_t> entries;
    for (int i = 0; i < 4; ++i) {
      entries.push_back(pool.take());
      pool.append(queue, entries.back());
    }
    pool.unlink(entries[victim]);
    EXPECT_EQ(pool.at(entries[victim]).queue, nullptr);
    entries.erase(entries.begin() + victim);
    EXPECT_EQ(walk(pool, queue), entries);
  }
}

TEST(EntryPool, AnEntryThatComesBackIsEmpty) {
  EntryPool pool;
  const uint32_t index = pool.take();
  pool.at(index) = {.op = 3, .peer = 4, .part = 5, .stride = 6, .count = 7, .size_bytes = 8};
  pool.give_back(index);
  const uint32_t again = pool.take();
  ASSERT_EQ(again, index);
  EXPECT_EQ(pool.at(again).op, kNone);
  EXPECT_EQ(pool.at(again).peer, kNone);
  EXPECT_EQ(pool.at(again).stride, 1u);
  EXPECT_EQ(pool.at(again).count, 0u);
  EXPECT_EQ(pool.at(again).op_next, kNone);
}

TEST(EntryPool, GrowsWithoutMovingAnybody) {
  EntryPool pool;
  const uint32_t first = pool.take();
  Entry* const place = &pool.at(first);
  std::set<uint32_t> taken{first};
  for (int i = 0; i < 5'000; ++i) ASSERT_TRUE(taken.insert(pool.take()).second) << "given twice";
  EXPECT_EQ(&pool.at(first), place);
}

TEST(EntryPool, AgreesWithListsUnderRandomOperations) {
  Rng rng(3);
  EntryPool pool;
  std::vector<EntryQueue> queues(3);
  std::vector<std::list<uint32_t>> model(3);
  for (int step = 0; step < 3'000; ++step) {
    const uint64_t q = rng.below(3);
    if (model[q].empty() || rng.below(5) < 3) {
      const uint32_t entry = pool.take();
      pool.append(queues[q], entry);
      model[q].push_back(entry);
    } else {
      auto victim = model[q].begin();
      std::advance(victim, static_cast<long>(rng.below(model[q].size())));
      pool.unlink(*victim);
      pool.give_back(*victim);
      model[q].erase(victim);
    }
    if (step % 100 != 0) continue;
    for (uint32_t i = 0; i < 3; ++i) {
      const std::vector<uint32_t> expected(model[i].begin(), model[i].end());
      ASSERT_EQ(walk(pool, queues[i]), expected);
      ASSERT_EQ(queues[i].empty(), model[i].empty());
    }
  }
}

}  // namespace
}  // namespace fabric::core

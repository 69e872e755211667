#include "core/pending.h"

#include <list>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"

namespace fabric::core::pending_test {
namespace {

std::vector<uint32_t> walk(PendingPool& pool, const PendingQueue& queue) {
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

TEST(PendingPool, QueuesKeepTheirOrderWhicheverFragmentIsUnlinked) {
  for (uint32_t victim = 0; victim < 4; ++victim) {
    PendingPool pool;
    PendingQueue queue;
    std::vector<uint32_t> fragments;
    for (int i = 0; i < 4; ++i) {
      fragments.push_back(pool.take());
      pool.append(queue, fragments.back());
    }
    pool.unlink(fragments[victim]);
    EXPECT_EQ(pool.at(fragments[victim]).queue, nullptr);
    fragments.erase(fragments.begin() + victim);
    EXPECT_EQ(walk(pool, queue), fragments);
  }
}

TEST(PendingPool, AFragmentThatIsTakenAgainIsEmpty) {
  PendingPool pool;
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

TEST(PendingPool, GrowsWithoutMovingAnyFragment) {
  PendingPool pool;
  const uint32_t first = pool.take();
  PendingFragment* const place = &pool.at(first);
  std::set<uint32_t> taken{first};
  for (int i = 0; i < 5'000; ++i)
    ASSERT_TRUE(taken.insert(pool.take()).second) << "handed out twice";
  EXPECT_EQ(&pool.at(first), place);
}

TEST(PendingPool, AgreesWithListsUnderRandomOperations) {
  Rng rng(3);
  PendingPool pool;
  std::vector<PendingQueue> queues(3);
  std::vector<std::list<uint32_t>> model(3);
  for (int step = 0; step < 3'000; ++step) {
    const uint64_t q = rng.below(3);
    if (model[q].empty() || rng.below(5) < 3) {
      const uint32_t fragment = pool.take();
      pool.append(queues[q], fragment);
      model[q].push_back(fragment);
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
}  // namespace fabric::core::pending_test

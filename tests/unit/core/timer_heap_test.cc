#include "core/timer_heap.h"

#include <algorithm>
#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"

namespace fabric::core::timer_heap_test {
namespace {

TEST(TimerHeap, GivesWhatIsDueInOrderAndNothingElse) {
  TimerHeap heap;
  HeapTimer late, early, middle;
  EXPECT_TRUE(heap.empty());
  EXPECT_EQ(heap.next_ns(), kNeverNs);
  EXPECT_EQ(heap.pop_due(kNeverNs), nullptr);
  heap.set(late, 300);
  heap.set(early, 100);
  heap.set(middle, 200);
  EXPECT_EQ(heap.next_ns(), 100);
  EXPECT_EQ(heap.pop_due(99), nullptr);
  EXPECT_EQ(heap.pop_due(250), &early) << "a timer is due at its time and later";
  EXPECT_EQ(heap.pop_due(250), &middle);
  EXPECT_EQ(heap.pop_due(250), nullptr);
  EXPECT_EQ(heap.next_ns(), 300);
  EXPECT_EQ(heap.pop_due(300), &late);
  EXPECT_TRUE(heap.empty());
}

TEST(TimerHeap, MovesATimerThatIsSetAgain) {
  TimerHeap heap;
  HeapTimer a, b;
  heap.set(a, 100);
  heap.set(b, 200);
  heap.set(a, 300);
  EXPECT_EQ(heap.next_ns(), 200);
  heap.set(a, 50);
  EXPECT_EQ(heap.next_ns(), 50);
  EXPECT_EQ(heap.pop_due(1000), &a);
  EXPECT_EQ(heap.pop_due(1000), &b);
  EXPECT_EQ(heap.pop_due(1000), nullptr) << "a moved timer must be in the heap once";
}

TEST(TimerHeap, ClearingIsFinalAndMayBeRepeated) {
  TimerHeap heap;
  HeapTimer a, b;
  heap.clear(a);
  heap.set(a, 1);
  heap.set(b, 2);
  heap.clear(a);
  heap.clear(a);
  EXPECT_EQ(a.position, HeapTimer::kIdle);
  EXPECT_EQ(heap.pop_due(10), &b);
  EXPECT_EQ(b.position, HeapTimer::kIdle);
  heap.clear(b);
  EXPECT_TRUE(heap.empty());
  heap.set(a, 5);
  EXPECT_EQ(heap.pop_due(5), &a) << "a cleared timer can be set again";
}

// Against a map of the timers that are set.
TEST(TimerHeap, AgreesWithASortedListUnderRandomOperations) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    std::vector<HeapTimer> timers(60);
    TimerHeap heap(timers.size());
    std::map<HeapTimer*, int64_t> model;
    const auto earliest = [&] {
      int64_t when = kNeverNs;
      for (const auto& [timer, at] : model) when = std::min(when, at);
      return when;
    };
    int64_t now = 0;
    for (int step = 0; step < 2'000; ++step) {
      HeapTimer& timer = timers[rng.below(timers.size())];
      switch (rng.below(4)) {
        case 0:
        case 1:
          // Few different times, so that equal ones are common.
          model[&timer] = now + static_cast<int64_t>(rng.below(40));
          heap.set(timer, model[&timer]);
          break;
        case 2:
          model.erase(&timer);
          heap.clear(timer);
          break;
        default:
          now += static_cast<int64_t>(rng.below(8));
          while (HeapTimer* due = heap.pop_due(now)) {
            ASSERT_TRUE(model.contains(due)) << "not set, or popped twice";
            ASSERT_EQ(model[due], earliest());
            ASSERT_LE(model[due], now);
            model.erase(due);
          }
          ASSERT_GT(earliest(), now) << "a due timer was not popped";
      }
      ASSERT_EQ(heap.next_ns(), earliest());
      ASSERT_EQ(heap.empty(), model.empty());
    }
  }
}

}  // namespace
}  // namespace fabric::core::timer_heap_test

#include "base/event_count.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/driver.h"

namespace fabric::event_count_test {
namespace {

/// Sleeps until `word` has passed `seen`, as every waiter of the library does.
uint64_t await_more(EventCount& event_count, const std::atomic<uint64_t>& word, uint64_t seen) {
  while (true) {
    if (const uint64_t now = word.load(std::memory_order_acquire); now > seen) return now;
    const auto ticket = event_count.prepare();
    if (const uint64_t now = word.load(std::memory_order_acquire); now > seen) return now;
    event_count.sleep(ticket, kNeverNs);
  }
}

TEST(EventCount, ReturnsAtOnceAfterAWakeSincePrepare) {
  EventCount event_count;
  const auto ticket = event_count.prepare();
  event_count.wake();
  event_count.sleep(ticket, kNeverNs);  // Hangs, and times out, when the wake was lost.
}

// A second sleeper announces itself after the wake that was meant for the first.
TEST(EventCount, ALaterSleeperDoesNotHideAnEarlierWake) {
  EventCount event_count;
  const auto first = event_count.prepare();
  event_count.wake();
  const auto second = event_count.prepare();
  EXPECT_NE(first, second);
  event_count.sleep(first, kNeverNs);
  event_count.wake();
  event_count.sleep(second, kNeverNs);
}

TEST(EventCount, SleepsNoLongerThanItsTimeout) {
  EventCount event_count;
  event_count.sleep(event_count.prepare(), 1'000'000);
  event_count.sleep(event_count.prepare(), 0);
  event_count.sleep(event_count.prepare(), -1);
}

// No time-outs anywhere: one lost wake-up and the test hangs.
TEST(EventCount, LosesNoWakeUpBetweenTwoThreads) {
  constexpr uint64_t kRounds = 20'000;
  EventCount ping_spot, pong_spot;
  std::atomic<uint64_t> ping{0}, pong{0};
  std::thread other([&] {
    for (uint64_t i = 0; i < kRounds; ++i) {
      await_more(ping_spot, ping, i);
      pong.store(i + 1, std::memory_order_release);
      pong_spot.wake();
    }
  });
  for (uint64_t i = 0; i < kRounds; ++i) {
    ping.store(i + 1, std::memory_order_release);
    ping_spot.wake();
    await_more(pong_spot, pong, i);
  }
  other.join();
  EXPECT_EQ(pong.load(std::memory_order_relaxed), kRounds);
}

// Several sleepers with words of their own share one event_count, as counters do.
TEST(EventCount, LosesNoWakeUpWithManySleepersOnOneEventCount) {
  constexpr uint64_t kRounds = 3'000;
  constexpr size_t kSleepers = 3;
  EventCount event_count;
  EventCount done_spot;
  std::atomic<uint64_t> words[kSleepers]{};
  std::atomic<uint64_t> answers[kSleepers]{};
  std::vector<std::thread> sleepers;
  for (size_t s = 0; s < kSleepers; ++s) {
    sleepers.emplace_back([&, s] {
      for (uint64_t i = 0; i < kRounds; ++i) {
        await_more(event_count, words[s], i);
        answers[s].store(i + 1, std::memory_order_release);
        done_spot.wake();
      }
    });
  }
  for (uint64_t i = 0; i < kRounds; ++i) {
    for (auto& word : words) {
      word.store(i + 1, std::memory_order_release);
      event_count.wake();
    }
    for (auto& answer : answers) await_more(done_spot, answer, i);
  }
  for (auto& sleeper : sleepers) sleeper.join();
}

}  // namespace
}  // namespace fabric::event_count_test

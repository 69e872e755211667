#include "base/clock.h"

#include <algorithm>
#include <ctime>

#include <gtest/gtest.h>

#include "base/thread.h"

namespace fabric::clock_test {
namespace {

int64_t kernel_ns() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// How far it strays from what the kernel says just before and just after; 0: it lies in between.
int64_t strays_ns(int64_t before, int64_t now, int64_t after) {
  return std::max({int64_t{0}, before - now, now - after});
}

TEST(Clock, DoesNotStepBack) {
  int64_t last = monotonic_ns();
  for (int i = 0; i < 1'000'000; ++i) {
    const int64_t now = monotonic_ns();
    ASSERT_GE(now, last);
    last = now;
  }
}

// Whatever interrupts a reading, and on whatever core the thread goes on: a wrong rate or a reading
// that is believed for too long shows as more than the microseconds that are allowed here.
TEST(Clock, IsTheKernelsForEveryThread) {
  const auto compare = [] {
    int64_t worst = 0;
    for (int i = 0; i < 300'000; ++i) {
      const int64_t before = kernel_ns();
      const int64_t now = monotonic_ns();
      worst = std::max(worst, strays_ns(before, now, kernel_ns()));
    }
    EXPECT_LT(worst, 20'000);
  };
  compare();
  auto other = Thread::start({}, compare);
  ASSERT_TRUE(other);
  other->join();
}

}  // namespace
}  // namespace fabric::clock_test

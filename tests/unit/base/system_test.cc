#include "base/system.h"

#include <ctime>

#include <gtest/gtest.h>

namespace fabric::system_test {
namespace {

TEST(System, EntropyDiffersAndFillsAllBits) {
  uint64_t ones = 0, zeros = 0;
  for (int i = 0; i < 64; ++i) {
    const uint64_t drawn = system_entropy();
    ones |= drawn;
    zeros |= ~drawn;
  }
  EXPECT_EQ(ones, UINT64_MAX);
  EXPECT_EQ(zeros, UINT64_MAX);
}

TEST(System, LaterIncarnationsAreLarger) {
  uint64_t last = 0;
  for (int i = 0; i < 10'000; ++i) {
    const uint64_t next = next_incarnation();
    ASSERT_GT(next, last);
    last = next;
  }
}

TEST(System, AnIncarnationCarriesTheWallClock) {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);
  const uint64_t now_ns = static_cast<uint64_t>(time.tv_sec) * 1'000'000'000;
  const uint64_t incarnation_ns = next_incarnation() >> 18 << 16;
  EXPECT_GT(incarnation_ns + 5'000'000'000, now_ns);
  EXPECT_LT(incarnation_ns, now_ns + 60'000'000'000);
}

}  // namespace
}  // namespace fabric::system_test

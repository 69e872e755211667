#include "base/clock.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fabric::detail {

constinit thread_local TickClock tick_clock;

namespace {

// A reading is believed for as long as it took to measure the rate, and no longer than this: what
// the kernel corrects meanwhile, some 500 in a million at most, stays below a microsecond.
constexpr int64_t kReadingNs = 1'000'000;
// A rate is measured over at least so much, so that the two readings' own duration does not matter,
// and at most so much, because the processor counts on while the machine is suspended.
constexpr int64_t kRateLeastNs = 100'000;
constexpr int64_t kRateMostNs = 1'000'000'000;
// A reading that took longer was interrupted, and nobody knows what its ticks belong to.
constexpr int64_t kInterruptedNs = 10'000;
constexpr uint64_t kRateDifferenceShare = 256;

int64_t kernel_clock_ns() noexcept {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);  // cannot fail with a valid pointer
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

bool counts_evenly() noexcept {
#if defined(__x86_64__)
  constexpr unsigned kPowerManagement = 0x80000007, kInvariant = 1U << 8;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(kPowerManagement, &a, &b, &c, &d) != 0 && (d & kInvariant) != 0;
#elif defined(__aarch64__)
  return true;  // by architecture
#else
  return false;
#endif
}

/// The kernel has compared the counters of all cores, and watches them.
bool kernel_counts_by_it() {
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string name;
  return file >> name && (name == "tsc" || name == "arch_sys_counter");
}

bool ticks_are_trusted() noexcept {
  try {
    const char* asked = std::getenv("FABRICLIB_CLOCK");
    if (asked != nullptr && std::string_view(asked) == "kernel") return false;
    return counts_evenly() && kernel_counts_by_it();
  } catch (...) {
    return false;  // no memory for a file name: the kernel's clock is always right
  }
}

/// Ticks in so many ns at a rate, or the rate at so many ticks.
uint64_t divided(int64_t ns, uint64_t by) noexcept {
  return (static_cast<uint64_t>(ns) << 32) / std::max<uint64_t>(by, 1);
}

}  // namespace

int64_t read_clock_ns() noexcept {
  static const bool trusted = ticks_are_trusted();
  if (!trusted) return kernel_clock_ns();
  TickClock& clock = tick_clock;
  const uint64_t ticks = processor_ticks();
  const int64_t kernel_ns = kernel_clock_ns();
  const uint64_t reading_ticks = processor_ticks() - ticks;
  // What may have been told already stays true: a clock that is ahead waits, and goes slower below.
  const int64_t ns = std::max(kernel_ns, clock.after(clock.valid_ticks));
  clock.ns = ns;
  clock.valid_ticks = 0;
  const int64_t passed_ns = kernel_ns - clock.kernel_ns;
  if (passed_ns < kRateLeastNs) return ns;

  const uint64_t passed_ticks = ticks - clock.ticks;
  const uint64_t former = clock.rate;
  const uint64_t rate = passed_ns > kRateMostNs ? 0 : divided(passed_ns, passed_ticks);
  const uint64_t difference = rate > former ? rate - former : former - rate;
  clock.ticks = ticks;
  clock.kernel_ns = kernel_ns;
  clock.rate = rate;
  const bool interrupted = reading_ticks > divided(kInterruptedNs, rate);
  if (rate == 0 || difference > former / kRateDifferenceShare || interrupted) return ns;
  // One that is ahead meets the kernel's at the end of what is believed now.
  const int64_t valid_ns = std::min(passed_ns, kReadingNs);
  const auto ahead_ns = static_cast<uint64_t>(std::min(ns - kernel_ns, valid_ns / 8));
  clock.scale = rate - rate * ahead_ns / static_cast<uint64_t>(valid_ns);
  clock.valid_ticks = std::min(passed_ticks, divided(kReadingNs, rate));
  return ns;
}

}  // namespace fabric::detail

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

// A reading is extrapolated for as long as it took to measure the rate, and no longer than this:
// the kernel's clock corrections in that time, 500 ppm at most, stay below a microsecond.
constexpr int64_t kReadingNs = 1'000'000;
// A rate is measured over at least kRateMinNs, so that the duration of the two readings does not
// matter, and at most kRateMaxNs, because the counter continues while the machine is suspended.
constexpr int64_t kRateMinNs = 100'000;
constexpr int64_t kRateMaxNs = 1'000'000'000;
// A reading that took longer was interrupted: its ticks and its time do not belong together.
constexpr int64_t kInterruptedNs = 10'000;
// Two rates in a row must agree to this share, or one of the readings was disturbed and is not
// extrapolated: an error of 1/256 over kReadingNs is 4 microseconds, the accuracy that is promised.
constexpr uint64_t kRateDifferenceShare = 256;

int64_t kernel_clock_ns() noexcept {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);  // cannot fail with a valid pointer
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// The counter has a constant rate in all power states.
bool has_invariant_counter() noexcept {
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

/// The kernel uses the counter itself: it has checked that all cores agree, and monitors it.
bool kernel_clocksource_is_counter() {
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string name;
  return file >> name && (name == "tsc" || name == "arch_sys_counter");
}

bool ticks_are_trusted() noexcept {
  try {
    const char* asked = std::getenv("FABRICLIB_CLOCK");
    if (asked != nullptr && std::string_view(asked) == "kernel") return false;
    return has_invariant_counter() && kernel_clocksource_is_counter();
  } catch (...) {
    return false;  // out of memory: the kernel's clock is always right
  }
}

/// A quotient in units of 2^-32: `ns` over ticks is a rate. `ns` over a rate gives ticks.
uint64_t div_q32(int64_t ns, uint64_t by) noexcept {
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
  // Monotonic: a clock that is ahead of the kernel's does not step back; it runs slower below.
  const int64_t ns = std::max(kernel_ns, clock.after(clock.valid_ticks));
  clock.ns = ns;
  clock.valid_ticks = 0;
  const int64_t passed_ns = kernel_ns - clock.kernel_ns;
  if (passed_ns < kRateMinNs) return ns;

  const uint64_t passed_ticks = ticks - clock.ticks;
  const uint64_t former = clock.rate;
  const uint64_t rate = passed_ns > kRateMaxNs ? 0 : div_q32(passed_ns, passed_ticks);
  const uint64_t difference = rate > former ? rate - former : former - rate;
  clock.ticks = ticks;
  clock.kernel_ns = kernel_ns;
  clock.rate = rate;
  const bool interrupted = reading_ticks > div_q32(kInterruptedNs, rate);
  if (rate == 0 || difference > former / kRateDifferenceShare || interrupted) return ns;
  // A clock that is ahead is slowed down so that it meets the kernel's when this reading expires.
  const int64_t valid_ns = std::min(passed_ns, kReadingNs);
  const auto ahead_ns = static_cast<uint64_t>(std::min(ns - kernel_ns, valid_ns / 8));
  clock.scale = rate - rate * ahead_ns / static_cast<uint64_t>(valid_ns);
  clock.valid_ticks = std::min(passed_ticks, div_q32(kReadingNs, rate));
  return ns;
}

}  // namespace fabric::detail

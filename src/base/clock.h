#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

// Real time, CLOCK_MONOTONIC. For runtimes only; all other code uses Driver::now_ns().

namespace fabric {

namespace detail {

/// The processor's time-stamp counter. The read is not ordered with the instructions around it;
/// that ordering is most of the cost of the kernel's own reading of this counter.
inline uint64_t processor_ticks() noexcept {
#if defined(__x86_64__)
  return __rdtsc();
#elif defined(__aarch64__)
  uint64_t ticks = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  return 0;
#endif
}

/// A thread's extrapolated clock: its last reading of the kernel's clock, and the tick rate.
struct TickClock {
  uint64_t ticks = 0;        ///< at the reading
  uint64_t valid_ticks = 0;  ///< the reading is extrapolated for this many ticks
  uint64_t scale = 0;        ///< ns per tick, in units of 2^-32
  int64_t ns = 0;            ///< returned at the reading, never less than any earlier result
  // For the next reading.
  int64_t kernel_ns = 0;  ///< the kernel's time at the reading
  uint64_t rate = 0;      ///< measured between the last two readings; in units of `scale`

  int64_t after(uint64_t passed) const noexcept {
    return ns + static_cast<int64_t>((passed * scale) >> 32);
  }
};

extern constinit thread_local TickClock tick_clock;

int64_t read_clock_ns() noexcept;

}  // namespace detail

/// CLOCK_MONOTONIC, accurate to a few microseconds. Where the kernel itself uses the processor's
/// counter, a thread reads the kernel's clock once a millisecond and extrapolates in between.
/// Monotonic within one thread; two threads may differ by a few microseconds.
/// FABRICLIB_CLOCK=kernel reads the kernel's clock every time.
inline int64_t monotonic_ns() noexcept {
  const detail::TickClock& clock = detail::tick_clock;
  const uint64_t passed = detail::processor_ticks() - clock.ticks;
  if (passed < clock.valid_ticks) [[likely]]
    return clock.after(passed);
  return detail::read_clock_ns();
}

}  // namespace fabric

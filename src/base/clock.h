#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

// The time of the world, CLOCK_MONOTONIC. Only runtimes ask here; everybody else asks their Driver.

namespace fabric {

namespace detail {

/// The counter that the processor advances by itself. Not ordered with the instructions around it,
/// which is most of what makes the kernel's reading of the same counter dear.
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

/// What a thread knows of the clock: one reading of it, and how fast it goes in ticks.
struct TickClock {
  uint64_t ticks = 0;        ///< at the reading
  uint64_t valid_ticks = 0;  ///< as many more need no other reading
  uint64_t scale = 0;        ///< ns per tick, in units of 2^-32
  int64_t ns = 0;            ///< told at the reading, never less than what was told before it
  // For the next reading.
  int64_t kernel_ns = 0;  ///< what the kernel said
  uint64_t rate = 0;      ///< measured between the last two; like scale

  int64_t after(uint64_t passed) const noexcept {
    return ns + static_cast<int64_t>((passed * scale) >> 32);
  }
};

extern constinit thread_local TickClock tick_clock;

int64_t read_clock_ns() noexcept;

}  // namespace detail

/// CLOCK_MONOTONIC, to some microseconds: a thread asks the kernel once a millisecond and counts
/// ticks in between, where the kernel itself trusts the processor's counter. Never goes back as
/// seen by one thread; two threads may differ by as much. FABRICLIB_CLOCK=kernel asks the kernel every
/// time.
inline int64_t monotonic_ns() noexcept {
  const detail::TickClock& clock = detail::tick_clock;
  const uint64_t passed = detail::processor_ticks() - clock.ticks;
  if (passed < clock.valid_ticks) [[likely]]
    return clock.after(passed);
  return detail::read_clock_ns();
}

}  // namespace fabric

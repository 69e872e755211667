#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <ctime>

// A clock that advances with the work instead of real time. Otherwise periodic work would be
// counted more often per operation the slower a program runs, and under valgrind the figure would
// mean nothing. Include it in one source file of a program: it defines clock_gettime() for all of
// it, and makes the library read it every time.

namespace fabric::bench {

/// While an instance exists, every reading of the monotonic clock is `step_ns` later than the
/// previous one. Afterwards the real clock continues, and never steps back.
class SteppedClock {
 public:
  explicit SteppedClock(int64_t step_ns) noexcept {
    step_ns_ = step_ns;
    begin_ns_ = now_ns_ = worlds_ns();
    stepping_ = true;
  }
  ~SteppedClock() {
    stepping_ = false;
    ahead_ns_ += std::max<int64_t>(0, now_ns_ - worlds_ns());
  }
  SteppedClock(const SteppedClock&) = delete;
  SteppedClock& operator=(const SteppedClock&) = delete;

  int64_t passed_ns() const noexcept { return now_ns_ - begin_ns_; }
  static int64_t look() noexcept { return stepping_ ? now_ns_ += step_ns_ : worlds_ns(); }

 private:
  static int64_t worlds_ns() noexcept {
    timespec now{};
    ::syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec + ahead_ns_;
  }

  static inline bool stepping_ = false;
  static inline int64_t step_ns_ = 0, begin_ns_ = 0, now_ns_ = 0, ahead_ns_ = 0;
};

/// Before main(), and so before the first reading of a clock.
inline const bool asks_every_time = ::setenv("FABRICLIB_CLOCK", "kernel", 1) == 0;

}  // namespace fabric::bench

extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  if (clock != CLOCK_MONOTONIC) return static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  const int64_t now_ns = fabric::bench::SteppedClock::look();
  time->tv_sec = now_ns / 1'000'000'000;
  time->tv_nsec = now_ns % 1'000'000'000;
  return 0;
}

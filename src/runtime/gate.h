#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/driver.h"
#include "runtime/doorbell.h"

namespace fabric::runtime {

/// Lets one thread in at a time. The one inside hands over between turns, so that two threads that
/// both wait see their conditions looked at. A thread that comes from outside rings the bell: the
/// one inside may be asleep. One that has looked already waits quietly for something to happen,
/// or two idle threads would keep each other awake.
class Gate {
 public:
  explicit Gate(Doorbell& bell) noexcept : bell_(bell) {}

  /// False: the time ran out, and the caller is not inside.
  bool enter(int64_t deadline_ns) {
    std::unique_lock lock(mutex_);
    if (busy_) {
      // Written under the mutex; relaxed, because the fences of the bell order it with wanted().
      urgent_.fetch_add(1, std::memory_order_relaxed);
      bell_.ring();
      const bool came_in = wait(lock, deadline_ns, [this] { return !busy_; });
      urgent_.fetch_sub(1, std::memory_order_relaxed);  // as above
      if (!came_in) return false;
    }
    take();
    return true;
  }

  void leave() {
    const std::lock_guard lock(mutex_);
    busy_ = false;
    free_.notify_all();
  }

  /// Hands over to those who wait, if any, and comes back after one of them. False as in enter().
  bool pass(int64_t deadline_ns) {
    std::unique_lock lock(mutex_);
    if (waiting_ == 0) return true;
    busy_ = false;
    free_.notify_all();
    const uint64_t mine = turn_;
    // The others may give up: then nobody takes over, and the last who waits goes on.
    if (!wait(lock, deadline_ns, [&] { return !busy_ && (turn_ != mine || waiting_ == 1); })) {
      return false;
    }
    take();
    return true;
  }

  /// Somebody came from outside and has not been let in yet.
  bool wanted() const noexcept {
    return urgent_.load(std::memory_order_relaxed) != 0;  // ordered by the fences of the bell
  }

 private:
  template <class Condition>
  bool wait(std::unique_lock<std::mutex>& lock, int64_t deadline_ns, Condition condition) {
    ++waiting_;
    bool met = true;
    if (deadline_ns == kNeverNs) {
      free_.wait(lock, condition);
    } else {
      // The driver's clock is the one of std::chrono::steady_clock.
      const std::chrono::steady_clock::time_point deadline{std::chrono::nanoseconds(deadline_ns)};
      met = free_.wait_until(lock, deadline, condition);
    }
    --waiting_;
    if (!met) free_.notify_all();  // one who waits in pass() may be the last now
    return met;
  }
  void take() noexcept {
    busy_ = true;
    ++turn_;
  }

  Doorbell& bell_;
  std::mutex mutex_;
  std::condition_variable free_;
  bool busy_ = false;
  uint64_t turn_ = 0;  ///< how often somebody came in
  uint32_t waiting_ = 0;
  std::atomic<uint32_t> urgent_{0};  ///< of those, from outside
};

}  // namespace fabric::runtime

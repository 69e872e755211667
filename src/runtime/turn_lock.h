#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/driver.h"
#include "base/biased_lock.h"
#include "runtime/waker.h"

namespace fabric::runtime {

/// Lets one thread in at a time. The one inside hands over between turns, so that two threads that
/// both wait see their conditions looked at. A thread that comes from outside rings the bell: the
/// one inside may be asleep. One that has looked already waits quietly for something to happen,
/// or two idle threads would keep each other awake.
///
/// A thread that nearly always has it to itself comes and goes by plain stores (base/biased_lock.h);
/// the others use the mutex.
class TurnLock {
 public:
  explicit TurnLock(Waker& waker) noexcept : waker_(waker) {}

  /// False: the time ran out, and the caller is not inside.
  bool enter(int64_t deadline_ns) {
    if (BiasedLock::Owner* const owner = bias_.enter()) [[likely]] {
      held_by_ = owner;
      return true;
    }
    std::unique_lock lock(mutex_);
    if (try_take()) return true;
    // Relaxed, because the fences of the bell order it with has_urgent_waiter().
    urgent_.fetch_add(1, std::memory_order_relaxed);
    waker_.wake();
    const bool entered = wait(lock, deadline_ns, [this] { return try_take(); });
    urgent_.fetch_sub(1, std::memory_order_relaxed);  // as above
    return entered;
  }

  void leave() {
    if (held_by_ != nullptr) {
      if (bias_.leave(*held_by_)) [[likely]]
        return;
      const std::lock_guard lock(mutex_);
      free_.notify_all();
      return;
    }
    const std::lock_guard lock(mutex_);
    release();
    if (waiting_.load(std::memory_order_relaxed) == 0) bias_.fallback_used();
  }

  /// Hands over to those who wait, if any, and comes back after one of them. False as in enter().
  bool yield(int64_t deadline_ns) {
    // Only a look: who comes to wait at this moment is let in next time.
    if (waiting_.load(std::memory_order_relaxed) == 0) return true;
    std::unique_lock lock(mutex_);
    if (waiting_.load(std::memory_order_relaxed) == 0) return true;
    const uint64_t mine = turn_;
    if (held_by_ != nullptr) bias_.leave(*held_by_);
    release();
    // The others may give up: then nobody takes over, and the last who waits goes on.
    return wait(lock, deadline_ns, [&] {
      const bool theirs = turn_ == mine && waiting_.load(std::memory_order_relaxed) != 1;
      return !theirs && try_take();
    });
  }

  /// Somebody came from outside and has not been let in yet.
  bool has_urgent_waiter() const noexcept {
    return urgent_.load(std::memory_order_relaxed) != 0;  // ordered by the fences of the bell
  }

 private:
  // With the mutex held.

  template <class Condition>
  bool wait(std::unique_lock<std::mutex>& lock, int64_t deadline_ns, Condition condition) {
    waiting_.fetch_add(1, std::memory_order_relaxed);
    bool met = true;
    if (deadline_ns == kNeverNs) {
      free_.wait(lock, condition);
    } else {
      // The driver's clock is the one of std::chrono::steady_clock.
      const std::chrono::steady_clock::time_point deadline{std::chrono::nanoseconds(deadline_ns)};
      met = free_.wait_until(lock, deadline, condition);
    }
    waiting_.fetch_sub(1, std::memory_order_relaxed);
    if (!met) free_.notify_all();  // one who waits in yield() may be the last now
    return met;
  }
  /// Comes in, or else makes sure that whoever is inside will look under the mutex.
  bool try_take() noexcept {
    bias_.revoke();
    if (taken_ || bias_.owner_inside()) return false;
    taken_ = true;
    held_by_ = nullptr;
    ++turn_;
    return true;
  }
  void release() noexcept {
    taken_ = false;
    free_.notify_all();
  }

  Waker& waker_;
  BiasedLock bias_;
  BiasedLock::Owner* held_by_ = nullptr;  ///< of who is inside; null: it came by the mutex
  std::mutex mutex_;
  std::condition_variable free_;
  bool taken_ = false;                ///< by one who is not the regular
  uint64_t turn_ = 0;                 ///< how often somebody has taken it
  std::atomic<uint32_t> waiting_{0};  ///< changed under the mutex
  std::atomic<uint32_t> urgent_{0};   ///< of those, from outside
};

}  // namespace fabric::runtime

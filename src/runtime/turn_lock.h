#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "base/biased_lock.h"
#include "base/driver.h"
#include "runtime/waker.h"

namespace fabric::runtime {

/// The exclusive right to run turns in the inline runtime: a biased lock (base/biased_lock.h) with
/// a mutex and condition variable as fallback, and hand-over between turns.
///
/// The holder calls yield() between turns, so that every thread inside drive() gets to check its
/// own condition. A thread that calls enter() is an urgent waiter and wakes the holder, which may
/// be asleep in the Waker. A thread that waits in yield() has checked its condition since the last
/// event and does not wake the holder; otherwise two idle threads would keep each other awake.
///
/// Cost: a thread that is nearly always alone pays plain stores. Others pay the mutex, and a
/// membarrier() when they revoke the bias.
/// Invariant: at most one thread between enter() and leave(); `held_by_` is written by that thread.
class TurnLock {
 public:
  explicit TurnLock(Waker& waker) noexcept : waker_(waker) {}

  /// False: the deadline passed, and the caller does not hold the lock.
  bool enter(int64_t deadline_ns) {
    if (BiasedLock::Owner* const owner = bias_.enter()) [[likely]] {
      held_by_ = owner;
      return true;
    }
    std::unique_lock lock(mutex_);
    if (try_take()) return true;
    // Relaxed: the fences of the Waker order it with has_urgent_waiter().
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

  /// Hands over to the waiting threads, if any, and returns after one of them has held the lock.
  /// False as in enter().
  bool yield(int64_t deadline_ns) {
    // A hint: a thread that starts to wait now is served by the next yield().
    if (waiting_.load(std::memory_order_relaxed) == 0) return true;
    std::unique_lock lock(mutex_);
    if (waiting_.load(std::memory_order_relaxed) == 0) return true;
    const uint64_t mine = turn_;
    if (held_by_ != nullptr) bias_.leave(*held_by_);
    release();
    // The others may time out: then no other thread takes over, and the last waiter continues.
    return wait(lock, deadline_ns, [&] {
      const bool theirs = turn_ == mine && waiting_.load(std::memory_order_relaxed) != 1;
      return !theirs && try_take();
    });
  }

  /// A thread waits in enter().
  bool has_urgent_waiter() const noexcept {
    return urgent_.load(std::memory_order_relaxed) != 0;  // ordered by the fences of the Waker
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
    if (!met) free_.notify_all();  // a thread that waits in yield() may be the last waiter now
    return met;
  }
  /// Takes the lock; on failure the bias is revoked, so that the holder's leave() takes the mutex.
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
  BiasedLock::Owner* held_by_ = nullptr;  ///< of the holder; null: it holds by `taken_`
  std::mutex mutex_;
  std::condition_variable free_;
  bool taken_ = false;                ///< held by a thread that is not the owner of the bias
  uint64_t turn_ = 0;                 ///< how often it was taken by the mutex
  std::atomic<uint32_t> waiting_{0};  ///< threads in wait(); changed under the mutex
  std::atomic<uint32_t> urgent_{0};   ///< those of them that wait in enter()
};

}  // namespace fabric::runtime

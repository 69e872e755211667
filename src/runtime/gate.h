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
///
/// A thread that is alone comes and goes by one exchange of a word each; only who has to wait uses
/// the mutex, and marks the word so that whoever leaves looks for it there.
class Gate {
 public:
  explicit Gate(Doorbell& bell) noexcept : bell_(bell) {}

  /// False: the time ran out, and the caller is not inside.
  bool enter(int64_t deadline_ns) {
    uint32_t free = kFree;
    // Acquire pairs with the release in leave().
    if (word_.compare_exchange_strong(free, kBusy, std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
      return true;
    }
    std::unique_lock lock(mutex_);
    if (take()) return true;
    // Relaxed, because the fences of the bell order it with wanted().
    urgent_.fetch_add(1, std::memory_order_relaxed);
    bell_.ring();
    const bool came_in = wait(lock, deadline_ns, [this] { return take(); });
    urgent_.fetch_sub(1, std::memory_order_relaxed);  // as above
    return came_in;
  }

  void leave() {
    uint32_t busy = kBusy;
    // Release pairs with the acquire of who comes in next.
    if (word_.compare_exchange_strong(busy, kFree, std::memory_order_release,
                                      std::memory_order_relaxed)) {
      return;
    }
    const std::lock_guard lock(mutex_);
    open();
  }

  /// Hands over to those who wait, if any, and comes back after one of them. False as in enter().
  bool pass(int64_t deadline_ns) {
    // Only a look: who comes to wait at this moment is let in next time.
    if (waiting_.load(std::memory_order_relaxed) == 0) return true;
    std::unique_lock lock(mutex_);
    if (waiting_.load(std::memory_order_relaxed) == 0) return true;
    const uint64_t mine = turn_;
    open();
    // The others may give up: then nobody takes over, and the last who waits goes on.
    return wait(lock, deadline_ns, [&] {
      const bool theirs = turn_ == mine && waiting_.load(std::memory_order_relaxed) != 1;
      if (theirs) mark();
      return !theirs && take();
    });
  }

  /// Somebody came from outside and has not been let in yet.
  bool wanted() const noexcept {
    return urgent_.load(std::memory_order_relaxed) != 0;  // ordered by the fences of the bell
  }

 private:
  static constexpr uint32_t kFree = 0;
  static constexpr uint32_t kBusy = 1;
  static constexpr uint32_t kWaitedFor = 2;  ///< busy, and who leaves has to look under the mutex

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
    if (!met) free_.notify_all();  // one who waits in pass() may be the last now
    return met;
  }
  /// Comes in, or else makes sure that whoever is inside will look under the mutex.
  bool take() noexcept {
    // Whether it was free or not the word is this afterwards, and only leave() by the mutex undoes
    // it. Acquire pairs with the release of who left.
    if (word_.exchange(kWaitedFor, std::memory_order_acquire) != kFree) return false;
    ++turn_;
    return true;
  }
  void mark() noexcept {
    uint32_t busy = kBusy;
    word_.compare_exchange_strong(busy, kWaitedFor, std::memory_order_relaxed);
  }
  void open() noexcept {
    word_.store(kFree, std::memory_order_release);  // pairs with the acquire of who comes in
    free_.notify_all();
  }

  Doorbell& bell_;
  std::atomic<uint32_t> word_{kFree};
  std::mutex mutex_;
  std::condition_variable free_;
  uint64_t turn_ = 0;                 ///< how often somebody who waited came in
  std::atomic<uint32_t> waiting_{0};  ///< changed under the mutex
  std::atomic<uint32_t> urgent_{0};   ///< of those, from outside
};

}  // namespace fabric::runtime

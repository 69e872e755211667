#pragma once

#include <cstdint>

#include "base/biased_lock.h"
#include "base/futex.h"
#include "base/sync.h"

namespace fabric {

/// A futex mutex with a bias (base/biased_lock.h), for state that one thread locks nearly always:
/// that thread locks and unlocks with plain stores. For any other thread lock() is one
/// compare-exchange and unlock() one exchange; a contended lock() sleeps in the kernel.
///
/// Not fair, not recursive. Threads: lock() from any thread, unlock() by the holder.
class LightMutex {
 public:
  /// `rebias_after`: see BiasedLock.
  explicit LightMutex(uint32_t rebias_after = 64) noexcept : bias_(rebias_after) {}
  LightMutex(const LightMutex&) = delete;
  LightMutex& operator=(const LightMutex&) = delete;

  void lock() noexcept {
    if (BiasedLock::Owner* const owner = bias_.enter()) [[likely]] {
      held_by_ = owner;
    } else {
      lock_slow();
    }
  }
  void unlock() noexcept {
    if (BiasedLock::Owner* const owner = held_by_) [[likely]] {
      bias_.leave(*owner);
    } else {
      unlock_slow();
    }
  }

 private:
  static constexpr uint32_t kFree = 0, kTaken = 1, kWaitedFor = 2;

  [[gnu::noinline]] void lock_slow() noexcept {
    uint32_t free = kFree;
    // Acquire pairs with the release in unlock_slow().
    if (!word_.compare_exchange_strong(free, kTaken, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
      wait();
    }
    bias_.revoke();
    bias_.wait_owner_left();
    held_by_ = nullptr;
  }
  [[gnu::noinline]] void unlock_slow() noexcept {
    bias_.fallback_used();
    if (word_.exchange(kFree, std::memory_order_release) == kWaitedFor) futex_wake_one(word_);
  }
  /// A thread that has slept takes it as kWaitedFor: it cannot know whether others still wait.
  [[gnu::cold]] void wait() noexcept {
    while (word_.exchange(kWaitedFor, std::memory_order_acquire) != kFree) {
      // The loop covers a change before the sleep, signals and spurious wake-ups.
      (void)futex_wait(word_, kWaitedFor, nullptr);
    }
  }

  Atomic<uint32_t> word_{kFree};
  BiasedLock bias_;
  Plain<BiasedLock::Owner*> held_by_{nullptr};  ///< null: the holder has locked word_
};

}  // namespace fabric

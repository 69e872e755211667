#pragma once

#include <cstdint>

#include "base/futex.h"
#include "base/sync.h"

namespace fabric {

/// A mutex for what is nearly always free: taking it is one compare-exchange in the caller's own
/// code, giving it back one exchange. Whoever finds it taken sleeps in the kernel.
///
/// Not fair, not recursive. Threads: everything from any thread; unlock() by the holder.
class LightMutex {
 public:
  LightMutex() = default;
  LightMutex(const LightMutex&) = delete;
  LightMutex& operator=(const LightMutex&) = delete;

  void lock() noexcept {
    if (!try_lock()) [[unlikely]]
      wait();
  }
  bool try_lock() noexcept {
    uint32_t free = kFree;
    // Acquire pairs with the release in unlock().
    return word_.compare_exchange_strong(free, kTaken, std::memory_order_acquire,
                                         std::memory_order_relaxed);
  }
  void unlock() noexcept {
    if (word_.exchange(kFree, std::memory_order_release) == kWaitedFor) [[unlikely]] {
      futex_wake_one(word_);
    }
  }

 private:
  static constexpr uint32_t kFree = 0, kTaken = 1, kWaitedFor = 2;

  /// Who has slept takes it as waited for: it cannot know whether it was the last.
  [[gnu::noinline, gnu::cold]] void wait() noexcept {
    while (word_.exchange(kWaitedFor, std::memory_order_acquire) != kFree) {
      // A change meanwhile, a signal, or for no reason at all: looked at again.
      (void)futex_wait(word_, kWaitedFor, nullptr);
    }
  }

  Atomic<uint32_t> word_{kFree};
};

}  // namespace fabric

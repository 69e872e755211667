#pragma once

#include <cstdint>

#include "base/futex.h"
#include "base/biased_lock.h"
#include "base/sync.h"

namespace fabric {

/// A mutex for what one thread takes nearly always: that one comes and goes by plain stores
/// (base/biased_lock.h). For any other, taking it is one compare-exchange and giving it back one
/// exchange; whoever finds it taken sleeps in the kernel.
///
/// Not fair, not recursive. Threads: everything from any thread; unlock() by the holder.
class LightMutex {
 public:
  /// As in Regular.
  explicit LightMutex(uint32_t visits = 64) noexcept : regular_(visits) {}
  LightMutex(const LightMutex&) = delete;
  LightMutex& operator=(const LightMutex&) = delete;

  void lock() noexcept {
    if (Regular::Seat* const seat = regular_.enter()) [[likely]] {
      seat_ = seat;
    } else {
      take();
    }
  }
  void unlock() noexcept {
    if (Regular::Seat* const seat = seat_) [[likely]] {
      regular_.leave(*seat);
    } else {
      give_back();
    }
  }

 private:
  static constexpr uint32_t kFree = 0, kTaken = 1, kWaitedFor = 2;

  [[gnu::noinline]] void take() noexcept {
    uint32_t free = kFree;
    // Acquire pairs with the release in give_back().
    if (!word_.compare_exchange_strong(free, kTaken, std::memory_order_acquire,
                                       std::memory_order_relaxed)) {
      wait();
    }
    regular_.expel();
    regular_.wait_outside();
    seat_ = nullptr;
  }
  [[gnu::noinline]] void give_back() noexcept {
    regular_.visited();
    if (word_.exchange(kFree, std::memory_order_release) == kWaitedFor) futex_wake_one(word_);
  }
  /// Who has slept takes it as waited for: it cannot know whether it was the last.
  [[gnu::cold]] void wait() noexcept {
    while (word_.exchange(kWaitedFor, std::memory_order_acquire) != kFree) {
      // A change meanwhile, a signal, or for no reason at all: looked at again.
      (void)futex_wait(word_, kWaitedFor, nullptr);
    }
  }

  Atomic<uint32_t> word_{kFree};
  Regular regular_;
  Plain<Regular::Seat*> seat_{nullptr};  ///< the holder's; null: it has taken the word
};

}  // namespace fabric

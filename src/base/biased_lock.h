#pragma once

#include <array>
#include <cstdint>

#include "base/futex.h"
#include "base/sync.h"

namespace fabric {

/// The bias of a biased lock, added in front of a fallback lock that the user of this class brings
/// (LightMutex, runtime::TurnLock). The owning thread enters and leaves with plain stores. Any
/// other thread first takes the fallback lock, then revokes the bias and waits until the owner has
/// left. A thread that takes the fallback lock `rebias_after` times in a row becomes the new owner.
///
/// Invariant: at most one of the owner (inside) and the holder of the fallback lock (after revoke()
/// and owner_inside() == false) is in the critical section. This is Dekker's pattern: the owner
/// stores `inside` and loads `owner_`, the revoker stores `owner_` and loads `inside`. Both sides
/// need a full fence between store and load. The owner has only a compiler fence: revoke() issues
/// membarrier(), which makes every running thread of the process pass a full fence.
///
/// Cost: the owner pays two stores and a few loads, no atomic read-modify-write. A revocation costs
/// a membarrier() system call (microseconds), and doubles the streak needed for the next owner.
/// Without membarrier() no thread ever becomes the owner.
///
/// Threads: enter() and leave() from any thread, all others by the holder of the fallback lock.
class BiasedLock {
 public:
  /// `rebias_after` acquisitions of the fallback lock in a row make a thread the owner.
  explicit BiasedLock(uint32_t rebias_after = 64) noexcept : rebias_after_(rebias_after) {}
  BiasedLock(const BiasedLock&) = delete;
  BiasedLock& operator=(const BiasedLock&) = delete;

  /// The flag of one thread that is or was the owner. One for each thread: a former owner that
  /// notices its revocation late must not write the flag of its successor.
  struct Owner {
    Atomic<const void*> thread{nullptr};
    Atomic<uint32_t> inside{0};
  };

  /// Null: the caller is not the owner. Otherwise it is inside, and calls leave() with the result.
  Owner* enter() noexcept {
    // Relaxed: if the caller is the owner, this thread stored the value itself.
    Owner* const owner = owner_.load(std::memory_order_relaxed);
    if (owner == nullptr || owner->thread.load(std::memory_order_relaxed) != this_thread_mark()) {
      return nullptr;
    }
    owner->inside.store(1, std::memory_order_relaxed);  // ordered by the fences
    light_fence();                                      // pairs with the one in revoke_slow()
    if (owner_.load(std::memory_order_relaxed) == owner) [[likely]]
      return owner;
    leave(*owner);
    return nullptr;
  }

  /// False: the bias was revoked while the owner was inside.
  bool leave(Owner& owner) noexcept {
    // Pairs with the acquire in owner_inside().
    owner.inside.store(0, std::memory_order_release);
    light_fence();  // pairs with the one in revoke_slow()
    if (owner_.load(std::memory_order_relaxed) == &owner) [[likely]]
      return true;
    futex_wake_all(owner.inside);
    return false;
  }

  /// From here on enter() fails; the owner may still be inside.
  void revoke() noexcept {
    if (owner_.load(std::memory_order_relaxed) != nullptr) [[unlikely]]
      revoke_slow();
  }
  /// After revoke().
  bool owner_inside() const noexcept {
    const Owner* const revoked = revoked_;
    return revoked != nullptr && revoked->inside.load(std::memory_order_acquire) != 0;
  }
  void wait_owner_left() noexcept {
    // The loop covers spurious wake-ups and signals.
    while (owner_inside()) [[unlikely]] {
        Owner* const revoked = revoked_;
        (void)futex_wait(revoked->inside, 1, nullptr);
      }
  }

  /// Called before the fallback lock is released while no thread waits for it: counts the streak.
  void fallback_used() noexcept {
    const void* const me = this_thread_mark();
    streak_ = me == candidate_ ? streak_ + 1 : 1;
    candidate_ = me;
    if (streak_ >= rebias_after_) [[unlikely]]
      rebias();
  }

 private:
  // Every revocation doubles the streak that the next owner needs, up to this, so that a contended
  // lock rarely pays for revocations.
  static constexpr uint32_t kRebiasAfterMax = 1 << 16;

  void revoke_slow() noexcept;
  void rebias() noexcept;

  Atomic<Owner*> owner_{nullptr};
  // Guarded by the fallback lock.
  std::array<Owner, 16> owners_{};  ///< only this many threads can become the owner
  Plain<Owner*> revoked_{nullptr};  ///< the last owner that was revoked
  Plain<const void*> candidate_{nullptr};
  uint32_t streak_ = 0;  ///< acquisitions by the candidate, in a row
  uint32_t rebias_after_;
};

}  // namespace fabric

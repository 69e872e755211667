#pragma once

#include <array>
#include <cstdint>

#include "base/futex.h"
#include "base/sync.h"

namespace fabric {

/// A place that one thread nearly always has to itself: the regular, who comes and goes by plain
/// stores. Anybody else first sends the regular away, which is dear, and then uses the lock that
/// stands behind; whoever comes by that lock again and again becomes the regular.
///
/// Both sides write one word and read the other: the regular says that it is inside and reads
/// whether it is still the regular, the other takes that away and reads whether it is inside. For
/// one of them to see the other, both need a full fence in between. The regular has none of its
/// own: revoke() makes every thread of the process pass one (base/membarrier.h).
///
/// Threads: enter() and leave() by any thread, the rest by the holder of the lock behind.
class BiasedLock {
 public:
  /// So many visits in a row make a regular.
  explicit BiasedLock(uint32_t rebias_after = 64) noexcept : rebias_after_(rebias_after) {}
  BiasedLock(const BiasedLock&) = delete;
  BiasedLock& operator=(const BiasedLock&) = delete;

  /// What a thread has left of its times as the regular. Each has one of its own: one that was sent
  /// away long ago, and finds out only now, must not touch what belongs to another.
  struct Owner {
    Atomic<const void*> thread{nullptr};
    Atomic<uint32_t> inside{0};
  };

  /// Null: the caller is not the regular. Else it is inside, and has to leave() with that.
  Owner* enter() noexcept {
    // Relaxed: it was the caller itself who stored it, and nobody has been here since.
    Owner* const owner = owner_.load(std::memory_order_relaxed);
    if (owner == nullptr || owner->thread.load(std::memory_order_relaxed) != this_thread_mark()) {
      return nullptr;
    }
    owner->inside.store(1, std::memory_order_relaxed);  // ordered by the fences
    light_fence();                                     // pairs with the one in revoke_slow()
    if (owner_.load(std::memory_order_relaxed) == owner) [[likely]]
      return owner;
    leave(*owner);
    return nullptr;
  }

  /// False: it was sent away meanwhile.
  bool leave(Owner& owner) noexcept {
    // Pairs with the acquire in owner_inside().
    owner.inside.store(0, std::memory_order_release);
    light_fence();  // pairs with the one in revoke_slow()
    if (owner_.load(std::memory_order_relaxed) == &owner) [[likely]]
      return true;
    futex_wake_all(owner.inside);
    return false;
  }

  /// From here on enter() fails; the regular may still be inside.
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
    // For no reason at all or after a signal: looked at again.
    while (owner_inside()) [[unlikely]] {
        Owner* const revoked = revoked_;
        (void)futex_wait(revoked->inside, 1, nullptr);
      }
  }

  /// The holder of the lock was here once more, and nobody waits for it.
  void fallback_used() noexcept {
    const void* const me = this_thread_mark();
    streak_ = me == candidate_ ? streak_ + 1 : 1;
    candidate_ = me;
    if (streak_ >= rebias_after_) [[unlikely]]
      rebias();
  }

 private:
  // The visits needed double with each regular that is sent away, up to this: where others come
  // often, to send somebody away is rare.
  static constexpr uint32_t kRebiasAfterMax = 1 << 16;

  void revoke_slow() noexcept;
  void rebias() noexcept;

  Atomic<Owner*> owner_{nullptr};
  // Guarded by the lock behind.
  std::array<Owner, 16> owners_{};  ///< more threads than that never become the regular
  Plain<Owner*> revoked_{nullptr};   ///< who was sent away last
  Plain<const void*> candidate_{nullptr};
  uint32_t streak_ = 0;  ///< of the visitor, in a row
  uint32_t rebias_after_;
};

}  // namespace fabric

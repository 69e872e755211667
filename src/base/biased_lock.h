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
/// own: expel() makes every thread of the process pass one (base/membarrier.h).
///
/// Threads: enter() and leave() by any thread, the rest by the holder of the lock behind.
class Regular {
 public:
  /// So many visits in a row make a regular.
  explicit Regular(uint32_t visits = 64) noexcept : visits_needed_(visits) {}
  Regular(const Regular&) = delete;
  Regular& operator=(const Regular&) = delete;

  /// What a thread has left of its times as the regular. Each has one of its own: one that was sent
  /// away long ago, and finds out only now, must not touch what belongs to another.
  struct Seat {
    Atomic<const void*> whose{nullptr};
    Atomic<uint32_t> inside{0};
  };

  /// Null: the caller is not the regular. Else it is inside, and has to leave() with that.
  Seat* enter() noexcept {
    // Relaxed: it was the caller itself who stored it, and nobody has been here since.
    Seat* const seat = now_.load(std::memory_order_relaxed);
    if (seat == nullptr || seat->whose.load(std::memory_order_relaxed) != this_thread_mark()) {
      return nullptr;
    }
    seat->inside.store(1, std::memory_order_relaxed);  // ordered by the fences
    light_fence();                                     // pairs with the one in send_away()
    if (now_.load(std::memory_order_relaxed) == seat) [[likely]]
      return seat;
    leave(*seat);
    return nullptr;
  }

  /// False: it was sent away meanwhile.
  bool leave(Seat& seat) noexcept {
    // Pairs with the acquire in inside().
    seat.inside.store(0, std::memory_order_release);
    light_fence();  // pairs with the one in send_away()
    if (now_.load(std::memory_order_relaxed) == &seat) [[likely]]
      return true;
    futex_wake_all(seat.inside);
    return false;
  }

  /// From here on enter() fails; the regular may still be inside.
  void expel() noexcept {
    if (now_.load(std::memory_order_relaxed) != nullptr) [[unlikely]]
      send_away();
  }
  /// After expel().
  bool inside() const noexcept {
    const Seat* const last = last_;
    return last != nullptr && last->inside.load(std::memory_order_acquire) != 0;
  }
  void wait_outside() noexcept {
    // For no reason at all or after a signal: looked at again.
    while (inside()) [[unlikely]] {
        Seat* const last = last_;
        (void)futex_wait(last->inside, 1, nullptr);
      }
  }

  /// The holder of the lock was here once more, and nobody waits for it.
  void visited() noexcept {
    const void* const me = this_thread_mark();
    visits_ = me == visitor_ ? visits_ + 1 : 1;
    visitor_ = me;
    if (visits_ >= visits_needed_) [[unlikely]]
      settle();
  }

 private:
  // The visits needed double with each regular that is sent away, up to this: where others come
  // often, to send somebody away is rare.
  static constexpr uint32_t kVisitsMost = 1 << 16;

  void send_away() noexcept;
  void settle() noexcept;

  Atomic<Seat*> now_{nullptr};
  // Guarded by the lock behind.
  std::array<Seat, 16> seats_{};  ///< more threads than that never become the regular
  Plain<Seat*> last_{nullptr};   ///< who was sent away last
  Plain<const void*> visitor_{nullptr};
  uint32_t visits_ = 0;  ///< of the visitor, in a row
  uint32_t visits_needed_;
};

}  // namespace fabric

#pragma once

#include <atomic>
#include <cstdint>

#include "base/sync.h"

namespace fabric {

/// Where one or more threads sleep until somebody publishes something.
///
/// The publisher publishes, then calls wake(). The sleeper looks, announces itself with prepare(),
/// looks once more, then sleeps. Both sides change the same word by read-modify-writes, which are
/// totally ordered: either the publisher sees the announcement and wakes, or the sleeper's second
/// look sees what was published. There is no second variable to be stale about.
///
/// The word is odd while somebody is announced; a wake that finds it odd makes it the next even
/// number. The ticket is that odd number: with a mere flag a second sleeper could announce itself
/// after a wake and hide that wake from a first one that had not fallen asleep yet.
///
/// Lifetime: must live where a late wake() may still touch it: never on a sleeper's stack.
class EventCount {
 public:
  enum class Ticket : uint32_t {};

  /// Cheap when nobody sleeps: one read-modify-write of one word.
  void wake() noexcept {
    // Adds nothing, yet writes: either the fetch_or in prepare() comes before it and is seen here,
    // or it comes after and acquires this release, and with it the publication. A load could miss.
    if ((word_.fetch_add(0, std::memory_order_release) & 1u) != 0) wake_all();
  }

  /// Announces a sleeper. Look at the condition again before sleep().
  [[nodiscard]] Ticket prepare() noexcept {
    // Pairs with the release in wake(): the look after it sees the publication. Nothing is handed
    // on to the waker, hence no release.
    return static_cast<Ticket>(word_.fetch_or(1u, std::memory_order_acquire) | 1u);
  }

  /// Sleeps until a wake() after the prepare() that gave the ticket, or for `timeout_ns`, or for no
  /// reason at all. kNeverNs sleeps without a limit.
  void sleep(Ticket ticket, int64_t timeout_ns) noexcept;

 private:
  void wake_all() noexcept;
  Atomic<uint32_t> word_{0};
};

}  // namespace fabric

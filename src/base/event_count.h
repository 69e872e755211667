#pragma once

#include <atomic>
#include <cstdint>

#include "base/sync.h"

namespace fabric {

/// An event count on a futex: threads sleep on it until a condition that other threads publish may
/// have changed. The condition itself is outside.
///
/// The publisher publishes, then calls wake(). The sleeper checks the condition, calls prepare(),
/// checks once more, then sleeps. Both sides modify the same word by read-modify-writes, which are
/// totally ordered: either the publisher sees the registered sleeper and wakes it, or the sleeper's
/// second check sees the publication. No wake-up is lost.
///
/// Invariant: the word is odd while a sleeper is registered; a wake that finds it odd advances it
/// to the next even number. The ticket is that odd number. A boolean would not do: a second sleeper
/// could set it again after a wake and hide that wake from a first one that is not asleep yet.
///
/// Cost: wake() is one read-modify-write while no thread sleeps, and a system call otherwise.
/// Threads: every call from any thread.
/// Lifetime: must outlive a late wake(): never on a sleeper's stack.
class EventCount {
 public:
  enum class Ticket : uint32_t {};

  /// One read-modify-write of one word while no thread sleeps.
  void wake() noexcept {
    // Adds nothing, yet writes: either the fetch_or in prepare() precedes it and is seen here, or
    // it follows and acquires this release, and with it the publication. A load could miss it.
    if ((word_.fetch_add(0, std::memory_order_release) & 1u) != 0) wake_all();
  }

  /// Registers a sleeper. Check the condition again before sleep().
  [[nodiscard]] Ticket prepare() noexcept {
    // Pairs with the release in wake(): the second check sees the publication. The waker reads
    // nothing of the sleeper's, hence no release.
    return static_cast<Ticket>(word_.fetch_or(1u, std::memory_order_acquire) | 1u);
  }

  /// Sleeps until a wake() after the prepare() that returned the ticket, or for `timeout_ns`
  /// (kNeverNs: no limit). May return spuriously.
  void sleep(Ticket ticket, int64_t timeout_ns) noexcept;

 private:
  void wake_all() noexcept;
  Atomic<uint32_t> word_{0};
};

}  // namespace fabric

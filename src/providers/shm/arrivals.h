#pragma once

#include <cstdint>

#include "base/sync.h"

// How an engine sleeps until enough immediates have arrived. Only a sender whose immediates reach
// the number that the sleeper has published makes the system call that wakes it.
//
// Three words: `arrived` in an ArrivalCount, which every sender may add to, and `wake_at` and
// `sleep_epoch` in the sleeper's SharedHeader. The sleeper, before it sleeps: reads `arrived`,
// publishes wake_at = arrived + needed and an odd sleep_epoch, passes a full fence (that of all
// senders: heavy_barrier()), and checks that no ring has an immediate. A sender: publishes its
// immediates, and if it then sees an odd sleep_epoch, calls arrivals_wake().
//
// No wake-up is lost. Take the immediates that this check missed. Because of the fence their
// senders read the published `wake_at` or a later one, and they add to `arrived` after the sleeper
// has read it: had it read such an add, the check would have seen the immediate, which comes before
// the add. So the sender that adds the last of `needed` of them reaches `wake_at`, and wakes. A
// later `wake_at` means that the sleeper has been awake since. An add for an earlier sleep only
// makes the number be reached too early. tests/explore/arrivals_explore_test.cc plays all orders.
//
// A sender that dies or is stopped between its immediate and its add is missing in `arrived`, as is
// one whose memory is hostile: the sleeper then wakes by its timer.

namespace fabric::shm {

/// A count of immediates that arrived while their receiver slept. In memory of the receiver that
/// all its senders may write; it wraps. The layout is part of the wire format.
struct ArrivalCount {
  alignas(64) Atomic<uint64_t> arrived;
};

/// A `wake_at`: every arrival wakes.
inline constexpr uint64_t kEachWakes = 0;

/// Sleeper: the `wake_at` to publish if nothing is to be done before `needed` immediates arrived.
inline uint64_t wake_at_after(const Atomic<uint64_t>& arrived, uint32_t needed) noexcept {
  // Relaxed: the fence that follows orders it before the check of the rings.
  return needed <= 1 ? kEachWakes : arrived.load(std::memory_order_relaxed) + needed;
}

/// Sender: counts the immediates that it published, each once. True: they reach `wake_at`. Call it
/// after the fence that follows their publication.
inline bool arrivals_wake(Atomic<uint64_t>& arrived, const Atomic<uint64_t>& wake_at,
                          uint64_t imms) noexcept {
  // Relaxed, all ordered by the fence: the immediates were published before it.
  const uint64_t at = wake_at.load(std::memory_order_relaxed);
  if (at == kEachWakes) return true;
  const uint64_t count = arrived.fetch_add(imms, std::memory_order_relaxed) + imms;
  return static_cast<int64_t>(count - at) >= 0;
}

}  // namespace fabric::shm

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "base/sync.h"

namespace fabric {

/// A Treiber stack of free slot indices 0..n-1. The head carries a tag that grows with every change
/// (ABA protection); it fails only after exactly 2^32 changes between a load and its exchange.
///
/// Threads: every call from any thread; lock-free.
class FreeList {
 public:
  explicit FreeList(uint32_t n) : next_(std::make_unique<Atomic<uint32_t>[]>(n)) {
    // Relaxed: the list is not shared yet. Slot 0 comes out first: small indices stay cache-warm.
    for (uint32_t i = 0; i < n; ++i) {
      next_[i].store(i + 1 < n ? i + 1 : kNone, std::memory_order_relaxed);
    }
    head_.store(n > 0 ? 0 : kNone, std::memory_order_relaxed);
  }

  /// False: none is free. The slot belongs to the caller, with the contents its last owner left.
  bool pop(uint32_t& index) noexcept { return pop_all({&index, 1}) == 1; }

  /// Pops up to out.size() slots with one exchange; returns how many.
  uint32_t pop_all(std::span<uint32_t> out) noexcept {
    // Pairs with the release in push_all(). All changes of head_ are read-modify-writes, so this
    // also sees every push before the newest one, and with it next_ and the slot's contents.
    uint64_t head = head_.load(std::memory_order_acquire);
    for (;;) {
      auto below = static_cast<uint32_t>(head);
      uint32_t n = 0;
      while (n < out.size() && below != kNone) {
        out[n++] = below;
        // May be stale when another thread takes the slot first; then the tag differs below.
        below = next_[below].load(std::memory_order_relaxed);
      }
      if (n == 0) return 0;
      // Acquire on failure too: the loop goes on with what it read.
      if (head_.compare_exchange_weak(head, tagged(head, below), std::memory_order_acquire,
                                      std::memory_order_acquire)) {
        return n;
      }
    }
  }

  /// Returns a slot. Returning it twice without a pop() in between is a bug that the list cannot
  /// detect.
  void push(uint32_t index) noexcept { push_all({&index, 1}); }

  /// Returns several slots with one exchange; the first of them comes out first.
  void push_all(std::span<const uint32_t> indices) noexcept {
    if (indices.empty()) return;
    // Relaxed: the caller still owns these slots.
    for (size_t i = 0; i + 1 < indices.size(); ++i) {
      next_[indices[i]].store(indices[i + 1], std::memory_order_relaxed);
    }
    uint64_t head = head_.load(std::memory_order_relaxed);  // only a guess, confirmed below
    do {
      next_[indices.back()].store(static_cast<uint32_t>(head), std::memory_order_relaxed);
      // Release pairs with the acquire in pop_all(): next_ and the slots' contents go with it.
    } while (!head_.compare_exchange_weak(head, tagged(head, indices.front()),
                                          std::memory_order_release, std::memory_order_relaxed));
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static uint64_t tagged(uint64_t old_head, uint32_t index) noexcept {
    return ((old_head >> 32) + 1) << 32 | index;
  }

  const std::unique_ptr<Atomic<uint32_t>[]> next_;
  alignas(64) Atomic<uint64_t> head_{kNone};  ///< tag above, index below
};

}  // namespace fabric

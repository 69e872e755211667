#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>

#include "base/sync.h"

namespace fabric {

/// A bounded multi-producer, single-consumer queue (Vyukov's: every cell carries a sequence number
/// that says whether producer or consumer may use it).
///
/// A full ring is a normal result. A producer that is descheduled between claiming its cell and
/// filling it delays the values pushed after it: until then the consumer sees an empty ring. It
/// never blocks another producer.
///
/// Threads: push() and push_all() from any thread; pop(), pop_all() and empty() from one.
template <class T>
class MpscRing {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  /// Rounded up to a power of two.
  explicit MpscRing(uint32_t capacity_min)
      : mask_(std::bit_ceil(static_cast<uint64_t>(capacity_min < 2 ? 2 : capacity_min)) - 1),
        cells_(std::make_unique<Cell[]>(mask_ + 1)) {
    // Relaxed: the ring is not shared yet; publishing it to other threads publishes these stores.
    for (uint64_t i = 0; i <= mask_; ++i) cells_[i].sequence.store(i, std::memory_order_relaxed);
  }

  /// False: full.
  bool push(const T& value) noexcept { return push_all({&value, 1}); }

  /// All of them, in consecutive cells, or none (false).
  bool push_all(std::span<const T> values) noexcept {
    if (values.empty()) return true;
    if (values.size() > capacity()) return false;
    const uint64_t n = values.size();
    // Relaxed: the exchange below confirms it; the cells carry the ordering.
    uint64_t at = tail_.load(std::memory_order_relaxed);
    for (;;) {
      // The one consumer frees cells in order, so a free last cell proves the ones before it.
      // Pairs with the release in pop(): the consumer has read what was there.
      const uint64_t sequence = cell(at + n - 1).sequence.load(std::memory_order_acquire);
      const auto ahead = static_cast<int64_t>(sequence - (at + n - 1));
      if (ahead < 0) return false;
      if (ahead > 0) {
        at = tail_.load(std::memory_order_relaxed);  // another producer moved the tail: retry
        continue;
      }
      // Relaxed: it only claims positions.
      if (tail_.compare_exchange_weak(at, at + n, std::memory_order_relaxed)) break;
    }
    for (uint64_t i = 0; i < n; ++i) {
      cell(at + i).value = values[i];
      // Pairs with the acquire in pop() and empty().
      cell(at + i).sequence.store(at + i + 1, std::memory_order_release);
    }
    return true;
  }

  /// False: empty, or the next producer has not finished.
  bool pop(T& out) noexcept {
    Cell& next = cell(head_);
    // Pairs with the release in push_all().
    if (next.sequence.load(std::memory_order_acquire) != head_ + 1) return false;
    out = next.value;
    // Pairs with the acquire in push_all(), one lap later.
    next.sequence.store(head_ + capacity(), std::memory_order_release);
    ++head_;
    return true;
  }

  /// Pops up to out.size() values; returns how many.
  uint32_t pop_all(std::span<T> out) noexcept {
    uint32_t n = 0;
    while (n < out.size() && pop(out[n])) ++n;
    return n;
  }

  /// The consumer's view: false when pop() would succeed.
  bool empty() const noexcept {
    // Pairs with the release in push_all().
    return cell(head_).sequence.load(std::memory_order_acquire) != head_ + 1;
  }

  uint64_t capacity() const noexcept { return mask_ + 1; }

 private:
  struct Cell {
    Atomic<uint64_t> sequence{0};  ///< p: free for position p; p + 1: filled at position p
    Plain<T> value;                ///< belongs to the side that `sequence` names
  };
  Cell& cell(uint64_t position) const noexcept { return cells_[position & mask_]; }

  const uint64_t mask_;
  const std::unique_ptr<Cell[]> cells_;
  // Aligned, so that producers and the consumer do not share a cache line.
  alignas(64) Atomic<uint64_t> tail_{0};
  alignas(64) uint64_t head_ = 0;
};

}  // namespace fabric

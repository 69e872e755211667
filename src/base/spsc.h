#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "base/sync.h"

namespace fabric {

/// A bounded single-producer, single-consumer queue. Each side caches the other side's counter and
/// reads the shared one only when the ring looks full or empty.
///
/// Threads: push() from one thread; pop() and empty() from one thread.
template <class T>
class SpscRing {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  /// Rounded up to a power of two.
  explicit SpscRing(uint32_t capacity_min)
      : mask_(std::bit_ceil(static_cast<uint64_t>(capacity_min < 1 ? 1 : capacity_min)) - 1),
        values_(make_uninit_array<T>(mask_ + 1)) {}

  /// False: full.
  bool push(const T& value) noexcept {
    // Relaxed: only the producer writes it.
    const uint64_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_seen_ > mask_) {
      // Pairs with the release in pop(): the value there has been read.
      head_seen_ = head_.load(std::memory_order_acquire);
      if (tail - head_seen_ > mask_) return false;
    }
    values_[tail & mask_] = value;
    // Pairs with the acquire in pop() and empty().
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  /// False: empty.
  bool pop(T& out) noexcept {
    // Relaxed: only the consumer writes it.
    const uint64_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_seen_) {
      // Pairs with the release in push().
      tail_seen_ = tail_.load(std::memory_order_acquire);
      if (head == tail_seen_) return false;
    }
    out = values_[head & mask_];
    // Pairs with the acquire in push().
    head_.store(head + 1, std::memory_order_release);
    return true;
  }

  /// The consumer's view: false when pop() would succeed.
  bool empty() const noexcept {
    // The consumer's counter relaxed; the other pairs with the release in push().
    return head_.load(std::memory_order_relaxed) == tail_.load(std::memory_order_acquire);
  }

  uint64_t capacity() const noexcept { return mask_ + 1; }

 private:
  const uint64_t mask_;
  /// [head, tail) belongs to the consumer, the rest to the producer. Uninitialised: a deep queue
  /// costs memory only when it fills for the first time.
  const UninitArray<T> values_;
  // One cache line per side.
  alignas(64) Atomic<uint64_t> tail_{0};
  uint64_t head_seen_ = 0;
  alignas(64) Atomic<uint64_t> head_{0};
  uint64_t tail_seen_ = 0;
};

}  // namespace fabric

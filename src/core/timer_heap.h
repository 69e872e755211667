#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/driver.h"

namespace fabric::core {

/// A timer. It is a member of its owner; the heap only points to it.
struct HeapTimer {
  enum class Kind : uint8_t { kOp, kPostBatch, kPeer };
  int64_t when_ns = kNeverNs;
  uint32_t position = kIdle;  ///< in the heap, kListed, or kIdle
  uint32_t index = 0;         ///< the owner's slot
  Kind kind = Kind::kOp;
  HeapTimer* prev = nullptr;  ///< in the list
  HeapTimer* next = nullptr;
  static constexpr uint32_t kIdle = UINT32_MAX;
  static constexpr uint32_t kListed = UINT32_MAX - 1;
};

/// The timers of an engine: a sorted list and an indexed binary heap. A timer can be moved or
/// removed at any time, so that an operation that completes before its deadline leaves no entry.
/// Most deadlines are set in ascending order (now plus a default): those are appended to the list
/// in constant time. A timer that is due before the last of the list goes to the heap.
///
/// Not thread-safe: guarded by its owner's lock.
class TimerHeap {
 public:
  /// Reserves room for `most` timers, so that the turn does not allocate.
  explicit TimerHeap(size_t most = 0) { heap_.reserve(most); }

  int64_t next_ns() const noexcept {
    const int64_t listed = first_ == nullptr ? kNeverNs : first_->when_ns;
    return heap_.empty() ? listed : std::min(listed, heap_[0]->when_ns);
  }
  bool empty() const noexcept { return first_ == nullptr && heap_.empty(); }

  void set(HeapTimer& timer, int64_t when_ns) {
    if (timer.position != HeapTimer::kIdle) clear(timer);
    timer.when_ns = when_ns;
    // Peer timers move all the time, and one that is late would keep all others off the list.
    if (timer.kind != HeapTimer::Kind::kPeer && (last_ == nullptr || last_->when_ns <= when_ns)) {
      timer.position = HeapTimer::kListed;
      timer.prev = last_;
      timer.next = nullptr;
      (last_ == nullptr ? first_ : last_->next) = &timer;
      last_ = &timer;
      return;
    }
    timer.position = static_cast<uint32_t>(heap_.size());
    heap_.push_back(&timer);
    up(timer.position);
  }

  void clear(HeapTimer& timer) noexcept {
    if (timer.position == HeapTimer::kListed) {
      (timer.prev == nullptr ? first_ : timer.prev->next) = timer.next;
      (timer.next == nullptr ? last_ : timer.next->prev) = timer.prev;
      timer.position = HeapTimer::kIdle;
      return;
    }
    if (timer.position == HeapTimer::kIdle) return;
    const uint32_t hole = timer.position;
    timer.position = HeapTimer::kIdle;
    HeapTimer* last = heap_.back();
    heap_.pop_back();
    if (last == &timer) return;
    place(hole, last);
    up(hole);
    down(last->position);
  }

  /// Removes and returns the earliest timer if it is due; else nullptr.
  HeapTimer* pop_due(int64_t now_ns) noexcept {
    HeapTimer* timer = first_;
    if (!heap_.empty() && (timer == nullptr || heap_[0]->when_ns < timer->when_ns)) {
      timer = heap_[0];
    }
    if (timer == nullptr || timer->when_ns > now_ns) return nullptr;
    clear(*timer);
    return timer;
  }

 private:
  void place(uint32_t position, HeapTimer* timer) noexcept {
    heap_[position] = timer;
    timer->position = position;
  }
  void up(uint32_t i) noexcept {
    while (i > 0 && heap_[i]->when_ns < heap_[(i - 1) / 2]->when_ns) {
      swap(i, (i - 1) / 2);
      i = (i - 1) / 2;
    }
  }
  void down(uint32_t i) noexcept {
    for (;;) {
      uint32_t least = i;
      for (uint32_t child = 2 * i + 1; child <= 2 * i + 2 && child < heap_.size(); ++child) {
        if (heap_[child]->when_ns < heap_[least]->when_ns) least = child;
      }
      if (least == i) return;
      swap(i, least);
      i = least;
    }
  }
  void swap(uint32_t a, uint32_t b) noexcept {
    HeapTimer* first = heap_[a];
    place(a, heap_[b]);
    place(b, first);
  }

  HeapTimer *first_ = nullptr, *last_ = nullptr;  ///< the list, sorted by time
  std::vector<HeapTimer*> heap_;
};

}  // namespace fabric::core

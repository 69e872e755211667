#pragma once

#include <cstdint>
#include <vector>

#include "base/driver.h"

namespace fabric::core {

/// A point in time that somebody waits for. Lives inside its owner; the heap only points to it.
struct Timer {
  enum class Kind : uint8_t { kOp, kPeer };
  int64_t when_ns = kNeverNs;
  uint32_t position = kIdle;  ///< in the heap
  uint32_t index = 0;         ///< the owner's slot
  Kind kind = Kind::kOp;
  static constexpr uint32_t kIdle = UINT32_MAX;
};

/// An indexed binary heap: a timer can be moved or taken out at any time, so that operations which
/// end before their deadline leave nothing behind.
class TimerHeap {
 public:
  /// With room for every timer there can be, so that the turn allocates nothing.
  explicit TimerHeap(size_t most = 0) { heap_.reserve(most); }

  int64_t next_ns() const noexcept { return heap_.empty() ? kNeverNs : heap_[0]->when_ns; }
  bool empty() const noexcept { return heap_.empty(); }

  void set(Timer& timer, int64_t when_ns) {
    if (timer.position == Timer::kIdle) {
      timer.position = static_cast<uint32_t>(heap_.size());
      heap_.push_back(&timer);
    }
    timer.when_ns = when_ns;
    up(timer.position);
    down(timer.position);
  }

  void clear(Timer& timer) noexcept {
    if (timer.position == Timer::kIdle) return;
    const uint32_t hole = timer.position;
    timer.position = Timer::kIdle;
    Timer* last = heap_.back();
    heap_.pop_back();
    if (last == &timer) return;
    place(hole, last);
    up(hole);
    down(last->position);
  }

  /// The earliest timer if it is due, taken out; else nullptr.
  Timer* pop_due(int64_t now_ns) noexcept {
    if (heap_.empty() || heap_[0]->when_ns > now_ns) return nullptr;
    Timer* timer = heap_[0];
    clear(*timer);
    return timer;
  }

 private:
  void place(uint32_t position, Timer* timer) noexcept {
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
    Timer* first = heap_[a];
    place(a, heap_[b]);
    place(b, first);
  }

  std::vector<Timer*> heap_;
};

}  // namespace fabric::core

#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "base/driver.h"
#include "providers/sim/pool.h"

namespace fabric::sim {

/// Future events by time, FIFO among events of the same time.
///
/// A 4-ary heap: an item is only time, order and the index of the event, so that the four children
/// of a node share a cache line.
template <class Event>
class EventQueue {
 public:
  bool empty() const noexcept { return heap_.empty(); }
  int64_t next_ns() const noexcept { return heap_.empty() ? kNeverNs : heap_[0].time_ns; }

  void push(int64_t time_ns, const Event& event) {
    const uint32_t index = events_.take();
    FABRIC_CHECK(index < kEventsMax, "too many events");
    events_[index] = event;
    const Item item{time_ns, next_order_++ << kIndexBits | index};
    size_t hole = heap_.size();
    heap_.push_back(item);
    while (hole > 0 && item.before(heap_[(hole - 1) / kChildren])) {
      heap_[hole] = heap_[(hole - 1) / kChildren];
      hole = (hole - 1) / kChildren;
    }
    heap_[hole] = item;
  }

  Event pop() {
    const auto index = static_cast<uint32_t>(heap_[0].order & (kEventsMax - 1));
    const Item last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) sink(last);
    events_.give(index);
    return events_[index];
  }

 private:
  // Seventeen million events at once, and a million million over the lifetime of a world.
  static constexpr uint32_t kIndexBits = 24;
  static constexpr uint32_t kEventsMax = 1u << kIndexBits;
  static constexpr size_t kChildren = 4;

  struct Item {
    int64_t time_ns = 0;
    uint64_t order = 0;  // scheduling order, and the index in the low bits
    bool before(const Item& other) const noexcept {
      return time_ns != other.time_ns ? time_ns < other.time_ns : order < other.order;
    }
  };

  /// Replaces the root by `item` and restores the heap order.
  void sink(const Item& item) noexcept {
    size_t hole = 0;
    for (size_t child = 1; child < heap_.size(); child = hole * kChildren + 1) {
      const size_t end = child + kChildren < heap_.size() ? child + kChildren : heap_.size();
      size_t least = child;
      for (size_t i = child + 1; i < end; ++i) {
        if (heap_[i].before(heap_[least])) least = i;
      }
      if (!heap_[least].before(item)) break;
      heap_[hole] = heap_[least];
      hole = least;
    }
    heap_[hole] = item;
  }

  std::vector<Item> heap_;
  Pool<Event> events_;
  uint64_t next_order_ = 0;
};

}  // namespace fabric::sim

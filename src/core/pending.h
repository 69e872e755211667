#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "core/page_list.h"

namespace fabric::core {

inline constexpr uint32_t kNone = UINT32_MAX;

/// A doubly linked list of pending fragments, through the pool.
struct PendingQueue {
  uint32_t head = kNone, tail = kNone;
  bool empty() const noexcept { return head == kNone; }
};

/// The byte range of a write or a scatter target that one path carries in order. It is posted in
/// one or more slices, and only the last of them carries the immediate: the count of a shard covers
/// all of its bytes.
struct Shard {
  uint64_t begin = 0, end = 0;  ///< offsets in the part
  bool operator==(const Shard&) const = default;
};

/// Accepted and not yet posted: either the rest of one shard of a write or of a scatter target that
/// is cut, or `count` entire parts. It waits in exactly one queue: a path's, by priority; a peer's,
/// until the session is up; or a broken connection's, if slices of its shard were posted there. It
/// is also in the list of its operation. In-flight writes are made from it as the rail has room.
struct PendingFragment {
  uint32_t op = kNone;
  uint32_t peer = kNone;  ///< slot
  uint32_t path = kNone;
  uint32_t part = 0;        ///< the next page or target ...
  uint32_t stride = 1;      ///< ... then every stride-th ...
  uint32_t count = 0;       ///< ... `count` of them
  uint64_t offset = 0;      ///< of a shard: the first byte that is not posted ...
  uint64_t size_bytes = 0;  ///< ... and how many there are from there
  Shard shard{};
  PageCursor pages{};
  uint32_t cut = kNone;  ///< of a scatter target that is cut: its CutTarget
  PendingQueue* queue = nullptr;
  uint32_t prev = kNone, next = kNone;        ///< in its queue
  uint32_t op_prev = kNone, op_next = kNone;  ///< in the list of its operation
};

/// A pool of pending fragments. Chunks are never freed, so that the steady state allocates nothing;
/// operations and their lists are bounded, and they bound the pool. State lock held.
class PendingPool {
 public:
  const PendingFragment& at(uint32_t index) const noexcept {
    return chunks_[index / kChunk][index % kChunk];
  }
  PendingFragment& at(uint32_t index) noexcept { return chunks_[index / kChunk][index % kChunk]; }

  uint32_t take() {
    if (free_.empty()) grow();
    const uint32_t index = free_.back();
    free_.pop_back();
    return index;
  }
  void give_back(uint32_t index) {
    at(index) = PendingFragment{};
    free_.push_back(index);
  }

  uint64_t held() const noexcept { return chunks_.size() * kChunk - free_.size(); }

  void append(PendingQueue& queue, uint32_t index) noexcept {
    PendingFragment& fragment = at(index);
    fragment.queue = &queue;
    fragment.prev = queue.tail;
    fragment.next = kNone;
    (queue.tail == kNone ? queue.head : at(queue.tail).next) = index;
    queue.tail = index;
  }
  void unlink(uint32_t index) noexcept {
    PendingFragment& fragment = at(index);
    PendingQueue& queue = *fragment.queue;
    (fragment.prev == kNone ? queue.head : at(fragment.prev).next) = fragment.next;
    (fragment.next == kNone ? queue.tail : at(fragment.next).prev) = fragment.prev;
    fragment.queue = nullptr;
    fragment.prev = fragment.next = kNone;
  }

 private:
  static constexpr uint32_t kChunk = 1024;
  void grow() {
    const auto base = static_cast<uint32_t>(chunks_.size()) * kChunk;
    chunks_.push_back(std::make_unique<PendingFragment[]>(kChunk));
    free_.reserve(base + kChunk);
    for (uint32_t i = kChunk; i > 0; --i) free_.push_back(base + i - 1);
  }
  std::vector<std::unique_ptr<PendingFragment[]>> chunks_;
  std::vector<uint32_t> free_;
};

}  // namespace fabric::core

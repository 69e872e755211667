#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

namespace fabric::core {

inline constexpr uint32_t kNone = UINT32_MAX;

struct EntryQueue {
  uint32_t head = kNone, tail = kNone;
  bool empty() const noexcept { return head == kNone; }
};

/// The bytes of a write that one path carries in order; its last piece is the one that counts.
struct Shard {
  uint64_t begin = 0, end = 0;  ///< in the write
  bool operator==(const Shard&) const = default;
};

/// Accepted and not yet posted: some parts of one operation that wait for one path, or for a peer
/// to connect. Pieces are made from it as the rail has room.
struct Entry {
  uint32_t op = kNone;
  uint32_t peer = kNone;  ///< slot
  uint32_t path = kNone;
  uint32_t part = 0;    ///< the next page or target ...
  uint32_t stride = 1;  ///< ... then every stride-th ...
  uint32_t count = 0;   ///< ... so many
  uint64_t offset = 0;  ///< a shard: what is left of it
  uint64_t size_bytes = 0;
  Shard shard{};
  EntryQueue* queue = nullptr;
  uint32_t prev = kNone, next = kNone;        ///< in its queue
  uint32_t op_prev = kNone, op_next = kNone;  ///< among its operation's
};

/// Entries in chunks that are never given back, so that the steady state allocates nothing. Bounded
/// by the operations and their lists, which are bounded themselves.
class EntryPool {
 public:
  Entry& at(uint32_t index) noexcept { return chunks_[index / kChunk][index % kChunk]; }

  uint32_t take() {
    if (free_.empty()) grow();
    const uint32_t index = free_.back();
    free_.pop_back();
    return index;
  }
  void give_back(uint32_t index) {
    at(index) = Entry{};
    free_.push_back(index);
  }

  uint64_t held() const noexcept { return chunks_.size() * kChunk - free_.size(); }

  void append(EntryQueue& queue, uint32_t index) noexcept {
    Entry& entry = at(index);
    entry.queue = &queue;
    entry.prev = queue.tail;
    entry.next = kNone;
    (queue.tail == kNone ? queue.head : at(queue.tail).next) = index;
    queue.tail = index;
  }
  void unlink(uint32_t index) noexcept {
    Entry& entry = at(index);
    EntryQueue& queue = *entry.queue;
    (entry.prev == kNone ? queue.head : at(entry.prev).next) = entry.next;
    (entry.next == kNone ? queue.tail : at(entry.next).prev) = entry.prev;
    entry.queue = nullptr;
    entry.prev = entry.next = kNone;
  }

 private:
  static constexpr uint32_t kChunk = 1024;
  void grow() {
    const auto base = static_cast<uint32_t>(chunks_.size()) * kChunk;
    chunks_.push_back(std::make_unique<Entry[]>(kChunk));
    free_.reserve(base + kChunk);
    for (uint32_t i = kChunk; i > 0; --i) free_.push_back(base + i - 1);
  }
  std::vector<std::unique_ptr<Entry[]>> chunks_;
  std::vector<uint32_t> free_;
};

}  // namespace fabric::core

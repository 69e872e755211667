#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

namespace fabric::core {

/// The slots that public 8-byte handles (slot, generation) refer to. Memory is allocated in chunks
/// on demand and freed only with the table, so a stale handle always finds a slot, whose generation
/// differs.
///
/// T derives from SlotHead; generation 0 means free.
/// Threads: find() and at() from any thread; everything else under the owner's lock.
template <class T>
class SlotTable {
 public:
  explicit SlotTable(uint32_t max)
      : max_(max), chunks_(std::make_unique<std::atomic<T*>[]>(chunk_count())) {}
  SlotTable(const SlotTable&) = delete;
  SlotTable& operator=(const SlotTable&) = delete;
  ~SlotTable() {
    for (uint32_t i = 0; i < chunk_count(); ++i) {
      delete[] chunks_[i].load(std::memory_order_relaxed);
    }
  }

  /// What the generation of each slot counts from. Before the first acquire().
  void set_generation(uint32_t generation) noexcept { first_generation_ = generation; }

  /// A slot that is not yet visible to find(), or nullptr when all are in use. Recycled slots are
  /// reused first in, first out, so that a generation repeats as late as possible.
  T* acquire(uint32_t& slot) {
    if (made_ < max_) {
      slot = made_++;
      std::atomic<T*>& chunk = chunks_[slot / kChunk];
      if (chunk.load(std::memory_order_relaxed) == nullptr) {
        // Pairs with the acquire load in at().
        chunk.store(new T[std::min(kChunk, max_ - slot)], std::memory_order_release);
      }
      at(slot)->last_generation = first_generation_;
    } else if (!free_.empty()) {
      slot = free_.front();
      free_.pop_front();
    } else {
      return nullptr;
    }
    ++live_;
    return at(slot);
  }

  /// The generation that publish() will set.
  static uint32_t next_generation(const T& item) noexcept {
    return item.last_generation == UINT32_MAX ? 1 : item.last_generation + 1;
  }

  /// Makes the slot visible: a thread that finds it sees everything stored into it before.
  uint32_t publish(uint32_t slot) noexcept {
    T* item = at(slot);
    const uint32_t next = next_generation(*item);
    item->last_generation = next;
    item->generation.store(next, std::memory_order_release);  // pairs with find()
    return next;
  }

  /// Hides the slot from find(); it stays in use until recycle().
  void hide(uint32_t slot) noexcept { at(slot)->generation.store(0, std::memory_order_release); }
  void recycle(uint32_t slot) {
    hide(slot);
    free_.push_back(slot);
    --live_;
  }

  T* find(uint32_t slot, uint32_t generation) const noexcept {
    if (generation == 0) return nullptr;
    T* item = at(slot);
    if (item == nullptr) return nullptr;
    // Pairs with the release store in publish().
    return item->generation.load(std::memory_order_acquire) == generation ? item : nullptr;
  }

  /// Whether publish() has returned this generation of the slot, whatever became of it. By the
  /// distance to the first one, so that a table that counts from another one has not. Under
  /// the owner's lock.
  bool was_published(uint32_t slot, uint32_t generation) const noexcept {
    if (generation == 0 || slot >= made_) return false;
    const uint32_t distance = generation - first_generation_;
    return distance != 0 && distance <= at(slot)->last_generation - first_generation_;
  }

  T* at(uint32_t slot) const noexcept {
    if (slot >= max_) return nullptr;
    T* chunk = chunks_[slot / kChunk].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : &chunk[slot % kChunk];
  }

  uint32_t made() const noexcept { return made_; }  ///< slots below this exist
  uint32_t live() const noexcept { return live_; }

 private:
  static constexpr uint32_t kChunk = 256;

  uint32_t chunk_count() const noexcept { return (max_ + kChunk - 1) / kChunk; }

  const uint32_t max_;
  uint32_t first_generation_ = 0;
  uint32_t made_ = 0;
  uint32_t live_ = 0;
  std::deque<uint32_t> free_;
  /// Each allocated once: release in acquire(), acquire in at().
  const std::unique_ptr<std::atomic<T*>[]> chunks_;
};

/// The base of every T above.
struct SlotHead {
  /// Release in publish() pairs with the acquire in find(). Members that the owner changes while
  /// finders read them are atomic, or guarded by the owner's lock.
  std::atomic<uint32_t> generation{0};
  uint32_t last_generation = 0;
};

}  // namespace fabric::core

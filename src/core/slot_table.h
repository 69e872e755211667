#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

namespace fabric::core {

/// Slots with generations, behind the public 8-byte handles. Memory is taken in chunks as it is
/// needed and never given back before the table ends, so a stale handle always meets a slot that is
/// there and says "not me".
///
/// T has a member `std::atomic<uint32_t> generation{0}`: 0 means free.
/// Threads: find() from any thread; acquire() and release() under the owner's lock.
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

  /// A slot that is not yet visible to find(), or nullptr when all are taken. Freed slots come back
  /// first in, first out, so that a generation repeats as late as possible.
  T* acquire(uint32_t& slot) {
    if (made_ < max_) {
      slot = made_++;
      std::atomic<T*>& chunk = chunks_[slot / kChunk];
      if (chunk.load(std::memory_order_relaxed) == nullptr) {
        // Pairs with the acquire load in at().
        chunk.store(new T[std::min(kChunk, max_ - slot)], std::memory_order_release);
      }
    } else if (!free_.empty()) {
      slot = free_.front();
      free_.pop_front();
    } else {
      return nullptr;
    }
    ++live_;
    return at(slot);
  }

  /// What publish() is going to give the slot.
  static uint32_t next_generation(const T& item) noexcept {
    return item.last_generation == UINT32_MAX ? 1 : item.last_generation + 1;
  }

  /// Makes the slot visible: everything stored into it before is seen by who finds it.
  uint32_t publish(uint32_t slot) noexcept {
    T* item = at(slot);
    const uint32_t next = next_generation(*item);
    item->last_generation = next;
    item->generation.store(next, std::memory_order_release);  // pairs with find()
    return next;
  }

  /// Invisible from now on; the slot stays taken until recycle().
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
  uint32_t made_ = 0;
  uint32_t live_ = 0;
  std::deque<uint32_t> free_;
  /// Each made once: release in acquire(), acquire in at().
  const std::unique_ptr<std::atomic<T*>[]> chunks_;
};

/// What every T above starts with.
struct SlotHead {
  /// Release in publish() pairs with the acquire in find(). What a finder reads afterwards and its
  /// owner may change meanwhile is atomic, too, or guarded by the owner's lock.
  std::atomic<uint32_t> generation{0};
  uint32_t last_generation = 0;
};

}  // namespace fabric::core

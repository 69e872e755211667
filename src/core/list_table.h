#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "core/slot_table.h"
#include "core/state_mutex.h"

namespace fabric::core {

/// The base of a prepared list's slot.
struct ListHead : SlotHead {
  /// Reference count: the handle, submitters that read the list, operations that use it. Dropping
  /// the last reference frees the list. Starts at 1, for the handle; 0: the slot is free. A reader
  /// adds itself only while the count is not 0 (acquire); dropping a reference is a release, and
  /// dropping the last one also acquires.
  std::atomic<uint32_t> users{0};
  uint32_t self = 0;  ///< its slot
};

/// The prepared lists of one kind. Their contents change only while they have no user, so they are
/// read without a lock.
///
/// Slot derives from ListHead and has clear(), which frees its contents.
/// Threads: find_and_pin() and unpin() from any thread; everything else under the state lock.
template <class Slot>
class ListTable {
 public:
  static constexpr uint32_t kMax = 65'536;

  /// Handles of different engines differ in their generations, so that a list of another engine is
  /// not found. Before the first acquire().
  void set_first_generation(uint32_t generation) noexcept { slots_.set_generation(generation); }

  /// A slot to fill, or nullptr when all are in use.
  Slot* acquire() FABRIC_REQUIRES(state_lock) {
    uint32_t slot = 0;
    Slot* const item = slots_.acquire(slot);
    if (item != nullptr) item->self = slot;
    return item;
  }
  /// Makes the list visible, with one user: its handle. Returns its generation.
  uint32_t publish(Slot& item) noexcept FABRIC_REQUIRES(state_lock) {
    item.users.store(1, std::memory_order_relaxed);  // published by the generation
    return slots_.publish(item.self);
  }
  /// The handle is gone: no new user.
  void hide(Slot& item) noexcept FABRIC_REQUIRES(state_lock) { slots_.hide(item.self); }
  /// Takes a user away, and frees the list after the last one.
  void release(Slot& item) FABRIC_REQUIRES(state_lock) {
    if (unpin(item)) recycle(item);
  }
  /// After unpin() returned true.
  void recycle(Slot& item) FABRIC_REQUIRES(state_lock) {
    item.clear();
    slots_.recycle(item.self);
  }
  uint32_t live() const noexcept FABRIC_REQUIRES(state_lock) { return slots_.live(); }

  /// Counts the caller as a user of the slot, if it has a list. Only a pinned slot keeps its
  /// generation, so the caller compares that afterwards.
  Slot* pin(uint32_t slot) const noexcept {
    Slot* const item = slots_.at(slot);
    if (item == nullptr) return nullptr;
    uint32_t users = item->users.load(std::memory_order_relaxed);  // confirmed below
    do {
      if (users == 0) return nullptr;
      // Acquire pairs with the release in unpin(), by which the contents were last changed.
    } while (!item->users.compare_exchange_weak(users, users + 1, std::memory_order_acquire,
                                                std::memory_order_relaxed));
    return item;
  }
  /// True: that was the last one. The caller frees the list under the state lock.
  static bool unpin(Slot& item) noexcept {
    // Release: this user has read what it wanted. Acquire: so have the others, if it is the last.
    return item.users.fetch_sub(1, std::memory_order_acq_rel) == 1;
  }

 private:
  SlotTable<Slot> slots_{kMax};
};

/// A submitter's use of a list, which another thread may destroy at the same time: the list is
/// either found and stays, or is not found.
template <class Slot>
class PinnedList {
 public:
  PinnedList(ListTable<Slot>& table, StateMutex& mutex, uint32_t slot, uint32_t generation) noexcept
      : table_(table), mutex_(mutex), item_(generation == 0 ? nullptr : table.pin(slot)) {
    // Acquire pairs with the release in publish(): the contents are visible.
    if (item_ != nullptr && item_->generation.load(std::memory_order_acquire) != generation)
      unpin();
  }
  ~PinnedList() { unpin(); }
  PinnedList(const PinnedList&) = delete;
  PinnedList& operator=(const PinnedList&) = delete;
  explicit operator bool() const noexcept { return item_ != nullptr; }
  const Slot* operator->() const noexcept { return item_; }
  /// The operation is the user from here on; it calls ListTable::release().
  Slot* hand_over() noexcept { return std::exchange(item_, nullptr); }

 private:
  /// Takes the lock only if the handle was destroyed since pin().
  void unpin() noexcept {
    Slot* const item = std::exchange(item_, nullptr);
    if (item == nullptr || !ListTable<Slot>::unpin(*item)) return;
    const StateGuard lock(mutex_);
    table_.recycle(*item);
  }

  ListTable<Slot>& table_;
  StateMutex& mutex_;
  Slot* item_;
};

}  // namespace fabric::core

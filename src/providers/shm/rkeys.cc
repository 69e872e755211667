#include "providers/shm/rkeys.h"

#include <new>

namespace fabric::shm {

Result<WireKey> Keys::add(const Memory& memory) {
  const auto place = SharedPages::find(memory.address, memory.size_bytes);
  const std::lock_guard lock(mutex_);
  try {
    if (free_.empty()) {
      if (keys_.size() == Front::kKeys) return fail(Errc::kExhausted, "shm keys");
      free_.reserve(keys_.size() + 1);  // release() cannot fail
      keys_.emplace_back();
      free_.push_back(static_cast<uint32_t>(keys_.size() - 1));
    }
    if (place) {
      Shown& shown = blocks_[place->block];
      shown.place = *place;
      ++shown.keys;
    }
  } catch (const std::bad_alloc&) {
    return fail(Errc::kExhausted, "shm keys");
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  Own& own = keys_[index];
  // Zero is nobody's, and an odd one is good: after revoke() the word is even.
  own.generation = (own.generation + 1) | 1;
  own.address = static_cast<std::byte*>(memory.address);
  own.size_bytes = memory.size_bytes;
  own.block = place ? place->block : 0;
  own.remote_write = memory.remote_write;
  own.live = true;
  if (!memory.remote_write) return WireKey{index, own.generation};  // and no entry: nobody may

  KeyEntry& entry = front_.keys[index];
  const KeyKind kind = place ? KeyKind::kMapped : KeyKind::kPulled;
  // Relaxed: the permit publishes them.
  entry.block.store(own.block, std::memory_order_relaxed);
  entry.offset.store(place ? place->offset : 0, std::memory_order_relaxed);
  entry.block_bytes.store(place ? place->block_bytes : 0, std::memory_order_relaxed);
  entry.size_bytes.store(own.size_bytes, std::memory_order_relaxed);
  entry.kind.store(static_cast<uint32_t>(kind), std::memory_order_relaxed);
  entry.permit.store(own.generation, std::memory_order_release);  // pairs with Neighbour::view()
  return WireKey{index, own.generation};
}

void Keys::revoke(WireKey key) noexcept {
  const std::lock_guard lock(mutex_);
  if (key.index >= keys_.size() || keys_[key.index].generation != key.generation) return;
  Own& own = keys_[key.index];
  own.live = false;
  // What makes writers see it in time is the fence behind it.
  if (own.remote_write) front_.keys[key.index].permit.store(0, std::memory_order_release);
}

uint64_t Keys::release(WireKey key) noexcept {
  const std::lock_guard lock(mutex_);
  if (key.index >= keys_.size() || keys_[key.index].generation != key.generation) return 0;
  const uint64_t block = keys_[key.index].block;
  keys_[key.index].block = 0;
  free_.push_back(key.index);
  const auto shown = blocks_.find(block);
  if (shown == blocks_.end() || --shown->second.keys != 0) return 0;
  blocks_.erase(shown);
  return block;
}

std::byte* Keys::place(WireKey key, uint64_t offset, uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  if (key.index >= keys_.size()) return nullptr;
  const Own& own = keys_[key.index];
  const bool allowed = own.live && own.remote_write && own.generation == key.generation;
  if (!allowed || offset > own.size_bytes || bytes > own.size_bytes - offset) return nullptr;
  return own.address + offset;
}

SharedPages::Location Keys::block(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto shown = blocks_.find(number);
  return shown == blocks_.end() ? SharedPages::Location{} : shown->second.place;
}

}  // namespace fabric::shm

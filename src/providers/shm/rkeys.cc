#include "providers/shm/rkeys.h"

#include <new>

namespace fabric::shm {

Result<WireRkey> RkeyTable::add(const Memory& memory) {
  const auto location = SharedPages::find(memory.address, memory.size_bytes);
  const std::lock_guard lock(mutex_);
  try {
    if (free_.empty()) {
      if (rkeys_.size() == SharedHeader::kRkeys) return fail(Errc::kExhausted, "shm rkeys");
      free_.reserve(rkeys_.size() + 1);  // release() cannot fail
      rkeys_.emplace_back();
      free_.push_back(static_cast<uint32_t>(rkeys_.size() - 1));
    }
    if (location) {
      BlockUse& shared = blocks_[location->block];
      shared.location = *location;
      ++shared.rkeys;
    }
  } catch (const std::bad_alloc&) {
    return fail(Errc::kExhausted, "shm rkeys");
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  Registration& registration = rkeys_[index];
  // Zero is nobody's, and an odd one is good: after revoke() the word is even.
  registration.generation = (registration.generation + 1) | 1;
  registration.address = static_cast<std::byte*>(memory.address);
  registration.size_bytes = memory.size_bytes;
  registration.block = location ? location->block : 0;
  registration.remote_write = memory.remote_write;
  registration.live = true;
  if (!memory.remote_write) return WireRkey{index, registration.generation};  // and no entry: nobody may

  RkeyEntry& entry = header_.rkeys[index];
  const RkeyKind kind = location ? RkeyKind::kMapped : RkeyKind::kPulled;
  // Relaxed: the validity_epoch publishes them.
  entry.block.store(registration.block, std::memory_order_relaxed);
  entry.offset.store(location ? location->offset : 0, std::memory_order_relaxed);
  entry.block_bytes.store(location ? location->block_bytes : 0, std::memory_order_relaxed);
  entry.size_bytes.store(registration.size_bytes, std::memory_order_relaxed);
  entry.kind.store(static_cast<uint32_t>(kind), std::memory_order_relaxed);
  entry.validity_epoch.store(registration.generation, std::memory_order_release);  // pairs with ShmPeer::rkey_view()
  return WireRkey{index, registration.generation};
}

void RkeyTable::revoke(WireRkey rkey) noexcept {
  const std::lock_guard lock(mutex_);
  if (rkey.index >= rkeys_.size() || rkeys_[rkey.index].generation != rkey.generation) return;
  Registration& registration = rkeys_[rkey.index];
  registration.live = false;
  // What makes writers see it in time is the fence behind it.
  if (registration.remote_write) header_.rkeys[rkey.index].validity_epoch.store(0, std::memory_order_release);
}

uint64_t RkeyTable::release(WireRkey rkey) noexcept {
  const std::lock_guard lock(mutex_);
  if (rkey.index >= rkeys_.size() || rkeys_[rkey.index].generation != rkey.generation) return 0;
  const uint64_t block = rkeys_[rkey.index].block;
  rkeys_[rkey.index].block = 0;
  free_.push_back(rkey.index);
  const auto shared = blocks_.find(block);
  if (shared == blocks_.end() || --shared->second.rkeys != 0) return 0;
  blocks_.erase(shared);
  return block;
}

std::byte* RkeyTable::resolve(WireRkey rkey, uint64_t offset, uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  if (rkey.index >= rkeys_.size()) return nullptr;
  const Registration& registration = rkeys_[rkey.index];
  const bool allowed = registration.live && registration.remote_write && registration.generation == rkey.generation;
  if (!allowed || offset > registration.size_bytes || bytes > registration.size_bytes - offset) return nullptr;
  return registration.address + offset;
}

SharedPages::Location RkeyTable::block(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto shared = blocks_.find(number);
  return shared == blocks_.end() ? SharedPages::Location{} : shared->second.location;
}

}  // namespace fabric::shm

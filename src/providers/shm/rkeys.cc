#include "providers/shm/rkeys.h"

#include <new>

namespace fabric::shm {

Result<WireRkey> RkeyTable::add(const Memory& memory) {
  const auto location = SharedPages::find(memory.address, memory.size_bytes);
  const std::lock_guard lock(mutex_);
  try {
    if (free_.empty()) {
      if (rkeys_.size() == SharedHeader::kRkeys) return fail(Errc::kExhausted, "shm rkeys");
      free_.reserve(rkeys_.size() + 1);  // so that release() cannot fail
      rkeys_.emplace_back();
      free_.push_back(static_cast<uint32_t>(rkeys_.size() - 1));
    }
    if (location) {
      BlockUse& block_use = blocks_[location->block];
      block_use.location = *location;
      ++block_use.rkeys;
    }
  } catch (const std::bad_alloc&) {
    return fail(Errc::kExhausted, "shm rkeys");
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  RkeyRecord& record = rkeys_[index];
  // The |1 only keeps it nonzero: the epoch 0 that revoke() stores matches no rkey.
  record.generation = (record.generation + 1) | 1;
  record.address = static_cast<std::byte*>(memory.address);
  record.size_bytes = memory.size_bytes;
  record.block = location ? location->block : 0;
  record.remote_write = memory.remote_write;
  record.live = true;
  if (!memory.remote_write) return WireRkey{index, record.generation};  // not published

  RkeyEntry& entry = header_.rkeys[index];
  const RkeyKind kind = location ? RkeyKind::kMapped : RkeyKind::kPulled;
  // Relaxed: the store of the epoch publishes them.
  entry.block.store(record.block, std::memory_order_relaxed);
  entry.offset.store(location ? location->offset : 0, std::memory_order_relaxed);
  entry.block_bytes.store(location ? location->block_bytes : 0, std::memory_order_relaxed);
  entry.size_bytes.store(record.size_bytes, std::memory_order_relaxed);
  entry.kind.store(static_cast<uint32_t>(kind), std::memory_order_relaxed);
  entry.validity_epoch.store(record.generation,
                             std::memory_order_release);  // pairs with ShmPeer::rkey_view()
  return WireRkey{index, record.generation};
}

void RkeyTable::revoke(WireRkey rkey) noexcept {
  const std::lock_guard lock(mutex_);
  if (rkey.index >= rkeys_.size() || rkeys_[rkey.index].generation != rkey.generation) return;
  RkeyRecord& record = rkeys_[rkey.index];
  record.live = false;
  // The heavy_barrier() that follows makes it visible to all writers.
  if (record.remote_write)
    header_.rkeys[rkey.index].validity_epoch.store(0, std::memory_order_release);
}

uint64_t RkeyTable::release(WireRkey rkey) noexcept {
  const std::lock_guard lock(mutex_);
  if (rkey.index >= rkeys_.size() || rkeys_[rkey.index].generation != rkey.generation) return 0;
  const uint64_t block = rkeys_[rkey.index].block;
  rkeys_[rkey.index].block = 0;
  free_.push_back(rkey.index);
  const auto block_use = blocks_.find(block);
  if (block_use == blocks_.end() || --block_use->second.rkeys != 0) return 0;
  blocks_.erase(block_use);
  return block;
}

std::byte* RkeyTable::resolve(WireRkey rkey, uint64_t offset, uint64_t bytes) noexcept {
  const std::lock_guard lock(mutex_);
  if (rkey.index >= rkeys_.size()) return nullptr;
  const RkeyRecord& record = rkeys_[rkey.index];
  const bool allowed = record.live && record.remote_write && record.generation == rkey.generation;
  if (!allowed || offset > record.size_bytes || bytes > record.size_bytes - offset) return nullptr;
  return record.address + offset;
}

SharedPages::Location RkeyTable::block(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto block_use = blocks_.find(number);
  return block_use == blocks_.end() ? SharedPages::Location{} : block_use->second.location;
}

}  // namespace fabric::shm

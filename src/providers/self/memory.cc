#include "base/bytes.h"
#include "base/check.h"
#include "providers/self/handles.h"

namespace fabric::self {

namespace {

constexpr uint32_t slot_of(uint64_t key) noexcept { return static_cast<uint32_t>(key); }
constexpr uint32_t generation_of(uint64_t key) noexcept { return static_cast<uint32_t>(key >> 32); }
constexpr uint64_t make_key(uint32_t slot, uint32_t generation) noexcept {
  return uint64_t{generation} << 32 | slot;
}

bool holds(uint64_t size_bytes, uint64_t offset, uint64_t length) noexcept {
  return offset <= size_bytes && length <= size_bytes - offset;
}

// Reserves twice the size, so that adding regions one by one does not copy the list each time.
void make_room(std::vector<uint32_t>& list, size_t size) {
  if (list.capacity() < size) list.reserve(2 * size);
}

}  // namespace

Result<uint64_t> RegionTable::add(const Memory& memory) {
  if (memory.address == nullptr) return fail(Errc::kInvalidArgument, "memory.address");
  if (memory.size_bytes == 0) return fail(Errc::kInvalidArgument, "memory.size_bytes");
  if (memory.kind != MemoryKind::kHost) return fail(Errc::kUnsupported, "memory.kind");
  const std::lock_guard lock(mutex_);
  if (free_.empty()) {
    regions_.emplace_back();
    // Every existing region may be removed before the next one is added.
    make_room(free_, regions_.size());
    free_.push_back(static_cast<uint32_t>(regions_.size() - 1));
  }
  make_room(fenced_, fenced_.size() + regions_.size());
  const uint32_t slot = free_.back();
  free_.pop_back();
  Region& region = regions_[slot];
  region.address = static_cast<std::byte*>(memory.address);
  region.size_bytes = memory.size_bytes;
  region.remote_write = memory.remote_write;
  region.live = true;
  return make_key(slot, region.generation);
}

bool RegionTable::remove(uint64_t key, uint32_t cookie) noexcept {
  const std::lock_guard lock(mutex_);
  Region* const region = find(key);
  FABRIC_CHECK(region != nullptr && region->live, "deregistered twice, or never registered");
  region->live = false;
  region->cookie = cookie;
  if (region->pins != 0) return false;
  retire(*region);
  return true;
}

RegionTable::Region* RegionTable::find(uint64_t key) noexcept {
  if (slot_of(key) >= regions_.size()) return nullptr;
  Region& region = regions_[slot_of(key)];
  return region.generation == generation_of(key) ? &region : nullptr;
}

/// No copy can access the region any more: the next user of the slot gets another rkey.
void RegionTable::retire(Region& region) noexcept {
  if (++region.generation == 0) region.generation = 1;
  free_.push_back(static_cast<uint32_t>(&region - regions_.data()));
  fenced_.push_back(region.cookie);
  // Pairs with the acquire in has_fenced().
  fenced_count_.store(static_cast<uint32_t>(fenced_.size()), std::memory_order_release);
}

RegionTable::Pinned RegionTable::pin(const WriteOp& op) noexcept {
  const std::lock_guard lock(mutex_);
  Region* const source = find(op.lkey);
  const uint64_t from =
      source == nullptr ? 0 : op.source - reinterpret_cast<uint64_t>(source->address);
  if (source == nullptr || !source->live || !holds(source->size_bytes, from, op.size_bytes)) {
    return {.access = Access::kSource};
  }
  Region* const target = find(op.rkey);
  if (target == nullptr || !target->live || !target->remote_write ||
      !holds(target->size_bytes, op.target, op.size_bytes)) {
    return {.access = Access::kTarget};
  }
  ++source->pins;
  ++target->pins;  // may be the same region: then it has two pins
  return {.access = Access::kOk, .target = target->address + op.target};
}

void RegionTable::unpin(const WriteOp& op) noexcept {
  const std::lock_guard lock(mutex_);
  unpin_region(op.lkey);
  unpin_region(op.rkey);
}

void RegionTable::unpin_region(uint64_t key) noexcept {
  Region* const region = find(key);  // a pin keeps the generation
  FABRIC_DCHECK(region != nullptr && region->pins != 0);
  if (--region->pins == 0 && !region->live) retire(*region);
}

bool RegionTable::take_fenced(uint32_t& cookie) noexcept {
  if (!has_fenced()) return false;
  const std::lock_guard lock(mutex_);
  cookie = fenced_.front();
  fenced_.erase(fenced_.begin());
  // As in retire().
  fenced_count_.store(static_cast<uint32_t>(fenced_.size()), std::memory_order_release);
  return true;
}

Result<uint64_t> SelfRail::register_memory(const Memory& memory,
                                           std::vector<std::byte>& wire_rkey) {
  const Result<uint64_t> key = regions_.add(memory);
  if (!key) return key;
  ByteWriter writer;
  writer.u64(engine_id_);
  writer.u64(*key);
  static_assert(2 * sizeof(uint64_t) <= kWireRkeyBytesMax);
  wire_rkey = writer.take();
  return key;
}

void SelfRail::deregister_memory(uint64_t lkey, uint32_t cookie) noexcept {
  // If a copy is running no wake is needed: the worker that copies is awake.
  if (regions_.remove(lkey, cookie) && wake_) wake_();
}

Result<uint64_t> SelfRail::import_rkey(std::span<const std::byte> wire_rkey) {
  ByteReader reader(wire_rkey);
  reader.require(reader.u64() == engine_id_);
  const uint64_t key = reader.u64();
  reader.require(reader.remaining() == 0);
  if (!reader.ok()) return fail(Errc::kBadFormat, "self wire rkey");
  return key;
}

}  // namespace fabric::self

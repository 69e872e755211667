#include "base/bytes.h"
#include "providers/sim/world.h"

// A memory key (lkey and rkey are the same) has 64 bits: the region's number in the low 24, a
// random cookie above. A region that reuses a number gets a new cookie, so an old rkey never
// matches it.

namespace fabric::sim {
namespace {

constexpr uint32_t kNumberBits = 24;
constexpr uint64_t kNumberMask = (1u << kNumberBits) - 1;

}  // namespace

Result<uint64_t> Wire::register_memory(RailState& rail, const PathRef& at, const Memory& memory,
                                       std::vector<std::byte>& wire_rkey) {
  if (memory.address == nullptr || memory.size_bytes == 0) {
    return fail(Errc::kInvalidArgument, "memory");
  }
  if ((rail.caps.memory_kinds & kind_bit(memory.kind)) == 0) {
    return fail(Errc::kUnsupported, "memory.kind");
  }
  if (rail.free_regions.empty()) {
    if (rail.regions.size() >= kNumberMask) return fail(Errc::kExhausted, "sim: regions");
    rail.free_regions.push_back(static_cast<uint32_t>(rail.regions.size()));
    rail.regions.emplace_back();
  }
  const uint32_t index = rail.free_regions.back();
  rail.free_regions.pop_back();
  Region& region = rail.regions[index];
  region.key = (key_rng_.next() << kNumberBits) | (index + 1);
  region.address = static_cast<std::byte*>(memory.address);
  region.size_bytes = memory.size_bytes;
  region.remote_write = memory.remote_write;

  ByteWriter writer(Rail::kWireRkeyBytesMax);
  writer.u32(at.attachment);
  writer.u32(at.rail);
  writer.u64(region.key);
  wire_rkey = writer.take();
  return region.key;
}

void Wire::deregister_memory(RailState& rail, const PathRef& at, uint64_t key, uint32_t cookie) {
  const uint64_t index = (key & kNumberMask) - 1;
  if (index < rail.regions.size() && rail.regions[index].key == key) {
    store_late(rail, rail.regions[index]);
    rail.regions[index] = Region{};
    rail.free_regions.push_back(static_cast<uint32_t>(index));
  }
  // Landing is one atomic event, so no write is in progress: the fence is proved, and only its
  // report takes time.
  const int64_t late_ns = nodes_[rail.nic->node].faults.late_proof_ns;
  schedule(now_ns_ + kTeardownNs + late_ns, SimEventKind::kFenced, cookie, at);
}

void Wire::fenced(const SimEvent& event) {
  RailEvent fenced;
  fenced.kind = RailEvent::Kind::kFenced;
  fenced.cookie = event.subject;
  report(event.at, fenced);
}

const Region* Wire::find_region(const RailState& rail, uint64_t key) noexcept {
  const uint64_t index = (key & kNumberMask) - 1;
  if (index >= rail.regions.size() || rail.regions[index].key != key) return nullptr;
  return &rail.regions[index];
}

/// The sender's NIC checks when it reads: the source may have been deregistered after the post.
bool Wire::source_allowed(const Flight& flight) noexcept {
  const WriteOp& op = flight.op;
  if (op.size_bytes == 0) return true;
  const RailState* rail = find_rail(flight.from);
  const Region* region = rail == nullptr ? nullptr : find_region(*rail, op.lkey);
  if (region == nullptr) return false;
  const uint64_t start = reinterpret_cast<uintptr_t>(region->address);
  return op.source >= start && op.size_bytes <= region->size_bytes &&
         op.source - start <= region->size_bytes - op.size_bytes;
}

/// A bare immediate accesses no memory and needs no rkey, as on RC.
bool Wire::target_allowed(const RailState& rail, const Flight& flight) noexcept {
  const WriteOp& op = flight.op;
  if (op.size_bytes == 0) return true;
  const Region* region = find_region(rail, op.rkey);
  return region != nullptr && region->remote_write && op.size_bytes <= region->size_bytes &&
         op.target <= region->size_bytes - op.size_bytes;
}

}  // namespace fabric::sim

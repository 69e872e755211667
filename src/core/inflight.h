#pragma once

#include "core/core.h"
#include "core/transfer.h"

// The in-flight counts, for writes that have a record of their own; fast_path.cc updates the same
// counts for post batches. Hot.

namespace fabric::core {

inline uint32_t Transfers::take_inflight() {
  if (free_inflight_head_ == kNone) {
    inflight_.emplace_back();
    return static_cast<uint32_t>(inflight_.size() - 1);
  }
  const uint32_t index = free_inflight_head_;
  free_inflight_head_ = inflight_[index].next;
  --free_inflight_count_;
  return index;
}

inline void Transfers::give_back_inflight(uint32_t cookie) {
  InflightWrite& write = inflight_[cookie];
  write.op = kNone;
  write.in_doubt = false;
  write.next = free_inflight_head_;
  free_inflight_head_ = cookie;
  ++free_inflight_count_;
}

/// Fair share: a path may not have more writes in flight than the rail has free slots. Stalled
/// peers therefore cannot exhaust the rail, and a single active peer can still use half of it
/// (contracts.md P18).
inline bool Transfers::room_for(const RailSlot& rail, const Path& path) noexcept {
  const uint32_t left = rail.caps.queue_depth - std::min(rail.caps.queue_depth, rail.inflight);
  return path.inflight < rail.caps.path_depth && (path.inflight == 0 || path.inflight < left);
}

/// How many writes room_for() would admit, one after the other.
inline uint32_t Transfers::room_on(const RailSlot& rail, const Path& path) noexcept {
  if (rail.inflight >= rail.caps.queue_depth || !room_for(rail, path)) return 0;
  const uint32_t left = rail.caps.queue_depth - rail.inflight;
  const uint32_t share = path.inflight < left ? (left - path.inflight + 1) / 2 : 1;
  return std::min({left, rail.caps.path_depth - path.inflight, share});
}

/// Adds a write to the in-flight counts of its operation, path, rail and source region.
inline void Transfers::open_inflight(uint32_t cookie, Op& op, Peer& peer, Path& path,
                                     RailSlot& rail, LocalRegion* region) {
  InflightWrite& write = inflight_[cookie];
  write.op = op.slot;
  write.path = path.index;
  write.peer = path.peer;
  write.region_slot = region == nullptr ? kNone : op.source.slot;
  write.seq = peer.next_write_seq++;
  write.posted_ns = core_.now_ns;
  write.priority = op.priority;
  write.imms_before = UINT64_MAX;
  write.status = {};
  write.replay_error = Errc::kOk;
  write.prev = path.last_inflight;
  write.next = kNone;
  (path.last_inflight == kNone ? path.first_inflight : inflight_[path.last_inflight].next) = cookie;
  path.last_inflight = cookie;
  ++path.inflight;
  ++rail.inflight;
  ++op.inflight;
  if (op.priority == Priority::kBulk) rail.bulk_bytes += write.wr.size_bytes;
  if (region != nullptr) ++region->inflight;
  const size_t bucket = bucket_of(core_.now_ns - op.submitted_ns);
  ++rail.tx.submit_to_post.bucket[bucket];
  ++peer.tx().submit_to_post.bucket[bucket];
}

/// Takes a write out of the in-flight counts of its path, rail and source region. The operation
/// keeps it until complete_inflight(): a write in doubt may still be replayed.
inline void Transfers::close_inflight(const InflightWrite& write, Path& path, RailSlot& rail) {
  (write.prev == kNone ? path.first_inflight : inflight_[write.prev].next) = write.next;
  (write.next == kNone ? path.last_inflight : inflight_[write.next].prev) = write.prev;
  --path.inflight;
  --rail.inflight;
  if (write.priority == Priority::kBulk) rail.bulk_bytes -= write.wr.size_bytes;
  if (LocalRegion* region = core_.regions.at(write.region_slot); region != nullptr) {
    --region->inflight;
    if (region->phase != LocalRegion::Phase::kLive) core_.regions.source_drained(write.region_slot);
  }
}

}  // namespace fabric::core

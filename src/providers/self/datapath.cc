#include <algorithm>
#include <cstring>

#include "providers/self/handles.h"

namespace fabric::self {

SelfRail::SelfRail(const OpenContext& context)
    : caps_{.ordered = true,
            .slice_safe = true,
            .cpu_copy = true,
            .exact_replay = false,  // a refused write does not break its path
            .count_is_final = true,
            .checks_access = true,
            .fence = FenceKind::kLocal,
            .queue_depth = kQueueDepth,
            .path_depth = kQueueDepth,
            .memory_kinds = kind_bit(MemoryKind::kHost),
            .write_bytes_max = uint64_t{1} << 62},
      engine_id_(context.engine_id),
      wake_(context.wake) {}

uint32_t SelfRail::post(std::span<const WriteOp> ops) noexcept {
  const auto room = std::min<size_t>(ops.size(), kQueueDepth - count_);
  for (const WriteOp& op : ops.first(room)) {
    queue_[(head_ + count_++) % kQueueDepth] = {.op = op};
    if (Path* const path = find(op.path); path != nullptr) ++path->queued;
  }
  return static_cast<uint32_t>(room);
}

uint32_t SelfRail::poll(std::span<RailEvent> out) noexcept {
  uint32_t n = poll_fences(out);
  n += poll_writes(out.subspan(n));
  // After the writes: a path is down when its last write has completed.
  n += poll_paths(out.subspan(n));
  return n;
}

uint32_t SelfRail::poll_fences(std::span<RailEvent> out) noexcept {
  uint32_t n = 0;
  for (uint32_t cookie = 0; n < out.size() && regions_.take_fenced(cookie);) {
    out[n++] = {.kind = RailEvent::Kind::kFenced, .cookie = cookie};
  }
  return n;
}

uint32_t SelfRail::poll_writes(std::span<RailEvent> out) noexcept {
  uint64_t budget = kPollBytes;
  uint32_t n = 0;
  while (n < out.size() && count_ != 0) {
    QueuedWrite& write = queue_[head_];
    const WriteOp& op = write.op;
    Path* const path = find(op.path);
    CopyResult result;
    if (!write.counted) {
      if (path == nullptr || path->closing || !path->started) {
        result = {Errc::kRailLost, Remote::kNotDelivered};
      } else {
        result = copy(write, budget);
        if (result.code == Errc::kOk && write.copied_bytes < op.size_bytes) break;
      }
      if (result.code == Errc::kOk && op.has_imm != 0) {
        out[n++] = {.kind = RailEvent::Kind::kImm, .imm = op.imm, .path = op.path};
        ++path->counted;
        write.counted = true;
        continue;  // the completion is a second event
      }
    }
    out[n++] = {.kind = RailEvent::Kind::kCompletion,
                .code = result.code,
                .remote = result.remote,
                .cookie = op.cookie,
                .path = op.path};
    if (path != nullptr) --path->queued;
    head_ = (head_ + 1) % kQueueDepth;
    --count_;
  }
  return n;
}

SelfRail::CopyResult SelfRail::copy(QueuedWrite& write, uint64_t& budget) noexcept {
  const WriteOp& op = write.op;
  const uint64_t chunk = std::min(op.size_bytes - write.copied_bytes, budget);
  if (chunk == 0) return {};  // a bare immediate, or the budget is spent
  const RegionTable::Pinned pinned = regions_.pin(op);
  switch (pinned.access) {
    case RegionTable::Access::kOk:
      break;
    case RegionTable::Access::kSource:
      return {Errc::kNotFound, Remote::kNotDelivered};
    case RegionTable::Access::kTarget:
      return {Errc::kRemoteAccess, Remote::kNotDelivered};
  }
  const auto target = reinterpret_cast<uint64_t>(pinned.target);
  // A target that begins inside the source would overwrite bytes that are still to be read, so it
  // is copied from the end. Either way the chunks together act as one memmove().
  const bool backwards = target > op.source && target - op.source < op.size_bytes;
  const uint64_t offset =
      backwards ? op.size_bytes - write.copied_bytes - chunk : write.copied_bytes;
  std::memmove(pinned.target + offset, reinterpret_cast<const std::byte*>(op.source) + offset,
               chunk);
  regions_.unpin(op);
  write.copied_bytes += chunk;
  budget -= chunk;
  return {};
}

bool SelfRail::has_work() const noexcept {
  return count_ != 0 || closing_ != 0 || regions_.has_fenced();
}

}  // namespace fabric::self

#include <algorithm>

#include "providers/shm/handles.h"

// Registration, rkeys, and the proof that completes a fence.

namespace fabric::shm {

Result<uint64_t> ShmRail::register_memory(const Memory& memory, std::vector<std::byte>& wire_rkey) {
  if (memory.kind != MemoryKind::kHost) return fail(Errc::kUnsupported, "memory.kind");
  auto rkey = network_.rkeys().add(memory);
  if (!rkey) return rkey.error();
  wire_rkey = encode(*rkey);
  return uint64_t{rkey->generation} << 32 | rkey->index;
}

void ShmRail::deregister_memory(uint64_t lkey, uint32_t cookie) noexcept {
  const WireRkey rkey{static_cast<uint32_t>(lkey), static_cast<uint32_t>(lkey >> 32)};
  network_.rkeys().revoke(rkey);
  {
    const std::lock_guard lock(revoked_mutex_);
    revoked_.push_back({rkey, cookie});
    revoked_count_.store(static_cast<uint32_t>(revoked_.size()), std::memory_order_release);
  }
  network_.wake();
}

Result<uint64_t> ShmRail::import_rkey(std::span<const std::byte> wire_rkey) {
  auto rkey = decode_rkey(wire_rkey);
  if (!rkey) return rkey.error();
  return uint64_t{rkey->generation} << 32 | rkey->index;
}

/// Starts a fence for each rkey that was revoked since the last call.
void ShmRail::begin_fences() noexcept {
  const auto possible_writers = network_.possible_writers();
  std::vector<RevokedRkey> revoked;
  {
    const std::lock_guard lock(revoked_mutex_);
    revoked.swap(revoked_);
    revoked_count_.store(0, std::memory_order_relaxed);
  }
  // One for all rkeys and peers. If it is refused, the rkeys stay in quarantine and it is retried.
  if (!possible_writers.empty() && !heavy_barrier()) {
    const std::lock_guard lock(revoked_mutex_);
    revoked_.insert(revoked_.begin(), revoked.begin(), revoked.end());
    revoked_count_.store(static_cast<uint32_t>(revoked_.size()), std::memory_order_relaxed);
    return;
  }
  for (const RevokedRkey& one : revoked) {
    RkeyFence fence{.rkey = one.rkey, .cookie = one.cookie};
    for (const auto& peer : possible_writers) {
      fence.writers.push_back({peer, peer->writer_slots(), Proof(*peer->writer_slots())});
    }
    fences_.push_back(std::move(fence));
  }
}

uint32_t ShmRail::poll_fences(std::span<RailEvent> out) noexcept {
  // Acquire as in poll().
  if (revoked_count_.load(std::memory_order_acquire) != 0) begin_fences();
  if (fences_.empty()) return 0;
  uint32_t n = 0;
  std::erase_if(fences_, [&](RkeyFence& fence) {
    if (n == out.size()) return false;
    std::erase_if(fence.writers, [&](RkeyFence::Writer& writer) {
      if (!writer.proof.proved(*writer.writer_slots, fresh_scan_)) {
        return fresh_scan_ && writer.peer->exited();
      }
      ++proved_by_[static_cast<size_t>(writer.proof.by())];
      return true;
    });
    if (!fence.writers.empty()) return false;
    if (const uint64_t block = network_.rkeys().release(fence.rkey); block != 0) {
      network_.announce_block_released(block);
    }
    out[n++] = {.kind = RailEvent::Kind::kFenced, .cookie = fence.cookie};
    return true;
  });
  return n;
}

}  // namespace fabric::shm

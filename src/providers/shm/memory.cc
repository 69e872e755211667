#include <algorithm>

#include "providers/shm/handles.h"

// Registration, keys, and the proof behind a fence.

namespace fabric::shm {

Result<uint64_t> ShmRail::register_memory(const Memory& memory, std::vector<std::byte>& wire_key) {
  if (memory.kind != MemoryKind::kHost) return fail(Errc::kUnsupported, "memory.kind");
  auto key = network_.keys().add(memory);
  if (!key) return key.error();
  wire_key = encode(*key);
  return uint64_t{key->generation} << 32 | key->index;
}

void ShmRail::deregister_memory(uint64_t local_key, uint32_t cookie) noexcept {
  const WireKey key{static_cast<uint32_t>(local_key), static_cast<uint32_t>(local_key >> 32)};
  network_.keys().revoke(key);
  {
    const std::lock_guard lock(revoked_mutex_);
    revoked_.push_back({key, cookie});
    revoked_count_.store(static_cast<uint32_t>(revoked_.size()), std::memory_order_release);
  }
  network_.wake();
}

Result<uint64_t> ShmRail::import_key(std::span<const std::byte> wire_key) {
  auto key = decode_key(wire_key);
  if (!key) return key.error();
  return uint64_t{key->generation} << 32 | key->index;
}

/// Who may be storing under a key that was just taken back.
void ShmRail::begin_fences() noexcept {
  const auto everybody = network_.everybody();
  std::vector<Revoked> revoked;
  {
    const std::lock_guard lock(revoked_mutex_);
    revoked.swap(revoked_);
    revoked_count_.store(0, std::memory_order_relaxed);
  }
  // One for all keys and all neighbours. Refused: they wait in quarantine for a better day.
  if (!everybody.empty() && !heavy_fence()) {
    const std::lock_guard lock(revoked_mutex_);
    revoked_.insert(revoked_.begin(), revoked.begin(), revoked.end());
    revoked_count_.store(static_cast<uint32_t>(revoked_.size()), std::memory_order_relaxed);
    return;
  }
  for (const Revoked& one : revoked) {
    Fence fence{.key = one.key, .cookie = one.cookie};
    for (const auto& neighbour : everybody) {
      fence.inside.push_back({neighbour, neighbour->cards(), Proof(*neighbour->cards())});
    }
    fences_.push_back(std::move(fence));
  }
}

uint32_t ShmRail::poll_fences(std::span<WireEvent> out) noexcept {
  // Acquire as in poll().
  if (revoked_count_.load(std::memory_order_acquire) != 0) begin_fences();
  if (fences_.empty()) return 0;
  uint32_t n = 0;
  std::erase_if(fences_, [&](Fence& fence) {
    if (n == out.size()) return false;
    std::erase_if(fence.inside, [&](Fence::Writer& writer) {
      if (!writer.proof.proved(*writer.cards, fresh_look_)) {
        return fresh_look_ && writer.neighbour->ended();
      }
      ++proved_by_[static_cast<size_t>(writer.proof.by())];
      return true;
    });
    if (!fence.inside.empty()) return false;
    if (const uint64_t block = network_.keys().release(fence.key); block != 0) {
      network_.block_unused(block);
    }
    out[n++] = {.kind = WireEvent::Kind::kFenced, .cookie = fence.cookie};
    return true;
  });
  return n;
}

}  // namespace fabric::shm

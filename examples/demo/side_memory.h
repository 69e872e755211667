#pragma once

#include <deque>
#include <utility>
#include <vector>

#include <fabric/fabric.h>

#include "paged_cache.h"
#include "roles.h"

namespace demo {

/// The caches of all ranks of a side in memory of the engine, and slots for the tails of requests.
///
/// Lifetime: the engine outlives it.
class SideMemory {
 public:
  static constexpr uint64_t kTailBytes = 64;
  static constexpr uint32_t kTailSlots = 256;

  SideMemory(fabric::Engine& engine, const transformer::ModelOptions& model,
             const transformer::CacheOptions& options)
      : cache_(model, options, allocate_ranks(engine, model, options)),
        tails_(need(engine.allocate({.size_bytes = kTailSlots * kTailBytes}), "allocate")) {
    for (uint32_t slot = 0; slot < kTailSlots; ++slot) free_slots_.push_back(slot);
  }

  transformer::ShardedCache& cache() { return cache_; }
  const std::vector<fabric::MemoryRegion>& regions() const { return regions_; }
  const fabric::MemoryRegion& tails() const { return tails_; }

  /// There are more slots than requests may be open.
  uint32_t take_slot() {
    const uint32_t slot = free_slots_.front();
    free_slots_.pop_front();
    return slot;
  }
  void give_back_slot(uint32_t slot) { free_slots_.push_back(slot); }
  std::span<std::byte> tail(uint32_t slot) {
    return tails_.bytes().subspan(slot * kTailBytes, kTailBytes);
  }

 private:
  std::vector<transformer::PagedCache> allocate_ranks(fabric::Engine& engine,
                                                      const transformer::ModelOptions& model,
                                                      const transformer::CacheOptions& options) {
    std::vector<transformer::PagedCache> ranks;
    for (uint32_t rank = 0; rank < options.tp_size; ++rank) {
      auto layout = need(transformer::cache_layout(model, options, rank, 0), "cache_layout");
      const uint64_t bytes = layout.region_bytes[0];
      regions_.push_back(need(engine.allocate({.size_bytes = bytes}), "allocate"));
      ranks.emplace_back(std::move(layout), regions_.back().bytes());
    }
    return ranks;
  }

  std::vector<fabric::MemoryRegion> regions_{};  ///< before cache_, which points into it
  transformer::ShardedCache cache_;
  fabric::MemoryRegion tails_;
  std::deque<uint32_t> free_slots_{};
};

/// The prefill side of the deployment, for both sides of the plan.
inline fabric::kv::Side prefill_side(const transformer::ModelOptions& model,
                                     const transformer::CacheOptions& options) {
  fabric::kv::Side side;
  for (uint32_t rank = 0; rank < options.tp_size; ++rank) {
    side.ranks.push_back(need(transformer::cache_layout(model, options, rank, 0), "cache_layout"));
  }
  return side;
}

}  // namespace demo

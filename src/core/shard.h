#pragma once

#include <array>
#include <cstdint>

#include <fabric/caps.h>
#include <fabric/config.h>
#include <fabric/types.h>

// How one write is striped over the rails of its network (contracts.md P8, P17).

namespace fabric::core {

inline constexpr uint64_t kStripeBytesMost = 1ull << 40;  ///< largest stripe_bytes_min

/// What applies to a network: its own setting, else the engine's, else the default for its kind.
uint64_t stripe_bytes_min(const Config& config, const Network& network, const Caps& caps) noexcept;

/// Shard i is [begin[i], begin[i + 1]).
struct Cut {
  uint32_t count = 1;
  std::array<uint64_t, kRailsMax + 1> begin{};
};

struct CutRule {
  uint32_t shards_max = 1;  ///< 1..kRailsMax
  /// A write gets at most size / this shards; the last may be smaller.
  uint64_t stripe_bytes_min = 1;
  uint64_t align = 1;  ///< a power of two; every cut falls on a multiple
};

/// Every byte is in exactly one shard, no shard is empty (except the only one of an empty write),
/// and the last shard gets the tail.
Cut cut_write(uint64_t size_bytes, const CutRule& rule) noexcept;

/// Into how many slices a shard is cut; an empty one is one work request as well.
inline uint32_t slice_count(uint64_t size_bytes, uint64_t slice_bytes) noexcept {
  return size_bytes == 0 ? 1 : static_cast<uint32_t>((size_bytes - 1) / slice_bytes + 1);
}

}  // namespace fabric::core

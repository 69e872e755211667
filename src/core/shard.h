#pragma once

#include <array>
#include <cstdint>

#include <fabric/types.h>

// How one write is cut over the rails of its network (P8, P17).

namespace fabric::core {

/// Shard i is [begin[i], begin[i + 1]).
struct Cut {
  uint32_t count = 1;
  std::array<uint64_t, kRailsMax + 1> begin{};
};

struct CutRule {
  uint32_t rails = 1;             ///< 1..kRailsMax
  uint64_t stripe_bytes_min = 1;  ///< no shard is made for less than this
  uint64_t align = 1;             ///< a power of two; every cut falls on a multiple
};

/// Every byte is in exactly one shard, no shard is empty (but for an empty write, which is one),
/// and the tail goes to the last.
Cut cut_write(uint64_t size_bytes, const CutRule& rule) noexcept;

}  // namespace fabric::core

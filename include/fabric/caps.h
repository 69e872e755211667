#pragma once

#include <cstdint>

#include <fabric/memory.h>
#include <fabric/peer.h>

namespace fabric {

/// What one rail can do. Data, not virtual functions, so that a test can read it and skip.
struct Caps {
  bool ordered = false;       ///< writes on one path land in posting order
  bool slice_safe = false;    ///< an immediate also covers the writes without one that were posted
                              ///< before it on the same path
  bool cpu_copy = false;      ///< the provider copies the bytes itself, within a budget per poll
  bool exact_replay = false;  ///< a write that fails breaks its path: nothing posted after it
                              ///< lands, and the target can report how many immediates it took
                              ///< from the path (contracts.md P10)
  bool count_is_final = false;  ///< bytes of a counted write never land again once its immediate is
                                ///< reported: the owner may overwrite them at the count (P6)
  bool checks_access = false;   ///< the target checks rkey and bounds, and refuses (P12)
  bool maps_memory = false;     ///< peers map the memory of allocate(), which is therefore shared
  FenceKind fence = FenceKind::kNone;
  uint32_t queue_depth = 0;      ///< work requests in flight on the rail
  uint32_t path_depth = 0;       ///< of those, on one path
  uint32_t memory_kinds = 0;     ///< bit per MemoryKind that the rail can read and write
  uint64_t write_bytes_max = 0;  ///< of one work request
};

constexpr uint32_t kind_bit(MemoryKind kind) noexcept { return 1u << static_cast<uint32_t>(kind); }

}  // namespace fabric

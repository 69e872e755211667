#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fabric/caps.h>
#include <fabric/types.h>

namespace fabric {

/// Log2 buckets of nanoseconds: bucket i counts times in [2^i, 2^(i+1)). Merge by adding.
struct Histogram {
  std::array<uint64_t, 48> bucket{};
};

struct Traffic {
  uint64_t ops = 0;       ///< work requests posted and completed (rx: counts received)
  uint64_t bytes = 0;     ///< of those that were delivered
  uint64_t failed = 0;    ///< work requests that were not delivered for certain
  uint64_t retried = 0;   ///< control messages and writes sent again
  uint64_t imms = 0;      ///< immediates sent or received
  uint64_t messages = 0;  ///< two-sided messages
  uint64_t queued = 0;    ///< now: accepted, not yet posted
  uint64_t posted = 0;    ///< now: posted, not yet completed
  Histogram submit_to_post{};
  Histogram post_to_done{};
};

struct RailStats {
  std::string network{}, device{};
  uint32_t index = 0;  ///< in its network
  bool up = false;
  Caps caps{};
  Traffic tx{}, rx{};
  /// Name and value of what the provider reports about the rail, for operators to read. Not an
  /// interface for programs: names and values may change with any version.
  std::vector<std::pair<std::string, std::string>> facts{};
};

struct PeerStats {
  PeerId peer{};
  Nanos silent_for{};
  Traffic tx{}, rx{};
};

struct EngineStats {
  Traffic tx{}, rx{};
  /// Immediates of released or unknown counter keys, dropped (contracts.md P11).
  uint64_t stale_imms = 0;
  uint64_t exhausted = 0;  ///< submits refused with kExhausted
  uint64_t turns = 0;
  uint64_t sleeps = 0;
  uint64_t callbacks = 0;
  uint64_t control_bad = 0;  ///< control messages dropped: truncated, hostile or of another job
  uint32_t peers = 0, regions = 0, counters = 0, ops_in_flight = 0;
};

}  // namespace fabric

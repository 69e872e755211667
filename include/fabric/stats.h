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
  uint64_t ops = 0;       ///< pieces of work posted to a network and ended (rx: counts taken)
  uint64_t bytes = 0;     ///< of those that were delivered
  uint64_t failed = 0;    ///< pieces that did not end as delivered
  uint64_t retried = 0;   ///< control messages and pieces sent again
  uint64_t imms = 0;      ///< immediates sent or taken
  uint64_t messages = 0;  ///< two-sided messages
  uint64_t queued = 0;    ///< now: accepted, not yet posted
  uint64_t posted = 0;    ///< now: posted, not yet ended
  Histogram submit_to_post{};
  Histogram post_to_done{};
};

struct RailStats {
  std::string network{}, device{};
  uint32_t index = 0;  ///< in its network
  bool up = false;
  Caps caps{};
  Traffic tx{}, rx{};
  /// What the network says of the rail, name and value: for people to read, not for programs. Names
  /// and values may change with any version.
  std::vector<std::pair<std::string, std::string>> facts{};
};

struct PeerStats {
  PeerId peer{};
  Nanos silent_for{};
  Traffic tx{}, rx{};
};

struct EngineStats {
  Traffic tx{}, rx{};
  uint64_t stale_imms = 0;  ///< immediates of released or unknown keys, dropped (P11)
  uint64_t exhausted = 0;   ///< submits that were answered with kExhausted
  uint64_t turns = 0;
  uint64_t sleeps = 0;
  uint64_t callbacks = 0;
  uint64_t control_bad = 0;  ///< control messages refused as cut short, hostile or of another job
  uint32_t peers = 0, regions = 0, counters = 0, ops_in_flight = 0;
};

}  // namespace fabric

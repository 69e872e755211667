#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include <fabric/sim.h>

#include "providers/sim/pool.h"

// The faults that are active now, and those that are planned. Wire consults them where something
// arrives; faults.cc changes them, chaos.cc plans them.

namespace fabric::sim {

/// Of one NIC.
struct NicFaults {
  bool down = false;
  bool not_ready = false;
  bool refuses_posts = false;
  bool swallows_counts = false;
  int64_t fails_ns = 0;  // with swallows_counts: when it goes down
};

/// Of one node.
struct NodeFaults {
  int64_t delay_ns = 0;
  int64_t late_counts_ns = 0;
  int64_t late_acks_ns = 0;
  int64_t late_proof_ns = 0;
  int64_t late_bytes_ns = 0;
};

/// Of one direction between two nodes on one network. Masks have a bit for each of the sender's
/// rails.
struct PairFaults {
  uint32_t cut = 0;
  uint32_t lost_acks = 0;
  uint32_t wrong_rkey = 0;
  bool datagrams_cut = false;  // by a cut of all rails
  bool control_cut = false;
  bool twice = false;
};

/// The rails that a fault affects.
constexpr uint32_t rail_mask(uint32_t rail) noexcept {
  return rail == Fault::kAllRails ? UINT32_MAX : 1u << rail;
}

/// It acts on the processes of a node, so only WorldDriver (virtual time) can apply it.
constexpr bool is_for_engines(Fault::Kind kind) noexcept {
  return kind == Fault::Kind::kCrash || kind == Fault::Kind::kStop ||
         kind == Fault::Kind::kContinue || kind == Fault::Kind::kSlow;
}

/// It acts on a pair of nodes.
bool is_for_pairs(Fault::Kind kind) noexcept;

/// All faults of a Wire but those in Nic and Node.
struct FaultTable {
  /// from, to, and the number of the network's name
  using PairKey = std::tuple<uint32_t, uint32_t, uint32_t>;

  const PairFaults& pair(uint32_t from, uint32_t to, uint32_t fabric) const noexcept {
    static constexpr PairFaults kFine{};
    if (pairs.empty()) return kFine;
    const auto found = pairs.find({from, to, fabric});
    return found == pairs.end() ? kFine : found->second;
  }

  std::map<PairKey, PairFaults> pairs{};
  Pool<Fault> planned{};                          // of kFault events in the queue
  std::multimap<uint64_t, Fault> by_event{};      // by the number of network events
  std::vector<Fault> for_engines{};               // due, to be applied by WorldDriver
  std::array<uint64_t, Fault::kKinds> applied{};  // how many of each kind
};

}  // namespace fabric::sim

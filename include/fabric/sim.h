#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <fabric/engine.h>

namespace fabric::sim {

/// What one simulated NIC costs and promises.
struct NicModel {
  double gbit_per_s = 400;
  Nanos per_op{90};           ///< the least time of the NIC for one work request, however small
  Nanos latency{2'000};       ///< one way
  Nanos jitter{0};            ///< added to each packet, drawn evenly from [0, jitter]
  uint32_t depth = 1024;      ///< operations in flight on the NIC
  uint32_t path_depth = 256;  ///< of those, to one peer's rail
  uint64_t write_bytes_max = 1u << 30;
  bool ordered = true;       ///< like RC; false: like SRD, writes overtake each other
  bool slice_safe = true;    ///< earlier pieces on the path are covered by a later counted one
  bool exact_replay = true;  ///< the target can say which writes landed (P10)
  FenceKind fence = FenceKind::kLocal;

  static NicModel connectx7();  ///< 400 Gb/s, ordered, exact replay, fenced by its queue pair
  static NicModel efa_200g();   ///< 200 Gb/s, unordered, no replay, fenced by granted keys
};

/// One network of a node. Networks of the same name on two nodes are connected.
struct NodeNetwork {
  std::string name = "sim";
  uint32_t rails = 1;  ///< 1..kRailsMax
  NicModel model{};
  std::vector<MemoryKind> kinds{MemoryKind::kHost};  ///< which memory it can touch
};

struct WorldOptions {
  uint64_t seed = 1;
  /// false: virtual time, one thread, waits move the clock. true: the same network in real time,
  /// each engine with threads of its own, to run the threaded runtime without a real network.
  bool realtime = false;
  double drop_control = 0;       ///< chance that a control datagram is lost
  double duplicate_control = 0;  ///< chance that it arrives twice
  double reorder_control = 0;    ///< chance that it is held back by up to 20 latencies
};

/// A seeded network that carries real bytes, and its own Runtime: the same core runs on it as on a
/// real network. The same seed and the same calls give the same run, event by event.
///
/// Lifetime: engines hold the world; it may be dropped first.
/// Threads: with virtual time one thread at a time; with realtime everything from any thread.
class FABRIC_EXPORT World {
 public:
  explicit World(const WorldOptions& options = {});
  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  ~World();

  /// A host with `rails` NICs on one network named "sim". Returns its number.
  uint32_t add_node(uint32_t rails = 1, const NicModel& model = {});
  uint32_t add_node(std::vector<NodeNetwork> networks);
  /// Opens an engine on a node. Empty config.networks: all networks of the node, in their order.
  Result<Engine> open(uint32_t node, Config config = {});

  /// Called in every step of the world; for workloads and checks. Virtual time only. Waits
  /// inside destructors are steps too: what it uses must outlive the engines of the world.
  void each_step(std::function<void()> actor);
  /// Runs until done() or for `limit`. True when done() said so. Virtual time only: in realtime it
  /// asks once.
  bool run_until(const std::function<bool()>& done, Nanos limit);
  void run_for(Nanos time);    ///< virtual time only
  Nanos now() const noexcept;  ///< in realtime the clock of the engines that are open
  /// A hash over everything that happened: equal for equal runs.
  uint64_t trace_hash() const noexcept;

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace fabric::sim

#pragma once

#include <functional>
#include <memory>
#include <optional>
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
  bool maps_memory = false;  ///< allocate() gives shared pages, as for a network that maps them
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

/// Something that goes wrong in a world, at a moment of the caller's choice (World::at) or of the
/// seed's (World::chaos). Each has a constructor that takes what it needs; nothing else is set.
///
/// Nodes are what add_node() returned, rails count within the node's network `network` (0: its
/// first). What lasts goes on until its opposite comes; the opposite of what is not there is
/// nothing.
struct FABRIC_EXPORT Fault {
  enum class Kind : uint8_t {
    kNicDown,  ///< the port fails: engines hear of it, what is on the wire to or from it is lost
    kNicUp,
    kCut,  ///< nothing passes between two nodes on one rail, or on all, datagrams included
    kHeal,
    kControlCut,  ///< no datagram passes between two nodes; writes do
    kControlHeal,
    kCrash,  ///< the processes of a node die without a word; open a new engine to restart
    kStop,   ///< the processes of a node stop; its NICs go on (the zombie)
    kContinue,
    kSlow,         ///< the engines of a node get a turn every `time` at most; zero: as usual
    kDelay,        ///< everything that a node sends takes `time` longer; zero: as usual
    kBreakSender,  ///< the sender's ends of the paths node -> other break; the target's do not know
    kBreakTarget,  ///< and the other way round
    kLoseAcks,     ///< node -> other: writes land and count, the sender never hears of it
    kKeepAcks,
    kReceiverNotReady,  ///< node takes no immediate: the bytes before the last packet land, no
                        ///< count
    kReceiverReady,
    kLateCounts,  ///< the engines of node hear of immediates `time` after the data; zero: as usual
    kLateAcks,    ///< and of the end of their own writes
    kSwallowCounts,  ///< the NIC of node acknowledges, and dies before it tells its engine: then
                     ///< down
    kOverrun,      ///< the completion queue of node's rail overflows: nothing of it can be drained
    kRefusePosts,  ///< the NIC of node takes no work ("EAGAIN for ever")
    kTakePosts,
    kTwice,  ///< packets of node -> other land twice before the completion; counts once. Only where
             ///< writes are not ordered: elsewhere the NIC hides it
    kOnce,
    kWrongKey,   ///< the next write node -> other reaches the target with a key that is wrong
    kRightKey,   ///< or not, when none has come yet
    kLateProof,  ///< deregistering and closing paths at node takes `time` longer; zero: as usual
  };
  static constexpr uint32_t kKinds = 28;
  static constexpr uint32_t kAllRails = UINT32_MAX;

  Kind kind = Kind::kHeal;
  uint32_t node = 0;
  uint32_t other = 0;
  uint32_t rail = kAllRails;
  uint32_t network = 0;  ///< which of the node's networks; the other node's is the one of its name
  Nanos time{};

  static Fault nic_down(uint32_t node, uint32_t rail) { return {Kind::kNicDown, node, 0, rail}; }
  static Fault nic_up(uint32_t node, uint32_t rail) { return {Kind::kNicUp, node, 0, rail}; }
  static Fault cut(uint32_t a, uint32_t b, uint32_t rail = kAllRails) {
    return {Kind::kCut, a, b, rail};
  }
  static Fault heal(uint32_t a, uint32_t b, uint32_t rail = kAllRails) {
    return {Kind::kHeal, a, b, rail};
  }
  static Fault control_cut(uint32_t a, uint32_t b) { return {Kind::kControlCut, a, b}; }
  static Fault control_heal(uint32_t a, uint32_t b) { return {Kind::kControlHeal, a, b}; }
  static Fault crash(uint32_t node) { return {Kind::kCrash, node}; }
  static Fault stop(uint32_t node) { return {Kind::kStop, node}; }
  static Fault resume(uint32_t node) { return {Kind::kContinue, node}; }
  static Fault slow(uint32_t node, Nanos every) {
    return {Kind::kSlow, node, 0, kAllRails, 0, every};
  }
  static Fault delay(uint32_t node, Nanos more) {
    return {Kind::kDelay, node, 0, kAllRails, 0, more};
  }
  static Fault break_sender(uint32_t from, uint32_t to, uint32_t rail) {
    return {Kind::kBreakSender, from, to, rail};
  }
  static Fault break_target(uint32_t from, uint32_t to, uint32_t rail) {
    return {Kind::kBreakTarget, from, to, rail};
  }
  static Fault lose_acks(uint32_t from, uint32_t to, uint32_t rail = kAllRails) {
    return {Kind::kLoseAcks, from, to, rail};
  }
  static Fault keep_acks(uint32_t from, uint32_t to, uint32_t rail = kAllRails) {
    return {Kind::kKeepAcks, from, to, rail};
  }
  static Fault receiver_not_ready(uint32_t node, uint32_t rail = kAllRails) {
    return {Kind::kReceiverNotReady, node, 0, rail};
  }
  static Fault receiver_ready(uint32_t node, uint32_t rail = kAllRails) {
    return {Kind::kReceiverReady, node, 0, rail};
  }
  static Fault late_counts(uint32_t node, Nanos by) {
    return {Kind::kLateCounts, node, 0, kAllRails, 0, by};
  }
  static Fault late_acks(uint32_t node, Nanos by) {
    return {Kind::kLateAcks, node, 0, kAllRails, 0, by};
  }
  /// `time`: how long it swallows before it goes down.
  static Fault swallow_counts(uint32_t node, uint32_t rail, Nanos time) {
    return {Kind::kSwallowCounts, node, 0, rail, 0, time};
  }
  static Fault overrun(uint32_t node, uint32_t rail) { return {Kind::kOverrun, node, 0, rail}; }
  static Fault refuse_posts(uint32_t node, uint32_t rail = kAllRails) {
    return {Kind::kRefusePosts, node, 0, rail};
  }
  static Fault take_posts(uint32_t node, uint32_t rail = kAllRails) {
    return {Kind::kTakePosts, node, 0, rail};
  }
  static Fault twice(uint32_t from, uint32_t to) { return {Kind::kTwice, from, to}; }
  static Fault once(uint32_t from, uint32_t to) { return {Kind::kOnce, from, to}; }
  static Fault wrong_key(uint32_t from, uint32_t to, uint32_t rail) {
    return {Kind::kWrongKey, from, to, rail};
  }
  static Fault right_key(uint32_t from, uint32_t to, uint32_t rail) {
    return {Kind::kRightKey, from, to, rail};
  }
  static Fault late_proof(uint32_t node, Nanos by) {
    return {Kind::kLateProof, node, 0, kAllRails, 0, by};
  }
};

FABRIC_EXPORT const char* to_string(Fault::Kind kind) noexcept;
/// What undoes a fault; nothing for those that are over at once, and for a crash.
FABRIC_EXPORT std::optional<Fault> opposite(const Fault& fault) noexcept;

/// Faults by the seed: one after another, each undone by its opposite, until `until`.
struct Chaos {
  Nanos until{};                     ///< on the world's clock; then everything is undone
  Nanos gap{10'000'000};             ///< from one to the next, drawn evenly from [0, 2 * gap]
  Nanos lasts{20'000'000};           ///< how long one stays, drawn in the same way
  std::vector<Fault::Kind> kinds{};  ///< empty: all but kCrash, which the caller has to repair
};

/// An immediate that the NIC of its target hands to its engine.
struct Arrival {
  uint32_t node = 0;
  uint32_t imm = 0;                   ///< as it was on the wire
  const std::byte* target = nullptr;  ///< where its bytes are; null: it named no memory
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
  void each_step(std::function<void()> hook);
  /// Called for every immediate, just before its engine sees it: what a NIC has counted, to hold
  /// against what an engine says. Virtual time only.
  void each_arrival(std::function<void(const Arrival&)> observer);
  /// Runs until done() or for `limit`. True when done() said so. Virtual time only: in realtime it
  /// asks once.
  bool run_until(const std::function<bool()>& done, Nanos limit);
  void run_for(Nanos time);  ///< virtual time only

  /// Makes it happen at a time of the world's clock; one that has passed means now.
  ///
  /// Fails with kInvalidArgument, named after what is wrong (kind, node, network, rail, time,
  /// other: also when the two share no network), and kUnsupported: crash, stop and slow need
  /// virtual time.
  Result<void> at(Nanos time, const Fault& fault);
  /// The same when so many events of the network have happened, for stories that try every step.
  Result<void> at_event(uint64_t events, const Fault& fault);
  uint64_t events() const noexcept;  ///< of the network, so far
  /// Fails with kInvalidArgument (gap, lasts, kinds; node: there is none) and kUnsupported as at().
  Result<void> chaos(const Chaos& plan);
  /// How often a fault of the kind has been made to happen.
  uint64_t faults(Fault::Kind kind) const noexcept;

  Nanos now() const noexcept;  ///< in realtime the clock of the engines that are open
  /// A hash over everything that happened: equal for equal runs.
  uint64_t trace_hash() const noexcept;

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace fabric::sim

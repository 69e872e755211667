#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fabric/engine.h>

namespace fabric::sim {

/// Performance and guarantees of one simulated NIC.
struct FABRIC_EXPORT NicModel {
  double gbit_per_s = 400;
  Nanos per_op{90};           ///< the NIC's minimum time for one work request
  Nanos per_post{0};          ///< the engine's CPU time to post one work request. An engine posts
                              ///< them one after another, on all of its rails and networks together
  Nanos latency{2'000};       ///< one way
  Nanos jitter{0};            ///< added to each packet, uniform in [0, jitter]
  uint32_t depth = 1024;      ///< operations in flight on the NIC
  uint32_t path_depth = 256;  ///< operations in flight to one peer's rail
  uint64_t write_bytes_max = 1u << 30;
  bool ordered = true;       ///< like RC; false: like SRD, writes overtake each other
  bool slice_safe = true;    ///< a counted fragment covers the earlier fragments on its path
  bool exact_replay = true;  ///< the target knows which writes landed (contracts.md P10)
  bool maps_memory = false;  ///< allocate() returns shared pages, as for a network that maps them
  FenceKind fence = FenceKind::kLocal;

  // Models of published systems; docs/simulator.md has the source of each figure.
  static NicModel connectx7();  ///< 400 Gb/s, ordered, exact replay, fenced by its queue pair
  static NicModel efa_200g();   ///< 200 Gb/s, unordered, no replay, fenced by granted rkeys
  static NicModel nvlink();     ///< 360 GB/s between the GPUs of a host, ordered, exact replay
};

/// One network of a node. Networks of the same name on two nodes are connected.
struct NodeNetwork {
  std::string name = "sim";
  uint32_t rails = 1;  ///< 1..kRailsMax
  NicModel model{};
  std::vector<MemoryKind> kinds{MemoryKind::kHost};  ///< which memory it can access
};

/// A fault, injected at a time that the caller chooses (World::at) or that is drawn from the seed
/// (World::chaos). Each kind has a factory function that takes the members it uses.
///
/// `node` and `other` are numbers that add_node() returned; `rail` counts within the node's network
/// `network` (0: its first). A lasting fault holds until its opposite is injected; an opposite
/// without its fault has no effect.
struct FABRIC_EXPORT Fault {
  enum class Kind : uint8_t {
    kNicDown,  ///< the port fails: its engines are notified, packets on the wire are lost
    kNicUp,
    kCut,  ///< drops everything between two nodes on one rail, or on all (datagrams included)
    kHeal,
    kControlCut,  ///< drops datagrams between two nodes, but no writes
    kControlHeal,
    kCrash,  ///< the processes of a node die without notice; open a new engine to restart
    kStop,   ///< the processes of a node are stopped (SIGSTOP); its NICs keep working
    kContinue,
    kSlow,         ///< the engines of a node get at most one turn per `time`; zero: off
    kDelay,        ///< everything that a node sends takes `time` longer; zero: off
    kBreakSender,  ///< the sender's ends of the paths node -> other break; the target's stay up
    kBreakTarget,  ///< the target's ends of the paths node -> other break; the sender's stay up
    kLoseAcks,     ///< node -> other: writes land and count, their acknowledgements are lost
    kKeepAcks,
    kReceiverNotReady,  ///< node accepts no immediate: the last packet of a counted write is
                        ///< rejected (RNR), the bytes before it land
    kReceiverReady,
    kLateCounts,  ///< the engines of node get immediates `time` after the data; zero: off
    kLateAcks,    ///< the engines of node get completions of their writes `time` later; zero: off
    kSwallowCounts,  ///< the NIC of node acknowledges counts but does not report them to its
                     ///< engine, and goes down after `time`
    kOverrun,      ///< the completion queue of node's rail overflows: no path of it can be drained
    kRefusePosts,  ///< the NIC of node accepts no work ("EAGAIN for ever")
    kTakePosts,
    kTwice,  ///< packets of node -> other land twice before the completion, and count once. Only
             ///< for unordered NICs: ordered ones drop duplicates
    kOnce,
    kWrongRkey,  ///< the next write node -> other carries an invalid rkey
    kRightRkey,  ///< cancels kWrongRkey if no write has used it yet
    kLateProof,  ///< deregistering memory and closing paths at node takes `time` longer; zero: off
    kLateBytes,  ///< node acknowledges counted writes whose bytes are not visible yet: bytes and
                 ///< count of each become visible together, `time` later; zero: off
  };
  static constexpr uint32_t kKinds = 29;
  static constexpr uint32_t kAllRails = UINT32_MAX;

  Kind kind = Kind::kHeal;
  uint32_t node = 0;
  uint32_t other = 0;
  uint32_t rail = kAllRails;
  uint32_t network = 0;  ///< which of the node's networks; `other` uses the one of the same name
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
  static Fault wrong_rkey(uint32_t from, uint32_t to, uint32_t rail) {
    return {Kind::kWrongRkey, from, to, rail};
  }
  static Fault right_rkey(uint32_t from, uint32_t to, uint32_t rail) {
    return {Kind::kRightRkey, from, to, rail};
  }
  static Fault late_proof(uint32_t node, Nanos by) {
    return {Kind::kLateProof, node, 0, kAllRails, 0, by};
  }
  static Fault late_bytes(uint32_t node, Nanos by) {
    return {Kind::kLateBytes, node, 0, kAllRails, 0, by};
  }
};

FABRIC_EXPORT const char* to_string(Fault::Kind kind) noexcept;
/// The fault that undoes `fault`; empty for instantaneous faults and for a crash.
FABRIC_EXPORT std::optional<Fault> opposite(const Fault& fault) noexcept;

/// Random faults, drawn from the seed: one after another, each undone by its opposite.
struct Chaos {
  Nanos until{};                     ///< on the world's clock; all faults are undone by then
  Nanos gap{10'000'000};             ///< between two faults, uniform in [0, 2 * gap]
  Nanos lasts{20'000'000};           ///< duration of a fault, uniform in [0, 2 * lasts]
  std::vector<Fault::Kind> kinds{};  ///< empty: all but kCrash, which only the caller can repair
};

/// An immediate that the target's NIC delivers to its engine.
struct Arrival {
  uint32_t node = 0;
  uint32_t imm = 0;                   ///< as it was on the wire
  const std::byte* target = nullptr;  ///< where its bytes landed; null: it names no memory
};

/// A function that a World calls (each_step(), each_arrival()). Destroying the hook ends it: the
/// function is not called again, and what it captured is destroyed. Ended inside its own function,
/// it lets that call finish.
///
/// Lifetime: may outlive the World, which ends all of its hooks.
/// Threads: as for World with virtual time: one at a time.
class [[nodiscard]] Hook {
 public:
  Hook() = default;  ///< none
  Hook(Hook&&) noexcept = default;
  Hook& operator=(Hook&&) noexcept = default;
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;
  void end() noexcept { function_.reset(); }

 private:
  friend class World;
  explicit Hook(std::shared_ptr<const void> function) noexcept : function_(std::move(function)) {}
  std::shared_ptr<const void> function_;
};

struct WorldOptions {
  uint64_t seed = 1;
  /// false: virtual time, one thread, waits advance the clock. true: the same network in real time,
  /// with the threads runtime for each engine.
  bool realtime = false;
  double drop_control = 0;       ///< probability that a control datagram is lost
  double duplicate_control = 0;  ///< probability that it arrives twice
  double reorder_control = 0;    ///< probability that it is delayed by up to 20 latencies
  /// false: writes read and store no byte, for large worlds that only measure time. Everything else
  /// is the same, event by event: times, counts, completions, refused rkeys. Messages, addresses
  /// and descriptors are carried as ever, and so are writes to the engine's own address.
  bool carry_bytes = true;
  /// The largest packet of a write, 4 KiB to 1 GiB. Larger packets cost less real time; writes then
  /// interleave less finely, and virtual times change a little.
  uint64_t packet_bytes_max = 64u << 10;
};

/// A simulated network that carries real bytes (or none: WorldOptions::carry_bytes), and with
/// virtual time also the Runtime of its engines. The engines run the same core as on a real
/// network. The same seed and the same calls give the same run, event by event.
///
/// Lifetime: engines share ownership of the simulation; the World may be destroyed first.
/// Threads: with virtual time one thread at a time; in realtime every call from any thread.
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

  /// Calls `function` in every step of the world; for workloads and checks. Virtual time only: in
  /// realtime it is never called. Waits inside destructors are steps too: declare the Hook after
  /// everything that the function uses, or end() it before.
  ///
  /// Wrong. The hook ends with the statement, so the function is never called:
  ///
  ///     (void)world.each_step([&] { workload.step(); });
  Hook each_step(std::function<void()> function);
  /// Calls `observer` for every immediate, just before its engine gets it: an independent record to
  /// compare the engine's counters with. Virtual time only, as each_step().
  Hook each_arrival(std::function<void(const Arrival&)> observer);
  /// Runs until done() returns true, or for `limit`. True when done() did. Virtual time only: in
  /// realtime it calls done() once.
  bool run_until(const std::function<bool()>& done, Nanos limit);
  void run_for(Nanos time);  ///< virtual time only

  /// Injects a fault at a time of the world's clock; a time in the past means now.
  ///
  /// Fails with kInvalidArgument, named after the wrong member (kind, node, network, rail, time,
  /// other: also when the two nodes share no network), and kUnsupported: crash, stop and slow need
  /// virtual time.
  Result<void> at(Nanos time, const Fault& fault);
  /// Injects a fault after `events` network events, for tests that try every step of a run.
  Result<void> at_event(uint64_t events, const Fault& fault);
  uint64_t events() const noexcept;  ///< network events so far
  /// Fails with kInvalidArgument (gap, lasts, kinds; node: no node exists) and kUnsupported as
  /// at().
  Result<void> chaos(const Chaos& plan);
  /// How many faults of the kind have been injected.
  uint64_t faults(Fault::Kind kind) const noexcept;

  Nanos now() const noexcept;  ///< in realtime the clock of the open engines
  /// A hash of all events: equal for equal runs.
  uint64_t trace_hash() const noexcept;

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;
};

}  // namespace fabric::sim

#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <fabric/provider.h>
#include <fabric/sim.h>

#include "base/driver.h"
#include "base/hash.h"
#include "base/rng.h"
#include "providers/sim/driver.h"
#include "providers/sim/event_queue.h"
#include "providers/sim/faults.h"
#include "providers/sim/hooks.h"
#include "providers/sim/model.h"
#include "providers/sim/path_ends.h"
#include "providers/sim/pool.h"

// The network of a simulated world. Wire owns all of its state and is the only class that changes
// it. Its member functions are in connect.cc, memory.cc, datapath.cc and control.cc, as in every
// provider, and in loss.cc, faults.cc and chaos.cc for what goes wrong. open.cc implements the
// provider contract on top of it, world.cc has its clock.

namespace fabric::sim {

inline constexpr uint32_t kNone = UINT32_MAX;
/// Immediates that a rail holds for its engine. Beyond it the sender waits (RNR): none is dropped.
inline constexpr uint32_t kImmediatesMax = 65536;
/// Datagrams that an attachment holds. Beyond it they are dropped, as UDP would.
inline constexpr uint32_t kDatagramsMax = 4096;
inline constexpr uint32_t kControlBytesMax = 65536 + 1024;
/// How long a NIC retransmits without an acknowledgement: RC's seven retries of 67 ms.
inline constexpr int64_t kRetryNs = 500'000'000;
/// The retransmission timer: a lost packet is not sent again earlier, even if the cut has healed.
inline constexpr int64_t kRetransmitNs = kRetryNs / 8;
/// RNR timer: how long a sender waits before it sends a packet again to a receiver without room;
/// the first wait and the longest.
inline constexpr int64_t kReceiverNotReadyNs = 10'000;
inline constexpr int64_t kReceiverNotReadyMaxNs = 320'000;
/// Stopping a path or a registration: a command to the NIC.
inline constexpr int64_t kTeardownNs = 1'000;
/// An engine that has just polled is woken only after this time, so that it handles several
/// arrivals in one turn. An idle engine is woken at once.
inline constexpr int64_t kWakeGapNs = 1'000;
/// Closed path ends whose hello a rail still remembers.
inline constexpr uint32_t kClosedHellosMax = 1024;

/// One end of a path, by numbers and not by pointer: it may be looked up after its engine has
/// closed. Attachment and path numbers start at 1 and are never reused.
struct PathRef {
  uint32_t attachment = 0;
  uint32_t rail = 0;
  uint32_t path = 0;
};

/// One physical NIC, shared by the engines of its node.
struct Nic {
  NicModel model;
  Timing timing;
  uint32_t node = 0;
  uint32_t index = 0;  // in Wire::nics_
  uint32_t rail = 0;
  uint32_t fabric = 0;  // the number of its network's name: equal numbers are connected
  int64_t egress_free_ns = 0;
  int64_t ingress_free_ns = 0;
  bool transmit_due = false;  // a kTransmit event is scheduled
  Fifo<PathRef> ready{};      // paths with something to send, served round robin, a packet each
  NicFaults faults{};

  Nic(const NicModel& m, uint64_t packet_bytes_max) : model(m), timing(m, packet_bytes_max) {}
};

/// One posted work request until its last packet and acknowledgement have left the network. The
/// sender may have its completion long before: packets of a closed path still land.
struct Flight {
  WriteOp op{};
  Nic* nic = nullptr;  // the sender's; it outlives every engine
  PathRef from{};
  PathRef to{};
  uint64_t to_nonce = 0;
  int64_t posted_ns = 0;  // when the engine has posted it; the NIC does not send it earlier
  uint64_t sent_bytes = 0;
  uint64_t landed_bytes = 0;
  uint32_t refs = 0;  // the sender until it has its completion, packets, the acknowledgement
  uint32_t prev = kNone, next = kNone;  // of the same path, in posting order
  bool linked = false;
  bool started = false;               // its first packet was sent
  bool completed = false;             // the sender has its completion
  bool refused = false;               // by the target, which accepts no more of it
  bool landed = false;                // all of its packets
  int64_t retry_since_ns = kNeverNs;  // start of the current series of failed retransmissions
  uint32_t duplicates = 0;            // packets that will land a second time
  uint32_t late = 0;                  // its number in RailState::late_writes; 0: none
  Errc code = Errc::kOk;              // carried by the acknowledgement
  Remote remote = Remote::kDelivered;
};

/// A packet of a write, or a control datagram, with its bytes; of a write without them in a world
/// that carries none (WorldOptions::carry_bytes).
struct Packet {
  uint32_t flight = kNone;
  uint32_t from_attachment = 0;  // datagrams only
  uint64_t offset = 0;
  uint64_t size_bytes = 0;
  uint64_t sequence = 0;  // on its path
  int64_t on_wire_ns = 0;
  std::vector<std::byte> bytes{};
};

/// The sender's end of a path.
struct OutPath {
  enum class State : uint8_t { kOpened, kStarted, kClosing, kDown };
  State state = State::kOpened;
  bool ready = false;      // it is in Nic::ready
  bool undrained = false;  // its completion queue overran: the fate of its writes is unknown
  PathRef to{};
  uint64_t nonce = 0;
  uint64_t to_nonce = 0;
  uint32_t first = kNone, last = kNone;  // flights without a completion, in posting order
  uint32_t unsent = kNone;               // the first of them that is not sent completely
  uint32_t posted = 0;                   // accepted by post(), completion not polled
  uint64_t window_used = 0;
  uint64_t next_sequence = 0;
  int64_t last_arrival_ns = 0;
  std::vector<uint32_t> lost{};      // packets to retransmit, in order
  std::vector<uint32_t> unacked{};   // flights whose acknowledgement was lost
  int64_t retransmit_ns = kNeverNs;  // when the NIC retries both
  int64_t not_ready_ns = 0;          // the last RNR wait
  bool down_held = false;            // kPathDown waits for the completions of the last posts
  RailEvent down{};                  // that kPathDown

  bool up() const noexcept { return state == State::kStarted && !undrained; }
};

/// The target's end of a path.
struct InPath {
  bool down = false;       // no packet lands through it
  bool undrained = false;  // its completion queue overran: as down, and `received` is a lower bound
  PathRef from{};
  uint64_t hello_nonce = 0;
  uint64_t nonce = 0;
  uint64_t received = 0;  // immediates
  uint64_t expected = 0;  // ordered: sequence of the only packet that is accepted next
  int64_t last_landing_ns = 0;
  int64_t last_ack_ns = 0;
};

/// What accept_path() answered; kept for a while after the end is erased.
struct Accepted {
  uint32_t path = 0;  // 0: not yet
  uint64_t nonce = 0;
};
using HelloKey = std::pair<uint32_t, uint64_t>;  // attachment and nonce

/// Events that a fault delays on their way to the engine, in order.
struct LateReports {
  struct Item {
    int64_t due_ns = 0;
    RailEvent event{};
  };
  Fifo<Item> items{};
  int64_t last_ns = 0;
};

struct Region {
  uint64_t key = 0;  // 0: free. Its number, and a random cookie above it
  std::byte* address = nullptr;
  uint64_t size_bytes = 0;
  bool remote_write = false;
};

/// The packets of a write that have landed and are acknowledged, but that their owner cannot see
/// yet (Fault::kLateBytes).
struct LateWrite {
  struct Packet {
    uint64_t target = 0;
    std::vector<std::byte> bytes{};
  };
  uint64_t key = 0;      // of the region
  bool counted = false;  // its immediate is queued; otherwise it may never be
  std::vector<Packet> packets{};
};

/// One engine's use of one NIC.
struct RailState {
  Nic* nic = nullptr;
  Caps caps{};
  std::string device{};
  PathEnds<OutPath> out{};
  PathEnds<InPath> in{};
  std::map<HelloKey, Accepted> accepted{};
  Fifo<HelloKey> closed_hellos{};  // of ends that are erased, the oldest first
  std::vector<Region> regions{};
  std::vector<uint32_t> free_regions{};
  Fifo<RailEvent> events{};
  LateReports late_counts{};                    // kImm, and kPathDown of targets' ends
  LateReports late_acks{};                      // kCompletion, and kPathDown of senders' ends
  std::map<uint32_t, LateWrite> late_writes{};  // by Flight::late
  std::vector<RailEvent> hidden{};  // kCompletion that were delayed when the queue overran
  bool overran = false;             // until the NIC comes up
  uint32_t immediates = 0;          // kImm in events and late_counts
  uint32_t posted = 0;              // accepted by post(), completion not polled
};

/// One engine's attachment to one network of its node. Owned by Wire, from SimNetwork's opening to
/// its destruction.
struct NetworkAttachment {
  uint32_t number = 0;
  uint32_t node = 0;
  uint32_t network = 0;
  OpenContext context{};
  std::vector<RailState> rails{};
  std::vector<uint32_t> links{};  // the remote attachment of each; 0: free
  Fifo<uint32_t> datagrams{};     // packets
  uint32_t datagrams_out = 0;
  /// Until when the engine's CPU is busy with posts; shared by all attachments of the engine.
  std::shared_ptr<int64_t> posts_until_ns{};
  bool wake_due = false;
  int64_t polled_ns = -kWakeGapNs;
  int timer_fd = -1;  // realtime only
  bool asleep = false;
  int64_t timer_due_ns = kNeverNs;
};

/// Where an attachment is or was; kept after it closes, because packets still refer to it.
struct AttachmentLocation {
  uint32_t node = 0;
  uint32_t fabric = 0;
};

struct Node {
  std::vector<NodeNetwork> networks{};
  std::vector<uint32_t> first_nic{};  // of each network
  NodeFaults faults{};
};

enum class SimEventKind : uint8_t {
  kTransmit,    // a NIC may send: subject = NIC
  kPosted,      // the engine's CPU has posted a work request on a path
  kArrive,      // the first bit of a packet: subject = packet
  kLand,        // the last bit of a packet is through the receiver's NIC: subject = packet
  kDuplicate,   // a packet lands a second time: subject = packet
  kAck,         // an acknowledgement reaches the sender: subject = flight
  kLocalError,  // the sender's own NIC fails a flight: subject = flight
  kRetransmit,  // the NIC retransmits the lost packets of a path
  kOutDown,     // close_path() of a sender's end takes effect
  kInDown,      // close_path() of a target's end takes effect
  kFenced,      // deregister_memory() takes effect: subject = cookie
  kDatagram,    // subject = packet
  kLate,        // a delayed event is due: subject = 0: counts, 1: acknowledgements
  kFault,       // subject = planned fault
  kNicFails,    // end of kSwallowCounts: subject = NIC
  kWake,        // an engine polls its NICs again: subject = attachment
};

/// Caused by an engine or the network; false for the simulation's own events.
constexpr bool is_network(SimEventKind kind) noexcept { return kind < SimEventKind::kFault; }

struct SimEvent {
  SimEventKind kind = SimEventKind::kTransmit;
  uint32_t subject = 0;
  PathRef at{};
};

/// Everything between the engines of a world, and its clock: a discrete event simulation. Owns the
/// nodes, NICs, attachments, flights, packets and the event queue. Attachments, paths, flights and
/// packets are referred to by number, because packets outlive the engine that sent them.
///
/// Threads: SimRail and SimNetwork call the functions from register_memory() down to arm(), after
///   enter() and under the engine's state lock (registration: without it). With virtual time there
///   is one thread and no lock. In realtime several engines have workers: `mutex_` (taken by
///   enter()) serialises them, and each caller runs all events that are due. The lock order is
///   state lock, then `mutex_`.
/// Invariant: now_ns_ never decreases; while its attachment is open, every work request that post()
///   accepted completes exactly once.
class Wire {
 public:
  explicit Wire(const WorldOptions& options);
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  // For World. These take the lock themselves.
  uint32_t add_node(std::vector<NodeNetwork> networks);
  uint32_t node_count() const;
  std::vector<NodeNetwork> networks(uint32_t node) const;
  bool realtime() const noexcept { return options_.realtime; }
  int64_t now_ns() const noexcept;
  int64_t next_due_ns() const noexcept;
  /// Virtual time only. False: it stopped early, because a fault acts on engines
  /// (take_for_engines()).
  bool run_to(int64_t time_ns);
  uint64_t events() const noexcept;
  uint64_t trace_hash() const noexcept;
  uint64_t in_flight() const noexcept;  ///< flights and packets in use
  uint64_t path_ends() const noexcept;  ///< ends in all tables
  Result<NetworkAttachment*> open_attachment(uint32_t node, const Network& spec,
                                             const OpenContext& context);
  void close_attachment(NetworkAttachment& attachment) noexcept;

  // faults.cc and chaos.cc. These take the lock themselves, too.
  Result<void> plan(int64_t time_ns, const Fault& fault);
  Result<void> plan_by_event(uint64_t events, const Fault& fault);
  Result<void> plan(const Chaos& chaos);
  uint64_t applied(Fault::Kind kind) const noexcept;
  std::vector<Fault> take_for_engines();
  std::vector<Progress*> engines_of(uint32_t node) const;

  /// Takes the lock. In realtime it also runs the events up to the caller's time.
  [[nodiscard]] std::unique_lock<std::mutex> enter(const NetworkAttachment& attachment);

  // memory.cc
  Result<uint64_t> register_memory(RailState& rail, const PathRef& at, const Memory& memory,
                                   std::vector<std::byte>& wire_rkey);
  void deregister_memory(RailState& rail, const PathRef& at, uint64_t key, uint32_t cookie);

  // connect.cc
  Result<uint32_t> open_path(NetworkAttachment& attachment, uint32_t rail,
                             std::span<const std::byte> peer, uint32_t remote_rail,
                             std::vector<std::byte>& hello);
  Result<uint32_t> accept_path(NetworkAttachment& attachment, uint32_t rail,
                               std::span<const std::byte> hello, std::vector<std::byte>& answer);
  Result<void> start_path(RailState& rail, uint32_t path, std::span<const std::byte> answer);
  void close_path(RailState& rail, const PathRef& at, bool inbound);
  std::vector<std::byte> address(const NetworkAttachment& attachment) const;

  // datapath.cc
  uint32_t post(RailState& rail, const PathRef& at, std::span<const WriteOp> ops);
  uint32_t poll(NetworkAttachment& attachment, RailState& rail, std::span<RailEvent> out);

  // control.cc
  Result<uint32_t> open_link(NetworkAttachment& attachment, std::span<const std::byte> address);
  void close_link(NetworkAttachment& attachment, uint32_t link);
  bool send(NetworkAttachment& attachment, uint32_t link, std::span<const std::byte> datagram);
  uint32_t receive(NetworkAttachment& attachment, std::span<std::byte> out);
  bool arm(NetworkAttachment& attachment);

  /// Identifies the world in tokens and addresses. Set once, before the world is shared.
  uint64_t id = 0;
  /// Called for every immediate that poll() returns. Empty in realtime, where the workers of
  /// several engines would call it.
  HookList<Arrival> arrival_hooks{};

 private:
  // world.cc
  void schedule(int64_t time_ns, SimEventKind kind, uint32_t subject, const PathRef& at = {});
  void run_due(int64_t until_ns);
  void dispatch(const SimEvent& event);
  std::unique_lock<std::mutex> lock() const;
  void wake_later(NetworkAttachment& attachment);
  void wake_again(uint32_t number);
  void set_timer(NetworkAttachment& attachment, int64_t due_ns);
  void trace(SimEventKind kind, const Nic& nic, uint64_t size_bytes, uint32_t imm) noexcept;
  void trace(const RailEvent& event, const Nic& nic) noexcept;
  // Inline, because every event calls them several times.
  NetworkAttachment* find_attachment(uint32_t number) noexcept {
    return number - 1 < attachments_.size() ? attachments_[number - 1].get() : nullptr;
  }
  RailState* find_rail(const PathRef& at) noexcept {
    NetworkAttachment* attachment = find_attachment(at.attachment);
    return attachment != nullptr && at.rail < attachment->rails.size() ? &attachment->rails[at.rail]
                                                                       : nullptr;
  }
  OutPath* find_out(const PathRef& at) noexcept {
    RailState* rail = find_rail(at);
    return rail != nullptr ? rail->out.find(at.path) : nullptr;
  }
  InPath* find_in(const PathRef& at) noexcept {
    RailState* rail = find_rail(at);
    return rail != nullptr ? rail->in.find(at.path) : nullptr;
  }
  int64_t delay_ns(const Nic& nic, uint32_t from_node) noexcept;
  std::shared_ptr<int64_t> posts_until_of(const Progress* engine) const;

  // memory.cc
  static const Region* find_region(const RailState& rail, uint64_t key) noexcept;
  bool source_allowed(const Flight& flight) noexcept;
  static bool target_allowed(const RailState& rail, const Flight& flight) noexcept;
  void fenced(const SimEvent& event);

  // connect.cc
  Result<uint32_t> reach(const NetworkAttachment& attachment,
                         std::span<const std::byte> address) const;
  void out_down(const PathRef& at);
  void in_down(const PathRef& at);
  void forget_end(RailState& rail, uint32_t path, bool inbound);
  void break_path(OutPath& path, const PathRef& at, Remote started);

  // datapath.cc
  int64_t post_time_ns(const RailState& rail, const PathRef& at) noexcept;
  void posted(const PathRef& at);
  bool has_to_send(const OutPath& path) noexcept;
  void link(OutPath& path, uint32_t index);
  void unlink(OutPath& path, uint32_t index);
  void release(uint32_t flight);
  void make_ready(OutPath& path, const PathRef& at, Nic& nic);
  void kick(Nic& nic);
  void send_packet(Nic& nic, OutPath& path);
  void launch(uint32_t packet, OutPath& path, int64_t start_ns);
  void arrive(uint32_t packet);
  void land(uint32_t packet);
  void take(uint32_t packet, RailState& rail, InPath* in);
  static void store(const Packet& packet, const Flight& flight, const RailState& rail);
  bool store_later(const Packet& packet, Flight& flight, RailState& rail);
  static void store_late(RailState& rail, uint32_t write);
  static void store_late(RailState& rail, const Region& region);
  static void store_late(const Region& region, const LateWrite& late);
  void forget_late(const Flight& flight);
  void count(const Flight& flight, RailState& rail, InPath* in);
  void land_duplicate(uint32_t packet);
  void refuse(uint32_t flight, InPath* in);
  void fail_locally(uint32_t flight, Errc code, Remote remote);
  void drop(uint32_t packet);
  void acknowledge(uint32_t flight, InPath* in);
  void acknowledged(uint32_t flight);
  void complete_flight(uint32_t flight);
  void complete(uint32_t flight, Errc code, Remote remote);
  void report(const PathRef& at, const RailEvent& event);
  void enqueue(const PathRef& at, RailState& rail, const RailEvent& event);
  void enqueue_late(const PathRef& at, bool acks);

  // loss.cc
  enum class Admission : uint8_t { kAccept, kLost, kNotReady, kOutOfOrder };
  bool is_cut(const Flight& flight) noexcept;
  Admission admission_of(const Packet& packet) noexcept;
  bool would_ack(const Flight& flight) noexcept;
  void lose(uint32_t packet, Admission admission);
  void lose_ack(uint32_t flight);
  void schedule_retransmit(OutPath& path, const PathRef& at, int64_t due_ns);
  void retransmit(const PathRef& at);
  bool retransmit_packets(OutPath& path, const PathRef& at);
  bool request_acks(OutPath& path, const PathRef& at);
  void resend(uint32_t packet, OutPath& path);
  int64_t wait_ns(OutPath& path, Flight& flight, Admission admission) noexcept;
  void forget_lost(OutPath& path);

  // faults.cc
  Result<void> check(const Fault& fault) const;
  void apply_planned(uint32_t planned);
  void apply(const Fault& fault);
  void apply_to_pair(const Fault& fault, uint32_t fabric);
  void apply_to_nic(const Fault& fault, Nic& nic);
  void apply_to_node(const Fault& fault);
  void corrupt_key(Flight& flight, const OutPath& path);
  void break_ends(const Fault& fault, uint32_t fabric);
  void after_event();
  void set_down(Nic& nic, bool down);
  void report_nic(const PathRef& at, bool down);
  void nic_fails(Nic& nic);
  void overrun(Nic& nic);
  void overrun(RailState& rail, const PathRef& at);
  void report_hidden(const PathRef& at);
  template <class F>
  void each_rail(const Nic& nic, F&& f);
  const PairFaults& pair_faults(const AttachmentLocation& from,
                                uint32_t to_attachment) const noexcept;

  // chaos.cc
  void plan_now(int64_t time_ns, const Fault& fault);
  Fault draw(Fault::Kind kind, int64_t lasts_ns);

  // control.cc
  void inject_datagram(NetworkAttachment& attachment, uint32_t to_attachment,
                       std::span<const std::byte> datagram);
  void deliver(uint32_t packet, uint32_t to_attachment);

  const WorldOptions options_;
  const uint64_t packet_bytes_max_;
  mutable std::mutex mutex_;  // realtime only: with virtual time there is one thread
  int64_t now_ns_ = 0;        // time of the event that runs, or of the last one
  int64_t real_now_ns_ = 0;   // realtime: time of the last caller
  EventQueue<SimEvent> queue_;
  TraceHash hash_;
  // One generator for each purpose, so that a change in one does not shift the others.
  Rng wire_rng_, control_rng_, key_rng_, fault_rng_;
  std::deque<Node> nodes_;
  std::deque<Nic> nics_;
  std::vector<std::string> fabrics_;                             // names of networks
  std::vector<std::unique_ptr<NetworkAttachment>> attachments_;  // by number - 1; null: closed
  std::vector<AttachmentLocation> locations_;  // by number - 1, closed attachments included
  Pool<Flight> flights_;
  Pool<Packet> packets_;
  FaultTable faults_;
  uint64_t events_ = 0;          // network events so far
  uint32_t last_late_ = 0;       // of Flight::late
  std::vector<uint32_t> wakes_;  // attachments to wake, virtual time only
};

/// Shared by the World object, the engines (as their Runtime) and their SimNetworks; the last of
/// them destroys it.
struct World::Impl final : Runtime {
  explicit Impl(const WorldOptions& options)
      : wire(options), world_driver(wire, Rng(options.seed ^ 0x6472697665720000)) {}

  Wire wire;
  WorldDriver world_driver;

 private:
  Driver& driver() noexcept override { return world_driver; }
};

/// A new world with a unique id, by which open() finds it from a token.
std::shared_ptr<World::Impl> make_world(const WorldOptions& options);
std::string world_token(const World::Impl& world, uint32_t node);
struct TokenTarget {
  std::shared_ptr<World::Impl> world{};
  uint32_t node = 0;
};
/// Fails with kInvalidArgument, or kClosed when the world was destroyed.
Result<TokenTarget> find_world(const std::vector<std::string>& devices);

}  // namespace fabric::sim

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
#include "providers/sim/path_ends.h"
#include "providers/sim/event_queue.h"
#include "providers/sim/faults.h"
#include "providers/sim/model.h"
#include "providers/sim/pool.h"

// The network of a simulated world. Wire holds all of it and is the only thing that changes it;
// its parts are in the rooms that every provider has: connect.cc, memory.cc, datapath.cc,
// control.cc, and loss.cc, faults.cc, chaos.cc for what goes wrong. open.cc puts the provider
// contract in front of it, world.cc has its clock.

namespace fabric::sim {

inline constexpr uint32_t kNone = UINT32_MAX;
/// Immediates that a rail holds for its engine. Beyond it the sender waits (RNR): none is dropped.
inline constexpr uint32_t kImmediatesMax = 65536;
/// Datagrams that a port holds. Beyond it they are dropped, as UDP would.
inline constexpr uint32_t kDatagramsMax = 4096;
inline constexpr uint32_t kControlBytesMax = 65536 + 1024;
/// How long a NIC repeats what nobody answers: RC's seven retries of 67 ms.
inline constexpr int64_t kRetryNs = 500'000'000;
/// How often it does: also when the way was open again in the meantime, nothing moves before.
inline constexpr int64_t kRetransmitNs = kRetryNs / 8;
/// How long a sender waits for a receiver without room before it offers the packet again: at first,
/// and at most.
inline constexpr int64_t kReceiverNotReadyNs = 10'000;
inline constexpr int64_t kReceiverNotReadyMaxNs = 320'000;
/// Stopping a path or a registration: a command to the NIC.
inline constexpr int64_t kTeardownNs = 1'000;
/// An engine that has just polled is not interrupted: it looks again after this time, and finds
/// together what has come meanwhile. One that was idle is woken at once.
inline constexpr int64_t kWakeGapNs = 1'000;
/// Ends that are down of which a rail still knows the hello.
inline constexpr uint32_t kClosedHellosMax = 1024;

/// One end of a path, by numbers: it may be asked for after its engine has closed. Ports and paths
/// count from 1 and are never used again.
struct PathRef {
  uint32_t port = 0;
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
  bool transmit_due = false;  // an event will look at `ready`
  Fifo<PathRef> ready{};      // paths with something to send, served in turn, a packet each
  NicFaults faults{};

  explicit Nic(const NicModel& m) : model(m), timing(m) {}
};

/// One piece from post() to its last trace in the world. The sender may have its completion long
/// before: packets of a closed path still land.
struct Flight {
  WriteOp op{};
  Nic* nic = nullptr;  // the sender's; it outlives every engine
  PathRef from{};
  PathRef to{};
  uint64_t to_nonce = 0;
  uint64_t sent_bytes = 0;
  uint64_t landed_bytes = 0;
  uint32_t refs = 0;  // the sender until it has its completion, packets, the acknowledgement
  uint32_t prev = kNone, next = kNone;  // of the same path, in posting order
  bool linked = false;
  bool started = false;        // a packet of it is out
  bool completed = false;      // the sender has its completion
  bool refused = false;        // by the target, which takes no more of it
  bool landed = false;         // by the target, all of it
  int64_t retry_since_ns = kNeverNs;  // since when the sender's NIC repeats something of it in vain
  uint32_t duplicates = 0;         // packets that will land a second time
  Errc code = Errc::kOk;       // what the acknowledgement will say
  Remote remote = Remote::kDelivered;
};

/// A part of a write, or a control datagram, with its bytes.
struct Packet {
  uint32_t flight = kNone;
  uint32_t from_port = 0;  // datagrams only
  uint64_t offset = 0;
  uint64_t sequence = 0;  // on its path
  int64_t on_wire_ns = 0;
  std::vector<std::byte> bytes{};
};

/// The sender's end.
struct OutPath {
  enum class State : uint8_t { kOpened, kStarted, kClosing, kDown };
  State state = State::kOpened;
  bool ready = false;      // it stands in Nic::ready
  bool undrained = false;  // its queue overran: it waits to be closed, and what it had is unknown
  PathRef to{};
  uint64_t nonce = 0;
  uint64_t to_nonce = 0;
  uint32_t first = kNone, last = kNone;  // flights without a completion, in posting order
  uint32_t unsent = kNone;               // the first of them that has not left completely
  uint32_t posted = 0;                   // taken, and its completion not polled
  uint64_t window_used = 0;
  uint64_t next_sequence = 0;
  int64_t last_arrival_ns = 0;
  std::vector<uint32_t> lost{};     // packets to send again, in their order
  std::vector<uint32_t> unacked{};  // flights whose acknowledgement got lost
  int64_t retransmit_ns = kNeverNs;     // when the NIC looks at them
  int64_t not_ready_ns = 0;         // how long it waited for the receiver the last time
  bool down_held = false;           // its kPathDown came before the end of what was posted last
  WireEvent down{};                 // that one

  bool up() const noexcept { return state == State::kStarted && !undrained; }
};

/// The target's end.
struct InPath {
  bool down = false;       // nothing lands through it any more
  bool undrained = false;  // its queue overran: the same, and nobody knows what was taken
  PathRef from{};
  uint64_t hello_nonce = 0;
  uint64_t nonce = 0;
  uint64_t received = 0;  // immediates
  uint64_t expected = 0;  // ordered: the packet that comes next; no other is taken
  int64_t last_landing_ns = 0;
  int64_t last_ack_ns = 0;
};

/// What accept_path() answered, also after the end is gone.
struct Accepted {
  uint32_t path = 0;  // 0: not yet
  uint64_t nonce = 0;
};
using HelloKey = std::pair<uint32_t, uint64_t>;  // port and nonce

/// Reports that are on their way to an engine, in their order.
struct LateReports {
  struct Item {
    int64_t due_ns = 0;
    WireEvent event{};
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

/// What one engine has open on one NIC.
struct RailState {
  Nic* nic = nullptr;
  Caps caps{};
  std::string device{};
  PathEnds<OutPath> out{};
  PathEnds<InPath> in{};
  std::map<HelloKey, Accepted> accepted{};
  Fifo<HelloKey> closed_hellos{};  // of ends that are gone, the oldest first
  std::vector<Region> regions{};
  std::vector<uint32_t> free_regions{};
  Fifo<WireEvent> events{};
  LateReports late_counts{};        // kImm, and kPathDown of targets' ends
  LateReports late_acks{};          // kWritten, and kPathDown of senders' ends
  std::vector<WireEvent> hidden{};  // kWritten that were late when the queue overran
  bool overran = false;             // until the NIC comes up
  uint32_t immediates = 0;          // of those events
  uint32_t posted = 0;              // taken, and its completion not polled
};

/// What one engine has open on one network of its node: its place in the world.
struct Port {
  uint32_t number = 0;
  uint32_t node = 0;
  uint32_t network = 0;
  OpenContext context{};
  std::vector<RailState> rails{};
  std::vector<uint32_t> links{};  // the far port of each; 0: free
  Fifo<uint32_t> datagrams{};     // packets
  uint32_t datagrams_out = 0;
  bool wake_due = false;
  int64_t polled_ns = -kWakeGapNs;
  int timer_fd = -1;  // realtime only
  bool asleep = false;
  int64_t timer_due_ns = kNeverNs;
};

/// Where a port is or was.
struct PortLocation {
  uint32_t node = 0;
  uint32_t fabric = 0;
};

struct Node {
  std::vector<NodeNetwork> networks{};
  std::vector<uint32_t> first_nic{};  // of each network
  NodeFaults faults{};
};

enum class EventKind : uint8_t {
  kTransmit,  // a NIC may send: subject = NIC
  kArrive,    // the first bit of a packet: subject = packet
  kLand,      // its last bit is through the receiver's NIC
  kDuplicate,      // it lands a second time
  kAck,       // the sender hears how a flight ended: subject = flight
  kLocalError,       // its own NIC finds out
  kRetransmit,    // what got lost on a path is sent again
  kOutDown,   // close_path() of a sender's end takes effect
  kInDown,    // and of a target's end
  kFenced,    // deregister_memory() takes effect: subject = cookie
  kDatagram,  // subject = packet
  kLate,      // a report that was held back is due: subject = 0: counts, 1: acknowledgements
  kFault,     // subject = planned fault
  kNicFails,  // it has swallowed counts long enough: subject = NIC
  kWake,      // an engine looks at its NICs again: subject = port
};

/// What an engine or the network does, and not the world's master.
constexpr bool is_network(EventKind kind) noexcept { return kind < EventKind::kFault; }

struct Event {
  EventKind kind = EventKind::kTransmit;
  uint32_t subject = 0;
  PathRef at{};
};

/// Everything between the engines of a world, and its clock.
///
/// Threads: enter() first. With virtual time nobody else is there; in realtime the workers of
///   several engines are, and each of them runs whatever is due.
class Wire {
 public:
  explicit Wire(const WorldOptions& options);
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  // The world. These take the lock themselves.
  uint32_t add_node(std::vector<NodeNetwork> networks);
  uint32_t node_count() const;
  std::vector<NodeNetwork> networks(uint32_t node) const;
  bool realtime() const noexcept { return options_.realtime; }
  int64_t now_ns() const noexcept;
  int64_t next_due_ns() const noexcept;
  /// Virtual time only. False: it stopped early, because something has happened to engines
  /// (take_for_engines()).
  bool run_to(int64_t time_ns);
  uint64_t events() const noexcept;
  uint64_t trace_hash() const noexcept;
  uint64_t in_flight() const noexcept;  ///< pieces and packets of which something is left
  uint64_t path_ends() const noexcept;  ///< that take up memory
  void each_arrival(std::function<void(const Arrival&)> observer);
  Result<Port*> open_port(uint32_t node, const Network& spec, const OpenContext& context);
  void close_port(Port& port) noexcept;

  // faults.cc and chaos.cc. They take the lock themselves, too.
  Result<void> plan(int64_t time_ns, const Fault& fault);
  Result<void> plan_by_event(uint64_t events, const Fault& fault);
  Result<void> plan(const Chaos& chaos);
  uint64_t applied(Fault::Kind kind) const noexcept;
  std::vector<Fault> take_for_engines();
  std::vector<Progress*> engines_of(uint32_t node) const;

  /// The lock. In realtime it also brings the world up to the caller's time.
  [[nodiscard]] std::unique_lock<std::mutex> enter(const Port& port);

  // memory.cc
  Result<uint64_t> register_memory(RailState& rail, const PathRef& at, const Memory& memory,
                                   std::vector<std::byte>& wire_key);
  void deregister_memory(RailState& rail, const PathRef& at, uint64_t key, uint32_t cookie);

  // connect.cc
  Result<uint32_t> open_path(Port& port, uint32_t rail, std::span<const std::byte> peer,
                             uint32_t remote_rail, std::vector<std::byte>& hello);
  Result<uint32_t> accept_path(Port& port, uint32_t rail, std::span<const std::byte> hello,
                               std::vector<std::byte>& answer);
  Result<void> start_path(RailState& rail, uint32_t path, std::span<const std::byte> answer);
  void close_path(RailState& rail, const PathRef& at, bool inbound);
  std::vector<std::byte> address(const Port& port) const;

  // datapath.cc
  uint32_t post(RailState& rail, const PathRef& at, std::span<const WriteOp> ops);
  uint32_t poll(Port& port, RailState& rail, std::span<WireEvent> out);

  // control.cc
  Result<uint32_t> open_link(Port& port, std::span<const std::byte> address);
  void close_link(Port& port, uint32_t link);
  bool send(Port& port, uint32_t link, std::span<const std::byte> datagram);
  uint32_t receive(Port& port, std::span<std::byte> out);
  bool arm(Port& port);

  /// Which world it is, for tokens and addresses. Set once, before anybody else sees the world.
  uint64_t id = 0;

 private:
  // world.cc
  void schedule(int64_t time_ns, EventKind kind, uint32_t subject, const PathRef& at = {});
  void run_due(int64_t until_ns);
  void dispatch(const Event& event);
  std::unique_lock<std::mutex> lock() const;
  void wake_later(Port& port);
  void wake_again(uint32_t number);
  void set_timer(Port& port, int64_t due_ns);
  void trace(EventKind kind, const Nic& nic, uint64_t size_bytes, uint32_t imm) noexcept;
  void trace(const WireEvent& event, const Nic& nic) noexcept;
  // Every event asks several times, so these are here to be inlined.
  Port* find_port(uint32_t number) noexcept {
    return number - 1 < ports_.size() ? ports_[number - 1].get() : nullptr;
  }
  RailState* find_rail(const PathRef& at) noexcept {
    Port* port = find_port(at.port);
    return port != nullptr && at.rail < port->rails.size() ? &port->rails[at.rail] : nullptr;
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

  // memory.cc
  static const Region* find_region(const RailState& rail, uint64_t key) noexcept;
  bool source_allowed(const Flight& flight) noexcept;
  static bool target_allowed(const RailState& rail, const Flight& flight) noexcept;
  void fenced(const Event& event);

  // connect.cc
  Result<uint32_t> reach(const Port& port, std::span<const std::byte> address) const;
  void out_down(const PathRef& at);
  void in_down(const PathRef& at);
  void forget_end(RailState& rail, uint32_t path, bool inbound);
  void break_path(OutPath& path, const PathRef& at, Remote started);

  // datapath.cc
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
  void count(const Flight& flight, RailState& rail, InPath* in);
  void land_duplicate(uint32_t packet);
  void refuse(uint32_t flight, InPath* in);
  void fail_locally(uint32_t flight, Errc code, Remote remote);
  void drop(uint32_t packet);
  void acknowledge(uint32_t flight, InPath* in);
  void acknowledged(uint32_t flight);
  void complete_flight(uint32_t flight);
  void complete(uint32_t flight, Errc code, Remote remote);
  void report(const PathRef& at, const WireEvent& event);
  void enqueue(const PathRef& at, RailState& rail, const WireEvent& event);
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
  const PairFaults& pair_faults(const PortLocation& from, uint32_t to_port) const noexcept;

  // chaos.cc
  void plan_now(int64_t time_ns, const Fault& fault);
  Fault draw(Fault::Kind kind, int64_t lasts_ns);

  // control.cc
  void carry(Port& port, uint32_t to_port, std::span<const std::byte> datagram);
  void deliver(uint32_t packet, uint32_t to_port);

  const WorldOptions options_;
  mutable std::mutex mutex_;  // realtime only: with virtual time nobody else is there
  int64_t now_ns_ = 0;        // of the event that runs, or the last one
  int64_t real_now_ns_ = 0;   // realtime: of the last caller
  EventQueue<Event> queue_;
  TraceHash hash_;
  // One for each purpose, so that a change in one does not shift the others.
  Rng wire_rng_, control_rng_, key_rng_, fault_rng_;
  std::deque<Node> nodes_;
  std::deque<Nic> nics_;
  std::vector<std::string> fabrics_;          // names of networks
  std::vector<std::unique_ptr<Port>> ports_;  // by number - 1; null: closed
  std::vector<PortLocation> locations_;                 // in the same way, also of those that have closed
  Pool<Flight> flights_;
  Pool<Packet> packets_;
  FaultTable faults_;
  uint64_t events_ = 0;  // of the network
  std::function<void(const Arrival&)> observer_;
  std::vector<uint32_t> wakes_;  // ports with something new, virtual time only
};

/// Engines hold it as their runtime and through their networks, so it is shared: it must outlive
/// whichever of them is last.
struct World::Impl final : Runtime {
  explicit Impl(const WorldOptions& options)
      : wire(options), world_driver(wire, Rng(options.seed ^ 0x6472697665720000)) {}

  Wire wire;
  WorldDriver world_driver;

 private:
  Driver& driver() noexcept override { return world_driver; }
};

/// A new world with an id of its own, so that open() finds it by its token.
std::shared_ptr<World::Impl> make_world(const WorldOptions& options);
std::string world_token(const World::Impl& world, uint32_t node);
struct TokenTarget {
  std::shared_ptr<World::Impl> world{};
  uint32_t node = 0;
};
/// Fails with kInvalidArgument, or kClosed when the world is gone.
Result<TokenTarget> find_world(const std::vector<std::string>& devices);

}  // namespace fabric::sim

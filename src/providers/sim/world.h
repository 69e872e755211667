#pragma once

#include <deque>
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
#include "providers/sim/model.h"
#include "providers/sim/pool.h"

// The network of a simulated world. Wire holds all of it and is the only thing that changes it;
// its parts are in the rooms that every provider has: connect.cc, memory.cc, datapath.cc,
// control.cc. open.cc puts the provider contract in front of it, world.cc has its clock.

namespace fabric::sim {

inline constexpr uint32_t kNone = UINT32_MAX;
/// Immediates that a rail holds for its engine. Beyond it the sender waits (RNR): none is dropped.
inline constexpr uint32_t kImmediatesMax = 65536;
/// Datagrams that a port holds. Beyond it they are dropped, as UDP would.
inline constexpr uint32_t kDatagramsMax = 4096;
inline constexpr uint32_t kControlBytesMax = 65536 + 1024;
/// How long a NIC repeats what nobody answers: RC's seven retries of 67 ms.
inline constexpr int64_t kRetryNs = 500'000'000;
/// How long a sender waits for a receiver without room before it offers the packet again.
inline constexpr int64_t kReceiverNotReadyNs = 10'000;
/// Stopping a path or a registration: a command to the NIC.
inline constexpr int64_t kTeardownNs = 1'000;

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
  int64_t egress_free_ns = 0;
  int64_t ingress_free_ns = 0;
  bool transmit_due = false;  // an event will look at `ready`
  Fifo<PathRef> ready{};      // paths with something to send, served in turn, a packet each

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
  bool left = false;      // a packet of it is out
  bool ended = false;     // the sender has its completion
  bool refused = false;   // by the target, which takes no more of it
  bool lost = false;      // unordered: the retries are running out
  Errc code = Errc::kOk;  // what the acknowledgement will say
  Remote remote = Remote::kDelivered;
};

/// A part of a write, or a control datagram, with its bytes.
struct Packet {
  uint32_t flight = kNone;
  uint32_t from_port = 0;  // datagrams only
  uint64_t offset = 0;
  int64_t on_wire_ns = 0;
  std::vector<std::byte> bytes{};
};

/// The sender's end.
struct OutPath {
  enum class State : uint8_t { kOpened, kStarted, kClosing, kDown };
  State state = State::kOpened;
  bool ready = false;       // it stands in Nic::ready
  bool timing_out = false;  // a packet met nobody: the retries are running out
  PathRef to{};
  uint64_t nonce = 0;
  uint64_t to_nonce = 0;
  uint32_t first = kNone, last = kNone;  // flights without a completion, in posting order
  uint32_t unsent = kNone;               // the first of them that has not left completely
  uint32_t posted = 0;                   // taken, and its completion not polled
  uint64_t window_used = 0;
  int64_t last_arrival_ns = 0;
};

/// The target's end.
struct InPath {
  bool down = false;  // nothing lands through it any more
  PathRef from{};
  uint64_t hello_nonce = 0;
  uint64_t nonce = 0;
  uint64_t taken = 0;  // immediates
  int64_t last_landing_ns = 0;
  int64_t last_ack_ns = 0;
  Fifo<uint32_t> waiting{};  // packets behind an immediate that the receiver had no room for
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
  std::deque<OutPath> out{};
  std::deque<InPath> in{};
  std::map<std::pair<uint32_t, uint64_t>, uint32_t> accepted{};  // (port, nonce) of a hello
  std::vector<Region> regions{};
  std::vector<uint32_t> free_regions{};
  Fifo<WireEvent> events{};
  uint32_t immediates = 0;  // of those events
  uint32_t posted = 0;      // taken, and its completion not polled
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
  int timer_fd = -1;  // realtime only
  bool asleep = false;
  int64_t timer_due_ns = kNeverNs;
};

struct Node {
  std::vector<NodeNetwork> networks{};
  std::vector<uint32_t> first_nic{};  // of each network
};

enum class EventKind : uint8_t {
  kTransmit,       // a NIC may send: subject = NIC
  kArrive,         // the first bit of a packet: subject = packet
  kLand,           // its last bit is through the receiver's NIC
  kReceiverReady,  // what waits at a target's end is offered again
  kAck,            // the sender learns how a flight ended: subject = flight
  kTimeout,        // the retries of a path are over
  kOutDown,        // close_path() of a sender's end takes effect
  kInDown,         // and of a target's end
  kFenced,         // deregister_memory() takes effect: subject = cookie
  kDatagram,       // subject = packet
};

struct Event {
  int64_t time_ns = 0;
  uint64_t order = 0;
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
  void run_to(int64_t time_ns);  ///< virtual time only
  uint64_t trace_hash() const noexcept;
  uint64_t under_way() const noexcept;  ///< pieces and packets of which something is left
  Result<Port*> open_port(uint32_t node, const Network& spec, const OpenContext& context);
  void close_port(Port& port) noexcept;

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
  void wake_later(Port& port);
  void set_timer(Port& port, int64_t due_ns);
  void trace(EventKind kind, const Nic& nic, uint64_t size_bytes, uint32_t imm) noexcept;
  void trace(const WireEvent& event, const Nic& nic) noexcept;
  Port* find_port(uint32_t number) noexcept;
  RailState* find_rail(const PathRef& at) noexcept;
  OutPath* find_out(const PathRef& at) noexcept;
  InPath* find_in(const PathRef& at) noexcept;
  int64_t delay_ns(const Nic& nic) noexcept;

  // memory.cc
  static const Region* find_region(const RailState& rail, uint64_t key) noexcept;
  bool source_allowed(const Flight& flight) noexcept;
  static bool target_allowed(const RailState& rail, const Flight& flight) noexcept;
  void fenced(const Event& event);

  // connect.cc
  Result<uint32_t> reach(const Port& port, std::span<const std::byte> address) const;
  void path_timed_out(const PathRef& at);
  void out_down(const PathRef& at);
  void in_down(const PathRef& at);
  void break_path(OutPath& path, const PathRef& at, Remote left);

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
  bool take(uint32_t packet, RailState& rail, InPath* in);
  void receiver_ready(const PathRef& at);
  void refuse(uint32_t flight, InPath* in);
  void end_later(uint32_t flight, int64_t time_ns, Errc code, Remote remote);
  void lose(uint32_t packet);
  void drop(uint32_t packet);
  void acknowledge(uint32_t flight, InPath* in);
  void acknowledged(uint32_t flight);
  void end(uint32_t flight, Errc code, Remote remote);
  void report(const PathRef& at, const WireEvent& event);

  // control.cc
  void carry(Port& port, uint32_t to_port, std::span<const std::byte> datagram);
  void deliver(uint32_t packet, uint32_t to_port);

  const WorldOptions options_;
  mutable std::mutex mutex_;
  int64_t now_ns_ = 0;       // of the event that runs, or the last one
  int64_t real_now_ns_ = 0;  // realtime: of the last caller
  uint64_t next_order_ = 0;
  std::vector<Event> heap_;
  TraceHash hash_;
  // One for each purpose, so that a change in one does not shift the others.
  Rng wire_rng_, control_rng_, key_rng_;
  std::deque<Node> nodes_;
  std::deque<Nic> nics_;
  std::vector<std::unique_ptr<Port>> ports_;  // by number - 1; null: closed
  Pool<Flight> flights_;
  Pool<Packet> packets_;
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

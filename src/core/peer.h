#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <fabric/peer.h>
#include <fabric/provider.h>
#include <fabric/stats.h>

#include "control/message.h"
#include "control/reliable.h"
#include "core/pending.h"
#include "core/report.h"
#include "core/slot_table.h"
#include "core/state_mutex.h"
#include "core/timer_heap.h"

// Sessions with other engines: handshake, control channel, routes. The handshake is symmetric: each
// side picks its own session number, and the session is up once each side has proof that the other
// received it. Two sides that connect at the same time therefore need no tie-break
// (docs/design/0004-sessions.md).

namespace fabric::core {

class EngineCore;
struct Op;
struct RailSlot;

inline constexpr uint32_t kKinds = 3;
inline constexpr uint8_t kNoNetwork = 0xff;

/// A reply that is sent once every write posted to the peer up to `upto_seq` has retired.
struct DrainReply {
  uint64_t upto_seq = 0;
  control::MessageType type{};
  uint32_t ref = 0;
};

/// Counter keys that one session may revoke: this times Config::names_per_peer_max. Both sides
/// remember them for the lifetime of the session; a revocation beyond the limit is never proved.
inline constexpr uint32_t kRevokedKeysPerName = 16;

/// The local end of a path that a peer opened to this engine.
struct InboundPath {
  uint32_t ref = 0;  ///< the peer's number for it: a later path has a larger one
  uint8_t network = 0, rail = 0;
  uint8_t remote_rail = 0;
  uint32_t id = 0;  ///< the provider's path id
  bool closing = false;
};

/// Credits that a message takes. One for each 64 KiB, so that the credits also bound the bytes that
/// a receiver has to keep.
constexpr uint32_t message_credits(uint64_t bytes) noexcept {
  return bytes <= control::kMessageWholeMax
             ? 1
             : static_cast<uint32_t>((bytes + control::kMessageWholeMax - 1) /
                                     control::kMessageWholeMax);
}

struct ChannelCredit {
  uint32_t outstanding = 0;        ///< of messages sent and not yet acknowledged by kMessageDone
  std::deque<uint32_t> waiting{};  ///< sends that wait for credit, by operation slot
  /// The operation whose message is being sent in parts; those in `waiting` follow it.
  uint32_t sending = UINT32_MAX;
  uint32_t sent_bytes = 0;  ///< of that message
};

/// A request sent to the peer. Its operation may complete before the reply arrives; `op` is then
/// kNone.
struct PendingRequest {
  uint32_t op = UINT32_MAX;
  bool is_message = false;
  uint16_t channel = 0;
  uint32_t credits = 0;  ///< that its reply returns
};

/// A region that was revoked, or one grant of it.
struct Revocation {
  RegionId region{};
  GrantId grant{};
};

/// A message that arrived before the numbers before it.
struct EarlyMessage {
  control::MessageType type{};
  std::vector<std::byte> body{};
  bool newer_minor = false;
};

/// The parts of a message that have arrived.
struct PartialMessage {
  uint32_t ref = 0;
  uint32_t total_bytes = 0;
  std::vector<std::byte> bytes{};
};

/// A message whose listener has no room. It is acknowledged once it has been delivered.
struct HeldMessage {
  uint32_t ref = 0;
  std::unique_ptr<MessageBuffer> buffer{};
};

/// What submitters may read of a Peer without the state lock, under which it changes.
struct PeerHead : SlotHead {
  /// Read without the lock to reject early; the worker checks it again before it posts.
  std::atomic<PeerState> state{PeerState::kLost};
  std::atomic<uint32_t> message_bytes_max{0};  ///< 0: not known yet; a bound, relaxed
};

/// One session with one incarnation of a remote engine, or with this engine itself. Owned by the
/// table of Peers and guarded by the state lock, except for its head.
struct Peer : PeerHead {
  uint32_t slot FABRIC_GUARDED_BY(state_lock) = 0;
  bool is_self FABRIC_GUARDED_BY(state_lock) = false;
  bool passive FABRIC_GUARDED_BY(state_lock) = false;  ///< the remote engine opened the session
  control::Address remote FABRIC_GUARDED_BY(state_lock){};
  control::Hello hello FABRIC_GUARDED_BY(state_lock){};  ///< received in its hello or welcome
  ConnectOptions options FABRIC_GUARDED_BY(state_lock){};
  uint64_t local_session FABRIC_GUARDED_BY(state_lock) = 0;
  uint64_t remote_session FABRIC_GUARDED_BY(state_lock) = 0;
  std::unique_ptr<control::ReliableChannel> channel FABRIC_GUARDED_BY(state_lock){};

  struct Link {
    uint8_t network = 0;
    uint32_t id = 0;
  };
  std::vector<Link> links FABRIC_GUARDED_BY(state_lock){};  ///< in the local order of networks
  uint32_t link_in_use FABRIC_GUARDED_BY(state_lock) = 0;
  /// Per local network: index in remote.networks, or -1.
  std::vector<int> section_of FABRIC_GUARDED_BY(state_lock){};
  /// Per local network: why there is no link, or null.
  std::vector<const char*> no_link_reason FABRIC_GUARDED_BY(state_lock){};

  HeapTimer timer FABRIC_GUARDED_BY(state_lock){};
  int64_t hello_due_ns FABRIC_GUARDED_BY(state_lock) = kNeverNs;
  int64_t hello_interval_ns FABRIC_GUARDED_BY(state_lock) = 0;
  /// Lost, and its last counts may still arrive: when its bound counters are aborted at the latest.
  int64_t abort_counters_ns FABRIC_GUARDED_BY(state_lock) = kNeverNs;
  /// kConnecting becomes kLost then.
  int64_t connect_deadline_ns FABRIC_GUARDED_BY(state_lock) = kNeverNs;
  int64_t last_received_ns FABRIC_GUARDED_BY(state_lock) = 0;  ///< any control message

  // Liveness (liveness.cc).
  int64_t state_since_ns FABRIC_GUARDED_BY(state_lock) = 0;
  /// A path broke without an answer, and nothing came since.
  int64_t unreachable_ns FABRIC_GUARDED_BY(state_lock) = kNeverNs;
  /// When its NIC last acknowledged a write.
  int64_t host_alive_ns FABRIC_GUARDED_BY(state_lock) = kNeverNs;
  /// No state change before: this process was stopped for a while.
  int64_t grace_until_ns FABRIC_GUARDED_BY(state_lock) = 0;
  int64_t last_ping_ns FABRIC_GUARDED_BY(state_lock) = 0;
  int64_t ping_interval_ns FABRIC_GUARDED_BY(state_lock) = 0;
  bool ping_outstanding FABRIC_GUARDED_BY(state_lock) = false;  ///< the last ping has no pong yet
  /// Writes are pending and the lease has expired.
  bool lease_wanted FABRIC_GUARDED_BY(state_lock) = false;
  /// Send time of the last ping that was answered, local clock.
  int64_t lease_start_ns FABRIC_GUARDED_BY(state_lock) = 0;
  int64_t lease_ns FABRIC_GUARDED_BY(state_lock) = INT64_MAX;

  int64_t link_full_until_ns FABRIC_GUARDED_BY(state_lock) = 0;
  uint32_t byes_left FABRIC_GUARDED_BY(state_lock) = 0;
  Errc lost_code FABRIC_GUARDED_BY(state_lock) = Errc::kOk;
  bool dirty FABRIC_GUARDED_BY(state_lock) = false;  ///< has something to send this turn
  /// One side fences the other: new operations are rejected.
  bool fencing FABRIC_GUARDED_BY(state_lock) = false;
  /// It confirmed a fence: none of its writes is in flight any more.
  bool quiet FABRIC_GUARDED_BY(state_lock) = false;
  bool announced FABRIC_GUARDED_BY(state_lock) = false;  ///< published to subscribers

  std::array<std::array<uint8_t, kKinds>, kKinds> route FABRIC_GUARDED_BY(state_lock){};
  std::array<std::array<std::string, kKinds>, kKinds> route_reason FABRIC_GUARDED_BY(state_lock){};

  PendingQueue waiting FABRIC_GUARDED_BY(state_lock){};  ///< until the session is up
  /// Per network and local rail.
  std::vector<std::array<uint32_t, kRailsMax>> paths FABRIC_GUARDED_BY(state_lock){};
  std::vector<InboundPath> inbound FABRIC_GUARDED_BY(state_lock){};
  uint64_t next_write_seq FABRIC_GUARDED_BY(state_lock) = 1;
  std::vector<DrainReply> drain_replies FABRIC_GUARDED_BY(state_lock){};
  /// A write completed with an unknown fate on a network that cannot prove a drain: no later drain
  /// reply may claim one.
  bool drain_unprovable FABRIC_GUARDED_BY(state_lock) = false;
  /// Counter keys that the peer revoked: writes under them are rejected. Each with the ref of our
  /// first request after the revocation arrived: a reply to an earlier request names the previous
  /// generation of the counter key.
  std::unordered_map<uint32_t, uint32_t> revoked_keys FABRIC_GUARDED_BY(state_lock){};
  /// Of our counter keys, remembered by the peer in the same way.
  uint32_t revocations_sent FABRIC_GUARDED_BY(state_lock) = 0;

  uint32_t next_ref FABRIC_GUARDED_BY(state_lock) = 1;
  /// By ref, which the reply repeats.
  std::map<uint32_t, PendingRequest> requests FABRIC_GUARDED_BY(state_lock){};
  /// Sent, waiting for kRegionRevoked.
  std::map<uint32_t, Revocation> region_revocations FABRIC_GUARDED_BY(state_lock){};
  std::map<uint16_t, ChannelCredit> credits FABRIC_GUARDED_BY(state_lock){};  ///< ours towards them
  /// By number; at most the channel's window.
  std::map<uint64_t, EarlyMessage> early FABRIC_GUARDED_BY(state_lock){};
  uint64_t early_bytes FABRIC_GUARDED_BY(state_lock) = 0;
  /// At most one per channel with a listener.
  std::map<uint16_t, PartialMessage> partial FABRIC_GUARDED_BY(state_lock){};
  /// Channels with a message that is being sent in parts, in the order of their turns. Few; and an
  /// empty deque would cost each idle peer half a kilobyte.
  std::vector<uint16_t> channels_in_parts FABRIC_GUARDED_BY(state_lock){};
  /// At most Config::message_credits each.
  std::map<uint16_t, std::deque<HeldMessage>> held FABRIC_GUARDED_BY(state_lock){};
  /// Counters that are aborted when the peer is lost.
  std::vector<CounterKey> bound FABRIC_GUARDED_BY(state_lock){};
  /// Slots of its imported regions, revoked ones included.
  std::vector<uint32_t> imported FABRIC_GUARDED_BY(state_lock){};
  uint32_t fence_op FABRIC_GUARDED_BY(state_lock) = UINT32_MAX;
  /// No write of this session can land here any more.
  bool fence_proved FABRIC_GUARDED_BY(state_lock) = false;
  /// The last fence that completed without proof.
  OpId unproved_fence FABRIC_GUARDED_BY(state_lock){};
  /// Its grants that are not released on every rail.
  uint32_t grants_awaited FABRIC_GUARDED_BY(state_lock) = 0;
  uint32_t names_pending FABRIC_GUARDED_BY(state_lock) = 0;

  struct Counts {
    Traffic tx{}, rx{};
  };
  /// Null before there is any traffic.
  std::unique_ptr<Counts> counts FABRIC_GUARDED_BY(state_lock){};
  Traffic& tx() FABRIC_REQUIRES(state_lock) { return ensure_counts().tx; }
  Traffic& rx() FABRIC_REQUIRES(state_lock) { return ensure_counts().rx; }
  Counts& ensure_counts() FABRIC_REQUIRES(state_lock) {
    if (counts == nullptr) counts = std::make_unique<Counts>();
    return *counts;
  }

  PeerId id() const noexcept FABRIC_REQUIRES(state_lock) { return PeerId(slot, last_generation); }
  bool usable() const noexcept {
    const PeerState s = state.load(std::memory_order_relaxed);
    return s == PeerState::kConnected || s == PeerState::kStalled;
  }
  /// The peer may have declared this engine lost. Nothing is posted until it answers a new ping.
  bool lease_expired(int64_t now_ns) const noexcept FABRIC_REQUIRES(state_lock) {
    return !is_self && now_ns - lease_start_ns >= lease_ns;
  }
  /// The peer may already consider the session connected: its kReady is in flight, or was lost.
  bool half_open() const noexcept FABRIC_REQUIRES(state_lock) {
    return state.load(std::memory_order_relaxed) == PeerState::kConnecting && remote_session != 0;
  }
};

/// The sessions of an engine: handshake (session.cc), liveness and write leases (liveness.cc), the
/// numbered control messages and the operations that are made of them (control_ops.cc), two-sided
/// messages (messages.cc), the table and the routes (peer.cc).
///
/// Owns every Peer, its control channel and its inbound path ends. Outbound paths belong to
/// Transfers, imported regions to Regions, counter keys to Counters; a Peer only holds their
/// indices.
///
/// Threads: everything but find_unlocked() needs the state lock. The worker's turn delivers
/// datagrams and timers and calls flush() at its end; set-up calls (connect, disconnect) run on
/// user threads.
///
/// Invariants: at most one Peer that is not kLost per remote engine. States only advance, except
/// kStalled -> kConnected; a lost Peer keeps its slot, and its handle keeps its meaning, until
/// recycle_lost_peer(). Every entry of `requests` and `region_revocations` is answered by the peer
/// or by lose(). A numbered message is sent until it is acknowledged (ReliableChannel); hello,
/// welcome, ping and bye are repeated by timers here.
class Peers {
 public:
  explicit Peers(EngineCore& core);

  /// Any thread, no lock.
  const PeerHead* find_unlocked(PeerId id) const noexcept {
    return table_.find(id.slot, id.generation);
  }

  Peer* find(PeerId id) const noexcept FABRIC_REQUIRES(state_lock) {
    return table_.find(id.slot, id.generation);
  }
  Peer* at(uint32_t slot) const noexcept FABRIC_REQUIRES(state_lock) { return table_.at(slot); }
  Result<PeerId> connect(const control::Address& address, const ConnectOptions& options)
      FABRIC_REQUIRES(state_lock);
  void disconnect(Peer& peer) FABRIC_REQUIRES(state_lock);
  PeerInfo info(const Peer& peer) const FABRIC_REQUIRES(state_lock);
  bool count_is_final(const Peer& peer) const
      FABRIC_REQUIRES(state_lock);  ///< PeerInfo::count_is_final
  std::vector<PeerId> list(PeerFilter filter) const FABRIC_REQUIRES(state_lock);
  std::vector<Peer*> all() const FABRIC_REQUIRES(state_lock);  ///< slots in use, lost ones included
  uint32_t live_count() const noexcept FABRIC_REQUIRES(state_lock) { return live_count_; }
  /// Messages whose listener has no room.
  uint32_t messages_held() const noexcept FABRIC_REQUIRES(state_lock) { return messages_held_; }

  /// A datagram arrived on a network.
  void on_datagram(uint8_t network, std::span<const std::byte> datagram, int64_t now_ns)
      FABRIC_REQUIRES(state_lock);
  void on_timer(Peer& peer, int64_t now_ns) FABRIC_REQUIRES(state_lock);
  /// Sends what became due in this turn: messages, retransmissions, acknowledgements.
  void flush(int64_t now_ns) FABRIC_REQUIRES(state_lock) {
    if (!dirty_.empty()) flush_dirty(now_ns);
  }
  /// A flush left messages for the next turn.
  bool has_unsent() const noexcept FABRIC_REQUIRES(state_lock) { return !dirty_.empty(); }
  /// Queues a numbered message for this turn's flush.
  void send(Peer& peer, control::MessageType type, std::vector<std::byte> body)
      FABRIC_REQUIRES(state_lock);
  /// Moves the session to `state` (kLost or kFenced) and completes everything that waits for it.
  void lose(Peer& peer, PeerState state, Errc code, bool notify_peer) FABRIC_REQUIRES(state_lock);
  /// Sends the drain replies whose writes have all retired.
  void check_drains(Peer& peer) FABRIC_REQUIRES(state_lock);
  void add_drain(Peer& peer, control::MessageType type, uint32_t ref) FABRIC_REQUIRES(state_lock);

  // Sends, resolves and fences as operations.
  void start_send(Op& op) FABRIC_REQUIRES(state_lock);
  void start_resolve(Op& op) FABRIC_REQUIRES(state_lock);
  void start_fence(Op& op) FABRIC_REQUIRES(state_lock);
  void start_drop(Op& op) FABRIC_REQUIRES(state_lock);
  void fence_without_peer(Op& op)
      FABRIC_REQUIRES(state_lock);  ///< the peer did not reply within the grace period
  void await_inbound_down(Peer& peer, Op& op) FABRIC_REQUIRES(state_lock);
  void grant_released(uint32_t slot) FABRIC_REQUIRES(state_lock);
  void check_fences()
      FABRIC_REQUIRES(state_lock);  ///< a region was released, which may complete a fence
  void stop_control_op(Op& op, Errc code) FABRIC_REQUIRES(state_lock);
  bool holds_messages() const noexcept FABRIC_REQUIRES(state_lock) { return messages_held_ != 0; }
  void deliver_held() FABRIC_REQUIRES(state_lock);  ///< listeners may have room again
  void on_inbound_down(const RailSlot& rail, const RailEvent& event) FABRIC_REQUIRES(state_lock);
  void rail_lost(uint8_t network, uint8_t rail)
      FABRIC_REQUIRES(state_lock);                 ///< closes the inbound paths of the rail
  void reroute_all() FABRIC_REQUIRES(state_lock);  ///< Config::reroute: a network came or went

  // Liveness (liveness.cc).
  /// A path to the peer broke because its NIC did not answer.
  void on_unreachable(Peer& peer) FABRIC_REQUIRES(state_lock);
  /// Its NIC acknowledged a write: the host is up, whatever the state of its process. Hot.
  void on_host_alive(Peer& peer, int64_t now_ns) noexcept FABRIC_REQUIRES(state_lock) {
    peer.host_alive_ns = now_ns;
    peer.unreachable_ns = kNeverNs;
  }
  /// The network knows that the process of the peer is dead. The session is lost on return.
  void on_link_lost(uint8_t network, uint32_t link) FABRIC_REQUIRES(state_lock);
  void on_peer_dead(Peer& peer) FABRIC_REQUIRES(state_lock);
  /// The peer is silent and the network gave no recent evidence: send a zero-byte write for some.
  bool probe_due(const Peer& peer) const noexcept FABRIC_REQUIRES(state_lock);
  /// Writes are pending and the lease has expired: pings until Transfers::lease_renewed().
  void renew_lease(Peer& peer) FABRIC_REQUIRES(state_lock);
  /// There were sessions with that engine, and all are lost.
  bool all_sessions_lost(uint64_t engine_id) const FABRIC_REQUIRES(state_lock);

  control::Address own_address(bool for_self) const FABRIC_REQUIRES(state_lock);
  void close_all() FABRIC_REQUIRES(state_lock);
  bool inbound_closed() const FABRIC_REQUIRES(state_lock);  ///< every inbound path end is closed
  bool byes_sent() const FABRIC_REQUIRES(state_lock);       ///< every bye was sent or answered

 private:
  Peer* make(const control::Address& address, bool is_self) FABRIC_REQUIRES(state_lock);
  Peer* by_engine(uint64_t engine_id) const FABRIC_REQUIRES(state_lock);
  Peer* by_session(uint64_t local_session) const FABRIC_REQUIRES(state_lock);
  bool open_links(Peer& peer) FABRIC_REQUIRES(state_lock);
  void choose_routes(Peer& peer) FABRIC_REQUIRES(state_lock);
  void set_state(Peer& peer, PeerState state, Errc code) FABRIC_REQUIRES(state_lock);
  void connected(Peer& peer) FABRIC_REQUIRES(state_lock);
  void send_hello(Peer& peer, control::MessageType type) FABRIC_REQUIRES(state_lock);
  void send_unnumbered(Peer& peer, control::MessageType type, std::span<const std::byte> body)
      FABRIC_REQUIRES(state_lock);
  void reject(uint8_t network, const control::Hello& hello, uint64_t to_session, Errc code)
      FABRIC_REQUIRES(state_lock);
  void schedule(Peer& peer) FABRIC_REQUIRES(state_lock);
  control::Hello own_hello(const Peer& peer) const FABRIC_REQUIRES(state_lock);

  int64_t heartbeat_ns(const Peer& peer) const noexcept FABRIC_REQUIRES(state_lock);
  int64_t ping_at(const Peer& peer) const noexcept FABRIC_REQUIRES(state_lock);
  int64_t lost_at(const Peer& peer) const noexcept FABRIC_REQUIRES(state_lock);
  int64_t state_change_at(const Peer& peer) const noexcept FABRIC_REQUIRES(state_lock);
  int64_t liveness_at(const Peer& peer) const noexcept FABRIC_REQUIRES(state_lock);
  void check_liveness(Peer& peer) FABRIC_REQUIRES(state_lock);
  void on_received(Peer& peer, int64_t now_ns) FABRIC_REQUIRES(state_lock);
  void ping(Peer& peer) FABRIC_REQUIRES(state_lock);
  void on_ping(Peer& peer, const control::Body& body) FABRIC_REQUIRES(state_lock);
  void on_pong(Peer& peer, const control::Body& body) FABRIC_REQUIRES(state_lock);
  void on_wrong_job(uint8_t network, std::span<const std::byte> datagram)
      FABRIC_REQUIRES(state_lock);
  bool refuse_stale_hello(const control::Header& header, const control::Address& from)
      FABRIC_REQUIRES(state_lock);
  bool restrict_networks(Peer& peer, const ConnectOptions& options) FABRIC_REQUIRES(state_lock);

  void on_hello(uint8_t network, const control::Header& header, const control::Body& body)
      FABRIC_REQUIRES(state_lock);
  void on_welcome(Peer& peer, const control::Header& header, const control::Body& body)
      FABRIC_REQUIRES(state_lock);
  void on_reject(Peer& peer, const control::Body& body) FABRIC_REQUIRES(state_lock);
  bool on_numbered(Peer& peer, const control::Frame& frame) FABRIC_REQUIRES(state_lock);
  void on_path_open(Peer& peer, const control::Body& body) FABRIC_REQUIRES(state_lock);
  void on_path_answer(Peer& peer, const control::Body& body) FABRIC_REQUIRES(state_lock);
  void on_path_close(Peer& peer, const control::Body& body) FABRIC_REQUIRES(state_lock);
  void on_path_drained(Peer& peer, const control::Body& body) FABRIC_REQUIRES(state_lock);
  bool take_message(Peer& peer, const control::Frame& frame) FABRIC_REQUIRES(state_lock);
  void take_early(Peer& peer) FABRIC_REQUIRES(state_lock);
  void on_message(Peer& peer, const control::Body& body) FABRIC_REQUIRES(state_lock);
  void on_message_part(Peer& peer, const control::Body& body) FABRIC_REQUIRES(state_lock);
  void accept_message(Peer& peer, uint32_t ref, uint16_t channel, std::vector<std::byte> bytes)
      FABRIC_REQUIRES(state_lock);
  void message_answered(Peer& peer, const PendingRequest& request, Op* op, Errc code)
      FABRIC_REQUIRES(state_lock);
  void start_sends(Peer& peer, uint16_t channel) FABRIC_REQUIRES(state_lock);
  void send_parts(Peer& peer) FABRIC_REQUIRES(state_lock);
  bool send_part(Peer& peer, ChannelCredit& credit) FABRIC_REQUIRES(state_lock);
  static void end_parts(Peer& peer, uint16_t channel) FABRIC_REQUIRES(state_lock);
  bool withdraw_parts(Peer& peer, const Op& op) FABRIC_REQUIRES(state_lock);
  void on_resolve(Peer& peer, const control::Body& body) FABRIC_REQUIRES(state_lock);
  void on_resolved(Peer& peer, const control::Body& body) FABRIC_REQUIRES(state_lock);
  void on_revoke_region(Peer& peer, const control::Body& body) FABRIC_REQUIRES(state_lock);
  void on_fence(Peer& peer, const control::Body& body) FABRIC_REQUIRES(state_lock);
  void on_done(Peer& peer, control::MessageType type, const control::Body& body)
      FABRIC_REQUIRES(state_lock);
  void on_revoke_key(Peer& peer, const control::Body& body) FABRIC_REQUIRES(state_lock);
  void on_abort_key(Peer& peer, const control::Body& body) FABRIC_REQUIRES(state_lock);
  Op* take_request(Peer& peer, uint32_t ref, PendingRequest& pending) FABRIC_REQUIRES(state_lock);
  uint32_t new_request(Peer& peer, const Op& op, bool is_message) FABRIC_REQUIRES(state_lock);
  static bool outdated(const Peer& peer, const control::ResolvedNames& answer);
  void send_request(Peer& peer, uint32_t ref, Op& op) FABRIC_REQUIRES(state_lock);
  void send_message(Peer& peer, Op& op) FABRIC_REQUIRES(state_lock);
  void send_queued_messages(Peer& peer, uint16_t channel) FABRIC_REQUIRES(state_lock);
  bool has_inbound(const RailSlot& rail, uint32_t id) const
      FABRIC_REQUIRES(state_lock);  ///< any peer
  void close_inbound(Peer& peer) FABRIC_REQUIRES(state_lock);
  void close_inbound_path(InboundPath& path) FABRIC_REQUIRES(state_lock);
  void abort_counters(Peer& peer) FABRIC_REQUIRES(state_lock);
  void complete_fence(Peer& peer, Errc code) FABRIC_REQUIRES(state_lock);
  void advance_fence(Peer& peer) FABRIC_REQUIRES(state_lock);
  bool fully_fenced(const Peer& peer) const FABRIC_REQUIRES(state_lock);
  void reset(Peer& peer) FABRIC_REQUIRES(state_lock);
  bool recycle_lost_peer() FABRIC_REQUIRES(state_lock);
  bool recycle_lost_peer(bool fenced_only) FABRIC_REQUIRES(state_lock);
  void send_bye(Peer& peer) FABRIC_REQUIRES(state_lock);
  void flush_dirty(int64_t now_ns) FABRIC_REQUIRES(state_lock);
  void flush_peer(Peer& peer, int64_t now_ns) FABRIC_REQUIRES(state_lock);
  bool transmit(Peer& peer, const control::Header& header, std::span<const std::byte> body,
                bool again) FABRIC_REQUIRES(state_lock);
  void deliver(Peer& peer, uint32_t ref, uint16_t channel, std::unique_ptr<MessageBuffer> buffer)
      FABRIC_REQUIRES(state_lock);
  void on_bad_message(Peer& peer, control::MessageType type) FABRIC_REQUIRES(state_lock);

  EngineCore& core_;
  SlotTable<Peer> table_;
  /// Local session number -> slot.
  std::map<uint64_t, uint32_t> sessions_ FABRIC_GUARDED_BY(state_lock);
  /// Peers with something to send, by slot.
  std::vector<uint32_t> dirty_ FABRIC_GUARDED_BY(state_lock);
  uint64_t next_session_ FABRIC_GUARDED_BY(state_lock) = 1;
  uint32_t messages_held_ FABRIC_GUARDED_BY(state_lock) = 0;  ///< of all peers
  uint32_t live_count_ FABRIC_GUARDED_BY(state_lock) = 0;
};

}  // namespace fabric::core

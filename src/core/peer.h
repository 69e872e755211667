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
#include "core/timer_heap.h"

// Sessions with other engines: handshake, control channel, routes. The set-up is symmetric: each
// side picks a session number of its own, and a session is up when each knows that the other knows
// its number. So two sides that open at once need no tie-break (docs/design/0004-sessions.md).

namespace fabric::core {

class EngineCore;
struct Op;
struct RailSlot;

inline constexpr uint32_t kKinds = 3;
inline constexpr uint8_t kNoNetwork = 0xff;

/// A message that an importer or a sender owes once everything it had posted up to now has ended.
struct DrainReply {
  uint64_t upto_seq = 0;
  control::MessageType type{};
  uint32_t ref = 0;
};

/// Keys that one session may revoke: this times Config::names_per_peer_max. Both sides keep them
/// for as long as it lives; what goes beyond is never called quiet.
inline constexpr uint32_t kRevokedKeysPerName = 16;

/// A path end that a peer opened towards us.
struct InboundPath {
  uint32_t ref = 0;  ///< the peer's number for it: a later path has a larger one
  uint8_t network = 0, rail = 0;
  uint8_t remote_rail = 0;  ///< the peer's
  uint32_t id = 0;        ///< the provider's
  bool closing = false;
};

struct ChannelCredit {
  uint32_t outstanding = 0;        ///< sent to the peer and not answered
  std::deque<uint32_t> waiting{};  ///< sends that wait for credit, by operation slot
};

/// A question that went to the peer; its operation may end before the answer comes.
struct PendingRequest {
  uint32_t op = UINT32_MAX;
  bool is_message = false;
  uint16_t channel = 0;
};

/// A message whose listener has no room: it is answered once it is queued.
struct HeldMessage {
  uint32_t ref = 0;
  std::unique_ptr<MessageBuffer> buffer{};
};

/// One session with one life of a remote engine, or with the own one.
///
/// Owner: the peer table; everything under the state lock, but for the atomics in the head.
struct Peer : SlotHead {
  /// Changes under the state lock. Submitters look without it, for an early refusal: the worker
  /// looks again under the lock before anything is posted.
  std::atomic<PeerState> state{PeerState::kLost};
  std::atomic<uint32_t> message_bytes_max{0};  ///< 0: not known yet; a bound, relaxed

  uint32_t slot = 0;
  bool is_self = false;
  bool passive = false;  ///< they spoke first
  control::Address remote{};
  control::Hello hello{};  ///< what they told us
  ConnectOptions options{};
  uint64_t my_session = 0, their_session = 0;
  std::unique_ptr<control::ReliableChannel> channel{};

  struct Link {
    uint8_t network = 0;
    uint32_t id = 0;
  };
  std::vector<Link> links{};  ///< in the local order of networks
  uint32_t link_in_use = 0;
  std::vector<int> section_of{};       ///< per local network: index in remote.networks, or -1
  std::vector<const char*> no_link_reason{};  ///< per local network: why it does not reach there, or null

  HeapTimer timer{};
  int64_t hello_due_ns = kNeverNs, hello_interval_ns = 0;
  int64_t abort_counters_ns = kNeverNs;  ///< lost, and its last counts may be on their way
  int64_t connect_deadline_ns = kNeverNs;     ///< a session that does not come up
  int64_t last_received_ns = 0;

  // Liveness (liveness.cc).
  int64_t state_since_ns = 0;
  int64_t unreachable_ns = kNeverNs;   ///< a path broke because nobody answered; until it is heard
  int64_t host_alive_ns = kNeverNs;  ///< its NIC acknowledged a write last
  int64_t grace_until_ns = 0;          ///< not before: we were away ourselves
  int64_t last_ping_ns = 0, ping_interval_ns = 0;
  bool ping_outstanding = false;     ///< the last ping is not answered
  bool lease_wanted = false;  ///< there is something to post, and the lease is over
  int64_t lease_start_ns = 0;  ///< when we asked what was answered last: by our own clock
  int64_t lease_ns = INT64_MAX;

  int64_t link_full_until_ns = 0;
  uint32_t byes_left = 0;
  Errc lost_code = Errc::kOk;
  bool dirty = false;      ///< has something to send this turn
  bool fencing = false;     ///< being fenced, by us or by them: takes no new operation
  bool announced = false;  ///< the subscribers have heard of it

  std::array<std::array<uint8_t, kKinds>, kKinds> route{};
  std::array<std::array<std::string, kKinds>, kKinds> route_reason{};

  PendingQueue waiting{};                                  ///< until the session is up
  std::vector<std::array<uint32_t, kRailsMax>> paths{};  ///< per network and local rail
  std::vector<InboundPath> inbound{};
  uint32_t rotation = 0;
  uint64_t next_write_seq = 1;
  std::vector<DrainReply> drain_replies{};
  /// A write to it ended without proof on a network that has none: "drained" cannot be said again.
  bool unproved = false;
  /// Keys of theirs under which nothing may be posted any more, because they closed them, each with
  /// the number of our first question after we heard of that: an answer to an earlier one is of the
  /// life that is over.
  std::unordered_map<uint32_t, uint32_t> revoked_keys{};
  uint32_t revocations_sent = 0;  ///< of ours, that they keep like this

  uint32_t next_ref = 1;
  std::map<uint32_t, PendingRequest> requests{};             ///< by the number that the answer brings back
  std::map<uint32_t, RegionId> region_revocations{};   ///< revocations that await their answer
  std::map<uint16_t, ChannelCredit> credits{};  ///< ours towards them
  std::map<uint16_t, std::deque<HeldMessage>> held{};  ///< at most Config::message_credits each
  std::vector<CounterKey> bound{};                            ///< counters that end with this peer
  std::vector<uint32_t> imported{};  ///< slots of its regions, those that it took back included
  uint32_t fence_op = UINT32_MAX;
  OpId unproved_fence{};            ///< a fence that ended without proof; of several, the last
  uint32_t grants_awaited = 0;  ///< rails that have not let go of keys that only it had
  uint32_t names_pending = 0;

  struct Counts {
    Traffic tx{}, rx{};
  };
  std::unique_ptr<Counts> counts{};  ///< of its traffic; null before there is any
  Traffic& tx() { return made_counts().tx; }
  Traffic& rx() { return made_counts().rx; }
  Counts& made_counts() {
    if (counts == nullptr) counts = std::make_unique<Counts>();
    return *counts;
  }

  PeerId id() const noexcept { return PeerId(slot, last_generation); }
  bool usable() const noexcept {
    const PeerState s = state.load(std::memory_order_relaxed);
    return s == PeerState::kConnected || s == PeerState::kStalled;
  }
  /// The other side may have given us up: nothing is posted until it has answered a new ping.
  bool lease_expired(int64_t now_ns) const noexcept {
    return !is_self && now_ns - lease_start_ns >= lease_ns;
  }
  /// The other side may count the session as up already: its "ready" is on its way, or got lost.
  bool half_open() const noexcept {
    return state.load(std::memory_order_relaxed) == PeerState::kConnecting && their_session != 0;
  }
};

class Peers {
 public:
  explicit Peers(EngineCore& core);

  // State lock held.
  Peer* find(PeerId id) const noexcept { return table_.find(id.slot, id.generation); }
  Peer* at(uint32_t slot) const noexcept { return table_.at(slot); }
  Result<PeerId> connect(const control::Address& address, const ConnectOptions& options);
  void disconnect(Peer& peer);
  PeerInfo info(const Peer& peer) const;
  std::vector<PeerId> live() const;
  std::vector<Peer*> all() const;  ///< slots in use, lost ones included
  uint32_t live_count() const noexcept { return live_count_; }
  uint32_t messages_held() const noexcept { return messages_held_; }  ///< for want of a listener's room

  /// A datagram arrived on a network.
  void on_datagram(uint8_t network, std::span<const std::byte> datagram, int64_t now_ns);
  void on_timer(Peer& peer, int64_t now_ns);
  /// Sends what is owed this turn: messages, repeats, acknowledgements.
  void flush(int64_t now_ns) {
    if (!dirty_.empty()) flush_dirty(now_ns);
  }
  /// Messages that go out in the next turn's flush.
  bool has_unsent() const noexcept { return !dirty_.empty(); }
  /// Queues a numbered message; it goes out in this turn's flush.
  void send(Peer& peer, control::MessageType type, std::vector<std::byte> body);
  void lose(Peer& peer, PeerState state, Errc code, bool notify_peer);
  /// Answers what was waiting for posted pieces to end.
  void check_drains(Peer& peer);
  void add_drain(Peer& peer, control::MessageType type, uint32_t ref);

  // Sends, resolves and fences as operations.
  void start_send(Op& op);
  void start_resolve(Op& op);
  void start_fence(Op& op);
  void fence_without_peer(Op& op);  ///< the peer's grace is over
  void grant_released(uint32_t slot);
  void check_fences();  ///< a region has ended that stood in the way
  void stop_control_op(Op& op, Errc code);
  bool holds_messages() const noexcept { return messages_held_ != 0; }
  void deliver_held();  ///< listeners may have room again
  void on_inbound_down(const RailSlot& rail, const WireEvent& event);
  void rail_lost(uint8_t network, uint8_t rail);  ///< its ends of paths in are closed
  void reroute_all();                     ///< Config::reroute: a network came or went

  // Liveness: what the network says about a peer, and who asks.
  /// A path to it broke because nobody answered.
  void on_unreachable(Peer& peer);
  /// Its NIC acknowledged a write: the host is there, whatever its process does. Hot.
  void on_host_alive(Peer& peer, int64_t now_ns) noexcept {
    peer.host_alive_ns = now_ns;
    peer.unreachable_ns = kNeverNs;
  }
  /// The network knows that its process has ended. Ends the session before it returns.
  void on_link_lost(uint8_t network, uint32_t link);
  void on_peer_dead(Peer& peer);
  /// Silent, and the network has said nothing lately: a write of no bytes would make it speak.
  bool probe_due(const Peer& peer) const noexcept;
  /// Something is to be posted and the lease is over: asks until Transfers::peer_resumed().
  void renew_lease(Peer& peer);
  /// No session with the engine is alive, and one was.
  bool all_sessions_lost(uint64_t engine_id) const;

  control::Address own_address(bool for_self) const;
  void close_all();
  bool inbound_closed() const;  ///< no path in is open any more
  bool byes_sent() const;    ///< no goodbye is owed any more

 private:
  Peer* make(const control::Address& address, bool is_self);
  Peer* by_engine(uint64_t engine_id) const;
  Peer* by_session(uint64_t my_session) const;
  bool open_links(Peer& peer);
  void choose_routes(Peer& peer);
  void set_state(Peer& peer, PeerState state, Errc code);
  void connected(Peer& peer);
  void send_hello(Peer& peer, control::MessageType type);
  void send_unnumbered(Peer& peer, control::MessageType type, std::span<const std::byte> body);
  void reject(uint8_t network, const control::Hello& hello, uint64_t to_session, Errc code);
  void schedule(Peer& peer);
  control::Hello own_hello(const Peer& peer) const;

  int64_t heartbeat_ns(const Peer& peer) const noexcept;
  int64_t ping_at(const Peer& peer) const noexcept;
  int64_t lost_at(const Peer& peer) const noexcept;
  int64_t state_change_at(const Peer& peer) const noexcept;
  int64_t liveness_at(const Peer& peer) const noexcept;
  void check_liveness(Peer& peer);
  void on_received(Peer& peer, int64_t now_ns);
  void ping(Peer& peer);
  void on_ping(Peer& peer, const control::Body& body);
  void on_pong(Peer& peer, const control::Body& body);
  void on_wrong_job(uint8_t network, std::span<const std::byte> datagram);
  bool refuse_stale_hello(const control::Header& header, const control::Address& from);
  bool restrict_networks(Peer& peer, const ConnectOptions& options);

  void on_hello(uint8_t network, const control::Header& header, const control::Body& body);
  void on_welcome(Peer& peer, const control::Header& header, const control::Body& body);
  void on_reject(Peer& peer, const control::Body& body);
  bool on_numbered(Peer& peer, const control::Frame& frame);
  void on_path_open(Peer& peer, const control::Body& body);
  void on_path_answer(Peer& peer, const control::Body& body);
  void on_path_close(Peer& peer, const control::Body& body);
  void on_path_state(Peer& peer, const control::Body& body);
  void on_message(Peer& peer, const control::Body& body);
  void on_resolve(Peer& peer, const control::Body& body);
  void on_resolved(Peer& peer, const control::Body& body);
  void on_revoke_region(Peer& peer, const control::Body& body);
  void on_fence(Peer& peer, const control::Body& body);
  void on_done(Peer& peer, control::MessageType type, const control::Body& body);
  void on_revoke_key(Peer& peer, const control::Body& body);
  void on_abort_key(Peer& peer, const control::Body& body);
  Op* take_request(Peer& peer, uint32_t ref, PendingRequest& pending);
  uint32_t new_request(Peer& peer, const Op& op, bool is_message);
  static bool outdated(const Peer& peer, const control::ResolvedNames& answer);
  void send_request(Peer& peer, uint32_t ref, Op& op);
  void send_message(Peer& peer, Op& op);
  void send_queued_messages(Peer& peer, uint16_t channel);
  bool has_inbound(const RailSlot& rail, uint32_t id) const;  ///< of whichever peer
  void close_inbound(Peer& peer);
  void close_inbound_path(InboundPath& path);
  void abort_counters(Peer& peer);
  void complete_fence(Peer& peer, Errc code);
  void advance_fence(Peer& peer);
  bool fully_fenced(const Peer& peer) const;
  void reset(Peer& peer);
  bool recycle_lost_peer();
  void send_bye(Peer& peer);
  void flush_dirty(int64_t now_ns);
  void flush_peer(Peer& peer, int64_t now_ns);
  bool transmit(Peer& peer, const control::Header& header, std::span<const std::byte> body,
                   bool again);
  void deliver(Peer& peer, uint32_t ref, uint16_t channel, std::unique_ptr<MessageBuffer> buffer);
  void on_bad_message(Peer& peer, control::MessageType type);

  EngineCore& core_;
  SlotTable<Peer> table_;
  std::map<uint64_t, uint32_t> sessions_;  ///< own session number -> slot
  std::vector<uint32_t> dirty_;
  uint64_t next_session_ = 1;
  uint32_t messages_held_ = 0;  ///< messages held back, of all peers
  uint32_t live_count_ = 0;
};

}  // namespace fabric::core

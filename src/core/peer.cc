#include "core/peer.h"

#include <algorithm>

#include "base/check.h"
#include "core/core.h"

// The table of sessions, routes, and the loss of a session. The handshake is in session.cc, the
// messages of a connected session in control_ops.cc. State lock held throughout: on the worker, and
// on application threads in connect(), disconnect(), peer_info(), peers() and close().

namespace fabric::core {

namespace {
constexpr int64_t kCountsNs = 100'000'000;  // how long the last counts of a lost peer may take
constexpr uint32_t kByes = 5;  // a bye may get lost; a peer that misses all of them times out

bool has_route(const Peer& peer) FABRIC_REQUIRES(state_lock) {
  return std::any_of(peer.route.begin(), peer.route.end(), [](const auto& row) {
    return std::any_of(row.begin(), row.end(), [](uint8_t n) { return n != kNoNetwork; });
  });
}
}  // namespace

Peers::Peers(EngineCore& core) : core_(core), table_(core.config.peers_max) {}

std::vector<Peer*> Peers::all() const {
  std::vector<Peer*> out;
  for (uint32_t i = 0; i < table_.made(); ++i) {
    Peer* peer = table_.at(i);
    if (peer->generation.load(std::memory_order_relaxed) != 0) out.push_back(peer);
  }
  return out;
}

std::vector<PeerId> Peers::list(PeerFilter filter) const {
  std::vector<PeerId> out;
  for (const Peer* peer : all()) {
    const bool open = peer->state.load(std::memory_order_relaxed) < PeerState::kLost;
    const bool listed = filter == PeerFilter::kOpen ? open : !open && !peer->fence_proved;
    if (listed) out.push_back(peer->id());
  }
  return out;
}

Peer* Peers::by_engine(uint64_t engine_id) const {
  for (uint32_t i = 0; i < table_.made(); ++i) {
    Peer* peer = table_.at(i);
    if (peer->remote.engine_id != engine_id) continue;
    if (peer->generation.load(std::memory_order_relaxed) == 0) continue;
    if (peer->state.load(std::memory_order_relaxed) < PeerState::kLost) return peer;
  }
  return nullptr;
}

bool Peers::all_sessions_lost(uint64_t engine_id) const {
  const auto peers = all();
  return by_engine(engine_id) == nullptr &&
         std::any_of(peers.begin(), peers.end(), [&](const Peer* peer) FABRIC_REQUIRES(state_lock) {
           return peer->remote.engine_id == engine_id;
         });
}

Peer* Peers::by_session(uint64_t local_session) const {
  const auto it = sessions_.find(local_session);
  return it == sessions_.end() ? nullptr : table_.at(it->second);
}

/// Forgets a lost session that has nothing outstanding, so that its slot can be reused: a fenced
/// one if there is any, because the application may still want to fence the others.
bool Peers::recycle_lost_peer() { return recycle_lost_peer(true) || recycle_lost_peer(false); }

bool Peers::recycle_lost_peer(bool fenced_only) {
  for (Peer* peer : all()) {
    const bool lost = peer->state.load(std::memory_order_relaxed) >= PeerState::kLost;
    const bool quiet = std::all_of(peer->paths.begin(), peer->paths.end(), [](const auto& rails) {
      return std::all_of(rails.begin(), rails.end(), [](uint32_t p) { return p == kNone; });
    });
    if (!lost || !quiet || !peer->inbound.empty() || peer->fence_op != kNone) continue;
    if (fenced_only && !peer->fence_proved) continue;
    if (peer->grants_awaited > 0 || peer->abort_counters_ns != kNeverNs) continue;
    core_.regions.forget_peer(peer->id());
    core_.timers.clear(peer->timer);
    sessions_.erase(peer->local_session);
    for (const Peer::Link& link : peer->links) {
      core_.networks[link.network].network->close_link(link.id);
    }
    peer->links.clear();
    table_.recycle(peer->slot);
    return true;
  }
  return false;
}

void Peers::reset(Peer& peer) {
  core_.transfers.routes_changed();
  const auto networks = core_.networks.size();
  peer.is_self = peer.passive = peer.dirty = peer.fencing = peer.quiet = peer.announced = false;
  peer.hello = {};
  peer.options = {};
  peer.remote_session = 0;
  peer.links.clear();
  peer.link_in_use = 0;
  peer.section_of.assign(networks, -1);
  peer.no_link_reason.assign(networks, nullptr);
  peer.hello_due_ns = peer.connect_deadline_ns = peer.abort_counters_ns = kNeverNs;
  peer.hello_interval_ns = core_.config.retransmit.count();
  peer.byes_left = 0;
  peer.link_full_until_ns = 0;
  peer.unreachable_ns = peer.host_alive_ns = kNeverNs;
  peer.grace_until_ns = 0;
  peer.ping_outstanding = peer.lease_wanted = false;
  peer.ping_interval_ns = 0;
  peer.lease_ns = INT64_MAX;
  peer.lost_code = Errc::kOk;
  for (auto& row : peer.route) row.fill(kNoNetwork);
  for (auto& row : peer.route_reason) row.fill({});
  peer.waiting = {};
  std::array<uint32_t, kRailsMax> none{};
  none.fill(kNone);
  peer.paths.assign(networks, none);
  peer.inbound.clear();
  peer.next_write_seq = 1;
  peer.drain_replies.clear();
  peer.drain_unprovable = false;
  peer.revoked_keys.clear();
  peer.revocations_sent = 0;
  peer.next_ref = 1;
  peer.requests.clear();
  peer.region_revocations.clear();
  peer.credits.clear();
  peer.early.clear();
  peer.early_bytes = 0;
  peer.partial.clear();
  peer.channels_in_parts.clear();
  peer.held.clear();
  peer.bound.clear();
  peer.imported.clear();
  peer.fence_op = kNone;
  peer.fence_proved = false;
  peer.unproved_fence = {};
  peer.names_pending = 0;
  peer.counts.reset();
}

Peer* Peers::make(const control::Address& address, bool is_self) {
  uint32_t slot = 0;
  Peer* peer = table_.acquire(slot);
  if (peer == nullptr && recycle_lost_peer()) peer = table_.acquire(slot);
  if (peer == nullptr) return nullptr;
  reset(*peer);
  peer->slot = slot;
  peer->is_self = is_self;
  peer->remote = address;
  // The high half ascends, so that a late hello of an old session is recognised; the low half is
  // random, so that an outsider cannot guess the number.
  peer->local_session = next_session_++ << 32 | (core_.rng.next() & 0xffffffffu);
  peer->channel = std::make_unique<control::ReliableChannel>(
      control::ReliableChannel::Options{.retransmit_ns = core_.config.retransmit.count()});
  peer->timer.kind = HeapTimer::Kind::kPeer;
  peer->timer.index = slot;
  peer->last_received_ns = peer->state_since_ns = core_.now_ns;
  // The peer cannot have received anything of this session before now, so it does not give up
  // before now plus its time-out.
  peer->lease_start_ns = peer->last_ping_ns = core_.now_ns;
  peer->message_bytes_max.store(0, std::memory_order_relaxed);
  peer->state.store(PeerState::kConnecting, std::memory_order_relaxed);
  sessions_[peer->local_session] = slot;
  table_.publish(slot);
  ++live_count_;
  return peer;
}

/// Opens a control link on every network that both sides have. False: no link could be opened.
bool Peers::open_links(Peer& peer) {
  for (size_t n = 0; n < core_.networks.size(); ++n) {
    NetworkSlot& network = core_.networks[n];
    if (network.is_self != peer.is_self) continue;
    for (size_t s = 0; s < peer.remote.networks.size(); ++s) {
      const control::NetworkSection& section = peer.remote.networks[s];
      if (section.provider != network.provider || section.name != network.name) continue;
      auto link = network.network->open_link(section.address);
      if (!link) {
        FABRIC_LOG(core_.log, kInfo, "core", "no control link to the peer on this network",
                   {"network", network.name}, {"error", link.error()});
        peer.no_link_reason[n] = link.error().what;
        continue;
      }
      peer.section_of[n] = static_cast<int>(s);
      peer.links.push_back({static_cast<uint8_t>(n), *link});
    }
  }
  return !peer.links.empty();
}

void Peers::choose_routes(Peer& peer) {
  core_.transfers.routes_changed();
  const auto has_rail = [](const NetworkSlot& network) {
    return std::any_of(network.rails.begin(), network.rails.end(),
                       [](const RailSlot& rail) FABRIC_REQUIRES(state_lock) { return rail.up; });
  };
  for (uint32_t here = 0; here < kKinds; ++here) {
    for (uint32_t there = 0; there < kKinds; ++there) {
      std::string why;
      for (size_t n = 0; n < core_.networks.size(); ++n) {
        const NetworkSlot& network = core_.networks[n];
        const auto skip = [&](const char* reason) {
          why += (why.empty() ? "" : "; ") + network.name + ": " + reason;
        };
        if (network.is_self != peer.is_self) {
          continue;  // "self" serves this engine's own address and no other
        }
        const auto& wanted = peer.options.networks;
        if (!wanted.empty() && !peer.is_self &&
            std::find(wanted.begin(), wanted.end(), network.name) == wanted.end()) {
          skip("excluded by ConnectOptions::networks");
        } else if (core_.config.reroute && !has_rail(network)) {
          skip("all of its rails are down");
        } else if (peer.section_of[n] < 0) {
          skip(peer.no_link_reason[n] != nullptr ? peer.no_link_reason[n]
                                                 : "the peer does not have it");
        } else if ((network.memory_kinds & 1u << here) == 0) {
          skip("cannot access this memory kind here");
        } else if ((peer.remote.networks[static_cast<size_t>(peer.section_of[n])].memory_kinds &
                    1u << there) == 0) {
          skip("cannot access this memory kind there");
        } else {
          peer.route[here][there] = static_cast<uint8_t>(n);
          break;
        }
      }
      peer.route_reason[here][there] = why;
    }
  }
}

/// Applies ConnectOptions::networks to a session that the peer opened, unless paths already use the
/// routes. False: no route would be left.
bool Peers::restrict_networks(Peer& peer, const ConnectOptions& options) {
  if (peer.is_self || options.networks.empty() || peer.options.networks == options.networks) {
    return true;
  }
  const bool in_use = std::any_of(peer.paths.begin(), peer.paths.end(), [](const auto& rails) {
    return std::any_of(rails.begin(), rails.end(), [](uint32_t path) { return path != kNone; });
  });
  if (in_use || !peer.options.networks.empty()) return true;  // no route changes without an event
  const auto route = peer.route;
  const auto why = peer.route_reason;
  peer.options.networks = options.networks;
  for (auto& row : peer.route) row.fill(kNoNetwork);
  choose_routes(peer);
  if (has_route(peer)) return true;
  peer.options.networks.clear();
  core_.transfers.routes_changed();
  peer.route = route;
  peer.route_reason = why;
  return false;
}

void Peers::reroute_all() {
  for (Peer* peer : all()) {
    if (peer->is_self || peer->state.load(std::memory_order_relaxed) >= PeerState::kLost) continue;
    const auto before = peer->route;
    for (auto& row : peer->route) row.fill(kNoNetwork);
    choose_routes(*peer);
    if (peer->route == before) continue;
    core_.protocol.count(ProtocolEvent::kRerouted);
    // A route never changes without an event (contracts.md P17): the state is unchanged, the code
    // says why.
    const PeerState state = peer->state.load(std::memory_order_relaxed);
    FABRIC_LOG(core_.log, kWarning, "core", "a route changed", {"peer", peer->id()});
    Event event{.kind = EventKind::kPeer, .code = Errc::kRailLost};
    event.peer = peer->id();
    event.value = static_cast<uint64_t>(state);
    event.previous_state = state;
    core_.reporter.publish(event);
  }
}

Result<PeerId> Peers::connect(const control::Address& address, const ConnectOptions& options) {
  if (address.engine_id == core_.engine_id && address.incarnation != core_.incarnation) {
    return fail(Errc::kPeerLost, "address");
  }
  for (const std::string& name : options.networks) {
    const bool there = std::any_of(core_.networks.begin(), core_.networks.end(),
                                   [&](const NetworkSlot& n) { return n.name == name; });
    if (!there) return fail(Errc::kUnsupported, "options.networks");
  }
  const bool is_self = address.engine_id == core_.engine_id;
  if (Peer* known = by_engine(address.engine_id); known != nullptr) {
    if (address.incarnation < known->remote.incarnation) return fail(Errc::kPeerLost, "address");
    if (address.incarnation == known->remote.incarnation) {
      if (!restrict_networks(*known, options)) return fail(Errc::kUnreachable, "address");
      if (!std::exchange(known->announced, true)) {
        set_state(*known, PeerState::kConnecting, Errc::kOk);  // opened by the peer before
      }
      known->options.warm |= options.warm;
      if (options.warm && known->usable()) core_.transfers.warm(*known);
      return known->id();
    }
    lose(*known, PeerState::kLost, Errc::kPeerLost, false);  // it has restarted
  }
  Peer* peer = make(is_self ? own_address(true) : address, is_self);
  if (peer == nullptr) return fail(Errc::kExhausted, "peers_max");
  peer->options = options;
  const bool reached = open_links(*peer);
  choose_routes(*peer);
  if (!reached || !has_route(*peer)) {
    peer->state.store(PeerState::kLost, std::memory_order_relaxed);
    peer->fence_proved = true;
    --live_count_;
    // The engine's first network is its preferred one: that reason is reported.
    const auto& reasons = peer->no_link_reason;
    const auto why = std::find_if(reasons.begin(), reasons.end(), [](auto* one) { return one; });
    return fail(Errc::kUnreachable, why == reasons.end() ? "address" : *why);
  }
  if (is_self) {
    peer->remote_session = peer->local_session;
    peer->hello = own_hello(*peer);
    connected(*peer);
  } else {
    peer->announced = true;
    peer->hello_due_ns = core_.now_ns + peer->hello_interval_ns;
    peer->connect_deadline_ns = core_.now_ns + core_.config.lost_timeout.count();
    set_state(*peer, PeerState::kConnecting, Errc::kOk);
    send_hello(*peer, control::MessageType::kHello);
    schedule(*peer);
  }
  return peer->id();
}

void Peers::set_state(Peer& peer, PeerState state, Errc code) {
  core_.transfers.routes_changed();
  const PeerState old = peer.state.exchange(state, std::memory_order_acq_rel);
  peer.state_since_ns = core_.now_ns;
  FABRIC_LOG(core_.log, kInfo, "core", "peer state changed", {"peer", peer.id()},
             {"engine", peer.remote.engine_id}, {"from", old}, {"to", state});
  if (!peer.announced) return;
  Event event{.kind = EventKind::kPeer, .code = code};
  event.peer = peer.id();
  event.value = static_cast<uint64_t>(state);
  event.previous_state = old;
  core_.reporter.publish(event);
}

void Peers::lose(Peer& peer, PeerState state, Errc code, bool notify_peer) {
  core_.state_mutex.assert_held();
  const PeerState old = peer.state.load(std::memory_order_relaxed);
  if (old >= PeerState::kLost) return;
  --live_count_;
  peer.lost_code = code;
  // A session that never connected has no inbound path, and one with itself cannot be fenced.
  peer.fence_proved = peer.fence_proved || old == PeerState::kConnecting || peer.is_self;
  peer.hello_due_ns = peer.connect_deadline_ns = kNeverNs;
  // The state first: completions below must not start new work for this peer.
  set_state(peer, state, code);
  core_.regions.peer_lost(peer.id());
  core_.transfers.peer_lost(peer, code);
  const auto requests = std::exchange(peer.requests, {});
  for (const auto& [ref, request] : requests) {
    if (request.op == kNone) continue;
    Op& op = core_.ops.at(request.op);
    if (request.op != peer.fence_op) {
      // Before the session was connected nothing was sent.
      core_.complete(op, code,
                     old == PeerState::kConnecting ? Remote::kNotDelivered : Remote::kUnknown);
    } else {
      // The peer cannot reply. The fence completes when its inbound paths are down, or times out.
      op.step = 1;
      core_.timers.set(op.timer, op.deadline_ns);
    }
  }
  auto credits = std::exchange(peer.credits, {});
  for (auto& [channel, credit] : credits) {
    for (const uint32_t op : credit.waiting) {
      core_.complete(core_.ops.at(op), code, Remote::kNotDelivered);
    }
  }
  const auto revocations = std::exchange(peer.region_revocations, {});
  for (const auto& [ref, revocation] : revocations) core_.regions.revoke_answered(revocation);
  for (const auto& [channel, messages] : peer.held) {
    messages_held_ -= static_cast<uint32_t>(messages.size());
  }
  peer.held.clear();
  peer.early.clear();
  peer.early_bytes = 0;
  peer.partial.clear();
  peer.channels_in_parts.clear();
  peer.drain_replies.clear();
  peer.revoked_keys.clear();
  // Its last writes may still be in a NIC queue. An inbound path is down only after its last count,
  // so the bound counters are aborted when the last path is down, or after kCountsNs.
  peer.abort_counters_ns = core_.now_ns + kCountsNs;
  close_inbound(peer);
  if (peer.inbound.empty()) abort_counters(peer);
  peer.byes_left = notify_peer && !peer.is_self ? kByes : 0;
  if (notify_peer) send_bye(peer);
  schedule(peer);
}

void Peers::abort_counters(Peer& peer) {
  if (std::exchange(peer.abort_counters_ns, kNeverNs) == kNeverNs) return;
  core_.counters.peer_lost(peer);
}

void Peers::disconnect(Peer& peer) { lose(peer, PeerState::kLost, Errc::kPeerLost, true); }

void Peers::close_all() {
  for (Peer* peer : all()) lose(*peer, PeerState::kLost, Errc::kClosed, true);
}

bool Peers::inbound_closed() const {
  const auto peers = all();
  return std::all_of(peers.begin(), peers.end(), [](const Peer* peer) FABRIC_REQUIRES(state_lock) {
    return peer->inbound.empty();
  });
}

bool Peers::byes_sent() const {
  const auto peers = all();
  return std::all_of(peers.begin(), peers.end(), [](const Peer* peer) FABRIC_REQUIRES(state_lock) {
    return peer->byes_left == 0;
  });
}

/// The peer chooses its own routes, so the networks of its inbound paths count as well as ours.
bool Peers::count_is_final(const Peer& peer) const {
  bool reached = false, final = true;
  const auto add = [&](uint8_t network) {
    reached = true;
    final = final && core_.networks[network].count_is_final;
  };
  for (const auto& routes : peer.route) {
    for (const uint8_t network : routes) {
      if (network != kNoNetwork) add(network);
    }
  }
  for (const InboundPath& path : peer.inbound) add(path.network);
  return reached && final;
}

PeerInfo Peers::info(const Peer& peer) const {
  PeerInfo out;
  out.state = peer.state.load(std::memory_order_relaxed);
  out.engine_id = peer.remote.engine_id;
  out.incarnation = peer.remote.incarnation;
  out.app_info = peer.hello.app_info;
  out.message_bytes_max = peer.message_bytes_max.load(std::memory_order_relaxed);
  uint32_t kinds_here = 0, kinds_there = 0;
  for (const NetworkSlot& network : core_.networks) kinds_here |= network.memory_kinds;
  for (const auto& section : peer.remote.networks) kinds_there |= section.memory_kinds;
  for (uint32_t here = 0; here < kKinds; ++here) {
    for (uint32_t there = 0; there < kKinds; ++there) {
      if ((kinds_here & 1u << here) == 0 || (kinds_there & 1u << there) == 0) continue;
      const uint8_t chosen = peer.route[here][there];
      out.routes.push_back({static_cast<MemoryKind>(here), static_cast<MemoryKind>(there),
                            chosen == kNoNetwork ? "" : core_.networks[chosen].name,
                            peer.route_reason[here][there]});
    }
  }
  if (const uint8_t n = peer.route[0][0]; n != kNoNetwork) {
    const auto& section = peer.remote.networks[static_cast<size_t>(peer.section_of[n])];
    out.rails_here = static_cast<uint32_t>(core_.networks[n].rails.size());
    out.rails_there = section.rails;
    out.fence = core_.networks[n].fence;
  }
  out.count_is_final = count_is_final(peer);
  return out;
}

control::Address Peers::own_address(bool for_self) const {
  control::Address address{.engine_id = core_.engine_id, .incarnation = core_.incarnation};
  for (const NetworkSlot& network : core_.networks) {
    if (network.is_self != for_self) continue;  // "self" is in this engine's own address only
    address.networks.push_back({.provider = network.provider,
                                .name = network.name,
                                .rails = static_cast<uint8_t>(network.rails.size()),
                                .fence = network.fence,
                                .memory_kinds = network.memory_kinds,
                                .address = network.network->address()});
  }
  return address;
}

}  // namespace fabric::core

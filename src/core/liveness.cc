#include <algorithm>

#include "core/core.h"
#include "core/peer.h"

// Liveness: heartbeats, silent peers, evidence from the network, and the lease under which this
// engine writes to a peer (docs/design/0007-liveness.md). State lock held
// throughout, on the worker or in a set-up call.

namespace fabric::core {

using control::MessageType;

/// Ping interval for a silent peer. A peer with a short lease is pinged more often, but no more
/// often than `retransmit`: the peer chooses its lease.
int64_t Peers::heartbeat_ns(const Peer& peer) const noexcept {
  const int64_t shortest = std::min(core_.config.peer_timeout.count(), peer.lease_ns);
  return std::max(core_.config.retransmit.count(), shortest / 4);
}

/// When the next ping is due: one heartbeat after the last message or ping, and at most two after
/// the last ping, because only a pong extends the lease.
int64_t Peers::ping_at(const Peer& peer) const noexcept {
  if (peer.lease_wanted) return peer.last_ping_ns + peer.ping_interval_ns;
  const int64_t beat = heartbeat_ns(peer);
  return std::min(std::max(peer.last_received_ns, peer.last_ping_ns) + beat,
                  peer.last_ping_ns + 2 * beat);
}

/// When the peer is declared lost if it stays silent, given the evidence from the network.
int64_t Peers::lost_at(const Peer& peer) const noexcept {
  const int64_t by_silence = peer.last_received_ns + core_.config.lost_timeout.count();
  if (peer.unreachable_ns != kNeverNs) {
    return std::min(by_silence, peer.last_received_ns + core_.config.peer_timeout.count());
  }
  // A peer that makes progress only inside its application's calls is judged by its NIC alone, as
  // long as there is a path to probe it by.
  if (peer.hello.is_inline && core_.transfers.can_probe(peer)) return kNeverNs;
  if (peer.host_alive_ns == kNeverNs) return by_silence;
  return std::max(by_silence, peer.host_alive_ns + core_.config.lost_timeout.count());
}

/// When the peer becomes kStalled or kLost if it stays silent.
int64_t Peers::state_change_at(const Peer& peer) const noexcept {
  int64_t when = lost_at(peer);
  const bool may_stall = peer.state.load(std::memory_order_relaxed) == PeerState::kConnected;
  if (may_stall && !peer.hello.is_inline) {
    when = std::min(when, peer.last_received_ns + core_.config.peer_timeout.count());
  }
  return std::max(when, peer.grace_until_ns);
}

int64_t Peers::liveness_at(const Peer& peer) const noexcept {
  if (peer.is_self || !peer.usable()) return kNeverNs;
  return std::min(ping_at(peer), state_change_at(peer));
}

void Peers::check_liveness(Peer& peer) {
  if (peer.is_self || !peer.usable()) return;
  const int64_t now = core_.now_ns;
  // At most two heartbeats lie between two pings. A longer gap means that this process was stopped,
  // which says nothing about the peer: it gets one more heartbeat to answer.
  if (now - peer.last_ping_ns > 3 * heartbeat_ns(peer))
    peer.grace_until_ns = now + heartbeat_ns(peer);
  if (ping_at(peer) <= now) ping(peer);
  if (probe_due(peer)) core_.transfers.probe(peer);
  if (state_change_at(peer) > now) return;
  if (lost_at(peer) <= now) {
    const bool evidence = peer.unreachable_ns != kNeverNs;
    core_.protocol.count(evidence ? ProtocolEvent::kPeerLostByEvidence
                                  : ProtocolEvent::kPeerLostBySilence);
    lose(peer, PeerState::kLost, Errc::kPeerLost, true);
  } else {
    core_.protocol.count(ProtocolEvent::kPeerStalled);
    set_state(peer, PeerState::kStalled, Errc::kTimeout);
  }
}

void Peers::on_received(Peer& peer, int64_t now_ns) {
  peer.last_received_ns = now_ns;
  peer.unreachable_ns = kNeverNs;
  if (peer.state.load(std::memory_order_relaxed) == PeerState::kStalled) {
    core_.protocol.count(ProtocolEvent::kPeerResumed);
    set_state(peer, PeerState::kConnected, Errc::kOk);
  }
}

void Peers::ping(Peer& peer) {
  const bool again = std::exchange(peer.ping_outstanding, true);
  peer.last_ping_ns = core_.now_ns;
  peer.ping_interval_ns = std::min(peer.ping_interval_ns * 2, heartbeat_ns(peer));
  control::Header header{.type = MessageType::kPing,
                         .to_session = peer.remote_session,
                         .from_session = peer.local_session};
  peer.channel->fill_ack(header);
  const control::Ping body{.stamp = static_cast<uint64_t>(peer.last_ping_ns)};
  transmit(peer, header, control::encode(body), again);
}

void Peers::on_ping(Peer& peer, const control::Body& body) {
  const auto asked = control::decode_ping(body);
  if (!asked) return on_bad_message(peer, MessageType::kPing);
  send_unnumbered(peer, MessageType::kPong, control::encode(*asked));
}

void Peers::on_pong(Peer& peer, const control::Body& body) {
  const auto answer = control::decode_ping(body);
  // A stamp from the future would extend the lease without bound.
  if (!answer || answer->stamp > static_cast<uint64_t>(peer.last_ping_ns)) {
    return on_bad_message(peer, MessageType::kPong);
  }
  const auto stamp = static_cast<int64_t>(answer->stamp);
  if (stamp == peer.last_ping_ns) peer.ping_outstanding = false;
  if (stamp <= peer.lease_start_ns) return;  // overtaken by a newer one
  const bool was_over = peer.lease_expired(core_.now_ns);
  peer.lease_start_ns = stamp;
  if (peer.lease_expired(core_.now_ns)) return;  // a pong from before this process was stopped
  peer.lease_wanted = false;
  if (was_over) core_.transfers.lease_renewed(peer);
}

void Peers::renew_lease(Peer& peer) {
  if (peer.lease_wanted || peer.is_self || !peer.usable()) return;
  core_.protocol.count(ProtocolEvent::kLeaseExpired);
  peer.lease_wanted = true;
  peer.ping_interval_ns = core_.config.retransmit.count();
  ping(peer);
  schedule(peer);
}

void Peers::on_unreachable(Peer& peer) {
  peer.unreachable_ns = core_.now_ns;
  schedule(peer);  // it may have been silent for long enough already: this turn's timers check
}

void Peers::on_link_lost(uint8_t network, uint32_t link) {
  for (Peer* peer : all()) {
    const bool its = std::any_of(
        peer->links.begin(), peer->links.end(),
        [&](const Peer::Link& one) { return one.network == network && one.id == link; });
    if (its) return on_peer_dead(*peer);
  }
}

void Peers::on_peer_dead(Peer& peer) { lose(peer, PeerState::kLost, Errc::kPeerLost, false); }

bool Peers::probe_due(const Peer& peer) const noexcept {
  const int64_t half = core_.config.peer_timeout.count() / 2;
  const auto is_recent = [&](int64_t when_ns) FABRIC_REQUIRES(state_lock) {
    return when_ns != kNeverNs && core_.now_ns - when_ns < half;
  };
  return !peer.is_self && peer.usable() && core_.now_ns - peer.last_received_ns >= half &&
         !is_recent(peer.unreachable_ns) && !is_recent(peer.host_alive_ns);
}

void Transfers::lease_renewed(Peer& peer) {
  for (auto& rails : peer.paths) {
    for (const uint32_t index : rails) {
      if (index == kNone) continue;
      for (uint32_t priority = 0; priority < 3; ++priority) activate(*paths_[index], priority);
    }
  }
}

}  // namespace fabric::core

#include <algorithm>

#include "base/check.h"
#include "core/core.h"
#include "core/peer.h"

// The handshake of a session, its control channel, and its bye. State lock held throughout, on the
// worker or in a set-up call.

namespace fabric::core {

using control::Header;
using control::MessageType;

namespace {
constexpr int64_t kHelloIntervalMaxNs = 1'000'000'000;
constexpr int64_t kLinkFullNs = 100'000;  // back-off after a link refused a datagram
// More replies than a correct peer can request: its own operations bound them.
constexpr uint32_t kUnacknowledgedMax = 65536;
}  // namespace

control::Hello Peers::own_hello(const Peer& peer) const {
  control::Hello hello{.address = own_address(peer.is_self),
                       .to_incarnation = peer.remote.incarnation};
  hello.message_bytes_max = core_.config.message_bytes_max;
  hello.message_credits = core_.config.message_credits;
  hello.timeout_max_ns = core_.config.timeout_max.count();
  hello.drain_ns = core_.config.drain_timeout.count();
  hello.lost_ns = core_.config.lost_timeout.count();
  hello.is_inline = core_.driver->by_application();
  hello.app_info = core_.config.app_info;
  return hello;
}

bool Peers::transmit(Peer& peer, const Header& header, std::span<const std::byte> body,
                     bool again) {
  if (peer.links.empty()) return false;
  core_.protocol.count_sent(header.type);
  // A retransmission tries the next network: the one in use may be the cause of the loss.
  if (again) peer.link_in_use = (peer.link_in_use + 1) % static_cast<uint32_t>(peer.links.size());
  const Peer::Link& link = peer.links[peer.link_in_use];
  const auto datagram = control::encode_frame(header, body, core_.config.job_key);
  if (again) {
    ++peer.tx().retried;
    ++core_.tx.retried;
  }
  return core_.networks[link.network].network->send(link.id, datagram);
}

void Peers::send_unnumbered(Peer& peer, MessageType type, std::span<const std::byte> body) {
  Header header{
      .type = type, .to_session = peer.remote_session, .from_session = peer.local_session};
  peer.channel->fill_ack(header);
  // Not retransmitted by the channel: messages that must arrive are repeated by a timer.
  transmit(peer, header, body, false);
}

void Peers::send_hello(Peer& peer, MessageType type) {
  send_unnumbered(peer, type, control::encode(own_hello(peer)));
}

void Peers::send_bye(Peer& peer) {
  if (peer.links.empty()) return;
  if (peer.byes_left > 0) --peer.byes_left;
  send_unnumbered(peer, MessageType::kBye, control::encode(control::Bye{.code = Errc::kPeerLost}));
  peer.hello_due_ns = core_.now_ns + peer.hello_interval_ns;
}

void Peers::reject(uint8_t network, const control::Hello& hello, uint64_t to_session, Errc code) {
  NetworkSlot& slot = core_.networks[network];
  for (const auto& section : hello.address.networks) {
    if (section.provider != slot.provider || section.name != slot.name) continue;
    auto link = slot.network->open_link(section.address);
    if (!link) return;
    core_.protocol.count_sent(MessageType::kReject);
    const Header header{.type = MessageType::kReject, .to_session = to_session};
    slot.network->send(
        *link, control::encode_frame(
                   header,
                   control::encode(control::Reject{.code = code, .incarnation = core_.incarnation}),
                   core_.config.job_key));
    slot.network->close_link(*link);
    return;
  }
}

void Peers::on_datagram(uint8_t network, std::span<const std::byte> datagram, int64_t now_ns) {
  auto frame = control::decode_frame(datagram, core_.config.job_key);
  if (!frame) {
    ++core_.control_bad;
    FABRIC_LOG(core_.log, kInfo, "core", "a control message was rejected",
               {"network", core_.networks[network].name}, {"error", frame.error()});
    if (frame.error().code == Errc::kWrongJob) on_wrong_job(network, datagram);
    return;
  }
  const Header& header = frame->header;
  core_.protocol.count_received(header.type);
  if (header.type == MessageType::kHello) {
    on_hello(network, header, frame->body);
    return;
  }
  Peer* peer = by_session(header.to_session);
  if (peer == nullptr) return;  // of a session that was forgotten
  if (header.type == MessageType::kReject) {
    on_reject(*peer, frame->body);
    return;
  }
  if (peer->remote_session != 0 && peer->remote_session != header.from_session) return;
  on_received(*peer, now_ns);
  const bool lost = peer->state.load(std::memory_order_relaxed) >= PeerState::kLost;
  // The welcome may have been lost, or may come too late: a bye needs the peer's session number.
  if (peer->remote_session == 0 && (lost || header.type == MessageType::kBye)) {
    peer->remote_session = header.from_session;
  }
  if (lost) {
    // The peer may not know yet: its bye stops ours, any other message is answered with one.
    if (header.type == MessageType::kBye) {
      peer->byes_left = 0;
    } else {
      send_bye(*peer);
    }
    schedule(*peer);
    return;
  }
  if (header.type == MessageType::kWelcome) {
    on_welcome(*peer, header, frame->body);
    return;
  }
  if (header.type == MessageType::kBye) {
    const bool known = control::decode_bye(frame->body).has_value();
    if (known) send_bye(*peer);
    lose(*peer, PeerState::kLost, Errc::kPeerLost, false);
    return;
  }
  if (peer->remote_session == 0) return;  // overtook the welcome
  peer->channel->on_ack(header.ack, header.ack_bits);
  if (!peer->channels_in_parts.empty()) send_parts(*peer);  // there may be room for more
  // kReady, or any numbered message, proves that our welcome arrived.
  if (peer->state.load(std::memory_order_relaxed) == PeerState::kConnecting) connected(*peer);
  if (header.type == MessageType::kPing) on_ping(*peer, frame->body);
  if (header.type == MessageType::kPong) on_pong(*peer, frame->body);
  if (header.seq != 0 && on_numbered(*peer, *frame)) {
    peer->channel->arrived(header.seq);
    if (!peer->early.empty()) take_early(*peer);
  }
  if (!peer->dirty) {
    peer->dirty = true;
    dirty_.push_back(peer->slot);
  }
}

/// A message with a wrong keyed hash: nothing in it is authenticated. A wrong job key is a common
/// mistake, so the sender gets an answer at once instead of a time-out.
void Peers::on_wrong_job(uint8_t network, std::span<const std::byte> datagram) {
  const auto frame = control::peek_frame(datagram);
  if (!frame) return;
  const Header& header = frame->header;
  if (header.type == MessageType::kHello) {
    // Only to a sender that knows our incarnation, and with fewer bytes than it sent: no
    // amplification.
    const auto hello = control::decode_hello(frame->body);
    if (!hello || hello->to_incarnation != core_.incarnation) return;
    reject(network, *hello, header.from_session, Errc::kWrongJob);
    return;
  }
  if (header.type != MessageType::kReject) return;
  // Trusted only where a forgery does little harm: by a session without an answer so far, whose
  // number is known only to receivers of its hello.
  Peer* peer = by_session(header.to_session);
  const auto reject = control::decode_reject(frame->body);
  if (peer == nullptr || !reject || reject->code != Errc::kWrongJob) return;
  if (peer->state.load(std::memory_order_relaxed) != PeerState::kConnecting) return;
  if (peer->remote_session != 0) return;
  lose(*peer, PeerState::kLost, Errc::kWrongJob, false);
}

/// True for a late hello of a session or incarnation that is lost: it must not open a new session.
/// The sender may still wait for an answer, so it gets a bye.
bool Peers::refuse_stale_hello(const Header& header, const control::Address& from) {
  for (Peer* old : all()) {
    if (old->remote.engine_id != from.engine_id) continue;
    if (from.incarnation < old->remote.incarnation) return true;
    if (from.incarnation > old->remote.incarnation) continue;
    if (header.from_session > old->remote_session) continue;
    if (header.from_session == old->remote_session) {
      send_bye(*old);
      schedule(*old);
    }
    return true;
  }
  return false;
}

void Peers::on_hello(uint8_t network, const Header& header, const control::Body& body) {
  auto hello = control::decode_hello(body);
  if (!hello || header.from_session == 0) {
    ++core_.control_bad;
    return;
  }
  const control::Address& from = hello->address;
  if (from.engine_id == core_.engine_id) return;
  if (hello->to_incarnation != core_.incarnation) {
    reject(network, *hello, header.from_session, Errc::kPeerLost);
    return;
  }
  if (core_.closing.load(std::memory_order_relaxed)) {
    reject(network, *hello, header.from_session, Errc::kPeerLost);
    return;
  }
  Peer* peer = by_engine(from.engine_id);
  if (peer != nullptr) {
    if (from.incarnation < peer->remote.incarnation) return;  // of an earlier incarnation
    if (from.incarnation == peer->remote.incarnation) {
      if (header.from_session < peer->remote_session) return;  // of an earlier session
      const bool other = peer->remote_session != 0 && header.from_session != peer->remote_session;
      if (other) lose(*peer, PeerState::kLost, Errc::kPeerLost, false);
    } else {
      lose(*peer, PeerState::kLost, Errc::kPeerLost, false);
    }
    if (peer->state.load(std::memory_order_relaxed) >= PeerState::kLost) peer = nullptr;
  } else if (refuse_stale_hello(header, from)) {
    return;
  }
  if (peer == nullptr) {
    peer = make(from, false);
    if (peer == nullptr) {
      reject(network, *hello, header.from_session, Errc::kExhausted);
      return;
    }
    peer->passive = true;
    if (!open_links(*peer)) {
      lose(*peer, PeerState::kLost, Errc::kUnreachable, false);
      return;
    }
    choose_routes(*peer);
    peer->connect_deadline_ns = core_.now_ns + core_.config.lost_timeout.count();
    // Their kReady may get lost: the welcome is repeated until a message answers it.
    peer->hello_due_ns = core_.now_ns + peer->hello_interval_ns;
  }
  peer->remote_session = header.from_session;
  peer->hello = *std::move(hello);
  send_hello(*peer, MessageType::kWelcome);
  schedule(*peer);
}

void Peers::on_welcome(Peer& peer, const Header& header, const control::Body& body) {
  auto hello = control::decode_hello(body);
  if (!hello || header.from_session == 0 || hello->address.engine_id != peer.remote.engine_id ||
      hello->address.incarnation != peer.remote.incarnation) {
    ++core_.control_bad;
    return;
  }
  peer.remote_session = header.from_session;
  peer.hello = *std::move(hello);
  if (peer.state.load(std::memory_order_relaxed) == PeerState::kConnecting) connected(peer);
  send_unnumbered(peer, MessageType::kReady, {});
}

void Peers::on_reject(Peer& peer, const control::Body& body) {
  if (peer.state.load(std::memory_order_relaxed) != PeerState::kConnecting) return;
  auto reject = control::decode_reject(body);
  if (!reject) {
    ++core_.control_bad;
    return;
  }
  // A correct peer never sends kOk, which would turn the error into a success.
  const Errc code = reject->code == Errc::kOk ? Errc::kPeerLost : reject->code;
  lose(peer, PeerState::kLost, code, false);
}

void Peers::connected(Peer& peer) {
  peer.hello_due_ns = peer.connect_deadline_ns = kNeverNs;
  peer.lease_ns = std::min(core_.config.lost_timeout.count(), peer.hello.lost_ns);
  peer.message_bytes_max.store(peer.hello.message_bytes_max, std::memory_order_relaxed);
  peer.announced = true;
  set_state(peer, PeerState::kConnected, Errc::kOk);
  core_.transfers.peer_connected(peer);
  std::vector<uint16_t> channels;
  for (const auto& [channel, credit] : peer.credits) channels.push_back(channel);
  for (const uint16_t channel : channels) send_queued_messages(peer, channel);
  const auto requests = peer.requests;  // resolves and fences submitted before the session was up
  for (const auto& [ref, request] : requests) {
    if (request.op == kNone || request.is_message) continue;
    send_request(peer, ref, core_.ops.at(request.op));
  }
  schedule(peer);
}

void Peers::send(Peer& peer, MessageType type, std::vector<std::byte> body) {
  peer.channel->push(type, std::move(body));
  if (!peer.dirty) {
    peer.dirty = true;
    dirty_.push_back(peer.slot);
  }
}

void Peers::flush_dirty(int64_t now_ns) {
  // A flush may make other peers dirty (this engine's own address): those go in the next turn.
  const std::vector<uint32_t> due = std::exchange(dirty_, {});
  for (const uint32_t slot : due) {
    Peer& peer = *table_.at(slot);
    peer.dirty = false;
    if (peer.generation.load(std::memory_order_relaxed) != 0) flush_peer(peer, now_ns);
  }
}

void Peers::flush_peer(Peer& peer, int64_t now_ns) {
  if (peer.usable()) {
    control::ReliableChannel::Due due;
    while (peer.channel->next_due(now_ns, due)) {
      Header header{.type = due.type,
                    .to_session = peer.remote_session,
                    .from_session = peer.local_session,
                    .seq = due.seq};
      peer.channel->fill_ack(header);
      if (!transmit(peer, header, due.body, due.again)) {
        peer.channel->unsent(due.seq);
        peer.link_full_until_ns = now_ns + kLinkFullNs;
        break;
      }
    }
    if (peer.channel->ack_owed()) send_unnumbered(peer, MessageType::kAck, {});
    // Our own requests are bounded by our tables and do not count against the peer.
    const uint32_t own =
        core_.config.ops_max + core_.config.counters_max + core_.config.regions_max;
    if (peer.channel->unacknowledged() > kUnacknowledgedMax + own) {
      FABRIC_LOG(core_.log, kWarning, "core",
                 "a peer sends requests and never acknowledges the replies: disconnected",
                 {"peer", peer.id()});
      lose(peer, PeerState::kLost, Errc::kExhausted, true);
    }
  }
  schedule(peer);
}

void Peers::schedule(Peer& peer) {
  int64_t when = std::min(
      {peer.hello_due_ns, peer.connect_deadline_ns, peer.abort_counters_ns, liveness_at(peer)});
  if (peer.usable()) {
    when = std::min(when, std::max(peer.channel->next_time(), peer.link_full_until_ns));
  }
  if (when == kNeverNs) {
    core_.timers.clear(peer.timer);
  } else {
    core_.timers.set(peer.timer, when);
  }
}

void Peers::on_timer(Peer& peer, int64_t now_ns) {
  if (peer.abort_counters_ns <= now_ns) abort_counters(peer);
  const PeerState state = peer.state.load(std::memory_order_relaxed);
  if (peer.connect_deadline_ns <= now_ns) {
    lose(peer, PeerState::kLost, Errc::kUnreachable, peer.remote_session != 0);
    return;
  }
  if (peer.hello_due_ns <= now_ns) {
    peer.hello_interval_ns = std::min(peer.hello_interval_ns * 2, kHelloIntervalMaxNs);
    peer.hello_due_ns = now_ns + peer.hello_interval_ns;
    if (state == PeerState::kConnecting && !peer.links.empty()) {
      peer.link_in_use = (peer.link_in_use + 1) % static_cast<uint32_t>(peer.links.size());
      ++peer.tx().retried;
      ++core_.tx.retried;
      send_hello(peer, peer.passive ? MessageType::kWelcome : MessageType::kHello);
    } else if (state >= PeerState::kLost && peer.byes_left > 0) {
      send_bye(peer);
    } else {
      peer.hello_due_ns = kNeverNs;
    }
  }
  check_liveness(peer);
  if (peer.usable()) {
    flush_peer(peer, now_ns);
  } else {
    schedule(peer);
  }
}

}  // namespace fabric::core

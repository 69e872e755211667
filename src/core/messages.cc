#include "base/check.h"
#include "core/core.h"
#include "core/peer.h"

// Two-sided messages. Those of one session and channel arrive in the order in which they were
// submitted (contracts.md P7): the sender numbers them in that order, in the sequence of all
// control messages of the session, and the receiver takes them in the order of their numbers. A
// message that is withdrawn before it has a number is never sent; one that is withdrawn later still
// arrives, in its place. Other control messages keep no order.

namespace fabric::core {

using control::MessageType;

namespace {
// Bytes of messages that arrived before their turn, per peer. What does not fit is not acknowledged
// and comes again; the next one in order is always accepted.
constexpr uint64_t kEarlyBytesMax = 1u << 20;

std::vector<std::byte> message_done(uint32_t ref, Errc code) {
  return control::encode(control::Done{.ref = ref, .code = code});
}
}  // namespace

void Peers::start_send(Op& op) {
  Peer* peer = find(op.peer);
  const PeerState state =
      peer == nullptr ? PeerState::kLost : peer->state.load(std::memory_order_relaxed);
  if (state >= PeerState::kLost || peer->fencing) {
    core_.complete(op, Errc::kPeerLost, Remote::kNotDelivered);
    return;
  }
  peer->credits[op.channel].waiting.push_back(op.self);
  send_queued_messages(*peer, op.channel);
}

void Peers::send_queued_messages(Peer& peer, uint16_t channel) {
  if (!peer.usable()) return;
  ChannelCredit& credit = peer.credits[channel];
  while (!credit.waiting.empty() && credit.outstanding < peer.hello.message_credits) {
    Op& op = core_.ops.at(credit.waiting.front());
    credit.waiting.pop_front();
    if (op.list.count > peer.hello.message_bytes_max) {
      core_.complete(op, Errc::kTooLarge, Remote::kNotDelivered);
      continue;
    }
    ++credit.outstanding;
    send_message(peer, op);
  }
}

void Peers::send_message(Peer& peer, Op& op) {
  op.ref = new_request(peer, op, true);
  const auto bytes = op.list.as<const std::byte>();
  send(peer, MessageType::kMessage,
       control::encode(control::UserMessage{.ref = op.ref, .channel = op.channel, .bytes = bytes}));
}

/// Messages arrive in the order of their numbers, which is the order in which they were submitted:
/// one that comes early waits until every number before it has arrived. Numbers are retransmitted
/// until they are acknowledged, so the gap closes, or the session is lost.
///
/// False: not accepted, the peer has to send it again.
bool Peers::take_message(Peer& peer, const control::Frame& frame) {
  const uint64_t seq = frame.header.seq;
  if (seq == peer.channel->arrived_up_to() + 1) {
    on_message(peer, frame.body);
    return true;
  }
  if (peer.early_bytes + frame.body.size() > kEarlyBytesMax) return false;
  peer.early_bytes += frame.body.size();
  peer.early[seq] = {{frame.body.begin(), frame.body.end()}, frame.body.newer_minor};
  core_.protocol.count(ProtocolEvent::kMessageEarly);
  return true;
}

void Peers::take_early(Peer& peer) {
  while (!peer.early.empty() && peer.early.begin()->first <= peer.channel->arrived_up_to()) {
    const EarlyMessage message = std::move(peer.early.begin()->second);
    peer.early.erase(peer.early.begin());
    peer.early_bytes -= message.body.size();
    on_message(peer, control::Body(message.body, message.newer_minor));  // may lose the peer
  }
}

void Peers::on_message(Peer& peer, const control::Body& body) {
  auto message = control::decode_user_message(body);
  if (!message || message->bytes.size() > core_.config.message_bytes_max) {
    return on_bad_message(peer, MessageType::kMessage);
  }
  const auto listener = core_.reporter.listener(message->channel);
  if (listener == Reporter::Listener::kMissing) {
    send(peer, MessageType::kMessageDone, message_done(message->ref, Errc::kUnsupported));
    return;
  }
  auto buffer = std::make_unique<MessageBuffer>();
  buffer->bytes.assign(message->bytes.begin(), message->bytes.end());
  auto& held = peer.held[message->channel];
  if (listener == Reporter::Listener::kReady && held.empty()) {
    deliver(peer, message->ref, message->channel, std::move(buffer));
    return;
  }
  if (held.size() >= core_.config.message_credits) {
    FABRIC_LOG(core_.log, kWarning, "core", "a peer sends beyond its credit: disconnected",
               {"peer", peer.id()}, {"channel", message->channel});
    lose(peer, PeerState::kLost, Errc::kExhausted, true);
    return;
  }
  held.push_back({message->ref, std::move(buffer)});
  ++messages_held_;
}

void Peers::deliver(Peer& peer, uint32_t ref, uint16_t channel,
                    std::unique_ptr<MessageBuffer> buffer) {
  Event event{.kind = EventKind::kMessage};
  event.peer = peer.id();
  event.value = channel;
  for (Traffic* t : {&peer.rx(), &core_.rx}) {
    ++t->messages;
    t->bytes += buffer->bytes.size();
  }
  core_.reporter.deliver_message(channel, event, std::move(buffer));
  send(peer, MessageType::kMessageDone, message_done(ref, Errc::kOk));
}

void Peers::deliver_held() {
  for (Peer* peer : all()) {
    for (auto& [channel, messages] : peer->held) {
      while (!messages.empty()) {
        const auto listener = core_.reporter.listener(channel);
        if (listener == Reporter::Listener::kFull) break;
        HeldMessage message = std::move(messages.front());
        messages.pop_front();
        --messages_held_;
        if (listener == Reporter::Listener::kReady) {
          deliver(*peer, message.ref, channel, std::move(message.buffer));
        } else {
          send(*peer, MessageType::kMessageDone, message_done(message.ref, Errc::kUnsupported));
        }
      }
    }
  }
}

/// The peer's listener has the message, or the peer refused it. `op`: null when it has completed.
void Peers::message_answered(Peer& peer, uint16_t channel, Op* op, Errc code) {
  ChannelCredit& credit = peer.credits[channel];
  if (credit.outstanding > 0) --credit.outstanding;
  if (op != nullptr) {
    for (Traffic* t : {&peer.tx(), &core_.tx}) ++t->messages;
    const bool ok = code == Errc::kOk;
    core_.complete(*op, code, ok ? Remote::kDelivered : Remote::kNotDelivered,
                   ok ? op->list.count : 0);
  }
  send_queued_messages(peer, channel);
}

}  // namespace fabric::core

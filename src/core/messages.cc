#include <algorithm>

#include "base/check.h"
#include "core/core.h"
#include "core/peer.h"

// Two-sided messages. Those of one session and channel arrive in the order in which they were
// submitted (contracts.md P7): the sender numbers them in that order, in the sequence of all
// control messages of the session, and the receiver takes them in the order of their numbers. A
// message that is withdrawn before it has a number is never sent; one that is withdrawn later still
// arrives, in its place. Other control messages keep no order.
//
// A message above 64 KiB goes in parts, which are numbered messages of their own: each is
// retransmitted alone, and they arrive in order. A channel sends one message at a time; the
// channels of a session take turns, with at most kPartsInFlight parts of all of them that are not
// acknowledged. The receiver keeps one incomplete message per channel.

namespace fabric::core {

using control::MessageType;

namespace {
// Bytes of messages that arrived before their turn, per peer. What does not fit is not acknowledged
// and comes again; the next one in order is always accepted.
constexpr uint64_t kEarlyBytesMax = 1u << 20;
// A datagram of UDP is lost if one of its packets is: small parts repeat less.
constexpr uint32_t kPartBytes = 16u << 10;
// Copies of parts that one peer may need again: 256 KiB, and a quarter of the channel's window.
constexpr uint32_t kPartsInFlight = 16;
static_assert(kPartsInFlight <= control::ReliableChannel::kWindow / 4);
static_assert(uint64_t{kPartsInFlight} * kPartBytes <= kEarlyBytesMax / 4);

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
  peer->credits[op.channel].waiting.push_back(op.slot);
  send_queued_messages(*peer, op.channel);
}

void Peers::send_queued_messages(Peer& peer, uint16_t channel) {
  if (!peer.usable()) return;
  start_sends(peer, channel);
  if (!peer.channels_in_parts.empty()) send_parts(peer);
}

/// Sends what the channel has credit for, up to a message that goes in parts: the next ones follow
/// it.
void Peers::start_sends(Peer& peer, uint16_t channel) {
  ChannelCredit& credit = peer.credits[channel];
  const uint32_t most = peer.hello.message_credits;
  while (credit.sending == kNone && !credit.waiting.empty()) {
    Op& op = core_.ops.at(credit.waiting.front());
    const uint32_t credits = message_credits(op.list.count);
    // One that takes more credits than there are goes alone.
    if (credit.outstanding >= most) return;
    if (credit.outstanding > 0 && credit.outstanding + credits > most) return;
    credit.waiting.pop_front();
    if (op.list.count > peer.hello.message_bytes_max) {
      core_.complete(op, Errc::kTooLarge, Remote::kNotDelivered);
      continue;
    }
    credit.outstanding += credits;
    if (op.list.count <= control::kMessageWholeMax) {
      send_message(peer, op);
      continue;
    }
    op.ref = new_request(peer, op, true);
    credit.sending = op.slot;
    credit.sent_bytes = 0;
    peer.channels_in_parts.push_back(channel);
  }
}

/// Sends as many parts as may be in flight: one of each channel in turn, so that a stream of large
/// messages takes its share of the session and no more. Other messages need no room among them, and
/// take none: whatever else is in flight, large messages go on.
void Peers::send_parts(Peer& peer) {
  while (!peer.channels_in_parts.empty() && peer.channel->unacknowledged_parts() < kPartsInFlight) {
    const uint16_t channel = peer.channels_in_parts.front();
    peer.channels_in_parts.erase(peer.channels_in_parts.begin());
    if (send_part(peer, peer.credits[channel])) {
      start_sends(peer, channel);
    } else {
      peer.channels_in_parts.push_back(channel);
    }
  }
}

/// True: it was the last one of its message.
bool Peers::send_part(Peer& peer, ChannelCredit& credit) {
  const Op& op = core_.ops.at(credit.sending);
  const auto bytes = op.list.as<const std::byte>();
  const size_t size = std::min<size_t>(kPartBytes, bytes.size() - credit.sent_bytes);
  send(peer, MessageType::kMessagePart,
       control::encode(control::MessagePart{.ref = op.ref,
                                            .channel = op.channel,
                                            .total_bytes = op.list.count,
                                            .offset = credit.sent_bytes,
                                            .bytes = bytes.subspan(credit.sent_bytes, size)}));
  credit.sent_bytes += static_cast<uint32_t>(size);
  if (credit.sent_bytes < bytes.size()) return false;
  credit.sending = kNone;
  return true;
}

/// The message that the channel is sending in parts ends before its last part.
void Peers::end_parts(Peer& peer, uint16_t channel) {
  peer.credits[channel].sending = kNone;
  std::erase(peer.channels_in_parts, channel);
}

/// Stops a message that is being sent in parts: without its last one it is never delivered. The
/// peer forgets what it has, and sends no reply.
bool Peers::withdraw_parts(Peer& peer, const Op& op) {
  ChannelCredit& credit = peer.credits[op.channel];
  if (credit.sending != op.slot) return false;
  if (peer.usable() && credit.sent_bytes > 0) {
    send(peer, MessageType::kMessagePart,
         control::encode(control::MessagePart{.ref = op.ref,
                                              .channel = op.channel,
                                              .total_bytes = op.list.count,
                                              .offset = credit.sent_bytes}));
  }
  end_parts(peer, op.channel);
  credit.outstanding -= std::min(credit.outstanding, message_credits(op.list.count));
  peer.requests.erase(op.ref);
  return true;
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
  const bool is_part = frame.header.type == MessageType::kMessagePart;
  if (seq == peer.channel->arrived_up_to() + 1) {
    is_part ? on_message_part(peer, frame.body) : on_message(peer, frame.body);
    return true;
  }
  if (peer.early_bytes + frame.body.size() > kEarlyBytesMax) return false;
  peer.early_bytes += frame.body.size();
  peer.early[seq] = {
      frame.header.type, {frame.body.begin(), frame.body.end()}, frame.body.newer_minor};
  core_.protocol.count(ProtocolEvent::kMessageEarly);
  return true;
}

void Peers::take_early(Peer& peer) {
  while (!peer.early.empty() && peer.early.begin()->first <= peer.channel->arrived_up_to()) {
    const EarlyMessage message = std::move(peer.early.begin()->second);
    peer.early.erase(peer.early.begin());
    peer.early_bytes -= message.body.size();
    const control::Body body(message.body, message.newer_minor);
    const bool is_part = message.type == MessageType::kMessagePart;
    is_part ? on_message_part(peer, body) : on_message(peer, body);  // may lose the peer
  }
}

void Peers::on_message(Peer& peer, const control::Body& body) {
  auto message = control::decode_user_message(body);
  if (!message || message->bytes.size() > core_.config.message_bytes_max) {
    return on_bad_message(peer, MessageType::kMessage);
  }
  accept_message(peer, message->ref, message->channel,
                 {message->bytes.begin(), message->bytes.end()});
}

void Peers::on_message_part(Peer& peer, const control::Body& body) {
  auto part = control::decode_message_part(body);
  if (!part || part->total_bytes > core_.config.message_bytes_max) {
    return on_bad_message(peer, MessageType::kMessagePart);
  }
  auto it = peer.partial.find(part->channel);
  const bool known = it != peer.partial.end() && it->second.ref == part->ref;
  if (part->bytes.empty()) {
    if (known) peer.partial.erase(it);
    return;
  }
  if (part->offset == 0) {
    if (it != peer.partial.end()) {
      peer.partial.erase(it);  // a correct peer ends or withdraws one before the next
      return on_bad_message(peer, MessageType::kMessagePart);
    }
    if (core_.reporter.listener(part->channel) == Reporter::Listener::kMissing) {
      send(peer, MessageType::kMessageDone, message_done(part->ref, Errc::kUnsupported));
      return;
    }
    it = peer.partial.emplace(part->channel, PartialMessage{part->ref, part->total_bytes}).first;
  } else if (!known) {
    return;  // the rest of a message that was refused
  }
  PartialMessage& message = it->second;
  if (part->offset != message.bytes.size() || part->total_bytes != message.total_bytes) {
    peer.partial.erase(it);
    return on_bad_message(peer, MessageType::kMessagePart);
  }
  message.bytes.insert(message.bytes.end(), part->bytes.begin(), part->bytes.end());
  if (message.bytes.size() < message.total_bytes) return;
  std::vector<std::byte> complete = std::move(message.bytes);
  peer.partial.erase(it);
  accept_message(peer, part->ref, part->channel, std::move(complete));
}

void Peers::accept_message(Peer& peer, uint32_t ref, uint16_t channel,
                           std::vector<std::byte> bytes) {
  const auto listener = core_.reporter.listener(channel);
  if (listener == Reporter::Listener::kMissing) {
    send(peer, MessageType::kMessageDone, message_done(ref, Errc::kUnsupported));
    return;
  }
  auto buffer = std::make_unique<MessageBuffer>();
  buffer->bytes = std::move(bytes);
  auto& held = peer.held[channel];
  if (listener == Reporter::Listener::kReady && held.empty()) {
    deliver(peer, ref, channel, std::move(buffer));
    return;
  }
  uint32_t credits = message_credits(buffer->bytes.size());
  for (const HeldMessage& one : held) credits += message_credits(one.buffer->bytes.size());
  if (!held.empty() && credits > core_.config.message_credits) {
    FABRIC_LOG(core_.log, kWarning, "core", "a peer sends beyond its credit: disconnected",
               {"peer", peer.id()}, {"channel", channel});
    lose(peer, PeerState::kLost, Errc::kExhausted, true);
    return;
  }
  held.push_back({ref, std::move(buffer)});
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
void Peers::message_answered(Peer& peer, const PendingRequest& request, Op* op, Errc code) {
  ChannelCredit& credit = peer.credits[request.channel];
  credit.outstanding -= std::min(credit.outstanding, request.credits);
  if (op != nullptr) {
    // Refused before all of its parts were sent.
    if (credit.sending == op->slot) end_parts(peer, request.channel);
    for (Traffic* t : {&peer.tx(), &core_.tx}) ++t->messages;
    const bool ok = code == Errc::kOk;
    core_.complete(*op, code, ok ? Remote::kDelivered : Remote::kNotDelivered,
                   ok ? op->list.count : 0);
  }
  send_queued_messages(peer, request.channel);
}

}  // namespace fabric::core

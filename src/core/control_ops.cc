#include <algorithm>

#include "base/check.h"
#include "core/core.h"
#include "core/peer.h"

// The numbered messages of a connected session: paths, names, revocations, fences; two-sided
// messages are in messages.cc. Each request gets one reply; ReliableChannel retransmits and
// deduplicates. State lock held throughout: on the worker, and on threads that cancel, disconnect
// or close.

namespace fabric::core {

using control::MessageType;

namespace {
// A fence asks the peer first, so that its writes drain instead of failing; for at most this long.
constexpr int64_t kFenceGraceNs = 1'000'000'000;
// Inbound paths from one peer: one for each pair of rails, and as many again that are closing.
constexpr size_t kInboundMax = 2 * kRailsMax * kRailsMax;

MessageType done_type(MessageType request) {
  switch (request) {
    case MessageType::kRevokeRegion:
      return MessageType::kRegionRevoked;
    case MessageType::kFence:
      return MessageType::kFenced;
    case MessageType::kRevokeKey:
      return MessageType::kKeyRevoked;
    default:
      return MessageType::kMessageDone;
  }
}

std::vector<InboundPath>::iterator find_inbound(Peer& peer, const RailSlot& rail, uint32_t id)
    FABRIC_REQUIRES(state_lock) {
  return std::find_if(peer.inbound.begin(), peer.inbound.end(), [&](const InboundPath& path) {
    return path.network == rail.network && path.rail == rail.index && path.id == id;
  });
}

std::vector<std::byte> done(uint32_t ref, Errc code) {
  return control::encode(control::Done{.ref = ref, .code = code});
}
}  // namespace

/// False: not accepted, the peer has to send it again.
bool Peers::on_numbered(Peer& peer, const control::Frame& frame) {
  using Arrival = control::ReliableChannel::Arrival;
  switch (peer.channel->classify(frame.header.seq)) {
    case Arrival::kBeyond:
      return false;
    case Arrival::kDuplicate:
      peer.channel->owe_ack();
      return false;
    case Arrival::kNew:
      break;
  }
  switch (frame.header.type) {
    case MessageType::kPathOpen:
      on_path_open(peer, frame.body);
      break;
    case MessageType::kPathAnswer:
      on_path_answer(peer, frame.body);
      break;
    case MessageType::kPathClose:
      on_path_close(peer, frame.body);
      break;
    case MessageType::kPathDrained:
      on_path_drained(peer, frame.body);
      break;
    case MessageType::kMessage:
    case MessageType::kMessagePart:
      return take_message(peer, frame);
    case MessageType::kResolve:
      on_resolve(peer, frame.body);
      break;
    case MessageType::kResolved:
      on_resolved(peer, frame.body);
      break;
    case MessageType::kRevokeRegion:
      on_revoke_region(peer, frame.body);
      break;
    case MessageType::kFence:
      on_fence(peer, frame.body);
      break;
    case MessageType::kRevokeKey:
      on_revoke_key(peer, frame.body);
      break;
    case MessageType::kAbortKey:
      on_abort_key(peer, frame.body);
      break;
    case MessageType::kMessageDone:
    case MessageType::kRegionRevoked:
    case MessageType::kFenced:
    case MessageType::kKeyRevoked:
      on_done(peer, frame.header.type, frame.body);
      break;
    default:
      break;  // of a newer minor version: acknowledged and ignored
  }
  return true;
}

void Peers::on_bad_message(Peer& peer, MessageType type) {
  ++core_.control_bad;
  FABRIC_LOG(core_.log, kWarning, "core", "a control message does not parse", {"peer", peer.id()},
             {"type", control::to_string(type)});
}

// Paths

void Peers::on_path_open(Peer& peer, const control::Body& body) {
  auto open = control::decode_path_open(body);
  if (!open) return on_bad_message(peer, MessageType::kPathOpen);
  control::PathAnswer answer{.ref = open->ref};
  NetworkSlot* network = core_.network_named(open->provider, open->network);
  // "self" serves this engine's own address and no other.
  const bool reachable = network != nullptr && network->is_self == peer.is_self;
  if (!reachable || open->remote_rail >= network->rails.size()) {
    answer.code = Errc::kUnreachable;
  } else if (peer.inbound.size() >= kInboundMax) {
    answer.code = Errc::kExhausted;
  } else if (peer.fencing) {
    answer.code = Errc::kPeerLost;  // the fence would close the path under the peer's writes
  } else if (!network->rails[open->remote_rail].up) {
    answer.code = Errc::kRailLost;
  } else {
    RailSlot& rail = network->rails[open->remote_rail];
    auto id = rail.rail->accept_path(open->hello, answer.answer);
    answer.code = id.error().code;
    if (id && has_inbound(rail, *id)) {
      answer.code = Errc::kBadFormat;  // one path end under two refs: closing one closes both
    } else if (id) {
      // One path per pair of rails: the peer has closed its end of the previous one.
      for (InboundPath& old : peer.inbound) {
        const bool replaced = old.network == rail.network && old.rail == rail.index &&
                              old.remote_rail == open->rail && old.ref < open->ref;
        if (replaced) close_inbound_path(old);
      }
      peer.inbound.push_back({.ref = open->ref,
                              .network = rail.network,
                              .rail = rail.index,
                              .remote_rail = open->rail,
                              .id = *id});
    }
  }
  send(peer, MessageType::kPathAnswer, control::encode(answer));
}

void Peers::on_path_answer(Peer& peer, const control::Body& body) {
  auto answer = control::decode_path_answer(body);
  if (!answer) return on_bad_message(peer, MessageType::kPathAnswer);
  core_.transfers.path_answered(peer, answer->ref, answer->code, answer->answer);
}

void Peers::on_path_close(Peer& peer, const control::Body& body) {
  auto close = control::decode_path_close(body);
  if (!close) return on_bad_message(peer, MessageType::kPathClose);
  for (InboundPath& path : peer.inbound) {
    if (path.ref == close->ref) close_inbound_path(path);
  }
  // A path that is not found went down on its own, and its kPathDrained was sent.
}

void Peers::on_path_drained(Peer& peer, const control::Body& body) {
  auto state = control::decode_path_drained(body);
  if (!state) return on_bad_message(peer, MessageType::kPathDrained);
  core_.transfers.on_drain_report(peer, *state);
}

void Peers::close_inbound_path(InboundPath& path) {
  if (std::exchange(path.closing, true)) return;
  core_.networks[path.network].rails[path.rail].rail->close_path(path.id, true);
}

void Peers::close_inbound(Peer& peer) {
  for (InboundPath& path : peer.inbound) close_inbound_path(path);
  advance_fence(peer);
}

void Peers::rail_lost(uint8_t network, uint8_t rail) {
  for (Peer* peer : all()) {
    for (InboundPath& path : peer->inbound) {
      if (path.network == network && path.rail == rail) close_inbound_path(path);
    }
  }
}

bool Peers::has_inbound(const RailSlot& rail, uint32_t id) const {
  const auto peers = all();
  return std::any_of(peers.begin(), peers.end(), [&](Peer* peer) FABRIC_REQUIRES(state_lock) {
    return find_inbound(*peer, rail, id) != peer->inbound.end();
  });
}

void Peers::on_inbound_down(const RailSlot& rail, const RailEvent& event) {
  for (Peer* peer : all()) {
    const auto path = find_inbound(*peer, rail, event.path);
    if (path == peer->inbound.end()) continue;
    control::PathDrained state{.ref = path->ref, .imms_received = event.value};
    state.exact = rail.caps.exact_replay && event.remote != Remote::kUnknown;
    peer->inbound.erase(path);
    if (event.code == Errc::kPeerLost) on_peer_dead(*peer);
    if (peer->inbound.empty()) abort_counters(*peer);
    if (peer->usable()) send(*peer, MessageType::kPathDrained, control::encode(state));
    advance_fence(*peer);
    return;
  }
}

// Requests and their replies

uint32_t Peers::new_request(Peer& peer, const Op& op, bool is_message) {
  const uint32_t ref = peer.next_ref++;
  peer.requests[ref] = {.op = op.slot,
                        .is_message = is_message,
                        .channel = op.channel,
                        .credits = is_message ? message_credits(op.list.count) : 0};
  return ref;
}

/// Removes the request that a reply belongs to. Returns its operation, unless that has completed.
Op* Peers::take_request(Peer& peer, uint32_t ref, PendingRequest& pending) {
  const auto it = peer.requests.find(ref);
  if (it == peer.requests.end()) return nullptr;
  pending = it->second;
  peer.requests.erase(it);
  return pending.op == kNone ? nullptr : &core_.ops.at(pending.op);
}

void Peers::on_done(Peer& peer, MessageType type, const control::Body& body) {
  auto answer = control::decode_done(body);
  if (!answer) return on_bad_message(peer, type);
  if (type == MessageType::kRegionRevoked) {
    const auto it = peer.region_revocations.find(answer->ref);
    if (it == peer.region_revocations.end()) return;
    const Revocation revocation = it->second;
    peer.region_revocations.erase(it);
    core_.regions.revoke_answered(revocation);
    return;
  }
  if (type == MessageType::kKeyRevoked) {
    core_.counters.on_key_revoked(peer, answer->ref, answer->code == Errc::kOk);
    return;
  }
  const auto request = peer.requests.find(answer->ref);
  if (request == peer.requests.end()) return;
  if (request->second.is_message != (type == MessageType::kMessageDone)) {
    return on_bad_message(peer, type);  // a reply to a request of another kind
  }
  PendingRequest pending;
  Op* op = take_request(peer, answer->ref, pending);
  if (type == MessageType::kFenced) {
    if (op == nullptr || op->kind != OpKind::kFence) return;
    if (answer->code == Errc::kOk) {
      core_.protocol.count(ProtocolEvent::kFenceByReply);
      // Its writes are acknowledged, which does not prove that they are visible here (P6): the
      // fence completes when the inbound paths are down, after their last count.
      peer.quiet = true;
      await_inbound_down(peer, *op);
    } else {
      fence_without_peer(*op);  // it stopped writing, but could not prove that its writes drained
    }
    return;
  }
  if (pending.is_message) message_answered(peer, pending, op, answer->code);
}

// Names

void Peers::start_resolve(Op& op) {
  Peer* peer = find(op.peer);
  if (peer == nullptr || peer->fencing ||
      peer->state.load(std::memory_order_relaxed) >= PeerState::kLost) {
    core_.complete(op, Errc::kPeerLost, Remote::kNotDelivered);
    return;
  }
  op.ref = new_request(*peer, op, false);
  if (peer->usable()) send_request(*peer, op.ref, op);
}

/// Sends the request of a resolve or fence, at once or when the session is connected.
void Peers::send_request(Peer& peer, uint32_t ref, Op& op) {
  if (op.kind == OpKind::kResolve) {
    const auto names = op.list.as<const uint64_t>();
    send(peer, MessageType::kResolve,
         control::encode(control::ResolveNames{.ref = ref, .names = {names.begin(), names.end()}}));
  } else if (op.kind == OpKind::kFence) {
    send(peer, MessageType::kFence, control::encode(control::FenceRequest{.ref = ref}));
  }
}

void Peers::on_resolve(Peer& peer, const control::Body& body) {
  auto request = control::decode_resolve(body);
  if (!request) return on_bad_message(peer, MessageType::kResolve);
  control::ResolvedNames answer{.ref = request->ref};
  auto keys = core_.counters.resolve(peer, request->names, core_.now_ns);
  answer.code = keys.error().code;
  if (keys) answer.keys = *std::move(keys);
  send(peer, MessageType::kResolved, control::encode(answer));
}

void Peers::on_resolved(Peer& peer, const control::Body& body) {
  auto answer = control::decode_resolved(body);
  if (!answer) return on_bad_message(peer, MessageType::kResolved);
  PendingRequest pending;
  Op* op = take_request(peer, answer->ref, pending);
  if (op == nullptr || op->kind != OpKind::kResolve) return;
  Errc code = answer->code;
  if (code == Errc::kOk && answer->keys.size() != op->resolved.size()) code = Errc::kBadFormat;
  if (code == Errc::kOk && outdated(peer, *answer)) {
    op->ref = new_request(peer, *op, false);
    send_request(peer, op->ref, *op);
    return;
  }
  if (code == Errc::kOk) {
    for (size_t i = 0; i < answer->keys.size(); ++i) {
      op->resolved[i] = CounterKey::from_wire(answer->keys[i]);
      peer.revoked_keys.erase(answer->keys[i]);  // handed out again since it was revoked
      core_.transfers.routes_changed();
    }
  }
  const bool ok = code == Errc::kOk;
  core_.complete(*op, code, ok ? Remote::kDelivered : Remote::kNotDelivered,
                 ok ? answer->keys.size() : 0);
}

/// Whether a counter key may have been revoked after the reply was sent: numbered messages may
/// overtake each other.
bool Peers::outdated(const Peer& peer, const control::ResolvedNames& answer) {
  return std::any_of(answer.keys.begin(), answer.keys.end(),
                     [&](uint32_t key) FABRIC_REQUIRES(state_lock) {
                       const auto it = peer.revoked_keys.find(key);
                       return it != peer.revoked_keys.end() && answer.ref < it->second;
                     });
}

void Peers::on_revoke_key(Peer& peer, const control::Body& body) {
  auto request = control::decode_revoke_key(body);
  if (!request) return on_bad_message(peer, MessageType::kRevokeKey);
  const CounterKey key = CounterKey::from_wire(request->key);
  const size_t max = size_t{kRevokedKeysPerName} * core_.config.names_per_peer_max;
  const bool keeps = peer.revoked_keys.size() < max || peer.revoked_keys.contains(key.wire());
  if (keeps) peer.revoked_keys[key.wire()] = peer.next_ref;
  core_.transfers.key_revoked(peer, key);
  if (!keeps) {
    // The table is full, so later writes under the counter key would not be rejected.
    send(peer, MessageType::kKeyRevoked, done(request->ref, Errc::kExhausted));
    return;
  }
  add_drain(peer, MessageType::kKeyRevoked, request->ref);
}

void Peers::on_abort_key(Peer& peer, const control::Body& body) {
  auto request = control::decode_abort_key(body);
  if (!request) return on_bad_message(peer, MessageType::kAbortKey);
  core_.protocol.count(ProtocolEvent::kKeyAborted);
  core_.counters.abort(CounterKey::from_wire(request->key), Errc::kAborted, peer.id());
}

// Revocation of regions, drains

void Peers::on_revoke_region(Peer& peer, const control::Body& body) {
  auto request = control::decode_revoke_region(body);
  if (!request) return on_bad_message(peer, MessageType::kRevokeRegion);
  core_.regions.revoke(peer, request->region, request->grant);
  add_drain(peer, done_type(MessageType::kRevokeRegion), request->ref);
}

/// Replies once every write that is posted to the peer now has retired.
void Peers::add_drain(Peer& peer, MessageType type, uint32_t ref) {
  peer.drain_replies.push_back({.upto_seq = peer.next_write_seq - 1, .type = type, .ref = ref});
  check_drains(peer);
}

void Peers::check_drains(Peer& peer) {
  if (peer.drain_replies.empty()) return;
  const uint64_t oldest = core_.transfers.oldest_inflight(peer);
  std::erase_if(peer.drain_replies, [&](const DrainReply& drain) FABRIC_REQUIRES(state_lock) {
    if (drain.upto_seq >= oldest) return false;
    send(peer, drain.type, done(drain.ref, peer.drain_unprovable ? Errc::kRailLost : Errc::kOk));
    return true;
  });
}

// Fences

void Peers::start_fence(Op& op) {
  Peer* peer = find(op.peer);
  if (peer == nullptr) {
    core_.complete(op, Errc::kNotFound, Remote::kUnknown);
    return;
  }
  if (peer->is_self || peer->fence_op != kNone) {
    core_.complete(op, peer->is_self ? Errc::kUnsupported : Errc::kBusy, Remote::kUnknown);
    return;
  }
  peer->fence_op = op.slot;
  if (peer->state.load(std::memory_order_relaxed) == PeerState::kConnecting) {
    // A session that never connected has no inbound path: no write of the peer can land.
    complete_fence(*peer, Errc::kOk);
    return;
  }
  if (!peer->usable()) {
    // The peer cannot reply; its inbound paths are closing.
    op.step = 1;
    core_.timers.set(op.timer, op.deadline_ns);
    advance_fence(*peer);
    return;
  }
  peer->fencing = true;
  core_.transfers.routes_changed();
  op.ref = new_request(*peer, op, false);
  send_request(*peer, op.ref, op);
  const int64_t half = core_.now_ns + (op.deadline_ns - core_.now_ns) / 2;
  core_.timers.set(op.timer, std::min(core_.now_ns + kFenceGraceNs, half));
}

/// The peer is disconnected at once: nothing asks it to drain.
void Peers::start_drop(Op& op) {
  Peer* peer = find(op.peer);
  if (peer == nullptr) {
    core_.complete(op, Errc::kNotFound, Remote::kUnknown);
    return;
  }
  const bool busy = peer->fence_op != kNone;
  if (busy || peer->is_self) {
    core_.complete(op, busy ? Errc::kBusy : Errc::kUnsupported, Remote::kUnknown);
    lose(*peer, PeerState::kFenced, Errc::kPeerLost, true);
    return;
  }
  const uint32_t slot = op.slot;
  peer->fence_op = slot;
  if (peer->state.load(std::memory_order_relaxed) == PeerState::kConnecting) {
    complete_fence(*peer, Errc::kOk);  // as in start_fence()
    return;
  }
  op.step = 1;
  lose(*peer, PeerState::kFenced, Errc::kPeerLost, true);
  // Closing its inbound paths may have completed the operation.
  if (peer->fence_op == slot) advance_fence(*peer);
}

/// The peer did not reply within its grace period: continues with what this side can prove alone.
void Peers::fence_without_peer(Op& op) {
  core_.protocol.count(ProtocolEvent::kFenceWithoutPeer);
  Peer* peer = find(op.peer);
  FABRIC_CHECK(peer != nullptr, "a peer under a fence keeps its slot");
  peer->requests.erase(op.ref);
  await_inbound_down(*peer, op);
}

/// Ends the session; advance_fence() completes the fence, or its timer does.
void Peers::await_inbound_down(Peer& peer, Op& op) {
  op.step = 1;
  core_.timers.set(op.timer, op.deadline_ns);
  lose(peer, PeerState::kFenced, Errc::kPeerLost, true);
}

/// Whether no write of the peer can land any more, by the fence kind of each network.
bool Peers::fully_fenced(const Peer& peer) const {
  if (!peer.inbound.empty()) return false;
  if (peer.quiet) return true;
  if (peer.grants_awaited > 0) return false;
  return std::all_of(peer.links.begin(), peer.links.end(),
                     [&](const Peer::Link& link) FABRIC_REQUIRES(state_lock) {
                       switch (core_.networks[link.network].fence) {
                         case FenceKind::kLocal:
                         case FenceKind::kHost:
                           return true;  // closing the inbound paths is sufficient
                         case FenceKind::kRekey:
                           return !core_.regions.writable_by(peer.id());
                         case FenceKind::kNone:
                           break;
                       }
                       return false;
                     });
}

void Peers::advance_fence(Peer& peer) {
  const bool asked = peer.fence_op != kNone && core_.ops.at(peer.fence_op).step > 0;
  if ((!asked && !peer.unproved_fence) || !fully_fenced(peer)) return;
  peer.fence_proved = true;
  if (asked) complete_fence(peer, Errc::kOk);
  Event event{.kind = EventKind::kFenceProved};
  event.op = std::exchange(peer.unproved_fence, {});
  event.peer = peer.id();
  if (!event.op || core_.closing.load(std::memory_order_relaxed)) return;
  core_.protocol.count(ProtocolEvent::kFenceProvedLate);
  core_.reporter.publish(event);
}

void Peers::check_fences() {
  for (Peer* peer : all()) advance_fence(*peer);
}

void Peers::grant_released(uint32_t slot) {
  Peer& peer = *table_.at(slot);
  if (peer.grants_awaited > 0) --peer.grants_awaited;
  advance_fence(peer);
}

void Peers::complete_fence(Peer& peer, Errc code) {
  Op& op = core_.ops.at(std::exchange(peer.fence_op, kNone));
  peer.requests.erase(op.ref);  // or lose() would complete it a second time
  const bool ok = code == Errc::kOk;
  if (ok) peer.fence_proved = true;
  if (!ok) peer.unproved_fence = op.id();  // the proof may come later, as an event
  lose(peer, PeerState::kFenced, Errc::kPeerLost, true);
  core_.complete(op, code, ok ? Remote::kDelivered : Remote::kUnknown);
}

void Peers::on_fence(Peer& peer, const control::Body& body) {
  auto request = control::decode_fence(body);
  if (!request) return on_bad_message(peer, MessageType::kFence);
  // No new writes to this peer: queued ones fail, posted ones drain, then kFenced is sent.
  peer.fencing = true;
  core_.regions.peer_lost(peer.id());
  core_.transfers.stop_queued(peer, Errc::kPeerLost);
  add_drain(peer, MessageType::kFenced, request->ref);
}

void Peers::stop_control_op(Op& op, Errc code) {
  if (is_fence(op.kind)) {
    Peer* peer = find(op.peer);
    if (peer != nullptr && peer->fence_op == op.slot) {
      complete_fence(*peer, code);
    } else {
      core_.complete(op, code, Remote::kUnknown);
    }
    return;
  }
  bool sent = false;
  if (Peer* peer = find(op.peer); peer != nullptr) {
    auto& waiting = peer->credits[op.channel].waiting;
    const bool queued =
        op.kind == OpKind::kSend && (std::erase(waiting, op.slot) > 0 || withdraw_parts(*peer, op));
    const auto it = peer->requests.find(op.ref);
    if (!queued && it != peer->requests.end() && it->second.op == op.slot) {
      sent = peer->usable();
      it->second.op = kNone;  // the reply still returns the credit
    }
  }
  const bool is_message = op.kind == OpKind::kSend;
  const PeerId to = op.peer;
  const uint16_t channel = op.channel;
  core_.complete(op, code, sent ? Remote::kUnknown : Remote::kNotDelivered);
  // Others of the channel may have waited for its parts.
  if (Peer* peer = is_message ? find(to) : nullptr) send_queued_messages(*peer, channel);
}

}  // namespace fabric::core

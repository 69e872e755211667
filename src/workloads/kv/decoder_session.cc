#include <algorithm>

#include "workloads/kv/decoder_core.h"

// What a decoder sends to a prefiller, and how it proves that a prefiller cannot write any more.

namespace fabric::kv::decode {
namespace {

constexpr Nanos kGrantsRetry{100'000'000};

}  // namespace

// ---- Sending
// ----------------------------------------------------------------------------------------

Result<OpId> DecoderCore::send(const SourceSession& session, std::span<const std::byte> bytes,
                               uint64_t tag) {
  return engine_.submit(Send{.peer = session.peer,
                             .channel = session.channel,
                             .bytes = bytes,
                             .notify = Notify::inbox(inbox_, tag)});
}

/// Dispatches the waiting flows in order. A flow that the engine has no room for waits for the next
/// call.
void DecoderCore::pump(SourceSession& session) {
  while (session.connected && !session.lost && !session.waiting.empty()) {
    Flow* flow = find_flow(session.waiting.front());
    if (flow == nullptr || flow->lease.state() != LeaseState::kIdle) {
      session.waiting.pop_front();  // cancelled before it was sent
      continue;
    }
    const Launch launched = launch(*flow);
    if (launched == Launch::kNoRoom) return;
    if (!session.waiting.empty() && session.waiting.front() == flow->number) {
      session.waiting.pop_front();
    }
  }
}

DecoderCore::Launch DecoderCore::launch(Flow& flow) {
  SourceSession& session = *flow.session;
  const auto failed = [&](const Error& error) {
    if (error.code == Errc::kExhausted) return Launch::kNoRoom;
    fail_task(*flow.task,
              error.code == Errc::kPeerLost ? FailCode::kPeerLost : FailCode::kNotDelivered,
              flow.rank, error.what);
    return Launch::kFailed;
  };
  if (!send_hello(session)) return Launch::kNoRoom;
  const auto set = choose_set(session);
  if (!set) return failed(set.error());
  if (!send_grants(**set)) return Launch::kNoRoom;
  // Before the dispatch: no count may come without an expectation to report it.
  if (!flow.armed && flow.total > 0) {
    FlowCounter& counter = flow.counters[flow.at];
    const auto armed = counter.counter.expect(
        counter.share, Notify::inbox(inbox_, tagged(TagKind::kCount, flow.number)),
        Timeout::forever());
    if (!armed) return failed(armed.error());
    flow.armed = true;
  }
  const auto info = engine_.peer_info(session.peer);
  flow.wants_quiet = flow.total > 0 && (!info || !info->count_is_final);
  flow.dispatch.wants_quiet = flow.wants_quiet;
  flow.dispatch.serial = session.next_serial;
  flow.dispatch.set = (*set)->slot;
  flow.dispatch.set_generation = (*set)->generation;
  const auto sent = send(session, wire::encode_dispatch(options_.channel, flow.dispatch),
                         tagged(TagKind::kDispatch, flow.number));
  if (!sent) return failed(sent.error());
  session.by_serial[session.next_serial++] = &flow;
  flow.set = *set;
  flow.set->flows[flow.number] = &flow;
  flow.lease.start(flow.total);
  // Free what is not needed after the dispatch: it is most of the memory of a request in flight.
  const uint64_t serial = flow.dispatch.serial;
  flow.dispatch = {};
  flow.dispatch.serial = serial;
  // Other holders send all units of this request. The source gets a dispatch all the same, because
  // its offer waits for one of every decode rank that draws from it; no write follows.
  if (flow.total == 0) apply(flow, flow.lease.counted(true), FailCode::kNone);
  return Launch::kSent;
}

bool DecoderCore::send_hello(SourceSession& session) {
  if (session.hello_sent) return true;
  const wire::Hello hello{.next_serial = session.next_serial, .layout = layout_bytes_};
  const auto sent = send(session, wire::encode_hello(options_.channel, hello),
                         tagged(TagKind::kHello, session.number));
  // Any error but a full queue shows again at the dispatch: refused, or not delivered.
  session.hello_sent = sent || sent.error().code != Errc::kExhausted;
  session.hello_serial = session.next_serial;
  session.accepted = false;
  return session.hello_sent;
}

/// The prefiller may know nothing of this decoder: HELLO and the grants go out again before the
/// next dispatch.
void DecoderCore::hello_lost(SourceSession& session) {
  session.hello_sent = false;
  for (const auto& [number, set] : session.sets) set->sent = 0;
}

void DecoderCore::grants_lost(uint64_t set_number) {
  for (const auto& [key, session] : sessions_) {
    const auto found = session->sets.find(set_number);
    if (found != session->sets.end()) found->second->sent = 0;
  }
}

/// No prefiller listens there, or one that does not know this decoder: the one that took earlier
/// dispatches was closed. It does not answer any more.
void DecoderCore::forgotten(SourceSession& session, uint64_t serial) {
  if (serial < session.hello_serial) return;  // the next HELLO is on its way
  hello_lost(session);
  const std::map<uint64_t, Flow*> flows = session.by_serial;
  for (const auto& [number, flow] : flows) {
    if (number >= serial || !flow->lease.in_flight()) continue;
    fail_task(*flow->task, FailCode::kPeerLost, flow->rank, "the prefiller was closed");
  }
}

SourceSession* DecoderCore::find_session(uint64_t number) const {
  for (const auto& [key, session] : sessions_) {
    if (session->number == number) return session.get();
  }
  return nullptr;
}

bool DecoderCore::send_grants(GrantSet& set) {
  const SourceSession& session = *set.session;
  const auto total = static_cast<uint32_t>(set.grants.size());
  const uint64_t most = std::max<uint64_t>(session.message_bytes_max, 1024);
  while (set.sent < total) {
    wire::Grants part{.set = set.slot,
                      .generation = set.generation,
                      .total = total,
                      .first = set.sent,
                      .has_tail = options_.tail_region != nullptr,
                      .has_staging = options_.staging_region != nullptr};
    uint64_t bytes = wire::kGrantsHeadBytes;
    for (uint32_t i = set.sent; i < total; ++i) {
      bytes += wire::kGrantsDescBytes + set.grants[i].desc.size();
      if (bytes > most) break;
      part.descs.push_back(set.grants[i].desc);
    }
    const auto sent = send(session, wire::encode_grants(options_.channel, part),
                           tagged(TagKind::kGrants, set.number));
    if (!sent && sent.error().code == Errc::kExhausted) return false;
    set.sent += static_cast<uint32_t>(part.descs.size());
  }
  return true;
}

/// The set with the fewest requests; a new one while all are in use and there may be more.
Result<GrantSet*> DecoderCore::choose_set(SourceSession& session) {
  GrantSet* best = nullptr;
  uint32_t live = 0;
  for (const auto& [number, set] : session.sets) {
    if (set->state != GrantSet::State::kLive || set->retired) continue;
    ++live;
    if (best == nullptr || set->flows.size() < best->flows.size()) best = set.get();
  }
  if (best != nullptr && (best->flows.empty() || live >= options_.grants_per_peer)) return best;
  // Each try may register and revoke all regions.
  if (engine_.now() < session.grants_due) {
    if (best != nullptr) return best;
    return session.grants_error;
  }
  auto made = make_set(session);
  if (!made) {
    session.grants_error = made.error();
    session.grants_due = later(engine_.now(), kGrantsRetry);
    deadlines_.add(session.grants_due, tagged(DueKind::kGrants, session.number));
  }
  // Fewer sets than wanted share more requests; that is no reason to refuse one.
  if (!made && best != nullptr) return best;
  return made;
}

Result<GrantSet*> DecoderCore::make_set(SourceSession& session) {
  if (session.sets.size() >= wire::kGrantSetsMax) {
    return fail(Errc::kExhausted, "grants: too many are in quarantine");
  }
  auto set = std::make_unique<GrantSet>();
  std::vector<const MemoryRegion*> regions = options_.regions;
  if (options_.tail_region != nullptr) regions.push_back(options_.tail_region);
  if (options_.staging_region != nullptr) regions.push_back(options_.staging_region);
  for (const MemoryRegion* region : regions) {
    auto grant = region->grant(session.peer);
    if (!grant) {
      // The grants made so far are dropped here: no peer has seen them.
      for (const Grant& unused : set->grants) (void)engine_.submit(Revoke{.grant = unused.id});
      return grant.error();
    }
    set->grants.push_back(*std::move(grant));
  }
  const auto in_use = [&](uint32_t slot) {
    return std::ranges::any_of(session.sets, [&](const auto& entry) {
      return entry.second->slot == slot && entry.second->state == GrantSet::State::kLive;
    });
  };
  while (in_use(set->slot)) ++set->slot;
  set->number = next_number_++;
  set->session = &session;
  set->generation = session.next_generation++;
  return (session.sets[set->number] = std::move(set)).get();
}

void DecoderCore::send_cancel(Flow& flow) {
  const auto sent = send(*flow.session, wire::encode_cancel(options_.channel, flow.dispatch.serial),
                         tagged(TagKind::kCancel, flow.number));
  flow.needs_cancel = !sent && sent.error().code == Errc::kExhausted;
  if (flow.needs_cancel) retries_[flow.number] = &flow;
  if (!sent && !flow.needs_cancel) apply(flow, flow.lease.cancel_failed(), FailCode::kPeerLost);
}

// ---- Proofs -------------------------------------------------------------------------------------

void DecoderCore::fence(Flow& flow) {
  SourceSession& session = *flow.session;
  if (!session.lost) {
    revoke(*flow.set);
    return;
  }
  if (session.fencing == SourceSession::Fencing::kNo) {
    session.fencing = SourceSession::Fencing::kWanted;
    submit_fence(session);
  }
}

/// Every flow that shares the set is affected: its writes are refused from now on.
void DecoderCore::revoke(GrantSet& set) {
  if (set.state != GrantSet::State::kLive) return;
  set.state = GrantSet::State::kRevoking;
  ++stats_.revokes;
  submit_revokes(set);
  const std::map<uint64_t, Flow*> flows = set.flows;  // it changes as leases become quiet
  for (const auto& [number, flow] : flows) {
    apply(*flow, flow->lease.fence_begun(), FailCode::kRevoked,
          "a request on the same grant is in doubt");
  }
}

void DecoderCore::submit_revokes(GrantSet& set) {
  while (set.revokes_sent < set.grants.size()) {
    const auto submitted = engine_.submit(
        Revoke{.grant = set.grants[set.revokes_sent].id,
               .timeout = options_.fence_timeout,
               .notify = Notify::inbox(inbox_, tagged(TagKind::kRevoke, set.number))});
    if (!submitted) return;  // work() tries again
    ++set.revokes_sent;
  }
}

void DecoderCore::submit_fence(SourceSession& session) {
  const auto submitted = engine_.submit(
      Fence{.peer = session.peer,
            .timeout = options_.fence_timeout,
            .notify = Notify::inbox(inbox_, tagged(TagKind::kFence, session.number))});
  if (submitted) {
    session.fencing = SourceSession::Fencing::kRunning;
    session.fence = *submitted;
    ++stats_.fences;
    return;
  }
  if (submitted.error().code == Errc::kExhausted) return;  // work() tries again
  session.fencing = SourceSession::Fencing::kRefused;
  for (const auto& [number, set] : session.sets) revoke(*set);
}

void DecoderCore::revoke_ended(const Event& event) {
  const uint64_t number = tag_number(event.tag);
  for (const auto& [key, session] : sessions_) {
    const auto found = session->sets.find(number);
    if (found == session->sets.end()) continue;
    GrantSet& set = *found->second;
    ++set.revokes_ended;
    if (event.code != Errc::kOk) set.unproved.push_back(event.op);
    if (set.revokes_ended < set.grants.size()) return;
    if (set.unproved.empty()) {
      stats_.fences_late += set.state == GrantSet::State::kUnproved ? 1 : 0;
      set_proved(set);
    } else {
      set_unproved(set);
    }
    return;
  }
}

void DecoderCore::fence_ended(const Event& event) {
  for (const auto& [key, session] : sessions_) {
    if (session->number != tag_number(event.tag)) continue;
    if (event.code == Errc::kOk) {
      session_proved(*session);
    } else if (event.code == Errc::kTimeout) {
      session->fencing = SourceSession::Fencing::kUnproved;
      // On a network that proves by rkeys, a descriptor that is open to all peers makes a fence of
      // one peer impossible. What this session could write is under its grants, and each of them
      // can still be revoked with proof.
      for (const auto& [number, set] : session->sets) {
        if (set->state != GrantSet::State::kLive) continue;
        set_unproved(*set);
        submit_revokes(*set);
      }
    } else {
      // Another workload of this engine fences the same peer. Its proof is not reported here, but
      // each grant can be revoked with proof.
      session->fencing = SourceSession::Fencing::kRefused;
      for (const auto& [number, set] : session->sets) revoke(*set);
    }
    return;
  }
}

/// kFenceProved: for a fence or a revoke that ended without proof.
void DecoderCore::proof_came(const Event& event) {
  for (const auto& [key, session] : sessions_) {
    if (session->fencing == SourceSession::Fencing::kUnproved && session->fence == event.op) {
      stats_.fences_late += session->sets.empty() ? 0 : 1;
      session_proved(*session);
      return;
    }
    for (const auto& [number, set] : session->sets) {
      const auto found = std::ranges::find(set->unproved, event.op);
      if (found == set->unproved.end()) continue;
      set->unproved.erase(found);
      if (!set->unproved.empty() || set->revokes_ended < set->grants.size()) return;
      ++stats_.fences_late;
      set_proved(*set);
      return;
    }
  }
}

void DecoderCore::set_proved(GrantSet& set) {
  ++stats_.fences_proved;
  SourceSession& session = *set.session;
  const uint64_t number = set.number;
  const std::map<uint64_t, Flow*> flows = set.flows;
  for (const auto& [flow_number, flow] : flows) {
    apply(*flow, flow->lease.fence_proved(), FailCode::kRevoked);
  }
  session.sets.erase(number);
  drop_empty(session);
}

void DecoderCore::set_unproved(GrantSet& set) {
  set.state = GrantSet::State::kUnproved;
  const std::map<uint64_t, Flow*> flows = set.flows;
  for (const auto& [number, flow] : flows) {
    apply(*flow, flow->lease.fence_unproved(), FailCode::kRevoked);
  }
}

void DecoderCore::session_proved(SourceSession& session) {
  session.fencing = SourceSession::Fencing::kNo;
  std::vector<uint64_t> numbers;
  for (const auto& [number, set] : session.sets) numbers.push_back(number);
  for (const uint64_t number : numbers) {
    const std::map<uint64_t, Flow*> flows = session.sets[number]->flows;
    for (const auto& [flow_number, flow] : flows) {
      apply(*flow, flow->lease.fence_proved(), FailCode::kPeerLost);
    }
    session.sets.erase(number);
  }
  stats_.fences_proved += numbers.empty() ? 0 : 1;  // else its grants were proved one by one
  drop_empty(session);
}

// ---- Sessions -----------------------------------------------------------------------------------

void DecoderCore::peer_changed(const Event& event) {
  const auto state = static_cast<PeerState>(event.value);
  std::vector<SourceSession*> changed;
  for (auto it = sessions_.lower_bound({event.peer, 0});
       it != sessions_.end() && it->first.first == event.peer; ++it) {
    changed.push_back(it->second.get());
  }
  for (SourceSession* session : changed) {
    if (session->stall_due != Nanos{}) {
      deadlines_.remove(session->stall_due, tagged(DueKind::kStall, session->number));
      session->stall_due = {};
    }
    if (state == PeerState::kStalled) watch_stall(*session);
    if (state == PeerState::kConnected || state == PeerState::kStalled) {
      if (const auto info = engine_.peer_info(event.peer)) {
        session->message_bytes_max = info->message_bytes_max;
      }
      session->connected = true;
      pump(*session);
    }
    if (state >= PeerState::kLost) lose(*session);
  }
}

/// The peer is stalled: its requests have `patience` from now on.
void DecoderCore::watch_stall(SourceSession& session) {
  session.stall_due = later(engine_.now(), options_.patience);
  deadlines_.add(session.stall_due, tagged(DueKind::kStall, session.number));
}

void DecoderCore::lose(SourceSession& session) {
  if (session.lost) return;
  session.lost = true;
  std::vector<Flow*> flows;
  for (const uint64_t number : session.waiting) {
    if (Flow* flow = find_flow(number); flow != nullptr) flows.push_back(flow);
  }
  for (const auto& [serial, flow] : session.by_serial) flows.push_back(flow);
  session.waiting.clear();
  for (Flow* flow : flows) {
    apply(*flow, flow->lease.peer_lost(), FailCode::kPeerLost, "the session is lost");
  }
  // Also for grants that a revoke has left in quarantine: the fence may prove them.
  const bool in_doubt = std::ranges::any_of(
      session.sets, [](const auto& entry) { return !entry.second->flows.empty(); });
  if (in_doubt && session.fencing == SourceSession::Fencing::kNo) {
    session.fencing = SourceSession::Fencing::kWanted;
    submit_fence(session);
  }
  drop_empty(session);
}

/// The lease of the flow is quiet: removes it from its grant set and its session.
void DecoderCore::detach(Flow& flow) {
  SourceSession& session = *flow.session;
  flow.session = nullptr;  // it may be gone before the last report about the flow comes
  draining_.erase(flow.number);
  retries_.erase(flow.number);
  clear_due(flow);
  release_records(flow);
  if (flow.set == nullptr) return;  // it was never sent
  session.by_serial.erase(flow.dispatch.serial);
  GrantSet& set = *flow.set;
  set.flows.erase(flow.number);
  flow.set = nullptr;
  if (set.retired && set.flows.empty()) revoke(set);
}

/// Erases a lost session that no flow and no fence needs. Its grants ended with it.
void DecoderCore::drop_empty(SourceSession& session) {
  if (!session.lost || !session.by_serial.empty()) return;
  for (const auto& [number, set] : session.sets) {
    if (!set->flows.empty()) return;
  }
  if (session.fencing == SourceSession::Fencing::kWanted ||
      session.fencing == SourceSession::Fencing::kRunning) {
    return;
  }
  dead_sessions_.push_back({session.peer, session.channel});  // a caller may hold a reference
}

}  // namespace fabric::kv::decode

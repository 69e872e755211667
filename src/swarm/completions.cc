#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "swarm/runner.h"

// Updates the model from completions, events and arrivals, and checks each against the model.

namespace fabric::swarm {
namespace {

using Fate = Part::Fate;

constexpr uint32_t shards_of(uint32_t imm) noexcept { return (imm >> CounterKey::kBits & 7) + 1; }

constexpr std::byte kSourceReused{0xd5};

/// A running process reports a met expectation within this time.
constexpr Nanos kReportWithin{10'000'000};

bool is_transfer(PendingOp::Kind kind) noexcept { return kind <= PendingOp::Kind::kSignal; }

}  // namespace

void Runner::EventSink::on_completion(void* self, const Event& event) {
  const EventSink& sink = *static_cast<EventSink*>(self);
  sink.runner->coverage_.add("reported by", "callback");
  sink.runner->on_completion(event, sink.node, sink.incarnation);
}
void Runner::EventSink::on_event(void* self, const Event& event) {
  const EventSink& sink = *static_cast<EventSink*>(self);
  sink.runner->on_event(event, sink.node, sink.incarnation);
}
void Runner::EventSink::on_message(void* self, const Event& event) {
  const EventSink& sink = *static_cast<EventSink*>(self);
  sink.runner->on_message(event, sink.node, sink.incarnation);
}
void Runner::EventSink::on_watch(void* self, const Event& event) {
  const EventSink& sink = *static_cast<EventSink*>(self);
  if (sink.runner->is_running(sink.node, sink.incarnation))
    sink.runner->processes_[sink.node]->watched = event.value;
}

// ---- Arrivals at the NICs -----------------------------------------------------------------------

void Runner::on_arrival(const sim::Arrival& arrival) {
  const uint32_t shards = shards_of(arrival.imm);
  const auto found = by_key_.find({arrival.node, CounterKey::from_wire(arrival.imm)});
  CounterModel* model = found == by_key_.end() ? nullptr : &counters_[found->second];
  auto whose = by_address_.upper_bound(arrival.target);
  if (arrival.target != nullptr && whose != by_address_.begin()) {
    Part& part = parts_[(--whose)->second];
    part.shards_total = shards;
    if (++part.shards_counted > shards) {
      violated("no write counts twice",
               fmt::format("a write of operation {} counted {} times of {}", part.op,
                           part.shards_counted, shards));
    }
    if (part.fate == Fate::kNotDelivered) {
      violated("no write counts after kNotDelivered",
               fmt::format("a write of operation {}", part.op));
    }
    if (model != nullptr && part.counter != model->number) {
      violated("a counter key counts only its own writes",
               fmt::format("operation {} was sent to counter {} and counted at {}", part.op,
                           part.counter, model->number));
    }
  }
  // A NIC with the late-counts fault may still deliver immediates of completed writes: stale,
  // allowed.
  const bool quiet = quiescent_keys_.contains({arrival.node, CounterKey::from_wire(arrival.imm)});
  if (model == nullptr && quiet && !late_counting_nodes_.contains(arrival.node)) {
    violated(
        "no count arrives for a key that was proved quiescent",
        fmt::format("node {}, key {}", arrival.node, CounterKey::from_wire(arrival.imm).wire()));
  }
  if (model == nullptr) return;
  model->units += kUnits / shards;
  model->arrived_at = now();
  changed_counters_.insert(model->number);
  mark_met(*model);
}

/// Marks the pending expectation as met once enough counts have arrived.
void Runner::mark_met(CounterModel& model) {
  if (model.armed_by == 0 || model.met || model.group_wait != kNone) return;
  if (model.units / kUnits < static_cast<int64_t>(model.taken + model.wanted)) return;
  model.met = true;
  model.taken += model.wanted;
  model.met_at = now();
  // Its completion is due from now on.
  const auto waits = pending_ops_.find(model.armed_by);
  if (waits == pending_ops_.end() || waits->second.kind != PendingOp::Kind::kExpect) return;
  report_deadlines_.erase({waits->second.recheck_at, model.armed_by});
  waits->second.report_by = waits->second.recheck_at = now() + kReportWithin;
  report_deadlines_.emplace(waits->second.recheck_at, model.armed_by);
}

// ---- Events of the engines ----------------------------------------------------------------------

void Runner::on_completion(const Event& event, uint32_t node, uint32_t incarnation) {
  if (submitting_) violated("no callback inside submit()", fmt::format("node {}", node));
  const auto it = pending_ops_.find(event.tag);
  if (it == pending_ops_.end() || it->second.incarnation != incarnation) {
    return violated("every operation completes exactly once",
                    fmt::format("node {}: operation {} is reported again, with {}", node, event.tag,
                                to_string(event.code)));
  }
  PendingOp op = std::move(it->second);
  pending_ops_.erase(it);
  report_deadlines_.erase({op.recheck_at, op.tag});
  op_completed(op, event);
}

void Runner::on_event(const Event& event, uint32_t node, uint32_t incarnation) {
  coverage_.add("event", to_string(event.kind));
  if (!is_running(node, incarnation)) return;
  switch (event.kind) {
    case EventKind::kRoom:
      processes_[node]->wants_room = false;
      return;
    case EventKind::kPeer:
      coverage_.add("peer", to_string(static_cast<PeerState>(event.value)));
      if (static_cast<PeerState>(event.value) < PeerState::kLost) return;
      for (Session& session : sessions_) {
        const bool mine = session.from_incarnation == incarnation && session.peer == event.peer;
        if (mine || (session.to_incarnation == incarnation && session.peer_at_target == event.peer))
          session.closed = true;
      }
      return;
    case EventKind::kFenceProved:
      for (uint32_t i = 0; i < arenas_.size(); ++i) {
        // Without a peer it is a deregistration, identified by its operation.
        if (event.peer || arenas_[i].incarnation != incarnation || arenas_[i].late != event.op)
          continue;
        arena_fenced(i);
      }
      for (uint32_t i = 0; i < grants_.size(); ++i) {
        const bool mine = sessions_[grants_[i].session].to_incarnation == incarnation;
        if (!event.peer && mine && grants_[i].late == event.op) grant_fenced(i);
      }
      for (const Session& session : sessions_) {
        if (event.peer && session.to_incarnation == incarnation &&
            session.peer_at_target == event.peer)
          session_fenced(session.number);
      }
      return;
    case EventKind::kUnhandled:
      break;
    default:
      return;
  }
  const auto it = std::ranges::find_if(pending_ops_, [&](const auto& entry) {
    return entry.second.incarnation == incarnation && entry.second.silent &&
           entry.second.id == event.op;
  });
  if (it == pending_ops_.end()) return;  // of a destroyed batch, or made by misuse()
  coverage_.add("reported by", "subscriber");
  PendingOp op = std::move(it->second);
  pending_ops_.erase(it);
  report_deadlines_.erase({op.recheck_at, op.tag});
  op_completed(op, event);
}

void Runner::on_message(const Event& event, uint32_t node, uint32_t incarnation) {
  if (submitting_) violated("no callback inside submit()", fmt::format("node {}", node));
  uint64_t words[2] = {};
  if (event.size_bytes < sizeof words) {
    return violated("messages arrive unchanged", fmt::format("{} bytes", event.size_bytes));
  }
  std::memcpy(words, event.data, sizeof words);
  if (words[0] >= sessions_.size() ||
      !holds_content(event.bytes().subspan(sizeof words), words[1])) {
    return violated("messages arrive unchanged", fmt::format("number {}", words[1]));
  }
  Session& session = sessions_[words[0]];
  if (session.to_incarnation != incarnation || !is_running(node, incarnation)) return;
  if (must_not_receive_.contains({session.number, words[1]})) {
    violated("an undelivered message is not received", fmt::format("number {}", words[1]));
  }
  const auto [said, fresh] = received_.emplace(std::pair{session.number, words[1]}, true);
  if (!fresh) violated("messages arrive once", fmt::format("number {}", words[1]));
  if (words[1] < session.last_received) {
    violated("messages arrive in the order sent",
             fmt::format("number {} after {}", words[1], session.last_received));
  }
  session.last_received = words[1];
  if (!session.peer_at_target) session.peer_at_target = event.peer;
}

void Runner::poll_inboxes() {
  std::array<Event, 16> events;
  for (auto& process : processes_) {
    if (!process || !process->inbox) continue;
    uint32_t count = 0;
    while ((count = process->inbox->poll(events)) > 0) {
      coverage_.add("reported by", "inbox", count);
      for (uint32_t i = 0; i < count; ++i)
        on_completion(events[i], process->node, process->incarnation);
    }
  }
}

// ---- Completions --------------------------------------------------------------------------------

void Runner::op_completed(PendingOp& op, const Event& event) {
  ++ops_completed_;
  coverage_.add("code", to_string(event.code));
  coverage_.add("completion",
                fmt::format("{} {}", to_string(op.kind),
                            event.code == Errc::kOk ? "ok" : to_string(event.remote)));
  const bool waits = op.kind == PendingOp::Kind::kExpect || op.kind == PendingOp::Kind::kGroupWait;
  const bool must = strict_ && !waits && op.submitted >= strict_since_;
  if (must && event.code != Errc::kOk && event.code != Errc::kTooLarge) {
    violated("new operations succeed after the faults",
             fmt::format("{}: {}", describe(op), to_string(event.code)));
  }
  if (!has_cause(op, event.code)) {
    violated("every failure has a cause",
             fmt::format("{}: {}", describe(op), to_string(event.code)));
  }
  if (is_transfer(op.kind)) return transfer_completed(op, event);
  switch (op.kind) {
    case PendingOp::Kind::kExpect:
      return expectation_completed(op, event);
    case PendingOp::Kind::kGroupWait:
      return group_wait_completed(op, event);
    case PendingOp::Kind::kSend:
      return message_completed(op, event);
    case PendingOp::Kind::kTimer:
      if (event.code == Errc::kOk && now() < op.deadline) {
        violated("a timer does not fire early", describe(op));
      }
      return;
    case PendingOp::Kind::kFence:
    case PendingOp::Kind::kDrop:
      if (event.code == Errc::kOk) session_fenced(op.subject);
      return;
    case PendingOp::Kind::kRevoke:
      return revoke_completed(op, event);
    case PendingOp::Kind::kDeregister:
      if (event.code == Errc::kOk) {
        arena_fenced(op.subject);
      } else {
        arenas_[op.subject].late = op.id;
      }
      return;
    case PendingOp::Kind::kResolve:
      if (event.code == Errc::kOk) {
        CounterModel& model = counters_[op.subject];
        if (model.counter && *op.answer != model.key) {
          violated("a name resolves to its key", describe(op));
        }
        model.resolved[sessions_[op.session].number] = *op.answer;
      }
      return;
    default:
      return;
  }
}

/// Whether something happened that explains the code.
bool Runner::has_cause(const PendingOp& op, Errc code) const {
  std::vector<uint32_t> sessions;
  bool arena_closing = false, key_released = false;
  for (const uint32_t number : op.parts) {
    const Part& part = parts_[number];
    sessions.push_back(part.session);
    arena_closing |= part.arena != kNone && arenas_[part.arena].closing;
    arena_closing |= grant_revoked(part);
    key_released |= part.counter != kNone && !counters_[part.counter].counter;
  }
  const bool fences = op.kind == PendingOp::Kind::kFence || op.kind == PendingOp::Kind::kDrop;
  if (op.kind == PendingOp::Kind::kSend || fences) {
    sessions.push_back(op.subject);
  }
  if (op.kind == PendingOp::Kind::kResolve) sessions.push_back(op.session);
  const bool waits = op.kind == PendingOp::Kind::kExpect || op.kind == PendingOp::Kind::kGroupWait;
  const bool session_lost = std::ranges::any_of(sessions, [&](uint32_t number) {
    const Session& session = sessions_[number];
    return is_lost(session) ||
           fencing_.contains(std::minmax(session.from_incarnation, session.to_incarnation));
  });
  // A write refused by the target breaks its path, on some networks with all writes in flight on
  // it.
  const bool refusing = !fencing_.empty() || std::ranges::any_of(arenas_, &OwnedArena::closing) ||
                        std::ranges::any_of(grants_, &GrantModel::revoked);
  const bool faulty = refusing || !plan_.faults.empty() || plan_.world.drop_control > 0;
  switch (code) {
    case Errc::kOk:
      return op.kind == PendingOp::Kind::kTimer || !op.no_listener;
    case Errc::kTimeout:
      return now() >= op.deadline;
    case Errc::kCancelled:
      return op.cancelled;
    case Errc::kClosed:
      return closing_ == op.incarnation || session_lost;
    case Errc::kPeerLost:
      return session_lost || waits;  // checked by expectation_completed()
    case Errc::kUnsupported:
      return op.no_listener || fences;
    case Errc::kReleased:
      return key_released || waits;
    case Errc::kAborted:
      return waits;
    case Errc::kNotFound:
      return arena_closing || op.kind == PendingOp::Kind::kDeregister || fences;
    case Errc::kRemoteAccess:
      return arena_closing || session_lost || faulty;
    case Errc::kRailLost:
    case Errc::kUnreachable:
      return faulty || session_lost;
    case Errc::kTooLarge:
      return std::ranges::any_of(plan_.nodes[op.node].networks, [](const auto& network) {
        return network.model.write_bytes_max < 1u << 20;
      });
    case Errc::kBusy:
      return fences;
    case Errc::kExhausted:
      return op.kind == PendingOp::Kind::kResolve || session_lost;
    default:
      return false;
  }
}

void Runner::message_completed(const PendingOp& op, const Event& event) {
  const std::pair<uint32_t, uint64_t> message{op.subject, op.message};
  if (event.code == Errc::kOk) {
    must_receive_.insert(message);
  } else if (event.remote == Remote::kNotDelivered) {
    must_not_receive_.insert(message);
    if (received_.contains(message)) {
      violated("an undelivered message is not received", describe(op));
    }
  }
}

void Runner::transfer_completed(PendingOp& op, const Event& event) {
  // The source is free for reuse: a NIC that still reads it would send bytes that match no slot.
  std::ranges::fill(op.source, kSourceReused);
  const auto parts = static_cast<uint32_t>(op.parts.size());
  std::vector<Remote> fates(parts, Remote::kDelivered);
  if (parts == 1) fates[0] = event.code == Errc::kOk ? Remote::kDelivered : event.remote;
  if (op.batch) {
    std::array<Failure, Batch::kFailuresMax> failures;
    const uint32_t count = op.batch->failures(failures);
    for (uint32_t i = 0; i < count; ++i) {
      if (failures[i].part >= parts) {
        violated("failures name parts of their operation", describe(op));
      } else {
        fates[failures[i].part] = failures[i].remote;
      }
    }
    if (op.batch->delivered() + op.batch->failed() != parts ||
        op.batch->failed() != event.parts_failed ||
        (event.code != Errc::kOk && op.batch->unknown() != event.parts_unknown)) {
      violated(
          "a batch counts every part once",
          fmt::format("{}: {} delivered, {} failed, {} unknown; reported {} failed, {} unknown",
                      describe(op), op.batch->delivered(), op.batch->failed(), op.batch->unknown(),
                      event.parts_failed, event.parts_unknown));
    }
  }
  const bool failed = std::ranges::any_of(fates, [](Remote r) { return r != Remote::kDelivered; });
  if (failed == (event.code == Errc::kOk)) {
    violated("the completion code matches what was delivered",
             fmt::format("{}: {}", describe(op), to_string(event.code)));
  }
  for (uint32_t i = 0; i < parts; ++i) part_completed(parts_[op.parts[i]], fates[i]);
}

void Runner::part_completed(Part& part, Remote remote) {
  CounterModel* model = part.counter == kNone ? nullptr : &counters_[part.counter];
  OwnedArena* owned = part.arena == kNone ? nullptr : &arenas_[part.arena];
  const bool there = owned != nullptr && is_running(owned->node, owned->incarnation);
  switch (remote) {
    case Remote::kDelivered:
      part.fate = Fate::kDelivered;
      if ((owned != nullptr && part.submitted > owned->fenced_at) ||
          part.submitted > sessions_[part.session].fenced_at || delivered_after_revoke(part)) {
        violated("nothing is delivered after a fence",
                 fmt::format("a write of operation {}", part.op));
      }
      if (there && model != nullptr && late_storing_nodes_.contains(owned->node)) {
        // Only its count proves that it is visible (P6), and nothing else that it will be.
        unseen_.push_back(part.number);
      } else if (there && !owned->memory.mark_complete(part.slot)) {
        violated("delivered bytes are in memory", fmt::format("a write of operation {}", part.op));
      }
      if (there) bytes_checked_ += owned->memory.slot(part.slot).size;
      if (there && may_land_twice_ && model != nullptr && model->done)
        owned->memory.seal(part.slot);
      return;
    case Remote::kNotDelivered:
      part.fate = Fate::kNotDelivered;
      if (part.shards_counted > 0) {
        violated("kNotDelivered means not counted",
                 fmt::format("a write of operation {}", part.op));
      }
      if (there) owned->memory.seal(part.slot);
      if (model != nullptr) std::erase(model->parts, part.number);
      return;
    case Remote::kUnknown:
      part.fate = Fate::kUnknown;
      if (model != nullptr) model->may_miss_counts = true;
      return;
  }
}

void Runner::expectation_completed(PendingOp& op, const Event& event) {
  CounterModel& model = counters_[op.subject];
  // After a disarm() the next one may be armed already.
  const bool latest = model.armed_by == op.tag;
  const bool was_met = latest && model.met;
  if (latest) {
    model.armed_by = 0;
    model.met = false;
  }
  const auto wrong = [&](std::string_view why) {
    violated(
        "an expectation completes with the right code",
        fmt::format("{}: {} but {}; {} of {} sent, {} units", describe(op), to_string(event.code),
                    why, model.parts.size(), model.wanted, model.units));
  };
  switch (event.code) {
    case Errc::kOk:
      if (!was_met && !model.has_local_writes) wrong("not enough has arrived");
      if (!was_met) model.taken += model.wanted;
      return check_all_landed(model);
    case Errc::kTimeout:
      if (now() < op.deadline) wrong("the deadline has not passed");
      break;
    case Errc::kAborted:
      if (!sender_may_be_lost(model)) wrong("no write has an unknown fate");
      model.may_miss_counts = true;
      break;
    case Errc::kPeerLost:
      if (!sender_may_be_lost(model)) wrong("no peer is lost");
      model.may_miss_counts = true;
      break;
    case Errc::kReleased:
      if (model.counter) wrong("the counter was not released");
      break;
    case Errc::kCancelled:
    case Errc::kClosed:
      break;
    default:
      wrong("an expectation cannot complete with this code");
  }
  if (!was_met) return;
  // The failure may have been processed before the last count in the same turn.
  model.taken -= model.wanted;
  if (model.met_at < now() && event.code != Errc::kClosed) wrong("it was met earlier");
}

/// All counts were taken: every byte must have landed, and the slots are sealed against later ones.
void Runner::check_all_landed(CounterModel& model) {
  model.done = true;
  if (model.parts.size() < model.wanted) {
    violated("count <= writes started", fmt::format("counter {}: {} taken, {} sent", model.number,
                                                    model.wanted, model.parts.size()));
  }
  for (const uint32_t number : model.parts) {
    Part& part = parts_[number];
    if (part.arena == kNone) continue;
    TargetArena& arena = arenas_[part.arena].memory;
    if (arena.slot(part.slot).state == TargetArena::State::kSealed) continue;
    if (!arena.mark_complete(part.slot)) {
      violated("a met expectation implies that every byte has landed",
               fmt::format("counter {}: a write of operation {}", model.number, part.op));
    }
    bytes_checked_ += arena.slot(part.slot).size;
    // A duplicate may land after the count, but not after the completion.
    if (!may_land_twice_ || part.fate == Fate::kDelivered) arena.seal(part.slot);
  }
}

bool Runner::sender_may_be_lost(const CounterModel& model) const {
  if (model.may_miss_counts ||
      (model.bound_session != kNone && is_lost(sessions_[model.bound_session])))
    return true;
  return std::ranges::any_of(model.parts, [&](uint32_t number) {
    const Part& part = parts_[number];
    if (part.fate == Fate::kDelivered) return false;
    if (part.fate == Fate::kUnknown || is_lost(sessions_[part.session])) return true;
    // A part may have failed while others are in flight: its counter key is poisoned before the
    // operation completes.
    const auto op = pending_ops_.find(part.op);
    return part.fate == Fate::kInFlight && op != pending_ops_.end() && op->second.parts.size() > 1;
  });
}

/// Whether either side has given up the session, or may have.
bool Runner::is_lost(const Session& session) const {
  if (session.closed || !is_running(session.to, session.to_incarnation) ||
      !is_running(session.from, session.from_incarnation))
    return true;
  const auto from = processes_[session.from]->engine->peer_info(session.peer);
  if (!from || from->state >= PeerState::kLost) return true;
  if (!session.peer_at_target) return false;
  const auto info = processes_[session.to]->engine->peer_info(session.peer_at_target);
  return !info || info->state >= PeerState::kLost;
}

void Runner::group_wait_completed(PendingOp& op, const Event& event) {
  GroupWait& group_wait = group_waits_[op.subject];
  if (!group_wait.group) return;
  bool all_met = true, may_be_lost = false, just_now = false;
  for (const uint32_t number : group_wait.members) {
    const CounterModel& model = counters_[number];
    // Masked by a drop after its loss had ended the wait.
    may_be_lost |= !model.counter && model.member == event.peer;
    if (!model.counter) continue;
    all_met &= model.units >= kUnits;
    may_be_lost |= sender_may_be_lost(model) || is_lost(sessions_[model.from_session]);
    just_now |= model.arrived_at == now();
  }
  const bool wrong =
      event.code == Errc::kOk ? !all_met
      : event.code == Errc::kTimeout
          ? all_met && !may_be_lost && !just_now
          : (event.code == Errc::kPeerLost || event.code == Errc::kAborted) && !may_be_lost;
  if (wrong) {
    violated("a group wait completes with the right code",
             fmt::format("{}: {} and {}", describe(op), to_string(event.code),
                         all_met ? "all members were met" : "not all members were met"));
  }
  if (event.code == Errc::kOk) {
    for (const uint32_t number : group_wait.members) {
      if (counters_[number].counter) check_all_landed(counters_[number]);
    }
    group_wait.group.reset();
    return;
  }
  const bool may_go_on = event.code == Errc::kPeerLost || event.code == Errc::kAborted;
  const auto lost = group_wait.group->lost();
  if (may_go_on && event.peer && std::ranges::find(lost, event.peer) == lost.end()) {
    // Unless a drop has masked it since.
    const bool masked = std::ranges::none_of(group_wait.members, [&](uint32_t number) {
      return counters_[number].member == event.peer && counters_[number].counter;
    });
    if (!masked) violated("lost() names the peer that ended a group", describe(op));
  }
  if (!may_go_on || !event.peer) return;
  const Errc masked = group_wait.group->mask(event.peer).error().code;
  if (masked != Errc::kOk && masked != Errc::kNotFound) return;
  member_masked(group_wait, event.peer);
  if (++group_wait.attempts < 4) arm_group_wait(op.subject, Nanos(300'000'000));
}

/// The fence was proved: no write of that session can land any more.
void Runner::session_fenced(uint32_t session) {
  sessions_[session].fenced_at = std::min(sessions_[session].fenced_at, now());
  for (Part& part : parts_) {
    if (part.session != session || part.arena == kNone) continue;
    TargetArena& arena = arenas_[part.arena].memory;
    arena.seal(part.slot);
  }
}

/// The deregistration was proved: no write can land in the arena any more.
void Runner::arena_fenced(uint32_t arena) {
  arenas_[arena].fenced_at = std::min(arenas_[arena].fenced_at, now());
  arenas_[arena].memory.seal_all();
}

}  // namespace fabric::swarm

#include "workloads/kv/decoder_core.h"

#include <algorithm>

#include "base/check.h"

// The events of a decoder: inbox reports and deadlines, applied to page leases and tasks.

namespace fabric::kv::decode {
namespace {

// How soon the counts of a draining flow are compared again, for a program that sleeps. One that
// polls compares them each time.
constexpr Nanos kDrainCheck{1'000'000};

// Events queued for poll(). Beyond that, the decoder stops reading its inbox.
constexpr size_t kDecodeEventsMax = 65536;

}  // namespace

DecoderCore::DecoderCore(Engine& engine, const DecoderOptions& options, Inbox inbox)
    : engine_(engine),
      options_(options),
      answer_time_(workloads::times(4, options.patience)),
      quarantined_(options.layout.groups.size(), 0),
      inbox_(std::move(inbox)) {
  for (const CacheGroup& group : options_.layout.groups) owners_.emplace_back(group.pages);
  if (options_.tail_region != nullptr) {
    const uint64_t slots = options_.tail_region->size_bytes() / options_.tail_slot_bytes;
    tail_owners_ = PageOwners(static_cast<uint32_t>(std::min<uint64_t>(slots, 1u << 24)));
  }
  if (options_.staging_region != nullptr) {
    const uint64_t records = options_.staging_region->size_bytes() / options_.staging_record_bytes;
    staging_ = PagePool(static_cast<uint32_t>(std::min<uint64_t>(records, 1u << 24)));
    for (const MemoryRegion* region : options_.regions) region_bytes_.push_back(region->bytes());
  }
}

Result<void> DecoderCore::open() {
  auto bytes = encode(options_.layout);
  if (!bytes) return bytes.error();
  layout_bytes_ = *std::move(bytes);
  auto messages =
      engine_.listen(options_.channel, Notify::inbox(inbox_, tagged(TagKind::kMessage)));
  if (!messages) return messages.error();
  messages_ = *std::move(messages);
  auto events = engine_.subscribe(Notify::inbox(inbox_, tagged(TagKind::kEngine)));
  if (!events) return events.error();
  engine_events_ = *std::move(events);
  return {};
}

// ---- Calls --------------------------------------------------------------------------------------

Task* DecoderCore::newest(std::string_view id) const {
  auto it = tasks_.upper_bound({std::string(id), UINT32_MAX});
  if (it == tasks_.begin()) return nullptr;
  --it;
  return it->first.first == id ? it->second.get() : nullptr;
}

Flow* DecoderCore::find_flow(uint64_t number) {
  const auto found = flows_.find(number);
  return found == flows_.end() ? nullptr : found->second;
}

Result<void> DecoderCore::cancel(std::string_view id) {
  Task* task = newest(id);
  if (task == nullptr) return fail(Errc::kNotFound, "id");
  if (task->phase != Task::Phase::kRunning) return {};
  task->phase = Task::Phase::kCancelled;
  for (const auto& flow : task->flows) apply(*flow, flow->lease.stop(), FailCode::kNone);
  update(*task);
  erase_ended();
  wake();
  return {};
}

void DecoderCore::drain(bool stop) {
  draining_all_ = true;
  std::vector<std::string> running;
  for (const auto& [key, task] : tasks_) {
    if (stop && task->phase == Task::Phase::kRunning) running.push_back(key.first);
  }
  for (const std::string& id : running) (void)cancel(id);
  erase_ended();
  wake();
}

Result<bool> DecoderCore::layer_ready(std::string_view id, uint32_t layer) const {
  const Task* task = newest(id);
  if (task == nullptr) return fail(Errc::kNotFound, "id");
  const auto found = std::ranges::lower_bound(task->layers, layer, {}, &LayerWait::layer);
  if (found == task->layers.end() || found->layer != layer) return fail(Errc::kNotFound, "layer");
  if (task->phase == Task::Phase::kFailed || task->phase == Task::Phase::kCancelled) {
    return fail(Errc::kCancelled, "id: it will not complete");
  }
  return task->phase == Task::Phase::kComplete || (task->per_layer && found->sources_left == 0);
}

Result<void> DecoderCore::wait_layer(std::string_view id, uint32_t layer, Timeout timeout) {
  auto ready = await_layer(id, layer, timeout);
  wake();  // events that arrived while waiting are left to poll()
  return ready;
}

Result<void> DecoderCore::await_layer(std::string_view id, uint32_t layer, Timeout timeout) {
  const Nanos limit = timeout.ns == Timeout::kDefault || timeout.ns == Timeout::kForever
                          ? options_.deadline
                          : Nanos(timeout.ns);
  const Nanos end = later(engine_.now(), limit);
  for (;;) {
    const auto ready = layer_ready(id, layer);
    if (!ready) return ready.error();
    if (*ready) return {};
    const Nanos left = end - engine_.now();
    if (left <= Nanos{}) return fail(Errc::kTimeout, "wait_layer");
    if (auto waited = inbox_.wait(left); !waited) return waited;
    work();
    erase_ended();
  }
}

Result<void> DecoderCore::wait(Timeout timeout) {
  if (!events_.empty()) return {};
  return inbox_.wait(timeout);
}

uint32_t DecoderCore::poll(std::span<DecodeEvent> out) {
  work();
  erase_ended();
  uint32_t count = 0;
  while (count < out.size() && !events_.empty()) {
    DecodeEvent& event = out[count++];
    event = std::move(events_.front());
    events_.pop_front();
    const bool last =
        event.kind == DecodeEvent::Kind::kMayWrite || event.kind == DecodeEvent::Kind::kPagesFree;
    if (last) tasks_.erase({event.id, event.attempt});
  }
  wake();
  return count;
}

PageState DecoderCore::page_state(uint32_t group, uint32_t page) const noexcept {
  if (group >= owners_.size()) return PageState::kUnleased;
  const uint32_t slot = owners_[group].owner(page);
  if (slot == PageOwners::kNone) return PageState::kUnleased;
  const Task& task = *by_slot_[slot];
  PageState state =
      task.phase == Task::Phase::kComplete ? PageState::kReadable : PageState::kInFlight;
  for (const auto& flow : task.flows) {
    if (flow->lease.state() == LeaseState::kQuarantined) return PageState::kQuarantined;
    if (flow->lease.state() == LeaseState::kFencing) state = PageState::kFencing;
  }
  return state;
}

std::optional<PrefillLoad> DecoderCore::load(PeerId peer) const {
  const auto found = loads_.find(peer);
  if (found == loads_.end()) return std::nullopt;
  return found->second;
}

DecoderStats DecoderCore::stats() const {
  DecoderStats out = stats_;
  out.requests = live_;
  for (const auto& [number, flow] : flows_) {
    switch (flow->lease.state()) {
      case LeaseState::kIdle:
      case LeaseState::kAsked:
      case LeaseState::kFlowing:
        ++out.in_flight;
        break;
      case LeaseState::kStopping:
        ++out.stopping;
        break;
      case LeaseState::kDraining:
        ++out.draining;
        break;
      case LeaseState::kFull:
        ++out.awaiting_quiet;
        break;
      case LeaseState::kFencing:
        ++out.fencing;
        break;
      case LeaseState::kQuarantined:
        ++out.quarantined;
        break;
      case LeaseState::kQuiet:
        break;
    }
  }
  for (const PageOwners& owners : owners_) out.pages_leased += owners.taken();
  for (const uint64_t pages : quarantined_) out.pages_quarantined += pages;
  out.staging_records = staging_.size() - staging_.free();
  for (const auto& [key, session] : sessions_) {
    for (const auto& [number, set] : session->sets) out.grants += set->grants.size();
  }
  return out;
}

// ---- Events of the engine -----------------------------------------------------------------------

void DecoderCore::work() {
  Event batch[64];
  // Bounded, also when a peer sends faster than this reads. The rest is for the next call.
  for (uint32_t taken = 0; events_.size() < kDecodeEventsMax && taken < options_.inbox_depth;) {
    const uint32_t n = inbox_.poll(batch);
    if (n == 0) break;
    taken += n;
    for (uint32_t i = 0; i < n; ++i) handle(batch[i]);
  }
  while (const auto what = deadlines_.take(engine_.now())) due(*what);
  for (const auto& [key, session] : sessions_) {
    pump(*session);
    if (session->fencing == SourceSession::Fencing::kWanted) submit_fence(*session);
    for (const auto& [number, set] : session->sets) {
      if (set->state != GrantSet::State::kLive && set->revokes_sent < set->grants.size()) {
        submit_revokes(*set);
      }
    }
  }
  const std::map<uint64_t, Flow*> retries = std::exchange(retries_, {});
  for (const auto& [number, flow] : retries) {
    if (flow->needs_arm) arm(*flow);
    if (flow->needs_cancel) send_cancel(*flow);
  }
  const std::map<uint64_t, Flow*> draining = draining_;
  for (const auto& [number, flow] : draining) check_counts(*flow);
  if (!draining_.empty() && drain_check_ == Nanos{}) {
    drain_check_ = engine_.now() + kDrainCheck;
    deadlines_.add(drain_check_, tagged(DueKind::kDrain));
  }
  deadlines_.arm(engine_, inbox_, tagged(TagKind::kTimer));
}

void DecoderCore::handle(const Event& event) {
  Flow* flow = find_flow(tag_number(event.tag));
  switch (static_cast<TagKind>(event.tag >> 56)) {
    case TagKind::kMessage:
      return message(event);
    case TagKind::kEngine:
      return engine_event(event);
    case TagKind::kTimer:
      return deadlines_.fired();
    case TagKind::kWake:
      wake_pending_ = false;
      return;
    case TagKind::kDispatch:
      if (flow == nullptr || flow->session == nullptr || event.code == Errc::kOk) return;
      if (event.code == Errc::kPeerLost) {
        lose(*flow->session);
      } else {
        if (event.code == Errc::kUnsupported) forgotten(*flow->session, flow->dispatch.serial);
        apply(*flow, flow->lease.dispatch_failed(event.remote == Remote::kNotDelivered),
              FailCode::kNotDelivered, to_string(event.code));
      }
      return;
    case TagKind::kCancel:
      if (flow == nullptr || event.code == Errc::kOk) return;
      return apply(*flow, flow->lease.cancel_failed(), FailCode::kPeerLost);
    case TagKind::kCount:
      return count_event(event);
    case TagKind::kRevoke:
      return revoke_ended(event);
    case TagKind::kFence:
      return fence_ended(event);
    case TagKind::kHello:
      if (event.code == Errc::kOk) return;
      if (SourceSession* session = find_session(tag_number(event.tag)); session != nullptr) {
        hello_lost(*session);
      }
      return;
    case TagKind::kGrants:
      if (event.code != Errc::kOk) grants_lost(tag_number(event.tag));
      return;
  }
}

void DecoderCore::engine_event(const Event& event) {
  if (event.kind == EventKind::kPeer) peer_changed(event);
  if (event.kind == EventKind::kFenceProved) proof_came(event);
}

void DecoderCore::message(const Event& event) {
  const auto head = wire::decode_head(event.bytes());
  if (!head) {
    ++stats_.bad_messages;
    return;
  }
  const auto found = sessions_.find({event.peer, head->channel});
  if (found == sessions_.end()) {
    ++stats_.stale_messages;
    return;
  }
  answer(*found->second, head->kind, event.bytes());
}

/// A reply for one flow. One that does not parse, or names no flow, is ignored.
void DecoderCore::answer(SourceSession& session, wire::MessageKind kind,
                         std::span<const std::byte> bytes) {
  const auto flow_of = [&](uint64_t serial) -> Flow* {
    const auto found = session.by_serial.find(serial);
    if (found == session.by_serial.end()) ++stats_.stale_messages;
    return found == session.by_serial.end() ? nullptr : found->second;
  };
  switch (kind) {
    case wire::MessageKind::kAccept: {
      const auto accept = wire::decode_accept(bytes);
      if (!accept) break;
      loads_[session.peer] = accept->load;
      session.accepted = true;
      Flow* flow = flow_of(accept->serial);
      if (flow == nullptr) return;
      const LeaseEffects effects = flow->lease.accepted();
      if (!effects.stale) emit(*flow->task, DecodeEvent::Kind::kAccepted).rank = flow->rank;
      return apply(*flow, effects, FailCode::kNone);
    }
    case wire::MessageKind::kRefuse: {
      const auto refuse = wire::decode_refuse(bytes);
      if (!refuse) break;
      loads_[session.peer] = refuse->load;
      Flow* flow = flow_of(refuse->serial);
      if (flow == nullptr) return;
      if (refuse->code == RefuseCode::kGrants && flow->set != nullptr) flow->set->retired = true;
      if (refuse->code == RefuseCode::kUnknownDecoder) forgotten(session, refuse->serial);
      // It may have no room for another decoder.
      if (refuse->code == RefuseCode::kCapacity && !session.accepted) hello_lost(session);
      return apply(*flow, flow->lease.refused(), FailCode::kRefused, refuse->text, refuse->code);
    }
    case wire::MessageKind::kConfirm:
    case wire::MessageKind::kFailed: {
      const auto ended = wire::decode_ended(bytes);
      if (!ended) break;
      Flow* flow = flow_of(ended->serial);
      if (flow == nullptr) return;
      return apply(*flow, flow->lease.confirmed(ended->landed, ended->unknown),
                   FailCode::kPrefillFailed, "the prefiller gave up");
    }
    case wire::MessageKind::kQuiet: {
      const auto quiet = wire::decode_quiet(bytes);
      if (!quiet) break;
      Flow* flow = flow_of(quiet->serial);
      if (flow == nullptr) return;
      return apply(*flow, flow->lease.quiet(quiet->unknown), FailCode::kPoisoned);
    }
    default:
      break;
  }
  ++stats_.bad_messages;
}

// ---- Counts -------------------------------------------------------------------------------------

FlowCounter* DecoderCore::current(Flow& flow) {
  return flow.at < flow.counters.size() ? &flow.counters[flow.at] : nullptr;
}

uint64_t DecoderCore::counts_here(const Flow& flow) {
  uint64_t here = flow.taken;
  for (size_t i = flow.at; i < flow.counters.size(); ++i) here += flow.counters[i].counter.count();
  return here;
}

void DecoderCore::count_event(const Event& event) {
  Flow* flow = find_flow(tag_number(event.tag));
  if (flow == nullptr) return;
  flow->armed = false;
  count_code(*flow, event.code);
}

void DecoderCore::count_code(Flow& flow, Errc code) {
  switch (code) {
    case Errc::kOk:
      return counter_met(flow);
    case Errc::kCancelled:
      return apply(flow, flow.lease.expectation_ended(), FailCode::kNone);
    case Errc::kPeerLost: {
      SourceSession* session = flow.session;
      apply(flow, flow.lease.expectation_ended(), FailCode::kNone);
      // The session's own event may come later, and until then a grant could only be revoked.
      if (session != nullptr) lose(*session);
      return;
    }
    default:
      return apply(flow, flow.lease.poisoned(), FailCode::kPoisoned, to_string(code));
  }
}

/// counters[at] has its share. Takes the following ones that have theirs too, then arms the next.
void DecoderCore::counter_met(Flow& flow) {
  Task& task = *flow.task;
  do {
    const FlowCounter& met = flow.counters[flow.at];
    flow.taken += met.share;
    ++flow.at;
    if (task.phase == Task::Phase::kRunning) scatter_arrived(flow, met.layer);
    const auto layer = std::ranges::lower_bound(task.layers, met.layer, {}, &LayerWait::layer);
    const bool is_layer = layer != task.layers.end() && layer->layer == met.layer;
    if (is_layer && --layer->sources_left == 0 && task.phase == Task::Phase::kRunning) {
      emit(task, DecodeEvent::Kind::kLayer).layer = met.layer;
    }
  } while (current(flow) != nullptr && current(flow)->counter.try_take(current(flow)->share));
  if (current(flow) == nullptr) {
    return apply(flow, flow.lease.counted(is_final(flow)), FailCode::kNone);
  }
  if (flow.lease.in_flight()) return arm(flow);
  apply(flow, flow.lease.expectation_ended(), FailCode::kNone);  // stopped between two layers
}

/// Takes what is staged of a layer, or of all of them, from its records into the pages.
void DecoderCore::scatter_arrived(const Flow& flow, uint32_t layer) {
  // Without a layer: the tail, if the layers have counters of their own.
  if (layer == FlowCounter::kNoLayer && flow.task->per_layer) return;
  for (const StagedUnits& units : flow.staged) {
    for (const LayerSlices& one : units.group->layers) {
      if (layer != FlowCounter::kNoLayer && one.layer != layer) continue;
      for (const StagedWrite& write : staged_of(*units.group, one)) {
        if (write.list != units.list) continue;
        for (size_t n = 0; n < units.target.size(); ++n) {
          const uint64_t at =
              units.records[n] * options_.staging_record_bytes + write.record_offset_bytes;
          const auto packed = options_.staging_region->bytes().subspan(at, write.bytes);
          // The plan fits the layout, and the layout the regions.
          FABRIC_CHECK(scatter(write, units.target[n], packed, region_bytes_));
        }
      }
    }
  }
}

void DecoderCore::arm(Flow& flow) {
  flow.needs_arm = false;
  if (!flow.lease.in_flight() || current(flow) == nullptr) return;
  const auto armed = current(flow)->counter.expect(
      current(flow)->share, Notify::inbox(inbox_, tagged(TagKind::kCount, flow.number)),
      Timeout::forever());
  if (armed) {
    flow.armed = true;
  } else if (armed.error().code == Errc::kExhausted) {
    flow.needs_arm = true;
    retries_[flow.number] = &flow;
  } else {
    count_code(flow, armed.error().code);
  }
}

void DecoderCore::check_counts(Flow& flow) {
  if (flow.lease.state() != LeaseState::kDraining || flow.armed) return;
  apply(flow, flow.lease.counts(counts_here(flow)), FailCode::kPrefillFailed);
}

bool DecoderCore::is_final(const Flow& flow) const {
  if (flow.session == nullptr) return true;  // quiet
  const auto info = engine_.peer_info(flow.session->peer);
  return info && info->count_is_final;
}

// ---- Deadlines ----------------------------------------------------------------------------------

void DecoderCore::set_due(Flow& flow, Nanos after) {
  clear_due(flow);
  flow.due = later(engine_.now(), after);
  deadlines_.add(flow.due, tagged(DueKind::kFlow, flow.number));
}

void DecoderCore::clear_due(Flow& flow) {
  if (flow.due == Nanos{}) return;
  deadlines_.remove(flow.due, tagged(DueKind::kFlow, flow.number));
  flow.due = {};
}

void DecoderCore::due(uint64_t what) {
  const uint64_t number = tag_number(what);
  switch (static_cast<DueKind>(what >> 56)) {
    case DueKind::kFlow:
      if (Flow* flow = find_flow(number); flow != nullptr) {
        flow->due = {};
        apply(*flow, flow->lease.expired(), FailCode::kStalled);
      }
      return;
    case DueKind::kTask:
      if (const auto found = by_number_.find(number); found != by_number_.end()) {
        fail_task(*found->second, FailCode::kDeadline, 0, "the deadline of the request has passed");
      }
      return;
    case DueKind::kStall:
      for (const auto& [key, session] : sessions_) {
        if (session->number != number) continue;
        session->stall_due = {};
        std::vector<Flow*> flows;
        for (const auto& [serial, flow] : session->by_serial) flows.push_back(flow);
        for (const uint64_t waiting : session->waiting) {
          if (Flow* flow = find_flow(waiting); flow != nullptr) flows.push_back(flow);
        }
        for (Flow* flow : flows) {
          if (!flow->lease.in_flight() && flow->lease.state() != LeaseState::kIdle) continue;
          fail_task(*flow->task, FailCode::kStalled, flow->rank, "the prefiller does not answer");
        }
      }
      return;
    case DueKind::kDrain:
      drain_check_ = {};  // work() compares, and sets the next one
      return;
    case DueKind::kGrants:
      return;
  }
}

// ---- Leases and tasks ---------------------------------------------------------------------------

/// Carries out the effects of a lease event. `cause`: why the request fails, if this event fails
/// it.
void DecoderCore::apply(Flow& flow, const LeaseEffects& effects, FailCode cause, std::string text,
                        RefuseCode refused) {
  if (effects.stale) return;
  Task& task = *flow.task;
  const LeaseState state = flow.lease.state();
  bool drain = effects.drain;
  if (effects.disarm && flow.armed) current(flow)->counter.disarm();
  // A flow that waits for inbox room to arm its next counter has no expectation that could end.
  if (effects.disarm && !flow.armed) drain = flow.lease.expectation_ended().drain || drain;
  if (state == LeaseState::kFull) {
    ++stats_.waited_for_quiet;
    set_due(flow, answer_time_);
    // Counts were final at dispatch and are not any more (a reroute): request QUIET now.
    if (!flow.wants_quiet) send_cancel(flow);
  }
  if (effects.send_cancel) {
    set_due(flow, answer_time_);
    send_cancel(flow);
  }
  if (state == LeaseState::kDraining) {
    draining_[flow.number] = &flow;
    if (flow.due == Nanos{}) set_due(flow, answer_time_);  // FAILED: nothing was asked
    if (drain && counts_here(flow) < flow.lease.landed()) ++stats_.waited_for_counts;
    if (drain) check_counts(flow);
  }
  if (effects.fence) {
    draining_.erase(flow.number);
    clear_due(flow);
    fence(flow);
  }
  if (effects.quiet) detach(flow);
  const bool ended =
      !flow.lease.in_flight() && !flow.lease.full() && flow.lease.state() != LeaseState::kIdle;
  if (task.phase == Task::Phase::kRunning && ended) {
    fail_task(task, cause, flow.rank, std::move(text), refused);
  }
  update(task);
}

void DecoderCore::fail_task(Task& task, FailCode code, uint32_t rank, std::string text,
                            RefuseCode refused) {
  if (task.phase != Task::Phase::kRunning) return;
  task.phase = Task::Phase::kFailed;
  ++stats_.failed;
  DecodeEvent& event = emit(task, DecodeEvent::Kind::kFailed);
  event.fail = code;
  event.rank = rank;
  event.refused = refused;
  event.text = std::move(text);
  for (const auto& flow : task.flows) apply(*flow, flow->lease.stop(), code);
  update(task);
}

/// Reports the state that all flows of the task have reached together.
void DecoderCore::update(Task& task) {
  if (task.over) return;
  bool full = true, landed_known = true, quiet = true, quarantined = false;
  uint64_t landed = 0;
  for (const auto& flow : task.flows) {
    full = full && flow->lease.full();
    landed_known = landed_known && flow->lease.landed_known();
    quiet = quiet && flow->lease.state() == LeaseState::kQuiet;
    quarantined = quarantined || flow->lease.state() == LeaseState::kQuarantined;
    landed += flow->lease.landed();
  }
  if (task.phase == Task::Phase::kRunning && full) {
    task.phase = Task::Phase::kComplete;
    ++stats_.completed;
    emit(task, DecodeEvent::Kind::kComplete).landed = landed;
    deadlines_.remove(task.deadline, tagged(DueKind::kTask, task.number));
  }
  if (quarantined && !task.quarantine_reported) {
    task.quarantine_reported = true;
    for (size_t g = 0; g < task.leased.size(); ++g) quarantined_[g] += task.leased[g].size();
    emit(task, DecodeEvent::Kind::kQuarantined);
  }
  if (task.phase == Task::Phase::kCancelled && landed_known && !task.cancel_reported) {
    task.cancel_reported = true;
    ++stats_.cancelled;
    emit(task, DecodeEvent::Kind::kCancelled).landed = landed;
  }
  if (quiet && task.phase != Task::Phase::kRunning) finish(task);
}

/// No write of the task can land any more: its pages go back.
void DecoderCore::finish(Task& task) {
  task.over = true;
  emit(task, task.phase == Task::Phase::kComplete ? DecodeEvent::Kind::kMayWrite
                                                  : DecodeEvent::Kind::kPagesFree);
  deadlines_.remove(task.deadline, tagged(DueKind::kTask, task.number));
  for (size_t g = 0; g < task.leased.size(); ++g) {
    owners_[g].release(task.leased[g]);
    if (task.quarantine_reported) quarantined_[g] -= task.leased[g].size();
  }
  if (task.tail_slot != DecodeRequest::kNoTail) tail_owners_.release({&task.tail_slot, 1});
  ended_.push_back(&task);
}

/// Frees flows and sessions that ended in this call. Not earlier: callers up the stack hold
/// references. The record itself stays until poll() has taken its last event, for layer_ready().
void DecoderCore::erase_ended() {
  for (Task* task : std::exchange(ended_, {})) {
    for (const auto& flow : task->flows) {
      flows_.erase(flow->number);
      retries_.erase(flow->number);
    }
    task->flows.clear();
    by_number_.erase(task->number);
    by_slot_[task->slot] = nullptr;
    free_slots_.push_back(task->slot);
    --live_;
  }
  for (const auto& key : std::exchange(dead_sessions_, {})) {
    sessions_.erase(key);
    loads_.erase(key.first);
  }
  if (draining_all_ && live_ == 0 && !drained_reported_) {
    drained_reported_ = true;
    events_.push_back({.kind = DecodeEvent::Kind::kDrained});
  }
}

DecodeEvent& DecoderCore::emit(const Task& task, DecodeEvent::Kind kind) {
  DecodeEvent event;
  event.kind = kind;
  event.id = task.id;
  event.attempt = task.attempt;
  events_.push_back(std::move(event));
  return events_.back();
}

/// Events that wait for poll() make the descriptor readable, also when a call other than poll()
/// queued them, or `out` was too small.
void DecoderCore::wake() {
  deadlines_.arm(engine_, inbox_, tagged(TagKind::kTimer));
  if (events_.empty() || wake_pending_) return;
  wake_pending_ =
      engine_
          .submit(Timer{.after = Nanos{}, .notify = Notify::inbox(inbox_, tagged(TagKind::kWake))})
          .has_value();
}

}  // namespace fabric::kv::decode

#include <algorithm>

#include "base/bytes.h"
#include "workloads/kv/prefiller_core.h"

// Messages from decoders, and the answers to them. All of it is untrusted: a malformed message is
// counted, an invalid request is refused, and nothing is allocated beyond the limits of the
// options.

namespace fabric::kv::prefill {
namespace {

constexpr size_t kPlansMax = 256;
constexpr size_t kSlicesMax = 1u << 21;  ///< of all plans together, some 100 bytes each
constexpr size_t kMissedMax = 1024;
constexpr size_t kAnswersMax = 16384;   ///< to a decoder, that wait for room in the engine
constexpr uint32_t kTargetsMax = 1024;  ///< of a request that is not offered yet
constexpr const char* kNoHello = "this prefiller does not know the decoder's layout yet";

/// The plan by step: what each layer of this rank sends of each group.
void arrange(DecoderPlan& out, std::span<const uint32_t> layers) {
  for (const PairGroup& group : out.pair->groups) {
    out.first_list.push_back(out.lists);
    out.lists += static_cast<uint32_t>(group.lists.size());
  }
  out.steps.resize(layers.size());
  for (size_t step = 0; step < layers.size(); ++step) {
    for (size_t g = 0; g < out.pair->groups.size(); ++g) {
      const PairGroup& group = out.pair->groups[g];
      const LayerSlices* layer = find_layer(group, layers[step]);
      if (layer != nullptr) out.steps[step].push_back({&group, layer, out.first_list[g]});
    }
  }
}

/// What the largest unit of a staged write takes; 0: nothing is staged.
uint64_t largest_staged_bytes(const PairPlan& pair) {
  uint64_t most = 0;
  for (const PairGroup& group : pair.groups) {
    for (const StagedWrite& write : group.staged) most = std::max(most, write.bytes);
  }
  return most;
}

}  // namespace

// ---- Sessions -----------------------------------------------------------------------------------

void PrefillerCore::message(const Event& event) {
  const auto head = wire::decode_head(event.bytes());
  const bool to_prefiller = head && head->kind <= wire::MessageKind::kCancel;
  if (!to_prefiller) {
    ++stats_.bad_messages;
    return;
  }
  if (head->kind == wire::MessageKind::kHello) {
    return hello(event.peer, head->channel, event.bytes());
  }
  const auto found = sessions_.find({event.peer, head->channel});
  if (found == sessions_.end()) return from_unknown(event.peer, *head, event.bytes());
  DecoderSession& session = *found->second;
  switch (head->kind) {
    case wire::MessageKind::kGrants:
      return grants(session, event.bytes());
    case wire::MessageKind::kDispatch:
      return dispatch(session, event.bytes());
    default:
      return cancel_message(session, event.bytes());
  }
}

void PrefillerCore::hello(PeerId peer, uint16_t channel, std::span<const std::byte> bytes) {
  const auto hello = wire::decode_hello(bytes);
  if (!hello) {
    ++stats_.bad_messages;
    return;
  }
  auto found = sessions_.find({peer, channel});
  if (found == sessions_.end()) {
    // Its dispatches are refused with kCapacity, see from_unknown().
    if (sessions_.size() >= options_.decoders_max) return;
    auto made = std::make_unique<DecoderSession>();
    made->peer = peer;
    made->channel = channel;
    found = sessions_.emplace(std::pair{peer, channel}, std::move(made)).first;
  }
  DecoderSession& session = *found->second;
  if (session.plan == nullptr ||
      wire::incarnation_of(hello->next_serial) != wire::incarnation_of(session.first)) {
    // The decoder was opened again: what the one before it had asked for is not wanted any more.
    lose_targets(session);
    session.sets.clear();
    session.missed.clear();
    session.first = hello->next_serial;
    session.seen = hello->next_serial - 1;
    session.plan = plan_for(hello->layout);
  } else if (session.plan->refused == RefuseCode::kCapacity) {
    session.plan = plan_for(hello->layout);
  }
}

/// Only HELLO makes a session. Without one nothing is known about a dispatch, and nothing about the
/// writes of one that is to be cancelled: an earlier prefiller on this engine may have made some.
void PrefillerCore::from_unknown(PeerId peer, wire::MessageHead head,
                                 std::span<const std::byte> bytes) {
  DecoderSession none;
  none.peer = peer;
  none.channel = head.channel;
  if (head.kind == wire::MessageKind::kDispatch) {
    ByteReader in(bytes);
    in.bytes(5);
    const uint64_t serial = in.u64();
    if (in.ok() && sessions_.size() >= options_.decoders_max) {
      return refuse(none, serial,
                    {RefuseCode::kCapacity, "this prefiller has as many decoders as it may"});
    }
    if (in.ok()) return refuse(none, serial, {RefuseCode::kUnknownDecoder, kNoHello});
  } else if (head.kind == wire::MessageKind::kCancel) {
    if (const auto serial = wire::decode_cancel(bytes)) return cancel_unknown(none, *serial);
  }
  ++stats_.bad_messages;
}

std::shared_ptr<const DecoderPlan> PrefillerCore::plan_for(std::span<const std::byte> layout) {
  const std::vector<std::byte> key(layout.begin(), layout.end());
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
  auto out = std::make_shared<DecoderPlan>();
  const auto refuse = [&](std::string text) {
    out->refused = RefuseCode::kLayout;
    out->text = std::move(text);
  };
  const auto decoder = decode_layout(layout);
  if (!decoder) {
    refuse(std::string("layout: ") + decoder.error().what);
    return out;  // not kept: garbage must not fill the table
  }
  Refusal refusal;
  auto planned = plan(options_.side, Side{{*decoder}}, options_.plan, &refusal);
  if (!planned) {
    refuse(refusal.reason.empty() ? planned.error().what : refusal.reason);
  } else {
    out->plan = *std::move(planned);
    out->regions = decoder->region_bytes.size();
    const auto pair = find_pair(out->plan, options_.rank, 0);
    if (!pair) {
      refuse("this prefill rank has nothing that the decode rank needs");
    } else if (largest_staged_bytes(out->plan.pairs[*pair]) > options_.staging_slot_bytes) {
      refuse("the plan has staged writes, and staging_region is not there or its slots are small");
    } else {
      out->pair = &out->plan.pairs[*pair];
      arrange(*out, layers_);
    }
  }
  for (const PairPlan& pair : out->plan.pairs) {
    for (const PairGroup& group : pair.groups) out->slices += group.slices.size();
  }
  if (make_room_for(*out)) {
    plans_.emplace(key, out);
    return out;
  }
  auto full = std::make_shared<DecoderPlan>();
  full->refused = RefuseCode::kCapacity;
  full->text = "the plans of all decoder layouts here are too large together";
  return full;
}

/// Forgets plans of decoders that are gone, when there are too many. False: those in use leave no
/// room for this one.
bool PrefillerCore::make_room_for(const DecoderPlan& plan) {
  size_t slices = plan.slices;
  for (const auto& [layout, held] : plans_) slices += held->slices;
  for (auto at = plans_.begin(); at != plans_.end();) {
    if (plans_.size() < kPlansMax && slices <= kSlicesMax) return true;
    const bool unused = at->second.use_count() == 1;
    if (unused) slices -= at->second->slices;
    at = unused ? plans_.erase(at) : std::next(at);
  }
  return plans_.size() < kPlansMax && slices <= kSlicesMax;
}

void PrefillerCore::grants(DecoderSession& session, std::span<const std::byte> bytes) {
  const auto grants = wire::decode_grants(bytes);
  if (!grants) {
    ++stats_.bad_messages;
    return;
  }
  std::shared_ptr<ImportedSet>& set = session.sets[grants->set];
  const bool begins = grants->first == 0;
  if (set == nullptr || set->generation != grants->generation || begins) {
    set = std::make_shared<ImportedSet>();
    set->generation = grants->generation;
    set->total = grants->total;
    set->has_tail = grants->has_tail;
    set->has_staging = grants->has_staging;
  }
  // Parts arrive in order; a missing one makes the set unusable.
  if (grants->first != set->regions.size() || grants->total != set->total) set->bad = true;
  if (set->bad) return;
  for (const auto desc : grants->descs) {
    const auto imported = engine_.import_region(session.peer, desc);
    set->bad = set->bad || !imported;
    set->regions.push_back(imported ? *imported : RemoteRegion{});
  }
}

// ---- Dispatches ---------------------------------------------------------------------------------

void PrefillerCore::note_serial(DecoderSession& session, uint64_t serial) {
  if (serial > session.seen + 1) {
    session.missed.push_back({session.seen + 1, serial - 1});
    // The oldest is dropped. A cancel of it would be answered with ALL: the decoder then waits for
    // counts that never arrive, and fences.
    if (session.missed.size() > kMissedMax) session.missed.pop_front();
  }
  session.seen = serial;
}

bool PrefillerCore::was_missed(const DecoderSession& session, uint64_t serial) {
  return serial > session.seen ||
         std::ranges::any_of(session.missed, [&](const MissedSerials& range) {
           return serial >= range.first && serial <= range.last;
         });
}

void PrefillerCore::dispatch(DecoderSession& session, std::span<const std::byte> bytes) {
  const uint64_t pages_max = uint64_t{options_.prompt_tokens_max} * 2;
  auto dispatch = wire::decode_dispatch(bytes, pages_max);
  ByteReader in(bytes);
  in.bytes(5);
  const uint64_t serial = in.u64();
  if (in.ok() && wire::incarnation_of(serial) != wire::incarnation_of(session.first)) {
    return refuse(session, serial, {RefuseCode::kUnknownDecoder, kNoHello});
  }
  if (!dispatch) {
    ++stats_.bad_messages;
    if (!in.ok() || serial <= session.seen) return;
    note_serial(session, serial);
    return refuse(session, serial, {RefuseCode::kBadMessage, dispatch.error().what});
  }
  if (dispatch->serial <= session.seen) {
    ++stats_.duplicates;
    const bool held = session.targets.contains(dispatch->serial);
    if (held) {
      send(session, wire::encode_accept(options_.channel, {dispatch->serial, current_load()}));
    }
    return;
  }
  note_serial(session, dispatch->serial);
  Refusing refusing = check_session(session, *dispatch);
  if (refusing.code == RefuseCode::kNone) refusing = check_request(session, *dispatch);
  if (refusing.code == RefuseCode::kNone) refusing = check_offer_of(session, *dispatch);
  if (refusing.code != RefuseCode::kNone) return refuse(session, dispatch->serial, refusing);
  auto batch = engine_.make_batch();
  if (!batch) {
    return refuse(session, dispatch->serial, {RefuseCode::kCapacity, "no batch is free"});
  }
  accept(session, *dispatch, *std::move(batch));
}

PrefillerCore::Refusing PrefillerCore::check_session(const DecoderSession& session,
                                                     const wire::Dispatch& dispatch) const {
  if (draining_) return {RefuseCode::kDraining, "this prefiller is about to leave"};
  if (targets_.size() >= options_.requests_max) {
    return {RefuseCode::kCapacity, "this prefiller holds as many requests as it may"};
  }
  const DecoderPlan& plan = *session.plan;
  if (plan.refused != RefuseCode::kNone) return {plan.refused, plan.text};
  if (plan.plan.target_hashes[0] != dispatch.plan_hash) {
    return {RefuseCode::kPlanDiffers, "the two sides have different plans"};
  }
  const auto set = session.sets.find(dispatch.set);
  const bool usable = set != session.sets.end() && !set->second->bad &&
                      set->second->generation == dispatch.set_generation &&
                      set->second->regions.size() == set->second->total &&
                      set->second->total == plan.regions + (set->second->has_tail ? 1 : 0) +
                                                (set->second->has_staging ? 1 : 0);
  if (!usable) return {RefuseCode::kGrants, "the descriptors are not there, or not importable"};
  if (dispatch.has_tail && !set->second->has_tail) {
    return {RefuseCode::kGrants, "a tail is wanted, and there is no tail region"};
  }
  if (!dispatch.staging_records.ids.empty() && !set->second->has_staging) {
    return {RefuseCode::kGrants, "staging records without a staging region"};
  }
  return {};
}

PrefillerCore::Refusing PrefillerCore::check_request(const DecoderSession& session,
                                                     const wire::Dispatch& dispatch) const {
  const DecoderPlan& plan = *session.plan;
  if (dispatch.prompt_tokens > options_.prompt_tokens_max) {
    return {RefuseCode::kPages, "prompt_tokens is more than prompt_tokens_max"};
  }
  if (dispatch.cached_tokens.size() != plan.plan.groups.size() ||
      dispatch.pages.size() != plan.plan.groups.size()) {
    return {RefuseCode::kPages, "not one list for each group"};
  }
  const RequestTokens tokens{dispatch.prompt_tokens, dispatch.cached_tokens,
                             request_seed(dispatch.id)};
  const auto counted = counts(plan.plan, *plan.pair, tokens);
  if (!counted) return {RefuseCode::kPages, counted.error().what};
  const auto with_count = static_cast<size_t>(
      std::ranges::count_if(counted->layers, [](const LayerCount& l) { return l.count > 0; }));
  const size_t with_tail = dispatch.has_tail ? 1 : 0;
  const size_t wanted =
      dispatch.per_layer ? with_count + with_tail : std::min<size_t>(with_count + with_tail, 1);
  if (dispatch.counter_keys.size() != wanted) {
    return {RefuseCode::kPages, "another number of counter keys than of layers"};
  }
  return check_pages(session, dispatch);
}

PrefillerCore::Refusing PrefillerCore::check_pages(const DecoderSession& session,
                                                   const wire::Dispatch& dispatch) const {
  const DecoderPlan& plan = *session.plan;
  const RequestTokens tokens{dispatch.prompt_tokens, dispatch.cached_tokens,
                             request_seed(dispatch.id)};
  uint64_t records = 0;
  std::vector<bool> sends(dispatch.pages.size(), false);
  for (const PairGroup& group : plan.pair->groups) {
    const auto units = request_units(plan.plan, group.group, tokens);
    if (!units) return {RefuseCode::kPages, units.error().what};
    const wire::GroupPages& pages = dispatch.pages[group.group];
    if (units->size() == 0) continue;
    sends[group.group] = true;
    for (const UnitList& list : group.lists) {
      if (list.staging_record_bytes == 0) continue;
      if (list.staging_record_bytes > dispatch.staging_record_bytes) {
        return {RefuseCode::kPages, "staging records that are too small"};
      }
      records += dealt_units(*plan.pair, list, *units, tokens.seed);
    }
    const PagePositions at = target_positions(plan.plan.groups[group.group], *units);
    if (pages.first != at.first || pages.ids.size() != at.end - at.first) {
      return {RefuseCode::kPages, "page lists that do not fit the prompt"};
    }
    for (const uint32_t id : pages.ids) {
      if (id >= group.target_pages) return {RefuseCode::kPages, "a page id past the pool"};
    }
  }
  if (dispatch.staging_records.ids.size() != records) {
    return {RefuseCode::kPages, "another number of staging records than of staged units"};
  }
  // They would be kept with the request, whatever their size.
  for (size_t g = 0; g < sends.size(); ++g) {
    if (!sends[g] && (dispatch.pages[g].first != 0 || !dispatch.pages[g].ids.empty())) {
      return {RefuseCode::kPages, "pages of a group that this rank sends nothing of"};
    }
  }
  return {};
}

PrefillerCore::Refusing PrefillerCore::check_offer_of(const DecoderSession& session,
                                                      const wire::Dispatch& dispatch) const {
  if (const auto over = ended_.find({dispatch.id, dispatch.attempt}); over != ended_.end()) {
    return {over->second, "this attempt is over here"};
  }
  const HeldOffer* offer = find_offer(dispatch.id, dispatch.attempt);
  if (offer == nullptr) return {};
  const bool same_decoder = std::ranges::any_of(
      offer->targets, [&](const auto& target) { return target->session == &session; });
  const uint32_t most = offer->offered ? offer->targets_wanted : kTargetsMax;
  if (same_decoder || offer->targets_seen >= most) {
    return {RefuseCode::kDuplicate, "all decode ranks of this attempt have dispatched it"};
  }
  if (offer->cancelled) return {RefuseCode::kNotOffered, "it was cancelled here"};
  if (offer->offered && offer->prompt_tokens != dispatch.prompt_tokens) {
    return {RefuseCode::kPages, "prompt_tokens differs from that of the offer"};
  }
  return {};
}

void PrefillerCore::set_counter_keys(Target& target, const wire::Dispatch& dispatch) const {
  const auto counter_key = [&](size_t i) {
    return CounterKey::from_wire(dispatch.counter_keys[i]);
  };
  target.counter_key = counter_key(0);
  target.tail_key = counter_key(dispatch.counter_keys.size() - 1);
  if (!dispatch.per_layer) return;
  const auto counted = counts(target.plan->plan, *target.plan->pair, target.tokens);
  target.layer_keys.resize(layers_.size());
  size_t next = 0;
  for (const LayerCount& layer : counted->layers) {  // check_request() has counted them too
    if (layer.count == 0) continue;
    const auto step = std::ranges::lower_bound(layers_, layer.layer) - layers_.begin();
    target.layer_keys[static_cast<size_t>(step)] = counter_key(next++);
  }
}

/// The records by list, as check_pages() has counted them.
void PrefillerCore::set_records(Target& target, const wire::Dispatch& dispatch) const {
  const DecoderPlan& plan = *target.plan;
  target.staging_record_bytes = dispatch.staging_record_bytes;
  target.records.resize(plan.lists);
  target.staged_units.resize(plan.lists);
  auto next = dispatch.staging_records.ids.begin();
  for (size_t g = 0; g < plan.pair->groups.size(); ++g) {
    const PairGroup& group = plan.pair->groups[g];
    const auto units = request_units(plan.plan, group.group, target.tokens);
    for (uint32_t n = 0; n < group.lists.size(); ++n) {
      if (group.lists[n].staging_record_bytes == 0) continue;
      const uint32_t count = dealt_units(*plan.pair, group.lists[n], *units, target.tokens.seed);
      target.records[plan.first_list[g] + n].assign(next, next + count);
      next += count;
    }
  }
}

void PrefillerCore::accept(DecoderSession& session, wire::Dispatch& dispatch, Batch batch) {
  HeldOffer* offer = find_offer(dispatch.id, dispatch.attempt);
  if (offer == nullptr) offer = &make_offer(dispatch.id, dispatch.attempt);
  auto target = std::make_unique<Target>(std::move(batch));
  target->number = next_number_++;
  target->serial = dispatch.serial;
  target->peer = session.peer;
  target->session = &session;
  target->offer = offer;
  target->plan = session.plan;
  target->regions = session.sets[dispatch.set];
  target->tokens = {dispatch.prompt_tokens, dispatch.cached_tokens, request_seed(dispatch.id)};
  target->wants_quiet = dispatch.wants_quiet;
  target->has_tail = dispatch.has_tail;
  target->tail_offset = dispatch.tail_offset;
  target->tail_bytes_max = dispatch.tail_bytes_max;
  target->pages = std::move(dispatch.pages);
  target->source_lists.resize(target->plan->lists);
  target->target_lists.resize(target->plan->lists);
  if (!dispatch.counter_keys.empty()) set_counter_keys(*target, dispatch);
  set_records(*target, dispatch);
  session.targets[target->serial] = target.get();
  targets_[target->number] = target.get();
  ++offer->targets_seen;
  ++stats_.accepted;
  send(session, wire::encode_accept(options_.channel, {target->serial, current_load()}));
  PrefillEvent& event = emit(*offer, PrefillEvent::Kind::kDispatched);
  event.peer = session.peer;
  event.prompt_tokens = dispatch.prompt_tokens;
  event.info = std::move(dispatch.info);
  if (!offer->offered) {
    target->due = later(engine_.now(), options_.offer_wait);
    deadlines_.add(target->due, tagged(DueKind::kTarget, target->number));
  }
  offer->targets.push_back(std::move(target));
  (void)advance(*offer->targets.back());
}

void PrefillerCore::cancel_message(DecoderSession& session, std::span<const std::byte> bytes) {
  const auto serial = wire::decode_cancel(bytes);
  if (!serial) {
    ++stats_.bad_messages;
    return;
  }
  if (const auto found = session.targets.find(*serial); found != session.targets.end()) {
    Target& target = *found->second;
    if (target.end == Target::End::kNone) {
      emit(*target.offer, PrefillEvent::Kind::kCancelled).peer = session.peer;
      stop(target, Target::End::kByDecoder);
    }
    return;  // the report of its batch is answered
  }
  if (*serial < session.first ||
      wire::incarnation_of(*serial) != wire::incarnation_of(session.first)) {
    return cancel_unknown(session, *serial);
  }
  // It is over here: everything was sent, or an answer that says otherwise is already in flight. Or
  // its dispatch never arrived: messages are ordered, so it cannot arrive any more.
  const bool missed = was_missed(session, *serial);
  if (missed && *serial > session.seen) note_serial(session, *serial);
  ++stats_.stale_messages;
  stats_.early_cancels += missed ? 1 : 0;
  send(session, wire::encode_ended(options_.channel, wire::MessageKind::kConfirm,
                                   {*serial, missed ? 0 : wire::kAllLanded, 0}));
}

/// One write of unknown fate: the decoder has to fence.
void PrefillerCore::cancel_unknown(DecoderSession& session, uint64_t serial) {
  ++stats_.stale_messages;
  send(session, wire::encode_ended(options_.channel, wire::MessageKind::kConfirm, {serial, 0, 1}));
}

// ---- Answers ------------------------------------------------------------------------------------

PrefillLoad PrefillerCore::current_load() const {
  return {static_cast<uint32_t>(targets_.size()), options_.requests_max, queued_};
}

void PrefillerCore::refuse(DecoderSession& session, uint64_t serial, const Refusing& refusing) {
  ++stats_.refused;
  PrefillEvent event;
  event.kind = PrefillEvent::Kind::kRefused;
  event.peer = session.peer;
  event.refused = refusing.code;
  event.text = refusing.text;
  events_.push_back(std::move(event));
  send(session, wire::encode_refuse(options_.channel,
                                    {serial, current_load(), refusing.code, refusing.text}));
}

void PrefillerCore::send(const DecoderSession& session, std::vector<std::byte> bytes) {
  // Only a peer that floods this engine with requests gets here. They stay unanswered, and its
  // decoder fences.
  std::deque<QueuedAnswer>& queue = answers_[session.peer];
  if (queue.size() >= kAnswersMax) return;
  queue.push_back({session.channel, std::move(bytes)});
  if (queue.size() > 1) return;  // no room for the one before it: work() tries again
  flush(session.peer, queue);
  if (queue.empty()) answers_.erase(session.peer);
}

void PrefillerCore::flush_answers() {
  for (auto at = answers_.begin(); at != answers_.end();) {
    flush(at->first, at->second);
    at = at->second.empty() ? answers_.erase(at) : std::next(at);
  }
}

/// In order: an answer that the engine has no room for waits, and so do all after it to that peer.
void PrefillerCore::flush(PeerId peer, std::deque<QueuedAnswer>& queue) {
  while (!queue.empty()) {
    const auto sent =
        engine_.submit(Send{.peer = peer,
                            .channel = queue.front().channel,
                            .bytes = queue.front().bytes,
                            .notify = Notify::inbox(inbox_, tagged(TagKind::kOther))});
    if (!sent && sent.error().code == Errc::kExhausted) return;
    queue.pop_front();
  }
}

}  // namespace fabric::kv::prefill

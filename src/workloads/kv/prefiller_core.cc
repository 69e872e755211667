#include "workloads/kv/prefiller_core.h"

#include <algorithm>
#include <set>

#include "base/check.h"

// The life of offers and targets.

namespace fabric::kv::prefill {
namespace {

/// Attempts remembered after their end, to refuse duplicates of their dispatches.
constexpr size_t kEndedMax = 8192;

/// Events queued for poll(). Beyond that, the prefiller stops reading its inbox, which holds back
/// the peers.
constexpr size_t kEventsMax = 4096;

std::vector<uint32_t> layers_of(const Layout& layout) {
  std::set<uint32_t> layers;
  for (const CacheGroup& group : layout.groups) {
    layers.insert(group.layers.begin(), group.layers.end());
  }
  return {layers.begin(), layers.end()};
}

int32_t as_native(uint64_t value) {
  return static_cast<int32_t>(std::min<uint64_t>(value, INT32_MAX));
}

}  // namespace

PrefillerCore::PrefillerCore(Engine& engine, const PrefillerOptions& options, Inbox inbox)
    : engine_(engine),
      options_(options),
      layers_(layers_of(options.side.ranks[options.rank])),
      passes_(options.passes_max),
      inbox_(std::move(inbox)) {
  if (options_.staging_region == nullptr) return;
  const uint64_t slots = options_.staging_region->size_bytes() / options_.staging_slot_bytes;
  slots_ = PagePool(static_cast<uint32_t>(std::min<uint64_t>(slots, 1u << 24)));
}

PrefillerCore::~PrefillerCore() {
  watcher_.reset();  // waits for on_word(), which takes the lock
}

Result<void> PrefillerCore::open() {
  auto messages =
      engine_.listen(options_.channel, Notify::inbox(inbox_, tagged(TagKind::kMessage)));
  if (!messages) return messages.error();
  messages_ = *std::move(messages);
  auto events = engine_.subscribe(Notify::inbox(inbox_, tagged(TagKind::kEngine)));
  if (!events) return events.error();
  engine_events_ = *std::move(events);
  if (!options_.watch_word) return {};
  auto watcher = engine_.make_watcher(Notify::call<&PrefillerCore::on_word>(this),
                                      {.polled = options_.polled_word});
  if (!watcher) return watcher.error();
  watcher_.emplace(*std::move(watcher));
  watcher_->arm();
  return {};
}

// ---- Calls --------------------------------------------------------------------------------------

HeldOffer* PrefillerCore::find_offer(std::string_view id, uint32_t attempt) const {
  const auto found = offers_.find({std::string(id), attempt});
  return found == offers_.end() ? nullptr : found->second.get();
}

HeldOffer& PrefillerCore::make_offer(const std::string& id, uint32_t attempt) {
  auto made = std::make_unique<HeldOffer>();
  made->number = next_number_++;
  made->id = id;
  made->attempt = attempt;
  HeldOffer& offer = *made;
  offers_by_number_[offer.number] = &offer;
  offers_[{id, attempt}] = std::move(made);
  return offer;
}

Result<void> PrefillerCore::check_page_ids(std::span<const std::vector<uint32_t>> pages) const {
  const std::vector<CacheGroup>& groups = options_.side.ranks[options_.rank].groups;
  for (size_t g = 0; g < pages.size(); ++g) {
    if (groups[g].kind == GroupKind::kWindow) continue;  // null pages before the window
    for (const uint32_t page : pages[g]) {
      if (page >= groups[g].pages) {
        return fail(Errc::kOutOfBounds, "pages: an id past the pool", as_native(page));
      }
    }
  }
  return {};
}

Result<void> PrefillerCore::check_offer(const OfferRequest& request) const {
  if (draining_) return fail(Errc::kClosed, "prefiller: draining");
  if (request.id.empty() || request.id.size() > kRequestIdBytesMax) {
    return fail(Errc::kInvalidArgument, "id: not 1 to kRequestIdBytesMax bytes",
                as_native(request.id.size()));
  }
  if (request.prompt_tokens == 0 || request.prompt_tokens > options_.prompt_tokens_max) {
    return fail(Errc::kInvalidArgument, "prompt_tokens: 0, or more than prompt_tokens_max",
                as_native(options_.prompt_tokens_max));
  }
  const size_t groups = options_.side.ranks[options_.rank].groups.size();
  if (request.pages.size() != groups) {
    return fail(Errc::kInvalidArgument, "pages: not one list for each group", as_native(groups));
  }
  if (auto ok = check_page_ids(request.pages); !ok) return ok;
  if (request.targets == 0 || request.targets > kRanksMax) {
    return fail(Errc::kInvalidArgument, "targets: not 1 to kRanksMax", as_native(kRanksMax));
  }
  if (ended_.contains({request.id, request.attempt})) {
    return fail(Errc::kCancelled, "id, attempt: this attempt is over");
  }
  const HeldOffer* before = find_offer(request.id, request.attempt);
  if (before != nullptr && before->offered) {
    return fail(Errc::kBusy, "id, attempt: offered already", as_native(request.attempt));
  }
  if (offers_.size() >= uint64_t{options_.offers_max} + options_.requests_max) {
    return fail(Errc::kExhausted, "offers_max", as_native(options_.offers_max));
  }
  return {};
}

Result<void> PrefillerCore::offer(const OfferRequest& request) {
  const std::lock_guard lock(mutex_);
  if (auto ok = check_offer(request); !ok) return ok;
  HeldOffer* offer = find_offer(request.id, request.attempt);
  if (offer == nullptr) offer = &make_offer(request.id, request.attempt);
  offer->offered = true;
  offer->prompt_tokens = request.prompt_tokens;
  offer->pages = request.pages;
  offer->targets_wanted = request.targets;
  uint32_t taken = 0;
  for (size_t t = 0; t < offer->targets.size(); ++t) {
    Target& target = *offer->targets[t];
    clear_due(target);
    const bool fits = target.tokens.prompt_tokens == request.prompt_tokens;
    if (taken < request.targets && fits) {
      ++taken;
    } else {
      --offer->targets_seen;  // refused, as if it had arrived later
      stop(target, Target::End::kDuplicate);
    }
  }
  if (offer->targets_seen < offer->targets_wanted) {
    offer->due = later(engine_.now(), options_.offer_wait);
    deadlines_.add(offer->due, tagged(DueKind::kOffer, offer->number));
  }
  wake();
  return {};
}

Result<void> PrefillerCore::finish(std::string_view id, uint32_t attempt, const PrefillTail& tail) {
  const std::lock_guard lock(mutex_);
  HeldOffer* offer = find_offer(id, attempt);
  if (offer == nullptr && ended_.contains({std::string(id), attempt})) return {};
  if (offer == nullptr || !offer->offered) return fail(Errc::kNotFound, "id");
  if (offer->finished) return fail(Errc::kBusy, "id: finish() was called");
  if (offer->tokens_done != offer->prompt_tokens) {
    return fail(Errc::kInvalidArgument, "id: the chunks do not reach the end of the prompt",
                as_native(offer->tokens_done));
  }
  offer->finished = true;
  offer->tail = tail;
  for (size_t t = 0; t < offer->targets.size(); ++t) (void)advance(*offer->targets[t]);
  wake();
  return {};
}

Result<void> PrefillerCore::cancel(std::string_view id, uint32_t attempt) {
  const std::lock_guard lock(mutex_);
  HeldOffer* offer = find_offer(id, attempt);
  if (offer == nullptr && ended_.contains({std::string(id), attempt})) return {};
  if (offer == nullptr) return fail(Errc::kNotFound, "id");
  cancel_offer(*offer, Errc::kCancelled);
  free_ended();
  wake();
  return {};
}

void PrefillerCore::cancel_offer(HeldOffer& offer, Errc code) {
  offer.cancelled = true;
  if (offer.code == Errc::kOk) offer.code = code;
  for (size_t t = 0; t < offer.targets.size(); ++t) stop(*offer.targets[t], Target::End::kHere);
  end_offer_if_over(offer);
}

void PrefillerCore::drain(bool stop_all) {
  const std::lock_guard lock(mutex_);
  draining_ = true;
  std::vector<HeldOffer*> offers;
  for (const auto& [number, offer] : offers_by_number_) {
    if (stop_all) offers.push_back(offer);
  }
  for (HeldOffer* offer : offers) cancel_offer(*offer, Errc::kCancelled);
  free_ended();
  wake();
}

void PrefillerCore::set_load(uint64_t queued) {
  const std::lock_guard lock(mutex_);
  queued_ = queued;
}

uint32_t PrefillerCore::poll(std::span<PrefillEvent> out) {
  const std::lock_guard lock(mutex_);
  work();
  free_ended();
  uint32_t count = 0;
  while (count < out.size() && !events_.empty()) {
    out[count++] = std::move(events_.front());
    events_.pop_front();
  }
  wake();
  return count;
}

Result<void> PrefillerCore::wait(Timeout timeout) {
  {
    const std::lock_guard lock(mutex_);
    if (!events_.empty()) return {};
  }
  return inbox_.wait(timeout);
}

PrefillerStats PrefillerCore::stats() const {
  const std::lock_guard lock(mutex_);
  PrefillerStats out = stats_;
  for (const auto& [number, offer] : offers_by_number_) {
    out.requests += offer->offered ? 1 : 0;
    out.waiting += offer->offered ? 0 : offer->targets.size();
  }
  out.dispatches = targets_.size();
  for (const auto& [peer, targets] : blocked_) out.blocked += targets.size();
  out.decoders = sessions_.size();
  out.tombstones = ended_.size();
  out.passes = pass_count_;
  out.staging_slots = slots_.size() - slots_.free();
  return out;
}

// ---- Events -------------------------------------------------------------------------------------

void PrefillerCore::work() {
  Event batch[64];
  // Bounded, also when a peer sends faster than this reads. The rest is for the next call.
  for (uint32_t taken = 0; events_.size() < kEventsMax && taken < options_.inbox_depth;) {
    const uint32_t n = inbox_.poll(batch);
    if (n == 0) break;
    taken += n;
    for (uint32_t i = 0; i < n; ++i) handle(batch[i]);
  }
  while (const auto what = deadlines_.take(engine_.now())) due(*what);
  flush_answers();
  resume_blocked();
}

void PrefillerCore::handle(const Event& event) {
  switch (static_cast<TagKind>(event.tag >> 56)) {
    case TagKind::kMessage:
      return message(event);
    case TagKind::kEngine:
      if (event.kind == EventKind::kPeer) peer_changed(event);
      return;  // kRoom: work() resumes what is blocked
    case TagKind::kTimer:
      return deadlines_.fired();
    case TagKind::kWake:
      wake_pending_ = false;
      return;
    case TagKind::kSeal:
      if (const auto found = targets_.find(tag_number(event.tag)); found != targets_.end()) {
        seal_ended(*found->second, event);
      }
      return;
    case TagKind::kStaged: {
      // Completed or not, it does not read its slots any more. work() resumes what waits for them.
      const auto write = staged_writes_.find(tag_number(event.tag));
      FABRIC_CHECK(write != staged_writes_.end() && slots_.release(write->second));
      staged_writes_.erase(write);
      return;
    }
    case TagKind::kOther:
      return;
  }
}

void PrefillerCore::peer_changed(const Event& event) {
  if (static_cast<PeerState>(event.value) < PeerState::kLost) return;
  std::vector<std::pair<PeerId, uint16_t>> lost;
  for (auto it = sessions_.lower_bound({event.peer, 0});
       it != sessions_.end() && it->first.first == event.peer; ++it) {
    lost.push_back(it->first);
  }
  for (const auto& key : lost) {
    lose_targets(*sessions_[key]);
    sessions_.erase(key);
  }
}

/// Their decoder does not wait for them any more.
void PrefillerCore::lose_targets(DecoderSession& session) {
  const std::map<uint64_t, Target*> targets = std::exchange(session.targets, {});
  for (const auto& [serial, target] : targets) {
    target->session = nullptr;
    if (target->end == Target::End::kNone) {
      emit(*target->offer, PrefillEvent::Kind::kDecoderLost).peer = session.peer;
    }
    // A duplicate stays one: its offer does not count it.
    if (target->end != Target::End::kDuplicate) target->end = Target::End::kLost;
    stop(*target, Target::End::kLost);
  }
}

void PrefillerCore::due(uint64_t what) {
  const uint64_t number = tag_number(what);
  if (static_cast<DueKind>(what >> 56) == DueKind::kTarget) {
    const auto found = targets_.find(number);
    if (found == targets_.end()) return;
    found->second->due = {};
    stop(*found->second, Target::End::kNotOffered);
    return;
  }
  const auto found = offers_by_number_.find(number);
  if (found == offers_by_number_.end()) return;
  HeldOffer& offer = *found->second;
  offer.due = {};
  if (offer.targets_seen >= offer.targets_wanted) return;
  // No more dispatches are accepted: later ones are refused.
  offer.targets_wanted = offer.targets_seen;
  if (offer.code == Errc::kOk) offer.code = Errc::kTimeout;
  end_offer_if_over(offer);
}

// ---- Ends ---------------------------------------------------------------------------------------

/// The batch has drained: nothing reads the source for this target any more.
void PrefillerCore::seal_ended(Target& target, const Event& event) {
  HeldOffer& offer = *target.offer;
  const uint64_t delivered = target.batch.delivered();
  const uint64_t unknown = target.batch.unknown();
  const bool all = target.end == Target::End::kNone && target.batch.failed() == 0;
  offer.delivered += delivered;
  offer.unknown += unknown;
  if (target.session != nullptr) answer_end(target, delivered, unknown, all);
  if (all) {
    ++stats_.sent;
  } else if (target.end == Target::End::kByDecoder) {
    ++stats_.cancelled;
    if (offer.code == Errc::kOk) offer.code = Errc::kCancelled;
  } else if (target.end == Target::End::kLost) {
    ++stats_.failed;
    if (offer.code == Errc::kOk) offer.code = Errc::kPeerLost;
  } else if (target.end != Target::End::kNotOffered && target.end != Target::End::kDuplicate) {
    ++stats_.failed;
    if (offer.code == Errc::kOk) offer.code = event.code == Errc::kOk ? Errc::kAborted : event.code;
  }
  end_target(target);
  end_offer_if_over(offer);
}

void PrefillerCore::answer_end(Target& target, uint64_t delivered, uint64_t unknown, bool all) {
  DecoderSession& session = *target.session;
  const wire::Ended ended{target.serial, delivered, unknown};
  switch (target.end) {
    case Target::End::kByDecoder:
      return send(session,
                  wire::encode_ended(options_.channel, wire::MessageKind::kConfirm, ended));
    case Target::End::kNotOffered:
      return refuse(session, target.serial,
                    {RefuseCode::kNotOffered, "no offer came for this request in time"});
    case Target::End::kDuplicate:
      return refuse(session, target.serial,
                    {RefuseCode::kDuplicate,
                     "another decode rank has this attempt, or its "
                     "prompt_tokens differs from the offer"});
    case Target::End::kLost:
      return;
    case Target::End::kNone:
      if (!all) break;
      if (!target.wants_quiet) return;
      return send(session, wire::encode_quiet(options_.channel, target.serial, 0));
    default:
      break;
  }
  send(session, wire::encode_ended(options_.channel, wire::MessageKind::kFailed, ended));
}

void PrefillerCore::end_target(Target& target) {
  HeldOffer& offer = *target.offer;
  clear_due(target);
  if (target.session != nullptr) target.session->targets.erase(target.serial);
  if (target.blocked) std::erase(blocked_[target.peer], &target);
  targets_.erase(target.number);
  if (target.end != Target::End::kDuplicate) ++offer.targets_ended;
  const auto found = std::ranges::find_if(
      offer.targets, [&](const auto& owned) { return owned.get() == &target; });
  dead_targets_.push_back(std::move(*found));
  offer.targets.erase(found);
}

void PrefillerCore::end_offer_if_over(HeldOffer& offer) {
  if (!offer.targets.empty() || !offers_by_number_.contains(offer.number)) return;
  if (!offer.offered) {
    // Never offered, and all of its dispatches have ended. A late offer must not wait for another.
    remember(offer, RefuseCode::kNotOffered);
  } else {
    if (!offer.cancelled && offer.targets_ended < offer.targets_wanted) return;
    PrefillEvent& event = emit(offer, PrefillEvent::Kind::kSourceFree);
    event.code = offer.code;
    event.delivered = offer.delivered;
    event.unknown = offer.unknown;
    remember(offer, offer.cancelled ? RefuseCode::kNotOffered : RefuseCode::kDuplicate);
  }
  if (offer.due != Nanos{}) deadlines_.remove(offer.due, tagged(DueKind::kOffer, offer.number));
  for (PassRecord& record : passes_) std::ranges::replace(record.offers, &offer, nullptr);
  offers_by_number_.erase(offer.number);
  const auto found = offers_.find({offer.id, offer.attempt});
  dead_offers_.push_back(std::move(found->second));
  offers_.erase(found);
}

void PrefillerCore::remember(const HeldOffer& offer, RefuseCode code) {
  const OfferId id{offer.id, offer.attempt};
  if (ended_.emplace(id, code).second) ended_order_.push_back(id);
  if (ended_order_.size() <= kEndedMax) return;
  ended_.erase(ended_order_.front());
  ended_order_.pop_front();
}

/// At the end of a call, not earlier: callers up the stack hold references.
void PrefillerCore::free_ended() {
  dead_targets_.clear();
  dead_offers_.clear();
  if (draining_ && offers_.empty() && !drained_reported_) {
    drained_reported_ = true;
    PrefillEvent event;
    event.kind = PrefillEvent::Kind::kDrained;
    events_.push_back(std::move(event));
  }
}

void PrefillerCore::clear_due(Target& target) {
  if (target.due == Nanos{}) return;
  deadlines_.remove(target.due, tagged(DueKind::kTarget, target.number));
  target.due = {};
}

PrefillEvent& PrefillerCore::emit(const HeldOffer& offer, PrefillEvent::Kind kind) {
  PrefillEvent event;
  event.kind = kind;
  event.id = offer.id;
  event.attempt = offer.attempt;
  events_.push_back(std::move(event));
  return events_.back();
}

void PrefillerCore::wake() {
  deadlines_.arm(engine_, inbox_, tagged(TagKind::kTimer));
  if (events_.empty() || wake_pending_) return;
  wake_pending_ =
      engine_
          .submit(Timer{.after = Nanos{}, .notify = Notify::inbox(inbox_, tagged(TagKind::kWake))})
          .has_value();
}

}  // namespace fabric::kv::prefill

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "workloads/kv/decoder_core.h"

// From a DecodeRequest to a task with flows: everything that can be refused is refused here, before
// a page is leased.

namespace fabric::kv::decode {
namespace {

constexpr size_t kPrefillsMax = 256;

/// Of a session. Another one on the same engine, of this decoder or of one that was there before
/// it, has another number; those of other engines are other peers to the prefiller.
uint64_t next_incarnation() {
  static std::atomic<uint64_t> last{0};
  constexpr uint64_t kMask = (uint64_t{1} << (64 - wire::kIncarnationShift)) - 1;
  return (last.fetch_add(1, std::memory_order_relaxed) + 1) & kMask;
}

int32_t native_value(uint64_t value) {
  return static_cast<int32_t>(std::min<uint64_t>(value, INT32_MAX));
}

/// The largest staging record that the plan needs; 0: nothing is staged.
uint64_t largest_record_bytes(const TransferPlan& plan) {
  uint64_t most = 0;
  for (const PairPlan& pair : plan.pairs) {
    for (const PairGroup& group : pair.groups) {
      for (const UnitList& list : group.lists) most = std::max(most, list.staging_record_bytes);
    }
  }
  return most;
}

const PairPlan& pair_of(const PrefillPlan& prefill, size_t rank_index) {
  return prefill.plan.pairs[*find_pair(prefill.plan, prefill.ranks[rank_index], 0)];
}

}  // namespace

Result<uint32_t> DecoderCore::add_prefill(const Side& side, Refusal* refusal) {
  auto bytes = encode(side);
  if (!bytes) {
    // plan() gives a Refusal in words, encode() only a code.
    const auto refused = plan(side, Side{{options_.layout}}, options_.plan, refusal);
    return refused ? bytes.error() : refused.error();
  }
  for (uint32_t i = 0; i < prefills_.size(); ++i) {
    if (prefills_[i]->side == *bytes) return i;
  }
  if (prefills_.size() == kPrefillsMax) {
    return fail(Errc::kExhausted, "side: too many prefill sides", native_value(kPrefillsMax));
  }
  auto planned = plan(side, Side{{options_.layout}}, options_.plan, refusal);
  if (!planned) return planned.error();
  const uint64_t record_bytes = largest_record_bytes(*planned);
  if (record_bytes > 0 && options_.staging_region == nullptr) {
    return fail(Errc::kUnsupported,
                "staging_region: this transfer needs staged writes, and there is none");
  }
  if (record_bytes > 0 && record_bytes > options_.staging_record_bytes) {
    return fail(Errc::kTooLarge, "staging_record_bytes: less than this transfer needs",
                native_value(record_bytes));
  }
  auto prefill = std::make_unique<PrefillPlan>();
  prefill->side = *std::move(bytes);
  for (const PairPlan& pair : planned->pairs) prefill->ranks.push_back(pair.source);
  for (const GroupPlan& group : planned->groups) {
    uint32_t at = 0;
    while (options_.layout.groups[at].name != group.name) ++at;  // plan() has matched them
    prefill->layout_group.push_back(at);
  }
  uint32_t last_stage = 0;
  for (const uint32_t rank : prefill->ranks) {
    last_stage = std::max(last_stage, side.ranks[rank].pp_rank);
  }
  const auto is_last = [&](uint32_t rank) { return side.ranks[rank].pp_rank == last_stage; };
  const auto found = std::ranges::find_if(prefill->ranks, is_last);
  prefill->tail_rank = found == prefill->ranks.end() ? 0 : *found;
  prefill->plan = *std::move(planned);
  prefills_.push_back(std::move(prefill));
  return static_cast<uint32_t>(prefills_.size() - 1);
}

Result<const PrefillPlan*> DecoderCore::find_prefill(uint32_t prefill) const {
  if (prefill < prefills_.size()) return prefills_[prefill].get();
  return fail(Errc::kNotFound, "prefill: not a number from add_prefill()", native_value(prefill));
}

Result<uint64_t> DecoderCore::count(const DecodeRequest& request) const {
  const auto checked = check(request);
  if (!checked) return checked.error();
  return checked->total;
}

Result<void> DecoderCore::check_id(const DecodeRequest& request) const {
  if (request.id.empty() || request.id.size() > kRequestIdBytesMax) {
    return fail(Errc::kInvalidArgument, "id: not 1 to kRequestIdBytesMax bytes",
                native_value(request.id.size()));
  }
  if (request.info.size() > kInfoBytesMax) {
    return fail(Errc::kInvalidArgument, "info: more than kInfoBytesMax bytes",
                native_value(request.info.size()));
  }
  const Task* before = newest(request.id);
  if (before != nullptr && before->attempt == request.attempt) {
    return fail(Errc::kBusy, "id, attempt: this attempt holds its pages",
                native_value(request.attempt));
  }
  if (before != nullptr && before->attempt > request.attempt) {
    return fail(Errc::kInvalidArgument, "attempt: not larger than the one before",
                native_value(before->attempt));
  }
  if (before != nullptr && before->phase == Task::Phase::kRunning) {
    return fail(Errc::kBusy, "id: an earlier attempt is running; cancel() it first",
                native_value(before->attempt));
  }
  return {};
}

/// The request against the plan: tokens, sources, tail and counts.
Result<DecoderCore::Checked> DecoderCore::check(const DecodeRequest& request) const {
  const auto prefill = find_prefill(request.prefill);
  if (!prefill) return prefill.error();
  Checked checked{.prefill = *prefill};
  const size_t groups = options_.layout.groups.size();
  if (!request.cached_tokens.empty() && request.cached_tokens.size() != groups) {
    return fail(Errc::kInvalidArgument, "cached_tokens: not one for each group of the layout",
                native_value(groups));
  }
  if (request.pages.size() != groups) {
    return fail(Errc::kInvalidArgument, "pages: not one list for each group of the layout",
                native_value(groups));
  }
  checked.tokens.prompt_tokens = request.prompt_tokens;
  checked.tokens.seed = request_seed(request.id);
  for (const uint32_t at : checked.prefill->layout_group) {
    checked.tokens.cached_tokens.push_back(
        request.cached_tokens.empty() ? 0 : request.cached_tokens[at]);
  }
  if (request.sources.size() != checked.prefill->ranks.size() ||
      request.sources.size() > kSourcesMax) {
    return fail(Errc::kInvalidArgument, "sources: not those of source_ranks()",
                native_value(checked.prefill->ranks.size()));
  }
  for (const uint32_t rank : checked.prefill->ranks) {
    if (std::ranges::count(request.sources, rank, &Source::rank) != 1) {
      return fail(Errc::kInvalidArgument, "sources: this rank is not there once",
                  native_value(rank));
    }
  }
  const bool has_tail = request.tail_slot != DecodeRequest::kNoTail;
  checked.tail_rank =
      request.tail_rank == DecodeRequest::kNoTail ? checked.prefill->tail_rank : request.tail_rank;
  if (has_tail && request.tail_slot >= tail_owners_.size()) {
    return fail(Errc::kInvalidArgument, "tail_slot: past the tail region",
                native_value(tail_owners_.size()));
  }
  if (has_tail && !std::ranges::count(checked.prefill->ranks, checked.tail_rank)) {
    return fail(Errc::kInvalidArgument, "tail_rank: not one of the sources",
                native_value(checked.tail_rank));
  }
  for (size_t i = 0; i < checked.prefill->ranks.size(); ++i) {
    auto counted = counts(checked.prefill->plan, pair_of(*checked.prefill, i), checked.tokens);
    if (!counted) return counted.error();
    if (has_tail && checked.prefill->ranks[i] == checked.tail_rank) ++counted->total;
    checked.total += counted->total;
    checked.counts.push_back(*std::move(counted));
  }
  return checked;
}

/// The pages that the request's units lie in, for each group of the layout.
Result<std::vector<std::vector<uint32_t>>> DecoderCore::written_pages(
    const DecodeRequest& request, const Checked& checked) const {
  std::vector<std::vector<uint32_t>> written(options_.layout.groups.size());
  const TransferPlan& plan = checked.prefill->plan;
  for (uint32_t g = 0; g < plan.groups.size(); ++g) {
    const uint32_t at = checked.prefill->layout_group[g];
    const auto units = request_units(plan, g, checked.tokens);
    if (!units) return units.error();
    if (units->size() == 0) continue;
    const PagePositions positions = target_positions(plan.groups[g], *units);
    const std::vector<uint32_t>& pages = request.pages[at];
    if (pages.size() < positions.end) {
      return fail(Errc::kInvalidArgument, "pages: fewer than the prompt needs",
                  native_value(positions.end));
    }
    for (uint32_t i = positions.first; i < positions.end; ++i) {
      if (pages[i] >= owners_[at].size()) {
        return fail(Errc::kOutOfBounds, "pages: an id past the pool", native_value(pages[i]));
      }
      written[at].push_back(pages[i]);
    }
  }
  return written;
}

/// Pages that are not quarantined must suffice for the request and the reserve.
Result<void> DecoderCore::check_reserve(const DecodeRequest& request) const {
  if (options_.reserve_pages == 0) return {};
  for (size_t g = 0; g < owners_.size(); ++g) {
    const uint64_t needs = quarantined_[g] + options_.reserve_pages + request.pages[g].size();
    if (quarantined_[g] > 0 && needs > owners_[g].size()) {
      return fail(Errc::kExhausted, "reserve_pages: too many pages are quarantined",
                  native_value(quarantined_[g]));
    }
  }
  return {};
}

Result<SourceSession*> DecoderCore::session_for(const Source& source) {
  PeerId peer = source.peer;
  if (!peer) {
    if (source.address.empty()) {
      return fail(Errc::kInvalidArgument, "sources: neither a peer nor an address",
                  native_value(source.rank));
    }
    const auto connected = engine_.connect(std::string_view(source.address));
    if (!connected) return connected.error();
    peer = *connected;
  }
  const auto info = engine_.peer_info(peer);
  if (!info) return info.error();
  if (info->state >= PeerState::kLost) {
    return fail(Errc::kPeerLost, "sources: this peer is lost", native_value(source.rank));
  }
  const auto known = sessions_.find({peer, source.channel});
  if (known != sessions_.end() && known->second->lost) {
    return fail(Errc::kPeerLost, "sources: this peer is lost", native_value(source.rank));
  }
  auto& session = sessions_[{peer, source.channel}];
  if (session == nullptr) {
    session = std::make_unique<SourceSession>();
    session->number = next_number_++;
    session->peer = peer;
    session->channel = source.channel;
    session->next_serial = (next_incarnation() << wire::kIncarnationShift) + 1;
    session->connected = info->state != PeerState::kConnecting;
    session->message_bytes_max = info->message_bytes_max;
  }
  return session.get();
}

Result<void> DecoderCore::make_counters(Flow& flow, const DecodeRequest& request,
                                        const PairCounts& counts) {
  const auto add = [&](uint64_t share, uint32_t layer) -> Result<void> {
    auto counter = engine_.make_counter();
    if (!counter) return counter.error();
    if (auto bound = counter->bind(flow.session->peer); !bound) return bound.error();
    flow.dispatch.counter_keys.push_back(counter->key().wire());
    flow.counters.push_back({*std::move(counter), share, layer});
    return {};
  };
  if (flow.total == 0) return {};
  if (!request.per_layer) return add(flow.total, FlowCounter::kNoLayer);
  uint64_t of_layers = 0;
  for (const LayerCount& layer : counts.layers) {
    if (layer.count == 0) continue;
    of_layers += layer.count;
    if (auto added = add(layer.count, layer.layer); !added) return added;
  }
  if (flow.total > of_layers) return add(flow.total - of_layers, FlowCounter::kNoLayer);
  return {};
}

void DecoderCore::fill_dispatch(Flow& flow, const DecodeRequest& request, const Checked& checked,
                                const PairPlan& pair) {
  const PrefillPlan& prefill = *checked.prefill;
  wire::Dispatch& dispatch = flow.dispatch;
  dispatch.id = request.id;
  dispatch.attempt = request.attempt;
  dispatch.per_layer = request.per_layer;
  dispatch.plan_hash = prefill.plan.target_hashes[0];
  dispatch.prompt_tokens = request.prompt_tokens;
  dispatch.cached_tokens = checked.tokens.cached_tokens;
  if (request.tail_slot != DecodeRequest::kNoTail && flow.rank == checked.tail_rank) {
    dispatch.has_tail = true;
    dispatch.tail_offset = request.tail_slot * options_.tail_slot_bytes;
    dispatch.tail_bytes_max = options_.tail_slot_bytes;
  }
  dispatch.info = request.info;
  dispatch.pages.resize(prefill.plan.groups.size());
  for (const PairGroup& group : pair.groups) {
    const UnitRange units = *request_units(prefill.plan, group.group, checked.tokens);
    if (units.size() == 0) continue;
    const PagePositions at = target_positions(prefill.plan.groups[group.group], units);
    const auto& pages = request.pages[prefill.layout_group[group.group]];
    dispatch.pages[group.group].first = at.first;
    dispatch.pages[group.group].ids.assign(pages.begin() + at.first, pages.begin() + at.end);
  }
}

/// Staging records of all sources together: start() takes all of them or none.
Result<uint64_t> DecoderCore::records_needed(const Checked& checked) const {
  const TransferPlan& plan = checked.prefill->plan;
  uint64_t needed = 0;
  for (size_t i = 0; i < checked.prefill->ranks.size(); ++i) {
    const PairPlan& pair = pair_of(*checked.prefill, i);
    for (const PairGroup& group : pair.groups) {
      const auto units = request_units(plan, group.group, checked.tokens);
      if (!units) return units.error();
      for (const UnitList& list : group.lists) {
        if (list.staging_record_bytes == 0) continue;
        needed += dealt_units(pair, list, *units, checked.tokens.seed);
      }
    }
  }
  return needed;
}

/// A record for each unit that the source sends staged.
Result<void> DecoderCore::take_records(Flow& flow, const DecodeRequest& request,
                                       const Checked& checked, const PairPlan& pair) {
  const PrefillPlan& prefill = *checked.prefill;
  for (const PairGroup& group : pair.groups) {
    const UnitRange units = *request_units(prefill.plan, group.group, checked.tokens);
    for (uint32_t n = 0; n < group.lists.size(); ++n) {
      if (group.lists[n].staging_record_bytes == 0) continue;
      // The ids of the source's pages are not known here, and not needed.
      const PagePositions at = source_positions(prefill.plan.groups[group.group], units);
      const std::vector<uint32_t> unknown(at.end, 0);
      auto indices = unit_indices(
          prefill.plan, pair, group, n, units, checked.tokens.seed,
          {.source = unknown, .target = request.pages[prefill.layout_group[group.group]]});
      if (!indices) return indices.error();
      auto records = staging_.allocate(static_cast<uint32_t>(indices->target.size()));
      if (!records) return records.error();
      auto& sent = flow.dispatch.staging_records.ids;
      sent.insert(sent.end(), records->begin(), records->end());
      flow.staged.push_back({&group, n, std::move(indices->target), *std::move(records)});
    }
  }
  flow.dispatch.staging_record_bytes = options_.staging_record_bytes;
  return {};
}

void DecoderCore::release_records(Flow& flow) {
  for (const StagedUnits& staged : flow.staged) {
    FABRIC_CHECK(staging_.release(staged.records));
  }
  flow.staged.clear();
}

Result<std::unique_ptr<Flow>> DecoderCore::make_flow(const DecodeRequest& request,
                                                     const Checked& checked, size_t rank_index,
                                                     SourceSession& session) {
  auto flow = std::make_unique<Flow>();
  flow->number = next_number_++;
  flow->session = &session;
  flow->rank = checked.prefill->ranks[rank_index];
  flow->total = checked.counts[rank_index].total;
  const PairPlan& pair = pair_of(*checked.prefill, rank_index);
  fill_dispatch(*flow, request, checked, pair);
  if (auto made = make_counters(*flow, request, checked.counts[rank_index]); !made) {
    return made.error();
  }
  auto taken = take_records(*flow, request, checked, pair);
  const size_t bytes = wire::encode_dispatch(options_.channel, flow->dispatch).size();
  const uint32_t most = session.message_bytes_max == 0 ? UINT32_MAX : session.message_bytes_max;
  if (!taken || bytes > most) release_records(*flow);
  if (!taken) return taken.error();
  if (bytes > most) {
    return fail(Errc::kTooLarge,
                "pages: the dispatch is larger than a message may be "
                "(PeerInfo::message_bytes_max)",
                native_value(bytes));
  }
  return flow;
}

void DecoderCore::await_layers(Task& task, const Checked& checked) {
  std::map<uint32_t, uint32_t> sources;
  for (const PairCounts& counted : checked.counts) {
    for (const LayerCount& layer : counted.layers) {
      sources[layer.layer] += layer.count > 0 ? 1 : 0;
    }
  }
  for (const auto& [layer, left] : sources) task.layers.push_back({layer, left});
}

Result<void> DecoderCore::start(const DecodeRequest& request) {
  if (draining_all_) return fail(Errc::kClosed, "decoder: draining");
  if (auto ok = check_id(request); !ok) return ok;
  const auto checked = check(request);
  if (!checked) return checked.error();
  if (live_ >= options_.requests_max) {
    return fail(Errc::kExhausted, "requests_max", native_value(options_.requests_max));
  }
  // Each armed expectation holds a slot of the inbox. Answers need some, or nothing ever ends.
  const size_t flows = checked->total == 0 ? 0 : checked->counts.size();
  const uint64_t flows_max = options_.inbox_depth - options_.inbox_depth / 4;
  if (flows_.size() + flows > flows_max) {
    return fail(Errc::kExhausted, "inbox_depth: three quarters of it are in use by requests",
                native_value(flows_max));
  }
  if (auto ok = check_reserve(request); !ok) return ok;
  auto written = written_pages(request, *checked);
  if (!written) return written.error();
  const auto records = records_needed(*checked);
  if (!records) return records.error();
  if (*records > staging_.free()) {
    return fail(Errc::kExhausted, "staging_region: fewer records are free than the request needs",
                native_value(*records));
  }

  auto task = std::make_unique<Task>();
  task->number = next_number_++;
  task->id = request.id;
  task->attempt = request.attempt;
  task->per_layer = request.per_layer;
  task->prefill = request.prefill;
  task->leased = *std::move(written);
  task->tail_slot = request.tail_slot;
  await_layers(*task, *checked);
  for (size_t i = 0; i < checked->counts.size(); ++i) {
    if (checked->total == 0) break;  // everything is cached
    const auto source =
        std::ranges::find(request.sources, checked->prefill->ranks[i], &Source::rank);
    auto session = session_for(*source);
    auto flow = session ? make_flow(request, *checked, i, **session)
                        : Result<std::unique_ptr<Flow>>(session.error());
    if (!flow) {
      for (const auto& made : task->flows) release_records(*made);
      return flow.error();
    }
    (*flow)->task = task.get();
    task->flows.push_back(*std::move(flow));
  }
  if (auto ok = lease_pages(*task); !ok) {
    for (const auto& made : task->flows) release_records(*made);
    return ok;
  }
  begin(std::move(task), request.deadline == Nanos{} ? options_.deadline : request.deadline);
  return {};
}

Result<void> DecoderCore::lease_pages(Task& task) {
  const uint32_t slot =
      free_slots_.empty() ? static_cast<uint32_t>(by_slot_.size()) : free_slots_.back();
  for (size_t g = 0; g < task.leased.size(); ++g) {
    const size_t at = owners_[g].take(task.leased[g], slot);
    if (at == task.leased[g].size()) continue;
    const uint32_t page = task.leased[g][at];
    const bool twice = owners_[g].owner(page) == PageOwners::kNone;
    for (size_t k = 0; k < g; ++k) owners_[k].release(task.leased[k]);
    return twice ? fail(Errc::kInvalidArgument, "pages: a page twice", native_value(page))
                 : fail(Errc::kBusy, "pages: another lease holds this page", native_value(page));
  }
  if (task.tail_slot != DecodeRequest::kNoTail &&
      tail_owners_.take({&task.tail_slot, 1}, slot) == 0) {
    for (size_t g = 0; g < task.leased.size(); ++g) owners_[g].release(task.leased[g]);
    return fail(Errc::kBusy, "tail_slot: another lease holds it", native_value(task.tail_slot));
  }
  task.slot = slot;
  if (free_slots_.empty()) {
    by_slot_.push_back(&task);
  } else {
    free_slots_.pop_back();
    by_slot_[slot] = &task;
  }
  return {};
}

void DecoderCore::begin(std::unique_ptr<Task> owned, Nanos deadline) {
  Task& task = *owned;
  tasks_[{task.id, task.attempt}] = std::move(owned);
  ++stats_.started;
  ++live_;
  task.deadline = later(engine_.now(), deadline);
  deadlines_.add(task.deadline, tagged(DueKind::kTask, task.number));
  by_number_[task.number] = &task;
  std::vector<SourceSession*> sessions;
  for (const auto& flow : task.flows) {
    flows_[flow->number] = flow.get();
    flow->session->waiting.push_back(flow->number);
    sessions.push_back(flow->session);
  }
  for (SourceSession* session : sessions) {
    const auto info = engine_.peer_info(session->peer);
    const bool stalled = info && info->state == PeerState::kStalled;
    // Requests before it were given up, or its stall was over before this decoder knew it.
    if (stalled && session->stall_due == Nanos{}) watch_stall(*session);
    pump(*session);
  }
  update(task);  // complete at once if every token is cached
  erase_ended();
  wake();
}

}  // namespace fabric::kv::decode

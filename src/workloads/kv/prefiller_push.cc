#include <algorithm>

#include "base/check.h"
#include "workloads/kv/prefiller_core.h"

// Passes and pushes. A target records its next write; every event that allows more writes (steps
// done, a dispatch, room in the engine, the end of the request) calls advance(). In the
// steady state that is one submit for each plan slice and nothing else: no allocation, no copy of
// pages.

namespace fabric::kv::prefill {
namespace {

int32_t error_value(uint64_t value) {
  return static_cast<int32_t>(std::min<uint64_t>(value, INT32_MAX));
}

/// Of one staged write: bounds the page indices that it takes from the engine's arena.
constexpr uint32_t kStagedUnitsMax = 1024;

/// Pages that a prompt's first `tokens` tokens take.
uint64_t pages_of(const CacheGroup& group, uint64_t tokens) {
  if (group.kind == GroupKind::kState) return 1;
  return (tokens + group.page_tokens - 1) / group.page_tokens;
}

}  // namespace

// ---- Passes -------------------------------------------------------------------------------------

Result<void> PrefillerCore::check_entry(const PassEntry& entry) const {
  const HeldOffer* offer = find_offer(entry.id, entry.attempt);
  if (offer == nullptr || !offer->offered) return fail(Errc::kNotFound, "id");
  if (offer->finished) return fail(Errc::kInvalidArgument, "id: finish() was called");
  if (entry.tokens.from != offer->tokens_done || entry.tokens.to <= entry.tokens.from ||
      entry.tokens.to > offer->prompt_tokens) {
    return fail(Errc::kInvalidArgument,
                "tokens: not from where the last chunk ended, or past the prompt",
                error_value(offer->tokens_done));
  }
  const std::vector<CacheGroup>& groups = options_.side.ranks[options_.rank].groups;
  if (!entry.more_pages.empty() && entry.more_pages.size() != groups.size()) {
    return fail(Errc::kInvalidArgument, "more_pages: not one list for each group",
                error_value(groups.size()));
  }
  if (auto ok = check_page_ids(entry.more_pages); !ok) return ok;
  for (size_t g = 0; g < groups.size(); ++g) {
    const uint64_t more = entry.more_pages.empty() ? 0 : entry.more_pages[g].size();
    if (offer->pages[g].size() + more < pages_of(groups[g], entry.tokens.to)) {
      return fail(Errc::kInvalidArgument, "pages: they do not reach the end of the chunk",
                  error_value(pages_of(groups[g], entry.tokens.to)));
    }
  }
  return {};
}

Result<uint64_t> PrefillerCore::pass(std::span<const PassEntry> entries) {
  const std::lock_guard lock(mutex_);
  if (pass_count_ == passes_.size()) {
    return fail(Errc::kExhausted, "passes_max", error_value(passes_.size()));
  }
  const auto is_over = [this](const PassEntry& entry) {
    return find_offer(entry.id, entry.attempt) == nullptr &&
           ended_.contains({std::string(entry.id), entry.attempt});
  };
  for (size_t i = 0; i < entries.size(); ++i) {
    if (is_over(entries[i])) continue;
    if (auto ok = check_entry(entries[i]); !ok) return ok.error();
    for (size_t k = 0; k < i; ++k) {
      if (entries[k].id == entries[i].id && entries[k].attempt == entries[i].attempt) {
        return fail(Errc::kInvalidArgument, "entries: a request twice", error_value(i));
      }
    }
  }
  PassRecord& record = passes_[(first_pass_ + pass_count_) % passes_.size()];
  record.first_step = announced_;
  record.offers.clear();
  ++pass_count_;
  announced_ += layers_.size();
  for (const PassEntry& entry : entries) {
    if (is_over(entry)) continue;
    HeldOffer& offer = *find_offer(entry.id, entry.attempt);
    for (size_t g = 0; g < entry.more_pages.size(); ++g) {
      offer.pages[g].insert(offer.pages[g].end(), entry.more_pages[g].begin(),
                            entry.more_pages[g].end());
    }
    offer.chunks.push_back({entry.tokens, record.first_step});
    offer.tokens_done = entry.tokens.to;
    record.offers.push_back(&offer);
    // Prepares the lists before the first layer is done.
    for (size_t t = 0; t < offer.targets.size(); ++t) (void)advance(*offer.targets[t]);
  }
  return record.first_step;
}

Result<void> PrefillerCore::layer_done(uint64_t steps) {
  const std::lock_guard lock(mutex_);
  if (steps > announced_) {
    return fail(Errc::kInvalidArgument, "steps: more than pass() announced",
                error_value(announced_));
  }
  steps_done(steps);
  return {};
}

/// On the engine's callback thread. A word beyond the announced steps is a bug in the kernel, and
/// is clamped: what has not been computed is not sent.
void PrefillerCore::on_word(const Event& event) {
  const std::lock_guard lock(mutex_);
  if (event.value > announced_) ++stats_.bad_steps;
  steps_done(std::min(event.value, announced_));
}

void PrefillerCore::steps_done(uint64_t steps) {
  if (steps <= steps_) return;
  steps_ = steps;
  resume_blocked();  // they have waited longest
  for (size_t i = 0; i < pass_count_; ++i) {
    PassRecord& record = passes_[(first_pass_ + i) % passes_.size()];
    if (record.first_step >= steps) break;
    for (HeldOffer* offer : record.offers) {
      if (offer == nullptr) continue;
      for (size_t t = 0; t < offer->targets.size(); ++t) (void)advance(*offer->targets[t]);
    }
  }
  while (pass_count_ > 0 && passes_[first_pass_].first_step + layers_.size() <= steps) {
    first_pass_ = (first_pass_ + 1) % passes_.size();
    --pass_count_;
  }
}

// ---- Pushes -------------------------------------------------------------------------------------

bool PrefillerCore::advance(Target& target) {
  const HeldOffer& offer = *target.offer;
  if (target.blocked || target.sealed) return true;
  if (target.end != Target::End::kNone) return seal(target) || block(target);
  if (!offer.offered) return true;
  // A write has already failed: report it to the decoder now, not after the last layer.
  if (target.batch.failed() > 0) {
    stop(target, Target::End::kFailed);
    return true;
  }
  while (target.chunk < offer.chunks.size()) {
    const PassChunk& chunk = offer.chunks[target.chunk];
    const uint64_t passed = steps_ > chunk.first_step ? steps_ - chunk.first_step : 0;
    const auto done = static_cast<uint32_t>(std::min<uint64_t>(passed, layers_.size()));
    const Push ready = target.prepared ? Push::kDone : prepare(target, chunk);
    if (ready == Push::kNoRoom) return block(target);
    if (ready == Push::kFailed) return true;
    for (; target.step < done; ++target.step) {
      const Push result = push_step(target);
      if (result == Push::kNoRoom) return block(target);
      if (result == Push::kFailed) return true;
      ++stats_.layers_pushed;
    }
    if (target.step < layers_.size()) return true;
    ++target.chunk;
    target.step = 0;
    target.prepared = false;
  }
  if (!offer.finished) return true;
  if (target.has_tail && !target.tail_sent) {
    const Push result = push_tail(target);
    if (result == Push::kNoRoom) return block(target);
    if (result == Push::kFailed) return true;
    target.tail_sent = true;
  }
  return seal(target) || block(target);
}

/// The page lists of a chunk, for all of its layers.
PrefillerCore::Push PrefillerCore::prepare(Target& target, const PassChunk& chunk) {
  const DecoderPlan& plan = *target.plan;
  std::fill(target.source_lists.begin(), target.source_lists.end(), PageList());
  std::fill(target.target_lists.begin(), target.target_lists.end(), PageList());
  std::fill(target.staged_units.begin(), target.staged_units.end(), StagedUnits());
  const auto failed = [&](const Error& error) {
    if (error.code == Errc::kExhausted) return Push::kNoRoom;
    stop(target, Target::End::kFailed);
    return Push::kFailed;
  };
  for (size_t g = 0; plan.pair != nullptr && g < plan.pair->groups.size(); ++g) {
    const PairGroup& group = plan.pair->groups[g];
    const auto range = chunk_units(plan.plan, group.group, target.tokens, chunk.tokens);
    if (!range) return failed(range.error());
    const std::vector<uint32_t>& pages = target.offer->pages[group.source_group];
    for (uint32_t n = 0; n < group.lists.size(); ++n) {
      if (dealt_units(*plan.pair, group.lists[n], *range, target.tokens.seed) == 0) continue;
      const auto at = unit_indices(plan.plan, *plan.pair, group, n, *range, target.tokens.seed,
                                   {.source = pages,
                                    .target = target.pages[group.group].ids,
                                    .target_first = target.pages[group.group].first});
      if (!at) return failed(at.error());
      auto source = engine_.make_page_list(std::span<const uint32_t>(at->source));
      if (!source) return failed(source.error());
      auto there = engine_.make_page_list(std::span<const uint32_t>(at->target));
      if (!there) return failed(there.error());
      target.source_lists[plan.first_list[g] + n] = *std::move(source);
      target.target_lists[plan.first_list[g] + n] = *std::move(there);
      if (group.lists[n].staging_record_bytes == 0) continue;
      // The records of the units before this chunk come first.
      const auto all = request_units(plan.plan, group.group, target.tokens);
      const std::vector<uint32_t>& records = target.records[plan.first_list[g] + n];
      const auto first =
          records.begin() +
          dealt_units(*plan.pair, group.lists[n], {all->first, range->first}, target.tokens.seed);
      const auto units = static_cast<std::ptrdiff_t>(at->source.size());
      target.staged_units[plan.first_list[g] + n] = {at->source, {first, first + units}};
    }
  }
  target.prepared = true;
  return Push::kDone;
}

PrefillerCore::Push PrefillerCore::pushed(Target& target, const Result<OpId>& submitted) {
  if (submitted) return Push::kDone;
  if (submitted.error().code == Errc::kExhausted) {
    ++stats_.exhausted;
    return Push::kNoRoom;
  }
  // The grant was revoked, the peer is lost, or its region is smaller than its layout said.
  stop(target, Target::End::kFailed);
  return Push::kFailed;
}

/// The staged writes of one part of a layer. A write takes as many units as there are free slots.
PrefillerCore::Push PrefillerCore::push_staged(Target& target, const StepPart& part,
                                               CounterKey counter_key) {
  const std::span<const StagedWrite> writes = staged_of(*part.group, *part.layer);
  for (; target.staged < writes.size(); ++target.staged, target.staged_unit = 0) {
    const StagedWrite& write = writes[target.staged];
    const StagedUnits& units = target.staged_units[part.first_list + write.list];
    while (target.staged_unit < units.source.size()) {
      const auto left = static_cast<uint32_t>(units.source.size()) - target.staged_unit;
      const uint32_t count = std::min({left, slots_.free(), kStagedUnitsMax});
      if (count == 0) {
        ++stats_.exhausted;
        return Push::kNoRoom;
      }
      std::vector<uint32_t> slots = *slots_.allocate(count);
      for (uint32_t i = 0; i < count; ++i) {
        const auto slot = options_.staging_region->bytes().subspan(
            slots[i] * options_.staging_slot_bytes, write.bytes);
        // The plan fits the layout, and the layout the regions.
        FABRIC_CHECK(
            gather(write, units.source[target.staged_unit + i], options_.staging_sources, slot));
      }
      const uint64_t number = next_number_++;
      const Push result = pushed(
          target,
          engine_.submit(PagedWrite{
              .source = options_.staging_region->id(),
              .source_pages = {.indices = slots, .stride_bytes = options_.staging_slot_bytes},
              .target = target.regions->regions.back(),
              .target_pages = {.indices =
                                   std::span(units.records).subspan(target.staged_unit, count),
                               .stride_bytes = target.staging_record_bytes,
                               .offset_bytes = write.record_offset_bytes},
              .page_bytes = write.bytes,
              .imm = counter_key,
              .timeout = options_.write_timeout,
              .batch = target.batch,
              .notify = Notify::inbox(inbox_, tagged(TagKind::kStaged, number))}));
      if (result != Push::kDone) {
        FABRIC_CHECK(slots_.release(slots));
        return result;
      }
      staged_writes_.emplace(number, std::move(slots));
      target.staged_unit += count;
    }
  }
  target.staged = 0;
  return Push::kDone;
}

/// All writes of one layer. Resumes where the engine had no room.
PrefillerCore::Push PrefillerCore::push_step(Target& target) {
  const std::vector<StepPart>& parts = target.plan->steps[target.step];
  const CounterKey counter_key =
      target.layer_keys.empty() ? target.counter_key : target.layer_keys[target.step];
  for (; target.part < parts.size(); ++target.part, target.slice = 0) {
    const StepPart& part = parts[target.part];
    const std::span<const PageSlice> slices = slices_of(*part.group, *part.layer);
    for (; target.slice < slices.size(); ++target.slice) {
      const PageSlice& slice = slices[target.slice];
      const PageList& source = target.source_lists[part.first_list + slice.list];
      if (!source.id()) continue;  // no unit of this chunk is this source's
      const Push result = pushed(
          target, engine_.submit(PagedWrite{
                      .source = options_.regions[slice.source_region],
                      .source_pages = {.stride_bytes = slice.source_stride_bytes,
                                       .offset_bytes = slice.source_offset_bytes,
                                       .list = source,
                                       .inner_stride_bytes = slice.source_inner_stride_bytes},
                      .target = target.regions->regions[slice.target_region],
                      .target_pages = {.stride_bytes = slice.target_stride_bytes,
                                       .offset_bytes = slice.target_offset_bytes,
                                       .list = target.target_lists[part.first_list + slice.list],
                                       .inner_stride_bytes = slice.target_inner_stride_bytes},
                      .page_bytes = slice.bytes,
                      .inner_count = slice.inner_count,
                      .imm = counter_key,
                      .timeout = options_.write_timeout,
                      .batch = target.batch}));
      if (result != Push::kDone) return result;
    }
    const Push staged = push_staged(target, part, counter_key);
    if (staged != Push::kDone) return staged;
  }
  target.part = 0;
  return Push::kDone;
}

PrefillerCore::Push PrefillerCore::push_tail(Target& target) {
  const PrefillTail& tail = target.offer->tail;
  if (tail.size_bytes > target.tail_bytes_max) {
    stop(target, Target::End::kFailed);
    return Push::kFailed;
  }
  // A write needs a source also when it has no bytes.
  const LocalRef source = tail.size_bytes > 0 ? tail.source : LocalRef{options_.regions[0], 0};
  return pushed(target,
                engine_.submit(Write{
                    .source = source,
                    .target = target.regions->regions[target.plan->regions].at(target.tail_offset),
                    .size_bytes = tail.size_bytes,
                    .imm = target.tail_key,
                    .timeout = options_.write_timeout,
                    .batch = target.batch}));
}

bool PrefillerCore::block(Target& target) {
  if (!target.blocked) blocked_[target.peer].push_back(&target);
  target.blocked = true;
  return false;
}

/// The decoders in turn, since the engine's queue has a share for each and a limit for all.
void PrefillerCore::resume_blocked() {
  auto at = blocked_.upper_bound(first_resumed_);
  for (size_t left = blocked_.size(); left > 0; --left) {
    if (at == blocked_.end()) at = blocked_.begin();
    if (left == blocked_.size()) first_resumed_ = at->first;
    resume(at->second);
    at = at->second.empty() ? blocked_.erase(at) : std::next(at);
  }
}

/// First come, first served: the target that has waited longest gets the room.
void PrefillerCore::resume(std::deque<Target*>& blocked) {
  while (!blocked.empty()) {
    Target& target = *blocked.front();
    blocked.pop_front();
    target.blocked = false;
    if (advance(target)) continue;
    blocked.pop_back();  // advance() has just put it there
    blocked.push_front(&target);
    return;
  }
}

/// Stops pushing; the report of the batch gives what landed.
void PrefillerCore::stop(Target& target, Target::End end) {
  if (target.end == Target::End::kNone) target.end = end;
  (void)engine_.cancel(target.batch.id());
  if (!seal(target)) block(target);
}

/// False: the inbox has no room for the report.
bool PrefillerCore::seal(Target& target) {
  if (target.sealed) return true;
  const auto sealed =
      target.batch.seal(Notify::inbox(inbox_, tagged(TagKind::kSeal, target.number)));
  target.sealed = sealed || sealed.error().code != Errc::kExhausted;
  return target.sealed;
}

}  // namespace fabric::kv::prefill

#include "kv/kv_cluster.h"

#include <algorithm>
#include <cstring>

#include <gtest/gtest.h>

#include "harness/pattern.h"
#include "support/log_guard.h"

namespace fabric::kv::test {

using fabric::test::short_timeouts_config;

namespace {

constexpr std::byte kAppended{0x77};  ///< what the decoder writes itself

/// Every head of a page has bytes of its own, whatever rank computes them.
uint64_t content_seed(const std::string& id, size_t tensor, uint32_t layer, uint32_t position,
                      uint32_t head) {
  return request_seed(id + "/" + std::to_string(tensor) + "/" + std::to_string(layer) + "/" +
                      std::to_string(position) + "/" + std::to_string(head));
}

}  // namespace

Config engine_config(const ClusterOptions& options, uint32_t node) {
  Config config = short_timeouts_config();
  config.engine_id = 100 + node;
  if (node != 0) config.ops_max = options.ops_max;
  return config;
}

Layout cache_layout(uint32_t tp_rank, uint32_t tp_size, uint32_t pages, uint32_t layers,
                    uint32_t page_tokens, uint32_t head_size) {
  Layout layout{.model_hash = 7, .tp_rank = tp_rank, .tp_size = tp_size};
  CacheGroup group{.name = "full", .page_tokens = page_tokens, .pages = pages};
  for (uint32_t i = 0; i < layers; ++i) group.layers.push_back(i);
  uint64_t bytes = 0;
  for (const char* name : {"k", "v"}) {
    Tensor tensor{.name = name, .dtype = "bf16", .element_bytes = 2};
    tensor.heads_total = kHeads;
    tensor.head_size = head_size;
    tensor.offset_bytes = bytes;
    bytes += *place_tensor(tensor, {.page_tokens = page_tokens,
                                    .tp_rank = tp_rank,
                                    .tp_size = tp_size,
                                    .pages = pages,
                                    .layers = layers});
    group.tensors.push_back(tensor);
  }
  layout.region_bytes = {bytes};
  layout.groups = {group};
  return layout;
}

Side cache_side(uint32_t tp_size, uint32_t pages, uint32_t layers, uint32_t page_tokens,
                uint32_t head_size) {
  Side side;
  for (uint32_t r = 0; r < tp_size; ++r) {
    side.ranks.push_back(cache_layout(r, tp_size, pages, layers, page_tokens, head_size));
  }
  return side;
}

std::span<std::byte> head_bytes(const Layout& layout, std::span<std::byte> memory, size_t tensor,
                                uint32_t layer, uint32_t page, uint32_t head) {
  const Tensor& t = layout.groups[0].tensors[tensor];
  const uint64_t at = t.offset_bytes + layer * t.layer_stride_bytes + page * t.page_stride_bytes +
                      head * t.head_stride_bytes;
  return memory.subspan(at, t.head_stride_bytes);
}

// ---- Prefill ranks ------------------------------------------------------------------------------

PrefillRank::PrefillRank(sim::World& world, uint32_t node, uint32_t rank,
                         const ClusterOptions& options)
    : pool(options.pages),
      options_(options),
      layout_(cache_layout(rank, options.sources, options.pages, options.layers,
                           options.page_tokens, options.head_size)),
      rank_(rank) {
  engine.emplace(*world.open(node, engine_config(options, node)));
  memory.emplace(*engine->allocate({.size_bytes = layout_.region_bytes[0]}));
  tail.emplace(*engine->allocate({.size_bytes = kTailBytes}));
  open_prefiller();
}

void PrefillRank::open_prefiller() {
  PrefillerOptions opened{.side = cache_side(options_.sources, options_.pages, options_.layers,
                                             options_.page_tokens, options_.head_size),
                          .rank = rank_,
                          .regions = {memory->id()}};
  opened.watch_word = options_.watch_word;
  opened.polled_word = false;
  opened.offer_wait = options_.offer_wait;
  opened.requests_max = options_.requests_max;
  prefiller.emplace(*Prefiller::open(*engine, opened));
}

void PrefillRank::close_prefiller() {
  prefiller.reset();
  jobs_.clear();
  pass_.clear();
  pool = PagePool(options_.pages);
}

PrefillRank::~PrefillRank() { close(); }

/// The engine last: when it closes, it reports the timer to tick().
void PrefillRank::close() {
  prefiller.reset();
  tail.reset();
  memory.reset();
  engine.reset();
}

void PrefillRank::poll() {
  if (!prefiller || !polls) return;
  PrefillEvent batch[8];
  for (uint32_t n = prefiller->poll(batch); n > 0; n = prefiller->poll(batch)) {
    for (uint32_t i = 0; i < n; ++i) {
      events.push_back(batch[i]);
      handle(batch[i]);
      if (then) then(batch[i]);
    }
  }
  const bool needs_pass = std::ranges::any_of(jobs_, [](const auto& entry) {
    return !entry.second.stopped && entry.second.done < entry.second.prompt_tokens;
  });
  if (computes && (needs_pass || !pass_.empty())) schedule();
}

void PrefillRank::offer(const std::string& id, uint32_t attempt, uint32_t prompt_tokens) {
  if (jobs_.contains({id, attempt})) return;
  const uint32_t count = (prompt_tokens + options_.page_tokens - 1) / options_.page_tokens;
  auto pages = pool.allocate(count);
  ASSERT_TRUE(pages) << "the prefill pool leaks";
  const auto offered = prefiller->offer(
      {.id = id, .attempt = attempt, .prompt_tokens = prompt_tokens, .pages = {*pages}});
  if (!offered) {  // cancelled before it was offered
    EXPECT_EQ(offered.error().code, Errc::kCancelled) << offered.error().what;
    ASSERT_TRUE(pool.release(*pages));
    return;
  }
  jobs_[{id, attempt}] = {.prompt_tokens = prompt_tokens, .pages = *pages};
  if (computes) schedule();
}

void PrefillRank::handle(const PrefillEvent& event) {
  const auto job = jobs_.find({event.id, event.attempt});
  switch (event.kind) {
    case PrefillEvent::Kind::kDispatched:
      if (computes && job == jobs_.end()) offer(event.id, event.attempt, event.prompt_tokens);
      return;
    case PrefillEvent::Kind::kCancelled:
    case PrefillEvent::Kind::kDecoderLost:
      if (job != jobs_.end()) job->second.stopped = true;
      return;
    case PrefillEvent::Kind::kSourceFree: {
      if (job == jobs_.end()) return;
      // Whatever still read these pages would send the wrong bytes from now on.
      for (const uint32_t page : job->second.pages) {
        if (!options_.bytes) break;
        fill_whole_page(layout_, memory->bytes(), page, fabric::test::kReusedByte);
      }
      EXPECT_TRUE(pool.release(job->second.pages));
      jobs_.erase(job);
      return;
    }
    default:
      return;
  }
}

void PrefillRank::schedule() {
  if (scheduled_) return;
  // No room in the engine's queue: poll() tries again.
  scheduled_ = engine
                   ->submit(Timer{.after = options_.layer_time,
                                  .notify = Notify::call<&PrefillRank::tick>(this)})
                   .has_value();
}

/// A layer takes `layer_time`.
void PrefillRank::tick(const Event&) {
  scheduled_ = false;
  if (!prefiller) return;
  if (pass_.empty()) begin_pass();
  if (pass_.empty()) return;
  compute_layer();
  if (layer_ == options_.layers) end_pass();
  schedule();
}

void PrefillRank::begin_pass() {
  std::vector<PassEntry> entries;
  for (auto& [id, job] : jobs_) {
    if (job.stopped || job.done == job.prompt_tokens) continue;
    const uint32_t size = (job.prompt_tokens + options_.chunks - 1) / options_.chunks;
    const TokenRange tokens{job.done, std::min(job.prompt_tokens, job.done + size)};
    entries.push_back({.id = id.first, .attempt = id.second, .tokens = tokens});
    pass_.push_back({id, tokens});
  }
  if (entries.empty()) return;
  const auto begun = prefiller->pass(entries);
  ASSERT_TRUE(begun) << begun.error().what;
  first_step_ = *begun;
  layer_ = 0;
}

void PrefillRank::compute_layer() {
  for (const auto& [id, tokens] : pass_) {
    const auto job = jobs_.find(id);
    if (job == jobs_.end() || !options_.bytes) continue;
    const uint32_t size = options_.page_tokens;
    for (uint32_t p = tokens.from / size; p * size < tokens.to; ++p) {
      for (size_t t = 0; t < 2; ++t) {
        for (uint32_t h = 0; h < kHeads / options_.sources; ++h) {
          const uint32_t global = rank_ * (kHeads / options_.sources) + h;
          fabric::test::fill(
              head_bytes(layout_, memory->bytes(), t, layer_, job->second.pages[p], h),
              content_seed(id.first, t, layer_, p, global));
        }
      }
    }
  }
  ++layer_;
  if (options_.watch_word) {
    prefiller->word_store(first_step_ + layer_);
  } else {
    ASSERT_TRUE(prefiller->layer_done(first_step_ + layer_));
  }
}

void PrefillRank::end_pass() {
  for (const auto& [id, tokens] : pass_) {
    const auto job = jobs_.find(id);
    if (job == jobs_.end()) continue;
    job->second.done = tokens.to;
    if (tokens.to < job->second.prompt_tokens || job->second.stopped) continue;
    fabric::test::fill(tail->bytes(), 5);
    const auto ended =
        prefiller->finish(id.first, id.second, {.source = tail->at(0), .size_bytes = kTailBytes});
    EXPECT_TRUE(ended) << ended.error().what;
  }
  pass_.clear();
}

// ---- The cluster --------------------------------------------------------------------------------

bool AttemptRecord::count(DecodeEvent::Kind kind) const { return find(kind) != nullptr; }

const DecodeEvent* AttemptRecord::find(DecodeEvent::Kind kind) const {
  const auto found = std::ranges::find(events, kind, &DecodeEvent::kind);
  return found == events.end() ? nullptr : &*found;
}

KvCluster::KvCluster(const ClusterOptions& given)
    : options(given),
      world([&] {
        sim::WorldOptions network = given.network;
        network.seed = given.seed;
        return network;
      }()),
      layout(cache_layout(0, 1, given.pages, given.layers)),
      pool(given.pages) {
  for (const char* part : {"a path broke", "a rail went down", "a rail came back",
                           "an operation does not drain", "a path could not be opened"}) {
    fabric::test::expect_log(part);
  }
  world.add_node(1, options.model);
  open_decoder();
  for (uint32_t g = 0; g < options.groups; ++g) {
    for (uint32_t r = 0; r < options.sources; ++r) {
      prefills_.push_back(
          std::make_unique<PrefillRank>(world, world.add_node(1, options.model), r, options));
    }
  }
  hook_ = world.each_step([this] { step(); });
}

KvCluster::~KvCluster() { hook_.end(); }

void KvCluster::open_decoder() {
  engine.emplace(*world.open(0, engine_config(options, 0)));
  memory.emplace(*engine->allocate({.size_bytes = layout.region_bytes[0]}));
  tail.emplace(*engine->allocate({.size_bytes = options.pages * kTailBytes}));
  make_decoder();
  for (uint32_t page = 0; page < options.pages; ++page) fill_page(page, kCanary);
}

void KvCluster::make_decoder() {
  DecoderOptions opened{.layout = layout, .regions = {&*memory}};
  opened.tail_region = &*tail;
  opened.tail_slot_bytes = kTailBytes;
  opened.patience = options.patience;
  opened.deadline = options.deadline;
  opened.fence_timeout = options.fence_timeout;
  opened.grants_per_peer = options.grants_per_peer;
  opened.reserve_pages = options.reserve_pages;
  opened.inbox_depth = options.inbox_depth;
  decoder.emplace(*Decoder::open(*engine, opened));
  side = *decoder->add_prefill(cache_side(options.sources, options.pages, options.layers));
}

void KvCluster::reopen_decoder() {
  decoder.reset();
  attempts_.clear();
  appended_.clear();
  pool = PagePool(options.pages);
  make_decoder();
}

void KvCluster::restart_decoder() {
  ++crashes_;
  happens(sim::Fault::crash(0));
  world.run_for(Nanos(1));
  decoder.reset();
  tail.reset();
  memory.reset();
  engine.reset();
  attempts_.clear();
  appended_.clear();
  pool = PagePool(options.pages);
  open_decoder();
}

void KvCluster::restart_prefill(uint32_t group, uint32_t rank) {
  prefills_[group * options.sources + rank] =
      std::make_unique<PrefillRank>(world, node_of(group, rank), rank, options);
}

PrefillRank& KvCluster::prefill(uint32_t group, uint32_t rank) {
  return *prefills_[group * options.sources + rank];
}

uint32_t KvCluster::node_of(uint32_t group, uint32_t rank) const {
  return 1 + group * options.sources + rank;
}

void KvCluster::happens(const sim::Fault& fault) { ASSERT_TRUE(world.at(world.now(), fault)); }

DecodeRequest KvCluster::request(const std::string& id, uint32_t prompt_tokens, uint32_t attempt,
                                 uint32_t group, std::vector<uint32_t> pages) const {
  DecodeRequest out{.id = id, .attempt = attempt, .prefill = side, .prompt_tokens = prompt_tokens};
  for (uint32_t r = 0; r < options.sources; ++r) {
    const auto& prefill = prefills_[group * options.sources + r];
    out.sources.push_back({.rank = r});
    if (prefill->engine) out.sources.back().address = prefill->engine->address_text();
  }
  if (options.tail) out.tail_slot = pages[0];
  out.per_layer = options.per_layer;
  out.pages = {std::move(pages)};
  return out;
}

Result<void> KvCluster::start(const std::string& id, uint32_t prompt_tokens, uint32_t attempt,
                              uint32_t group) {
  auto pages = pool.allocate((prompt_tokens + kPageTokens - 1) / kPageTokens);
  if (!pages) return pages.error();
  const auto started = decoder->start(request(id, prompt_tokens, attempt, group, *pages));
  if (!started) {
    EXPECT_TRUE(pool.release(*pages));
    return started;
  }
  AttemptRecord& record = attempts_[{id, attempt}];
  record.pages = *pages;
  record.prompt_tokens = prompt_tokens;
  record.group = group;
  if (options.offer_first) {
    for (uint32_t r = 0; r < options.sources; ++r) {
      PrefillRank& rank = prefill(group, r);
      if (rank.prefiller) rank.offer(id, attempt, prompt_tokens);
    }
  }
  return started;
}

void KvCluster::adopt(const std::string& id, uint32_t attempt, std::vector<uint32_t> pages,
                      uint32_t prompt_tokens) {
  AttemptRecord& record = attempts_[{id, attempt}];
  for (const uint32_t page : record.pages) {  // of an earlier one, which is complete
    std::erase(appended_, page);
    fill_page(page, kCanary);
  }
  EXPECT_TRUE(pool.release(record.pages));
  record = {};
  record.pages = std::move(pages);
  record.prompt_tokens = prompt_tokens;
}

const AttemptRecord& KvCluster::attempt(const std::string& id, uint32_t number) const {
  static const AttemptRecord none;
  const auto found = attempts_.find({id, number});
  return found == attempts_.end() ? none : found->second;
}

bool KvCluster::over(const std::string& id, uint32_t number) const {
  return attempt(id, number).over;
}

bool KvCluster::all_over() const {
  return std::ranges::all_of(attempts_, [](const auto& entry) { return entry.second.over; });
}

bool KvCluster::run_until(const std::function<bool()>& done, Nanos limit) {
  return world.run_until(done, limit);
}

void KvCluster::step() {
  ++steps;
  if (failed_) return;
  const bool stopped =
      world.faults(sim::Fault::Kind::kStop) > world.faults(sim::Fault::Kind::kContinue);
  if (world.faults(sim::Fault::Kind::kCrash) > crashes_) close_crashed();
  // The tests stop the first rank of the first group only.
  for (size_t i = 0; i < prefills_.size(); ++i) {
    if (i > 0 || !stopped) prefills_[i]->poll();
  }
  if (decoder_polls && decoder) {
    DecodeEvent batch[8];
    for (uint32_t n = decoder->poll(batch); n > 0; n = decoder->poll(batch)) {
      for (uint32_t i = 0; i < n; ++i) handle(batch[i]);
    }
  }
  check_pages();
}

/// The first rank of the first group is gone: its objects are destroyed, as the fault has killed
/// them.
void KvCluster::close_crashed() {
  ++crashes_;
  prefills_[0]->close();
}

void KvCluster::handle(const DecodeEvent& event) {
  if (event.kind == DecodeEvent::Kind::kDrained) {
    drained = true;
    return;
  }
  AttemptRecord& record = attempts_[{event.id, event.attempt}];
  EXPECT_FALSE(record.over) << "an event after the last one: " << to_string(event.kind);
  record.events.push_back(event);
  switch (event.kind) {
    case DecodeEvent::Kind::kComplete:
      if (!holds_cache(record, event.id)) ++wrong;
      if (options.write_at_count) write_own(record, event.id);
      break;
    case DecodeEvent::Kind::kMayWrite:
      record.over = true;
      if (!options.write_at_count) write_own(record, event.id);
      break;
    case DecodeEvent::Kind::kPagesFree:
      record.over = true;
      for (const uint32_t page : record.pages) fill_page(page, kCanary);
      EXPECT_TRUE(pool.release(record.pages));
      break;
    case DecodeEvent::Kind::kFailed: {
      if (!options.retry) break;
      const uint32_t next = (record.group + 1) % options.groups;
      const auto again = start(event.id, record.prompt_tokens, event.attempt + 1, next);
      EXPECT_TRUE(again) << again.error().what;
      break;
    }
    default:
      break;
  }
  if (then) then(event);
}

bool holds_request(const Layout& layout, std::span<std::byte> memory, const std::string& id,
                   std::span<const uint32_t> pages) {
  for (uint32_t p = 0; p < pages.size(); ++p) {
    for (size_t t = 0; t < 2; ++t) {
      for (uint32_t l = 0; l < layout.groups[0].layers.size(); ++l) {
        for (uint32_t h = 0; h < kHeads; ++h) {
          const auto bytes = head_bytes(layout, memory, t, l, pages[p], h);
          if (!fabric::test::holds(bytes, content_seed(id, t, l, p, h))) return false;
        }
      }
    }
  }
  return true;
}

void fill_whole_page(const Layout& layout, std::span<std::byte> memory, uint32_t page,
                     std::byte value) {
  for (size_t t = 0; t < 2; ++t) {
    for (uint32_t l = 0; l < layout.groups[0].layers.size(); ++l) {
      for (uint32_t h = 0; h < kHeads / layout.tp_size; ++h) {
        std::ranges::fill(head_bytes(layout, memory, t, l, page, h), value);
      }
    }
  }
}

bool KvCluster::holds_cache(const AttemptRecord& record, const std::string& id) const {
  if (!holds_request(layout, memory->bytes(), id, record.pages)) return false;
  if (!options.tail) return true;
  return fabric::test::holds(tail->bytes().subspan(record.pages[0] * kTailBytes, kTailBytes), 5);
}

/// The decoder's first step: its own token goes into the last page. Here, the whole page.
void KvCluster::write_own(AttemptRecord& record, const std::string& id) {
  if (!holds_cache(record, id)) ++wrong;
  fill_page(record.pages.back(), kAppended);
  appended_.push_back(record.pages.back());
}

void KvCluster::fill_page(uint32_t page, std::byte value) {
  fill_whole_page(layout, memory->bytes(), page, value);
}

bool KvCluster::page_is(uint32_t page, std::byte value) const {
  // The heads of a page are adjacent.
  const Tensor& k = layout.groups[0].tensors[0];
  for (size_t t = 0; t < 2; ++t) {
    for (uint32_t l = 0; l < options.layers; ++l) {
      const auto first = head_bytes(layout, memory->bytes(), t, l, page, 0);
      if (!fabric::test::untouched({first.data(), kHeads * k.head_stride_bytes}, value)) {
        return false;
      }
    }
  }
  return true;
}

/// Each page is free, leased or the decoder's: exactly one of them. Free ones have their canary,
/// and what the decoder has written is still there.
void KvCluster::check_pages() {
  if (!decoder) return;
  std::vector<uint32_t> holders(options.pages, 0);
  for (const auto& [key, record] : attempts_) {
    if (record.over) continue;
    for (const uint32_t page : record.pages) ++holders[page];
  }
  const auto lost = [&](uint32_t page, const char* what) {
    failed_ = true;
    ADD_FAILURE() << "page " << page << ": " << what << ", state "
                  << to_string(decoder->page_state(0, page)) << ", step " << steps << ", event "
                  << world.events() << ", seed " << options.seed;
  };
  // Bytes change only with an event of the network.
  const bool look = std::exchange(events_seen_, world.events()) != world.events();
  for (uint32_t page = 0; page < options.pages && !failed_; ++page) {
    const bool leased = decoder->page_state(0, page) != PageState::kUnleased;
    if (leased && !decoder_polls) continue;
    if (holders[page] > 1) lost(page, "two attempts have it");
    if (leased != (holders[page] == 1)) lost(page, "the lease and its events differ");
    if (leased && pool.is_free(page)) lost(page, "leased and free");
    if (look && pool.is_free(page) && !page_is(page, kCanary)) {
      lost(page, "a free page was written");
    }
  }
  for (const uint32_t page : appended_) {
    if (failed_ || !look || page_is(page, kAppended)) continue;
    ++overwritten;
    if (!options.write_at_count) lost(page, "the decoder's own bytes are gone");
  }
}

bool KvCluster::prefills_idle() const {
  return std::ranges::all_of(prefills_, [](const auto& rank) {
    return !rank->prefiller || (rank->idle() && rank->prefiller->stats().dispatches == 0);
  });
}

void KvCluster::expect_all_back() {
  EXPECT_TRUE(all_over()) << engine->dump();
  for (auto& [key, record] : attempts_) {
    if (record.find(DecodeEvent::Kind::kMayWrite) == nullptr) continue;
    const uint32_t last = record.pages.back();
    std::erase_if(appended_, [last](uint32_t page) { return page == last; });
    for (const uint32_t page : record.pages) fill_page(page, kCanary);
    EXPECT_TRUE(pool.release(record.pages));
    record.events.clear();
  }
  world.run_for(2s);  // what would land late, lands into a canary
  const DecoderStats stats = decoder->stats();
  EXPECT_EQ(pool.free(), options.pages);
  EXPECT_EQ(stats.requests, 0u);
  EXPECT_EQ(stats.pages_leased, 0u);
  EXPECT_EQ(stats.pages_quarantined, 0u);
  EXPECT_EQ(wrong, 0u);
  for (const auto& rank : prefills_) {
    if (!rank->prefiller) continue;
    EXPECT_TRUE(rank->idle()) << "source pages are lost";
    EXPECT_EQ(rank->prefiller->stats().dispatches, 0u);
  }
}

}  // namespace fabric::kv::test

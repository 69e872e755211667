#include "kv/disaggregated_run.h"

#include <algorithm>
#include <optional>

#include <gtest/gtest.h>

#include "harness/host.h"
#include "support/log_guard.h"

namespace fabric::kv::test {

using namespace std::chrono_literals;

namespace {

/// One request needs few of them, and some thousand engines are opened.
Engine open_rank(sim::World& world, const sim::NicModel& model) {
  Config config = fabric::test::short_timeouts_config();
  config.ops_max = 512;
  config.counters_max = 256;
  config.batches_max = 16;
  config.regions_max = 256;
  config.peers_max = 32;
  config.index_arena_bytes = 64 << 10;
  return *world.open(world.add_node(1, model), config);
}

std::vector<MemoryRegion> register_all(Engine& engine, const DisaggregatedRun::RankMemory& memory) {
  std::vector<MemoryRegion> regions;
  for (const std::span<std::byte> bytes : memory) {
    regions.push_back(
        *engine.register_memory({.address = bytes.data(), .size_bytes = bytes.size()}));
  }
  return regions;
}

}  // namespace

struct DisaggregatedRun::PrefillRank {
  PrefillRank(Engine opened, const Side& side, uint32_t rank, const RankMemory& memory,
              const Options& options, uint64_t slot_bytes)
      : layout(side.ranks[rank]),
        engine(std::move(opened)),
        regions(register_all(engine, memory)),
        offered(layout.groups.size(), 0) {
    PrefillerOptions opts{.side = side, .rank = rank, .plan = options.plan};
    for (const MemoryRegion& region : regions) opts.regions.push_back(region.id());
    if (slot_bytes > 0) {
      staging.emplace(*engine.allocate({.size_bytes = options.staging_slots * slot_bytes}));
      opts.staging_region = &*staging;
      opts.staging_slot_bytes = slot_bytes;
      opts.staging_sources.assign(memory.begin(), memory.end());
    }
    opts.requests_max = 8;
    opts.inbox_depth = 64;
    prefiller = std::make_unique<Prefiller>(*Prefiller::open(engine, opts));
  }
  Layout layout;
  Engine engine;
  std::vector<MemoryRegion> regions;
  std::optional<MemoryRegion> staging{};
  std::unique_ptr<Prefiller> prefiller{};
  uint32_t targets = 0;           ///< decode ranks that draw from this one
  std::vector<uint32_t> offered;  ///< pages so far, for each group
  uint64_t first_step = 0;
  std::vector<PrefillEvent> events{};
};

struct DisaggregatedRun::DecodeRank {
  DecodeRank(Engine opened, const Layout& layout_of_rank, const RankMemory& memory,
             const Options& options, uint64_t record_bytes)
      : layout(layout_of_rank), engine(std::move(opened)), regions(register_all(engine, memory)) {
    DecoderOptions opts{.layout = layout, .plan = options.plan, .inbox_depth = 64};
    for (const MemoryRegion& region : regions) opts.regions.push_back(&region);
    if (record_bytes > 0) {
      staging.emplace(*engine.allocate({.size_bytes = options.staging_records * record_bytes}));
      opts.staging_region = &*staging;
      opts.staging_record_bytes = record_bytes;
    }
    opts.fence_timeout = 1s;
    decoder = std::make_unique<Decoder>(*Decoder::open(engine, opts));
  }
  Layout layout;
  Engine engine;
  std::vector<MemoryRegion> regions;
  std::optional<MemoryRegion> staging{};
  std::unique_ptr<Decoder> decoder{};
  uint32_t prefill = 0;
  std::vector<uint32_t> sources{};
  std::vector<DecodeEvent> events{};
};

DisaggregatedRun::DisaggregatedRun(const Side& prefill, std::span<const RankMemory> prefill_memory,
                                   const Side& decode, std::span<const RankMemory> decode_memory,
                                   const Options& options)
    : options_(options), world({.seed = fabric::test::test_seed()}) {
  if (options.plan.staging) plan_ = *plan(prefill, decode, options.plan);
  for (uint32_t rank = 0; rank < prefill.ranks.size(); ++rank) {
    prefill_.push_back(std::make_unique<PrefillRank>(open_rank(world, options.model), prefill, rank,
                                                     prefill_memory[rank], options,
                                                     largest_staged_bytes()));
  }
  for (uint32_t rank = 0; rank < decode.ranks.size(); ++rank) {
    decode_.push_back(std::make_unique<DecodeRank>(open_rank(world, options.model),
                                                   decode.ranks[rank], decode_memory[rank], options,
                                                   largest_record_bytes()));
    DecodeRank& made = *decode_.back();
    Refusal refusal;
    const auto added = made.decoder->add_prefill(prefill, &refusal);
    EXPECT_TRUE(added) << added.error().what << ": " << refusal.reason;
    if (!added) return;
    made.prefill = *added;
    made.sources = *made.decoder->source_ranks(*added);
    for (const uint32_t from : made.sources) ++prefill_[from]->targets;
  }
  hook_ = world.each_step([this] { poll(); });
}

DisaggregatedRun::~DisaggregatedRun() { hook_.end(); }

uint64_t DisaggregatedRun::largest_staged_bytes() const {
  uint64_t most = 0;
  for (const PairPlan& pair : plan_.pairs) {
    for (const PairGroup& group : pair.groups) {
      for (const StagedWrite& write : group.staged) most = std::max(most, write.bytes);
    }
  }
  return most;
}

uint64_t DisaggregatedRun::largest_record_bytes() const {
  uint64_t most = 0;
  for (const PairPlan& pair : plan_.pairs) {
    for (const PairGroup& group : pair.groups) {
      for (const UnitList& list : group.lists) most = std::max(most, list.staging_record_bytes);
    }
  }
  return most;
}

void DisaggregatedRun::poll() {
  for (const auto& rank : prefill_) {
    if (rank == nullptr) continue;
    PrefillEvent event;
    while (rank->prefiller->poll({&event, 1}) > 0) rank->events.push_back(event);
  }
  for (const auto& rank : decode_) {
    DecodeEvent event;
    while (rank->decoder->poll({&event, 1}) > 0) rank->events.push_back(event);
  }
}

void DisaggregatedRun::start(const Request& request, uint32_t attempt) {
  request_ = request;
  attempt_ = attempt;
  counts_ = 0;
  for (const auto& rank : prefill_) {
    rank->offered.assign(rank->layout.groups.size(), 0);
    rank->events.clear();
  }
  for (const auto& rank : decode_) {
    rank->events.clear();
    const DecodeRequest started = decode_request(*rank);
    counts_ += *rank->decoder->count(started);
    const auto ok = rank->decoder->start(started);
    ASSERT_TRUE(ok) << ok.error().what;
  }
  for (const auto& rank : prefill_) {
    if (rank->targets == 0) continue;
    const uint32_t tokens = options_.pages_with_passes ? 0 : request.prompt_tokens;
    const auto ok = rank->prefiller->offer({.id = kRunId,
                                            .attempt = attempt,
                                            .prompt_tokens = request.prompt_tokens,
                                            .pages = more_pages(*rank, tokens),
                                            .targets = rank->targets});
    ASSERT_TRUE(ok) << ok.error().what;
  }
}

DecodeRequest DisaggregatedRun::decode_request(const DecodeRank& rank) const {
  DecodeRequest out{.id = kRunId,
                    .attempt = attempt_,
                    .prefill = rank.prefill,
                    .prompt_tokens = request_.prompt_tokens,
                    .per_layer = options_.per_layer};
  for (const CacheGroup& group : rank.layout.groups) {
    const GroupRequest& of_group = request_.groups.at(group.name);
    out.cached_tokens.push_back(of_group.cached_tokens);
    out.pages.push_back(of_group.target_pages);
  }
  for (const uint32_t from : rank.sources) {
    out.sources.push_back({.rank = from, .address = prefill_[from]->engine.address_text()});
  }
  return out;
}

Result<void> DisaggregatedRun::start_another(const std::string& id,
                                             std::vector<uint32_t> target_pages) {
  DecodeRequest other = decode_request(*decode_[0]);
  other.id = id;
  other.pages = {std::move(target_pages)};
  return decode_[0]->decoder->start(other);
}

/// For each group of the rank, the pages of the first `tokens` tokens that it has not got yet.
std::vector<std::vector<uint32_t>> DisaggregatedRun::more_pages(PrefillRank& rank,
                                                                uint32_t tokens) const {
  std::vector<std::vector<uint32_t>> more;
  for (size_t g = 0; g < rank.layout.groups.size(); ++g) {
    const CacheGroup& group = rank.layout.groups[g];
    const std::vector<uint32_t>& all = request_.groups.at(group.name).source_pages;
    const uint32_t size = group.kind == GroupKind::kState ? tokens : group.page_tokens;
    const uint32_t end = tokens == 0 ? 0 : (tokens + size - 1) / size;
    more.emplace_back(all.begin() + rank.offered[g], all.begin() + std::max(end, rank.offered[g]));
    rank.offered[g] = std::max(end, rank.offered[g]);
  }
  return more;
}

void DisaggregatedRun::begin_pass(TokenRange chunk) {
  for (const auto& rank : prefill_) {
    if (rank->targets == 0) continue;
    const auto more = more_pages(*rank, chunk.to);
    PassEntry entry{.id = kRunId, .attempt = attempt_, .tokens = chunk};
    if (options_.pages_with_passes) entry.more_pages = more;
    const auto begun = rank->prefiller->pass({&entry, 1});
    ASSERT_TRUE(begun) << begun.error().what;
    rank->first_step = *begun;
  }
}

void DisaggregatedRun::layer_done(uint32_t layer) {
  for (const auto& rank : prefill_) {
    const auto layers = rank->prefiller->layers();
    const auto at = std::ranges::find(layers, layer);
    if (rank->targets == 0 || at == layers.end()) continue;
    const auto step = static_cast<uint64_t>(at - layers.begin());
    ASSERT_TRUE(rank->prefiller->layer_done(rank->first_step + step + 1));
  }
}

void DisaggregatedRun::all_layers_done() {
  for (const auto& rank : prefill_) {
    if (rank->targets == 0) continue;
    ASSERT_TRUE(rank->prefiller->layer_done(rank->first_step + rank->prefiller->layers().size()));
  }
}

void DisaggregatedRun::end_prompt() {
  for (const auto& rank : prefill_) {
    if (rank->targets == 0) continue;
    ASSERT_TRUE(rank->prefiller->finish(kRunId, attempt_));
  }
}

void DisaggregatedRun::crash_prefill(uint32_t rank) {
  ASSERT_TRUE(world.at(world.now(), sim::Fault::crash(rank)));  // its node has the same number
  world.run_for(Nanos(1));
  prefill_[rank].reset();
}

bool DisaggregatedRun::decode_over() const {
  return std::ranges::all_of(decode_,
                             [](const auto& rank) { return rank->decoder->stats().requests == 0; });
}

Decoder& DisaggregatedRun::decoder(uint32_t rank) const { return *decode_[rank]->decoder; }

std::span<std::byte> DisaggregatedRun::staging(uint32_t rank) {
  return decode_[rank]->staging->bytes();
}

void DisaggregatedRun::finish() {
  const auto all_over = [&] {
    bool over = true;
    for (const auto& rank : prefill_) over = over && rank->prefiller->stats().requests == 0;
    return over && decode_over();
  };
  end_prompt();
  EXPECT_TRUE(world.run_until(all_over, 1s)) << "a rank waits for ever";
  uint64_t landed = 0, delivered = 0;
  for (const auto& rank : decode_) {
    EXPECT_EQ(rank->decoder->stats().staging_records, 0u);
    for (const DecodeEvent& event : rank->events) {
      EXPECT_NE(event.kind, DecodeEvent::Kind::kFailed) << event.text;
      if (event.kind == DecodeEvent::Kind::kComplete) landed += event.landed;
    }
  }
  for (const auto& rank : prefill_) {
    EXPECT_EQ(rank->prefiller->stats().staging_slots, 0u);
    for (const PrefillEvent& event : rank->events) {
      EXPECT_EQ(event.code, Errc::kOk) << to_string(event.kind) << " " << event.text;
      delivered += event.delivered;
    }
  }
  EXPECT_EQ(landed, counts_);
  EXPECT_EQ(delivered, counts_);
}

}  // namespace fabric::kv::test

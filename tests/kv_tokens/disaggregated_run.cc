#include "kv_tokens/disaggregated_run.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "harness/host.h"
#include "support/log_guard.h"

namespace fabric::test {

using transformer::PagedCache;
using transformer::ShardedCache;

namespace {

constexpr const char* kRequestId = "a request";

MemoryRegion register_cache(Engine& engine, const PagedCache& cache) {
  return *engine.register_memory(
      {.address = cache.memory().data(), .size_bytes = cache.memory().size()});
}

/// One request needs few of them, and some thousand engines are opened.
Engine open_rank(sim::World& world) {
  Config config = short_timeouts_config();
  config.ops_max = 512;
  config.counters_max = 64;
  config.batches_max = 16;
  config.regions_max = 64;
  config.peers_max = 32;
  config.index_arena_bytes = 64 << 10;
  return *world.open(world.add_node(), config);
}

}  // namespace

struct DisaggregatedRun::PrefillRank {
  PrefillRank(Engine opened, const ShardedCache& cache, uint32_t rank)
      : engine(std::move(opened)),
        memory(register_cache(engine, cache.ranks()[rank])),
        prefiller(*kv::Prefiller::open(engine, {.side = cache.side(),
                                                .rank = rank,
                                                .regions = {memory.id()},
                                                .requests_max = 8,
                                                .inbox_depth = 64})) {}
  Engine engine;
  MemoryRegion memory;
  kv::Prefiller prefiller;
  uint32_t targets = 0;  ///< decode ranks that draw from this one
  uint64_t first_step = 0;
  std::vector<kv::PrefillEvent> events{};
};

struct DisaggregatedRun::DecodeRank {
  DecodeRank(Engine opened, const PagedCache& cache)
      : engine(std::move(opened)),
        memory(register_cache(engine, cache)),
        decoder(*kv::Decoder::open(
            engine, {.layout = cache.layout(), .regions = {&memory}, .inbox_depth = 64})) {}
  Engine engine;
  MemoryRegion memory;
  kv::Decoder decoder;
  uint32_t prefill = 0;
  std::vector<uint32_t> sources{};
  std::vector<kv::DecodeEvent> events{};
};

DisaggregatedRun::DisaggregatedRun(ShardedCache& source, ShardedCache& target)
    : world_({.seed = test_seed()}) {
  for (uint32_t rank = 0; rank < source.ranks().size(); ++rank) {
    prefill_.push_back(std::make_unique<PrefillRank>(open_rank(world_), source, rank));
  }
  for (const PagedCache& cache : target.ranks()) {
    decode_.push_back(std::make_unique<DecodeRank>(open_rank(world_), cache));
    DecodeRank& rank = *decode_.back();
    const auto added = rank.decoder.add_prefill(source.side(), &refusal_);
    if (!added) return;
    rank.prefill = *added;
    rank.sources = *rank.decoder.source_ranks(*added);
    for (const uint32_t from : rank.sources) ++prefill_[from]->targets;
  }
  hook_ = world_.each_step([this] { poll(); });
}

DisaggregatedRun::~DisaggregatedRun() { hook_.end(); }

void DisaggregatedRun::poll() {
  for (const auto& rank : prefill_) {
    kv::PrefillEvent event;
    while (rank->prefiller.poll({&event, 1}) > 0) rank->events.push_back(event);
  }
  for (const auto& rank : decode_) {
    kv::DecodeEvent event;
    while (rank->decoder.poll({&event, 1}) > 0) rank->events.push_back(event);
  }
}

void DisaggregatedRun::start(const Request& request) {
  for (const auto& rank : decode_) {
    kv::DecodeRequest started{.id = kRequestId,
                              .prefill = rank->prefill,
                              .prompt_tokens = request.prompt_tokens,
                              .cached_tokens = {request.cached_tokens},
                              .pages = {request.target_pages}};
    for (const uint32_t from : rank->sources) {
      started.sources.push_back({.rank = from, .address = prefill_[from]->engine.address_text()});
    }
    counts_ += *rank->decoder.count(started);
    const auto ok = rank->decoder.start(started);
    ASSERT_TRUE(ok) << ok.error().what;
  }
  for (const auto& rank : prefill_) {
    if (rank->targets == 0) continue;
    const auto ok = rank->prefiller.offer({.id = kRequestId,
                                           .prompt_tokens = request.prompt_tokens,
                                           .pages = {request.source_pages},
                                           .targets = rank->targets});
    ASSERT_TRUE(ok) << ok.error().what;
  }
}

void DisaggregatedRun::begin_pass(kv::TokenRange chunk) {
  const kv::PassEntry entry{.id = kRequestId, .tokens = chunk};
  for (const auto& rank : prefill_) {
    if (rank->targets == 0) continue;
    const auto begun = rank->prefiller.pass({&entry, 1});
    ASSERT_TRUE(begun) << begun.error().what;
    rank->first_step = *begun;
  }
}

void DisaggregatedRun::layer_done(uint32_t layer) {
  for (const auto& rank : prefill_) {
    const auto layers = rank->prefiller.layers();
    const auto at = std::ranges::find(layers, layer);
    if (rank->targets == 0 || at == layers.end()) continue;
    const auto step = static_cast<uint64_t>(at - layers.begin());
    ASSERT_TRUE(rank->prefiller.layer_done(rank->first_step + step + 1));
  }
}

void DisaggregatedRun::finish() {
  uint64_t landed = 0, delivered = 0;
  const auto all_over = [&] {
    bool over = true;
    for (const auto& rank : prefill_) over = over && rank->prefiller.stats().requests == 0;
    for (const auto& rank : decode_) over = over && rank->decoder.stats().requests == 0;
    return over;
  };
  for (const auto& rank : prefill_) {
    if (rank->targets == 0) continue;
    ASSERT_TRUE(rank->prefiller.finish(kRequestId, 0));
  }
  EXPECT_TRUE(world_.run_until(all_over, 1s)) << "a rank waits for ever";
  for (const auto& rank : decode_) {
    for (const kv::DecodeEvent& event : rank->events) {
      EXPECT_NE(event.kind, kv::DecodeEvent::Kind::kFailed) << event.text;
      if (event.kind == kv::DecodeEvent::Kind::kComplete) landed += event.landed;
    }
  }
  for (const auto& rank : prefill_) {
    for (const kv::PrefillEvent& event : rank->events) {
      EXPECT_EQ(event.code, Errc::kOk) << kv::to_string(event.kind) << " " << event.text;
      delivered += event.delivered;
    }
  }
  EXPECT_EQ(landed, counts_);
  EXPECT_EQ(delivered, counts_);
}

}  // namespace fabric::test

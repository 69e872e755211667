#include <array>
#include <memory>
#include <optional>

#include <gtest/gtest.h>

#include "kv/kv_cluster.h"
#include "support/log_guard.h"

// One prefill rank and two decode ranks of one request: each has a lease, a confirmation and counts
// of its own.

namespace fabric::kv::test::decode_ranks_test {
namespace {

using Kind = DecodeEvent::Kind;
using fabric::test::short_timeouts_config;

constexpr uint32_t kPages = 8, kLayers = 4, kPrompt = 60, kUsed = 4;

struct DecodeRank {
  DecodeRank(sim::World& world, uint32_t rank)
      : layout(cache_layout(rank, 2, kPages, kLayers)),
        engine(*world.open(world.add_node(), short_timeouts_config())),
        memory(*engine.allocate({.size_bytes = layout.region_bytes[0]})),
        decoder(*Decoder::open(engine, {.layout = layout, .regions = {&memory}})),
        side(*decoder.add_prefill(cache_side(1, kPages, kLayers))) {}
  Result<void> start(const std::string& id, const Engine& prefill, uint32_t attempt = 0) {
    return decoder.start({.id = id,
                          .attempt = attempt,
                          .prefill = side,
                          .sources = {{.rank = 0, .address = prefill.address_text()}},
                          .prompt_tokens = kPrompt,
                          .pages = {{0, 1, 2, 3}}});
  }
  void poll() {
    DecodeEvent batch[8];
    for (uint32_t n = decoder.poll(batch); n > 0; n = decoder.poll(batch)) {
      events.insert(events.end(), batch, batch + n);
    }
  }
  const DecodeEvent* find(Kind kind) const {
    const auto found = std::ranges::find(events, kind, &DecodeEvent::kind);
    return found == events.end() ? nullptr : &*found;
  }
  Layout layout;
  Engine engine;
  MemoryRegion memory;
  Decoder decoder;
  uint32_t side;
  std::vector<DecodeEvent> events;
};

class KvDecodeRanks : public testing::Test {
 protected:
  KvDecodeRanks() : world({.seed = fabric::test::test_seed()}) {
    ranks[0].emplace(world, 0);
    ranks[1].emplace(world, 1);
    ClusterOptions options{.sources = 1, .layers = kLayers, .pages = kPages};
    prefill.emplace(world, world.add_node(), 0, options);
    prefill->computes = false;
    hook = world.each_step([this] {
      prefill->poll();
      for (auto& rank : ranks) rank->poll();
    });
  }
  ~KvDecodeRanks() override { hook.end(); }
  void dispatch_both() {
    ASSERT_TRUE(prefill->prefiller->offer(
        {.id = "r", .prompt_tokens = kPrompt, .pages = {{0, 1, 2, 3}}, .targets = 2}));
    for (auto& rank : ranks) ASSERT_TRUE(rank->start("r", *prefill->engine));
    ASSERT_TRUE(world.run_until([&] { return prefill->prefiller->stats().accepted == 2; }, 1s));
    const PassEntry entry{.id = "r", .tokens = {0, kPrompt}};
    first_step = *prefill->prefiller->pass({&entry, 1});
  }
  const PrefillEvent* source_free() const {
    const auto found =
        std::ranges::find(prefill->events, PrefillEvent::Kind::kSourceFree, &PrefillEvent::kind);
    return found == prefill->events.end() ? nullptr : &*found;
  }
  sim::World world;
  std::array<std::optional<DecodeRank>, 2> ranks;
  std::optional<PrefillRank> prefill;
  uint64_t first_step = 0;
  sim::Hook hook;
};

TEST_F(KvDecodeRanks, R14CancelAtDifferentTimesAndEachGetsItsOwnConfirmation) {
  dispatch_both();
  ASSERT_TRUE(prefill->prefiller->layer_done(first_step + 1));
  world.run_for(1ms);
  ASSERT_TRUE(ranks[0]->decoder.cancel("r"));
  world.run_for(1ms);
  ASSERT_TRUE(prefill->prefiller->layer_done(first_step + 3));
  world.run_for(1ms);
  ASSERT_TRUE(ranks[1]->decoder.cancel("r"));
  ASSERT_TRUE(world.run_until(
      [&] { return ranks[0]->find(Kind::kPagesFree) && ranks[1]->find(Kind::kPagesFree); }, 1s));
  // Two tensors for each layer, and the pages.
  EXPECT_EQ(ranks[0]->find(Kind::kCancelled)->landed, kUsed * 2u * 1);
  EXPECT_EQ(ranks[1]->find(Kind::kCancelled)->landed, kUsed * 2u * 3);
  EXPECT_EQ(ranks[0]->decoder.stats().revokes + ranks[1]->decoder.stats().revokes, 0u);
  ASSERT_NE(source_free(), nullptr) << "no decode rank is left";
  EXPECT_EQ(source_free()->code, Errc::kCancelled);
}

TEST_F(KvDecodeRanks, OneThatCancelsDoesNotDisturbTheOther) {
  dispatch_both();
  ASSERT_TRUE(prefill->prefiller->layer_done(first_step + 2));
  ASSERT_TRUE(ranks[0]->decoder.cancel("r"));
  world.run_for(1ms);
  EXPECT_EQ(source_free(), nullptr);
  ASSERT_TRUE(prefill->prefiller->layer_done(first_step + kLayers));
  ASSERT_TRUE(prefill->prefiller->finish("r", 0));
  ASSERT_TRUE(world.run_until([&] { return ranks[1]->find(Kind::kMayWrite) != nullptr; }, 1s));
  EXPECT_NE(ranks[0]->find(Kind::kPagesFree), nullptr);
  world.run_for(1ms);
  EXPECT_NE(source_free(), nullptr);
}

TEST_F(KvDecodeRanks, AThirdDispatchOfTheSameAttemptIsRefused) {
  dispatch_both();
  ASSERT_TRUE(prefill->prefiller->layer_done(first_step + kLayers));
  ASSERT_TRUE(prefill->prefiller->finish("r", 0));
  ASSERT_TRUE(world.run_until([&] { return source_free() != nullptr; }, 1s));
  ASSERT_TRUE(ranks[0]->start("r", *prefill->engine));
  ASSERT_TRUE(world.run_until([&] { return ranks[0]->find(Kind::kFailed) != nullptr; }, 1s));
  EXPECT_EQ(ranks[0]->find(Kind::kFailed)->refused, RefuseCode::kDuplicate);
  EXPECT_NE(ranks[0]->find(Kind::kPagesFree), nullptr);
}

}  // namespace
}  // namespace fabric::kv::test::decode_ranks_test

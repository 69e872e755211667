#include <gtest/gtest.h>

#include <fabric/kv.h>
#include <fabric/sim.h>

#include "cost/counting.h"
#include "harness/host.h"

// A layer of a request is pushed with prepared lists: no allocation, and the prefiller's own lock.

namespace fabric::test::kv_push_test {
namespace {

constexpr uint32_t kPages = 256, kLayers = 8, kPrompt = kPages * 16;

/// K and V apart.
kv::Layout cost_layout() {
  kv::Layout layout;
  kv::CacheGroup group{.name = "full", .page_tokens = 16, .pages = kPages};
  for (uint32_t i = 0; i < kLayers; ++i) group.layers.push_back(i);
  uint64_t bytes = 0;
  for (const char* name : {"k", "v"}) {
    kv::Tensor tensor{.name = name, .dtype = "bf16", .element_bytes = 2};
    tensor.heads_total = 2;
    tensor.head_size = 4;
    tensor.offset_bytes = bytes;
    bytes += *kv::place_tensor(tensor, {.page_tokens = 16, .pages = kPages, .layers = kLayers});
    group.tensors.push_back(tensor);
  }
  layout.region_bytes = {bytes};
  layout.groups = {group};
  return layout;
}

TEST(KvPush, OfALayerAllocatesNothingAndTakesOneLock) {
  sim::World world;
  const kv::Layout layout = cost_layout();
  Host here = open_host(world, world.add_node(), layout.region_bytes[0]);
  Host there = open_host(world, world.add_node(), layout.region_bytes[0]);
  auto decoder = kv::Decoder::open(here.engine, {.layout = layout, .regions = {&here.memory}});
  ASSERT_TRUE(decoder);
  auto prefiller = kv::Prefiller::open(
      there.engine, {.side = kv::Side{{layout}}, .regions = {there.memory.id()}});
  ASSERT_TRUE(prefiller);
  std::vector<uint32_t> pages;
  for (uint32_t i = 0; i < kPages; ++i) pages.push_back(i);
  ASSERT_TRUE(prefiller->offer({.id = "r", .prompt_tokens = kPrompt, .pages = {pages}}));
  ASSERT_TRUE(decoder->start({.id = "r",
                              .prefill = *decoder->add_prefill(kv::Side{{layout}}),
                              .sources = {{.rank = 0, .address = there.engine.address_text()}},
                              .prompt_tokens = kPrompt,
                              .pages = {pages}}));
  kv::DecodeEvent events[8];
  ASSERT_TRUE(world.run_until(
      [&] {
        (void)decoder->poll(events);
        (void)prefiller->poll({});
        return prefiller->stats().accepted == 1;
      },
      1s));
  const kv::PassEntry entry{.id = "r", .tokens = {0, kPrompt}};
  const uint64_t begin = *prefiller->pass({&entry, 1});
  for (uint64_t layer = 1; layer <= kLayers; ++layer) {
    Counting counting;
    const bool done = prefiller->layer_done(begin + layer).has_value();
    const Counts counts = counting.done();
    ASSERT_TRUE(done);
    EXPECT_EQ(counts.allocations, 0u) << counts.where_allocated;
    EXPECT_EQ(counts.locks, 1u) << counts.where_locked;
    world.run_for(1ms);
  }
  EXPECT_EQ(prefiller->stats().layers_pushed, kLayers);
  EXPECT_EQ(prefiller->stats().exhausted, 0u);
}

}  // namespace
}  // namespace fabric::test::kv_push_test

#include <algorithm>
#include <numeric>
#include <optional>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "harness/host.h"
#include "scenario/list_steps.h"
#include "scenario/pairs.h"
#include "support/log_guard.h"

// Prepared lists: made once, used by many operations, freed with the last of them.

namespace fabric::test::lists_test {
namespace {

constexpr uint32_t kLayers = 94, kTensors = 2, kPages = 1024;

/// What a KV cache sends: the same pages of every layer and tensor.
struct Layers {
  static constexpr uint64_t kPage = 16;
  static constexpr uint64_t kLayer = kPages * kPage;

  explicit Layers(const Config& config) : pair(config, kLayers * kTensors * kLayer) {
    fill(pair.a.bytes(), 3);
    std::iota(here.begin(), here.end(), 0u);
    std::iota(there.rbegin(), there.rend(), 0u);
  }
  PagedWrite request(uint64_t tensor, const Pages& from, const Pages& to) {
    PagedWrite write{.source = pair.a.memory.id(),
                     .source_pages = from,
                     .target = pair.remote.region,
                     .target_pages = to,
                     .page_bytes = kPage,
                     .imm = counter.key(),
                     .batch = batch};
    write.source_pages.stride_bytes = write.target_pages.stride_bytes = kPage;
    write.source_pages.offset_bytes = write.target_pages.offset_bytes = tensor * kLayer;
    return write;
  }

  ConnectedPair pair;
  Counter counter = *pair.b.engine.make_counter();
  Batch batch = *pair.a.engine.make_batch();
  std::array<uint32_t, kPages> here{}, there{};
};

TEST(PreparedPages, AreNotCopiedByTheWritesOfEveryLayerAndTensor) {
  Config config = test_config();
  config.index_arena_bytes = 4096;  // less than the indices of one write
  Layers layers(config);
  Engine& engine = layers.pair.a.engine;
  ASSERT_EQ(engine.submit(layers.request(0, {layers.here}, {layers.there})).error().code,
            Errc::kTooLarge)
      << "without a list its indices are copied";
  const PageList from = *engine.make_page_list(layers.here);
  const PageList to = *engine.make_page_list(layers.there);
  for (uint64_t tensor = 0; tensor < kLayers * kTensors; ++tensor) {
    const auto op = engine.submit(layers.request(tensor, {.list = from}, {.list = to}));
    ASSERT_TRUE(op) << op.error().what;
    if (tensor % 32 == 0) {
      ASSERT_EQ(held(engine, "arena_bytes"), 0u);
      ASSERT_EQ(held(engine, "prepared_lists"), 2u);
    }
  }
  ASSERT_TRUE(layers.counter.wait(uint64_t{kLayers} * kTensors * kPages, 60s));
  ASSERT_TRUE(engine.wait(layers.batch, 60s));
  for (uint64_t at = 0; at < kLayers * kTensors * kPages; ++at) {
    const uint64_t base = at / kPages * Layers::kLayer;
    const uint64_t page = at % kPages;
    ASSERT_TRUE(std::ranges::equal(
        layers.pair.b.bytes(base + (kPages - 1 - page) * Layers::kPage, Layers::kPage),
        layers.pair.a.bytes(base + page * Layers::kPage, Layers::kPage)))
        << at;
  }
}

TEST(PreparedPages, OneSideMayNameAListAndTheOtherCarryIndices) {
  Layers layers(test_config());
  Engine& engine = layers.pair.a.engine;
  const PageRange all[] = {{0, kPages}};
  const PageList list = *engine.make_page_list(all);
  ASSERT_TRUE(engine.submit(layers.request(0, {.list = list}, {layers.there})));
  ASSERT_TRUE(engine.submit(layers.request(1, {layers.there}, {.list = list})));
  ASSERT_TRUE(engine.wait(layers.batch, 60s));
  EXPECT_EQ(layers.counter.count(), 2u * kPages);
  for (uint64_t page = 0; page < 2 * kPages; ++page) {
    const uint64_t base = page / kPages * Layers::kLayer, n = page % kPages;
    ASSERT_TRUE(std::ranges::equal(layers.pair.b.bytes(base + (kPages - 1 - n) * Layers::kPage, 16),
                                   layers.pair.a.bytes(base + n * Layers::kPage, 16)));
  }
  EXPECT_EQ(held(engine, "arena_bytes"), 0u);
}

// Runs of both sides begin and end at different pages, and a rail takes every n-th page of them.
TEST(PreparedPages, RangesOfBothSidesMayEndAnywhere) {
  constexpr uint32_t kCount = 400;
  constexpr uint64_t kSize = 24;
  for (const uint32_t rails : {1u, 2u, 3u, 8u}) {
    SCOPED_TRACE(rails);
    sim::World world;
    Host a = open_host(world, world.add_node(rails), 1 << 16);
    Host b = open_host(world, world.add_node(rails), 1 << 16);
    const RemoteHost remote = connect(a, b);
    fill(a.bytes(), 9);
    Rng rng(rails);
    // A permutation of the pages that consists of ranges of 1 to 30 pages.
    const auto draw = [&] {
      std::vector<PageRange> ranges;
      for (uint32_t at = 0; at < kCount;) {
        const auto length = static_cast<uint32_t>(rng.between(1, 30));
        ranges.push_back({at, std::min(length, kCount - at)});
        at += ranges.back().count;
      }
      for (size_t i = ranges.size(); i > 1; --i) std::swap(ranges[i - 1], ranges[rng.below(i)]);
      return ranges;
    };
    const auto flat = [](const std::vector<PageRange>& ranges) {
      std::vector<uint32_t> pages;
      for (const PageRange& range : ranges) {
        for (uint32_t i = 0; i < range.count; ++i) pages.push_back(range.first + i);
      }
      return pages;
    };
    const auto here = draw(), there = draw();
    Counter counter = *b.engine.make_counter();
    Batch batch = *a.engine.make_batch();
    const PageList from = *a.engine.make_page_list(here), to = *a.engine.make_page_list(there);
    ASSERT_TRUE(
        a.engine.submit(PagedWrite{.source = a.memory.id(),
                                   .source_pages = {.stride_bytes = kSize + 7, .list = from},
                                   .target = remote.region,
                                   .target_pages = {.stride_bytes = kSize, .list = to},
                                   .page_bytes = kSize,
                                   .imm = counter.key(),
                                   .batch = batch}));
    ASSERT_TRUE(a.engine.wait(batch, 10s));
    world.run_for(1ms);
    EXPECT_EQ(counter.count(), kCount);
    const auto source = flat(here), target = flat(there);
    for (uint32_t i = 0; i < kCount; ++i) {
      ASSERT_TRUE(std::ranges::equal(b.bytes(target[i] * kSize, kSize),
                                     a.bytes(source[i] * (kSize + 7), kSize)))
          << i;
    }
  }
}

TEST(PreparedPages, LiveUntilTheLastWriteThatUsesThemHasCompleted) {
  Layers layers(test_config());
  Engine& engine = layers.pair.a.engine;
  std::optional<PageList> from = *engine.make_page_list(layers.here);
  const PageList copy = *from;
  ASSERT_TRUE(engine.submit(layers.request(0, {.list = *from}, {.list = *from})));
  ASSERT_TRUE(engine.submit(layers.request(1, {.list = *from}, {.list = *from})));
  from.reset();
  EXPECT_TRUE(engine.submit(layers.request(2, {.list = copy}, {.list = copy}))) << "a copy is left";
  const PageListId id = copy;
  const_cast<PageList&>(copy) = PageList();
  EXPECT_EQ(engine.submit(layers.request(3, {.list = id}, {.list = id})).error().code,
            Errc::kNotFound);
  // A new list takes another slot, not the one that is still read.
  const PageRange wrong[] = {{kPages - 1, 1}};
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(engine.make_page_list(wrong));
  EXPECT_EQ(held(engine, "prepared_lists"), 1u);
  ASSERT_TRUE(engine.wait(layers.batch, 60s));
  EXPECT_EQ(layers.counter.count(), 3u * kPages);
  EXPECT_EQ(held(engine, "prepared_lists"), 0u);
  EXPECT_TRUE(std::ranges::equal(layers.pair.b.bytes(0, 3 * Layers::kLayer),
                                 layers.pair.a.bytes(0, 3 * Layers::kLayer)));
}

TEST(PreparedPages, AreFreedByCancelTimeoutAndClose) {
  Layers layers(test_config());
  Engine& engine = layers.pair.a.engine;
  const auto submit = [&](Timeout timeout) {
    const PageList list = *engine.make_page_list(layers.here);
    PagedWrite request = layers.request(0, {.list = list}, {.list = list});
    request.timeout = timeout;
    return engine.submit(request);
  };
  ASSERT_TRUE(engine.cancel(*submit(1s)));
  ASSERT_TRUE(submit(1ns));
  EXPECT_FALSE(engine.wait(layers.batch, 10s));
  EXPECT_EQ(held(engine, "prepared_lists"), 0u);
  const PageList list = *engine.make_page_list(layers.here);
  ASSERT_TRUE(engine.submit(layers.request(0, {.list = list}, {.list = list})));
  EXPECT_TRUE(engine.close());
  EXPECT_EQ(list.size(), kPages) << "a handle may outlive its engine";
}

/// Slices of the heads of some tokens: [page][token][head], two of eight heads, other strides here
/// and there.
struct HeadSlice {
  static constexpr uint64_t kHead = 24, kTokens = 16, kHeads = 8, kTheirHeads = 2;
  static constexpr uint64_t kToken = kHeads * kHead, kPage = kTokens * kToken;
  static constexpr uint64_t kTheirToken = kTheirHeads * kHead + 8;
  static constexpr uint64_t kTheirPage = kTokens * kTheirToken + 40;
  static constexpr uint64_t kSlice = kTheirHeads * kHead, kFirst = 3 * kHead;
  static constexpr PageRange kHere[] = {{4, 3}, {20, 9}, {1, 2}, {11, 4}};
  static constexpr PageRange kThere[] = {{30, 1}, {0, 17}};

  static PagedWrite request(const Host& a, RemoteRegion target, PageListId here, PageListId there,
                            CounterKey imm) {
    return {.source = a.memory.id(),
            .source_pages = {.stride_bytes = kPage,
                             .offset_bytes = kFirst,
                             .list = here,
                             .inner_stride_bytes = kToken},
            .target = target,
            .target_pages = {.stride_bytes = kTheirPage,
                             .offset_bytes = 5,
                             .list = there,
                             .inner_stride_bytes = kTheirToken},
            .page_bytes = kSlice,
            .inner_count = kTokens,
            .imm = imm};
  }
  template <size_t N>
  static std::vector<uint32_t> pages(const PageRange (&ranges)[N]) {
    std::vector<uint32_t> out;
    for (const PageRange& range : ranges) {
      for (uint32_t i = 0; i < range.count; ++i) out.push_back(range.first + i);
    }
    return out;
  }
  /// Exactly the slices have arrived, each in its place.
  static void check(const Host& a, const Host& b) {
    std::vector<std::byte> expected(b.bytes().size());
    const auto here = pages(kHere), there = pages(kThere);
    ASSERT_EQ(here.size(), there.size());
    for (size_t i = 0; i < here.size(); ++i) {
      for (uint64_t token = 0; token < kTokens; ++token) {
        const auto from = a.bytes(kFirst + here[i] * kPage + token * kToken, kSlice);
        std::ranges::copy(
            from, expected.begin() +
                      static_cast<ptrdiff_t>(5 + there[i] * kTheirPage + token * kTheirToken));
      }
    }
    EXPECT_TRUE(std::ranges::equal(b.bytes(), expected));
  }
  static constexpr uint64_t kParts = 18 * kTokens;
};

TEST(PreparedPages, ASliceOfHeadsNeedsNoIndexPerToken) {
  for (const uint32_t rails : {1u, 3u, 8u}) {
    for (const Priority priority : {Priority::kNormal, Priority::kBulk}) {
      SCOPED_TRACE(rails);
      sim::World world;
      Host a = open_host(world, world.add_node(rails), 1 << 17);
      Host b = open_host(world, world.add_node(rails), 1 << 17);
      const RemoteHost remote = connect(a, b);
      fill(a.bytes(), 9);
      Counter counter = *b.engine.make_counter();
      Batch batch = *a.engine.make_batch();
      const PageList here = *a.engine.make_page_list(HeadSlice::kHere);
      const PageList there = *a.engine.make_page_list(HeadSlice::kThere);
      PagedWrite request = HeadSlice::request(a, remote.region, here, there, counter.key());
      request.batch = batch;
      request.priority = priority;
      ASSERT_TRUE(a.engine.submit(request));
      ASSERT_TRUE(a.engine.wait(batch, 10s));
      world.run_for(1ms);
      EXPECT_EQ(counter.count(), HeadSlice::kParts);
      HeadSlice::check(a, b);
    }
  }
}

// The batch of in-flight pages is expanded and replayed at every step: each part is looked up
// again, out of order.
TEST(PreparedPages, EveryPartArrivesOnceWhenAPathBreaksAtAnyStep) {
  break_paths_at_any_step(
      23,
      [](ListTransfer& transfer) {
        Engine& engine = transfer.a.engine;
        const PageList here = *engine.make_page_list(HeadSlice::kHere);
        const PageList there = *engine.make_page_list(HeadSlice::kThere);
        PagedWrite request = HeadSlice::request(transfer.a, transfer.remote.region, here, there,
                                                transfer.counter.key());
        request.batch = transfer.batch;
        ASSERT_TRUE(engine.submit(request));
      },
      [](ListTransfer& transfer) {
        EXPECT_EQ(transfer.counter.count(), HeadSlice::kParts);
        HeadSlice::check(transfer.a, transfer.b);
      });
}

// Several peers at once: their paths take turns, and each part is made on its own.
TEST(PreparedPages, SeveralPeersShareAListOnOneRail) {
  sim::World world;
  Host a = open_host(world, world.add_node(1), 1 << 17);
  std::vector<Host> others;
  others.reserve(3);
  std::vector<RemoteHost> remotes;
  std::vector<Counter> counters;
  for (int i = 0; i < 3; ++i) {
    others.push_back(open_host(world, world.add_node(1), 1 << 17));
    remotes.push_back(connect(a, others.back()));
    counters.push_back(*others.back().engine.make_counter());
  }
  fill(a.bytes(), 9);
  Batch batch = *a.engine.make_batch();
  const PageList here = *a.engine.make_page_list(HeadSlice::kHere);
  const PageList there = *a.engine.make_page_list(HeadSlice::kThere);
  for (int i = 0; i < 3; ++i) {
    PagedWrite request = HeadSlice::request(a, remotes[i].region, here, there, counters[i].key());
    request.batch = batch;
    ASSERT_TRUE(a.engine.submit(request));
  }
  ASSERT_TRUE(a.engine.wait(batch, 10s));
  world.run_for(1ms);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(counters[i].count(), HeadSlice::kParts);
    HeadSlice::check(a, others[i]);
  }
}

}  // namespace
}  // namespace fabric::test::lists_test

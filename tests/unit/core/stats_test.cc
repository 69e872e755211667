#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include <fabric/fabric.h>
#include <fabric/sim.h>

#include "core/core.h"
#include "support/log_guard.h"

namespace fabric::core::stats_test {
namespace {

using namespace std::chrono_literals;

uint64_t sum(const Histogram& histogram) {
  return std::accumulate(histogram.bucket.begin(), histogram.bucket.end(), uint64_t{0});
}

TEST(Histogram, BucketsArePowersOfTwoNanoseconds) {
  Histogram histogram;
  struct Case {
    int64_t ns;
    size_t bucket;
  };
  for (const auto& [ns, bucket] :
       {Case{0, 0}, Case{1, 0}, Case{2, 1}, Case{3, 1}, Case{4, 2}, Case{1023, 9}, Case{1024, 10},
        Case{-5, 0}, Case{int64_t{1} << 47, 47}, Case{INT64_MAX, 47}}) {
    const uint64_t before = histogram.bucket[bucket];
    ++histogram.bucket[bucket_of(ns)];
    EXPECT_EQ(histogram.bucket[bucket], before + 1) << ns;
  }
  EXPECT_EQ(sum(histogram), 10u);
}

class Stats : public testing::Test {
 protected:
  static constexpr uint64_t kSize = 1 << 20;

  struct Side {
    Engine engine;
    MemoryRegion memory;
  };
  Side open(uint32_t rails) {
    Config config;
    config.log_sink = test::test_log_sink();
    Engine engine = *world.open(world.add_node(rails), config);
    MemoryRegion memory = *engine.allocate({.size_bytes = kSize});
    return {std::move(engine), std::move(memory)};
  }
  struct ReachedPeer {
    PeerId peer;
    RemoteRegion region;
  };
  static ReachedPeer reach(Side& from, const Side& to) {
    const PeerId peer = *from.engine.connect(to.engine.address());
    return {peer, *from.engine.import_region(peer, *to.memory.desc())};
  }
  static PeerStats of(const Engine& engine, PeerId peer) {
    const auto all = engine.peer_stats();
    const auto found = std::ranges::find_if(all, [&](const auto& p) { return p.peer == peer; });
    EXPECT_NE(found, all.end());
    return found == all.end() ? PeerStats{} : *found;
  }

  sim::World world;
  Side a = open(2), b = open(2), c = open(1);
};

TEST_F(Stats, StartAtZeroAndCountWhatIsThere) {
  const EngineStats stats = a.engine.stats();
  EXPECT_EQ(stats.tx.ops, 0u);
  EXPECT_EQ(stats.peers, 0u);
  EXPECT_EQ(stats.regions, 1u);
  EXPECT_EQ(stats.counters, 0u);
  EXPECT_EQ(stats.ops_in_flight, 0u);
  {
    const Counter counter = *a.engine.make_counter();
    EXPECT_EQ(a.engine.stats().counters, 1u);
    const ReachedPeer to_b = reach(a, b);
    EXPECT_EQ(a.engine.stats().peers, 1u);
    ASSERT_TRUE(a.engine.submit(Timer{.after = 1s}));
    EXPECT_EQ(a.engine.stats().ops_in_flight, 1u);
    ASSERT_TRUE(a.engine.disconnect(to_b.peer));
  }
  world.run_for(2s);
  EXPECT_EQ(a.engine.stats().counters, 0u);
  EXPECT_EQ(a.engine.stats().peers, 0u);
  EXPECT_EQ(a.engine.stats().ops_in_flight, 0u);
}

TEST_F(Stats, AddUpOverRailsAndPeers) {
  const ReachedPeer to_b = reach(a, b), to_c = reach(a, c);
  Counter at_b = *b.engine.make_counter(), at_c = *c.engine.make_counter();
  Batch batch = *a.engine.make_batch();
  // Two shards to b, counted; three pages to c, counted; one write to c, not counted.
  ASSERT_TRUE(a.engine.submit(Write{.source = a.memory.at(0),
                                    .target = to_b.region.at(0),
                                    .size_bytes = 300'000,
                                    .imm = at_b.key(),
                                    .batch = batch}));
  const uint32_t pages[] = {0, 1, 2};
  ASSERT_TRUE(a.engine.submit(PagedWrite{.source = a.memory.id(),
                                         .source_pages = {.indices = pages, .stride_bytes = 5000},
                                         .target = to_c.region,
                                         .target_pages = {.indices = pages, .stride_bytes = 5000},
                                         .page_bytes = 4096,
                                         .imm = at_c.key(),
                                         .batch = batch}));
  ASSERT_TRUE(a.engine.submit(Write{
      .source = a.memory.at(0), .target = to_c.region.at(0), .size_bytes = 100, .batch = batch}));
  ASSERT_TRUE(at_b.wait(1));
  ASSERT_TRUE(at_c.wait(3));
  ASSERT_TRUE(a.engine.wait(batch));

  const EngineStats all = a.engine.stats();
  EXPECT_EQ(all.tx.ops, 6u);
  EXPECT_EQ(all.tx.bytes, 300'000u + 3 * 4096 + 100);
  EXPECT_EQ(all.tx.imms, 5u) << "two shards of a write, and three pages";
  EXPECT_EQ(all.tx.failed, 0u);
  EXPECT_EQ(all.tx.posted, 0u);
  EXPECT_EQ(all.tx.queued, 0u);
  EXPECT_EQ(sum(all.tx.submit_to_post), 6u);
  EXPECT_EQ(sum(all.tx.post_to_done), 6u);
  EXPECT_EQ(of(a.engine, to_b.peer).tx.bytes, 300'000u);
  EXPECT_EQ(of(a.engine, to_c.peer).tx.ops, 4u);

  Traffic rails;
  for (const RailStats& rail : a.engine.rail_stats()) {
    EXPECT_TRUE(rail.up);
    EXPECT_EQ(sum(rail.tx.post_to_done), rail.tx.ops);
    EXPECT_EQ(sum(rail.tx.submit_to_post), rail.tx.ops);
    rails.ops += rail.tx.ops;
    rails.bytes += rail.tx.bytes;
    rails.imms += rail.tx.imms;
  }
  EXPECT_EQ(rails.ops, all.tx.ops);
  EXPECT_EQ(rails.bytes, all.tx.bytes);
  EXPECT_EQ(rails.imms, all.tx.imms);
  EXPECT_EQ(b.engine.stats().rx.imms, 2u);
  EXPECT_EQ(c.engine.stats().rx.imms, 3u);
}

TEST_F(Stats, ShowWhatIsQueuedAndPosted) {
  const ReachedPeer to_b = reach(a, b);
  Batch batch = *a.engine.make_batch();
  ASSERT_TRUE(a.engine.submit(Write{
      .source = a.memory.at(0), .target = to_b.region.at(0), .size_bytes = kSize, .batch = batch}));
  world.run_for(1ns);
  EXPECT_EQ(a.engine.stats().tx.queued, 1u) << "queued until the peer is connected";
  EXPECT_EQ(a.engine.stats().tx.posted, 0u);
  ASSERT_TRUE(world.run_until([&] { return a.engine.stats().tx.posted > 0; }, 1s));
  EXPECT_EQ(a.engine.stats().tx.posted, of(a.engine, to_b.peer).tx.posted);
  ASSERT_TRUE(a.engine.wait(batch));
  EXPECT_EQ(a.engine.stats().tx.posted, 0u);

  // More pages than a path takes at once: the others wait, half of them for each rail.
  constexpr uint32_t kPages = 2048;
  std::vector<uint32_t> pages(kPages);
  std::iota(pages.begin(), pages.end(), 0u);
  ASSERT_TRUE(a.engine.submit(PagedWrite{.source = a.memory.id(),
                                         .source_pages = {.indices = pages, .stride_bytes = 8},
                                         .target = to_b.region,
                                         .target_pages = {.indices = pages, .stride_bytes = 8},
                                         .page_bytes = 8,
                                         .batch = batch}));
  world.run_for(1ns);
  const uint64_t queued = a.engine.stats().tx.queued;
  EXPECT_GT(queued, 0u);
  EXPECT_EQ(queued + a.engine.stats().tx.posted, kPages);
  EXPECT_EQ(of(a.engine, to_b.peer).tx.queued, queued);
  EXPECT_EQ(a.engine.rail_stats()[0].tx.queued, queued / 2);
  EXPECT_EQ(a.engine.rail_stats()[1].tx.queued, queued / 2);
  EXPECT_EQ(a.engine.rail_stats()[2].tx.queued, 0u)
      << "nothing is queued on the engine's own address";
  ASSERT_TRUE(a.engine.wait(batch));
}

TEST_F(Stats, CountMessagesAndTheirBytesOnBothSides) {
  Inbox inbox = *b.engine.make_inbox(16);
  const Subscription listener = *b.engine.listen(3, Notify::inbox(inbox));
  const ReachedPeer to_b = reach(a, b);
  Batch batch = *a.engine.make_batch();
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(a.engine.submit(Send{
        .peer = to_b.peer, .channel = 3, .bytes = a.memory.bytes().first(250), .batch = batch}));
  }
  ASSERT_TRUE(a.engine.wait(batch));
  EXPECT_EQ(a.engine.stats().tx.messages, 4u);
  EXPECT_EQ(of(a.engine, to_b.peer).tx.messages, 4u);
  EXPECT_EQ(b.engine.stats().rx.messages, 4u);
  EXPECT_EQ(b.engine.stats().rx.bytes, 1000u);
  EXPECT_EQ(of(b.engine, b.engine.peers().at(0)).rx.messages, 4u);
}

TEST_F(Stats, CountFailuresAndStaleImmediates) {
  const ReachedPeer to_b = reach(a, b);
  Batch batch = *a.engine.make_batch();
  Counter counter = *b.engine.make_counter();
  const CounterKey key = counter.key();
  counter.release();
  ASSERT_TRUE(a.engine.submit(Write{.source = a.memory.at(0),
                                    .target = to_b.region.at(0),
                                    .size_bytes = 64,
                                    .imm = key,
                                    .batch = batch}));
  ASSERT_TRUE(a.engine.wait(batch))
      << "delivered, although the receiver had released its counter key";
  world.run_for(1ms);
  EXPECT_EQ(b.engine.stats().stale_imms, 1u);
  EXPECT_EQ(a.engine.stats().tx.failed, 0u);

  ASSERT_TRUE(a.engine.submit(Write{
      .source = a.memory.at(0), .target = to_b.region.at(0), .size_bytes = kSize, .batch = batch}));
  ASSERT_TRUE(world.run_until([&] { return a.engine.stats().tx.posted == 2; }, 1s));
  const uint64_t bytes = a.engine.stats().tx.bytes;
  ASSERT_TRUE(a.engine.disconnect(to_b.peer));
  EXPECT_EQ(a.engine.wait(batch).error().code, Errc::kPeerLost);
  EXPECT_EQ(a.engine.stats().tx.failed, 2u);
  EXPECT_EQ(a.engine.stats().tx.bytes, bytes) << "only what was delivered counts";
  EXPECT_EQ(a.engine.stats().tx.posted, 0u);
}

TEST_F(Stats, ShowHowLongAPeerHasBeenSilentAndHowOftenCallbacksRan) {
  const ReachedPeer to_b = reach(a, b);
  ASSERT_TRUE(world.run_until(
      [&] { return a.engine.peer_info(to_b.peer)->state == PeerState::kConnected; }, 1s));
  const Nanos silent = of(a.engine, to_b.peer).silent_for;
  world.run_for(1ms);
  EXPECT_GE(of(a.engine, to_b.peer).silent_for, silent);
  EXPECT_EQ(a.engine.stats().callbacks, 0u);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(a.engine.submit(
        Timer{.after = 1us, .notify = Notify::call([](void*, const Event&) {}, nullptr)}));
  }
  world.run_for(1ms);
  EXPECT_EQ(a.engine.stats().callbacks, 3u);
  EXPECT_GT(a.engine.stats().turns, 0u);
}

TEST_F(Stats, CountWhatIsRefusedForWantOfRoomAndNothingElse) {
  std::optional<Inbox> inbox = *a.engine.make_inbox(1);
  const Timer timer{.after = 1ms, .notify = Notify::inbox(*inbox)};
  ASSERT_TRUE(a.engine.submit(timer));
  EXPECT_EQ(a.engine.submit(timer).error().code, Errc::kExhausted);
  EXPECT_EQ(a.engine.stats().exhausted, 1u);
  inbox.reset();
  EXPECT_EQ(a.engine.submit(timer).error().code, Errc::kNotFound);
  EXPECT_EQ(a.engine.stats().exhausted, 1u);
}

TEST_F(Stats, OfAClosedEngineStayReadable) {
  const ReachedPeer to_b = reach(a, b);
  Batch batch = *a.engine.make_batch();
  ASSERT_TRUE(a.engine.submit(Write{
      .source = a.memory.at(0), .target = to_b.region.at(0), .size_bytes = 10, .batch = batch}));
  ASSERT_TRUE(a.engine.wait(batch));
  ASSERT_TRUE(a.engine.close());
  EXPECT_EQ(a.engine.stats().tx.bytes, 10u);
  EXPECT_EQ(a.engine.stats().peers, 0u);
  EXPECT_EQ(a.engine.stats().regions, 0u);
  EXPECT_TRUE(a.engine.rail_stats().empty());
  EXPECT_TRUE(a.engine.peer_stats().empty());
}

}  // namespace
}  // namespace fabric::core::stats_test

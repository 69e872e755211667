#include <algorithm>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/shard.h"
#include "harness/dump.h"
#include "harness/host.h"
#include "scenario/pairs.h"
#include "support/log_guard.h"

// How a write is split over rails and slices and still counts once (P8), and which network it takes
// (P17).

namespace fabric::test::routing_test {
namespace {

struct Rails {
  uint32_t here, there;
  bool ordered;
};

void PrintTo(const Rails& rails, std::ostream* out) {
  *out << rails.here << " to " << rails.there << (rails.ordered ? " ordered" : " unordered");
}

class DifferentRails : public testing::TestWithParam<Rails> {
 protected:
  sim::NicModel model() const { return GetParam().ordered ? rc_model() : srd_model(); }
};

uint64_t bytes_sent(const Engine& engine, uint32_t rail) {
  return engine.rail_stats()[rail].tx.bytes;
}

TEST_P(DifferentRails, ShareALargeWriteAndCountItOnce) {
  const auto [here, there, ordered] = GetParam();
  constexpr uint64_t kSize = 3 << 20;
  sim::World world;
  Host sender = open_host(world, world.add_node(here, model()), kSize);
  Host receiver = open_host(world, world.add_node(there, model()), kSize);
  fill(sender.bytes(), 7);
  const RemoteHost remote = connect(sender, receiver);
  Counter counter = *receiver.engine.make_counter();
  Batch batch = *sender.engine.make_batch();

  ASSERT_TRUE(sender.engine.submit(Write{.source = sender.memory.at(0),
                                         .target = remote.at(0),
                                         .size_bytes = kSize,
                                         .imm = counter.key(),
                                         .batch = batch}));
  ASSERT_TRUE(counter.wait(1));
  EXPECT_TRUE(holds(receiver.bytes(), 7));
  ASSERT_TRUE(sender.engine.wait(batch));
  EXPECT_EQ(counter.count(), 0u) << "one write counted more than once";

  const PeerInfo info = *sender.engine.peer_info(remote.peer);
  EXPECT_EQ(info.rails_here, here);
  EXPECT_EQ(info.rails_there, there);
  for (uint32_t rail = 0; rail < here; ++rail) {
    EXPECT_EQ(bytes_sent(sender.engine, rail), kSize / here) << "rail " << rail;
  }
  // Rails pair by index, and the side with fewer goes round and round.
  std::vector<uint64_t> expected(there);
  for (uint32_t rail = 0; rail < here; ++rail) ++expected[rail % there];
  for (uint32_t rail = 0; rail < there; ++rail) {
    EXPECT_EQ(receiver.engine.rail_stats()[rail].rx.imms, expected[rail]) << "rail " << rail;
  }
  EXPECT_EQ(receiver.engine.stats().rx.imms, here);
}

TEST_P(DifferentRails, TakeTurnsWithSmallWrites) {
  const auto [here, there, ordered] = GetParam();
  constexpr uint64_t kSize = 512;
  constexpr uint64_t kRounds = 3;
  const uint64_t writes = here * kRounds;
  sim::World world;
  Host sender = open_host(world, world.add_node(here, model()), writes * kSize);
  Host receiver = open_host(world, world.add_node(there, model()), writes * kSize);
  fill(sender.bytes(), 8);
  const RemoteHost remote = connect(sender, receiver);
  Counter counter = *receiver.engine.make_counter();
  Batch batch = *sender.engine.make_batch();
  for (uint64_t i = 0; i < writes; ++i) {
    ASSERT_TRUE(sender.engine.submit(Write{.source = sender.memory.at(i * kSize),
                                           .target = remote.at(i * kSize),
                                           .size_bytes = kSize,
                                           .imm = counter.key(),
                                           .batch = batch}));
  }
  ASSERT_TRUE(counter.wait(writes));
  EXPECT_TRUE(holds(receiver.bytes(), 8));
  ASSERT_TRUE(sender.engine.wait(batch));
  for (uint32_t rail = 0; rail < here; ++rail) {
    EXPECT_EQ(sender.engine.rail_stats()[rail].tx.ops, kRounds) << "rail " << rail;
  }
}

INSTANTIATE_TEST_SUITE_P(AllWays, DifferentRails,
                         testing::Values(Rails{8, 3, true}, Rails{3, 8, true}, Rails{8, 3, false},
                                         Rails{3, 8, false}, Rails{1, 8, true}, Rails{8, 1, true}),
                         [](const auto& test_case) {
                           return std::to_string(test_case.param.here) + "to" +
                                  std::to_string(test_case.param.there) +
                                  (test_case.param.ordered ? "Ordered" : "Unordered");
                         });

/// Two hosts with equal rails and cuts small enough to try every length.
struct RailSetup {
  explicit RailSetup(uint32_t rails, uint64_t size_bytes, const sim::NicModel& model = {})
      : sender(open_host(world, world.add_node(rails, model), size_bytes, config())),
        receiver(open_host(world, world.add_node(rails, model), size_bytes, config())),
        remote(connect(sender, receiver)),
        counter(*receiver.engine.make_counter()),
        batch(*sender.engine.make_batch()) {}

  static constexpr uint64_t kStripe = 256;
  static constexpr uint64_t kAlign = 64;
  static Config config() {
    Config config = test_config();
    config.stripe_bytes_min = kStripe;
    config.stripe_align = kAlign;
    config.bulk_slice_bytes = 1000;
    return config;
  }

  /// Writes [offset, offset + size), waits on both sides and looks at every byte of the target.
  void write_and_check(uint64_t offset, uint64_t size, uint64_t seed, Write request = {}) {
    fill(sender.bytes(), seed);
    std::ranges::fill(receiver.bytes(), std::byte{0});
    request.source = sender.memory.at(offset);
    request.target = remote.at(offset);
    request.size_bytes = size;
    request.imm = counter.key();
    request.batch = batch;
    ASSERT_TRUE(sender.engine.submit(request));
    ASSERT_TRUE(counter.wait(1));
    ASSERT_TRUE(std::ranges::equal(receiver.bytes(offset, size), sender.bytes(offset, size)));
    ASSERT_TRUE(untouched(receiver.bytes(0, offset))) << "bytes before the write were changed";
    const uint64_t end = offset + size;
    ASSERT_TRUE(untouched(receiver.bytes(end, receiver.bytes().size() - end)))
        << "bytes after the write were changed";
    ASSERT_TRUE(sender.engine.wait(batch));
    ASSERT_EQ(counter.count(), 0u);
  }

  uint64_t imms() const { return receiver.engine.stats().rx.imms; }

  sim::World world;
  Host sender, receiver;
  RemoteHost remote;
  Counter counter;
  Batch batch;
};

/// The lengths where the number of shards or the place of a cut changes, and those beside them.
std::set<uint64_t> lengths_around_cuts(uint32_t rails) {
  std::set<uint64_t> lengths{
      0, 1, 2, RailSetup::kAlign - 1, RailSetup::kAlign, RailSetup::kAlign + 1};
  for (uint64_t k = 1; k <= rails + 1; ++k) {
    for (const uint64_t edge :
         {k * RailSetup::kStripe, k * (RailSetup::kStripe + RailSetup::kAlign)}) {
      lengths.insert({edge - 1, edge, edge + 1});
    }
  }
  return lengths;
}

class CutOverRails : public testing::TestWithParam<uint32_t> {};

TEST_P(CutOverRails, EveryLengthAroundTheCutsArrivesWholeAndOnce) {
  const uint32_t rails = GetParam();
  RailSetup setup(rails, 4096);
  uint64_t seed = 0;
  for (const uint64_t size : lengths_around_cuts(rails)) {
    SCOPED_TRACE(testing::Message() << size << " bytes over " << rails << " rails");
    const core::Cut cut = core::cut_write(
        size,
        {.shards_max = rails, .stripe_bytes_min = RailSetup::kStripe, .align = RailSetup::kAlign});
    const uint64_t before = setup.imms();
    ASSERT_NO_FATAL_FAILURE(setup.write_and_check(17, size, ++seed));
    EXPECT_EQ(setup.imms() - before, cut.count) << "immediates";
    EXPECT_LE(cut.count, rails);
  }
}

TEST_P(CutOverRails, AnUnsplitWriteIsOneWorkRequestWhateverItsLength) {
  RailSetup setup(GetParam(), 4096);
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, RailSetup::kStripe * 8 + 1}) {
    SCOPED_TRACE(testing::Message() << size << " bytes");
    const uint64_t imms = setup.imms();
    const uint64_t before = setup.sender.engine.stats().tx.ops;
    ASSERT_NO_FATAL_FAILURE(setup.write_and_check(5, size, size + 1, {.unsplit = true}));
    EXPECT_EQ(setup.imms() - imms, 1u);
    EXPECT_EQ(setup.sender.engine.stats().tx.ops - before, 1u);
  }
}

TEST_P(CutOverRails, ABulkWriteIsSlicedAndStillCountsOnce) {
  const uint32_t rails = GetParam();
  RailSetup setup(rails, 16384);
  // Slices are half of bulk_slice_bytes: 500. One byte more makes a tail of one byte.
  for (const uint64_t size : {uint64_t{499}, uint64_t{500}, uint64_t{501}, uint64_t{8001}}) {
    SCOPED_TRACE(testing::Message() << size << " bytes");
    const uint64_t before = setup.sender.engine.stats().tx.ops;
    ASSERT_NO_FATAL_FAILURE(setup.write_and_check(3, size, size, {.priority = Priority::kBulk}));
    EXPECT_GE(setup.sender.engine.stats().tx.ops - before, (size + 499) / 500);
  }
}

INSTANTIATE_TEST_SUITE_P(OneToEight, CutOverRails, testing::Range(1u, 9u),
                         testing::PrintToStringParamName());

TEST(OneByteTail, IsItsOwnShardAndIsNotForgotten) {
  // Aligned to the stripe itself, so that the last shard holds what is left: one byte.
  Config config = test_config();
  config.stripe_bytes_min = 64;
  config.stripe_align = 64;
  sim::World world;
  Host sender = open_host(world, world.add_node(8), 1024, config);
  Host receiver = open_host(world, world.add_node(8), 1024, config);
  const RemoteHost remote = connect(sender, receiver);
  Counter counter = *receiver.engine.make_counter();
  for (uint32_t shards = 2; shards <= 4; ++shards) {
    // Two shards' worth more than the stripes: 2n stripes asked for, cut into n whole ones and a
    // byte.
    const uint64_t size = shards * 128 + 1;
    fill(sender.bytes(), shards);
    std::ranges::fill(receiver.bytes(), std::byte{0});
    const uint64_t before = receiver.engine.stats().rx.imms;
    ASSERT_TRUE(sender.engine.submit(Write{.source = sender.memory.at(0),
                                           .target = remote.at(1),
                                           .size_bytes = size,
                                           .imm = counter.key()}));
    ASSERT_TRUE(counter.wait(1));
    EXPECT_EQ(receiver.engine.stats().rx.imms - before, shards + 1) << size << " bytes";
    EXPECT_TRUE(holds(receiver.bytes(1, size), shards));
    EXPECT_TRUE(untouched(receiver.bytes(1 + size, 1024 - 1 - size)));
  }
}

class ZeroLength : public testing::TestWithParam<bool> {
 protected:
  ZeroLength() : setup(4, 1024, GetParam() ? rc_model() : srd_model()) {
    std::ranges::fill(setup.receiver.bytes(), std::byte{0x5a});
  }
  ~ZeroLength() override {
    EXPECT_TRUE(untouched(setup.receiver.bytes(), std::byte{0x5a}));
    EXPECT_EQ(setup.sender.engine.stats().tx.bytes, 0u);
  }
  EventRecorder recorder;
  RailSetup setup;
};

TEST_P(ZeroLength, WriteCountsOneAndTouchesNothing) {
  Write request{.source = setup.sender.memory.at(0),
                .target = setup.remote.at(0),
                .imm = setup.counter.key(),
                .notify = recorder.notify(1)};
  ASSERT_TRUE(setup.sender.engine.submit(request));
  // At the very end of both regions: nothing of it is outside.
  request.source = setup.sender.memory.at(1024);
  request.target = setup.remote.at(1024);
  request.notify = recorder.notify(2);
  ASSERT_TRUE(setup.sender.engine.submit(request));
  ASSERT_TRUE(setup.counter.wait(2));
  EXPECT_EQ(setup.imms(), 2u) << "an empty write is never cut";
  ASSERT_TRUE(setup.world.run_until([&] { return recorder.count() == 2; }, 1s));
  for (const Event& event : recorder.events) {
    EXPECT_EQ(event.code, Errc::kOk);
    EXPECT_EQ(event.value, 0u) << "bytes";
  }
}

TEST_P(ZeroLength, WriteWithoutAKeyCompletesAndIsNotCounted) {
  ASSERT_TRUE(setup.sender.engine.submit(Write{.source = setup.sender.memory.at(7),
                                               .target = setup.remote.at(9),
                                               .notify = recorder.notify()}));
  ASSERT_TRUE(setup.world.run_until([&] { return recorder.count() == 1; }, 1s));
  EXPECT_EQ(recorder.events[0].code, Errc::kOk);
  setup.world.run_for(1ms);
  EXPECT_EQ(setup.imms(), 0u);
  EXPECT_EQ(setup.counter.count(), 0u);
}

TEST_P(ZeroLength, PagesAndTargetsCountOneEach) {
  const std::vector<uint32_t> pages{0, 3, 1, 2, 2};
  ASSERT_TRUE(
      setup.sender.engine.submit(PagedWrite{.source = setup.sender.memory.id(),
                                            .source_pages = {.indices = pages, .stride_bytes = 64},
                                            .target = setup.remote.region,
                                            .target_pages = {.indices = pages, .stride_bytes = 256},
                                            .page_bytes = 0,
                                            .imm = setup.counter.key(),
                                            .batch = setup.batch}));
  const std::vector<ScatterTarget> targets(
      3, {.target = setup.remote.at(1024), .source_offset = 1024, .imm = setup.counter.key()});
  ASSERT_TRUE(setup.sender.engine.submit(
      Scatter{.source = setup.sender.memory.id(), .targets = targets, .batch = setup.batch}));
  ASSERT_TRUE(setup.counter.wait(8));
  ASSERT_TRUE(setup.sender.engine.wait(setup.batch));
  EXPECT_EQ(setup.batch.delivered(), 8u);
  EXPECT_EQ(setup.counter.count(), 0u);
}

INSTANTIATE_TEST_SUITE_P(BothKinds, ZeroLength, testing::Bool(), [](const auto& test_case) {
  return test_case.param ? "Ordered" : "Unordered";
});

// ---- Two halves make one ------------------------------------------------------------------------

/// Two writes cut in two under one counter key, over a network that mixes their halves.
struct TwoHalves {
  static constexpr uint64_t kSize = 256 << 10;

  static sim::NicModel model() {
    sim::NicModel model = srd_model();
    model.jitter = 60us;  // far longer than a shard is on the wire
    return model;
  }

  explicit TwoHalves(uint64_t seed)
      : world(sim::WorldOptions{.seed = seed}),
        sender(open_host(world, world.add_node(2, model()), 2 * kSize)),
        receiver(open_host(world, world.add_node(2, model()), 2 * kSize)),
        remote(connect(sender, receiver)),
        counter(*receiver.engine.make_counter()) {
    fill(sender.bytes(), seed);
  }
  void submit_both() {
    for (uint64_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(sender.engine.submit(Write{.source = sender.memory.at(i * kSize),
                                             .target = remote.at(i * kSize),
                                             .size_bytes = kSize,
                                             .imm = counter.key()}));
    }
  }
  bool whole(uint64_t i) const {
    return std::ranges::equal(receiver.bytes(i * kSize, kSize), sender.bytes(i * kSize, kSize));
  }

  sim::World world;
  Host sender, receiver;
  RemoteHost remote;
  Counter counter;
};

TEST(TwoHalfArrivedWrites, MeetNoExpectationWhileAByteIsMissing) {
  for (const uint64_t seed : seeds(20)) {
    SCOPED_TRACE(replay(seed));
    bool whole_when_met = false;
    EventRecorder recorder;
    TwoHalves halves(seed);
    recorder.then = [&](const Event&) { whole_when_met = halves.whole(0) && halves.whole(1); };
    ASSERT_TRUE(halves.counter.expect(2, recorder.notify()));
    const sim::Hook check = halves.world.each_step([&] {
      if (recorder.count() == 0) return;
      // It is still so in every later step.
      EXPECT_TRUE(halves.whole(0) && halves.whole(1));
    });
    halves.submit_both();
    ASSERT_TRUE(halves.world.run_until([&] { return recorder.count() == 1; }, 1s));
    EXPECT_TRUE(whole_when_met);
    EXPECT_EQ(recorder.events[0].value, 2u);
    EXPECT_EQ(halves.receiver.engine.stats().rx.imms, 4u)
        << "the writes were not cut: the test shows nothing";
  }
}

TEST(TwoHalfArrivedWrites, MayShowOneOnTheGaugeWhileNoneIsWhole) {
  uint64_t holes = 0;
  for (const uint64_t seed : seeds(20)) {
    SCOPED_TRACE(replay(seed));
    TwoHalves halves(seed);
    bool hole = false, taken = false;
    const sim::Hook check = halves.world.each_step([&] {
      const uint64_t shown = halves.counter.count();
      const uint64_t whole = (halves.whole(0) ? 1u : 0u) + (halves.whole(1) ? 1u : 0u);
      if (taken) return;
      EXPECT_LE(shown, 2u);
      if (shown == 1 && whole == 0) hole = true;
      // Taking both is the proof that the gauge is not (P6).
      if (halves.counter.try_take(2)) {
        EXPECT_EQ(whole, 2u);
        taken = true;
      }
    });
    halves.submit_both();
    ASSERT_TRUE(halves.world.run_until([&] { return taken; }, 1s));
    EXPECT_EQ(halves.counter.count(), 0u);
    holes += hole ? 1 : 0;
  }
  EXPECT_GT(holes, 0u) << "if this never happens, the simulator no longer mixes writes";
}

TEST(TwoHalfArrivedWrites, AreCountedExactlyWhenTheyAreWhole) {
  for (const uint64_t seed : seeds(8)) {
    SCOPED_TRACE(replay(seed));
    TwoHalves halves(seed);
    const sim::Hook check = halves.world.each_step([&] {
      const uint64_t whole = (halves.whole(0) ? 1u : 0u) + (halves.whole(1) ? 1u : 0u);
      EXPECT_LE(halves.counter.count(), whole)
          << "counts of unsplit writes must be exact at every instant";
    });
    for (uint64_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(
          halves.sender.engine.submit(Write{.source = halves.sender.memory.at(i * TwoHalves::kSize),
                                            .target = halves.remote.at(i * TwoHalves::kSize),
                                            .size_bytes = TwoHalves::kSize,
                                            .imm = halves.counter.key(),
                                            .unsplit = true}));
    }
    ASSERT_TRUE(halves.world.run_until([&] { return halves.counter.count() == 2; }, 1s));
  }
}

// ---- Slices -------------------------------------------------------------------------------------

using sim::Fault;

// Ordered, slice-safe, no exact replay: the count of a shard must not come by another path than
// its bytes.
void slices(bool unsplit, const Fault& fault, uint64_t at) {
  sim::NicModel model = slow_rc();
  model.exact_replay = false;
  Config config = short_timeouts_config();
  config.bulk_slice_bytes = 128 << 10;
  FaultyPair pair(model, 2, 2, 4 << 20, config);
  Counter counter = *pair.b->engine.make_counter();
  bool met = false, right = true;
  EventRecorder counted;
  counted.then = [&](const Event& event) {
    met = event.code == Errc::kOk;
    right = holds(pair.b->bytes(0, 2 << 20), 7);
  };
  ASSERT_TRUE(counter.expect(1, counted.notify(1)));
  fill(pair.a->bytes(0, 2 << 20), 7);
  ASSERT_TRUE(pair.world.at(pair.world.now() + Nanos(at), fault));
  ASSERT_TRUE(pair.a->engine.submit(Write{.source = pair.a->memory.at(0),
                                          .target = pair.remote.at(0),
                                          .size_bytes = 2 << 20,
                                          .imm = counter.key(),
                                          .priority = Priority::kBulk,
                                          .unsplit = unsplit,
                                          .notify = pair.ended.notify(1)}));
  pair.world.run_for(5s);
  const Event* e = pair.ended.find(1);
  ASSERT_NE(e, nullptr);
  EXPECT_FALSE(met && !right) << "counted, and bytes are missing; sender reports "
                              << to_string(e->code) << " " << to_string(e->remote) << " at " << at;
}
TEST(Slices, CountComesByThePathOfItsBytes) {
  for (uint64_t at = 100'000; at < 1'600'000; at += 170'000) {
    for (const uint32_t rail : {0u, 1u}) {
      slices(true, Fault::break_sender(0, 1, rail), at);
      slices(false, Fault::break_sender(0, 1, rail), at);
      slices(true, Fault::break_target(0, 1, rail), at);
      slices(true, Fault::cut(0, 1, rail), at);
    }
  }
}

// P10: only a shard that was counted poisons a counter key. The slices before it carry no
// immediate.
TEST(Slices, CancelBeforeTheLastSlicePoisonsNothing) {
  constexpr uint64_t kLarge = 64u << 20;
  ConnectedPair p(test_config(), kLarge);
  auto counter = p.b.engine.make_counter();
  EventRecorder recorder;
  auto op = p.a.engine.submit(Write{.source = p.a.memory.at(0),
                                    .target = p.remote.at(0),
                                    .size_bytes = kLarge,
                                    .imm = counter->key(),
                                    .priority = Priority::kBulk,
                                    .notify = recorder.notify(1)});
  ASSERT_TRUE(op);
  p.world.run_for(200us);
  ASSERT_TRUE(p.a.engine.cancel(*op));
  ASSERT_TRUE(p.world.run_until([&] { return recorder.count() == 1; }, 10s));
  EXPECT_EQ(recorder.events[0].code, Errc::kCancelled);
  EXPECT_EQ(recorder.events[0].remote, Remote::kNotDelivered);
  ASSERT_TRUE(p.a.engine.submit(Write{.source = p.a.memory.at(0),
                                      .target = p.remote.at(0),
                                      .size_bytes = 8,
                                      .imm = counter->key()}));
  EXPECT_TRUE(counter->wait(1, 1s));
}

// ---- Two networks -------------------------------------------------------------------------------

// Two networks to one peer: a fast one that reaches only host memory, and a slow one that also
// reaches the memory of a GPU (P17).

constexpr uint64_t kSize = 512 << 10;

/// Memory that a simulated NIC takes for that of a GPU.
struct GpuMemory {
  explicit GpuMemory(Engine& engine)
      : bytes(kSize),
        region(*engine.register_memory({.address = bytes.data(),
                                        .size_bytes = bytes.size(),
                                        .kind = MemoryKind::kCuda,
                                        .gpu = 0})) {}
  std::vector<std::byte> bytes;
  MemoryRegion region;
};

class TwoNetworks : public testing::Test {
 protected:
  static std::vector<sim::NodeNetwork> networks(uint32_t fast_rails, uint32_t slow_rails) {
    return {{.name = "fast", .rails = fast_rails, .model = rc_model()},
            {.name = "slow",
             .rails = slow_rails,
             .model = srd_model(),
             .kinds = {MemoryKind::kHost, MemoryKind::kCuda}}};
  }
  static std::pair<std::string, std::string> route(const PeerInfo& info, MemoryKind here,
                                                   MemoryKind there) {
    const auto found = std::ranges::find_if(
        info.routes, [&](const auto& r) { return r.here == here && r.there == there; });
    if (found == info.routes.end()) return {"not listed", ""};
    return {found->network, found->why};
  }
  uint64_t bytes_sent(const std::string& network) const {
    uint64_t sum = 0;
    for (const RailStats& rail : a.engine.rail_stats()) {
      if (rail.network == network) sum += rail.tx.bytes;
    }
    return sum;
  }

  sim::World world;
  Host a = open_host(world, world.add_node(networks(2, 3)), kSize);
  Host b = open_host(world, world.add_node(networks(4, 1)), kSize);
};

TEST_F(TwoNetworks, RoutesFollowTheMemoryAndSayWhy) {
  const RemoteHost remote = connect(a, b);
  const PeerInfo info = *a.engine.peer_info(remote.peer);
  using PeerRoute = std::pair<std::string, std::string>;
  constexpr auto kHost = MemoryKind::kHost, kCuda = MemoryKind::kCuda;
  EXPECT_EQ(route(info, kHost, kHost), PeerRoute("fast", ""));
  EXPECT_EQ(route(info, kHost, kCuda),
            PeerRoute("slow", "fast: cannot access this memory kind there"));
  EXPECT_EQ(route(info, kCuda, kHost),
            PeerRoute("slow", "fast: cannot access this memory kind here"));
  EXPECT_EQ(route(info, kCuda, kCuda),
            PeerRoute("slow", "fast: cannot access this memory kind here"));
  EXPECT_EQ(route(info, kHost, MemoryKind::kRocm).first, "not listed") << "no network has any";
  EXPECT_EQ(info.rails_here, 2u);
  EXPECT_EQ(info.rails_there, 4u);
}

TEST_F(TwoNetworks, CountsAreFinalOnlyIfTheyAreOnEveryRoute) {
  const RemoteHost remote = connect(a, b);
  EXPECT_FALSE(a.engine.peer_info(remote.peer)->count_is_final) << "GPU memory takes the slow one";
  for (const RailStats& rail : a.engine.rail_stats()) {
    EXPECT_EQ(rail.caps.count_is_final, rail.network != "slow") << rail.network;
  }
  EXPECT_THAT(a.engine.dump(), testing::HasSubstr("(counts not final)"));
}

// Each side chooses its own route. What matters to the owner of memory is how the peer writes.
TEST(FinalCounts, DependOnTheNetworkThatThePeerWritesOn) {
  sim::World world;
  const auto node = [&] {
    return world.add_node(
        {{.name = "ordered", .model = rc_model()}, {.name = "unordered", .model = srd_model()}});
  };
  Config prefers_the_other = test_config();
  prefers_the_other.networks = {{.provider = "sim", .name = "unordered"},
                                {.provider = "sim", .name = "ordered"}};
  Host a = open_host(world, node(), kSize);
  Host b = open_host(world, node(), kSize, prefers_the_other);
  const RemoteHost there = connect(a, b);
  await_connected(world, a, there.peer);
  EXPECT_TRUE(a.engine.peer_info(there.peer)->count_is_final);
  EXPECT_TRUE(dumped_count_is_final(a.engine, 0));

  const RemoteHost back = connect(b, a);
  await_connected(world, b, back.peer);
  EXPECT_FALSE(b.engine.peer_info(back.peer)->count_is_final);
  EXPECT_TRUE(delivers(world, b, a, 1));
  EXPECT_FALSE(a.engine.peer_info(there.peer)->count_is_final) << "the peer writes unordered";
  EXPECT_FALSE(dumped_count_is_final(a.engine, 0));
}

TEST(Reroute, ANetworkWithoutRailsIsReplacedAndComesBackAndSubscribersAreNotified) {
  expect_log("a rail went down");
  expect_log("a rail came back");
  expect_log("a route changed");
  expect_log("a path broke");
  const auto run = [](bool reroute) {
    sim::World world;
    const auto node = [&] {
      return world.add_node({{.name = "fast", .rails = 2}, {.name = "slow", .rails = 1}});
    };
    Config config = test_config();
    config.reroute = reroute;
    Host a = open_host(world, node(), 1000, config);
    Host b = open_host(world, node(), 1000, config);
    const RemoteHost remote = connect(a, b);
    await_connected(world, a, remote.peer);
    EventRecorder seen;
    const Subscription subscription = *a.engine.subscribe(seen.notify());
    Batch batch = *a.engine.make_batch();
    const auto write = [&] {
      EXPECT_TRUE(a.engine.submit(Write{
          .source = a.memory.at(0), .target = remote.at(0), .size_bytes = 1000, .batch = batch}));
      const Errc code = a.engine.wait(batch).error().code;
      EXPECT_TRUE(batch.reset());
      return code;
    };
    const auto route = [&] { return a.engine.peer_info(remote.peer)->routes[0]; };
    for (const uint32_t rail : {0, 1}) {
      EXPECT_TRUE(world.at(world.now(), sim::Fault::nic_down(0, rail)));
    }
    world.run_for(1ms);
    if (!reroute) {
      EXPECT_EQ(write(), Errc::kRailLost) << "rerouted without permission";
      EXPECT_EQ(route().network, "fast");
      return;
    }
    EXPECT_EQ(write(), Errc::kOk);
    EXPECT_EQ(route().network, "slow");
    EXPECT_EQ(route().why, "fast: all of its rails are down");
    EXPECT_TRUE(world.at(world.now(), sim::Fault::nic_up(0, 1)));
    world.run_for(1ms);
    EXPECT_EQ(route().network, "fast");
    EXPECT_EQ(write(), Errc::kOk);
    const auto rerouted = [&](const Event& e) {
      return e.kind == EventKind::kPeer && e.code == Errc::kRailLost &&
             static_cast<PeerState>(e.value) == e.previous_state && e.peer == remote.peer;
    };
    EXPECT_EQ(std::ranges::count_if(seen.events, rerouted), 2);
  };
  run(true);
  run(false);
}

TEST_F(TwoNetworks, AWriteTakesTheRouteOfItsMemoryOnBothEnds) {
  GpuMemory gpu_a(a.engine), gpu_b(b.engine);
  const RemoteHost remote = connect(a, b);
  const RemoteRegion to_gpu = *a.engine.import_region(remote.peer, *gpu_b.region.desc());
  Counter counter = *b.engine.make_counter();
  Batch batch = *a.engine.make_batch();
  struct Leg {
    LocalRef source;
    RemoteRef target;
    std::span<const std::byte> arrived;
    const char* network;
  };
  fill(a.bytes(), 1);
  fill(gpu_a.bytes, 2);
  const std::vector<Leg> legs{{a.memory.at(0), remote.at(0), b.bytes(), "fast"},
                              {a.memory.at(0), to_gpu.at(0), gpu_b.bytes, "slow"},
                              {gpu_a.region.at(0), remote.at(0), b.bytes(), "slow"},
                              {gpu_a.region.at(0), to_gpu.at(0), gpu_b.bytes, "slow"}};
  for (const Leg& leg : legs) {
    const uint64_t fast = bytes_sent("fast"), slow = bytes_sent("slow");
    const bool by_fast = leg.network == std::string("fast");
    ASSERT_TRUE(a.engine.submit(Write{.source = leg.source,
                                      .target = leg.target,
                                      .size_bytes = kSize,
                                      .imm = counter.key(),
                                      .batch = batch}));
    ASSERT_TRUE(counter.wait(1));
    ASSERT_TRUE(a.engine.wait(batch));
    EXPECT_TRUE(holds(leg.arrived, leg.source.region == a.memory.id() ? 1 : 2));
    // One write never mixes networks.
    EXPECT_EQ(bytes_sent("fast") - fast, by_fast ? kSize : 0u);
    EXPECT_EQ(bytes_sent("slow") - slow, by_fast ? 0u : kSize);
  }
}

TEST_F(TwoNetworks, AScatterReachesEachTargetByItsOwnRoute) {
  constexpr uint64_t kBlock = 4096;
  GpuMemory gpu(b.engine);
  Host c = open_host(world, world.add_node({{.name = "slow"}}), kSize);  // has no fast one
  const RemoteHost to_b = connect(a, b), to_c = connect(a, c);
  const RemoteRegion to_gpu = *a.engine.import_region(to_b.peer, *gpu.region.desc());
  Counter at_b = *b.engine.make_counter(), at_c = *c.engine.make_counter();
  fill(a.bytes(0, kBlock), 5);
  fill(a.bytes(kBlock, kBlock), 6);
  fill(a.bytes(2 * kBlock, kBlock), 7);
  const std::vector<ScatterTarget> targets{
      {.target = to_b.at(64), .source_offset = 0, .size_bytes = kBlock, .imm = at_b.key()},
      {.target = to_gpu.at(128), .source_offset = kBlock, .size_bytes = kBlock, .imm = at_b.key()},
      {.target = to_c.at(0), .source_offset = 2 * kBlock, .size_bytes = kBlock, .imm = at_c.key()}};
  Batch batch = *a.engine.make_batch();
  ASSERT_TRUE(
      a.engine.submit(Scatter{.source = a.memory.id(), .targets = targets, .batch = batch}));
  ASSERT_TRUE(at_b.wait(2));
  ASSERT_TRUE(at_c.wait(1));
  ASSERT_TRUE(a.engine.wait(batch));
  EXPECT_TRUE(holds(b.bytes(64, kBlock), 5));
  EXPECT_TRUE(holds(std::span(gpu.bytes).subspan(128, kBlock), 6));
  EXPECT_TRUE(holds(c.bytes(0, kBlock), 7));
  EXPECT_EQ(bytes_sent("fast"), kBlock);
  EXPECT_EQ(bytes_sent("slow"), 2 * kBlock);
  EXPECT_EQ(batch.delivered(), 3u);
  EXPECT_EQ(route(*a.engine.peer_info(to_c.peer), MemoryKind::kHost, MemoryKind::kHost).second,
            "fast: the peer does not have it");
}

TEST_F(TwoNetworks, ConnectOptionsRestrictTheRoute) {
  const RemoteHost remote = connect(a, b, {.networks = {"slow"}});
  using PeerRoute = std::pair<std::string, std::string>;
  EXPECT_EQ(route(*a.engine.peer_info(remote.peer), MemoryKind::kHost, MemoryKind::kHost),
            PeerRoute("slow", "fast: excluded by ConnectOptions::networks"));
  Counter counter = *b.engine.make_counter();
  fill(a.bytes(), 3);
  ASSERT_TRUE(a.engine.submit(Write{.source = a.memory.at(0),
                                    .target = remote.at(0),
                                    .size_bytes = kSize,
                                    .imm = counter.key()}));
  ASSERT_TRUE(counter.wait(1));
  EXPECT_TRUE(holds(b.bytes(), 3));
  world.run_for(1ms);
  EXPECT_EQ(bytes_sent("fast"), 0u);
  EXPECT_EQ(bytes_sent("slow"), kSize);
  // The other side chose for itself.
  EXPECT_EQ(
      route(*b.engine.peer_info(b.engine.peers().at(0)), MemoryKind::kHost, MemoryKind::kHost),
      PeerRoute("fast", ""));
}

TEST_F(TwoNetworks, MemoryThatNoAllowedNetworkReachesEndsUnreachable) {
  EventRecorder recorder;
  GpuMemory gpu(b.engine);
  const RemoteHost remote = connect(a, b, {.networks = {"fast"}});
  const PeerInfo info = *a.engine.peer_info(remote.peer);
  EXPECT_EQ(route(info, MemoryKind::kHost, MemoryKind::kCuda).first, "");
  EXPECT_EQ(
      route(info, MemoryKind::kHost, MemoryKind::kCuda).second,
      "fast: cannot access this memory kind there; slow: excluded by ConnectOptions::networks");
  const RemoteRegion to_gpu = *a.engine.import_region(remote.peer, *gpu.region.desc());
  ASSERT_TRUE(a.engine.submit(Write{.source = a.memory.at(0),
                                    .target = to_gpu.at(0),
                                    .size_bytes = 64,
                                    .notify = recorder.notify()}));
  ASSERT_TRUE(world.run_until([&] { return recorder.count() == 1; }, 1s));
  EXPECT_EQ(recorder.events[0].code, Errc::kUnreachable);
  EXPECT_EQ(recorder.events[0].remote, Remote::kNotDelivered);
  EXPECT_EQ(recorder.events[0].parts_failed, 1u);
  EXPECT_EQ(recorder.events[0].peer, remote.peer);
  EXPECT_TRUE(untouched(gpu.bytes));
}

TEST_F(TwoNetworks, AnUnknownNetworkInTheOptionsIsNamed) {
  const auto peer = a.engine.connect(b.engine.address(), {.networks = {"fast", "carrier pigeon"}});
  EXPECT_EQ(peer.error().code, Errc::kUnsupported);
  EXPECT_STREQ(peer.error().what, "options.networks");
  EXPECT_TRUE(a.engine.peers().empty());
}

TEST_F(TwoNetworks, NoNetworkInCommonIsUnreachableAtOnce) {
  Host island = open_host(world, world.add_node({{.name = "elsewhere"}}), kSize);
  const auto peer = a.engine.connect(island.engine.address());
  EXPECT_EQ(peer.error().code, Errc::kUnreachable);
  EXPECT_STREQ(peer.error().what, "address");
  EXPECT_TRUE(a.engine.peers().empty());
  EXPECT_EQ(a.engine.stats().peers, 0u);
  // Other peers are not affected.
  EXPECT_TRUE(a.engine.connect(b.engine.address()));
}

}  // namespace
}  // namespace fabric::test::routing_test

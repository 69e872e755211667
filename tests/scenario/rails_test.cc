#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/shard.h"
#include "harness/host.h"
#include "support/log_guard.h"

// How the work of one engine is spread over its rails: small writes and targets in turn, whatever
// their peers, large ones cut. The times are virtual, of NICs with explicit models.

namespace fabric::test::rails_test {
namespace {

/// 400 Gb/s, 90 ns per work request, 2 us one way, without a cost of posting.
sim::NicModel connectx() {
  sim::NicModel model;
  model.gbit_per_s = 400;
  model.per_op = 90ns;
  model.latency = 2us;
  return model;
}

/// 200 Gb/s, 950 ns per work request, 8 us one way, unordered, without a cost of posting.
sim::NicModel efa() {
  sim::NicModel model;
  model.gbit_per_s = 200;
  model.per_op = 950ns;
  model.latency = 8us;
  model.ordered = false;
  model.slice_safe = false;
  model.exact_replay = false;
  model.fence = FenceKind::kRekey;
  return model;
}

/// One sender and its peers, with open paths on all rails.
struct Star {
  Star(uint32_t peers, uint32_t rails, const sim::NicModel& model, uint64_t bytes,
       const Config& config = test_config())
      : world({.seed = test_seed()}),
        sender(open_host(world, world.add_node(rails, model), bytes, config)),
        batch(*sender.engine.make_batch()) {
    for (uint32_t i = 0; i < peers; ++i) {
      receivers.push_back(open_host(world, world.add_node(rails, model), bytes, config));
      remotes.push_back(connect(sender, receivers.back(), {.warm = true}));
      counters.push_back(*receivers.back().engine.make_counter());
    }
    for (const RemoteHost& remote : remotes) await_connected(world, sender, remote.peer);
    world.run_for(5ms);
    fill(sender.bytes(), 1);
  }

  std::vector<ScatterTarget> targets(uint64_t size) const {
    std::vector<ScatterTarget> all;
    for (size_t i = 0; i < remotes.size(); ++i) {
      all.push_back({.target = remotes[i].at(0), .size_bytes = size, .imm = counters[i].key()});
    }
    return all;
  }
  void scatter(uint64_t size, Priority priority = Priority::kNormal) {
    ASSERT_TRUE(sender.engine.submit(Scatter{.source = sender.memory.id(),
                                             .targets = targets(size),
                                             .priority = priority,
                                             .batch = batch}));
  }
  bool all_counted() const {
    return std::ranges::all_of(counters, [](const Counter& one) { return one.count() == 1; });
  }
  /// Until every receiver has its count.
  Nanos time_of_scatter(uint64_t size) {
    const Nanos begin = world.now();
    scatter(size);
    EXPECT_TRUE(world.run_until([&] { return all_counted(); }, 10ms));
    const Nanos time = world.now() - begin;
    finish(size);
    return time;
  }
  /// Everything has arrived, once; the counts are taken.
  void finish(uint64_t size, uint64_t each = 1) {
    ASSERT_TRUE(sender.engine.wait(batch));
    world.run_for(1ms);
    for (size_t i = 0; i < receivers.size(); ++i) {
      ASSERT_EQ(counters[i].count(), each) << "receiver " << i;
      ASSERT_TRUE(counters[i].wait(each));
      ASSERT_TRUE(std::ranges::equal(receivers[i].bytes(0, size), sender.bytes(0, size)))
          << "receiver " << i;
    }
  }
  std::vector<uint64_t> bytes_per_rail() const {
    std::vector<uint64_t> bytes;
    for (const RailStats& rail : sender.engine.rail_stats()) {
      if (rail.network != "self") bytes.push_back(rail.tx.bytes);
    }
    return bytes;
  }

  sim::World world;
  Host sender;
  std::vector<Host> receivers;
  std::vector<RemoteHost> remotes;
  std::vector<Counter> counters;
  Batch batch;
};

void expect_even(const std::vector<uint64_t>& before, const std::vector<uint64_t>& after) {
  ASSERT_EQ(before.size(), after.size());
  std::vector<uint64_t> bytes;
  std::string text;
  for (size_t i = 0; i < before.size(); ++i) {
    bytes.push_back(after[i] - before[i]);
    text += " " + std::to_string(bytes.back());
  }
  const auto [least, most] = std::ranges::minmax(bytes);
  EXPECT_LE(most, least + least / 10) << "bytes per rail:" << text;
}

// ---- Time ---------------------------------------------------------------------------------------

TEST(Rails, AScatterTo63PeersTakesAllOfEightConnectxRails) {
  Star star(63, 8, connectx(), 8192);
  star.time_of_scatter(8192);  // warm
  const Nanos time = star.time_of_scatter(8192);
  RecordProperty("ns", static_cast<int>(time.count()));
  EXPECT_LE(time, 4200ns) << "one rail needs 12.3 us";
}

TEST(Rails, AScatterTo63PeersTakesAllOfFourEfaRails) {
  Star star(63, 4, efa(), 8192);
  star.time_of_scatter(8192);
  const Nanos time = star.time_of_scatter(8192);
  RecordProperty("ns", static_cast<int>(time.count()));
  EXPECT_LE(time, 28us) << "one rail needs 68 us";
}

struct Preset {
  const char* name;
  sim::NicModel model;
  uint32_t rails;
};

class PresetRails : public testing::TestWithParam<Preset> {};

// The models of the published systems: either the posts of one CPU or the wires of all rails bound
// a scatter, and the engine adds at most a tenth to the larger one.
TEST_P(PresetRails, AScatterTo63PeersIsBoundByPostsOrByAllWires) {
  const auto& [name, model, rails] = GetParam();
  Star star(63, rails, model, 8192);
  star.time_of_scatter(8192);
  const Nanos time = star.time_of_scatter(8192);
  RecordProperty("ns", static_cast<int>(time.count()));
  const auto ns = [](Nanos one) { return static_cast<double>(one.count()); };
  const double posts = 63 * ns(model.per_post);
  const double wires = 63 * std::max(8192 * 8 / model.gbit_per_s, ns(model.per_op)) / rails;
  EXPECT_LE(ns(time), 1.1 * std::max(posts, wires) + ns(model.latency + model.jitter))
      << "posts take " << posts << " ns, wires " << wires << " ns";
}

INSTANTIATE_TEST_SUITE_P(Models, PresetRails,
                         testing::Values(Preset{"connectx7", sim::NicModel::connectx7(), 8},
                                         Preset{"efa", sim::NicModel::efa_200g(), 4}),
                         [](const auto& one) { return std::string(one.param.name); });

// ---- Bytes --------------------------------------------------------------------------------------

class EvenRails : public testing::TestWithParam<uint32_t> {};

TEST_P(EvenRails, WithTheTargetsOfAScatterTo56Peers) {
  Star star(56, GetParam(), connectx(), 8192);
  const auto before = star.bytes_per_rail();
  for (uint32_t i = 0; i < 5; ++i) star.time_of_scatter(8192);
  expect_even(before, star.bytes_per_rail());
}

TEST_P(EvenRails, WithSpansOfSmallWritesToManyPeers) {
  Star star(56, GetParam(), connectx(), 8192);
  const auto before = star.bytes_per_rail();
  std::vector<Write> writes;
  for (size_t i = 0; i < star.remotes.size(); ++i) {
    writes.push_back({.source = star.sender.memory.at(0),
                      .target = star.remotes[i].at(0),
                      .size_bytes = 4096,
                      .imm = star.counters[i].key(),
                      .batch = star.batch});
  }
  for (uint32_t i = 0; i < 5; ++i) ASSERT_EQ(*star.sender.engine.submit(writes), writes.size());
  ASSERT_NO_FATAL_FAILURE(star.finish(4096, 5));
  expect_even(before, star.bytes_per_rail());
}

TEST_P(EvenRails, WithOneSmallWriteToEachOfManyPeersOnNewSessions) {
  Star star(56, GetParam(), connectx(), 8192);
  for (uint32_t i = 0; i < star.remotes.size(); ++i) {
    // Nothing was ever written to these peers: a rotation of their own would be at its beginning.
    ASSERT_TRUE(star.sender.engine.submit(Write{.source = star.sender.memory.at(0),
                                                .target = star.remotes[i].at(0),
                                                .size_bytes = 8192,
                                                .imm = star.counters[i].key(),
                                                .batch = star.batch}));
    ASSERT_TRUE(star.sender.engine.wait(star.batch));
  }
  ASSERT_NO_FATAL_FAILURE(star.finish(8192));
  expect_even(std::vector<uint64_t>(GetParam(), 0), star.bytes_per_rail());
}

// Large and small in alternation, which turns alone would deal to the same rails again and again.
TEST_P(EvenRails, WithSpansOfMixedSizes) {
  for (const uint32_t peers : {1u, 2u, 7u}) {
    SCOPED_TRACE(testing::Message() << peers << " peers");
    Star star(peers, GetParam(), connectx(), 60u << 10);
    const auto before = star.bytes_per_rail();
    constexpr uint32_t kWrites = 64, kSpans = 5;
    std::vector<Write> writes;
    for (uint32_t i = 0; i < kWrites; ++i) {
      writes.push_back({.source = star.sender.memory.at(0),
                        .target = star.remotes[i / 2 % peers].at(0),
                        .size_bytes = i % 2 == 0 ? 60u << 10 : 512,
                        .batch = star.batch});
    }
    for (uint32_t i = 0; i < kSpans; ++i) {
      ASSERT_EQ(*star.sender.engine.submit(writes), kWrites);
      ASSERT_TRUE(star.sender.engine.wait(star.batch));
    }
    expect_even(before, star.bytes_per_rail());
  }
}

TEST_P(EvenRails, WithTargetsOfMixedSizes) {
  for (const auto priority : {Priority::kNormal, Priority::kBulk}) {
    Star star(56, GetParam(), connectx(), 60u << 10);
    const auto before = star.bytes_per_rail();
    auto targets = star.targets(512);
    for (size_t i = 0; i < targets.size(); i += 2) targets[i].size_bytes = 60u << 10;
    for (uint32_t i = 0; i < 6; ++i) {
      ASSERT_TRUE(star.sender.engine.submit(Scatter{.source = star.sender.memory.id(),
                                                    .targets = targets,
                                                    .priority = priority,
                                                    .batch = star.batch}));
      ASSERT_TRUE(star.sender.engine.wait(star.batch));
    }
    expect_even(before, star.bytes_per_rail());
  }
}

INSTANTIATE_TEST_SUITE_P(Rails, EvenRails, testing::Values(2u, 4u, 8u),
                         testing::PrintToStringParamName());

// What a rail carried beyond the others is forgotten once they have carried a little more: small
// targets after it are in need of all rails.
TEST(Rails, AreAllUsedForAScatterAfterAWriteThatOneOfThemCarried) {
  constexpr uint64_t kLarge = 8u << 20, kSmall = 8192;
  Star star(63, 8, connectx(), kLarge);
  star.time_of_scatter(kSmall);
  ASSERT_TRUE(star.sender.engine.submit(Write{.source = star.sender.memory.at(0),
                                              .target = star.remotes[0].at(0),
                                              .size_bytes = kLarge,
                                              .unsplit = true,
                                              .batch = star.batch}));
  ASSERT_TRUE(star.sender.engine.wait(star.batch));
  star.time_of_scatter(kSmall);
  EXPECT_LE(star.time_of_scatter(kSmall), 4800ns) << "seven rails need 4.2 us";
  for (int i = 0; i < 3; ++i) star.time_of_scatter(kSmall);
  EXPECT_LE(star.time_of_scatter(kSmall), 4200ns);
}

// A peer that only one rail reaches must not move the others' turn: with one write to each in
// alternation, all writes to the other peer would take the same rail.
TEST(Rails, TakeTurnsBesideAPeerWithASingleRail) {
  expect_fault_logs();
  sim::World world({.seed = test_seed()});
  Host sender = open_host(world, world.add_node(2, connectx()), 4096);
  Host both = open_host(world, world.add_node(2, connectx()), 4096);
  Host single = open_host(world, world.add_node(2, connectx()), 4096);
  const RemoteHost to_both = connect(sender, both, {.warm = true});
  const RemoteHost to_single = connect(sender, single, {.warm = true});
  await_connected(world, sender, to_both.peer);
  await_connected(world, sender, to_single.peer);
  world.run_for(5ms);
  ASSERT_TRUE(world.at(world.now(), sim::Fault::nic_down(2, 1)));
  world.run_for(50ms);
  Batch batch = *sender.engine.make_batch();
  const auto write = [&](const RemoteHost& to) {
    ASSERT_TRUE(sender.engine.submit(Write{
        .source = sender.memory.at(0), .target = to.at(0), .size_bytes = 4096, .batch = batch}));
  };
  for (uint32_t i = 0; i < 20; ++i) {
    write(to_both);
    write(to_single);
    ASSERT_TRUE(sender.engine.wait(batch));
  }
  const auto stats = sender.engine.rail_stats();
  EXPECT_EQ(stats[0].tx.bytes, 30u * 4096);
  EXPECT_EQ(stats[1].tx.bytes, 10u * 4096);
}

// ---- Targets that are cut -----------------------------------------------------------------------

Config small_stripes() {
  Config config = test_config();
  config.stripe_bytes_min = 256;
  config.stripe_align = 64;
  config.bulk_slice_bytes = 1000;
  return config;
}

class CutTargets : public testing::TestWithParam<bool> {
 protected:
  static sim::NicModel model() { return GetParam() ? connectx() : efa(); }
};

TEST_P(CutTargets, ArriveWholeCountOnceAndCompleteOnceAtEveryLength) {
  Star star(3, 4, model(), 4096, small_stripes());
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{511}, uint64_t{512}, uint64_t{513},
                              uint64_t{767}, uint64_t{768}, uint64_t{1023}, uint64_t{1024},
                              uint64_t{1025}, uint64_t{4095}, uint64_t{4096}}) {
    SCOPED_TRACE(testing::Message() << size << " bytes");
    const core::Cut cut =
        core::cut_write(size, {.shards_max = 4, .stripe_bytes_min = 256, .align = 64});
    fill(star.sender.bytes(), size);
    const uint64_t imms = star.receivers[1].engine.stats().rx.imms;
    const uint64_t delivered = star.batch.delivered();
    ASSERT_NO_FATAL_FAILURE(star.scatter(size));
    ASSERT_NO_FATAL_FAILURE(star.finish(size));
    EXPECT_EQ(star.receivers[1].engine.stats().rx.imms - imms, cut.count);
    EXPECT_EQ(star.batch.delivered() - delivered, 3u) << "each target once, not each shard";
    EXPECT_EQ(star.batch.failed(), 0u);
  }
}

TEST_P(CutTargets, AreNotCutWhenTheScatterIsUnsplit) {
  Star star(3, 4, model(), 4096, small_stripes());
  for (const auto priority : {Priority::kNormal, Priority::kBulk}) {
    const uint64_t imms = star.receivers[1].engine.stats().rx.imms;
    ASSERT_TRUE(star.sender.engine.submit(Scatter{.source = star.sender.memory.id(),
                                                  .targets = star.targets(4096),
                                                  .priority = priority,
                                                  .unsplit = true,
                                                  .batch = star.batch}));
    ASSERT_NO_FATAL_FAILURE(star.finish(4096));
    EXPECT_EQ(star.receivers[1].engine.stats().rx.imms - imms, 1u);
  }
}

// One rail loses packets for a while: the shard of the other completes long before.
TEST_P(CutTargets, CompleteWithTheirLastShard) {
  expect_fault_logs();
  Star star(1, 2, model(), 4096, small_stripes());
  ASSERT_TRUE(star.world.at(star.world.now(), sim::Fault::cut(0, 1, 1)));
  ASSERT_TRUE(star.world.at(star.world.now() + 60us, sim::Fault::heal(0, 1, 1)));
  const sim::Hook check = star.world.each_step([&] {
    if (star.batch.delivered() == 0) return;
    EXPECT_EQ(star.counters[0].count(), 1u) << "reported before it has arrived";
  });
  ASSERT_NO_FATAL_FAILURE(star.scatter(4096));
  ASSERT_TRUE(star.sender.engine.wait(star.batch, 10s));
  EXPECT_EQ(star.batch.delivered(), 1u);
  EXPECT_TRUE(std::ranges::equal(star.receivers[0].bytes(), star.sender.bytes()));
}

TEST_P(CutTargets, UseAllRailsEvenly) {
  Star star(5, 4, model(), 4096, small_stripes());
  const auto before = star.bytes_per_rail();
  for (uint32_t i = 0; i < 4; ++i) {
    ASSERT_NO_FATAL_FAILURE(star.scatter(4096));
    ASSERT_NO_FATAL_FAILURE(star.finish(4096));
  }
  expect_even(before, star.bytes_per_rail());
}

TEST_P(CutTargets, OfABulkScatterAreSliced) {
  Star star(3, 2, model(), 8192, small_stripes());
  const uint64_t before = star.sender.engine.stats().tx.ops;
  ASSERT_NO_FATAL_FAILURE(star.scatter(8001, Priority::kBulk));
  ASSERT_NO_FATAL_FAILURE(star.finish(8001));
  // Without slice_safe an immediate covers one work request only.
  EXPECT_GE(star.sender.engine.stats().tx.ops - before, GetParam() ? 3 * 16u : 3 * 2u);
}

TEST_P(CutTargets, MayBeLargerThanAWorkRequest) {
  sim::NicModel small = model();
  small.write_bytes_max = 1500;
  Star star(2, 1, small, 8192, small_stripes());
  ASSERT_NO_FATAL_FAILURE(star.scatter(8000));
  ASSERT_NO_FATAL_FAILURE(star.finish(8000));
  EXPECT_EQ(star.batch.delivered(), 2u);
}

/// The state after a fault of a scatter with two targets of `size` for each peer: every target
/// completes once, and what is reported as delivered has arrived and counted once.
void expect_each_target_once(Star& star, uint64_t size, bool exact) {
  (void)star.sender.engine.wait(star.batch, 20s);
  ASSERT_EQ(star.batch.pending(), 0u);
  star.world.run_for(10ms);
  const size_t targets = 2 * star.remotes.size();
  ASSERT_EQ(star.batch.delivered() + star.batch.failed(), targets);
  EXPECT_TRUE(!exact || star.batch.delivered() == targets);
  std::vector<Failure> failures(targets);
  failures.resize(star.batch.failures(failures));
  EXPECT_EQ(failures.size(), star.batch.failed());
  for (size_t i = 0; i < star.remotes.size(); ++i) {
    uint64_t failed = 0, unknown = 0;
    for (const Failure& failure : failures) {
      if (failure.peer != star.remotes[i].peer) continue;
      ++failed;
      unknown += failure.remote == Remote::kUnknown;
    }
    if (unknown > 0) continue;
    EXPECT_EQ(star.counters[i].count(), 2 - failed) << "peer " << i;
    EXPECT_TRUE(failed > 0 || std::ranges::equal(star.receivers[i].bytes(0, 2 * size),
                                                 star.sender.bytes(0, 2 * size)))
        << "peer " << i;
  }
}

void scatter_two_each(Star& star, uint64_t size, Priority priority) {
  std::vector<ScatterTarget> targets = star.targets(size);
  for (ScatterTarget second : star.targets(size)) {
    second.target.offset = second.source_offset = size;
    targets.push_back(second);
  }
  ASSERT_TRUE(star.sender.engine.submit(Scatter{.source = star.sender.memory.id(),
                                                .targets = targets,
                                                .priority = priority,
                                                .batch = star.batch}));
}

// A connection breaks at every third event of a scatter whose targets are cut and sliced.
TEST_P(CutTargets, FailOverExactlyAtAnyStep) {
  constexpr uint64_t kSize = 8000;
  const Config config = [] {
    Config one = small_stripes();
    one.default_timeout = 3s;
    one.drain_timeout = 400ms;
    return one;
  }();
  uint64_t steps = 1;
  for (uint64_t step = 0; step < steps; step += 3) {
    SCOPED_TRACE(testing::Message() << "event " << step);
    expect_fault_logs();
    Star star(3, 3, model(), 2 * kSize, config);
    const uint64_t begin = star.world.events();
    const auto fault =
        step % 2 == 0 ? sim::Fault::break_sender(0, 2, 1) : sim::Fault::break_target(0, 2, 1);
    if (GetParam()) {
      ASSERT_TRUE(star.world.at_event(begin + step, fault));
    } else {
      ASSERT_TRUE(star.world.at_event(begin + step, sim::Fault::nic_down(2, 1)));
    }
    ASSERT_NO_FATAL_FAILURE(
        scatter_two_each(star, kSize, step % 4 < 2 ? Priority::kBulk : Priority::kNormal));
    ASSERT_NO_FATAL_FAILURE(expect_each_target_once(star, kSize, GetParam()));
    if (step == 0) steps = std::min<uint64_t>(star.world.events() - begin, 240);
  }
}

TEST_P(CutTargets, FailWithoutTheOthers) {
  expect_fault_logs();
  constexpr uint64_t kSize = 8000;
  Star star(3, 2, model(), 2 * kSize, small_stripes());
  ASSERT_TRUE(star.world.at(star.world.now(), sim::Fault::wrong_rkey(0, 2, 0)));
  // Bulk: most of it is pending when the first write fails.
  ASSERT_NO_FATAL_FAILURE(scatter_two_each(star, kSize, Priority::kBulk));
  EXPECT_FALSE(star.sender.engine.wait(star.batch, 10s));
  EXPECT_EQ(star.batch.delivered(), 5u);
  std::vector<Failure> failures(6);
  ASSERT_EQ(star.batch.failures(failures), 1u);
  EXPECT_EQ(failures[0].peer, star.remotes[1].peer);
  EXPECT_EQ(failures[0].code, Errc::kRemoteAccess);
  star.world.run_for(1ms);
  EXPECT_EQ(star.counters[0].count(), 2u);
  EXPECT_EQ(star.counters[2].count(), 2u);
}

TEST_P(CutTargets, ThatAreNotPostedInTimeFailOnceEach) {
  expect_fault_logs();
  Config config = small_stripes();
  config.drain_timeout = 20ms;
  Star star(3, 2, model(), 4096, config);
  ASSERT_TRUE(star.world.at(star.world.now(), sim::Fault::refuse_posts(0)));
  star.world.run_for(1us);
  ASSERT_TRUE(star.sender.engine.submit(Scatter{.source = star.sender.memory.id(),
                                                .targets = star.targets(4096),
                                                .timeout = 10ms,
                                                .batch = star.batch}));
  EXPECT_FALSE(star.sender.engine.wait(star.batch, 1s));
  EXPECT_EQ(star.batch.failed(), 3u);
  EXPECT_EQ(star.batch.unknown(), 0u);
  EXPECT_EQ(star.batch.pending(), 0u);
  ASSERT_TRUE(star.world.at(star.world.now(), sim::Fault::take_posts(0)));
  star.world.run_for(10ms);
  for (const Counter& counter : star.counters) EXPECT_EQ(counter.count(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Rails, CutTargets, testing::Bool(), [](const auto& test_case) {
  return test_case.param ? "Ordered" : "Unordered";
});

// ---- Targets that are posted together -----------------------------------------------------------

constexpr uint64_t kSmall = 200;
constexpr uint32_t kEach = 6;

/// kEach small targets for each peer, which are in flight in shared records.
void scatter_small(Star& star) {
  std::vector<ScatterTarget> targets;
  for (uint32_t i = 0; i < kEach; ++i) {
    for (ScatterTarget target : star.targets(kSmall)) {
      target.target.offset = target.source_offset = i * kSmall;
      targets.push_back(target);
    }
  }
  ASSERT_TRUE(star.sender.engine.submit(
      Scatter{.source = star.sender.memory.id(), .targets = targets, .batch = star.batch}));
}

TEST(SmallTargets, OfABrokenPathArriveOnceAtAnyStep) {
  uint64_t steps = 1;
  for (uint64_t step = 0; step < steps; step += 2) {
    SCOPED_TRACE(testing::Message() << "event " << step);
    expect_fault_logs();
    Star star(3, 2, connectx(), kEach * kSmall);
    const uint64_t begin = star.world.events();
    const auto fault =
        step % 4 == 0 ? sim::Fault::break_sender(0, 2, 0) : sim::Fault::break_target(0, 2, 0);
    ASSERT_TRUE(star.world.at_event(begin + step, fault));
    ASSERT_NO_FATAL_FAILURE(scatter_small(star));
    ASSERT_NO_FATAL_FAILURE(star.finish(kEach * kSmall, kEach));
    EXPECT_EQ(star.batch.delivered(), 3 * kEach);
    if (step == 0) steps = std::min<uint64_t>(star.world.events() - begin, 160);
  }
}

// A region is reported to the peer as quiet only when no target of it is in flight any more.
TEST(SmallTargets, InFlightDelayTheProofOfADeregistration) {
  Star star(2, 1, connectx(), kEach * kSmall);
  Host& receiver = star.receivers[0];
  ASSERT_TRUE(star.world.at(star.world.now(), sim::Fault::receiver_not_ready(1)));
  star.world.run_for(1us);
  ASSERT_NO_FATAL_FAILURE(scatter_small(star));
  star.world.run_for(10us);
  Batch quiet = *receiver.engine.make_batch();
  ASSERT_TRUE(receiver.engine.submit(Deregister{.region = receiver.memory.id(), .batch = quiet}));
  star.world.run_for(1ms);
  EXPECT_EQ(quiet.pending(), 1u) << "its writes are in flight";
  ASSERT_TRUE(star.world.at(star.world.now(), sim::Fault::receiver_ready(1)));
  ASSERT_TRUE(receiver.engine.wait(quiet, 1s));
  ASSERT_TRUE(star.sender.engine.wait(star.batch, 1s));
  EXPECT_EQ(star.batch.delivered(), 2 * kEach);
}

// ---- stripe_bytes_min ---------------------------------------------------------------------------

/// From which size on a write is cut over two rails.
struct StripeCase {
  const char* name;
  bool ordered;
  uint64_t of_engine, of_network;
  uint64_t stripe;
};

class StripeBytesMin : public testing::TestWithParam<StripeCase> {};

TEST_P(StripeBytesMin, OfTheNetworkElseOfTheEngineElseByItsOrder) {
  const StripeCase& one = GetParam();
  Config config = test_config();
  config.stripe_bytes_min = one.of_engine;
  config.stripe_align = 1;
  config.networks = {{.provider = "sim", .stripe_bytes_min = one.of_network}};
  Star star(1, 2, one.ordered ? connectx() : efa(), 1 << 20, config);
  const auto immediates_of = [&](uint64_t size) {
    const uint64_t before = star.receivers[0].engine.stats().rx.imms;
    EXPECT_TRUE(star.sender.engine.submit(Write{.source = star.sender.memory.at(0),
                                                .target = star.remotes[0].at(0),
                                                .size_bytes = size,
                                                .imm = star.counters[0].key(),
                                                .batch = star.batch}));
    star.finish(size);
    return star.receivers[0].engine.stats().rx.imms - before;
  };
  EXPECT_EQ(immediates_of(2 * one.stripe - 1), 1u);
  EXPECT_EQ(immediates_of(2 * one.stripe), 2u);
}

INSTANTIATE_TEST_SUITE_P(Rails, StripeBytesMin,
                         testing::Values(StripeCase{"OrderedDefault", true, 0, 0, 64 << 10},
                                         StripeCase{"UnorderedDefault", false, 0, 0, 32 << 10},
                                         StripeCase{"OrderedOfTheEngine", true, 5000, 0, 5000},
                                         StripeCase{"UnorderedOfTheEngine", false, 5000, 0, 5000},
                                         StripeCase{"OrderedOfTheNetwork", true, 5000, 300, 300},
                                         StripeCase{"UnorderedOfTheNetwork", false, 0, 100'000,
                                                    100'000}),
                         [](const auto& test_case) { return test_case.param.name; });

}  // namespace
}  // namespace fabric::test::rails_test

#include <algorithm>
#include <optional>

#include "harness/host.h"
#include "support/log_guard.h"

// Back-pressure while things fail (P18): a dead, a slow and a flooding peer, and a good one that
// must not notice. Nothing grows with time.

namespace fabric::test {
namespace {

using sim::Fault;

constexpr uint64_t kHostBytes = 256 << 10, kPage = 4096;
constexpr uint32_t kRounds = 60;

sim::NicModel back_pressure_nic() {
  sim::NicModel model = sim::NicModel::connectx7();
  model.gbit_per_s = 40;
  return model;
}

Config back_pressure_config() {
  Config config = test_config();
  config.peer_timeout = 1s;
  config.lost_timeout = 60s;  // nobody is given up while the story lasts
  config.drain_timeout = 1s;
  return config;
}

/// One engine with a good peer and three others.
class PressureSetup {
 public:
  explicit PressureSetup(const Config& config = back_pressure_config()) : world({.seed = test_seed()}) {
    for (const char* part :
         {"a path broke", "a path could not be opened", "an operation does not drain"}) {
      expect_log(part);
    }
    for (uint32_t i = 0; i < 5; ++i) {
      world.add_node(2, back_pressure_nic());
      Config others = back_pressure_config();
      if (i == kFlooding) others.ops_max = 512;
      hosts.push_back(open_host(world, i, kHostBytes, i == 0 ? config : others));
    }
    for (uint32_t i = 1; i < 5; ++i) {
      remotes.push_back(connect(hosts[0], hosts[i]));
      await_connected(world, hosts[0], remotes.back().peer);
    }
    fill(hosts[0].bytes(), 3);
  }
  Engine& engine() { return hosts[0].engine; }
  const RemoteHost& good() const { return remotes[0]; }
  const RemoteHost& dead() const { return remotes[1]; }
  const RemoteHost& slow() const { return remotes[2]; }
  const RemoteHost& flooding() const { return remotes[3]; }
  static constexpr uint32_t kDead = 2, kSlow = 3, kFlooding = 4;  // nodes

  Result<OpId> write(const RemoteHost& remote, uint64_t size, Notify notify = {}, CounterKey key = {}) {
    return engine().submit(Write{.source = hosts[0].memory.at(0),
                                 .target = remote.at(0),
                                 .size_bytes = size,
                                 .imm = key,
                                 .timeout = 20s,
                                 .notify = notify});
  }
  /// How long so many writes to the good peer take, one after the other.
  Nanos good_work() {
    Counter counter = *hosts[1].engine.make_counter();
    const Nanos began = world.now();
    for (uint32_t i = 0; i < kRounds; ++i) {
      EXPECT_TRUE(write(good(), 64 << 10, {}, counter.key()));
      EXPECT_TRUE(counter.wait(1, 20s)) << engine().dump();
    }
    EXPECT_TRUE(holds(hosts[1].bytes(0, 64 << 10), 3));
    return world.now() - began;
  }
  void happens(const Fault& fault) { ASSERT_TRUE(world.at(world.now(), fault)); }

  EventRecorder ended, seen, heard;
  sim::World world;
  std::vector<Host> hosts;
  std::vector<RemoteHost> remotes;
};

TEST(BackPressure, OfFaultyPeersDoesNotDelayAGoodPeer) {
  PressureSetup alone;
  const Nanos undisturbed = alone.good_work();
  PressureSetup setup;
  setup.happens(Fault::cut(0, PressureSetup::kDead));
  setup.happens(Fault::slow(PressureSetup::kSlow, 100ms));
  setup.happens(Fault::receiver_not_ready(PressureSetup::kSlow));
  const Subscription listener = *setup.engine().listen(1, setup.heard.notify());
  Host& flooder = setup.hosts[PressureSetup::kFlooding];
  const RemoteHost back = connect(flooder, setup.hosts[0]);
  Counter slow = *setup.hosts[PressureSetup::kSlow].engine.make_counter();
  for (uint32_t i = 0; i < 500; ++i) {
    ASSERT_TRUE(setup.write(setup.dead(), kPage, setup.ended.notify(1)));
    ASSERT_TRUE(setup.write(setup.slow(), kPage, setup.ended.notify(2), slow.key()));
  }
  // As much as its own engine takes, of everything, all the time.
  uint64_t name = 1000, flooded = 0;
  std::vector<CounterKey> out(1);
  const EachStep flood(setup.world, [&] {
    ++name;
    flooded += flooder.engine.submit(Resolve{.peer = back.peer, .names = {&name, 1}, .out = out})
                   .has_value();
    flooded += flooder.engine.submit(Send{.peer = back.peer, .channel = 1}).has_value();
    flooded +=
        flooder.engine
            .submit(Write{
                .source = flooder.memory.at(0), .target = back.at(kHostBytes / 2), .size_bytes = 64})
            .has_value();
  });
  const Nanos disturbed = setup.good_work();
  EXPECT_LE(disturbed, 3 * undisturbed) << "alone " << undisturbed.count();
  EXPECT_GT(flooded, 1000u) << "the test needs a flood";
  EXPECT_LT(setup.ended.count(), 1000u) << "and operations that do not end";
  setup.happens(Fault::heal(0, PressureSetup::kDead));
  setup.happens(Fault::slow(PressureSetup::kSlow, 0s));
  setup.happens(Fault::receiver_ready(PressureSetup::kSlow));
  EXPECT_TRUE(setup.world.run_until([&] { return setup.ended.count() == 1000; }, 30s))
      << setup.engine().dump();
}

TEST(BackPressure, AFloodOfNamesAndMessagesDoesNotGrowTheEngine) {
  Config config = back_pressure_config();
  config.names_per_peer_max = 100;
  config.message_buffers = 64;
  PressureSetup setup(config);
  Engine& engine = setup.engine();
  Inbox unread = *engine.make_inbox(16);
  const Subscription listener = *engine.listen(1, Notify::inbox(unread));
  Host& flooder = setup.hosts[PressureSetup::kFlooding];
  const RemoteHost back = connect(flooder, setup.hosts[0]);
  std::vector<CounterKey> out(1);
  uint64_t name = 0, ended = 0;
  const auto flood = [&](Nanos time) {
    const Nanos until = setup.world.now() + time;
    while (setup.world.now() < until) {
      ++name;
      const bool took =
          flooder.engine
              .submit(Resolve{.peer = back.peer, .names = {&name, 1}, .out = out, .timeout = 100ms})
              .has_value();
      ended += took;
      (void)flooder.engine.submit(Send{.peer = back.peer, .channel = 1, .timeout = 100ms});
      setup.world.run_for(1ms);
    }
  };
  flood(1s);
  const EngineStats before = engine.stats();
  const size_t dump = engine.dump_json().size();
  flood(10s);
  const EngineStats after = engine.stats();
  EXPECT_EQ(before.counters, 100u) << "its quota";
  EXPECT_EQ(after.counters, 100u);
  EXPECT_EQ(after.ops_in_flight, before.ops_in_flight);
  EXPECT_EQ(after.peers, before.peers);
  EXPECT_LE(engine.dump_json().size(), dump + 200) << "something piles up\n" << engine.dump();
  EXPECT_GT(ended, 1000u);
  std::vector<Event> events(64);
  EXPECT_EQ(unread.poll(events), 16u) << "as much as there is room for, and nothing is lost";
}

TEST(BackPressure, ADeadPeerFillsTheQueueAndRoomIsReportedOnceItsOperationsEnd) {
  constexpr uint32_t kOps = 64;
  Config config = back_pressure_config();
  config.ops_max = kOps;
  PressureSetup setup(config);
  const Subscription subscription = *setup.engine().subscribe(setup.seen.notify());
  setup.happens(Fault::cut(0, PressureSetup::kDead));
  uint32_t taken = 0;
  Errc refused = Errc::kOk;
  for (; taken < 2 * kOps; ++taken) {
    const auto op = setup.write(setup.dead(), kPage, setup.ended.notify());
    refused = op.error().code;
    if (!op) break;
  }
  EXPECT_EQ(taken, kOps / 8 * 7) << "the share of one peer";
  EXPECT_EQ(refused, Errc::kExhausted);
  EXPECT_GT(setup.good_work(), Nanos(0)) << "nobody else is kept waiting";
  const auto room = [&] { return setup.seen.count(EventKind::kRoom) == 1; };
  ASSERT_TRUE(setup.world.run_until(room, 25s)) << setup.engine().dump();
  EXPECT_TRUE(setup.write(setup.good(), kPage));
  ASSERT_TRUE(setup.world.run_until([&] { return setup.ended.count() == taken; }, 25s));
  for (const Event& event : setup.ended.events) EXPECT_NE(event.code, Errc::kOk);
  EXPECT_GT(setup.good_work(), Nanos(0));
  EXPECT_EQ(setup.seen.count(EventKind::kRoom), 1u);
}

TEST(BackPressure, ABreakFindsWorkThatTheRailHasNotTaken) {
  PressureSetup setup;
  Counter counter = *setup.hosts[1].engine.make_counter();
  ASSERT_TRUE(setup.write(setup.good(), 200 << 10, {}, counter.key()));
  ASSERT_TRUE(counter.wait(1, 5s));
  setup.happens(Fault::refuse_posts(0));
  ASSERT_TRUE(setup.write(setup.good(), 200 << 10, {}, counter.key()));
  setup.world.run_for(1ms);
  setup.happens(Fault::break_sender(0, 1, Fault::kAllRails));
  setup.world.run_for(1ms);
  setup.happens(Fault::take_posts(0));
  EXPECT_TRUE(counter.wait(1, 5s)) << setup.engine().dump();
  EXPECT_TRUE(holds(setup.hosts[1].bytes(0, 200 << 10), 3));
  setup.world.run_for(1s);
  EXPECT_EQ(counter.count(), 0u);
}

}  // namespace
}  // namespace fabric::test

#include <algorithm>
#include <optional>

#include "harness/host.h"
#include "support/log_guard.h"

// Back-pressure while things fail (P18): a dead, a slow and a flooding peer, and a good one that
// must not notice. Nothing grows with time.

namespace fabric::test {
namespace {

using sim::Fault;

constexpr uint64_t kSize = 256 << 10, kPage = 4096;
constexpr uint32_t kRounds = 60;

sim::NicModel slow_nic() {
  sim::NicModel model = sim::NicModel::connectx7();
  model.gbit_per_s = 40;
  return model;
}

Config quick() {
  Config config = story_config();
  config.peer_timeout = 1s;
  config.lost_timeout = 60s;  // nobody is given up while the story lasts
  config.drain_timeout = 1s;
  return config;
}

/// One engine with a good peer and three others.
class Stage {
 public:
  explicit Stage(const Config& config = quick()) : world({.seed = test_seed()}) {
    for (const char* part :
         {"a path broke", "a path could not be opened", "an operation does not drain"}) {
      expect_log(part);
    }
    for (uint32_t i = 0; i < 5; ++i) {
      world.add_node(2, slow_nic());
      Config others = quick();
      if (i == kFlooding) others.ops_max = 512;
      hosts.push_back(open_host(world, i, kSize, i == 0 ? config : others));
    }
    for (uint32_t i = 1; i < 5; ++i) {
      ways.push_back(connect(hosts[0], hosts[i]));
      await_connected(world, hosts[0], ways.back().peer);
    }
    fill(hosts[0].bytes(), 3);
  }
  Engine& engine() { return hosts[0].engine; }
  const Way& good() const { return ways[0]; }
  const Way& dead() const { return ways[1]; }
  const Way& slow() const { return ways[2]; }
  const Way& flooding() const { return ways[3]; }
  static constexpr uint32_t kDead = 2, kSlow = 3, kFlooding = 4;  // nodes

  Result<OpId> write(const Way& way, uint64_t size, Notify notify = {}, CounterKey key = {}) {
    return engine().submit(Write{.source = hosts[0].memory.at(0),
                                 .target = way.at(0),
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

  Witness ended, seen, heard;
  sim::World world;
  std::vector<Host> hosts;
  std::vector<Way> ways;
};

TEST(Hardship, OfOthersDoesNotDelayAGoodPeer) {
  Stage alone;
  const Nanos undisturbed = alone.good_work();
  Stage stage;
  stage.happens(Fault::cut(0, Stage::kDead));
  stage.happens(Fault::slow(Stage::kSlow, 100ms));
  stage.happens(Fault::receiver_not_ready(Stage::kSlow));
  const Subscription listener = *stage.engine().listen(1, stage.heard.notify());
  Host& flooder = stage.hosts[Stage::kFlooding];
  const Way back = connect(flooder, stage.hosts[0]);
  Counter slow = *stage.hosts[Stage::kSlow].engine.make_counter();
  for (uint32_t i = 0; i < 500; ++i) {
    ASSERT_TRUE(stage.write(stage.dead(), kPage, stage.ended.notify(1)));
    ASSERT_TRUE(stage.write(stage.slow(), kPage, stage.ended.notify(2), slow.key()));
  }
  // As much as its own engine takes, of everything, all the time.
  uint64_t name = 1000, flooded = 0;
  std::vector<CounterKey> out(1);
  const EachStep flood(stage.world, [&] {
    ++name;
    flooded += flooder.engine.submit(Resolve{.peer = back.peer, .names = {&name, 1}, .out = out})
                   .has_value();
    flooded += flooder.engine.submit(Send{.peer = back.peer, .channel = 1}).has_value();
    flooded +=
        flooder.engine
            .submit(Write{
                .source = flooder.memory.at(0), .target = back.at(kSize / 2), .size_bytes = 64})
            .has_value();
  });
  const Nanos disturbed = stage.good_work();
  EXPECT_LE(disturbed, 3 * undisturbed) << "alone " << undisturbed.count();
  EXPECT_GT(flooded, 1000u) << "the story needs a flood";
  EXPECT_LT(stage.ended.count(), 1000u) << "and operations that do not end";
  stage.happens(Fault::heal(0, Stage::kDead));
  stage.happens(Fault::slow(Stage::kSlow, 0s));
  stage.happens(Fault::receiver_ready(Stage::kSlow));
  EXPECT_TRUE(stage.world.run_until([&] { return stage.ended.count() == 1000; }, 30s))
      << stage.engine().dump();
}

TEST(Hardship, AFloodOfNamesAndMessagesDoesNotGrowTheEngine) {
  Config config = quick();
  config.names_per_peer_max = 100;
  config.message_buffers = 64;
  Stage stage(config);
  Engine& engine = stage.engine();
  Inbox nobody_reads = *engine.make_inbox(16);
  const Subscription listener = *engine.listen(1, Notify::inbox(nobody_reads));
  Host& flooder = stage.hosts[Stage::kFlooding];
  const Way back = connect(flooder, stage.hosts[0]);
  std::vector<CounterKey> out(1);
  uint64_t name = 0, ended = 0;
  const auto flood = [&](Nanos time) {
    const Nanos until = stage.world.now() + time;
    while (stage.world.now() < until) {
      ++name;
      const bool took =
          flooder.engine
              .submit(Resolve{.peer = back.peer, .names = {&name, 1}, .out = out, .timeout = 100ms})
              .has_value();
      ended += took;
      (void)flooder.engine.submit(Send{.peer = back.peer, .channel = 1, .timeout = 100ms});
      stage.world.run_for(1ms);
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
  EXPECT_EQ(nobody_reads.poll(events), 16u) << "as much as there is room for, and nothing is lost";
}

TEST(Hardship, ADeadPeerFillsTheQueueAndRoomIsToldOnceItsOperationsEnd) {
  constexpr uint32_t kOps = 64;
  Config config = quick();
  config.ops_max = kOps;
  Stage stage(config);
  const Subscription subscription = *stage.engine().subscribe(stage.seen.notify());
  stage.happens(Fault::cut(0, Stage::kDead));
  uint32_t taken = 0;
  Errc refused = Errc::kOk;
  for (; taken < 2 * kOps; ++taken) {
    const auto op = stage.write(stage.dead(), kPage, stage.ended.notify());
    refused = op.error().code;
    if (!op) break;
  }
  EXPECT_EQ(taken, kOps / 8 * 7) << "the share of one peer";
  EXPECT_EQ(refused, Errc::kExhausted);
  EXPECT_GT(stage.good_work(), Nanos(0)) << "nobody else is kept waiting";
  const auto room = [&] { return stage.seen.count(EventKind::kRoom) == 1; };
  ASSERT_TRUE(stage.world.run_until(room, 25s)) << stage.engine().dump();
  EXPECT_TRUE(stage.write(stage.good(), kPage));
  ASSERT_TRUE(stage.world.run_until([&] { return stage.ended.count() == taken; }, 25s));
  for (const Event& event : stage.ended.events) EXPECT_NE(event.code, Errc::kOk);
  EXPECT_GT(stage.good_work(), Nanos(0));
  EXPECT_EQ(stage.seen.count(EventKind::kRoom), 1u);
}

TEST(Hardship, ABreakFindsWorkThatTheRailHasNotTaken) {
  Stage stage;
  Counter counter = *stage.hosts[1].engine.make_counter();
  ASSERT_TRUE(stage.write(stage.good(), 200 << 10, {}, counter.key()));
  ASSERT_TRUE(counter.wait(1, 5s));
  stage.happens(Fault::refuse_posts(0));
  ASSERT_TRUE(stage.write(stage.good(), 200 << 10, {}, counter.key()));
  stage.world.run_for(1ms);
  stage.happens(Fault::break_sender(0, 1, Fault::kAllRails));
  stage.world.run_for(1ms);
  stage.happens(Fault::take_posts(0));
  EXPECT_TRUE(counter.wait(1, 5s)) << stage.engine().dump();
  EXPECT_TRUE(holds(stage.hosts[1].bytes(0, 200 << 10), 3));
  stage.world.run_for(1s);
  EXPECT_EQ(counter.count(), 0u);
}

}  // namespace
}  // namespace fabric::test

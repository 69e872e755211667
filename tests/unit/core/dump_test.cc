#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fabric/fabric.h>
#include <fabric/sim.h>

#include "support/log_guard.h"

namespace fabric::dump_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::Pair;

class Dump : public testing::Test {
 protected:
  static constexpr uint64_t kSize = 4 << 20;

  Engine open() {
    Config config;
    config.log_sink = test::test_log_sink();
    sim::NicModel model;
    model.gbit_per_s = 8;  // 4 MiB take 2.1 ms over two of them
    return *world.open(world.add_node(2, model), config);
  }
  static std::string name(PeerId id) {
    return std::to_string(id.slot) + "." + std::to_string(id.generation);
  }
  json look() const { return json::parse(a.dump_json()); }
  json the_op() const {
    const json all = look();
    EXPECT_EQ(all["ops"].size(), 1u) << all.dump(2);
    return all["ops"].empty() ? json::object() : all["ops"][0];
  }

  sim::World world;
  Engine a = open(), b = open();
  MemoryRegion source = *a.allocate({.size_bytes = kSize});
  MemoryRegion target = *b.allocate({.size_bytes = kSize});
};

TEST_F(Dump, OfAnIdleEngineNamesItsNetworksAndRails) {
  const json all = look();
  EXPECT_EQ(all["state"], "open");
  EXPECT_EQ(all["version"], version());
  EXPECT_EQ(all["ops_in_flight"], 0);
  EXPECT_TRUE(all["ops"].empty());
  EXPECT_TRUE(all["peers"].empty());
  ASSERT_EQ(all["networks"].size(), 2u) << "the simulated one and the engine's own address";
  EXPECT_EQ(all["networks"][0]["name"], "sim");
  ASSERT_EQ(all["networks"][0]["rails"].size(), 2u);
  EXPECT_EQ(all["networks"][0]["rails"][1]["device"], "node0/sim1");
  EXPECT_EQ(all["networks"][0]["rails"][1]["up"], true);
  EXPECT_THAT(a.dump(), HasSubstr("node0/sim1 up (0 posted)"));
}

TEST_F(Dump, RepeatsWhatARailSaysOfItself) {
  const json all = look();
  EXPECT_EQ(all["networks"][0]["rails"][1]["facts"]["fence"], "Local");
  EXPECT_EQ(all["networks"][0]["rails"][1]["facts"]["replay"], "exact");
  EXPECT_EQ(all["networks"][1]["rails"][0]["facts"], json::object())
      << "the self rail has no facts";
  EXPECT_THAT(a.dump(),
              HasSubstr("  node0/sim1: counts=final fence=Local memory=any order=posting"));
  const auto rails = a.rail_stats();
  ASSERT_EQ(rails.size(), 3u);
  EXPECT_THAT(rails[1].facts, Contains(Pair("fence", "Local")));
  EXPECT_TRUE(rails[2].facts.empty());
}

TEST_F(Dump, HasTheCapabilitiesOfEachRail) {
  const auto rails = a.rail_stats();
  ASSERT_EQ(rails.size(), 3u);
  EXPECT_TRUE(rails[0].caps.exact_replay);
  EXPECT_EQ(rails[0].caps.fence, FenceKind::kLocal);
  EXPECT_GT(rails[0].caps.queue_depth, 0u);
  EXPECT_TRUE(rails[2].caps.cpu_copy) << "the engine's own address is served by a copy";
  EXPECT_FALSE(rails[0].caps.cpu_copy);
}

TEST(Providers, AreWhatANetworkMayAskFor) {
  const std::vector<std::string> all = providers();
  EXPECT_THAT(all, Contains("sim"));
  EXPECT_THAT(all, Not(Contains("self"))) << "a configuration cannot name it";
  for (const std::string& provider : all) {
    const auto engine = Engine::open({.networks = {{.provider = provider}}});
    // It may not work on this machine; then it says so itself.
    EXPECT_STRNE(engine.error().what, "networks.provider") << provider << " is not in this build";
  }
}

TEST_F(Dump, ShowsWhatAWriteWaitsForAndForHowLong) {
  const PeerId peer = *a.connect(b.address());
  const RemoteRegion region = *a.import_region(peer, *target.desc());
  const OpId op = *a.submit(
      Write{.source = source.at(0), .target = region.at(0), .size_bytes = kSize, .timeout = 10s});
  world.run_for(1us);
  // The peer is not there yet.
  json shown = the_op();
  EXPECT_EQ(shown["kind"], "write");
  EXPECT_EQ(shown["state"], "running");
  EXPECT_EQ(shown["waits_for"], json::array({name(peer)}));
  EXPECT_EQ(shown["queued"], 1);
  EXPECT_EQ(shown["posted"], 0);
  EXPECT_EQ(shown["age_ns"], 1'000);
  EXPECT_EQ(shown["remaining_ns"], 9'999'999'000);
  EXPECT_EQ(look()["peers"][0]["state"], "Connecting");

  world.run_for(1ms);
  // On its way, over both rails.
  shown = the_op();
  EXPECT_EQ(shown["op"], std::to_string(op.slot) + "." + std::to_string(op.generation));
  EXPECT_EQ(shown["queued"], 0);
  EXPECT_EQ(shown["posted"], 2);
  EXPECT_EQ(shown["parts_completed"], 0);
  EXPECT_EQ(shown["waits_for"], json::array({name(peer)}));
  EXPECT_EQ(shown["age_ns"], 1'001'000);
  EXPECT_EQ(look()["peers"][0]["state"], "Connected");
  EXPECT_EQ(look()["peers"][0]["route"], "sim");
  EXPECT_EQ(look()["networks"][0]["rails"][0]["posted"], 1);
  EXPECT_EQ(look()["ops_in_flight"], 1);
  const std::string text = a.dump();
  EXPECT_THAT(text, HasSubstr("1 operations in flight"));
  EXPECT_THAT(text, HasSubstr("write running for 1001 us, 9998 ms left"));
  EXPECT_THAT(text, HasSubstr("2 posted, 0 queued, waits for " + name(peer)));

  ASSERT_TRUE(world.run_until([&] { return a.stats().ops_in_flight == 0; }, 1s));
  EXPECT_TRUE(look()["ops"].empty());
}

TEST_F(Dump, ShowsEveryKindOfOperationByName) {
  const PeerId peer = *a.connect(b.address());
  Counter counter = *a.make_counter();
  const uint64_t name_asked = 1;
  CounterKey key;
  ASSERT_TRUE(a.submit(Send{.peer = peer, .channel = 1}));
  ASSERT_TRUE(a.submit(Timer{.after = 1s}));
  ASSERT_TRUE(a.submit(Resolve{.peer = peer, .names = {&name_asked, 1}, .out = {&key, 1}}));
  ASSERT_TRUE(counter.expect(1, {}, Timeout::forever()));
  world.run_for(1ns);
  std::map<std::string, json> ops;
  const json all = look();
  for (const json& op : all["ops"]) ops[op["kind"]] = op;
  EXPECT_EQ(ops.size(), 4u) << all.dump(2);
  EXPECT_EQ(ops["send"]["waits_for"], json::array({name(peer)}));
  EXPECT_EQ(ops["resolve"]["waits_for"], json::array({name(peer)}));
  EXPECT_TRUE(ops["timer"]["waits_for"].empty());
  EXPECT_EQ(ops["timer"]["remaining_ns"], 999'999'999);
  EXPECT_EQ(ops["expect"]["remaining_ns"], -1) << "the wait has no deadline";
  EXPECT_THAT(a.dump(), HasSubstr("no deadline"));
}

TEST_F(Dump, ShowsAnOperationThatDrains) {
  const PeerId peer = *a.connect(b.address());
  const RemoteRegion region = *a.import_region(peer, *target.desc());
  const OpId op =
      *a.submit(Write{.source = source.at(0), .target = region.at(0), .size_bytes = kSize});
  world.run_for(1ms);
  ASSERT_TRUE(a.cancel(op));
  EXPECT_EQ(the_op()["state"], "draining");
  ASSERT_TRUE(world.run_until([&] { return a.stats().ops_in_flight == 0; }, 1s));
}

// A call from outside a turn takes the time itself: the last turn may be long ago.
TEST_F(Dump, ShowsSinceWhenAPeerIsWhatItIs) {
  world.run_for(20ms);
  const PeerId peer = *a.connect(b.address());
  EXPECT_EQ(look()["peers"][0]["in_state_ns"], 0);
  world.run_for(50ms);
  ASSERT_EQ(look()["peers"][0]["state"], "Connected");
  ASSERT_TRUE(a.disconnect(peer));
  EXPECT_EQ(look()["peers"][0]["state"], "Lost");
  EXPECT_EQ(look()["peers"][0]["in_state_ns"], 0);
  world.run_for(3ms);
  EXPECT_EQ(look()["peers"][0]["in_state_ns"], 3'000'000);
}

TEST_F(Dump, OfAClosedOrMovedEngineSaysSo) {
  (void)*a.connect(b.address());
  ASSERT_TRUE(a.close());
  EXPECT_EQ(look()["state"], "closed");
  EXPECT_THAT(a.dump(), HasSubstr("closed"));
  const Engine moved = std::move(a);
  EXPECT_EQ(look()["state"], "closed");
  EXPECT_THAT(a.dump(), HasSubstr("closed"));
}

}  // namespace
}  // namespace fabric::dump_test

#include <algorithm>

#include "harness/host.h"
#include "support/log_guard.h"

// Two networks to one peer: a fast one that reaches only host memory, and a slow one that also
// reaches the memory of a GPU (P17).

namespace fabric::test {
namespace {

constexpr uint64_t kSize = 512 << 10;

/// Memory of a GPU, as far as a simulated NIC can tell.
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
    return {{.name = "fast", .rails = fast_rails, .model = sim::NicModel::connectx7()},
            {.name = "slow",
             .rails = slow_rails,
             .model = sim::NicModel::efa_200g(),
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
  using Route = std::pair<std::string, std::string>;
  constexpr auto kHost = MemoryKind::kHost, kCuda = MemoryKind::kCuda;
  EXPECT_EQ(route(info, kHost, kHost), Route("fast", ""));
  EXPECT_EQ(route(info, kHost, kCuda), Route("slow", "fast: cannot access this memory kind there"));
  EXPECT_EQ(route(info, kCuda, kHost), Route("slow", "fast: cannot access this memory kind here"));
  EXPECT_EQ(route(info, kCuda, kCuda), Route("slow", "fast: cannot access this memory kind here"));
  EXPECT_EQ(route(info, kHost, MemoryKind::kRocm).first, "not listed") << "nobody has any";
  EXPECT_EQ(info.rails_here, 2u);
  EXPECT_EQ(info.rails_there, 4u);
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
      EXPECT_EQ(write(), Errc::kRailLost) << "not without leave";
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
    const auto reroute = [&](const Event& e) {
      return e.kind == EventKind::kPeer && e.code == Errc::kRailLost && e.value == e.previous &&
             e.peer == remote.peer;
    };
    EXPECT_EQ(std::ranges::count_if(seen.events, reroute), 2);
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
  using Route = std::pair<std::string, std::string>;
  EXPECT_EQ(route(*a.engine.peer_info(remote.peer), MemoryKind::kHost, MemoryKind::kHost),
            Route("slow", "fast: excluded by ConnectOptions::networks"));
  Counter counter = *b.engine.make_counter();
  fill(a.bytes(), 3);
  ASSERT_TRUE(a.engine.submit(Write{
      .source = a.memory.at(0), .target = remote.at(0), .size_bytes = kSize, .imm = counter.key()}));
  ASSERT_TRUE(counter.wait(1));
  EXPECT_TRUE(holds(b.bytes(), 3));
  world.run_for(1ms);
  EXPECT_EQ(bytes_sent("fast"), 0u);
  EXPECT_EQ(bytes_sent("slow"), kSize);
  // The other side chose for itself.
  EXPECT_EQ(
      route(*b.engine.peer_info(b.engine.peers().at(0)), MemoryKind::kHost, MemoryKind::kHost),
      Route("fast", ""));
}

TEST_F(TwoNetworks, MemoryThatNoAllowedNetworkReachesEndsUnreachable) {
  EventRecorder recorder;
  GpuMemory gpu(b.engine);
  const RemoteHost remote = connect(a, b, {.networks = {"fast"}});
  const PeerInfo info = *a.engine.peer_info(remote.peer);
  EXPECT_EQ(route(info, MemoryKind::kHost, MemoryKind::kCuda).first, "");
  EXPECT_EQ(route(info, MemoryKind::kHost, MemoryKind::kCuda).second,
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
  // Somebody else is not disturbed.
  EXPECT_TRUE(a.engine.connect(b.engine.address()));
}

}  // namespace
}  // namespace fabric::test

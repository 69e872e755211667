#include <poll.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "unit/providers/sim_harness.h"

// The same network in real time, with a thread per engine that sleeps on its descriptor.

namespace fabric::sim::sim_realtime_test {
namespace {

using Kind = RailEvent::Kind;

class RealClock final : public Driver {
 public:
  int64_t now_ns() const noexcept override {
    return std::chrono::steady_clock::now().time_since_epoch().count();
  }
  uint64_t entropy() noexcept override { return 4; }
  uint64_t incarnation() noexcept override { return 1; }
  Result<void> attach(Progress&, const AttachOptions&) override { return {}; }
  void detach(Progress&) noexcept override {}
  void wake(Progress&) noexcept override {}
  void wake_callbacks(Progress&) noexcept override {}
  bool threaded() const noexcept override { return true; }
  bool drive(const std::function<bool()>&, int64_t) override { return false; }
  void offload(std::function<void()>, uint32_t) override {}
};

class SimRealtime : public testing::Test {
 protected:
  std::unique_ptr<OpenNetwork> open(uint32_t node) {
    Network spec;
    spec.provider = "sim";
    spec.devices = {world_token(*world, node)};
    OpenContext context;
    context.driver = &clock;
    auto opened = fabric::sim::open(spec, context);
    EXPECT_TRUE(opened);
    return *std::move(opened);
  }

  /// The next event, asleep until it comes. Nothing within 20 s means that a wake-up was lost.
  static bool await(OpenNetwork& network, Kind kind, RailEvent& event) {
    while (true) {
      while (network.rail(0).poll({&event, 1}) == 1) {
        if (event.kind == kind) return true;
      }
      if (!network.arm()) continue;
      pollfd waiting{network.wait_fd(), POLLIN, 0};
      if (::poll(&waiting, 1, 20'000) != 1) return false;
    }
  }

  RealClock clock;
  std::shared_ptr<World::Impl> world = make_world({.seed = 2, .realtime = true});
};

TEST_F(SimRealtime, SleepersAreWokenForEveryWriteAndCompletion) {
  NicModel model;
  model.jitter = Nanos(20'000);
  NodeNetwork network;
  network.model = model;
  auto a = open(world->wire.add_node({network}));
  auto b = open(world->wire.add_node({network}));
  const Path there(*a, *b), back(*b, *a);
  const Block source_a(a->rail(0), 10'000, 1), source_b(b->rail(0), 10'000, 2);
  const Block target_a(a->rail(0), 10'000), target_b(b->rail(0), 10'000);
  constexpr uint32_t kRounds = 500;

  std::atomic<bool> echoed{false};
  std::thread other([&] {
    bool ok = true;
    RailEvent event;
    for (uint32_t i = 0; ok && i < kRounds; ++i) {
      ok = await(*b, Kind::kImm, event) && event.imm == i && target_b.bytes == source_a.bytes;
      const WriteOp op = back.counted(source_b, target_a, 10'000, i, i);
      ok = ok && b->rail(0).post({&op, 1}) == 1;
    }
    echoed.store(ok, std::memory_order_relaxed);  // read after join()
  });
  bool ok = true;
  RailEvent event;
  for (uint32_t i = 0; ok && i < kRounds; ++i) {
    const WriteOp op = there.counted(source_a, target_b, 10'000, i, i);
    ok = a->rail(0).post({&op, 1}) == 1 && await(*a, Kind::kImm, event) && event.imm == i;
  }
  other.join();
  EXPECT_TRUE(ok);
  EXPECT_TRUE(echoed.load(std::memory_order_relaxed));
  EXPECT_EQ(target_a.bytes, source_b.bytes);
}

TEST_F(SimRealtime, SenderAloneIsWokenForItsCompletion) {
  auto a = open(world->wire.add_node({NodeNetwork{}}));
  auto b = open(world->wire.add_node({NodeNetwork{}}));  // not polled
  const Path path(*a, *b);
  const Block source(a->rail(0), 1 << 20, 1), target(b->rail(0), 1 << 20);
  for (uint32_t i = 0; i < 20; ++i) {
    path.post(path.counted(source, target, 1 << 20, i, i));
    RailEvent event;
    ASSERT_TRUE(await(*a, Kind::kCompletion, event));
    EXPECT_EQ(event.code, Errc::kOk);
  }
  EXPECT_EQ(target.bytes, source.bytes);
  EXPECT_EQ(drain(b->rail(0)).size(), 20u);
}

TEST_F(SimRealtime, IdleNetworkLetsItsEngineSleep) {
  auto a = open(world->wire.add_node({NodeNetwork{}}));
  EXPECT_TRUE(a->arm());
  pollfd waiting{a->wait_fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&waiting, 1, 50), 0);
}

// A later arrival must not delay the timer of an engine that sleeps for an earlier one.
TEST_F(SimRealtime, DatagramWakesASleeper) {
  NodeNetwork slow;
  slow.model.latency = Nanos(3'000'000);
  auto a = open(world->wire.add_node({slow}));
  auto b = open(world->wire.add_node({slow}));
  const auto link = a->open_link(b->address());
  const std::byte hello[4] = {};
  EXPECT_TRUE(b->arm());
  EXPECT_TRUE(a->send(*link, hello));
  pollfd waiting{b->wait_fd(), POLLIN, 0};
  std::byte buffer[16];
  EXPECT_EQ(b->receive(buffer), 0u) << "the datagram arrived too early";
  EXPECT_TRUE(b->arm());
  ASSERT_EQ(::poll(&waiting, 1, 20'000), 1);
  EXPECT_EQ(b->receive(buffer), 4u);
}

}  // namespace
}  // namespace fabric::sim::sim_realtime_test

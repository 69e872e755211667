#include "threads/engine_harness.h"

// Rails that come and go, paths that break, under engines with threads of their own: counts stay
// exact while several threads submit.

namespace fabric::test::engine_failover_test {
namespace {

constexpr uint32_t kSubmitters = 3;
constexpr uint32_t kWrites = 400;  // of each
constexpr uint64_t kBytes = 2048;

using sim::Fault;

class RailsThatFlap : public testing::Test {
 protected:
  RailsThatFlap() {
    for (const char* part : {"a path broke", "a rail went down", "a rail came back"}) {
      expect_log(part);
    }
  }

  /// What one thread does: its writes, one slot each, with a few in flight at a time.
  void submit(uint32_t number) {
    Batch batch = *cluster[0].make_batch();
    for (uint32_t i = 0; i < kWrites; ++i) {
      const uint64_t at = (uint64_t{number} * kWrites + i) * kBytes;
      const Write write{.source = {source.region().id(), at},
                        .target = region.at(at),
                        .size_bytes = kBytes,
                        .imm = counter.key(),
                        .batch = batch};
      while (!cluster[0].submit(write)) std::this_thread::yield();
      if (i % 16 != 15) continue;
      EXPECT_TRUE(cluster[0].wait(batch, 25s)) << cluster[0].dump();
    }
    EXPECT_TRUE(cluster[0].wait(batch, 25s)) << cluster[0].dump();
    EXPECT_EQ(batch.delivered(), kWrites);
    running.fetch_sub(1);
  }

  void inject_fault(uint32_t round) {
    sim::World& world = cluster.world();
    const uint32_t rail = round % 2;
    const Nanos now = world.now();
    switch (round / 2 % 3) {
      case 0:
        EXPECT_TRUE(world.at(now, Fault::nic_down(round % 4 / 2, rail)));
        EXPECT_TRUE(world.at(now + 2ms, Fault::nic_up(round % 4 / 2, rail)));
        break;
      case 1:
        EXPECT_TRUE(world.at(now, Fault::break_sender(0, 1, rail)));
        break;
      default:
        EXPECT_TRUE(world.at(now, Fault::break_target(0, 1, rail)));
        EXPECT_TRUE(world.at(now + 100us, Fault::break_sender(0, 1, rail)));
        break;
    }
  }

  Cluster cluster{2};
  Area source{cluster[0], kSubmitters* kWrites* kBytes};
  Area target{cluster[1], kSubmitters* kWrites* kBytes};
  PeerId peer = cluster.connect(0, 1);
  RemoteRegion region = target.seen_by(cluster[0], peer);
  Counter counter = *cluster[1].make_counter();
  std::atomic<uint32_t> running{kSubmitters};
};

TEST_F(RailsThatFlap, EveryWriteIsCountedOnce) {
  Rng rng(test_seed());
  for (std::byte& byte : source.bytes) byte = static_cast<std::byte>(rng.next());
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kSubmitters; ++i) threads.emplace_back([this, i] { submit(i); });
  for (uint32_t round = 0; running.load() > 0; ++round) {
    inject_fault(round);
    std::this_thread::sleep_for(5ms);
  }
  for (std::thread& thread : threads) thread.join();
  constexpr uint64_t kAll = uint64_t{kSubmitters} * kWrites;
  EXPECT_TRUE(counter.wait(kAll, 25s));
  EXPECT_EQ(counter.count(), 0u) << "counted more than once";
  EXPECT_TRUE(source.bytes == target.bytes);
}

}  // namespace
}  // namespace fabric::test::engine_failover_test

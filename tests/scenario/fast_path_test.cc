#include <array>
#include <cstring>
#include <vector>

#include "harness/host.h"
#include "support/log_guard.h"

// Small writes take a short way through the core, along what was found out by the write before
// them. What was found out must not outlive the paths that it speaks of.

namespace fabric::test {
namespace {

using sim::Fault;

constexpr uint32_t kTo = 1;

void expect_breaks() {
  for (const char* part : {"a path broke", "a rail went down", "a path could not be opened"}) {
    expect_log(part);
  }
}

// The sender has one rail. When the rail of the target that it writes to is gone, its path leads
// to the other one, which knows the same memory under another key.
TEST(FastPath, UsesTheRkeyOfTheRailThatThePathLeadsTo) {
  expect_breaks();
  sim::World world({.seed = seeds(1)[0]});
  Host from = open_host(world, world.add_node(1, sim::NicModel::connectx7()), 4096);
  Host to = open_host(world, world.add_node(2, sim::NicModel::connectx7()), 4096);
  const RemoteHost remote = connect(from, to);
  Counter counter = *to.engine.make_counter();
  const auto write = [&](uint64_t seed) {
    fill(from.bytes(), seed);
    Batch batch = *from.engine.make_batch();
    ASSERT_TRUE(from.engine.submit(Write{.source = from.memory.at(0),
                                         .target = remote.at(0),
                                         .size_bytes = 4096,
                                         .imm = counter.key(),
                                         .batch = batch}));
    ASSERT_TRUE(from.engine.wait(batch));
    EXPECT_EQ(batch.delivered(), 1u) << "write " << seed;
    ASSERT_TRUE(counter.wait(1));
    EXPECT_TRUE(holds(to.bytes(), seed));
  };
  write(1);
  write(2);  // by the short way: the path is open
  ASSERT_TRUE(world.at(0ns, Fault::nic_down(kTo, 0)));
  for (uint64_t i = 3; i < 8; ++i) write(i);
  EXPECT_GT(to.engine.rail_stats()[1].rx.imms, 0u) << "the other rail was never used";
}

// A break ends several trains of one path at once: all that was in them arrives, and counts once.
TEST(FastPath, PostBatchesOfABrokenPathArriveOnce) {
  expect_breaks();
  constexpr uint32_t kWrites = 256;
  for (const Nanos when : {1us, 2us, 3us, 5us, 8us}) {
    sim::World world({.seed = seeds(1)[0]});
    Host from = open_host(world, world.add_node(1, sim::NicModel::connectx7()), 1 << 16);
    Host to = open_host(world, world.add_node(1, sim::NicModel::connectx7()), 1 << 16);
    const RemoteHost remote = connect(from, to);
    Counter counter = *to.engine.make_counter();
    Batch batch = *from.engine.make_batch();
    std::vector<Write> writes;
    for (uint32_t i = 0; i < kWrites; ++i) {
      writes.push_back({.source = from.memory.at(i * 64),
                        .target = remote.at(i * 64),
                        .size_bytes = 64,
                        .imm = counter.key(),
                        .batch = batch});
    }
    fill(from.bytes(), 7);
    ASSERT_TRUE(from.engine.submit(writes[0]));
    ASSERT_TRUE(from.engine.wait(batch));  // the path is open, and not one piece was ever made
    ASSERT_EQ(*from.engine.submit(std::span(writes).subspan(1)), kWrites - 1);
    ASSERT_TRUE(world.at(world.now() + when, Fault::break_sender(0, kTo, 0)));
    ASSERT_TRUE(from.engine.wait(batch, 10s)) << when.count() << " ns";
    EXPECT_EQ(batch.delivered(), kWrites);
    ASSERT_TRUE(counter.wait(kWrites));
    EXPECT_EQ(counter.count(), 0u) << when.count() << " ns";
    EXPECT_EQ(std::memcmp(from.bytes().data(), to.bytes().data(), kWrites * 64), 0);
  }
}

// What travels together has one timer, which is that of its first deadline.
TEST(FastPath, WatchesTheEarliestDeadlineOfAPostBatch) {
  expect_breaks();
  expect_log("an operation does not drain");
  sim::World world({.seed = seeds(1)[0]});
  Config config;
  config.drain_timeout = 20ms;
  Host from = open_host(world, world.add_node(1, sim::NicModel::connectx7()), 4096, config);
  Host to = open_host(world, world.add_node(1, sim::NicModel::connectx7()), 4096, config);
  const RemoteHost remote = connect(from, to);
  Counter counter = *to.engine.make_counter();
  const auto write = [&](Batch& batch, Timeout timeout) {
    return Write{.source = from.memory.at(0),
                 .target = remote.at(0),
                 .size_bytes = 64,
                 .imm = counter.key(),
                 .timeout = timeout,
                 .batch = batch};
  };
  Batch first = *from.engine.make_batch(), hasty = *from.engine.make_batch();
  ASSERT_TRUE(from.engine.submit(write(first, 1s)));
  ASSERT_TRUE(from.engine.wait(first));
  // The NIC takes what it is given, and nobody takes it from there.
  ASSERT_TRUE(world.at(world.now(), Fault::receiver_not_ready(kTo)));
  const std::array<Write, 3> together{write(first, 30s), write(hasty, 10ms), write(first, 30s)};
  ASSERT_EQ(*from.engine.submit(together), 3u);
  const auto begin = world.now();
  EXPECT_FALSE(from.engine.wait(hasty, 10s));
  std::array<Failure, 2> failed;
  ASSERT_EQ(hasty.failures(failed), 1u);
  EXPECT_EQ(failed[0].code, Errc::kTimeout);
  EXPECT_LE(world.now() - begin, 10ms + config.drain_timeout + 1ms);
  EXPECT_EQ(hasty.delivered(), 0u);
  ASSERT_TRUE(world.at(world.now(), Fault::receiver_ready(kTo)));
  ASSERT_TRUE(from.engine.wait(first, 40s));
  EXPECT_EQ(first.delivered(), 3u) << "innocents in the same train";
}

}  // namespace
}  // namespace fabric::test

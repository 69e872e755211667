#include <array>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "harness/host.h"
#include "support/log_guard.h"

// The fast path reuses the route that an earlier write has cached. The cache must not outlive the
// paths that it names.

namespace fabric::test::fast_path_test {
namespace {

using sim::Fault;

constexpr uint32_t kTo = 1;

void expect_breaks() {
  for (const char* part : {"a path broke", "a rail went down", "a path could not be opened"}) {
    expect_log(part);
  }
}

// The sender has one rail. When the rail of the target that it writes to is down, its path leads
// to the other rail, which has another rkey for the same memory.
TEST(FastPath, UsesTheRkeyOfTheRailThatThePathLeadsTo) {
  expect_breaks();
  sim::World world({.seed = seeds(1)[0]});
  Host from = open_host(world, world.add_node(1, rc_model()), 4096);
  Host to = open_host(world, world.add_node(2, rc_model()), 4096);
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
  write(2);  // on the fast path: the connection is open
  ASSERT_TRUE(world.at(0ns, Fault::nic_down(kTo, 0)));
  for (uint64_t i = 3; i < 8; ++i) write(i);
  EXPECT_GT(to.engine.rail_stats()[1].rx.imms, 0u) << "the other rail was never used";
}

// A break hits several post batches of one path at once: all of their writes arrive, and count
// once.
TEST(FastPath, PostBatchesOfABrokenPathArriveOnce) {
  expect_breaks();
  constexpr uint32_t kWrites = 256;
  for (const Nanos when : {1us, 2us, 3us, 5us, 8us}) {
    sim::World world({.seed = seeds(1)[0]});
    Host from = open_host(world, world.add_node(1, rc_model()), 1 << 16);
    Host to = open_host(world, world.add_node(1, rc_model()), 1 << 16);
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
    ASSERT_TRUE(
        from.engine.wait(batch));  // the path is open, and every write so far took the fast path
    ASSERT_EQ(*from.engine.submit(std::span(writes).subspan(1)), kWrites - 1);
    ASSERT_TRUE(world.at(world.now() + when, Fault::break_sender(0, kTo, 0)));
    ASSERT_TRUE(from.engine.wait(batch, 10s)) << when.count() << " ns";
    EXPECT_EQ(batch.delivered(), kWrites);
    ASSERT_TRUE(counter.wait(kWrites));
    EXPECT_EQ(counter.count(), 0u) << when.count() << " ns";
    EXPECT_EQ(std::memcmp(from.bytes().data(), to.bytes().data(), kWrites * 64), 0);
  }
}

// A post batch has one timer, set to its earliest deadline.
TEST(FastPath, WatchesTheEarliestDeadlineOfAPostBatch) {
  expect_breaks();
  expect_log("an operation does not drain");
  sim::World world({.seed = seeds(1)[0]});
  Config config;
  config.drain_timeout = 20ms;
  Host from = open_host(world, world.add_node(1, rc_model()), 4096, config);
  Host to = open_host(world, world.add_node(1, rc_model()), 4096, config);
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
  // The sender's NIC takes the writes, and the receiver takes no immediates.
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
  EXPECT_EQ(first.delivered(), 3u) << "the other writes of the same post batch";
}

// ---- Signals ------------------------------------------------------------------------------------

// So many that the list of one is longer than any unit in which lists are kept.
TEST(Signals, SubmittedTogetherKeepTheirListsApart) {
  constexpr uint32_t kPeers = 9, kSignals = 3;
  sim::World world({.seed = test_seed()});
  Host sender = open_host(world, world.add_node(), 64);
  std::vector<Host> receivers;
  std::vector<PeerId> peers;
  for (uint32_t i = 0; i < kPeers; ++i) {
    receivers.push_back(open_host(world, world.add_node(), 64));
    peers.push_back(connect(sender, receivers.back()).peer);
  }
  for (const PeerId peer : peers) await_connected(world, sender, peer);
  const PeerGroup group = *sender.engine.make_group(peers);
  std::array<std::vector<Counter>, kSignals> counters;
  Batch batch = *sender.engine.make_batch();
  for (auto& of_signal : counters) {
    std::vector<CounterKey> keys;
    for (Host& receiver : receivers) {
      of_signal.push_back(*receiver.engine.make_counter());
      keys.push_back(of_signal.back().key());
    }
    ASSERT_TRUE(sender.engine.submit(Signal{.group = group, .keys = keys, .batch = batch}));
  }
  ASSERT_TRUE(sender.engine.wait(batch));
  EXPECT_EQ(batch.delivered(), kPeers * kSignals);
  world.run_for(1ms);
  for (const auto& of_signal : counters) {
    for (const Counter& counter : of_signal) EXPECT_EQ(counter.count(), 1u);
  }
}

}  // namespace
}  // namespace fabric::test::fast_path_test

#include "harness/write_auditor.h"
#include "support/log_guard.h"

// A rail in doubt is asked until it answers, and is used again once it does.

namespace fabric::test {
namespace {

using sim::Fault;

constexpr uint64_t kProbeBytes = 64 << 10, kProbePage = 4096;

struct ProbePair {
  explicit ProbePair(const sim::NicModel& nic) : model(nic) {
    expect_fault_logs();
    await_connected(world, a, remote.peer);
    world.run_for(5ms);
  }
  Host open() { return open_host(world, world.add_node(2, model), kProbeBytes, short_timeouts_config()); }
  void happens(const Fault& fault) { ASSERT_TRUE(world.at(world.now(), fault)); }
  /// Two on each rail.
  void write_four(uint64_t tag) {
    for (uint64_t i = 0; i < 4; ++i) {
      ASSERT_TRUE(a.engine.submit(Write{.source = a.memory.at(i * kProbePage),
                                        .target = remote.at(i * kProbePage),
                                        .size_bytes = kProbePage,
                                        .notify = ended.notify(tag + i)}));
    }
  }
  Traffic rail(uint32_t index) const { return a.engine.rail_stats().at(index).tx; }

  EventRecorder ended;
  sim::NicModel model;
  sim::World world{sim::WorldOptions{.seed = test_seed()}};
  Host a = open(), b = open();
  RemoteHost remote = connect(a, b, {.warm = true});
};

// Every probe takes half a second to fail; the rests between them double up to one second. Without
// growing rests there would be 39 of them.
TEST(Probing, OfARailThatStaysCutGetsRarer) {
  ProbePair pair(slow_srd());
  pair.happens(Fault::cut(0, 1, 0));
  pair.write_four(0);
  pair.world.run_for(20s);
  EXPECT_EQ(pair.ended.count(), 4u);
  EXPECT_GE(pair.rail(0).failed, 10u) << "it is asked all the time";
  EXPECT_LE(pair.rail(0).failed, 25u);

  pair.happens(Fault::heal(0, 1, 0));
  pair.world.run_for(2s);
  const uint64_t bytes = pair.rail(0).bytes;
  pair.write_four(4);
  pair.world.run_for(1ms);
  EXPECT_EQ(pair.rail(0).bytes, bytes + 2 * kProbePage) << "it has its share again";
  EXPECT_EQ(pair.ended.count(), 8u);
}

// With one rail gone on both hosts the other one is all there is. When that breaks once, the next
// try takes the peer's rail that is down and is refused; the one after that must take the other.
TEST(Probing, ARefusalIsOneTryAndTheNextTakesAnotherRailOfThePeer) {
  ProbePair pair(sim::NicModel::connectx7());
  for (const uint32_t node : {0u, 1u}) pair.happens(Fault::nic_down(node, 1));
  pair.world.run_for(5ms);
  pair.happens(Fault::break_sender(0, 1, 0));
  pair.world.run_for(5ms);
  pair.write_four(0);
  pair.world.run_for(2s);
  EXPECT_EQ(pair.ended.count(), 4u) << pair.a.engine.dump();
  EXPECT_EQ(pair.a.engine.stats().tx.failed, 0u);
}

}  // namespace
}  // namespace fabric::test

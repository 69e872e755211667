#include "harness/write_auditor.h"
#include "support/log_guard.h"

// What a break leaves behind waits for the word of its target, and only for that one's.

namespace fabric::test {
namespace {

using sim::Fault;

constexpr uint64_t kBreakBytes = 1 << 20;

/// One sender and two receivers. Whoever is stopped still answers by its second NIC.
struct BreakSetup {
  BreakSetup() {
    expect_fault_logs();
    await_connected(world, a, to_b.peer);
    await_connected(world, a, to_c.peer);
    world.run_for(5ms);
    fill(a.bytes(), 7);
  }
  void happens(const Fault& fault) { ASSERT_TRUE(world.at(world.now(), fault)); }
  void write(const RemoteHost& remote, CounterKey key, uint64_t tag) {
    ASSERT_TRUE(a.engine.submit(Write{.source = a.memory.at(0),
                                      .target = remote.at(0),
                                      .size_bytes = kBreakBytes,
                                      .imm = key,
                                      .timeout = 20s,
                                      .notify = seen.notify(tag)}));
  }

  Host open() { return open_host(world, world.add_node(2, slow_rc()), kBreakBytes, short_timeouts_config()); }

  EventRecorder seen;
  sim::World world{sim::WorldOptions{.seed = test_seed()}};
  Host a = open(), b = open(), c = open();
  RemoteHost to_b = connect(a, b, {.warm = true}), to_c = connect(a, c, {.warm = true});
};

TEST(Failover, TheLossOfAPeerCompletesWhatIsInDoubtWithItAndNothingElse) {
  BreakSetup setup;
  Counter at_b = *setup.b.engine.make_counter(), at_c = *setup.c.engine.make_counter();
  setup.happens(Fault::stop(1));
  setup.happens(Fault::stop(2));
  setup.write(setup.to_b, at_b.key(), 1);
  setup.write(setup.to_c, at_c.key(), 2);
  setup.world.run_for(300us);
  setup.happens(Fault::break_sender(0, 1, 0));
  setup.happens(Fault::break_sender(0, 2, 0));
  setup.world.run_for(100ms);
  ASSERT_EQ(setup.seen.count(), 0u) << "nobody has said yet what it took";

  setup.happens(Fault::crash(1));
  const Nanos died = setup.world.now();
  ASSERT_TRUE(setup.world.run_until([&] { return setup.seen.count() > 0; }, 10s));
  EXPECT_EQ(setup.seen.events[0].tag, 1u);
  EXPECT_EQ(setup.seen.events[0].code, Errc::kPeerLost);
  EXPECT_LE(setup.world.now(), died + short_timeouts_config().lost_timeout + 1ms);
  EXPECT_EQ(setup.seen.count(), 1u) << "the other is still asked";

  setup.happens(Fault::resume(2));
  ASSERT_TRUE(setup.world.run_until([&] { return setup.seen.count() > 1; }, 1s));
  EXPECT_EQ(setup.seen.find(2)->code, Errc::kOk);
  EXPECT_EQ(at_c.count(), 1u);
  EXPECT_TRUE(holds(setup.c.bytes(), 7));
}

// The target's word may be the last thing that is missing: nothing else happens afterwards that
// would make the sender look once more.
TEST(ClosedName, IsProvedAsSoonAsTheTargetHasReported) {
  constexpr Nanos kLate = 100ms;
  BreakSetup setup;
  const uint64_t name = 5;
  Counter counter = *setup.b.engine.named_counter(name);
  CounterKey key;
  ASSERT_TRUE(setup.a.engine.resolve(setup.to_b.peer, {&name, 1}, {&key, 1}));
  setup.happens(Fault::late_proof(1, kLate));
  setup.write(setup.to_b, key, 1);
  setup.world.run_for(300us);
  setup.happens(Fault::break_sender(0, 1, 0));
  setup.world.run_for(10ms);
  ASSERT_EQ(setup.seen.count(), 0u) << "the target is still closing its end";
  const Nanos asked = setup.world.now();
  const auto quiescence = counter.close();
  ASSERT_TRUE(quiescence);
  EXPECT_EQ(*quiescence, Quiescence::kProved);
  EXPECT_LE(setup.world.now(), asked + kLate);
}

}  // namespace
}  // namespace fabric::test

#include <algorithm>

#include "harness/write_auditor.h"
#include "support/log_guard.h"

// Closing an engine whose peers do not answer, at every step of what it was doing (P1, P2): within
// the drain bound and a moment, with every operation reported once.

namespace fabric::test {
namespace {

using sim::Fault;

constexpr uint64_t kSize = 1 << 20;
constexpr uint64_t kStride = 13;    // run the test at every n-th network event
constexpr uint32_t kA = 0, kB = 1;  // nodes
constexpr Nanos kMoment = 250ms;    // goodbyes that nobody hears, and the tear-down

class CloseInTime : public testing::Test {
 protected:
  struct CloseSetup {
    explicit CloseSetup(const sim::NicModel& model)
        : world(sim::WorldOptions{.seed = test_seed()}),
          a(open_host(world, world.add_node(2, model), kSize, short_timeouts_config())),
          b(open_host(world, world.add_node(2, model), kSize, short_timeouts_config())),
          c(open_host(world, world.add_node(2, model), kSize, short_timeouts_config())),
          to_b{&b, connect(a, b)},
          to_c{&c, connect(a, c)},
          auditor(a, test_seed()) {
      await_connected(world, a, to_b.remote.peer);
      await_connected(world, a, to_c.remote.peer);
    }
    void submit() {
      auditor.write(to_b, 150'000);
      auditor.pages(to_b, 20, 4096);
      auditor.write(to_c, 50'000);
      auditor.write(to_b, 40'000, {.priority = Priority::kBulk, .unsplit = true});
      const auto channel = a.engine.submit(Send{.peer = to_b.remote.peer, .notify = seen.notify(1)});
      const auto fence = a.engine.submit(Resolve{
          .peer = to_b.remote.peer, .names = {&name, 1}, .out = {&key, 1}, .notify = seen.notify(2)});
      ASSERT_TRUE(channel && fence);
    }

    uint64_t name = 3;
    CounterKey key;
    EventRecorder seen;
    sim::World world;
    Host a, b, c;
    WriteAuditor::Target to_b, to_c;
    WriteAuditor auditor;
  };

  /// The faults come after an event, and close() some time after them.
  static void run_with(const std::vector<Fault>& faults, Nanos after, const std::vector<Fault>& repair,
                   const sim::NicModel& model = slow_rc()) {
    expect_fault_logs();
    uint64_t begin = 0, end = 0;
    {
      CloseSetup trio(model);
      begin = trio.world.events();
      trio.submit();
      ASSERT_TRUE(trio.world.run_until([&] { return trio.auditor.all_completed(); }, 10s));
      end = trio.world.events();
    }
    for (uint64_t at = begin; at <= end; at += kStride) {
      SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
      CloseSetup trio(model);
      for (const Fault& fault : faults) ASSERT_TRUE(trio.world.at_event(at, fault));
      if (faults[0].kind == Fault::Kind::kCrash) trio.auditor.died(trio.b);
      trio.submit();
      trio.world.run_until([&] { return trio.world.events() >= at; }, 1s);
      trio.world.run_for(after);
      const Nanos asked = trio.world.now();
      const auto closed = trio.a.engine.close();
      EXPECT_LE(trio.world.now(), asked + short_timeouts_config().drain_timeout + kMoment);
      EXPECT_TRUE(closed || closed.error().code == Errc::kTimeout);
      EXPECT_TRUE(trio.auditor.all_completed()) << "on return everything has been reported";
      EXPECT_EQ(trio.seen.count(), 2u);
      for (const Fault& fault : repair) ASSERT_TRUE(trio.world.at(trio.world.now(), fault));
      trio.world.run_for(2s);
      ASSERT_NO_FATAL_FAILURE(trio.auditor.check());
      EXPECT_EQ(trio.seen.count(), 2u) << "nothing is reported twice";
      for (const auto& op : trio.auditor.ops) {
        EXPECT_TRUE(op.ok() || op.event.code == Errc::kClosed ||
                    op.event.code == Errc::kPeerLost)
            << to_string(op.event.code);
      }
      if (testing::Test::HasFailure()) return;
    }
  }
};

TEST_F(CloseInTime, WithADeadPeer) {
  run_with({Fault::crash(kB)}, 0s, {});
  run_with({Fault::crash(kB)}, 700ms, {});  // its NIC has given up, its peer has not
}

TEST_F(CloseInTime, WithAStoppedPeer) { run_with({Fault::stop(kB)}, 0s, {Fault::resume(kB)}); }

TEST_F(CloseInTime, WithAPeerThatIsCutOff) {
  run_with({Fault::cut(kA, kB)}, 0s, {Fault::heal(kA, kB)});
  run_with({Fault::cut(kA, kB)}, 0s, {Fault::heal(kA, kB)}, slow_srd());
}

TEST_F(CloseInTime, WithARailDown) {
  run_with({Fault::nic_down(kA, 0)}, 0s, {Fault::nic_up(kA, 0)});
  run_with({Fault::nic_down(kB, 0), Fault::nic_down(kB, 1)}, 5us, {});
}

TEST_F(CloseInTime, WithWritesWhoseTargetDoesNotAnswer) {
  run_with({Fault::stop(kB), Fault::break_sender(kA, kB, 0), Fault::break_sender(kA, kB, 1)}, 5us,
       {Fault::resume(kB)});
}

TEST_F(CloseInTime, WithANicThatTakesNothing) {
  run_with({Fault::refuse_posts(kA)}, 5us, {Fault::take_posts(kA)});
}

// Nothing that happens would wake it in time, so the close itself has to: three quarters of the
// bound are for the NIC, and then the path that holds the write is torn down.
TEST_F(CloseInTime, OfAnEngineThatSleepsKeepsTheDrainBound) {
  expect_fault_logs();
  Config patient = short_timeouts_config();
  patient.default_timeout = 20s;
  patient.peer_timeout = patient.lost_timeout = 100s;
  EventRecorder ended;
  sim::World world({.seed = test_seed()});
  Host a = open_host(world, world.add_node(1, slow_srd()), kSize, patient);
  Host b = open_host(world, world.add_node(1, slow_srd()), kSize, patient);
  const RemoteHost remote = connect(a, b, {.warm = true});
  await_connected(world, a, remote.peer);
  world.run_for(100ms);
  ASSERT_TRUE(a.engine.submit(Write{.source = a.memory.at(0),
                                    .target = remote.at(0),
                                    .size_bytes = kSize,
                                    .notify = ended.notify(1)}));
  world.run_for(100us);
  ASSERT_TRUE(world.at(world.now(), Fault::cut(kA, kB)));
  world.run_for(10ms);
  const Nanos asked = world.now();
  EXPECT_TRUE(a.engine.close()) << "it came to rest within its bound";
  EXPECT_LE(world.now(), asked + patient.drain_timeout + kMoment);
  ASSERT_EQ(ended.count(), 1u);
  EXPECT_EQ(ended.events[0].code, Errc::kClosed);
}

}  // namespace
}  // namespace fabric::test

#include <algorithm>

#include "harness/write_auditor.h"
#include "support/log_guard.h"

// Closing an engine whose peers do not answer, at every step of what it was doing (P1, P2): within
// the drain bound and a moment, with every operation reported once.

namespace fabric::test {
namespace {

using sim::Fault;

constexpr uint64_t kSize = 1 << 20;
constexpr uint64_t kStride = 13;    // of the events of the network at which a story is told
constexpr uint32_t kA = 0, kB = 1;  // nodes
constexpr Nanos kMoment = 250ms;    // goodbyes that nobody hears, and the tear-down

class Farewell : public testing::Test {
 protected:
  struct Trio {
    explicit Trio(const sim::NicModel& model)
        : world(sim::WorldOptions{.seed = test_seed()}),
          a(open_host(world, world.add_node(2, model), kSize, hasty_config())),
          b(open_host(world, world.add_node(2, model), kSize, hasty_config())),
          c(open_host(world, world.add_node(2, model), kSize, hasty_config())),
          to_b{&b, connect(a, b)},
          to_c{&c, connect(a, c)},
          ledger(a, test_seed()) {
      await_connected(world, a, to_b.way.peer);
      await_connected(world, a, to_c.way.peer);
    }
    void submit() {
      ledger.write(to_b, 150'000);
      ledger.pages(to_b, 20, 4096);
      ledger.write(to_c, 50'000);
      ledger.write(to_b, 40'000, {.priority = Priority::kBulk, .unsplit = true});
      const auto channel = a.engine.submit(Send{.peer = to_b.way.peer, .notify = seen.notify(1)});
      const auto fence = a.engine.submit(Resolve{
          .peer = to_b.way.peer, .names = {&name, 1}, .out = {&key, 1}, .notify = seen.notify(2)});
      ASSERT_TRUE(channel && fence);
    }

    uint64_t name = 3;
    CounterKey key;
    Witness seen;
    sim::World world;
    Host a, b, c;
    Ledger::Target to_b, to_c;
    Ledger ledger;
  };

  /// The faults come after an event, and close() some time after them.
  static void tell(const std::vector<Fault>& faults, Nanos after, const std::vector<Fault>& repair,
                   const sim::NicModel& model = slow_rc()) {
    expect_trouble();
    uint64_t begin = 0, end = 0;
    {
      Trio trio(model);
      begin = trio.world.events();
      trio.submit();
      ASSERT_TRUE(trio.world.run_until([&] { return trio.ledger.all_ended(); }, 10s));
      end = trio.world.events();
    }
    for (uint64_t at = begin; at <= end; at += kStride) {
      SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
      Trio trio(model);
      for (const Fault& fault : faults) ASSERT_TRUE(trio.world.at_event(at, fault));
      if (faults[0].kind == Fault::Kind::kCrash) trio.ledger.died(trio.b);
      trio.submit();
      trio.world.run_until([&] { return trio.world.events() >= at; }, 1s);
      trio.world.run_for(after);
      const Nanos asked = trio.world.now();
      const auto closed = trio.a.engine.close();
      EXPECT_LE(trio.world.now(), asked + hasty_config().drain_timeout + kMoment);
      EXPECT_TRUE(closed || closed.error().code == Errc::kTimeout);
      EXPECT_TRUE(trio.ledger.all_ended()) << "on return everything has been reported";
      EXPECT_EQ(trio.seen.count(), 2u);
      for (const Fault& fault : repair) ASSERT_TRUE(trio.world.at(trio.world.now(), fault));
      trio.world.run_for(2s);
      ASSERT_NO_FATAL_FAILURE(trio.ledger.check());
      EXPECT_EQ(trio.seen.count(), 2u) << "nothing is reported twice";
      for (const auto& line : trio.ledger.lines) {
        EXPECT_TRUE(line.ok() || line.event.code == Errc::kClosed ||
                    line.event.code == Errc::kPeerLost)
            << to_string(line.event.code);
      }
      if (testing::Test::HasFailure()) return;
    }
  }
};

TEST_F(Farewell, WithADeadPeer) {
  tell({Fault::crash(kB)}, 0s, {});
  tell({Fault::crash(kB)}, 700ms, {});  // its NIC has given up, its peer has not
}

TEST_F(Farewell, WithAStoppedPeer) { tell({Fault::stop(kB)}, 0s, {Fault::resume(kB)}); }

TEST_F(Farewell, WithAPeerThatIsCutOff) {
  tell({Fault::cut(kA, kB)}, 0s, {Fault::heal(kA, kB)});
  tell({Fault::cut(kA, kB)}, 0s, {Fault::heal(kA, kB)}, slow_srd());
}

TEST_F(Farewell, WithARailDown) {
  tell({Fault::nic_down(kA, 0)}, 0s, {Fault::nic_up(kA, 0)});
  tell({Fault::nic_down(kB, 0), Fault::nic_down(kB, 1)}, 5us, {});
}

TEST_F(Farewell, WithPiecesWhoseTargetDoesNotAnswer) {
  tell({Fault::stop(kB), Fault::break_sender(kA, kB, 0), Fault::break_sender(kA, kB, 1)}, 5us,
       {Fault::resume(kB)});
}

TEST_F(Farewell, WithANicThatTakesNothing) {
  tell({Fault::refuse_posts(kA)}, 5us, {Fault::take_posts(kA)});
}

// Nothing that happens would wake it in time, so the close itself has to: three quarters of the
// bound are for the NIC, and then the path that holds the write is torn down.
TEST_F(Farewell, OfAnEngineThatSleepsKeepsTheDrainBound) {
  expect_trouble();
  Config patient = hasty_config();
  patient.default_timeout = 20s;
  patient.peer_timeout = patient.lost_timeout = 100s;
  Witness ended;
  sim::World world({.seed = test_seed()});
  Host a = open_host(world, world.add_node(1, slow_srd()), kSize, patient);
  Host b = open_host(world, world.add_node(1, slow_srd()), kSize, patient);
  const Way way = connect(a, b, {.warm = true});
  await_connected(world, a, way.peer);
  world.run_for(100ms);
  ASSERT_TRUE(a.engine.submit(Write{.source = a.memory.at(0),
                                    .target = way.at(0),
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

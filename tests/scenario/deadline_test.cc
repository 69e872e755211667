#include <algorithm>

#include "harness/write_auditor.h"
#include "support/log_guard.h"

// Deadlines: in time to the nanosecond while nothing else happens, and never later than one drain
// bound whatever the network does (P2, P5).

namespace fabric::test {
namespace {

using sim::Fault;

constexpr uint64_t kSize = 1 << 20;
constexpr uint64_t kStride = 11;    // of the events of the network at which a story is told
constexpr uint32_t kA = 0, kB = 1;  // nodes; the third is an innocent

class Deadline : public testing::Test {
 protected:
  Deadline() { expect_trouble(); }

  struct Three {
    explicit Three(const sim::NicModel& model = slow_rc())
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
    void happens(const Fault& fault) { ASSERT_TRUE(world.at(world.now(), fault)); }

    sim::World world;
    Host a, b, c;
    Ledger::Target to_b, to_c;
    Ledger ledger;
  };

  /// Where the writes of `submit` begin and end.
  static std::pair<uint64_t, uint64_t> span(const std::function<void(Three&)>& submit,
                                            const sim::NicModel& model = slow_rc()) {
    Three three(model);
    const uint64_t begin = three.world.events();
    submit(three);
    EXPECT_TRUE(three.world.run_until([&] { return three.ledger.all_ended(); }, 10s));
    for (const auto& line : three.ledger.lines) EXPECT_TRUE(line.ok());
    return {begin, three.world.events()};
  }
};

// ---- While idle ---------------------------------------------------------------------------------

TEST_F(Deadline, OfAnExpectationInAnEngineWithNothingElseToDo) {
  sim::World world;
  Host alone = open_host(world, world.add_node(), 4096, hasty_config());
  Witness seen(&alone.engine);
  Counter counter = *alone.engine.make_counter();
  const Nanos begin = world.now();
  ASSERT_TRUE(counter.expect(1, seen.notify(1), 700ms));
  world.run_for(10s);
  ASSERT_EQ(seen.count(), 1u);
  EXPECT_EQ(seen.events[0].code, Errc::kTimeout);
  EXPECT_EQ(seen.times[0], begin + 700ms);
}

TEST_F(Deadline, OfEverythingForAPeerThatNeverAnswers) {
  sim::World world;
  Host a = open_host(world, world.add_node(), kSize, hasty_config());
  Host b = open_host(world, world.add_node(), kSize, hasty_config());
  ASSERT_TRUE(world.at(world.now(), Fault::stop(kB)));
  world.run_for(1us);
  const Way way = connect(a, b);
  Witness seen(&a.engine);
  const Nanos begin = world.now();
  CounterKey out;
  const uint64_t name = 5;
  ASSERT_TRUE(a.engine.submit(Write{.source = a.memory.at(0),
                                    .target = way.at(0),
                                    .size_bytes = kSize,
                                    .timeout = 700ms,
                                    .notify = seen.notify(1)}));
  ASSERT_TRUE(a.engine.submit(Send{.peer = way.peer, .timeout = 701ms, .notify = seen.notify(2)}));
  ASSERT_TRUE(a.engine.submit(Resolve{.peer = way.peer,
                                      .names = {&name, 1},
                                      .out = {&out, 1},
                                      .timeout = 702ms,
                                      .notify = seen.notify(3)}));
  world.run_for(2s);
  ASSERT_EQ(seen.count(), 3u);
  for (uint64_t tag = 1; tag <= 3; ++tag) {
    EXPECT_EQ(seen.when(tag), begin + 699ms + Nanos(tag * 1'000'000));
    EXPECT_EQ(seen.find(tag)->code, Errc::kTimeout);
    EXPECT_EQ(seen.find(tag)->remote, Remote::kNotDelivered);
  }
  // What has no deadline of that kind ends when the peer is given up.
  ASSERT_TRUE(a.engine.submit(Send{.peer = way.peer, .timeout = 60s, .notify = seen.notify(4)}));
  world.run_for(2s);
  EXPECT_EQ(seen.find(4)->code, Errc::kUnreachable);
  EXPECT_EQ(seen.when(4), begin + hasty_config().lost_timeout);
  ASSERT_TRUE(world.at(world.now(), Fault::resume(kB)));  // or it could not even close
}

// ---- A NIC that takes nothing -------------------------------------------------------------------

TEST_F(Deadline, OfWritesThatTheNicNeverTakes) {
  Three three;
  ASSERT_TRUE(delivers(three.world, three.a, three.b, 1));
  Ledger ledger(three.a, 2);
  three.happens(Fault::refuse_posts(kA));
  three.world.run_for(1us);
  ledger.write(three.to_b, 150'000, {.timeout = 300ms});
  ledger.pages(three.to_b, 10, 4096, {.timeout = 400ms});
  ledger.write(three.to_c, 1000, {.timeout = 500ms});
  ASSERT_TRUE(delivers(three.world, three.b, three.c, 3)) << "others have nothing to do with it";
  run_to_the_end(three.world, ledger);
  ASSERT_NO_FATAL_FAILURE(ledger.check());
  ledger.check_keys();
  for (const auto& line : ledger.lines) {
    EXPECT_EQ(line.event.code, Errc::kTimeout);
    EXPECT_EQ(line.event.remote, Remote::kNotDelivered);
    EXPECT_EQ(line.ended, line.deadline) << "nothing was posted: there is nothing to drain";
  }
  three.happens(Fault::take_posts(kA));
  EXPECT_TRUE(delivers(three.world, three.a, three.b, 4));
  EXPECT_EQ(logged("a path broke") + logged("does not drain"), 0u) << "the paths were innocent";
}

TEST_F(Deadline, OfOneWriteTheNicDoesNotTakeSparesThoseBehindIt) {
  Three three;
  ASSERT_TRUE(delivers(three.world, three.a, three.b, 1));
  Ledger ledger(three.a, 2);
  three.happens(Fault::refuse_posts(kA));
  three.world.run_for(1us);
  auto& guilty = ledger.write(three.to_b, 1000, {.timeout = 10ms});
  for (int i = 0; i < 20; ++i) ledger.write(three.to_b, 1000);
  three.world.run_for(11ms);
  EXPECT_EQ(guilty.ended, guilty.deadline);
  three.happens(Fault::take_posts(kA));
  const Nanos taken = three.world.now();
  run_to_the_end(three.world, ledger);
  ASSERT_NO_FATAL_FAILURE(ledger.check());
  for (size_t i = 1; i < ledger.lines.size(); ++i) {
    EXPECT_TRUE(ledger.lines[i].ok()) << i;
    EXPECT_LE(ledger.lines[i].ended, taken + 1ms) << "nobody had to find another path for it";
  }
  EXPECT_EQ(three.a.engine.stats().tx.retried, 0u);
}

TEST_F(Deadline, WithOneNicThatTakesNothingTheOtherCarriesOn) {
  Three three;
  ASSERT_TRUE(delivers(three.world, three.a, three.b, 1));
  Ledger ledger(three.a, 2);
  three.happens(Fault::refuse_posts(kA, 0));
  three.world.run_for(1us);
  ledger.write(three.to_b, 150'000, {.timeout = 300ms});
  ledger.pages(three.to_b, 10, 4096, {.timeout = 400ms});
  run_to_the_end(three.world, ledger);
  ASSERT_NO_FATAL_FAILURE(ledger.check());
  ledger.check_keys();
  EXPECT_EQ(ledger.lines[0].event.remote, Remote::kUnknown) << "half of it has counted";
  EXPECT_EQ(ledger.lines[1].event.parts_failed, 5u);
  EXPECT_EQ(ledger.lines[1].event.previous, 0u);
}

// ---- What is posted and does not end ------------------------------------------------------------

/// One that is in a hurry, on both rails, among others that are not.
void submit_guilty_and_innocent(Ledger& ledger, const Ledger::Target& to,
                                const Ledger::Target& other) {
  ledger.write(to, 50'000);
  ledger.write(to, 150'000, {.timeout = 100ms});
  ledger.pages(to, 10, 4096);
  ledger.pages(to, 6, 4096, {.timeout = 120ms});
  ledger.write(other, 50'000);
  ledger.write(to, 300, {.counted = false});
}
constexpr size_t kGuilty[] = {1, 3};

class Stuck : public Deadline {
 protected:
  /// `sure`: nothing may end with an unknown fate. `lasts`: when the fault is undone.
  void tell(const Fault& fault, const Fault& undo, Nanos lasts, bool sure,
            const sim::NicModel& model = slow_rc()) {
    const auto submit = [](Three& three) {
      submit_guilty_and_innocent(three.ledger, three.to_b, three.to_c);
    };
    const auto [begin, end] = span(submit, model);
    ASSERT_GT(end, begin + 100);
    for (uint64_t at = begin; at < end; at += kStride) {
      SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
      Three three(model);
      ASSERT_TRUE(three.world.at_event(at, fault));
      ASSERT_TRUE(three.world.at(three.world.now() + lasts, undo));
      submit(three);
      run_to_the_end(three.world, three.ledger);
      ASSERT_NO_FATAL_FAILURE(three.ledger.check());
      three.ledger.check_keys();
      for (size_t i = 0; i < three.ledger.lines.size(); ++i) {
        const auto& line = three.ledger.lines[i];
        const bool guilty = std::ranges::count(kGuilty, i) > 0;
        // Without an account of what arrived nothing is sent twice: innocents may end unknown.
        const bool gave_up = !model.exact_replay && line.event.code == Errc::kRailLost;
        EXPECT_TRUE(guilty || line.ok() || gave_up) << "innocent operation " << i;
        EXPECT_TRUE(line.ok() || gave_up || line.event.code == Errc::kTimeout)
            << to_string(line.event.code);
        EXPECT_TRUE(!sure || line.event.previous == 0) << "unknown parts of operation " << i;
        late += !line.ok();
      }
      EXPECT_LE(three.ledger.lines[4].ended, three.ledger.lines[4].submitted + 1ms)
          << "the other peer was delayed";
      EXPECT_TRUE(delivers(three.world, three.a, three.b, 5));
      if (HasFailure()) return;
    }
  }
  uint64_t late = 0;  ///< operations that missed their deadline
};

TEST_F(Stuck, AcknowledgementsAreLost) {
  tell(Fault::lose_acks(kA, kB), Fault::keep_acks(kA, kB), 600ms, false);
}

TEST_F(Stuck, AcknowledgementsOfOneRailAreLost) {
  tell(Fault::lose_acks(kA, kB, 0), Fault::keep_acks(kA, kB, 0), 600ms, true);
  EXPECT_EQ(late, 0u) << "the target knows what it took";
}

TEST_F(Stuck, TheReceiverIsNotReady) {
  tell(Fault::receiver_not_ready(kB), Fault::receiver_ready(kB), 600ms, false);
  EXPECT_GT(late, 0u);
}

TEST_F(Stuck, TheLinkIsCut) {
  tell(Fault::cut(kA, kB), Fault::heal(kA, kB), 600ms, false);
  EXPECT_GT(late, 0u);
}

TEST_F(Stuck, TheLinkOfOneRailIsCut) {
  tell(Fault::cut(kA, kB, 1), Fault::heal(kA, kB, 1), 600ms, false);
}

TEST_F(Stuck, TheLinkIsCutWhereNobodyKeepsAccount) {
  tell(Fault::cut(kA, kB), Fault::heal(kA, kB), 600ms, false, slow_srd());
  EXPECT_GT(late, 0u);
}

TEST_F(Stuck, AcknowledgementsAreLostWhereNobodyKeepsAccount) {
  tell(Fault::lose_acks(kA, kB), Fault::keep_acks(kA, kB), 600ms, false, slow_srd());
  EXPECT_GT(late, 0u);
}

TEST_F(Stuck, TheReceiverIsStoppedAndThePathBreaks) {
  const auto submit = [](Three& three) {
    submit_guilty_and_innocent(three.ledger, three.to_b, three.to_c);
  };
  const auto [begin, end] = span(submit);
  for (uint64_t at = begin; at < end; at += kStride) {
    SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
    Three three;
    ASSERT_TRUE(three.world.at_event(at, Fault::stop(kB)));
    ASSERT_TRUE(three.world.at_event(at, Fault::break_sender(kA, kB, 1)));
    ASSERT_TRUE(three.world.at(three.world.now() + 700ms, Fault::resume(kB)));
    submit(three);
    run_to_the_end(three.world, three.ledger);
    ASSERT_NO_FATAL_FAILURE(three.ledger.check());
    three.ledger.check_keys();
    for (const size_t i : {0u, 2u, 4u, 5u}) EXPECT_TRUE(three.ledger.lines[i].ok()) << i;
    EXPECT_TRUE(delivers(three.world, three.a, three.b, 5));
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace fabric::test

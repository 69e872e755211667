#include <algorithm>

#include <gtest/gtest.h>

#include "harness/write_auditor.h"
#include "support/log_guard.h"

// Deadlines: in time to the nanosecond while nothing else happens, and never later than one drain
// bound whatever the network does (P2, P5).
//
// Cancels of what is queued, in flight or done, at every step, alone and together with everything
// else that may complete it at the same moment (P1, P3, P4).

namespace fabric::test::deadline_test {
namespace {

using sim::Fault;

constexpr uint64_t kSize = 1 << 20;
constexpr uint64_t kStride = 11;    // run the test at every n-th network event
constexpr uint32_t kA = 0, kB = 1;  // nodes; the third is an innocent

class Deadline : public testing::Test {
 protected:
  Deadline() { expect_fault_logs(); }

  struct StuckSetup {
    explicit StuckSetup(const sim::NicModel& model = slow_rc())
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
    void happens(const Fault& fault) { ASSERT_TRUE(world.at(world.now(), fault)); }

    sim::World world;
    Host a, b, c;
    WriteAuditor::Target to_b, to_c;
    WriteAuditor auditor;
  };

  /// Where the writes of `submit` begin and end.
  static std::pair<uint64_t, uint64_t> span(const std::function<void(StuckSetup&)>& submit,
                                            const sim::NicModel& model = slow_rc()) {
    StuckSetup three(model);
    const uint64_t begin = three.world.events();
    submit(three);
    EXPECT_TRUE(three.world.run_until([&] { return three.auditor.all_completed(); }, 10s));
    for (const auto& op : three.auditor.ops) EXPECT_TRUE(op.ok());
    return {begin, three.world.events()};
  }
};

// ---- While idle ---------------------------------------------------------------------------------

TEST_F(Deadline, OfAnExpectationInAnEngineWithNothingElseToDo) {
  sim::World world;
  Host alone = open_host(world, world.add_node(), 4096, short_timeouts_config());
  EventRecorder seen(&alone.engine);
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
  Host a = open_host(world, world.add_node(), kSize, short_timeouts_config());
  Host b = open_host(world, world.add_node(), kSize, short_timeouts_config());
  ASSERT_TRUE(world.at(world.now(), Fault::stop(kB)));
  world.run_for(1us);
  const RemoteHost remote = connect(a, b);
  EventRecorder seen(&a.engine);
  const Nanos begin = world.now();
  CounterKey out;
  const uint64_t name = 5;
  ASSERT_TRUE(a.engine.submit(Write{.source = a.memory.at(0),
                                    .target = remote.at(0),
                                    .size_bytes = kSize,
                                    .timeout = 700ms,
                                    .notify = seen.notify(1)}));
  ASSERT_TRUE(
      a.engine.submit(Send{.peer = remote.peer, .timeout = 701ms, .notify = seen.notify(2)}));
  ASSERT_TRUE(a.engine.submit(Resolve{.peer = remote.peer,
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
  ASSERT_TRUE(a.engine.submit(Send{.peer = remote.peer, .timeout = 60s, .notify = seen.notify(4)}));
  world.run_for(2s);
  EXPECT_EQ(seen.find(4)->code, Errc::kUnreachable);
  EXPECT_EQ(seen.when(4), begin + short_timeouts_config().lost_timeout);
  ASSERT_TRUE(world.at(world.now(), Fault::resume(kB)));  // or it could not even close
}

// ---- A NIC that takes nothing -------------------------------------------------------------------

TEST_F(Deadline, OfWritesThatTheNicNeverTakes) {
  StuckSetup three;
  ASSERT_TRUE(delivers(three.world, three.a, three.b, 1));
  WriteAuditor auditor(three.a, 2);
  three.happens(Fault::refuse_posts(kA));
  three.world.run_for(1us);
  auditor.write(three.to_b, 150'000, {.timeout = 300ms});
  auditor.pages(three.to_b, 10, 4096, {.timeout = 400ms});
  auditor.write(three.to_c, 1000, {.timeout = 500ms});
  ASSERT_TRUE(delivers(three.world, three.b, three.c, 3)) << "other paths must not be affected";
  run_until_complete(three.world, auditor);
  ASSERT_NO_FATAL_FAILURE(auditor.check());
  auditor.check_keys();
  for (const auto& op : auditor.ops) {
    EXPECT_EQ(op.event.code, Errc::kTimeout);
    EXPECT_EQ(op.event.remote, Remote::kNotDelivered);
    EXPECT_EQ(op.completed, op.deadline) << "nothing was posted: there is nothing to drain";
  }
  three.happens(Fault::take_posts(kA));
  EXPECT_TRUE(delivers(three.world, three.a, three.b, 4));
  EXPECT_EQ(logged("a path broke") + logged("does not drain"), 0u) << "a working path was closed";
}

TEST_F(Deadline, OfOneWriteTheNicDoesNotTakeSparesThoseAfterIt) {
  StuckSetup three;
  ASSERT_TRUE(delivers(three.world, three.a, three.b, 1));
  WriteAuditor auditor(three.a, 2);
  three.happens(Fault::refuse_posts(kA));
  three.world.run_for(1us);
  auto& guilty = auditor.write(three.to_b, 1000, {.timeout = 10ms});
  for (int i = 0; i < 20; ++i) auditor.write(three.to_b, 1000);
  three.world.run_for(11ms);
  EXPECT_EQ(guilty.completed, guilty.deadline);
  three.happens(Fault::take_posts(kA));
  const Nanos taken = three.world.now();
  run_until_complete(three.world, auditor);
  ASSERT_NO_FATAL_FAILURE(auditor.check());
  for (size_t i = 1; i < auditor.ops.size(); ++i) {
    EXPECT_TRUE(auditor.ops[i].ok()) << i;
    EXPECT_LE(auditor.ops[i].completed, taken + 1ms) << "the write waited for another path";
  }
  EXPECT_EQ(three.a.engine.stats().tx.retried, 0u);
}

TEST_F(Deadline, WithOneNicThatTakesNothingTheOtherCarriesOn) {
  StuckSetup three;
  ASSERT_TRUE(delivers(three.world, three.a, three.b, 1));
  WriteAuditor auditor(three.a, 2);
  three.happens(Fault::refuse_posts(kA, 0));
  three.world.run_for(1us);
  auditor.write(three.to_b, 150'000, {.timeout = 300ms});
  auditor.pages(three.to_b, 10, 4096, {.timeout = 400ms});
  run_until_complete(three.world, auditor);
  ASSERT_NO_FATAL_FAILURE(auditor.check());
  auditor.check_keys();
  EXPECT_EQ(auditor.ops[0].event.remote, Remote::kUnknown) << "half of the write was counted";
  EXPECT_EQ(auditor.ops[1].event.parts_failed, 5u);
  EXPECT_EQ(auditor.ops[1].event.parts_unknown, 0u);
}

// ---- What is posted and does not end ------------------------------------------------------------

/// One that is in a hurry, on both rails, among others that are not.
void submit_guilty_and_innocent(WriteAuditor& auditor, const WriteAuditor::Target& to,
                                const WriteAuditor::Target& other) {
  auditor.write(to, 50'000);
  auditor.write(to, 150'000, {.timeout = 100ms});
  auditor.pages(to, 10, 4096);
  auditor.pages(to, 6, 4096, {.timeout = 120ms});
  auditor.write(other, 50'000);
  auditor.write(to, 300, {.counted = false});
}
constexpr size_t kGuilty[] = {1, 3};

class Stuck : public Deadline {
 protected:
  /// `sure`: nothing may end with an unknown fate. `lasts`: when the fault is undone.
  void run_with(const Fault& fault, const Fault& undo, Nanos lasts, bool sure,
                const sim::NicModel& model = slow_rc()) {
    const auto submit = [](StuckSetup& three) {
      submit_guilty_and_innocent(three.auditor, three.to_b, three.to_c);
    };
    const auto [begin, end] = span(submit, model);
    ASSERT_GT(end, begin + 100);
    for (uint64_t at = begin; at < end; at += kStride) {
      SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
      StuckSetup three(model);
      ASSERT_TRUE(three.world.at_event(at, fault));
      ASSERT_TRUE(three.world.at(three.world.now() + lasts, undo));
      submit(three);
      run_until_complete(three.world, three.auditor);
      ASSERT_NO_FATAL_FAILURE(three.auditor.check());
      three.auditor.check_keys();
      for (size_t i = 0; i < three.auditor.ops.size(); ++i) {
        const auto& op = three.auditor.ops[i];
        const bool guilty = std::ranges::count(kGuilty, i) > 0;
        // Without an account of what arrived nothing is sent twice: innocents may end unknown.
        const bool gave_up = !model.exact_replay && op.event.code == Errc::kRailLost;
        EXPECT_TRUE(guilty || op.ok() || gave_up) << "unaffected operation " << i;
        EXPECT_TRUE(op.ok() || gave_up || op.event.code == Errc::kTimeout)
            << to_string(op.event.code);
        EXPECT_TRUE(!sure || op.event.parts_unknown == 0) << "unknown parts of operation " << i;
        late += !op.ok();
      }
      EXPECT_LE(three.auditor.ops[4].completed, three.auditor.ops[4].submitted + 1ms)
          << "the other peer was delayed";
      EXPECT_TRUE(delivers(three.world, three.a, three.b, 5));
      if (HasFailure()) return;
    }
  }
  uint64_t late = 0;  ///< operations that missed their deadline
};

TEST_F(Stuck, AcknowledgementsAreLost) {
  run_with(Fault::lose_acks(kA, kB), Fault::keep_acks(kA, kB), 600ms, false);
}

TEST_F(Stuck, AcknowledgementsOfOneRailAreLost) {
  run_with(Fault::lose_acks(kA, kB, 0), Fault::keep_acks(kA, kB, 0), 600ms, true);
  EXPECT_EQ(late, 0u) << "the target knows what it took";
}

TEST_F(Stuck, TheReceiverIsNotReady) {
  run_with(Fault::receiver_not_ready(kB), Fault::receiver_ready(kB), 600ms, false);
  EXPECT_GT(late, 0u);
}

TEST_F(Stuck, TheLinkIsCut) {
  run_with(Fault::cut(kA, kB), Fault::heal(kA, kB), 600ms, false);
  EXPECT_GT(late, 0u);
}

TEST_F(Stuck, TheLinkOfOneRailIsCut) {
  run_with(Fault::cut(kA, kB, 1), Fault::heal(kA, kB, 1), 600ms, false);
}

TEST_F(Stuck, TheLinkIsCutWithoutExactReplay) {
  run_with(Fault::cut(kA, kB), Fault::heal(kA, kB), 600ms, false, slow_srd());
  EXPECT_GT(late, 0u);
}

TEST_F(Stuck, AcknowledgementsAreLostWithoutExactReplay) {
  run_with(Fault::lose_acks(kA, kB), Fault::keep_acks(kA, kB), 600ms, false, slow_srd());
  EXPECT_GT(late, 0u);
}

TEST_F(Stuck, TheReceiverIsStoppedAndThePathBreaks) {
  const auto submit = [](StuckSetup& three) {
    submit_guilty_and_innocent(three.auditor, three.to_b, three.to_c);
  };
  const auto [begin, end] = span(submit);
  for (uint64_t at = begin; at < end; at += kStride) {
    SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
    StuckSetup three;
    ASSERT_TRUE(three.world.at_event(at, Fault::stop(kB)));
    ASSERT_TRUE(three.world.at_event(at, Fault::break_sender(kA, kB, 1)));
    ASSERT_TRUE(three.world.at(three.world.now() + 700ms, Fault::resume(kB)));
    submit(three);
    run_until_complete(three.world, three.auditor);
    ASSERT_NO_FATAL_FAILURE(three.auditor.check());
    three.auditor.check_keys();
    for (const size_t i : {0u, 2u, 4u, 5u}) EXPECT_TRUE(three.auditor.ops[i].ok()) << i;
    EXPECT_TRUE(delivers(three.world, three.a, three.b, 5));
    if (HasFailure()) return;
  }
}

// ---- Cancel -------------------------------------------------------------------------------------

constexpr uint64_t kCancelStride = 17;  // run the test at every n-th network event

class CancelSetup {
 public:
  explicit CancelSetup(const sim::NicModel& model = slow_rc())
      : world(sim::WorldOptions{.seed = test_seed()}),
        a(open_host(world, world.add_node(2, model), kSize, short_timeouts_config())),
        b(open_host(world, world.add_node(2, model), kSize, short_timeouts_config())),
        to{&b, connect(a, b)},
        auditor(a, test_seed()) {
    await_connected(world, a, to.remote.peer);
  }

  void submit(Timeout timeout = {}) {
    auditor.write(to, 150'000, {.timeout = timeout});
    auditor.pages(to, 30, 4096, {.timeout = timeout});
    auditor.write(to, 60'000, {.timeout = timeout, .priority = Priority::kBulk, .unsplit = true});
    auditor.write(to, 500, {.timeout = timeout, .counted = false});
  }

  void run_to_event(uint64_t at) {
    world.run_until([&] { return world.events() >= at; }, 10s);
  }
  void cancel(size_t op) {
    const auto asked = a.engine.cancel(auditor.ops[op].id);
    if (asked) return;
    EXPECT_EQ(asked.error().code, Errc::kNotFound);
    EXPECT_EQ(auditor.ops[op].reports, 1u) << "kNotFound: it has completed";
  }
  void cancel_all() {
    for (size_t i = 0; i < auditor.ops.size(); ++i) cancel(i);
  }

  sim::World world;
  Host a, b;
  WriteAuditor::Target to;
  WriteAuditor auditor;
};

std::pair<uint64_t, uint64_t> undisturbed(const sim::NicModel& model) {
  CancelSetup pair(model);
  const uint64_t begin = pair.world.events();
  pair.submit();
  EXPECT_TRUE(pair.world.run_until([&] { return pair.auditor.all_completed(); }, 10s));
  return {begin, pair.world.events()};
}

using Codes = std::initializer_list<Errc>;

/// The end of every test of cancels. `codes`: those that an operation may complete with.
void ends_well(CancelSetup& pair, Codes codes) {
  run_until_complete(pair.world, pair.auditor);
  ASSERT_NO_FATAL_FAILURE(pair.auditor.check());
  for (const auto& op : pair.auditor.ops) {
    EXPECT_TRUE(std::ranges::count(codes, op.event.code) == 1) << to_string(op.event.code);
  }
}

/// Runs the test after every few events between the first submit and the last completion.
void at_any_step(const sim::NicModel& model,
                 const std::function<void(CancelSetup&, uint64_t)>& body) {
  expect_fault_logs();
  const auto [begin, end] = undisturbed(model);
  ASSERT_GT(end, begin + 100);
  for (uint64_t at = begin; at < end; at += kCancelStride) {
    SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
    CancelSetup pair(model);
    body(pair, at);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Cancel, OfOneOperationLeavesTheOthersAlone) {
  for (const size_t victim : {0u, 1u, 2u}) {
    at_any_step(slow_rc(), [&](CancelSetup& pair, uint64_t at) {
      pair.submit();
      pair.run_to_event(at);
      const Nanos asked = pair.world.now();
      pair.cancel(victim);
      ends_well(pair, {Errc::kOk, Errc::kCancelled});
      pair.auditor.check_keys();
      for (size_t i = 0; i < pair.auditor.ops.size(); ++i) {
        EXPECT_TRUE(i == victim || pair.auditor.ops[i].ok()) << "operation " << i;
      }
      EXPECT_LE(pair.auditor.ops[victim].completed, asked + 1ms) << "the cancel was delayed";
      EXPECT_TRUE(delivers(pair.world, pair.a, pair.b, 5));
      EXPECT_EQ(logged("an operation does not drain"), 0u);
      EXPECT_EQ(logged("a path broke"), 0u);
    });
  }
}

TEST(Cancel, OfABatchStopsAllOfItAndRefusesMore) {
  for (const sim::NicModel& model : {slow_rc(), slow_srd()}) {
    at_any_step(model, [&](CancelSetup& pair, uint64_t at) {
      pair.submit();
      Batch batch = *pair.a.engine.make_batch();
      const Write more{.source = pair.a.memory.at(900'000),
                       .target = pair.to.remote.at(900'000),
                       .size_bytes = 100'000,
                       .batch = batch};
      ASSERT_TRUE(pair.a.engine.submit(more));
      pair.run_to_event(at);
      pair.cancel_all();
      ASSERT_TRUE(pair.a.engine.cancel(batch));
      EXPECT_EQ(pair.a.engine.submit(more).error().code, Errc::kCancelled);
      ends_well(pair, {Errc::kOk, Errc::kCancelled});
      pair.auditor.check_keys();
      EXPECT_EQ(batch.pending(), 0u);
      EXPECT_EQ(batch.delivered() + batch.failed(), 1u);
      ASSERT_TRUE(batch.reset());
      ASSERT_TRUE(pair.a.engine.submit(more));
      EXPECT_TRUE(pair.a.engine.wait(batch));
    });
  }
}

TEST(Cancel, OfPagesThatAreNotPostedYetEndsEachOfThem) {
  constexpr uint32_t kPages = 5;
  CancelSetup pair;
  auto& op = pair.auditor.pages(pair.to, kPages, 4096);
  ASSERT_TRUE(pair.a.engine.cancel(op.id));
  ends_well(pair, {Errc::kCancelled});
  EXPECT_EQ(op.batch->failed(), kPages);
  for (const auto& part : op.parts) {
    EXPECT_EQ(part.code, Errc::kCancelled);
    EXPECT_EQ(part.remote, Remote::kNotDelivered);
  }
  EXPECT_TRUE(untouched(pair.b.bytes()));
}

TEST(Cancel, AgainstTheDeadline) {
  expect_fault_logs();
  // The deadline falls into the middle of the writes; the cancel comes right before, with or after.
  for (const Nanos deadline : {Nanos(50us), Nanos(120us), Nanos(250us)}) {
    for (const Nanos apart : {Nanos(-1us), Nanos(0), Nanos(1us)}) {
      SCOPED_TRACE(testing::Message() << deadline.count() << " " << apart.count());
      CancelSetup pair;
      pair.submit(deadline);
      pair.world.run_for(deadline + apart);
      pair.cancel_all();
      ends_well(pair, {Errc::kOk, Errc::kCancelled, Errc::kTimeout});
      pair.auditor.check_keys();
      EXPECT_TRUE(delivers(pair.world, pair.a, pair.b, 5));
    }
  }
}

TEST(Cancel, AgainstABreakOfThePath) {
  for (const Fault& fault : {Fault::break_sender(kA, kB, 0), Fault::break_target(kA, kB, 0),
                             Fault::nic_down(kA, 1), Fault::nic_down(kB, 0)}) {
    at_any_step(slow_rc(), [&](CancelSetup& pair, uint64_t at) {
      ASSERT_TRUE(pair.world.at_event(at, fault));
      pair.submit();
      pair.run_to_event(at + at % 5);
      pair.cancel_all();
      ends_well(pair, {Errc::kOk, Errc::kCancelled});
      pair.auditor.check_keys();
      EXPECT_TRUE(delivers(pair.world, pair.a, pair.b, 5));
    });
  }
}

TEST(Cancel, AgainstTheLossOfEveryRailOfTheReceiver) {
  const Fault all_down = Fault::nic_down(kB, Fault::kAllRails);
  at_any_step(slow_rc(), [&](CancelSetup& pair, uint64_t at) {
    ASSERT_TRUE(pair.world.at_event(at, all_down));
    pair.submit();
    pair.run_to_event(at);
    const Nanos asked = pair.world.now();
    pair.cancel_all();
    ends_well(pair, {Errc::kOk, Errc::kCancelled});
    pair.auditor.check_keys();
    for (const auto& op : pair.auditor.ops) {
      EXPECT_LE(op.completed, asked + 1ms) << "a cancelled operation waited for a path";
    }
    ASSERT_TRUE(pair.world.at(pair.world.now(), Fault::nic_up(kB, Fault::kAllRails)));
    EXPECT_TRUE(delivers(pair.world, pair.a, pair.b, 5));
  });
}

TEST(Cancel, AgainstABreakWhoseTargetDoesNotAnswer) {
  at_any_step(slow_rc(), [&](CancelSetup& pair, uint64_t at) {
    ASSERT_TRUE(pair.world.at_event(at, Fault::stop(kB)));
    ASSERT_TRUE(pair.world.at_event(at, Fault::break_sender(kA, kB, 0)));
    pair.submit();
    pair.run_to_event(at + 3);
    const Nanos asked = pair.world.now();
    pair.cancel_all();
    ASSERT_TRUE(pair.world.run_until([&] { return pair.auditor.all_completed(); }, 60s));
    EXPECT_LE(pair.world.now(), asked + short_timeouts_config().drain_timeout + 1ms);
    // It resumes, learns which counter keys are poisoned, and works again.
    ASSERT_TRUE(pair.world.at(pair.world.now() + 100ms, Fault::resume(kB)));
    pair.world.run_for(200ms);
    ends_well(pair, {Errc::kOk, Errc::kCancelled});
    pair.auditor.check_keys();
    EXPECT_TRUE(delivers(pair.world, pair.a, pair.b, 5));
  });
}

TEST(Cancel, AgainstTheLossOfThePeer) {
  at_any_step(slow_rc(), [&](CancelSetup& pair, uint64_t at) {
    ASSERT_TRUE(pair.world.at_event(at, Fault::crash(kB)));
    pair.auditor.died(pair.b);
    pair.submit();
    pair.run_to_event(at + at % 4);
    if (at % 2 == 0) pair.world.run_for(999ms + Nanos(at % 3 * 1'000'000));
    pair.cancel_all();
    ends_well(pair, {Errc::kOk, Errc::kCancelled, Errc::kPeerLost});
    Host next = open_host(pair.world, kB, kSize, short_timeouts_config());
    EXPECT_TRUE(delivers(pair.world, pair.a, next, 5));
  });
}

TEST(Cancel, AgainstClose) {
  at_any_step(slow_rc(), [&](CancelSetup& pair, uint64_t at) {
    pair.submit();
    pair.run_to_event(at);
    pair.cancel_all();
    ASSERT_TRUE(pair.a.engine.close());
    EXPECT_TRUE(pair.auditor.all_completed());
    ends_well(pair, {Errc::kOk, Errc::kCancelled, Errc::kClosed});
  });
}

}  // namespace
}  // namespace fabric::test::deadline_test

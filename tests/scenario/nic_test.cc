#include <algorithm>

#include <gtest/gtest.h>

#include "harness/write_auditor.h"
#include "scenario/pairs.h"
#include "support/log_guard.h"

// NICs that die with completions in their queues, overflow, report late, fail and come back (P3,
// P10, P16).

namespace fabric::test::nic_test {
namespace {

using sim::Fault;

constexpr uint64_t kSize = 1 << 20;
constexpr uint64_t kStride = 11;    // run the test at every n-th network event
constexpr uint32_t kA = 0, kB = 1;  // nodes

class NicPair {
 public:
  NicPair()
      : world(sim::WorldOptions{.seed = test_seed()}),
        a(open_host(world, world.add_node(2, slow_rc()), kSize, short_timeouts_config())),
        b(open_host(world, world.add_node(2, slow_rc()), kSize, short_timeouts_config())),
        to{&b, connect(a, b)},
        to_a(connect(b, a)),
        auditor(a, test_seed()) {
    await_connected(world, a, to.remote.peer);
    await_connected(world, b, to_a.peer);
    sub_a.emplace(*a.engine.subscribe(seen_a.notify()));
    sub_b.emplace(*b.engine.subscribe(seen_b.notify()));
    bound.emplace(*b.engine.make_counter());
    EXPECT_TRUE(bound->bind(to_a.peer));
    EXPECT_TRUE(bound->expect(1, seen_b.notify(7), 60s));
  }

  void submit() {
    auditor.pages(to, 20, 4096);
    auditor.write(to, 150'000);
    for (int i = 0; i < 6; ++i) auditor.write(to, 900);
    auditor.write(to, 40'000, {.priority = Priority::kBulk, .unsplit = true});
  }
  void happens(const Fault& fault) { ASSERT_TRUE(world.at(world.now(), fault)); }
  static uint64_t losses(const EventRecorder& seen) {
    return static_cast<uint64_t>(std::ranges::count_if(seen.events, [](const Event& e) {
      return e.kind == EventKind::kPeer && e.value == static_cast<uint64_t>(PeerState::kLost);
    }));
  }
  /// Bytes that went out by one rail so far.
  uint64_t sent_by(size_t rail) const { return a.engine.rail_stats().at(rail).tx.bytes; }

  EventRecorder seen_a, seen_b;
  sim::World world;
  Host a, b;
  WriteAuditor::Target to;
  RemoteHost to_a;
  std::optional<Counter> bound;
  std::optional<Subscription> sub_a, sub_b;
  WriteAuditor auditor;
};

void at_any_step(const std::function<void(NicPair&, uint64_t)>& body, uint64_t stride = kStride) {
  expect_fault_logs();
  uint64_t begin = 0, end = 0;
  {
    NicPair pair;
    begin = pair.world.events();
    pair.submit();
    ASSERT_TRUE(pair.world.run_until([&] { return pair.auditor.all_completed(); }, 10s));
    end = pair.world.events();
  }
  ASSERT_GT(end, begin + 100);
  for (uint64_t at = begin; at <= end; at += stride) {
    SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
    NicPair pair;
    body(pair, at);
    if (testing::Test::HasFailure()) return;
  }
}

/// Everything arrived, once, and nothing worse than a lost rail was reported.
void all_is_well(NicPair& pair) {
  run_until_complete(pair.world, pair.auditor);
  ASSERT_NO_FATAL_FAILURE(pair.auditor.check());
  pair.auditor.check_keys();
  for (const auto& op : pair.auditor.ops) EXPECT_TRUE(op.ok());
  EXPECT_EQ(NicPair::losses(pair.seen_a) + NicPair::losses(pair.seen_b), 0u);
  EXPECT_EQ(pair.seen_b.find(7), nullptr);
}

// ---- Acknowledged, and never counted ------------------------------------------------------------

/// If a write was reported as delivered and never counted, the peer is lost on both sides, so that
/// no wait for the count goes on. Returns whether counts are missing.
bool every_missing_count_is_reported(NicPair& pair) {
  EXPECT_TRUE(pair.world.run_until([&] { return pair.auditor.all_completed(); }, 60s));
  pair.world.run_for(1s);
  const bool swallowed = pair.auditor.uncounted() > 0;
  const uint64_t lost = NicPair::losses(pair.seen_a);
  EXPECT_LE(lost, 1u);
  EXPECT_EQ(lost, NicPair::losses(pair.seen_b)) << "only one side reported the loss";
  EXPECT_TRUE(!swallowed || lost == 1) << "counts are missing, and the loss is not reported";
  EXPECT_EQ(pair.seen_b.find(7) != nullptr, lost == 1);
  EXPECT_TRUE(delivers(pair.world, pair.a, pair.b, 5)) << "the remaining rail must work";
  return swallowed;
}

TEST(Nic, ThatDiesBetweenAcknowledgementAndCompletionEndsTheSessionOnBothSides) {
  expect_log("acknowledged immediates that it never received");
  uint64_t swallowed = 0;
  for (const Nanos lasts : {Nanos(10us), Nanos(100us)}) {
    at_any_step([&](NicPair& pair, uint64_t at) {
      ASSERT_TRUE(pair.world.at_event(at, Fault::swallow_counts(kB, 0, lasts)));
      pair.submit();
      swallowed += every_missing_count_is_reported(pair);
    });
  }
  EXPECT_GT(swallowed, 5u);
}

TEST(Nic, ThatDiesBeforeItsCompletionsWhileTheSendersEndBreaks) {
  expect_log("acknowledged immediates that it never received");
  at_any_step([&](NicPair& pair, uint64_t at) {
    ASSERT_TRUE(pair.world.at_event(at, Fault::swallow_counts(kB, 0, 30us)));
    ASSERT_TRUE(pair.world.at_event(at + 9, Fault::break_sender(kA, kB, 0)));
    pair.submit();
    every_missing_count_is_reported(pair);
  });
}

// ---- Completion queues that overflow ------------------------------------------------------------

TEST(Nic, WhoseQueueOverflowsAtTheReceiverPoisonsWhatItCannotProve) {
  uint64_t unknown = 0;
  at_any_step([&](NicPair& pair, uint64_t at) {
    ASSERT_TRUE(pair.world.at_event(at, Fault::overrun(kB, 0)));
    pair.submit();
    run_until_complete(pair.world, pair.auditor);
    ASSERT_NO_FATAL_FAILURE(pair.auditor.check());
    pair.auditor.check_keys();
    for (const auto& op : pair.auditor.ops) {
      EXPECT_TRUE(op.ok() || op.event.code == Errc::kRailLost) << to_string(op.event.code);
      unknown += op.event.parts_unknown;
      EXPECT_LE(op.completed, op.submitted + 10ms) << "the operation waited for a dead queue";
    }
    EXPECT_TRUE(delivers(pair.world, pair.a, pair.b, 5));
    // After it was repaired the rail is used again.
    pair.happens(Fault::nic_up(kB, 0));
    pair.world.run_for(2s);
    const uint64_t before = pair.sent_by(0);
    EXPECT_TRUE(delivers(pair.world, pair.a, pair.b, 6));
    EXPECT_GT(pair.sent_by(0), before);
  });
  EXPECT_GT(unknown, 0u);
}

TEST(Nic, WhoseQueueOverflowsWithAcknowledgedCountsInItEndsTheSession) {
  expect_log("acknowledged immediates that it never received");
  uint64_t swallowed = 0;
  at_any_step([&](NicPair& pair, uint64_t at) {
    pair.happens(Fault::late_counts(kB, 20us));
    ASSERT_TRUE(pair.world.at_event(at, Fault::overrun(kB, 0)));
    pair.submit();
    swallowed += every_missing_count_is_reported(pair);
  });
  EXPECT_GE(swallowed, 2u);
}

TEST(Nic, WhoseQueueOverflowsAtTheSenderIsReplacedByTheOther) {
  at_any_step([&](NicPair& pair, uint64_t at) {
    ASSERT_TRUE(pair.world.at_event(at, Fault::overrun(kA, 0)));
    pair.submit();
    all_is_well(pair);
    EXPECT_TRUE(delivers(pair.world, pair.a, pair.b, 5));
    pair.happens(Fault::nic_up(kA, 0));
    pair.world.run_for(2s);
    const uint64_t before = pair.sent_by(0);
    EXPECT_TRUE(delivers(pair.world, pair.a, pair.b, 6));
    EXPECT_GT(pair.sent_by(0), before);
  });
}

// ---- The last rail ------------------------------------------------------------------------------

TEST(Nic, TheLastOneOfTheSenderFailsEverythingAtOnceUntilItIsBack) {
  at_any_step([&](NicPair& pair, uint64_t at) {
    for (const uint32_t rail : {0u, 1u}) {
      ASSERT_TRUE(pair.world.at_event(at + 3 * rail, Fault::nic_down(kA, rail)));
    }
    pair.submit();
    const auto both_down = [&] { return pair.world.faults(Fault::Kind::kNicDown) == 2; };
    ASSERT_TRUE(pair.world.run_until(both_down, 1s));
    pair.world.run_for(10us);
    const auto& late = pair.auditor.write(pair.to, 150'000);
    const auto& paged = pair.auditor.pages(pair.to, 3, 4096);
    run_until_complete(pair.world, pair.auditor);
    ASSERT_NO_FATAL_FAILURE(pair.auditor.check());
    pair.auditor.check_keys();
    for (const auto* op : {&late, &paged}) {
      EXPECT_EQ(op->event.code, Errc::kRailLost);
      EXPECT_EQ(op->event.remote, Remote::kNotDelivered);
      EXPECT_LE(op->completed, op->submitted + 10us);
    }
    for (const auto& op : pair.auditor.ops) {
      EXPECT_TRUE(op.ok() || op.event.code == Errc::kRailLost) << to_string(op.event.code);
      EXPECT_LE(op.completed, op.submitted + 10ms) << "the target can still report what it took";
    }
    EXPECT_EQ(pair.seen_a.count(EventKind::kRail), 2u);
    for (const uint32_t rail : {0u, 1u}) pair.happens(Fault::nic_up(kA, rail));
    pair.world.run_for(2s);
    EXPECT_EQ(pair.seen_a.count(EventKind::kRail), 4u);
    const uint64_t before[] = {pair.sent_by(0), pair.sent_by(1)};
    EXPECT_TRUE(delivers(pair.world, pair.a, pair.b, 6));
    for (const size_t rail : {0u, 1u}) EXPECT_GT(pair.sent_by(rail), before[rail]);
    EXPECT_EQ(NicPair::losses(pair.seen_a), 0u);
  });
}

TEST(Nic, TheLastOneOfTheReceiverIsWaitedFor) {
  at_any_step([&](NicPair& pair, uint64_t at) {
    for (const uint32_t rail : {0u, 1u}) {
      ASSERT_TRUE(pair.world.at_event(at + 3 * rail, Fault::nic_down(kB, rail)));
      ASSERT_TRUE(pair.world.at(pair.world.now() + 500ms, Fault::nic_up(kB, rail)));
    }
    pair.submit();
    all_is_well(pair);
    const uint64_t before[] = {pair.sent_by(0), pair.sent_by(1)};
    EXPECT_TRUE(delivers(pair.world, pair.a, pair.b, 6));
    for (const size_t rail : {0u, 1u}) EXPECT_GT(pair.sent_by(rail), before[rail]);
  });
}

TEST(Nic, TheLastOneOfTheReceiverForGoodEndsEverythingByItsDeadline) {
  at_any_step(
      [&](NicPair& pair, uint64_t at) {
        for (const uint32_t rail : {0u, 1u}) {
          ASSERT_TRUE(pair.world.at_event(at + 3 * rail, Fault::nic_down(kB, rail)));
        }
        pair.submit();
        run_until_complete(pair.world, pair.auditor);
        ASSERT_NO_FATAL_FAILURE(pair.auditor.check());
        pair.auditor.check_keys();
        for (const auto& op : pair.auditor.ops) {
          EXPECT_TRUE(op.ok() || op.event.code == Errc::kTimeout) << to_string(op.event.code);
          // The target has reported what it took; only of a split write one half may have counted.
          EXPECT_TRUE(op.parts.size() == 1 || op.event.parts_unknown == 0);
        }
      },
      3 * kStride);
}

// ---- Late reports -------------------------------------------------------------------------------

TEST(Nic, LateReportsAndABreakInBetween) {
  for (const Fault& late : {Fault::late_counts(kB, 100us), Fault::late_acks(kA, 100us)}) {
    for (const Fault& broken : {Fault::break_sender(kA, kB, 0), Fault::break_target(kA, kB, 0),
                                Fault::nic_down(kB, 1), Fault::nic_down(kA, 1)}) {
      at_any_step(
          [&](NicPair& pair, uint64_t at) {
            pair.happens(late);
            ASSERT_TRUE(pair.world.at_event(at, broken));
            pair.submit();
            all_is_well(pair);
          },
          2 * kStride);
    }
  }
}

// A path whose own rail goes down during its back-off must not be opened on that rail: its end on
// the dead NIC fails without a report, and without connections it would never be closed.
void fails_twice(Nanos first, Nanos second) {
  SCOPED_TRACE(testing::Message() << first.count() << " and " << second.count());
  sim::World world({.seed = 3});
  Config config = short_timeouts_config();
  config.log_level = LogLevel::kError;
  const uint32_t from = world.add_node(1, slow_srd()), to = world.add_node(1, slow_srd());
  Host sender = open_host(world, from, 1 << 20, config);
  Host receiver = open_host(world, to, 1 << 20, config);
  ASSERT_TRUE(delivers(world, sender, receiver, 1));
  const Nanos now = world.now();
  // The path is refused there and backs off here; during the back-off its own NIC fails.
  ASSERT_TRUE(world.at(now, Fault::overrun(to, 0)));
  ASSERT_TRUE(world.at(now + first, Fault::overrun(from, 0)));
  ASSERT_TRUE(world.at(now + Nanos(5ms), Fault::nic_up(to, 0)));
  ASSERT_TRUE(world.at(now + second, Fault::overrun(from, 0)));
  ASSERT_TRUE(world.at(now + second + Nanos(10ms), Fault::nic_up(from, 0)));
  world.run_for(2s);
  EXPECT_TRUE(delivers(world, sender, receiver, 2));
}

TEST(BackedOffPath, WaitsForItsRail) {
  for (const Nanos first : {1ms, 2ms, 4ms, 7ms, 12ms, 25ms}) {
    for (const Nanos after : {4ms, 8ms, 16ms, 30ms, 60ms}) fails_twice(first, first + after);
  }
}

TEST(Nic, OneHereReachesTheLastOfFourThere) {
  FaultyPair pair(slow_rc(), 1, 4);
  for (const uint32_t rail : {0, 1, 2}) pair.happens(Fault::nic_down(1, rail));
  pair.world.run_for(10ms);
  ASSERT_TRUE(pair.a->engine.submit(Write{.source = pair.a->memory.at(0),
                                          .target = pair.remote.at(0),
                                          .size_bytes = 4096,
                                          .timeout = 2s,
                                          .notify = pair.ended.notify(1)}));
  pair.world.run_for(4s);
  ASSERT_NE(pair.ended.find(1), nullptr);
  EXPECT_EQ(pair.ended.find(1)->code, Errc::kOk) << "a NIC of the peer is up";
  EXPECT_TRUE(std::ranges::equal(pair.a->bytes(0, 4096), pair.b->bytes(0, 4096)));
}

// ---- Probes -------------------------------------------------------------------------------------

// A rail in doubt is probed until it answers, and then used again.

constexpr uint64_t kProbeBytes = 64 << 10, kProbePage = 4096;

struct ProbePair {
  explicit ProbePair(const sim::NicModel& nic) : model(nic) {
    expect_fault_logs();
    await_connected(world, a, remote.peer);
    world.run_for(5ms);
  }
  Host open() {
    return open_host(world, world.add_node(2, model), kProbeBytes, short_timeouts_config());
  }
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

// Every probe takes half a second to fail; the back-off between probes doubles up to one second.
// With a constant back-off there would be 39 probes.
TEST(Probing, OfARailThatStaysCutGetsRarer) {
  ProbePair pair(slow_srd());
  pair.happens(Fault::cut(0, 1, 0));
  pair.write_four(0);
  pair.world.run_for(20s);
  EXPECT_EQ(pair.ended.count(), 4u);
  EXPECT_GE(pair.rail(0).failed, 10u) << "it is still probed";
  EXPECT_LE(pair.rail(0).failed, 25u);

  pair.happens(Fault::heal(0, 1, 0));
  pair.world.run_for(2s);
  const uint64_t bytes = pair.rail(0).bytes;
  pair.write_four(4);
  pair.world.run_for(1ms);
  EXPECT_EQ(pair.rail(0).bytes, bytes + 2 * kProbePage) << "the rail must carry its share again";
  EXPECT_EQ(pair.ended.count(), 8u);
}

// With one rail down on both hosts only the other one is left. When that breaks once, the next
// try takes the peer's rail that is down and is refused; the one after that must take the other.
TEST(Probing, ARefusalIsOneTryAndTheNextTakesAnotherRailOfThePeer) {
  ProbePair pair(rc_model());
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
}  // namespace fabric::test::nic_test

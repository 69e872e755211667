#include <array>

#include "conformance/audited_writes.h"
#include "conformance/conformance.h"
#include "conformance/kinds.h"
#include "support/log_guard.h"

// P1 to P5 when rails, paths, hosts and processes fail under operations in flight. The same
// promises without faults are in completion_test.cc.

namespace fabric::test {
namespace {

using Phase = FaultInjector::Phase;
using Side = FaultInjector::Side;
using Target = AuditedWrites::Target;

constexpr Nanos kTurn = 1ms;  // a bound is kept up to an engine's turn

/// One of everything, several times, and what became of it.
class OneOfEachKind {
 public:
  static constexpr uint32_t kRounds = 6;

  OneOfEachKind(DuplexHost& from, DuplexHost& to, const RemoteHost& remote,
                EventRecorder& completions)
      : clock_(from.engine),
        kinds_(from, to, remote),
        completions_(completions),
        start_(clock_.now()) {
    for (uint32_t i = 0; i < kRounds; ++i) {
      for (const auto& kind : kinds_.all())
        EXPECT_TRUE(kind.submit(completions_.notify(taken_++), {}));
    }
    completions_.then = [this](const Event&) { last_completion_ = clock_.now(); };
  }
  ~OneOfEachKind() { completions_.then = {}; }
  OneOfEachKind(const OneOfEachKind&) = delete;
  OneOfEachKind& operator=(const OneOfEachKind&) = delete;

  bool all_completed() const { return completions_.count() >= taken_; }
  Nanos took() const { return last_completion_ - start_; }
  uint32_t completed_with(Errc code) const { return completions_.count(code); }
  void expect_one_completion_each() const {
    EXPECT_EQ(completions_.count(), taken_);
    for (uint32_t tag = 0; tag < taken_; ++tag) {
      SCOPED_TRACE(kinds_.all()[tag % kinds_.all().size()].name);
      ASSERT_EQ(completions_.count(tag), 1u);
      const Event& end = *completions_.find(tag);
      EXPECT_EQ(end.code == Errc::kOk, end.remote == Remote::kDelivered);
      EXPECT_TRUE(end.code == Errc::kOk || end.code == Errc::kRailLost ||
                  end.code == Errc::kPeerLost || end.code == Errc::kTimeout)
          << to_string(end.code);
    }
  }

 private:
  Engine& clock_;
  Kinds kinds_;
  EventRecorder& completions_;
  Nanos start_, last_completion_{};
  uint32_t taken_ = 0;
};

}  // namespace

uint32_t Conformance::every_kind_completes_once(const Config& config, const FaultAction& inject,
                                                const FaultAction& repair) {
  uint32_t failed = 0;
  for (const Nanos moment : kMoments) {
    SCOPED_TRACE(moment.count());
    TestEnvOptions options;
    if (moment == kMoments.back()) options.drop_control = options.duplicate_control = 0.2;
    reopen_with_faults(config, options);
    EventRecorder& completions = recorder();
    OneOfEachKind ops(a(), b(), ab(), completions);
    run_on_wire(moment);
    inject(faults());
    const Nanos bound = config.default_timeout + config.drain_timeout + kTurn;
    EXPECT_TRUE(until([&] { return ops.all_completed(); }, 2 * bound)) << ea().dump();
    if (GetParam().caps.virtual_time) {
      EXPECT_LE(ops.took(), bound);
    }
    if (repair) repair(faults());
    wait_idle();
    ops.expect_one_completion_each();
    EXPECT_EQ(ea().stats().ops_in_flight, 0u);
    failed += completions.count() - ops.completed_with(Errc::kOk);
    if (repair) expect_service(b());
    if (HasFatalFailure()) break;
  }
  return failed;
}

// ---- P1 -----------------------------------------------------------------------------------------

TEST_P(Conformance, P01EveryKindEndsOnceWhenARailOfTheSenderGoes) {
  REQUIRE_CAP(lost_rails);
  every_kind_completes_once(
      short_config(), [](FaultInjector& t) { t.lose_rail(kA, 0, Phase::kBegin); },
      [](FaultInjector& t) { t.lose_rail(kA, 0, Phase::kEnd); });
}

TEST_P(Conformance, P01EveryKindEndsOnceWhenARailOfTheTargetGoes) {
  REQUIRE_CAP(lost_rails);
  every_kind_completes_once(
      short_config(), [](FaultInjector& t) { t.lose_rail(kB, 0, Phase::kBegin); },
      [](FaultInjector& t) { t.lose_rail(kB, 0, Phase::kEnd); });
}

TEST_P(Conformance, P01EveryKindEndsOnceWhenAPathBreaks) {
  REQUIRE_CAP(broken_paths);
  for (const Side side : {Side::kSender, Side::kTarget}) {
    every_kind_completes_once(
        short_config(), [side](FaultInjector& t) { t.break_path(kA, kB, 0, side); },
        [](FaultInjector&) {});
  }
}

TEST_P(Conformance, P01EveryKindEndsOnceWhenThePeerDies) {
  REQUIRE_CAP(kills);
  const uint32_t failed =
      every_kind_completes_once(short_config(), [](FaultInjector& t) { t.kill(kB); }, {});
  EXPECT_GT(failed, 0u);
  expect_service(restart(kB, short_config()));
}

// ---- P2 -----------------------------------------------------------------------------------------

namespace {
Config impatient(Config config) {
  config.default_timeout = 300ms;
  return config;
}
}  // namespace

TEST_P(Conformance, P02WhatIsInFlightToAHostThatIsCutOffEndsInTime) {
  REQUIRE_CAP(cuts);
  const uint32_t failed = every_kind_completes_once(
      impatient(short_config()), [](FaultInjector& t) { t.cut(kA, kB, Phase::kBegin); },
      [](FaultInjector& t) { t.cut(kA, kB, Phase::kEnd); });
  EXPECT_GT(failed, 0u);
}

TEST_P(Conformance, P02WhatAStoppedPeerHasToAnswerEndsInTime) {
  REQUIRE_CAP(stops);
  const uint32_t failed = every_kind_completes_once(
      impatient(short_config()), [](FaultInjector& t) { t.stop(kB, Phase::kBegin); },
      [](FaultInjector& t) { t.stop(kB, Phase::kEnd); });
  EXPECT_GT(failed, 0u);
}

TEST_P(Conformance, P02WhatAReceiverDoesNotTakeEndsInTime) {
  REQUIRE_CAP(not_ready);
  const uint32_t failed = every_kind_completes_once(
      impatient(short_config()), [](FaultInjector& t) { t.not_ready(kB, Phase::kBegin); },
      [](FaultInjector& t) { t.not_ready(kB, Phase::kEnd); });
  EXPECT_GT(failed, 0u);
}

// ---- P3 -----------------------------------------------------------------------------------------

Conformance::Reported Conformance::each_report_is_true(const FaultAction& inject,
                                                       const FaultAction& repair) {
  Reported reported;
  for (const Nanos moment : kMoments) {
    SCOPED_TRACE(moment.count());
    reopen_with_faults();
    AuditedWrites writes(a(), b(), ab().region, recorder(), recorder());
    writes.submit({}, 300ms);
    run_on_wire(moment);
    inject(faults());
    EXPECT_TRUE(until([&] { return writes.all_completed(); })) << ea().dump();
    repair(faults());
    run_for(3s);  // whatever is late, and the reports about poisoned counter keys
    writes.check(Target::kConnected);
    reported.delivered += writes.delivered();
    reported.not_delivered += writes.not_delivered();
    reported.unknown += writes.unknown();
    for (uint32_t i = 0; i < AuditedWrites::kWrites; i += 2) {  // the uncut ones
      reported.unsplit_unknown += writes.completions().find(i)->remote == Remote::kUnknown;
    }
    expect_service(b());
    if (HasFatalFailure()) break;
  }
  return reported;
}

TEST_P(Conformance, P03ACompletionIsTrueWhenTheHostsWereCutOff) {
  REQUIRE_CAP(cuts);
  const Reported reported =
      each_report_is_true([](FaultInjector& t) { t.cut(kA, kB, Phase::kBegin); },
                          [](FaultInjector& t) { t.cut(kA, kB, Phase::kEnd); });
  EXPECT_GT(reported.unknown, 0u) << "the fate of the writes in flight was unknown";
  EXPECT_GT(reported.not_delivered, 0u);
}

TEST_P(Conformance, P03ACompletionIsTrueWhenAcknowledgementsWereLost) {
  REQUIRE_CAP(lost_acks);
  const Reported reported =
      each_report_is_true([](FaultInjector& t) { t.lose_acks(kA, kB, Phase::kBegin); },
                          [](FaultInjector& t) { t.lose_acks(kA, kB, Phase::kEnd); });
  if (GetParam().caps.exact_replay) {
    EXPECT_EQ(reported.unsplit_unknown, 0u) << "the target could report what it took";
  } else {
    EXPECT_GT(reported.unknown, 0u);
  }
}

TEST_P(Conformance, P03ACompletionIsTrueWhenTheReceiverTookNoCounts) {
  REQUIRE_CAP(not_ready);
  const Reported reported =
      each_report_is_true([](FaultInjector& t) { t.not_ready(kB, Phase::kBegin); },
                          [](FaultInjector& t) { t.not_ready(kB, Phase::kEnd); });
  if (GetParam().caps.exact_replay) {
    EXPECT_EQ(reported.unsplit_unknown, 0u) << "the target could report what it did not take";
    EXPECT_GT(reported.not_delivered, 0u);
  }
}

TEST_P(Conformance, P03ACompletionIsTrueWhenTheLastRailWent) {
  REQUIRE_CAP(lost_rails);
  const uint32_t rails = ea().peer_info(ab().peer)->rails_here;
  const auto all = [&](FaultInjector& t, Phase phase) {
    for (uint32_t rail = 0; rail < rails; ++rail) t.lose_rail(kA, rail, phase);
  };
  const Reported reported = each_report_is_true([&](FaultInjector& t) { all(t, Phase::kBegin); },
                                                [&](FaultInjector& t) { all(t, Phase::kEnd); });
  EXPECT_GT(reported.not_delivered, 0u);
  if (GetParam().caps.exact_replay && GetParam().caps.control_apart) {
    EXPECT_EQ(reported.unsplit_unknown, 0u) << "the target could still be asked";
  }
}

TEST_P(Conformance, P03TheSourceIsFreeWhenThePeerDied) {
  REQUIRE_CAP(kills);
  for (const Nanos moment : kMoments) {
    SCOPED_TRACE(moment.count());
    reopen_with_faults();
    AuditedWrites writes(a(), b(), ab().region, recorder(), recorder());
    writes.submit();
    run_on_wire(moment);
    faults().kill(kB);
    ASSERT_TRUE(until([&] { return writes.all_completed(); })) << ea().dump();
    run_for(3s);
    writes.check(Target::kDead);
  }
}

// ---- P4 -----------------------------------------------------------------------------------------

TEST_P(Conformance, P04CancelWithASilentPeerEndsWithinTheDrainBound) {
  REQUIRE_CAP(cuts);
  uint32_t unknown = 0, not_delivered = 0;
  for (const Nanos moment : kMoments) {
    SCOPED_TRACE(moment.count());
    reopen_with_faults();
    auto batch = *ea().make_batch();
    AuditedWrites writes(a(), b(), ab().region, recorder(), recorder());
    writes.submit(batch);
    run_on_wire(moment);
    faults().cut(kA, kB, Phase::kBegin);
    const Nanos start = ea().now();
    ASSERT_TRUE(ea().cancel(batch.id()));
    ASSERT_TRUE(until([&] { return writes.all_completed(); })) << ea().dump();
    if (GetParam().caps.virtual_time) {
      EXPECT_LE(writes.last_completion() - start, config().drain_timeout + kTurn);
    }
    for (const Event& event : writes.completions().events) {
      EXPECT_TRUE(event.code == Errc::kCancelled || event.code == Errc::kOk)
          << to_string(event.code);
    }
    faults().cut(kA, kB, Phase::kEnd);
    run_for(3s);
    writes.check(Target::kConnected);
    EXPECT_EQ(batch.unknown(), writes.unknown());
    unknown += writes.unknown();
    not_delivered += writes.not_delivered();
    expect_service(b());
  }
  EXPECT_GT(unknown, 0u) << "the peer was silent beyond the bound";
  EXPECT_GT(not_delivered, 0u) << "writes that were not posted need no report from the peer";
}

TEST_P(Conformance, P04CancelKnowsAllWhenThePeerIsBackInTime) {
  REQUIRE_CAP(cuts);
  for (const Nanos moment : kMoments) {
    SCOPED_TRACE(moment.count());
    reopen_with_faults();
    auto batch = *ea().make_batch();
    AuditedWrites writes(a(), b(), ab().region, recorder(), recorder());
    writes.submit(batch);
    run_on_wire(moment);
    faults().cut(kA, kB, Phase::kBegin);
    ASSERT_TRUE(ea().cancel(batch.id()));
    run_for(200ms);
    faults().cut(kA, kB, Phase::kEnd);
    ASSERT_TRUE(until([&] { return writes.all_completed(); })) << ea().dump();
    run_for(3s);
    writes.check(Target::kConnected);
    // A split write may be half delivered: then it is neither delivered nor not delivered.
    for (uint32_t i = 0; i < AuditedWrites::kWrites; i += 2) {
      EXPECT_NE(writes.completions().find(i)->remote, Remote::kUnknown) << "write " << i;
    }
  }
}

// ---- P5 -----------------------------------------------------------------------------------------

void Conformance::others_are_served(const FaultAction& inject,
                                    const std::function<void(const EventRecorder&)>& check_b) {
  for (const Nanos moment : {Nanos(1us), Nanos(5us)}) {
    SCOPED_TRACE(moment.count());
    reopen_with_faults();
    const RemoteHost ac = connect(a(), c());
    a().in.fill(3);
    EventRecorder& to_b = recorder();
    AuditedWrites writes(a(), c(), ac.region, recorder(), recorder());
    for (uint32_t i = 0; i < AuditedWrites::kWrites; ++i) {
      ASSERT_TRUE(ea().submit(Write{.source = a().in.at(i * AuditedWrites::kSize),
                                    .target = ab().region.at(i * AuditedWrites::kSize),
                                    .size_bytes = AuditedWrites::kSize,
                                    .notify = to_b.notify(i)}));
    }
    writes.submit();
    const Nanos start = ea().now();
    run_on_wire(moment);
    inject(faults());
    ASSERT_TRUE(until([&] {
      return writes.all_completed() && to_b.count() == AuditedWrites::kWrites;
    })) << ea().dump();
    wait_idle();
    writes.check(Target::kConnected);
    EXPECT_EQ(writes.delivered(), AuditedWrites::kWrites) << "the fault was another peer's";
    if (GetParam().caps.virtual_time) {
      EXPECT_LE(writes.last_completion() - start, 10ms) << "the write waited for the other peer";
    }
    EXPECT_EQ(ea().peer_info(ac.peer)->state, PeerState::kConnected);
    check_b(to_b);
  }
}

TEST_P(Conformance, P05APeerThatDiesDisturbsNoOther) {
  REQUIRE_CAP(kills);
  uint32_t failed = 0;
  others_are_served([](FaultInjector& t) { t.kill(kB); },
                    [&](const EventRecorder& to_b) {
                      for (const Event& event : to_b.events) {
                        if (event.code == Errc::kOk) continue;
                        ++failed;
                        EXPECT_EQ(event.peer, ab().peer) << "the event names the peer";
                      }
                    });
  EXPECT_GT(failed, 0u);
}

TEST_P(Conformance, P05APeerThatIsCutOffDisturbsNoOther) {
  REQUIRE_CAP(cuts);
  uint32_t failed = 0;
  others_are_served([](FaultInjector& t) { t.cut(kA, kB, Phase::kBegin); },
                    [&](const EventRecorder& to_b) {
                      for (const Event& event : to_b.events) failed += event.code != Errc::kOk;
                      faults().cut(kA, kB, Phase::kEnd);
                      expect_service(b());
                    });
  EXPECT_GT(failed, 0u);
}

TEST_P(Conformance, P05ARailThatAPeerLosesDisturbsNoOther) {
  REQUIRE_CAP(lost_rails);
  others_are_served([](FaultInjector& t) { t.lose_rail(kB, 0, Phase::kBegin); },
                    [&](const EventRecorder&) {
                      for (const auto& rail : ea().rail_stats()) EXPECT_TRUE(rail.up);
                      faults().lose_rail(kB, 0, Phase::kEnd);
                      expect_service(b());
                    });
}

TEST_P(Conformance, P05AWrongKeyFailsItsOwnWriteOnly) {
  REQUIRE_CAP(wrong_rkeys);
  uint32_t refused = 0;
  others_are_served([](FaultInjector& t) { t.wrong_rkey(kA, kB); },
                    [&](const EventRecorder& to_b) {
                      uint32_t failed = 0;
                      for (const Event& event : to_b.events) {
                        if (event.code == Errc::kOk) continue;
                        ++failed;
                        EXPECT_EQ(event.code, Errc::kRemoteAccess);
                        EXPECT_EQ(event.peer, ab().peer);
                      }
                      EXPECT_LE(failed, 1u) << "the other writes are sent again";
                      refused += failed;
                      // Too late for any of them: it waits for the next.
                      if (failed == 0) {
                        refused +=
                            submit_and_wait(ea(), write(0, kBytes)).code == Errc::kRemoteAccess;
                      }
                      expect_service(b());
                    });
  EXPECT_GT(refused, 0u);
}

}  // namespace fabric::test

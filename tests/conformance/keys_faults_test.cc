#include <array>

#include "conformance/audited_writes.h"
#include "conformance/conformance.h"
#include "support/log_guard.h"

// P6 to P11 when paths break and hosts are cut off: counts stay exact, nothing is counted twice,
// and late counts are never counted elsewhere. The auditor checks the bytes whenever a count is
// met.

namespace fabric::test {
namespace {

using Phase = FaultInjector::Phase;
using Side = FaultInjector::Side;
using Target = AuditedWrites::Target;

}  // namespace

// ---- P6, P10: exact networks --------------------------------------------------------------------

void Conformance::everything_is_delivered_once(const FaultAction& inject,
                                               const FaultAction& repair) {
  uint64_t again = 0;
  for (const Nanos moment : kMoments) {
    SCOPED_TRACE(moment.count());
    TestEnvOptions options;
    if (moment == kMoments.back()) options.drop_control = options.duplicate_control = 0.2;
    reopen_with_faults(short_config(), options);
    AuditedWrites writes(a(), b(), ab().region, recorder(), recorder());
    writes.submit();
    run_on_wire(moment);
    inject(faults());
    run_for(1s);  // longer than a NIC tries
    repair(faults());
    ASSERT_TRUE(until([&] { return writes.all_completed(); })) << ea().dump();
    run_for(2s);
    writes.check(Target::kConnected);
    EXPECT_EQ(writes.delivered(), AuditedWrites::kWrites);
    EXPECT_EQ(eb().stats().stale_imms, 0u);
    again += ea().stats().tx.retried;
  }
  EXPECT_GT(again, 0u) << "nothing was sent again: the test shows nothing";
}

TEST_P(Conformance, P10WhatABrokenPathCarriedIsDeliveredOnce) {
  REQUIRE_CAP(broken_paths);
  REQUIRE_CAP(exact_replay);
  for (const Side side : {Side::kSender, Side::kTarget}) {
    everything_is_delivered_once([&](FaultInjector& t) { t.break_path(kA, kB, 0, side); },
                                 [](FaultInjector&) {});
  }
}

TEST_P(Conformance, P10WhatALostRailCarriedIsDeliveredOnce) {
  REQUIRE_CAP(lost_rails);
  REQUIRE_CAP(several_rails);
  REQUIRE_CAP(exact_replay);
  for (const uint32_t host : {kA, kB}) {
    everything_is_delivered_once([&](FaultInjector& t) { t.lose_rail(host, 0, Phase::kBegin); },
                                 [&](FaultInjector& t) { t.lose_rail(host, 0, Phase::kEnd); });
  }
}

TEST_P(Conformance, P10WhatWasCutOffIsDeliveredOnceAfterwards) {
  REQUIRE_CAP(cuts);
  REQUIRE_CAP(exact_replay);
  everything_is_delivered_once([](FaultInjector& t) { t.cut(kA, kB, Phase::kBegin); },
                               [](FaultInjector& t) { t.cut(kA, kB, Phase::kEnd); });
}

TEST_P(Conformance, P10WhatWasTakenUnacknowledgedIsNotCountedAgain) {
  REQUIRE_CAP(lost_acks);
  REQUIRE_CAP(exact_replay);
  everything_is_delivered_once([](FaultInjector& t) { t.lose_acks(kA, kB, Phase::kBegin); },
                               [](FaultInjector& t) { t.lose_acks(kA, kB, Phase::kEnd); });
}

TEST_P(Conformance, P10WhatLandedUncountedIsCountedOnceAfterwards) {
  REQUIRE_CAP(not_ready);
  REQUIRE_CAP(exact_replay);
  everything_is_delivered_once([](FaultInjector& t) { t.not_ready(kB, Phase::kBegin); },
                               [](FaultInjector& t) { t.not_ready(kB, Phase::kEnd); });
}

// Where it is unknown what arrived, sending it again could count it twice, and does not happen,
// however much time is left.
TEST_P(Conformance, P10WhatMayHaveArrivedIsNeverCountedTwice) {
  REQUIRE_CAP(lost_acks);
  reopen_with_faults();
  AuditedWrites writes(a(), b(), ab().region, recorder(), recorder());
  writes.submit();
  faults().lose_acks(kA, kB, Phase::kBegin);
  run_for(1s);
  faults().lose_acks(kA, kB, Phase::kEnd);
  ASSERT_TRUE(until([&] { return writes.all_completed(); })) << ea().dump();
  run_for(2s);
  writes.check(Target::kConnected);
  EXPECT_EQ(writes.unknown() > 0, !GetParam().caps.exact_replay);
}

// Whatever the network can prove: what stays unknown is poisoned on both sides, and is never sent
// again, not even when everything works.
TEST_P(Conformance, P10AFateThatStaysUnknownPoisonsItsKeyByName) {
  REQUIRE_CAP(cuts);
  reopen_with_faults();
  const PeerId of_a = *eb().connect(ea().address());
  EventRecorder& met = recorder();
  AuditedWrites writes(a(), b(), ab().region, recorder(), met);
  writes.submit({}, 300ms);
  run_on_wire(1us);
  faults().cut(kA, kB, Phase::kBegin);
  ASSERT_TRUE(until([&] { return writes.all_completed(); }));
  faults().cut(kA, kB, Phase::kEnd);
  run_for(2s);
  writes.check(Target::kConnected);
  EXPECT_GT(writes.unknown(), 0u);
  uint32_t aborted = 0;
  for (const Event& event : met.events) {
    if (event.code != Errc::kAborted) continue;
    ++aborted;
    EXPECT_EQ(event.peer, of_a) << "the peer that poisoned it";
  }
  EXPECT_GT(aborted, 0u);
}

// ---- P8 -----------------------------------------------------------------------------------------

TEST_P(Conformance, P08TheCountNeverRunsAheadThroughAFailover) {
  REQUIRE_CAP(step_hooks);
  REQUIRE_CAP(broken_paths);
  REQUIRE_CAP(exact_replay);
  constexpr uint64_t kSize = 30'000;
  constexpr uint32_t kWrites = 12;
  for (const bool unsplit : {false, true}) {
    SCOPED_TRACE(unsplit);
    reopen_with_faults();
    auto counter = *eb().make_counter();
    uint64_t samples = 0, above_begun = 0, above_whole = 0;
    auto hook = on_each_step([&] {
      const uint64_t count = counter.count();
      uint64_t begun = 0, complete = 0;
      for (uint32_t i = 0; i < kWrites; ++i) {
        begun += !untouched(i * kSize, kSize);
        complete += arrived(i * kSize, kSize);
      }
      ++samples;
      above_begun += count > begun;
      above_whole += count > complete;
    });
    for (uint32_t i = 0; i < kWrites; ++i) {
      Write request = write(i * kSize, kSize, counter.key());
      request.unsplit = unsplit;
      ASSERT_TRUE(ea().submit(request));
    }
    run_on_wire(4us);
    faults().break_path(kA, kB, 0, Side::kSender);
    EXPECT_TRUE(until([&] { return counter.count() == kWrites; })) << ea().dump();
    run_for(10ms);
    hook.end();
    run_for(1s);
    EXPECT_EQ(counter.count(), kWrites) << "count and writes differ with nothing in flight";
    EXPECT_TRUE(arrived(0, kWrites * kSize));
    EXPECT_EQ(above_begun, 0u);
    EXPECT_EQ(unsplit ? above_whole : 0u, 0u)
        << "an unsplit write counts only when all of it has landed";
    EXPECT_GT(samples, 3u);
  }
}

// ---- P11 ----------------------------------------------------------------------------------------

TEST_P(Conformance, P11WhatAFaultMadeLateCountsInNoLaterGeneration) {
  REQUIRE_CAP(cuts);
  uint64_t stale = 0;
  for (const Nanos moment : kMoments) {
    SCOPED_TRACE(moment.count());
    Config small = short_config();
    small.counters_max = 2;  // the old one's slot is used again
    reopen_with_faults(small);
    auto counter = std::make_optional(*eb().make_counter());
    auto batch = *ea().make_batch();
    for (uint32_t i = 0; i < 200; ++i) {
      Write request = write(i * 5000, 5000, counter->key());
      request.batch = batch;
      ASSERT_TRUE(ea().submit(request));
    }
    run_on_wire(moment);
    faults().cut(kA, kB, Phase::kBegin);
    run_for(100ms);
    counter.reset();
    const std::array<Counter, 2> later{*eb().make_counter(), *eb().make_counter()};
    faults().cut(kA, kB, Phase::kEnd);
    ASSERT_TRUE(ea().wait(batch, kLong)) << "the sender is not disturbed";
    wait_idle();
    for (const Counter& one : later) EXPECT_EQ(one.count(), 0u);
    stale += eb().stats().stale_imms;
  }
  EXPECT_GT(stale, 0u);
}

TEST_P(Conformance, P11CloseWithASenderThatIsCutOffCanOnlyQuarantine) {
  REQUIRE_CAP(cuts);
  reopen_with_faults();
  const uint64_t name = 12;
  CounterKey key;
  ASSERT_TRUE(ea().resolve(ab().peer, {&name, 1}, {&key, 1}, kLong));
  auto named = *eb().named_counter(name);
  EventRecorder& completions = recorder();
  faults().cut(kA, kB, Phase::kBegin);
  Write request = write(0, 5000, key);
  request.notify = completions.notify();
  ASSERT_TRUE(ea().submit(request));
  const Nanos start = eb().now();
  const auto quiescence = named.close(200ms);
  ASSERT_TRUE(quiescence);
  EXPECT_EQ(*quiescence, Quiescence::kQuarantined) << "no sender has confirmed";
  if (GetParam().caps.virtual_time) {
    EXPECT_LE(eb().now() - start, 201ms);
  }
  auto again = *eb().named_counter(name);
  EXPECT_NE(again.key(), key);
  faults().cut(kA, kB, Phase::kEnd);
  const Event end = wait_completion(completions);
  EXPECT_TRUE(end.code == Errc::kOk || end.code == Errc::kReleased) << to_string(end.code);
  wait_idle();
  EXPECT_EQ(again.count(), 0u);
}

}  // namespace fabric::test

#include <array>

#include "conformance/conformance.h"
#include "conformance/kinds.h"
#include "conformance/audited_writes.h"
#include "support/log_guard.h"

// P1 to P5 when something goes wrong under operations that are on their way: rails, paths, hosts
// and processes. The same promises without faults are in completion_test.cc.

namespace fabric::test {
namespace {

using Phase = Trouble::Phase;
using Side = Trouble::Side;
using Target = Ledger::Target;

/// From the first packet to the last acknowledgements, on every network.
constexpr std::array<Nanos, 3> kMoments{1us, 5us, 12us};
constexpr Nanos kTurn = 1ms;  // a bound is kept up to an engine's turn

/// One of everything, several times, and what became of it.
class Traffic {
 public:
  static constexpr uint32_t kRounds = 6;

  Traffic(End& from, End& to, const Way& way, Recorder& ends)
      : clock_(from.engine), kinds_(from, to, way), ends_(ends), start_(clock_.now()) {
    for (uint32_t i = 0; i < kRounds; ++i) {
      for (const auto& kind : kinds_.all()) EXPECT_TRUE(kind.submit(ends_.notify(taken_++), {}));
    }
    ends_.also = [this](const Event&) { last_end_ = clock_.now(); };
  }
  ~Traffic() { ends_.also = {}; }
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;

  bool ended() const { return ends_.total() >= taken_; }
  Nanos took() const { return last_end_ - start_; }
  uint32_t ended_with(Errc code) const {
    uint32_t n = 0;
    for (const auto& seen : ends_.seen()) n += seen.event.code == code;
    return n;
  }
  void expect_one_end_each() const {
    EXPECT_EQ(ends_.total(), taken_);
    for (uint32_t tag = 0; tag < taken_; ++tag) {
      SCOPED_TRACE(kinds_.all()[tag % kinds_.all().size()].name);
      ASSERT_EQ(ends_.count(tag), 1u);
      const Event& end = *ends_.find(tag);
      EXPECT_EQ(end.code == Errc::kOk, end.remote == Remote::kDelivered);
      EXPECT_TRUE(end.code == Errc::kOk || end.code == Errc::kRailLost ||
                  end.code == Errc::kPeerLost || end.code == Errc::kTimeout)
          << to_string(end.code);
    }
  }

 private:
  Engine& clock_;
  Kinds kinds_;
  Recorder& ends_;
  Nanos start_, last_end_{};
  uint32_t taken_ = 0;
};

}  // namespace

uint32_t Conformance::every_kind_ends_once(const Config& config, const Act& happens,
                                           const Act& over) {
  uint32_t failed = 0;
  for (const Nanos moment : kMoments) {
    SCOPED_TRACE(moment.count());
    GroundOptions options;
    if (moment == kMoments.back()) options.drop_control = options.duplicate_control = 0.2;
    expect_trouble(config, options);
    Recorder& ends = recorder();
    Traffic traffic(a(), b(), ab(), ends);
    let_fly(moment);
    happens(trouble());
    const Nanos bound = config.default_timeout + config.drain_timeout + kTurn;
    EXPECT_TRUE(until([&] { return traffic.ended(); }, 2 * bound)) << ea().dump();
    if (GetParam().caps.virtual_time) {
      EXPECT_LE(traffic.took(), bound);
    }
    if (over) over(trouble());
    settle();
    traffic.expect_one_end_each();
    EXPECT_EQ(ea().stats().ops_in_flight, 0u);
    failed += ends.total() - traffic.ended_with(Errc::kOk);
    if (over) expect_service(b());
    if (HasFatalFailure()) break;
  }
  return failed;
}

// ---- P1 -----------------------------------------------------------------------------------------

TEST_P(Conformance, P01EveryKindEndsOnceWhenARailOfTheSenderGoes) {
  REQUIRE_CAP(lost_rails);
  every_kind_ends_once(
      short_config(), [](Trouble& t) { t.lose_rail(kA, 0, Phase::kBegin); },
      [](Trouble& t) { t.lose_rail(kA, 0, Phase::kEnd); });
}

TEST_P(Conformance, P01EveryKindEndsOnceWhenARailOfTheTargetGoes) {
  REQUIRE_CAP(lost_rails);
  every_kind_ends_once(
      short_config(), [](Trouble& t) { t.lose_rail(kB, 0, Phase::kBegin); },
      [](Trouble& t) { t.lose_rail(kB, 0, Phase::kEnd); });
}

TEST_P(Conformance, P01EveryKindEndsOnceWhenAPathBreaks) {
  REQUIRE_CAP(broken_paths);
  for (const Side side : {Side::kSender, Side::kTarget}) {
    every_kind_ends_once(
        short_config(), [side](Trouble& t) { t.break_path(kA, kB, 0, side); }, [](Trouble&) {});
  }
}

TEST_P(Conformance, P01EveryKindEndsOnceWhenThePeerDies) {
  REQUIRE_CAP(kills);
  const uint32_t failed = every_kind_ends_once(short_config(), [](Trouble& t) { t.kill(kB); }, {});
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

TEST_P(Conformance, P02WhatIsUnderWayToAHostThatIsCutOffEndsInTime) {
  REQUIRE_CAP(cuts);
  const uint32_t failed = every_kind_ends_once(
      impatient(short_config()), [](Trouble& t) { t.cut(kA, kB, Phase::kBegin); },
      [](Trouble& t) { t.cut(kA, kB, Phase::kEnd); });
  EXPECT_GT(failed, 0u);
}

TEST_P(Conformance, P02WhatAStoppedPeerHasToAnswerEndsInTime) {
  REQUIRE_CAP(stops);
  const uint32_t failed = every_kind_ends_once(
      impatient(short_config()), [](Trouble& t) { t.stop(kB, Phase::kBegin); },
      [](Trouble& t) { t.stop(kB, Phase::kEnd); });
  EXPECT_GT(failed, 0u);
}

TEST_P(Conformance, P02WhatAReceiverDoesNotTakeEndsInTime) {
  REQUIRE_CAP(not_ready);
  const uint32_t failed = every_kind_ends_once(
      impatient(short_config()), [](Trouble& t) { t.not_ready(kB, Phase::kBegin); },
      [](Trouble& t) { t.not_ready(kB, Phase::kEnd); });
  EXPECT_GT(failed, 0u);
}

// ---- P3 -----------------------------------------------------------------------------------------

Conformance::Said Conformance::each_end_is_true(const Act& happens, const Act& over) {
  Said said;
  for (const Nanos moment : kMoments) {
    SCOPED_TRACE(moment.count());
    expect_trouble();
    Ledger ledger(a(), b(), ab().in, recorder(), recorder());
    ledger.submit({}, 300ms);
    let_fly(moment);
    happens(trouble());
    EXPECT_TRUE(until([&] { return ledger.ended(); })) << ea().dump();
    over(trouble());
    run_for(3s);  // whatever is late, and the word about spoiled keys
    ledger.check(Target::kConnected);
    said.delivered += ledger.delivered();
    said.not_delivered += ledger.not_delivered();
    said.unknown += ledger.unknown();
    for (uint32_t i = 0; i < Ledger::kWrites; i += 2) {  // the uncut ones
      said.whole_unknown += ledger.ends().find(i)->remote == Remote::kUnknown;
    }
    expect_service(b());
    if (HasFatalFailure()) break;
  }
  return said;
}

TEST_P(Conformance, P03AnEndIsTrueWhenTheHostsWereCutOff) {
  REQUIRE_CAP(cuts);
  const Said said = each_end_is_true([](Trouble& t) { t.cut(kA, kB, Phase::kBegin); },
                                     [](Trouble& t) { t.cut(kA, kB, Phase::kEnd); });
  EXPECT_GT(said.unknown, 0u) << "nobody could say what had become of those on their way";
  EXPECT_GT(said.not_delivered, 0u);
}

TEST_P(Conformance, P03AnEndIsTrueWhenTheSenderDidNotHearOfIt) {
  REQUIRE_CAP(lost_acks);
  const Said said = each_end_is_true([](Trouble& t) { t.lose_acks(kA, kB, Phase::kBegin); },
                                     [](Trouble& t) { t.lose_acks(kA, kB, Phase::kEnd); });
  if (GetParam().caps.exact_replay) {
    EXPECT_EQ(said.whole_unknown, 0u) << "the target was there to say what it took";
  } else {
    EXPECT_GT(said.unknown, 0u);
  }
}

TEST_P(Conformance, P03AnEndIsTrueWhenTheReceiverTookNoCounts) {
  REQUIRE_CAP(not_ready);
  const Said said = each_end_is_true([](Trouble& t) { t.not_ready(kB, Phase::kBegin); },
                                     [](Trouble& t) { t.not_ready(kB, Phase::kEnd); });
  if (GetParam().caps.exact_replay) {
    EXPECT_EQ(said.whole_unknown, 0u) << "the target was there to say what it did not take";
    EXPECT_GT(said.not_delivered, 0u);
  }
}

TEST_P(Conformance, P03AnEndIsTrueWhenTheLastRailWent) {
  REQUIRE_CAP(lost_rails);
  const uint32_t rails = ea().peer_info(ab().peer)->rails_here;
  const auto all = [&](Trouble& t, Phase phase) {
    for (uint32_t rail = 0; rail < rails; ++rail) t.lose_rail(kA, rail, phase);
  };
  const Said said = each_end_is_true([&](Trouble& t) { all(t, Phase::kBegin); },
                                     [&](Trouble& t) { all(t, Phase::kEnd); });
  EXPECT_GT(said.not_delivered, 0u);
  if (GetParam().caps.exact_replay && GetParam().caps.control_apart) {
    EXPECT_EQ(said.whole_unknown, 0u) << "the target could still be asked";
  }
}

TEST_P(Conformance, P03TheSourceIsFreeWhenThePeerDied) {
  REQUIRE_CAP(kills);
  for (const Nanos moment : kMoments) {
    SCOPED_TRACE(moment.count());
    expect_trouble();
    Ledger ledger(a(), b(), ab().in, recorder(), recorder());
    ledger.submit();
    let_fly(moment);
    trouble().kill(kB);
    ASSERT_TRUE(until([&] { return ledger.ended(); })) << ea().dump();
    run_for(3s);
    ledger.check(Target::kDead);
  }
}

// ---- P4 -----------------------------------------------------------------------------------------

TEST_P(Conformance, P04CancelWithASilentPeerEndsWithinTheDrainBound) {
  REQUIRE_CAP(cuts);
  uint32_t unknown = 0, not_delivered = 0;
  for (const Nanos moment : kMoments) {
    SCOPED_TRACE(moment.count());
    expect_trouble();
    auto batch = *ea().make_batch();
    Ledger ledger(a(), b(), ab().in, recorder(), recorder());
    ledger.submit(batch);
    let_fly(moment);
    trouble().cut(kA, kB, Phase::kBegin);
    const Nanos start = ea().now();
    ASSERT_TRUE(ea().cancel(batch.id()));
    ASSERT_TRUE(until([&] { return ledger.ended(); })) << ea().dump();
    if (GetParam().caps.virtual_time) {
      EXPECT_LE(ledger.last_end() - start, config().drain_timeout + kTurn);
    }
    for (const auto& seen : ledger.ends().seen()) {
      EXPECT_TRUE(seen.event.code == Errc::kCancelled || seen.event.code == Errc::kOk)
          << to_string(seen.event.code);
    }
    trouble().cut(kA, kB, Phase::kEnd);
    run_for(3s);
    ledger.check(Target::kConnected);
    EXPECT_EQ(batch.unknown(), ledger.unknown());
    unknown += ledger.unknown();
    not_delivered += ledger.not_delivered();
    expect_service(b());
  }
  EXPECT_GT(unknown, 0u) << "the peer was silent beyond the bound";
  EXPECT_GT(not_delivered, 0u) << "what was not posted needs nobody's word";
}

TEST_P(Conformance, P04CancelKnowsAllWhenThePeerIsBackInTime) {
  REQUIRE_CAP(cuts);
  for (const Nanos moment : kMoments) {
    SCOPED_TRACE(moment.count());
    expect_trouble();
    auto batch = *ea().make_batch();
    Ledger ledger(a(), b(), ab().in, recorder(), recorder());
    ledger.submit(batch);
    let_fly(moment);
    trouble().cut(kA, kB, Phase::kBegin);
    ASSERT_TRUE(ea().cancel(batch.id()));
    run_for(200ms);
    trouble().cut(kA, kB, Phase::kEnd);
    ASSERT_TRUE(until([&] { return ledger.ended(); })) << ea().dump();
    run_for(3s);
    ledger.check(Target::kConnected);
    // Some pieces of a cut write may have gone and others not: then nobody can call it either.
    for (uint32_t i = 0; i < Ledger::kWrites; i += 2) {
      EXPECT_NE(ledger.ends().find(i)->remote, Remote::kUnknown) << "write " << i;
    }
  }
}

// ---- P5 -----------------------------------------------------------------------------------------

void Conformance::others_are_served(const Act& happens,
                                    const std::function<void(const Recorder&)>& look_at_b) {
  for (const Nanos moment : {Nanos(1us), Nanos(5us)}) {
    SCOPED_TRACE(moment.count());
    expect_trouble();
    const Way ac = way(a(), c());
    a().in.fill(3);
    Recorder& to_b = recorder();
    Ledger ledger(a(), c(), ac.in, recorder(), recorder());
    for (uint32_t i = 0; i < Ledger::kWrites; ++i) {
      ASSERT_TRUE(ea().submit(Write{.source = a().in.at(i * Ledger::kSize),
                                    .target = ab().in.at(i * Ledger::kSize),
                                    .size_bytes = Ledger::kSize,
                                    .notify = to_b.notify(i)}));
    }
    ledger.submit();
    const Nanos start = ea().now();
    let_fly(moment);
    happens(trouble());
    ASSERT_TRUE(until([&] { return ledger.ended() && to_b.total() == Ledger::kWrites; }))
        << ea().dump();
    settle();
    ledger.check(Target::kConnected);
    EXPECT_EQ(ledger.delivered(), Ledger::kWrites) << "somebody else's trouble";
    if (GetParam().caps.virtual_time) {
      EXPECT_LE(ledger.last_end() - start, 10ms) << "nor did it wait for them";
    }
    EXPECT_EQ(ea().peer_info(ac.peer)->state, PeerState::kConnected);
    look_at_b(to_b);
  }
}

TEST_P(Conformance, P05APeerThatDiesDisturbsNoOther) {
  REQUIRE_CAP(kills);
  uint32_t failed = 0;
  others_are_served([](Trouble& t) { t.kill(kB); },
                    [&](const Recorder& to_b) {
                      for (const auto& seen : to_b.seen()) {
                        if (seen.event.code == Errc::kOk) continue;
                        ++failed;
                        EXPECT_EQ(seen.event.peer, ab().peer) << "it says who";
                      }
                    });
  EXPECT_GT(failed, 0u);
}

TEST_P(Conformance, P05APeerThatIsCutOffDisturbsNoOther) {
  REQUIRE_CAP(cuts);
  uint32_t failed = 0;
  others_are_served([](Trouble& t) { t.cut(kA, kB, Phase::kBegin); },
                    [&](const Recorder& to_b) {
                      for (const auto& seen : to_b.seen()) failed += seen.event.code != Errc::kOk;
                      trouble().cut(kA, kB, Phase::kEnd);
                      expect_service(b());
                    });
  EXPECT_GT(failed, 0u);
}

TEST_P(Conformance, P05ARailThatAPeerLosesDisturbsNoOther) {
  REQUIRE_CAP(lost_rails);
  others_are_served([](Trouble& t) { t.lose_rail(kB, 0, Phase::kBegin); },
                    [&](const Recorder&) {
                      for (const auto& rail : ea().rail_stats()) EXPECT_TRUE(rail.up);
                      trouble().lose_rail(kB, 0, Phase::kEnd);
                      expect_service(b());
                    });
}

TEST_P(Conformance, P05AWrongKeyFailsItsOwnWriteOnly) {
  REQUIRE_CAP(wrong_keys);
  uint32_t refused = 0;
  others_are_served([](Trouble& t) { t.wrong_key(kA, kB); },
                    [&](const Recorder& to_b) {
                      uint32_t failed = 0;
                      for (const auto& seen : to_b.seen()) {
                        if (seen.event.code == Errc::kOk) continue;
                        ++failed;
                        EXPECT_EQ(seen.event.code, Errc::kRemoteAccess);
                        EXPECT_EQ(seen.event.peer, ab().peer);
                      }
                      EXPECT_LE(failed, 1u) << "innocents are sent again";
                      refused += failed;
                      // Too late for any of them: it waits for the next.
                      if (failed == 0) {
                        refused += end_of(ea(), write(0, kBytes)).code == Errc::kRemoteAccess;
                      }
                      expect_service(b());
                    });
  EXPECT_GT(refused, 0u);
}

}  // namespace fabric::test

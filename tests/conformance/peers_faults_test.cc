#include <algorithm>
#include <array>

#include "conformance/audited_writes.h"
#include "conformance/conformance.h"
#include "conformance/kinds.h"
#include "support/log_guard.h"

// P13 to P22 with peers that are stopped, cut off or dead: memory is taken back from writers that
// do not answer, peers are declared lost and come back, no other peer waits, and close() returns.

namespace fabric::test {
namespace {

using Phase = FaultInjector::Phase;
using Target = AuditedWrites::Target;

constexpr Timeout kSoon = 200ms;  // long before a NIC gives up what it could not deliver

bool fences_alone(FenceKind kind) { return kind == FenceKind::kLocal || kind == FenceKind::kHost; }

}  // namespace

// ---- P13 ----------------------------------------------------------------------------------------

void Conformance::leave_a_zombie(RemoteRegion in, EventRecorder& completions) {
  for (uint32_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(ea().submit(Write{.source = a().out.at(i * 10'000),
                                  .target = in.at(i * 10'000),
                                  .size_bytes = 10'000,
                                  .notify = completions.notify(i)}));
  }
  run_on_wire(1us);  // they are with the NICs
  faults().cut(kA, kB, Phase::kBegin);
  faults().stop(kA, Phase::kBegin);
}

TEST_P(Conformance, P13AFenceHoldsAgainstAStoppedWriter) {
  REQUIRE_CAP(cuts);
  REQUIRE_CAP(stops);
  reopen_with_faults();
  const PeerId of_a = *eb().connect(ea().address());
  const bool alone = fences_alone(eb().peer_info(of_a)->fence);
  EventRecorder& completions = recorder();
  EventRecorder& reported = recorder();
  const auto subscription = *eb().subscribe(reported.notify());
  leave_a_zombie(ab().region, completions);
  EventRecorder& fenced = recorder();
  const auto fence = eb().submit(Fence{.peer = of_a, .timeout = kSoon, .notify = fenced.notify()});
  ASSERT_TRUE(fence);
  const Event event = wait_completion(fenced);
  EXPECT_EQ(event.code, alone ? Errc::kOk : Errc::kTimeout);
  EXPECT_EQ(event.remote, alone ? Remote::kDelivered : Remote::kUnknown);
  auto at_the_proof = b().in.bytes;
  faults().cut(kA, kB, Phase::kEnd);  // what its NICs hold comes through
  run_for(600ms);
  if (!alone) {
    EXPECT_NE(at_the_proof, b().in.bytes) << "no late write landed: the test shows nothing";
    EXPECT_EQ(reported.count(EventKind::kFenceProved), 0u);
    // Its descriptor is what the writer still has.
    EXPECT_EQ(submit_and_wait(eb(), Deregister{.region = b().in.region.id()}).code, Errc::kOk);
    ASSERT_TRUE(until([&] { return reported.count(EventKind::kFenceProved) == 1; }));
    EXPECT_EQ(reported.find(EventKind::kFenceProved)->op, *fence);
    EXPECT_EQ(reported.find(EventKind::kFenceProved)->peer, of_a);
    at_the_proof = b().in.bytes;
  }
  faults().stop(kA, Phase::kEnd);
  ASSERT_TRUE(until([&] { return completions.count() == 100; })) << ea().dump();
  wait_idle();
  EXPECT_EQ(at_the_proof, b().in.bytes) << "a write landed after the proof";
  EXPECT_EQ(eb().peer_info(of_a)->state, PeerState::kFenced);
  EXPECT_EQ(ea().submit(write(0, 8)).error().code, Errc::kPeerLost);
  EXPECT_EQ(fenced.count(), 1u);
}

TEST_P(Conformance, P13AGrantIsTakenBackFromAStoppedWriter) {
  REQUIRE_CAP(cuts);
  REQUIRE_CAP(stops);
  reopen_with_faults();
  const PeerId of_a = *eb().connect(ea().address());
  if (eb().peer_info(of_a)->fence == FenceKind::kNone)
    GTEST_SKIP() << GetParam().name << " has FenceKind::kNone: only the peer's reply fences";
  EXPECT_EQ(submit_and_wait(eb(), Deregister{.region = b().in.region.id()}).code, Errc::kOk);
  auto block = make_memory(eb());
  const auto region = ea().import_region(ab().peer, block.region.grant(of_a)->desc);
  ASSERT_TRUE(region);
  EventRecorder& completions = recorder();
  leave_a_zombie(*region, completions);
  EXPECT_EQ(submit_and_wait(eb(), Fence{.peer = of_a, .timeout = kSoon}).code, Errc::kOk)
      << "the revoked rkey was the peer's only one";
  const auto at_the_end = block.bytes;
  faults().cut(kA, kB, Phase::kEnd);
  run_for(600ms);
  faults().stop(kA, Phase::kEnd);
  ASSERT_TRUE(until([&] { return completions.count() == 100; })) << ea().dump();
  wait_idle();
  EXPECT_EQ(at_the_end, block.bytes) << "a write landed after the fence";
}

TEST_P(Conformance, P13DeregisterHoldsAgainstAStoppedWriter) {
  REQUIRE_CAP(cuts);
  REQUIRE_CAP(stops);
  reopen_with_faults();
  EventRecorder& completions = recorder();
  leave_a_zombie(ab().region, completions);
  EXPECT_EQ(submit_and_wait(eb(), Deregister{.region = b().in.region.id(), .timeout = kSoon}).code,
            Errc::kOk);
  const auto at_the_end = b().in.bytes;
  faults().cut(kA, kB, Phase::kEnd);
  run_for(600ms);
  faults().stop(kA, Phase::kEnd);
  ASSERT_TRUE(until([&] { return completions.count() == 100; })) << ea().dump();
  wait_idle();
  EXPECT_EQ(at_the_end, b().in.bytes) << "a write landed after the deregistration";
}

TEST_P(Conformance, P13AProofThatComesLateIsAnEvent) {
  REQUIRE_CAP(late_proofs);
  REQUIRE_CAP(stops);
  reopen_with_faults();
  const PeerId of_a = *eb().connect(ea().address());
  EventRecorder& reported = recorder();
  EventRecorder& completions = recorder();
  const auto subscription = *eb().subscribe(reported.notify());
  faults().delay_proofs(kB, 1s);
  faults().stop(kA, Phase::kBegin);
  const auto gone = eb().submit(
      Deregister{.region = b().in.region.id(), .timeout = kSoon, .notify = completions.notify(0)});
  const auto fence =
      eb().submit(Fence{.peer = of_a, .timeout = kSoon, .notify = completions.notify(1)});
  ASSERT_TRUE(gone && fence);
  for (const uint64_t tag : {0, 1}) {
    SCOPED_TRACE(tag);
    const Event end = wait_completion(completions, tag);
    EXPECT_EQ(end.code, Errc::kTimeout);
    EXPECT_EQ(end.remote, Remote::kUnknown);
  }
  EXPECT_EQ(reported.count(EventKind::kFenceProved), 0u);
  run_for(3s);
  std::vector<OpId> proved;
  for (const Event& event : reported.events) {
    if (event.kind == EventKind::kFenceProved) proved.push_back(event.op);
  }
  std::sort(proved.begin(), proved.end());
  std::vector<OpId> asked{*gone, *fence};
  std::sort(asked.begin(), asked.end());
  EXPECT_EQ(proved, asked) << "each is proved once";
  EXPECT_EQ(completions.count(), 2u);
  faults().delay_proofs(kB, 0s);
  faults().stop(kA, Phase::kEnd);
}

// ---- P15 ----------------------------------------------------------------------------------------

TEST_P(Conformance, P15AKilledPeerComesBackUnderItsNameAsANewOne) {
  REQUIRE_CAP(kills);
  reopen_with_faults();
  Config named = short_config();
  named.engine_id = 77;
  const RemoteHost before = connect(a(), restart(kB, named));
  const auto old = *ea().peer_info(before.peer);
  const auto old_desc = *b().in.region.desc();
  EventRecorder& completions = recorder();
  faults().kill(kB);
  const Write request{.source = a().out.at(0),
                      .target = before.region.at(0),
                      .size_bytes = 50'000,
                      .notify = completions.notify()};
  ASSERT_TRUE(ea().submit(request));
  run_for(10ms);
  const Nanos start = ea().now();
  const RemoteHost after = connect(a(), restart(kB, named));
  const Event end = wait_completion(completions);
  EXPECT_EQ(end.code, Errc::kPeerLost);
  if (GetParam().caps.virtual_time) {
    EXPECT_LE(ea().now() - start, 1s)
        << "the new incarnation is the proof: there must be no wait for a timeout";
  }
  const auto now = *ea().peer_info(after.peer);
  EXPECT_NE(after.peer, before.peer);
  EXPECT_EQ(now.engine_id, old.engine_id);
  EXPECT_GT(now.incarnation, old.incarnation);
  EXPECT_EQ(ea().peer_info(before.peer)->state, PeerState::kLost);
  EXPECT_EQ(ea().submit(request).error().code, Errc::kPeerLost);
  EXPECT_EQ(ea().submit(Send{.peer = before.peer}).error().code, Errc::kPeerLost);
  EXPECT_EQ(ea().import_region(before.peer, old_desc).error().code, Errc::kPeerLost);
  EXPECT_EQ(ea().import_region(after.peer, old_desc).error().code, Errc::kPeerLost);
  expect_service(b());
}

// ---- P16 ----------------------------------------------------------------------------------------

TEST_P(Conformance, P16AStoppedPeerStallsOnceAndEverythingResumesWithIt) {
  REQUIRE_CAP(stops);
  reopen_with_faults();
  EventRecorder& reported = recorder();
  EventRecorder& completions = recorder();
  EventRecorder& messages = recorder();
  const auto subscription = *ea().subscribe(reported.notify());
  const auto listener = *eb().listen(3, messages.notify());
  auto bound = *ea().make_counter();
  ASSERT_TRUE(bound.bind(ab().peer));
  ASSERT_TRUE(bound.expect(1, completions.notify(1), Timeout::forever()));
  faults().stop(kB, Phase::kBegin);
  ASSERT_TRUE(ea().submit(Send{.peer = ab().peer, .channel = 3, .notify = completions.notify(2)}));
  ASSERT_TRUE(ea().submit(
      Send{.peer = ab().peer, .channel = 3, .timeout = 1s, .notify = completions.notify(3)}));
  const Nanos start = ea().now();
  ASSERT_TRUE(until([&] { return ea().peer_info(ab().peer)->state == PeerState::kStalled; }));
  if (GetParam().caps.virtual_time) {
    EXPECT_LE(ea().now() - start, config().peer_timeout + config().peer_timeout / 2);
  }
  EXPECT_EQ(completions.find(3)->code, Errc::kTimeout) << "the operation must end by its deadline";
  run_for(500ms);
  EXPECT_EQ(completions.count(), 1u) << "another operation completed";
  faults().stop(kB, Phase::kEnd);
  EXPECT_EQ(wait_completion(completions, 2).code, Errc::kOk);
  wait_idle();
  EXPECT_EQ(
      reported.states(ab().peer),
      (std::vector<PeerState>{PeerState::kConnected, PeerState::kStalled, PeerState::kConnected}));
  EXPECT_EQ(completions.count(1), 0u);
  EXPECT_GE(messages.count(), 1u);
  expect_service(b());
}

void Conformance::is_lost_once(const FaultAction& inject) {
  reopen_with_faults();
  const RemoteHost ac = connect(a(), c());
  EventRecorder& reported = recorder();
  EventRecorder& completions = recorder();
  const auto subscription = *ea().subscribe(reported.notify());
  auto bound = *ea().make_counter();
  auto member = *ea().make_counter();
  auto other = *ea().make_counter();
  auto group = *ea().make_counter_group();
  ASSERT_TRUE(bound.bind(ab().peer));
  ASSERT_TRUE(group.add(member, ab().peer));
  ASSERT_TRUE(other.bind(ac.peer));
  ASSERT_TRUE(bound.expect(1, completions.notify(1), Timeout::forever()));
  ASSERT_TRUE(group.expect(1, completions.notify(2), Timeout::forever()));
  ASSERT_TRUE(other.expect(1, completions.notify(3), Timeout::forever()));
  Nanos lost{};
  reported.then = [&](const Event& event) {
    if (event.kind == EventKind::kPeer && event.peer == ab().peer) lost = ea().now();
  };
  const Nanos start = ea().now();
  inject(faults());
  for (const uint64_t tag : {1, 2}) {
    const Event end = wait_completion(completions, tag);
    EXPECT_EQ(end.code, Errc::kPeerLost);
    EXPECT_EQ(end.peer, ab().peer) << "the event must name the peer";
  }
  if (GetParam().caps.virtual_time) {
    EXPECT_LE(ea().now() - lost, 1ms) << "the waits must end when the peer is lost";
    EXPECT_LE(lost - start, config().lost_timeout + config().peer_timeout / 4 + 1ms);
  }
  run_for(10s);
  reported.then = {};
  const auto states = reported.states(ab().peer);
  EXPECT_EQ(std::count(states.begin(), states.end(), PeerState::kLost), 1);
  EXPECT_LE(std::count(states.begin(), states.end(), PeerState::kStalled), 1);
  EXPECT_EQ(states.back(), PeerState::kLost);
  EXPECT_EQ(reported.states(ac.peer), std::vector<PeerState>{PeerState::kConnected});
  EXPECT_EQ(completions.count(3), 0u) << "a wait that names another peer must not end";
  EXPECT_EQ(bound.wait(1, 1ms).error().code, Errc::kPeerLost);
}

TEST_P(Conformance, P16AHostThatIsCutOffIsLostOnceAndMeetsUsAgain) {
  REQUIRE_CAP(cuts);
  is_lost_once([](FaultInjector& t) { t.cut(kA, kB, Phase::kBegin); });
  const PeerId old = ab().peer;
  faults().cut(kA, kB, Phase::kEnd);
  EXPECT_TRUE(until([&] { return eb().peers().empty(); })) << "the peer did not close its session";
  expect_service(b());
  EXPECT_NE(*ea().connect(eb().address()), old);
}

TEST_P(Conformance, P16AProcessThatDiesIsLostOnceAndReplaced) {
  REQUIRE_CAP(kills);
  is_lost_once([](FaultInjector& t) { t.kill(kB); });
  expect_service(restart(kB, config()));
}

// ---- P18 ----------------------------------------------------------------------------------------

TEST_P(Conformance, P18ADeadPeerTakesNoMoreThanItsBoundAndHoldsUpNoOther) {
  REQUIRE_CAP(kills);
  Config small = short_config();
  small.ops_max = 256;
  reopen_with_faults(small);
  const RemoteHost ac = connect(a(), c());
  EventRecorder& reported = recorder();
  EventRecorder& to_b = recorder();
  const auto subscription = *ea().subscribe(reported.notify());
  AuditedWrites writes(a(), c(), ac.region, recorder(), recorder());
  Write request{.source = a().in.at(0), .target = ab().region.at(0), .size_bytes = 20'000};
  request.notify = to_b.notify();
  uint32_t taken = 0;
  faults().kill(kB);
  for (; taken < 100; ++taken) ASSERT_TRUE(ea().submit(request));
  const Nanos start = ea().now();
  writes.submit();
  ASSERT_TRUE(until([&] { return writes.all_completed(); })) << ea().dump();
  if (GetParam().caps.virtual_time) {
    EXPECT_LE(writes.last_completion() - start, 10ms);
  }
  wait_idle();
  writes.check(Target::kConnected);
  EXPECT_EQ(writes.delivered(), AuditedWrites::kWrites);
  // Then it is flooded.
  Errc refused = Errc::kOk;
  while (taken < 10'000) {
    const auto op = ea().submit(request);
    refused = op.error().code;
    if (!op) break;
    ++taken;
  }
  EXPECT_TRUE(refused == Errc::kExhausted || refused == Errc::kPeerLost) << to_string(refused);
  EXPECT_LE(ea().stats().ops_in_flight, small.ops_max);
  EXPECT_TRUE(until([&] { return to_b.count() == taken; })) << ea().dump();
  wait_idle();
  EXPECT_EQ(to_b.count(), taken);
  EXPECT_EQ(reported.count(EventKind::kRoom), refused == Errc::kExhausted ? 1u : 0u);
  expect_service(c());
}

// ---- P1, P22 ------------------------------------------------------------------------------------

void Conformance::close_returns_in_time(const FaultAction& inject) {
  reopen_with_faults();
  EventRecorder& completions = recorder();
  Engine& clock = c().engine;
  uint32_t taken = 0;
  {
    Kinds kinds(a(), b(), ab());
    auto batch = *ea().make_batch();
    auto bound = *ea().make_counter();
    ASSERT_TRUE(bound.bind(ab().peer));
    ASSERT_TRUE(bound.expect(1, completions.notify(taken++), Timeout::forever()));
    for (int round = 0; round < 6; ++round) {
      for (const auto& kind : kinds.all())
        ASSERT_TRUE(kind.submit(completions.notify(taken++), batch));
    }
    run_on_wire(3us);
    inject(faults());
    run_on_wire(100us);
    const Nanos start = clock.now();
    (void)ea().close();  // kTimeout is a true answer too
    EXPECT_EQ(completions.count(), taken) << "all reported when close() returns";
    if (GetParam().caps.virtual_time) {
      EXPECT_LE(clock.now() - start, 2 * config().drain_timeout);
    }
    EXPECT_EQ(bound.wait(1, 1ms).error().code, Errc::kClosed);
    EXPECT_EQ(ea().submit(write(0, 8)).error().code, Errc::kClosed);
    EXPECT_EQ(batch.pending(), 0u);
  }
  wait_idle();
  for (uint32_t tag = 0; tag < taken; ++tag) EXPECT_EQ(completions.count(tag), 1u) << tag;
}

TEST_P(Conformance, P22CloseEndsInTimeWithADeadPeer) {
  REQUIRE_CAP(kills);
  close_returns_in_time([](FaultInjector& t) { t.kill(kB); });
}

TEST_P(Conformance, P22CloseEndsInTimeWithAStoppedPeer) {
  REQUIRE_CAP(stops);
  close_returns_in_time([](FaultInjector& t) { t.stop(kB, Phase::kBegin); });
  faults().stop(kB, Phase::kEnd);
}

TEST_P(Conformance, P22CloseEndsInTimeWithAPeerThatIsCutOff) {
  REQUIRE_CAP(cuts);
  close_returns_in_time([](FaultInjector& t) { t.cut(kA, kB, Phase::kBegin); });
}

}  // namespace fabric::test

#include <algorithm>
#include <cstring>

#include "conformance/conformance.h"
#include "support/log_guard.h"

// P13 for one grant: it ends alone, with a proof, while the session and the other grants go on.

namespace fabric::test::grants_test {
namespace {

using Phase = FaultInjector::Phase;

constexpr uint64_t kHalf = 1u << 19;  // the first half is for one grant, the second for the other

}  // namespace

/// Two grants of b's memory to a.
struct TwoGrants {
  TwoGrants(Engine& owner, const MemoryRegion& memory, Engine& writer, PeerId to)
      : of_a(*owner.connect(writer.address())),
        one(*memory.grant(of_a)),
        other(*memory.grant(of_a)),
        in_one(*writer.import_region(to, one.desc)),
        in_other(*writer.import_region(to, other.desc)) {}
  PeerId of_a;
  Grant one, other;
  RemoteRegion in_one, in_other;
};

TEST_P(Conformance, P13OneGrantIsRevokedAndTheOthersGoOn) {
  const TwoGrants grants(eb(), b().in.region, ea(), ab().peer);
  EXPECT_NE(grants.one.id, grants.other.id);
  EXPECT_NE(grants.one.desc, grants.other.desc);
  EXPECT_NE(grants.in_one, grants.in_other);
  const auto write_to = [&](RemoteRegion region, uint64_t at) {
    return Write{.source = a().out.at(at), .target = region.at(at), .size_bytes = 50'000};
  };
  EXPECT_EQ(submit_and_wait(ea(), write_to(grants.in_one, 0)).code, Errc::kOk);
  EXPECT_EQ(submit_and_wait(ea(), write_to(grants.in_other, kHalf)).code, Errc::kOk);
  wait_idle();
  EXPECT_TRUE(arrived(0, 50'000));
  EXPECT_TRUE(arrived(kHalf, 50'000));

  const Event revoked = submit_and_wait(eb(), Revoke{.grant = grants.one.id});
  EXPECT_EQ(revoked.code, Errc::kOk);
  EXPECT_EQ(revoked.remote, Remote::kDelivered);
  b().in.clear();
  EXPECT_EQ(ea().submit(write_to(grants.in_one, 0)).error().code, Errc::kNotFound);
  EXPECT_EQ(ea().import_region(ab().peer, grants.one.desc).error().code, Errc::kNotFound);
  EXPECT_EQ(submit_and_wait(ea(), write_to(grants.in_other, kHalf)).code, Errc::kOk);
  wait_idle();
  EXPECT_TRUE(untouched(0, 50'000));
  EXPECT_TRUE(arrived(kHalf, 50'000));
  EXPECT_EQ(eb().peer_info(grants.of_a)->state, PeerState::kConnected);
  EXPECT_EQ(ea().peer_info(ab().peer)->state, PeerState::kConnected);
  // The open descriptor of the region, and a new grant.
  EXPECT_EQ(submit_and_wait(ea(), write(kHalf / 2, 1000)).code, Errc::kOk);
  const Grant fresh = *b().in.region.grant(grants.of_a);
  const auto again = *ea().import_region(ab().peer, fresh.desc);
  EXPECT_EQ(submit_and_wait(ea(), write_to(again, 0)).code, Errc::kOk);
  wait_idle();
  EXPECT_TRUE(arrived(0, 50'000));

  EXPECT_EQ(submit_and_wait(eb(), Revoke{.grant = grants.one.id}).code, Errc::kOk)
      << "the proof holds";
  EXPECT_EQ(submit_and_wait(eb(), Revoke{.grant = GrantId(77, 1)}).code, Errc::kNotFound);
  EXPECT_EQ(eb().submit(Revoke{}).error().code, Errc::kInvalidArgument);
}

// Under load: what was posted drains or is refused, nothing lands after the proof, and the writes
// under the other grant are all delivered and counted.
TEST_P(Conformance, P13NothingLandsUnderARevokedGrant) {
  expect_log("a path broke");
  const TwoGrants grants(eb(), b().in.region, ea(), ab().peer);
  EventRecorder& completions = recorder();
  auto counter = *eb().make_counter();
  constexpr uint32_t kWrites = 60;
  constexpr uint64_t kSize = kHalf / kWrites;
  const auto submit_both = [&](uint32_t i) {
    const Write doomed{.source = a().out.at(i * kSize),
                       .target = grants.in_one.at(i * kSize),
                       .size_bytes = kSize,
                       .notify = completions.notify(1)};
    const auto taken = ea().submit(doomed);
    EXPECT_TRUE(taken || taken.error().code == Errc::kNotFound);
    ASSERT_TRUE(ea().submit(Write{.source = a().out.at(kHalf + i * kSize),
                                  .target = grants.in_other.at(kHalf + i * kSize),
                                  .size_bytes = kSize,
                                  .imm = counter.key(),
                                  .notify = completions.notify(2)}));
  };
  for (uint32_t i = 0; i < kWrites / 2; ++i) submit_both(i);
  run_on_wire(3us);
  EventRecorder& proofs = recorder();
  std::optional<TestBytes> at_the_proof;
  proofs.then = [&](const Event&) { at_the_proof.emplace(b().in.bytes); };
  ASSERT_TRUE(eb().submit(Revoke{.grant = grants.one.id, .notify = proofs.notify()}));
  for (uint32_t i = kWrites / 2; i < kWrites; ++i) submit_both(i);
  EXPECT_EQ(wait_completion(proofs).code, Errc::kOk);
  ASSERT_TRUE(counter.wait(kWrites, kLong)) << "the other grant is not disturbed";
  ASSERT_TRUE(until([&] { return completions.count(2) == kWrites; }));
  wait_idle();
  EXPECT_TRUE(arrived(kHalf, kWrites * kSize));
  EXPECT_EQ(std::memcmp(at_the_proof->data(), b().in.bytes.data(), kHalf), 0)
      << "a write landed after the proof";
  for (const Event& event : completions.events) {
    EXPECT_TRUE(event.tag == 1 || event.code == Errc::kOk) << to_string(event.code);
    if (event.tag == 1 && event.code != Errc::kOk) {
      EXPECT_TRUE(event.code == Errc::kNotFound || event.code == Errc::kRemoteAccess)
          << to_string(event.code);
    }
  }
  EXPECT_EQ(eb().peer_info(grants.of_a)->state, PeerState::kConnected);
}

TEST_P(Conformance, P13AGrantThatEndedOtherwiseIsProvedToo) {
  REQUIRE_CAP(two_engines);
  const TwoGrants grants(eb(), b().in.region, ea(), ab().peer);
  auto block = make_memory(eb(), 4096);
  const Grant of_block = *block.region.grant(grants.of_a);
  EXPECT_EQ(submit_and_wait(eb(), Deregister{.region = block.region.id()}).code, Errc::kOk);
  EXPECT_EQ(submit_and_wait(eb(), Revoke{.grant = of_block.id}).code, Errc::kOk);
  ASSERT_TRUE(eb().disconnect(grants.of_a));
  EXPECT_EQ(submit_and_wait(eb(), Revoke{.grant = grants.one.id}).code, Errc::kOk);
  wait_idle();
  EXPECT_EQ(submit_and_wait(eb(), Revoke{.grant = grants.other.id}).code, Errc::kOk);
  EXPECT_EQ(b().in.region.grant(grants.of_a).error().code, Errc::kPeerLost);
}

TEST_P(Conformance, P13AGrantIsRevokedFromAStoppedWriter) {
  REQUIRE_CAP(cuts);
  REQUIRE_CAP(stops);
  reopen_with_faults();
  const TwoGrants grants(eb(), b().in.region, ea(), ab().peer);
  EventRecorder& completions = recorder();
  leave_a_zombie(grants.in_one, completions);
  EXPECT_EQ(submit_and_wait(eb(), Revoke{.grant = grants.one.id, .timeout = 200ms}).code, Errc::kOk)
      << "by the network alone";
  const auto at_the_end = b().in.bytes;
  faults().cut(kA, kB, Phase::kEnd);
  run_for(600ms);
  faults().stop(kA, Phase::kEnd);
  ASSERT_TRUE(until([&] { return completions.count() == 100; })) << ea().dump();
  wait_idle();
  EXPECT_EQ(at_the_end, b().in.bytes) << "a write landed after the grant was revoked";
  // The session has survived, and so has the other grant.
  const auto info = eb().peer_info(grants.of_a);
  ASSERT_LT(info->state, PeerState::kLost);
  const Write other{
      .source = a().out.at(kHalf), .target = grants.in_other.at(kHalf), .size_bytes = 20'000};
  EXPECT_EQ(submit_and_wait(ea(), other).code, Errc::kOk);
  wait_idle();
  EXPECT_TRUE(arrived(kHalf, 20'000));
}

TEST_P(Conformance, P13AGrantIsRevokedFromAKilledWriter) {
  REQUIRE_CAP(kills);
  reopen_with_faults();
  const TwoGrants grants(eb(), b().in.region, ea(), ab().peer);
  for (uint32_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(ea().submit(Write{.source = a().out.at(i * 10'000),
                                  .target = grants.in_one.at(i * 10'000),
                                  .size_bytes = 10'000}));
  }
  run_on_wire(1us);
  faults().kill(kA);
  EXPECT_EQ(submit_and_wait(eb(), Revoke{.grant = grants.one.id}).code, Errc::kOk);
  const auto at_the_end = b().in.bytes;
  wait_idle();
  EXPECT_EQ(at_the_end, b().in.bytes) << "a write landed after the grant was revoked";
}

TEST_P(Conformance, P13ALateProofOfAGrantIsAnEvent) {
  REQUIRE_CAP(late_proofs);
  REQUIRE_CAP(stops);
  reopen_with_faults();
  const TwoGrants grants(eb(), b().in.region, ea(), ab().peer);
  EventRecorder& reported = recorder();
  const auto subscription = *eb().subscribe(reported.notify());
  EventRecorder& completions = recorder();
  faults().delay_proofs(kB, 1s);
  faults().stop(kA, Phase::kBegin);
  const auto op = eb().submit(
      Revoke{.grant = grants.one.id, .timeout = 200ms, .notify = completions.notify(0)});
  ASSERT_TRUE(op);
  EXPECT_TRUE(
      eb().submit(Revoke{.grant = grants.one.id, .notify = completions.notify(1)}).has_value());
  EXPECT_EQ(wait_completion(completions, 1).code, Errc::kBusy);
  const Event late = wait_completion(completions, 0);
  EXPECT_EQ(late.code, Errc::kTimeout);
  EXPECT_EQ(late.remote, Remote::kUnknown);
  // Asked again it waits for the same proof.
  ASSERT_TRUE(
      eb().submit(Revoke{.grant = grants.one.id, .timeout = 3s, .notify = completions.notify(2)}));
  EXPECT_EQ(wait_completion(completions, 2).code, Errc::kOk);
  ASSERT_TRUE(until([&] { return reported.count(EventKind::kFenceProved) == 1; }));
  EXPECT_EQ(reported.find(EventKind::kFenceProved)->op, *op);
  EXPECT_FALSE(reported.find(EventKind::kFenceProved)->peer) << "the peer is not fenced";
  faults().delay_proofs(kB, 0s);
  faults().stop(kA, Phase::kEnd);
}

}  // namespace fabric::test::grants_test

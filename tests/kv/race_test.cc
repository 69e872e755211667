#include <algorithm>

#include <gtest/gtest.h>

#include "kv/kv_cluster.h"
#include "support/log_guard.h"

// The races between a decoder, its prefillers and the network, R01 to R18. Their states are those
// of docs/kv_lifecycle.md.
// The cluster checks every page in every step, so each of these tests also shows that no page was
// lost, freed twice, or written after it was given back.

namespace fabric::kv::test::race_test {
namespace {

using sim::Fault;
using Kind = DecodeEvent::Kind;

constexpr uint32_t kPrompt = 90;
constexpr uint64_t kTotal = 6 * 4 * 2 + 1;  ///< pages, layers, tensors, the tail

sim::NicModel ordered() { return sim::NicModel::connectx7(); }
sim::NicModel unordered() { return sim::NicModel::efa_200g(); }

class KvRace : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* part : {"peer", "path", "rail", "drain", "fence", "proof"}) {
      fabric::test::expect_log(part);
    }
  }
  static bool flows(const KvCluster& cluster) {
    return cluster.attempt("r").count(Kind::kAccepted);
  }
  static void finish(KvCluster& cluster) {
    ASSERT_TRUE(cluster.run_until([&] { return cluster.all_over(); })) << cluster.engine->dump();
  }
  /// Runs until a part of the request has been pushed.
  static void run_into_the_middle(KvCluster& cluster) {
    ASSERT_TRUE(cluster.run_until(
        [&] { return cluster.prefill(0).prefiller->stats().layers_pushed >= 2; }));
  }
};

TEST_F(KvRace, R01CancelAgainstTheLastPageEndsEitherWay) {
  bool whole_seen = false, part_seen = false;
  uint64_t end = 0;
  {
    KvCluster cluster({.model = ordered()});
    ASSERT_TRUE(cluster.start("r", kPrompt));
    finish(cluster);
    end = cluster.world.events();
  }
  for (uint64_t event = end / 2; event < end; ++event) {
    KvCluster cluster({.model = ordered()});
    ASSERT_TRUE(cluster.start("r", kPrompt));
    cluster.run_until([&] { return cluster.world.events() >= event || cluster.all_over(); });
    cluster.decoder_polls = false;  // the count may be met and not seen yet
    cluster.world.run_for(Nanos(500));
    (void)cluster.decoder->cancel("r");
    cluster.decoder_polls = true;
    finish(cluster);
    if (const DecodeEvent* over = cluster.attempt("r").find(Kind::kCancelled)) {
      whole_seen = whole_seen || over->landed == kTotal;
      part_seen = part_seen || over->landed < kTotal;
    }
    cluster.expect_all_back();
    ASSERT_FALSE(HasFailure()) << "event " << event;
  }
  EXPECT_TRUE(whole_seen);
  EXPECT_TRUE(part_seen);
}

TEST_F(KvRace, R02AConfirmationThatOvertakesTheCountsWaitsForThem) {
  for (const bool per_layer : {false, true}) {
    KvCluster cluster({.model = ordered(), .per_layer = per_layer});
    cluster.happens(Fault::late_counts(0, 3ms));
    ASSERT_TRUE(cluster.start("r", kPrompt));
    run_into_the_middle(cluster);
    ASSERT_TRUE(cluster.decoder->cancel("r"));
    finish(cluster);
    EXPECT_EQ(cluster.decoder->stats().waited_for_counts, 1u);
    EXPECT_EQ(cluster.decoder->stats().revokes, 0u);
    EXPECT_GT(cluster.attempt("r").find(Kind::kCancelled)->landed, 0u);
    cluster.expect_all_back();
  }
}

/// With a counter for each layer: the first layers have been read when the cancel comes.
TEST_F(KvRace, ACancelBetweenTwoLayersCountsThoseThatAreHere) {
  KvCluster cluster({.model = ordered(), .per_layer = true, .layer_time = 1ms});
  ASSERT_TRUE(cluster.start("r", kPrompt));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.attempt("r").count(Kind::kLayer); }));
  ASSERT_TRUE(cluster.decoder->cancel("r"));
  EXPECT_EQ(cluster.decoder->layer_ready("r", 0).error().code, Errc::kCancelled);
  finish(cluster);
  EXPECT_EQ(cluster.attempt("r").find(Kind::kCancelled)->landed, 6u * 2);
  EXPECT_EQ(cluster.decoder->stats().revokes, 0u);
  cluster.expect_all_back();
}

TEST_F(KvRace, ASourceThatFailsStopsTheOthers) {
  KvCluster cluster({.model = ordered(), .sources = 2, .retry = false});
  cluster.prefill(0, 0).prefiller->drain();
  cluster.prefill(0, 1).computes = false;  // it would hold its part of the request
  ASSERT_TRUE(cluster.start("r", kPrompt));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_over(); }, 100ms));
  EXPECT_EQ(cluster.attempt("r").find(Kind::kFailed)->refused, RefuseCode::kDraining);
  EXPECT_EQ(cluster.prefill(0, 1).prefiller->stats().cancelled, 1u);
  cluster.expect_all_back();
}

/// A prefiller that does not answer a cancel, though its session is up.
TEST_F(KvRace, ARequestInDoubtTakesOnlyThoseOnItsGrantWithIt) {
  for (const uint32_t grants : {1u, 2u}) {
    KvCluster cluster({.model = unordered(), .retry = false, .grants_per_peer = grants});
    cluster.prefill(0).computes = false;
    ASSERT_TRUE(cluster.start("doubt", kPrompt));
    ASSERT_TRUE(cluster.start("other", kPrompt));
    ASSERT_TRUE(
        cluster.run_until([&] { return cluster.prefill(0).prefiller->stats().accepted == 2; }, 1s));
    cluster.prefill(0).polls = false;
    ASSERT_TRUE(cluster.decoder->cancel("doubt"));
    ASSERT_TRUE(cluster.run_until([&] { return cluster.over("doubt"); }, 4s));
    EXPECT_EQ(cluster.decoder->stats().revokes, 1u);
    EXPECT_EQ(cluster.decoder->stats().fences, 0u);
    cluster.prefill(0).polls = cluster.prefill(0).computes = true;
    cluster.prefill(0).offer("other", 0, kPrompt);
    finish(cluster);
    const DecodeEvent* failed = cluster.attempt("other").find(Kind::kFailed);
    EXPECT_EQ(failed != nullptr, grants == 1);
    if (failed != nullptr) {
      EXPECT_EQ(failed->fail, FailCode::kRevoked);
    }
    ASSERT_TRUE(cluster.start("next", kPrompt));
    finish(cluster);
    EXPECT_TRUE(cluster.attempt("next").count(Kind::kComplete)) << "with a new grant";
    cluster.run_until([&] { return cluster.prefills_idle(); }, 15s);
    cluster.expect_all_back();
  }
}

TEST_F(KvRace, R03ACancelNeverOvertakesItsDispatch) {
  for (const uint64_t seed : fabric::test::seeds(40)) {
    ClusterOptions options{.model = unordered(), .seed = seed};
    options.network.reorder_control = 0.6;
    options.network.drop_control = 0.1;
    KvCluster cluster(options);
    ASSERT_TRUE(cluster.start("first", 20));
    cluster.run_until([&] { return cluster.all_over(); });  // connected
    ASSERT_TRUE(cluster.start("r", kPrompt));
    ASSERT_TRUE(cluster.decoder->cancel("r"));
    finish(cluster);
    EXPECT_EQ(cluster.prefill(0).prefiller->stats().early_cancels, 0u) << seed;
    EXPECT_EQ(cluster.decoder->stats().revokes, 0u) << seed;
    cluster.expect_all_back();
  }
}

TEST_F(KvRace, R04ACancelAfterThePrefillerHasForgottenIsAnsweredWithAll) {
  KvCluster cluster({.model = ordered()});
  cluster.happens(Fault::late_bytes(0, 20ms));
  ASSERT_TRUE(cluster.start("r", kPrompt));
  // All is acknowledged, and nothing is visible here yet.
  ASSERT_TRUE(cluster.run_until([&] { return cluster.prefill(0).prefiller->stats().sent == 1; }));
  ASSERT_TRUE(cluster.decoder->cancel("r"));
  finish(cluster);
  EXPECT_EQ(cluster.attempt("r").find(Kind::kCancelled)->landed, kTotal);
  EXPECT_EQ(cluster.decoder->stats().waited_for_counts, 1u);
  EXPECT_EQ(cluster.prefill(0).prefiller->stats().stale_messages, 1u);
  EXPECT_EQ(cluster.prefill(0).prefiller->stats().early_cancels, 0u);
  cluster.expect_all_back();
}

TEST_F(KvRace, R05ARefusalAfterTheCancelFreesThePagesOnce) {
  KvCluster cluster({.model = ordered()});
  cluster.prefill(0).prefiller->drain();
  ASSERT_TRUE(cluster.start("first", 20, 0, 1));
  finish(cluster);
  ASSERT_TRUE(cluster.start("r", kPrompt));
  ASSERT_TRUE(cluster.decoder->cancel("r"));
  finish(cluster);
  EXPECT_TRUE(cluster.attempt("r").count(Kind::kCancelled));
  EXPECT_FALSE(cluster.attempt("r").count(Kind::kFailed));
  cluster.expect_all_back();
}

TEST_F(KvRace, R06APrefillerLostDuringTheCancelIsFenced) {
  for (const auto& model : {ordered(), unordered()}) {
    KvCluster cluster({.model = model});
    ASSERT_TRUE(cluster.start("r", kPrompt));
    run_into_the_middle(cluster);
    ASSERT_TRUE(cluster.decoder->cancel("r"));
    cluster.happens(Fault::crash(1));
    finish(cluster);
    const DecoderStats stats = cluster.decoder->stats();
    EXPECT_EQ(stats.fences + stats.revokes, 1u);
    EXPECT_EQ(stats.fences_proved, 1u);
    EXPECT_TRUE(cluster.attempt("r").count(Kind::kCancelled));
    cluster.expect_all_back();
  }
}

TEST_F(KvRace, R07AStoppedPrefillerThatContinuesCannotWriteIntoFreedPages) {
  for (const auto& model : {ordered(), unordered()}) {
    KvCluster cluster({.model = model});
    ASSERT_TRUE(cluster.start("r", kPrompt));
    run_into_the_middle(cluster);
    cluster.happens(Fault::stop(1));
    finish(cluster);  // sent again to the other group
    EXPECT_TRUE(cluster.attempt("r", 1).count(Kind::kComplete));
    cluster.happens(Fault::resume(1));
    cluster.world.run_for(10s);  // the zombie goes on with what it had
    cluster.expect_all_back();
  }
}

TEST_F(KvRace, R08ARequestSentAgainUsesOtherPagesUntilTheProof) {
  KvCluster cluster({.model = unordered()});
  ASSERT_TRUE(cluster.start("r", kPrompt));
  run_into_the_middle(cluster);
  cluster.happens(Fault::late_proof(0, 3s));
  cluster.happens(Fault::stop(1));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.over("r", 1); }));
  EXPECT_TRUE(cluster.attempt("r", 1).count(Kind::kComplete));
  EXPECT_FALSE(cluster.over("r", 0)) << "nothing is proved yet";
  for (const uint32_t page : cluster.attempt("r", 0).pages) {
    EXPECT_EQ(std::ranges::count(cluster.attempt("r", 1).pages, page), 0);
    EXPECT_NE(cluster.decoder->page_state(0, page), PageState::kUnleased);
  }
  finish(cluster);
  cluster.happens(Fault::resume(1));
  cluster.world.run_for(10s);
  cluster.expect_all_back();
}

TEST_F(KvRace, R09ARestartedDecoderLeavesNothingBehind) {
  for (const auto& model : {ordered(), unordered()}) {
    KvCluster cluster({.model = model});
    ASSERT_TRUE(cluster.start("r", kPrompt));
    run_into_the_middle(cluster);
    cluster.restart_decoder();
    ASSERT_TRUE(cluster.start("r", kPrompt, 1));
    finish(cluster);
    EXPECT_TRUE(cluster.attempt("r", 1).count(Kind::kComplete));
    ASSERT_TRUE(cluster.run_until([&] { return cluster.prefill(0).idle(); }, 30s))
        << "source pages of the old session";
    cluster.expect_all_back();
  }
}

TEST_F(KvRace, R10ARestartedPrefillerDoesNotHideItsOldSession) {
  for (const auto& model : {ordered(), unordered()}) {
    KvCluster cluster({.model = model, .retry = false});
    ASSERT_TRUE(cluster.start("r", kPrompt));
    run_into_the_middle(cluster);
    cluster.happens(Fault::crash(1));
    cluster.world.run_for(Nanos(1000));
    cluster.restart_prefill(0);
    ASSERT_TRUE(cluster.decoder->cancel("r"));
    ASSERT_TRUE(cluster.start("r", kPrompt, 1));
    finish(cluster);
    EXPECT_TRUE(cluster.attempt("r", 1).count(Kind::kComplete));
    EXPECT_EQ(cluster.decoder->stats().fences_proved, 1u);
    cluster.expect_all_back();
  }
}

TEST_F(KvRace, R11APoisonedCounterEndsInAProofAndNotInAReuse) {
  KvCluster cluster({.model = unordered()});
  ASSERT_TRUE(cluster.start("r", kPrompt));
  ASSERT_TRUE(cluster.run_until([&] { return flows(cluster); }));
  cluster.happens(Fault::lose_acks(1, 0));  // nothing is known of the writes
  uint32_t arrived = 0;
  const sim::Hook counting = cluster.world.each_arrival([&](const sim::Arrival&) { ++arrived; });
  ASSERT_TRUE(cluster.run_until([&] { return arrived >= 10; }));
  cluster.happens(Fault::break_sender(1, 0, 0));
  finish(cluster);
  const DecodeEvent* failed = cluster.attempt("r").find(Kind::kFailed);
  ASSERT_NE(failed, nullptr);
  EXPECT_TRUE(failed->fail == FailCode::kPoisoned || failed->fail == FailCode::kPrefillFailed)
      << to_string(failed->fail);
  EXPECT_EQ(cluster.decoder->stats().revokes, 1u);
  EXPECT_EQ(cluster.decoder->stats().fences_proved, 1u);
  EXPECT_EQ(cluster.decoder->stats().fences, 0u) << "the session goes on";
  cluster.happens(Fault::keep_acks(1, 0));
  ASSERT_TRUE(cluster.start("next", kPrompt));
  finish(cluster);
  EXPECT_TRUE(cluster.attempt("next").count(Kind::kComplete));
  cluster.expect_all_back();
}

TEST_F(KvRace, R12BytesThatLandTwiceDoNotReplaceWhatTheDecoderWrote) {
  for (const bool at_count : {false, true}) {
    uint64_t overwritten = 0;
    for (const uint64_t seed : fabric::test::seeds(10)) {
      KvCluster cluster({.model = unordered(), .seed = seed, .write_at_count = at_count});
      cluster.happens(Fault::twice(1, 0));
      cluster.happens(Fault::late_acks(1, 1ms));
      ASSERT_TRUE(cluster.start("r", kPrompt));
      finish(cluster);
      cluster.world.run_for(5ms);
      overwritten += cluster.overwritten;
    }
    // A decoder that writes at the count loses its bytes: this is what the wait is for.
    EXPECT_EQ(overwritten > 0, at_count);
  }
}

TEST_F(KvRace, R13AConfirmationBeforeTheReportOfTheDisarmedExpectationIsKept) {
  KvCluster cluster({.model = ordered()});
  ASSERT_TRUE(cluster.start("r", kPrompt));
  run_into_the_middle(cluster);
  cluster.decoder_polls = false;
  ASSERT_TRUE(cluster.prefill(0).prefiller->cancel("r", 0));
  cluster.world.run_for(1ms);  // its answer is in the inbox
  ASSERT_TRUE(cluster.decoder->cancel("r"));
  cluster.decoder_polls = true;
  finish(cluster);
  EXPECT_TRUE(cluster.attempt("r").count(Kind::kCancelled));
  EXPECT_EQ(cluster.decoder->stats().revokes, 0u);
  cluster.expect_all_back();
}

TEST_F(KvRace, R15ThePagesOfACancelledRequestBelongToItsLease) {
  KvCluster cluster({.model = ordered()});
  ASSERT_TRUE(cluster.start("r", kPrompt));
  run_into_the_middle(cluster);
  ASSERT_TRUE(cluster.decoder->cancel("r"));
  const auto early =
      cluster.decoder->start(cluster.request("other", kPrompt, 0, 1, cluster.attempt("r").pages));
  EXPECT_EQ(early.error().code, Errc::kBusy) << early.error().what;
  finish(cluster);
  cluster.expect_all_back();
}

TEST_F(KvRace, R16SourcePagesAreBorrowedUntilTheirWritesHaveDrained) {
  KvCluster cluster({.model = ordered()});
  cluster.happens(Fault::late_acks(1, 5ms));
  ASSERT_TRUE(cluster.start("r", kPrompt));
  finish(cluster);
  EXPECT_TRUE(cluster.attempt("r").count(Kind::kComplete));
  EXPECT_FALSE(cluster.prefill(0).idle()) << "the acknowledgements have not come";
  ASSERT_TRUE(cluster.run_until([&] { return cluster.prefill(0).idle(); }, 1s));
  cluster.expect_all_back();
}

TEST_F(KvRace, R17QuarantineIsCountedRefusesBelowTheReserveAndEndsByProof) {
  KvCluster cluster({.model = unordered(), .pages = 12, .retry = false, .reserve_pages = 2});
  ASSERT_TRUE(cluster.start("r", kPrompt));
  run_into_the_middle(cluster);
  cluster.happens(Fault::late_proof(0, 20s));
  cluster.happens(Fault::stop(1));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.attempt("r").count(Kind::kQuarantined); }));
  EXPECT_EQ(cluster.decoder->stats().pages_quarantined, 6u);
  EXPECT_EQ(cluster.decoder->page_state(0, cluster.attempt("r").pages[0]), PageState::kQuarantined);
  EXPECT_EQ(cluster.start("large", 80, 0, 1).error().code, Errc::kExhausted);
  ASSERT_TRUE(cluster.start("small", 60, 0, 1));
  finish(cluster);
  EXPECT_TRUE(cluster.attempt("r").count(Kind::kPagesFree));
  EXPECT_EQ(cluster.decoder->stats().fences_late, 1u);
  EXPECT_EQ(cluster.decoder->stats().pages_quarantined, 0u);
  cluster.happens(Fault::resume(1));
  cluster.world.run_for(10s);
  cluster.expect_all_back();
}

TEST_F(KvRace, R18TheSameAttemptTwiceIsRefusedAndAHigherOneIsNot) {
  KvCluster cluster({.model = ordered(), .retry = false});
  ASSERT_TRUE(cluster.start("r", kPrompt));
  EXPECT_EQ(cluster.start("r", kPrompt).error().code, Errc::kBusy);
  finish(cluster);
  ASSERT_TRUE(cluster.start("again", kPrompt));
  finish(cluster);
  // The router sends it again after both sides have finished it.
  DecodeRequest twice = cluster.request("r", kPrompt, 0, 0, *cluster.pool.allocate(6));
  RefuseCode refused = RefuseCode::kNone;
  cluster.then = [&](const DecodeEvent& event) {
    if (event.kind == Kind::kFailed) refused = event.refused;
  };
  cluster.decoder_polls = true;
  ASSERT_TRUE(cluster.decoder->start(twice));
  cluster.adopt("r", 0, twice.pages[0], kPrompt);
  finish(cluster);
  EXPECT_EQ(refused, RefuseCode::kDuplicate);
  ASSERT_TRUE(cluster.start("r", kPrompt, 1));
  finish(cluster);
  EXPECT_TRUE(cluster.attempt("r", 1).count(Kind::kComplete));
}

/// With a descriptor that is open to all peers, a network that proves by rkeys cannot fence one
/// peer. The grants of the session can still be revoked, one by one.
TEST_F(KvRace, AnOpenDescriptorOfTheCacheDelaysTheProofAndDoesNotPreventIt) {
  // Patient, so that the peer is lost before anything else is given up.
  KvCluster cluster({.model = unordered(), .patience = 10s, .deadline = 30s});
  ASSERT_TRUE(cluster.memory->desc());
  ASSERT_TRUE(cluster.start("r", kPrompt));
  run_into_the_middle(cluster);
  cluster.happens(Fault::crash(1));
  finish(cluster);
  EXPECT_TRUE(cluster.attempt("r").count(Kind::kQuarantined));
  EXPECT_TRUE(cluster.attempt("r").count(Kind::kPagesFree));
  EXPECT_TRUE(cluster.attempt("r", 1).count(Kind::kComplete));
  cluster.expect_all_back();
}

}  // namespace
}  // namespace fabric::kv::test::race_test

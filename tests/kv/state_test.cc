#include <algorithm>

#include <gtest/gtest.h>

#include "kv/kv_cluster.h"
#include "support/log_guard.h"

// Rows of the state table that the races do not reach, with a decoder, a prefiller and a network.
// Each row of the table by itself is in lease_test.cc.

namespace fabric::kv::test::state_test {
namespace {

using sim::Fault;
using Kind = DecodeEvent::Kind;

constexpr uint32_t kPrompt = 90;

class KvState : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* part : {"peer", "path", "rail", "drain", "fence", "proof"}) {
      fabric::test::expect_log(part);
    }
  }
  static void finish(KvCluster& cluster) {
    ASSERT_TRUE(cluster.run_until([&] { return cluster.all_over(); })) << cluster.engine->dump();
  }
  static void run_into_the_middle(KvCluster& cluster) {
    ASSERT_TRUE(cluster.run_until(
        [&] { return cluster.prefill(0).prefiller->stats().layers_pushed >= 2; }));
  }
  static FailCode why(const KvCluster& cluster) {
    const DecodeEvent* failed = cluster.attempt("r").find(Kind::kFailed);
    return failed == nullptr ? FailCode::kNone : failed->fail;
  }
};

TEST_F(KvState, IdleARequestToAnAddressWhereNothingListensGivesItsPagesBack) {
  KvCluster cluster({.retry = false});
  cluster.happens(Fault::cut(0, cluster.node_of(0)));
  ASSERT_TRUE(cluster.start("r", kPrompt));
  finish(cluster);
  EXPECT_EQ(why(cluster), FailCode::kPeerLost);
  EXPECT_EQ(cluster.decoder->stats().fences + cluster.decoder->stats().revokes, 0u)
      << "nothing was sent: there is nothing to prove";
  cluster.happens(Fault::heal(0, cluster.node_of(0)));
  cluster.expect_all_back();
}

TEST_F(KvState, AskedADispatchOfUnknownFateIsFenced) {
  for (const bool lands : {false, true}) {
    KvCluster cluster({.retry = false, .patience = 20s, .deadline = 60s});
    ASSERT_TRUE(cluster.start("first", 20));
    finish(cluster);
    // Both datagrams and writes are lost before or after the dispatch was taken.
    if (!lands) cluster.happens(Fault::cut(0, cluster.node_of(0)));
    ASSERT_TRUE(cluster.start("r", kPrompt));
    if (lands) {
      ASSERT_TRUE(cluster.run_until(
          [&] { return cluster.prefill(0).prefiller->stats().dispatches == 1; }, 1s));
      cluster.happens(Fault::cut(0, cluster.node_of(0)));
    }
    finish(cluster);
    EXPECT_EQ(why(cluster), FailCode::kPeerLost);
    EXPECT_EQ(cluster.decoder->stats().fences, 1u);
    EXPECT_EQ(cluster.decoder->stats().fences_proved, 1u);
    cluster.happens(Fault::heal(0, cluster.node_of(0)));
    ASSERT_TRUE(cluster.run_until([&] { return cluster.prefills_idle(); }, 30s));
    cluster.expect_all_back();
  }
}

TEST_F(KvState, FlowingThePrefillerGivesUpAndSaysWhatLanded) {
  KvCluster cluster({.retry = false});
  ASSERT_TRUE(cluster.start("r", kPrompt));
  run_into_the_middle(cluster);
  ASSERT_TRUE(cluster.prefill(0).prefiller->cancel("r", 0));
  finish(cluster);
  EXPECT_EQ(why(cluster), FailCode::kPrefillFailed);
  EXPECT_EQ(cluster.decoder->stats().revokes, 0u) << "its number is proof enough";
  cluster.expect_all_back();
}

TEST_F(KvState, FlowingTheDeadlineOfTheRequestStopsIt) {
  KvCluster cluster({.retry = false, .deadline = 50ms});
  cluster.prefill(0).computes = false;
  ASSERT_TRUE(cluster.start("r", kPrompt));
  const Nanos begun = cluster.world.now();
  finish(cluster);
  EXPECT_EQ(why(cluster), FailCode::kDeadline);
  EXPECT_GE(cluster.world.now() - begun, 50ms);
  EXPECT_LT(cluster.world.now() - begun, 60ms) << "the prefiller answers at once";
  EXPECT_EQ(cluster.decoder->stats().revokes, 0u);
  cluster.expect_all_back();
}

TEST_F(KvState, FlowingAStalledPrefillerIsGivenUpAfterThePatience) {
  KvCluster cluster({.retry = false, .patience = 300ms});
  ASSERT_TRUE(cluster.start("r", kPrompt));
  run_into_the_middle(cluster);
  cluster.happens(Fault::stop(1));
  const Nanos begun = cluster.world.now();
  ASSERT_TRUE(cluster.run_until([&] { return cluster.attempt("r").count(Kind::kFailed); }));
  EXPECT_EQ(why(cluster), FailCode::kStalled);
  EXPECT_GE(cluster.world.now() - begun, 300ms);
  EXPECT_LT(cluster.world.now() - begun, 2s) << "before the peer is lost";
  finish(cluster);
  cluster.happens(Fault::resume(1));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.prefills_idle(); }, 30s));
  cluster.expect_all_back();
}

TEST_F(KvState, DrainingCountsThatDoNotComeInTimeEndInAProof) {
  KvCluster cluster({.retry = false, .patience = 100ms});
  cluster.happens(Fault::late_counts(0, 800ms));
  ASSERT_TRUE(cluster.start("r", kPrompt));
  run_into_the_middle(cluster);
  ASSERT_TRUE(cluster.decoder->cancel("r"));
  finish(cluster);
  EXPECT_EQ(cluster.decoder->stats().waited_for_counts, 1u);
  EXPECT_EQ(cluster.decoder->stats().revokes, 1u) << "after four times the patience";
  EXPECT_EQ(cluster.decoder->stats().fences_proved, 1u);
  cluster.expect_all_back();
}

TEST_F(KvState, FullAPrefillerThatDiesBeforeItIsQuietIsFencedAndTheRequestGoesOn) {
  KvCluster cluster({.model = sim::NicModel::efa_200g(), .retry = false});
  cluster.happens(Fault::late_acks(1, 50ms));
  ASSERT_TRUE(cluster.start("r", kPrompt));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.attempt("r").count(Kind::kComplete); }, 1s));
  EXPECT_FALSE(cluster.over("r")) << "bytes may land once more";
  EXPECT_EQ(cluster.decoder->page_state(0, cluster.attempt("r").pages[0]), PageState::kReadable);
  cluster.happens(Fault::crash(1));
  finish(cluster);
  EXPECT_TRUE(cluster.attempt("r").count(Kind::kMayWrite));
  EXPECT_FALSE(cluster.attempt("r").count(Kind::kFailed));
  EXPECT_EQ(cluster.decoder->stats().fences_proved, 1u);
  cluster.expect_all_back();
}

TEST_F(KvState, FullAQuietThatDoesNotComeInTimeEndsInAProof) {
  KvCluster cluster({.model = sim::NicModel::efa_200g(), .retry = false, .patience = 100ms});
  cluster.happens(Fault::late_acks(1, 1s));
  ASSERT_TRUE(cluster.start("r", kPrompt));
  finish(cluster);
  EXPECT_TRUE(cluster.attempt("r").count(Kind::kComplete));
  EXPECT_TRUE(cluster.attempt("r").count(Kind::kMayWrite));
  EXPECT_EQ(cluster.decoder->stats().revokes, 1u);
  ASSERT_TRUE(cluster.run_until([&] { return cluster.prefills_idle(); }, 30s));
  cluster.expect_all_back();
}

}  // namespace
}  // namespace fabric::kv::test::state_test

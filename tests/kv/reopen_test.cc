#include <gtest/gtest.h>

#include "kv/kv_cluster.h"
#include "support/log_guard.h"

// A Decoder or a Prefiller that is opened late, or again on the same engine: the session of the
// engines goes on, and what one side remembers of the other is out of date.

namespace fabric::kv::test::reopen_test {
namespace {

using Kind = DecodeEvent::Kind;
using sim::Fault;

constexpr uint32_t kPrompt = 90;

class KvReopen : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* part : {"peer", "path", "rail", "drain", "fence", "proof"}) {
      fabric::test::expect_log(part);
    }
  }
  static const DecodeEvent* failure(const KvCluster& cluster, uint32_t attempt = 0) {
    return cluster.attempt("r", attempt).find(Kind::kFailed);
  }
  /// The next attempt of "r" completes, at once.
  static void completes(KvCluster& cluster, uint32_t attempt) {
    ASSERT_TRUE(cluster.start("r", kPrompt, attempt));
    ASSERT_TRUE(cluster.run_until([&] { return cluster.over("r", attempt); }, 500ms));
    EXPECT_TRUE(cluster.attempt("r", attempt).count(Kind::kComplete));
  }
};

TEST_F(KvReopen, APrefillerThatIsOpenedAfterTheFirstDispatchIsToldTheLayout) {
  KvCluster cluster({.retry = false});
  cluster.prefill(0).close_prefiller();
  ASSERT_TRUE(cluster.start("r", kPrompt));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.over("r"); }, 500ms));
  ASSERT_NE(failure(cluster), nullptr);
  EXPECT_EQ(failure(cluster)->fail, FailCode::kNotDelivered);
  cluster.prefill(0).open_prefiller();
  completes(cluster, 1);
  cluster.expect_all_back();
}

TEST_F(KvReopen, APrefillerThatIsOpenedAgainIsToldTheLayout) {
  KvCluster cluster({.retry = false});
  ASSERT_TRUE(cluster.start("first", kPrompt));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_over() && cluster.prefills_idle(); }));
  cluster.prefill(0).close_prefiller();
  cluster.prefill(0).open_prefiller();
  ASSERT_TRUE(cluster.start("r", kPrompt));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.over("r"); }, 500ms));
  ASSERT_NE(failure(cluster), nullptr) << "nothing has told the decoder";
  EXPECT_EQ(failure(cluster)->refused, RefuseCode::kUnknownDecoder);
  completes(cluster, 1);
  cluster.expect_all_back();
}

/// What the prefiller before it had accepted has no writer any more, and nothing else would say so.
TEST_F(KvReopen, ARequestOfAPrefillerThatWasClosedFailsWithTheNextDispatch) {
  KvCluster cluster({.retry = false});
  cluster.prefill(0).computes = false;
  ASSERT_TRUE(cluster.start("held", kPrompt));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.attempt("held").count(Kind::kAccepted); }));
  cluster.prefill(0).close_prefiller();
  cluster.prefill(0).open_prefiller();
  cluster.prefill(0).computes = true;
  ASSERT_TRUE(cluster.start("r", kPrompt));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_over(); }, 500ms));
  ASSERT_TRUE(cluster.attempt("held").count(Kind::kFailed));
  EXPECT_EQ(cluster.attempt("held").find(Kind::kFailed)->fail, FailCode::kPeerLost);
  EXPECT_EQ(cluster.decoder->stats().revokes, 1u) << "the new one knows nothing of its writes";
  completes(cluster, 1);
  cluster.expect_all_back();
}

TEST_F(KvReopen, ADecoderThatIsOpenedAgainIsServed) {
  KvCluster cluster({.retry = false});
  cluster.prefill(0).computes = false;
  ASSERT_TRUE(cluster.start("old", kPrompt));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.attempt("old").count(Kind::kAccepted); }));
  cluster.reopen_decoder();
  cluster.prefill(0).computes = true;
  // The serial number of the old request is not that of the new one, which the prefiller serves.
  completes(cluster, 0);
  EXPECT_EQ(cluster.prefill(0).prefiller->stats().accepted, 2u);
  EXPECT_EQ(cluster.prefill(0).prefiller->stats().duplicates, 0u);
  EXPECT_EQ(cluster.decoder->stats().stale_messages, 0u);
  bool lost = false;
  for (const PrefillEvent& event : cluster.prefill(0).events) {
    lost = lost || (event.kind == PrefillEvent::Kind::kDecoderLost && event.id == "old");
  }
  EXPECT_TRUE(lost);
  cluster.expect_all_back();
}

/// The first stall has been reported and has cost its requests their patience.
TEST_F(KvReopen, ARequestToAPeerThatIsStalledAlreadyHasPatienceToo) {
  KvCluster cluster({.retry = false, .patience = 100ms});
  ASSERT_TRUE(cluster.start("first", kPrompt));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_over(); }));
  cluster.prefill(0).computes = false;
  ASSERT_TRUE(cluster.start("held", kPrompt));
  cluster.happens(Fault::stop(1));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.attempt("held").count(Kind::kFailed); }));
  EXPECT_EQ(cluster.attempt("held").find(Kind::kFailed)->fail, FailCode::kStalled);
  ASSERT_TRUE(cluster.start("r", kPrompt));
  ASSERT_TRUE(cluster.run_until([&] { return failure(cluster) != nullptr; }, 200ms));
  EXPECT_EQ(failure(cluster)->fail, FailCode::kStalled);
  cluster.happens(Fault::resume(1));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_over(); }));
}

TEST_F(KvReopen, TimesMayBeTheLargestThereAre) {
  KvCluster cluster({.retry = false, .patience = Nanos::max(), .deadline = Nanos::max()});
  cluster.world.run_for(1ms);  // a time after the beginning
  completes(cluster, 0);
  ASSERT_TRUE(cluster.start("cancelled", kPrompt));
  ASSERT_TRUE(cluster.decoder->cancel("cancelled"));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_over(); }, 500ms));
  EXPECT_EQ(cluster.decoder->stats().revokes, 0u);
  cluster.expect_all_back();
}

}  // namespace
}  // namespace fabric::kv::test::reopen_test

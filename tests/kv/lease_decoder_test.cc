#include <gtest/gtest.h>

#include "kv/kv_cluster.h"
#include "support/log_guard.h"
#include "workloads/kv/message.h"

// A Decoder and a prefiller that follows a script: answers that are late, wrong, doubled or never
// come. The table of lease_test.cc says what a lease does then; here a decoder does it, and its
// pages come back.

namespace fabric::kv::test::lease_decoder_test {
namespace {

using Kind = DecodeEvent::Kind;
using sim::Fault;
using wire::MessageKind;

constexpr uint32_t kPrompt = 90;
constexpr uint64_t kTotal = 6 * 4 * 2 + 1;
constexpr Nanos kPatience = 100ms;
/// Four times that, and a proof.
constexpr Nanos kGivenUp = 500ms;

/// In place of a Prefiller, on the engine of the first rank.
class ScriptedPrefiller {
 public:
  explicit ScriptedPrefiller(KvCluster& cluster) : cluster_(cluster) {
    cluster.prefill(0).close_prefiller();
    inbox_.emplace(*engine().make_inbox(1024));
    listening_ = *engine().listen(kDefaultPrefillChannel, Notify::inbox(*inbox_));
  }
  void poll() {
    Event event;
    while (inbox_->poll({&event, 1}) == 1) {
      if (event.kind != EventKind::kMessage) continue;
      peer_ = event.peer;
      const auto head = wire::decode_head(event.bytes());
      ASSERT_TRUE(head);
      if (head->kind == MessageKind::kCancel) ++cancels;
      if (head->kind != MessageKind::kDispatch) continue;
      dispatch = *wire::decode_dispatch(event.bytes(), 1000);
    }
  }
  void say(const std::vector<std::byte>& bytes) {
    ASSERT_TRUE(
        engine().submit(Send{.peer = peer_, .channel = kDefaultDecodeChannel, .bytes = bytes}));
  }
  void accept() { say(wire::encode_accept(kDefaultPrefillChannel, {dispatch->serial, {}})); }
  void ended(MessageKind kind, uint64_t landed, uint64_t unknown) {
    say(wire::encode_ended(kDefaultPrefillChannel, kind, {dispatch->serial, landed, unknown}));
  }
  void quiet(uint64_t unknown) {
    say(wire::encode_quiet(kDefaultPrefillChannel, dispatch->serial, unknown));
  }
  /// As many counts as writes would make.
  void count(uint64_t counts) {
    const PeerGroup group = *engine().make_group({&peer_, 1});
    const CounterKey counter_key = CounterKey::from_wire(dispatch->counter_keys[0]);
    for (uint64_t i = 0; i < counts; ++i) {
      ASSERT_TRUE(engine().submit(Signal{.group = group, .keys = {&counter_key, 1}}));
    }
  }
  void stop_listening() { listening_ = {}; }

  std::optional<wire::Dispatch> dispatch;
  uint32_t cancels = 0;

 private:
  Engine& engine() { return *cluster_.prefill(0).engine; }
  KvCluster& cluster_;
  std::optional<Inbox> inbox_;
  Subscription listening_;
  PeerId peer_{};
};

class KvScripted : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* part : {"peer", "path", "rail", "drain", "fence", "proof"}) {
      fabric::test::expect_log(part);
    }
  }
  /// "r" has been dispatched, and accepted.
  void begin(bool ordered, Nanos deadline = 5s) {
    ClusterOptions options{.groups = 1, .retry = false, .patience = kPatience};
    options.model = ordered ? sim::NicModel::connectx7() : sim::NicModel::efa_200g();
    options.deadline = deadline;
    cluster.emplace(options);
    script.emplace(*cluster);
    ASSERT_TRUE(cluster->start("r", kPrompt));
    ASSERT_TRUE(until([&] { return script->dispatch.has_value(); }));
    script->accept();
    ASSERT_TRUE(until([&] { return has(Kind::kAccepted); }));
  }
  bool until(const std::function<bool()>& done, Nanos limit = 1s) {
    return cluster->run_until(
        [&] {
          script->poll();
          return done();
        },
        limit);
  }
  void wait(Nanos time = 10ms) {
    (void)until([] { return false; }, time);
  }
  bool has(Kind kind) const { return cluster->attempt("r").count(kind); }
  bool over() const { return cluster->over("r"); }
  FailCode failure() const {
    const DecodeEvent* failed = cluster->attempt("r").find(Kind::kFailed);
    return failed == nullptr ? FailCode::kNone : failed->fail;
  }
  void cancel() {
    ASSERT_TRUE(cluster->decoder->cancel("r"));
    ASSERT_TRUE(until([&] { return script->cancels > 0; }));
  }
  DecoderStats stats() const { return cluster->decoder->stats(); }

  std::optional<KvCluster> cluster;
  std::optional<ScriptedPrefiller> script;
};

TEST_F(KvScripted, AQuietOfUnknownWritesIsFenced) {
  begin(false);
  script->quiet(2);
  ASSERT_TRUE(until([&] { return over(); }));
  EXPECT_EQ(failure(), FailCode::kPoisoned);
  EXPECT_EQ(stats().revokes, 1u);
  EXPECT_TRUE(has(Kind::kPagesFree));
}

TEST_F(KvScripted, AQuietOfUnknownWritesAfterTheCountsDelaysOnlyTheWriting) {
  begin(false);
  script->count(kTotal);
  ASSERT_TRUE(until([&] { return has(Kind::kComplete); }));
  script->quiet(2);
  ASSERT_TRUE(until([&] { return over(); }, kPatience));
  EXPECT_TRUE(has(Kind::kMayWrite));
  EXPECT_EQ(stats().revokes, 1u);
  EXPECT_EQ(stats().failed, 0u);
}

TEST_F(KvScripted, AFailureWhoseCountsDoNotComeIsFencedInTime) {
  begin(true);
  script->count(2);
  script->ended(MessageKind::kFailed, 3, 0);
  ASSERT_TRUE(until([&] { return has(Kind::kFailed); }));
  EXPECT_EQ(failure(), FailCode::kPrefillFailed);
  wait(4 * kPatience - 50ms);
  EXPECT_EQ(stats().draining, 1u);
  ASSERT_TRUE(until([&] { return over(); }, kGivenUp)) << "the pages are lost";
  EXPECT_EQ(stats().revokes, 1u);
}

TEST_F(KvScripted, AFailureWhoseCountsAreHereFreesThePages) {
  begin(true);
  script->count(3);
  script->ended(MessageKind::kFailed, 3, 0);
  ASSERT_TRUE(until([&] { return over(); }, kPatience));
  EXPECT_EQ(failure(), FailCode::kPrefillFailed);
  EXPECT_EQ(stats().revokes, 0u);
}

TEST_F(KvScripted, AConfirmationOfMoreThanComesIsFencedInTime) {
  begin(true);
  script->count(2);
  wait();
  cancel();
  script->ended(MessageKind::kConfirm, 5, 0);
  ASSERT_TRUE(until([&] { return has(Kind::kCancelled); }));
  EXPECT_EQ(cluster->attempt("r").find(Kind::kCancelled)->landed, 5u);
  wait(kPatience);
  EXPECT_EQ(stats().draining, 1u);
  EXPECT_EQ(stats().waited_for_counts, 1u);
  ASSERT_TRUE(until([&] { return over(); }, kGivenUp));
  EXPECT_EQ(stats().revokes, 1u);
}

TEST_F(KvScripted, AConfirmationOfLessThanCameIsFencedAtOnce) {
  begin(true);
  script->count(5);
  wait();
  cancel();
  script->ended(MessageKind::kConfirm, 2, 0);
  ASSERT_TRUE(until([&] { return over(); }, kPatience));
  EXPECT_EQ(stats().revokes, 1u);
}

TEST_F(KvScripted, AConfirmationOfMoreThanWasAskedForIsFencedAtOnce) {
  begin(true);
  cancel();
  script->ended(MessageKind::kConfirm, kTotal + 1, 0);
  ASSERT_TRUE(until([&] { return over(); }, kPatience));
  EXPECT_EQ(stats().revokes, 1u);
}

TEST_F(KvScripted, ACompleteRequestWhosePrefillerNeverSaysQuietIsFencedInTime) {
  begin(false);
  script->count(kTotal);
  ASSERT_TRUE(until([&] { return has(Kind::kComplete); }));
  wait(4 * kPatience - 50ms);
  EXPECT_FALSE(over());
  EXPECT_EQ(stats().awaiting_quiet, 1u);
  ASSERT_TRUE(until([&] { return over(); }, kGivenUp));
  EXPECT_TRUE(has(Kind::kMayWrite));
  EXPECT_EQ(stats().revokes, 1u);
}

TEST_F(KvScripted, ACancelThatIsNotAnsweredIsFencedInTime) {
  begin(true);
  cancel();
  wait(4 * kPatience - 50ms);
  EXPECT_EQ(stats().stopping, 1u);
  ASSERT_TRUE(until([&] { return over(); }, kGivenUp));
  EXPECT_EQ(stats().revokes, 1u);
}

TEST_F(KvScripted, ACancelThatCannotBeDeliveredIsFencedAtOnce) {
  begin(true);
  script->stop_listening();
  ASSERT_TRUE(cluster->decoder->cancel("r"));
  ASSERT_TRUE(until([&] { return over(); }, kPatience));
  EXPECT_TRUE(has(Kind::kCancelled));
  EXPECT_EQ(stats().revokes, 1u);
}

TEST_F(KvScripted, AnAcceptAfterTheCancelChangesNothing) {
  begin(true);
  cancel();
  script->accept();
  wait();
  EXPECT_EQ(stats().stopping, 1u);
  script->ended(MessageKind::kConfirm, 0, 0);
  ASSERT_TRUE(until([&] { return over(); }, kPatience));
  EXPECT_EQ(std::ranges::count(cluster->attempt("r").events, Kind::kAccepted, &DecodeEvent::kind),
            1);
  EXPECT_EQ(stats().revokes, 0u);
}

TEST_F(KvScripted, AFailureAfterTheCancelIsItsAnswer) {
  begin(true);
  script->count(2);
  wait();
  cancel();
  script->ended(MessageKind::kFailed, 2, 0);
  ASSERT_TRUE(until([&] { return over(); }, kPatience));
  EXPECT_TRUE(has(Kind::kCancelled));
  EXPECT_FALSE(has(Kind::kFailed));
  EXPECT_EQ(stats().revokes, 0u);
}

TEST_F(KvScripted, AFailureAfterTheConfirmationChangesNothing) {
  begin(true);
  cancel();
  script->ended(MessageKind::kConfirm, 3, 0);
  script->ended(MessageKind::kFailed, 9, 1);
  wait();
  EXPECT_EQ(stats().draining, 1u);
  script->count(3);
  ASSERT_TRUE(until([&] { return over(); }, kPatience));
  EXPECT_EQ(cluster->attempt("r").find(Kind::kCancelled)->landed, 3u);
  EXPECT_EQ(stats().revokes, 0u);
}

TEST_F(KvScripted, ARequestThatNothingHappensToEndsAtItsDeadline) {
  begin(true, 200ms);
  ASSERT_TRUE(until([&] { return has(Kind::kFailed); }, 300ms));
  EXPECT_EQ(failure(), FailCode::kDeadline);
  ASSERT_TRUE(until([&] { return script->cancels > 0; }));
  script->ended(MessageKind::kConfirm, wire::kAllLanded, 0);
  wait();
  EXPECT_EQ(stats().draining, 1u) << "nothing of all has come";
  ASSERT_TRUE(until([&] { return over(); }, kGivenUp));
}

/// The network keeps the dispatch and what the peer says about it.
TEST_F(KvScripted, ADispatchOfUnknownFateIsFenced) {
  begin(true);
  script->ended(MessageKind::kFailed, 0, 0);
  ASSERT_TRUE(until([&] { return over(); }));
  cluster->happens(Fault::control_cut(0, 1));
  ASSERT_TRUE(cluster->start("cut", kPrompt));
  ASSERT_TRUE(until([&] { return cluster->over("cut"); }, 30s));
  EXPECT_EQ(stats().fences + stats().revokes, 1u);
  EXPECT_EQ(stats().fences_proved, 1u);
  EXPECT_NE(cluster->attempt("cut").find(Kind::kFailed), nullptr);
}

TEST(KvFailCodes, APrefillerThatCrashesIsLost) {
  fabric::test::expect_log("peer");
  KvCluster cluster({.retry = false, .patience = 10s, .deadline = 30s});
  cluster.prefill(0).computes = false;
  ASSERT_TRUE(cluster.start("r", kPrompt));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.attempt("r").count(Kind::kAccepted); }));
  cluster.happens(Fault::crash(1));
  ASSERT_TRUE(cluster.run_until([&] { return cluster.all_over(); }));
  EXPECT_EQ(cluster.attempt("r").find(Kind::kFailed)->fail, FailCode::kPeerLost);
  EXPECT_EQ(cluster.decoder->stats().fences, 1u);
  cluster.expect_all_back();
}

}  // namespace
}  // namespace fabric::kv::test::lease_decoder_test

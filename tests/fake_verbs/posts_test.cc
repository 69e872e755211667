#include "fake_verbs/fake_nic_setup.h"

// A NIC that refuses posted requests. Those it took are drained, those it refused were never sent,
// and everything is delivered once by a connection that works.

namespace fabric::test::posts_test {
namespace {

using Call = FakeNics::Call;
using End = FakeNics::End;

class VerbsPost : public testing::Test {
 protected:
  static constexpr uint32_t kWrites = 12;  // one chain

  VerbsPost() { setup.expect_fault_logs(); }
  void warm_up() {
    CheckedWrites first(setup[0], setup[1], {.count = 8, .bytes = 64});
    first.submit();
    ASSERT_TRUE(setup.until([&] { return first.ended(); }));
    setup.turn(50);
  }
  /// Posts that fail like this delay the writes and nothing else.
  void expect_once(const FakeNics::Failure& failure) {
    warm_up();
    CheckedWrites writes(setup[0], setup[1], {.count = kWrites, .bytes = 1000});
    CheckedWrites back(setup[1], setup[0], {.count = kWrites, .bytes = 1000});
    setup.nics().fail(failure);
    writes.submit();
    back.submit();
    EXPECT_TRUE(setup.until([&] { return writes.ended() && back.ended(); })) << setup[0].dump();
    setup.turn(200);
    EXPECT_EQ(setup.nics().failed_calls(), failure.times);
    writes.expect_delivered();
    back.expect_delivered();
    setup.expect_service();
  }

  FakeNicSetup setup{{.threads = false, .network = {.receive_depth = 16}}};
};

TEST_F(VerbsPost, AChainThatIsTakenInPart) {
  expect_once({.call = Call::kPostSend, .host = 0, .taken = 5});
}

TEST_F(VerbsPost, AChainOfWhichNothingIsTaken) {
  expect_once({.call = Call::kPostSend, .host = 0, .taken = 0});
}

TEST_F(VerbsPost, AChainOfWhichAllButOneIsTaken) {
  expect_once({.call = Call::kPostSend, .host = 0, .taken = kWrites - 1});
}

TEST_F(VerbsPost, ADriverThatDoesNotReportWhereItStopped) {
  expect_once({.call = Call::kPostSend, .host = 0, .error = EIO, .taken = 0, .silent = true});
}

TEST_F(VerbsPost, ADriverThatDoesNotReportWhatItPosted) {
  expect_once({.call = Call::kPostSend, .host = 0, .error = EIO, .taken = 5, .silent = true});
}

TEST_F(VerbsPost, ANicThatTakesNothingForAWhile) {
  expect_once({.call = Call::kPostSend, .host = 0, .times = 5, .taken = 0});
}

TEST_F(VerbsPost, ReceivesThatAreTakenInPart) {
  expect_once({.call = Call::kPostReceive, .host = 1, .taken = 3});
}

TEST_F(VerbsPost, ReceivesOfWhichNoneIsTaken) {
  expect_once({.call = Call::kPostReceive, .host = 1, .taken = 0});
}

// It is unknown how many receives have to complete, so the drain is abandoned, and the writes of
// the path are in doubt. None completes with a false result, and none is counted twice.
TEST_F(VerbsPost, ReceivesRefusedWithoutABadRequest) {
  setup.nics().allow_undrained();
  uint32_t given_up = 0;
  for (const int taken : {0, 3}) {
    warm_up();
    CheckedWrites writes(setup[0], setup[1], {.count = kWrites, .bytes = 1000});
    setup.nics().fail(
        {.call = Call::kPostReceive, .host = 1, .error = EIO, .taken = taken, .silent = true});
    writes.submit();
    const std::string times = std::to_string(++given_up);
    EXPECT_TRUE(setup.until([&] { return setup.fact(1, 0, "drains abandoned") == times; }));
    EXPECT_TRUE(setup.until([&] { return writes.ended(); })) << setup[0].dump();
    writes.expect_true();
    setup.turn(500);  // until then the sender may post more, with the same result
    setup.expect_service();
  }
  EXPECT_EQ(setup.nics().failed_calls(), 2u);
}

// The first receives of a path. It is the only one: it is opened again, and the writes wait.
TEST(VerbsAccept, TheOnlyPathGetsNoReceivesAtFirst) {
  FakeNicSetup setup;
  setup.expect_fault_logs();
  setup.nics().fail({.call = Call::kPostReceive, .host = 1, .times = 3, .taken = 2});
  CheckedWrites writes(setup[0], setup[1], {.count = 64, .bytes = 1000});
  writes.submit();
  EXPECT_TRUE(setup.until([&] { return writes.ended(); })) << setup[0].dump();
  EXPECT_EQ(setup.nics().failed_calls(), 3u);
  writes.expect_delivered();
  setup.expect_service();
}

// It is refused, and the other rail serves.
TEST(VerbsAccept, APathThatGetsNoReceives) {
  FakeNicSetup setup({.rails = 2});
  setup.expect_fault_logs();
  setup.nics().fail({.call = Call::kPostReceive, .host = 1, .rail = 0, .taken = 2});
  CheckedWrites writes(setup[0], setup[1], {.count = 64, .bytes = 1000});
  writes.submit();
  EXPECT_TRUE(setup.until([&] { return writes.ended(); })) << setup[0].dump();
  EXPECT_EQ(setup.nics().failed_calls(), 1u);
  writes.expect_true();
  EXPECT_EQ(writes.unknown(), 0u);
  setup.expect_service();
}

// The marker of a drain is refused: the drain is abandoned, and the target's count still decides.
TEST_F(VerbsPost, AMarkerThatIsRefused) {
  warm_up();
  setup.nics().allow_undrained();
  CheckedWrites writes(setup[0], setup[1], {.count = kWrites, .bytes = 1000});
  setup.nics().hold_packets(1, 0, true);
  writes.submit();
  for (uint32_t turns = 0; turns < 1000 && setup.nics().in_flight(0, 0) < kWrites; ++turns) {
    setup.turn(1);
  }
  // Five land, and their acknowledgements are lost.
  setup.nics().lose(1, 0, FakeNics::kAcks, true);
  EXPECT_EQ(setup.nics().deliver(0, 0, 5), 5u);
  setup.nics().hold_flushes(0, 0, true);
  setup.nics().fail({.call = Call::kPostSend, .host = 0});
  EXPECT_EQ(setup.nics().raise_qp_events(0, 0, End::kSender, IBV_EVENT_QP_FATAL), 1u);
  EXPECT_TRUE(setup.until([&] { return setup.fact(0, 0, "drains abandoned") == "1"; }));
  EXPECT_EQ(setup.nics().failed_calls(), 1u);
  setup.nics().hold_flushes(0, 0, false);
  setup.nics().hold_packets(1, 0, false);
  setup.nics().lose(1, 0, FakeNics::kAcks, false);
  EXPECT_TRUE(setup.until([&] { return writes.ended(); })) << setup[0].dump();
  writes.expect_delivered();
  setup.expect_service();
}

}  // namespace
}  // namespace fabric::test::posts_test

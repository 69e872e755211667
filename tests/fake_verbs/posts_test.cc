#include "card/stage.h"

// A card that does not take what is posted. What it took is drained, what it did not take has never
// left, and everything arrives once by a connection that works.

namespace fabric::test {
namespace {

using Call = SoftCards::Call;
using End = SoftCards::End;

class CardPost : public testing::Test {
 protected:
  static constexpr uint32_t kWrites = 12;  // one chain

  CardPost() { stage_.expect_trouble(); }
  void warm_up() {
    Writes first(stage_[0], stage_[1], {.count = 8, .bytes = 64});
    first.submit();
    ASSERT_TRUE(stage_.until([&] { return first.ended(); }));
    stage_.turn(50);
  }
  /// Posts that fail like this delay the writes and nothing else.
  void expect_once(const SoftCards::Failure& failure) {
    warm_up();
    Writes writes(stage_[0], stage_[1], {.count = kWrites, .bytes = 1000});
    Writes back(stage_[1], stage_[0], {.count = kWrites, .bytes = 1000});
    stage_.cards().fail(failure);
    writes.submit();
    back.submit();
    EXPECT_TRUE(stage_.until([&] { return writes.ended() && back.ended(); })) << stage_[0].dump();
    stage_.turn(200);
    EXPECT_EQ(stage_.cards().failed_calls(), failure.times);
    writes.expect_delivered();
    back.expect_delivered();
    stage_.expect_service();
  }

  Stage stage_{{.threads = false, .network = {.receive_depth = 16}}};
};

TEST_F(CardPost, AChainThatIsTakenInPart) {
  expect_once({.call = Call::kPostSend, .host = 0, .taken = 5});
}

TEST_F(CardPost, AChainOfWhichNothingIsTaken) {
  expect_once({.call = Call::kPostSend, .host = 0, .taken = 0});
}

TEST_F(CardPost, AChainOfWhichAllButOneIsTaken) {
  expect_once({.call = Call::kPostSend, .host = 0, .taken = kWrites - 1});
}

TEST_F(CardPost, ADriverThatDoesNotSayWhereItStopped) {
  expect_once({.call = Call::kPostSend, .host = 0, .error = EIO, .taken = 0, .silent = true});
}

TEST_F(CardPost, ADriverThatDoesNotSayWhatItTook) {
  expect_once({.call = Call::kPostSend, .host = 0, .error = EIO, .taken = 5, .silent = true});
}

TEST_F(CardPost, ACardThatTakesNothingForAWhile) {
  expect_once({.call = Call::kPostSend, .host = 0, .times = 5, .taken = 0});
}

TEST_F(CardPost, ReceivesThatAreTakenInPart) {
  expect_once({.call = Call::kPostReceive, .host = 1, .taken = 3});
}

TEST_F(CardPost, ReceivesOfWhichNoneIsTaken) {
  expect_once({.call = Call::kPostReceive, .host = 1, .taken = 0});
}

// Nobody knows how many receives have to come back, so the drain is given up, and what was on the
// path is in doubt. Nothing false is said of it, and nothing is counted twice.
TEST_F(CardPost, ReceivesWithoutAWordWhereItStopped) {
  stage_.cards().allow_undrained();
  uint32_t given_up = 0;
  for (const int taken : {0, 3}) {
    warm_up();
    Writes writes(stage_[0], stage_[1], {.count = kWrites, .bytes = 1000});
    stage_.cards().fail(
        {.call = Call::kPostReceive, .host = 1, .error = EIO, .taken = taken, .silent = true});
    writes.submit();
    const std::string times = std::to_string(++given_up);
    EXPECT_TRUE(stage_.until([&] { return stage_.fact(1, 0, "drains given up") == times; }));
    EXPECT_TRUE(stage_.until([&] { return writes.ended(); })) << stage_[0].dump();
    writes.expect_true();
    stage_.turn(500);  // until then the sender may post on it, and has to say the same of that
    stage_.expect_service();
  }
  EXPECT_EQ(stage_.cards().failed_calls(), 2u);
}

// The first receives of a path. It is the only one: it is opened again, and the writes wait.
TEST(CardAccept, TheOnlyPathGetsNoReceivesAtFirst) {
  Stage stage;
  stage.expect_trouble();
  stage.cards().fail({.call = Call::kPostReceive, .host = 1, .times = 3, .taken = 2});
  Writes writes(stage[0], stage[1], {.count = 64, .bytes = 1000});
  writes.submit();
  EXPECT_TRUE(stage.until([&] { return writes.ended(); })) << stage[0].dump();
  EXPECT_EQ(stage.cards().failed_calls(), 3u);
  writes.expect_delivered();
  stage.expect_service();
}

// It is refused, and the other rail serves.
TEST(CardAccept, APathThatGetsNoReceives) {
  Stage stage({.rails = 2});
  stage.expect_trouble();
  stage.cards().fail({.call = Call::kPostReceive, .host = 1, .rail = 0, .taken = 2});
  Writes writes(stage[0], stage[1], {.count = 64, .bytes = 1000});
  writes.submit();
  EXPECT_TRUE(stage.until([&] { return writes.ended(); })) << stage[0].dump();
  EXPECT_EQ(stage.cards().failed_calls(), 1u);
  writes.expect_true();
  EXPECT_EQ(writes.unknown(), 0u);
  stage.expect_service();
}

// The marker of a drain is refused: it is given up, and the target's number still decides.
TEST_F(CardPost, AMarkerThatIsRefused) {
  warm_up();
  stage_.cards().allow_undrained();
  Writes writes(stage_[0], stage_[1], {.count = kWrites, .bytes = 1000});
  stage_.cards().hold_packets(1, 0, true);
  writes.submit();
  for (uint32_t turns = 0; turns < 1000 && stage_.cards().on_the_cable(0, 0) < kWrites; ++turns) {
    stage_.turn(1);
  }
  // Five land, and nobody hears of it.
  stage_.cards().lose(1, 0, SoftCards::kAcks, true);
  EXPECT_EQ(stage_.cards().deliver(0, 0, 5), 5u);
  stage_.cards().hold_flushes(0, 0, true);
  stage_.cards().fail({.call = Call::kPostSend, .host = 0});
  EXPECT_EQ(stage_.cards().say_of_pairs(0, 0, End::kSender, IBV_EVENT_QP_FATAL), 1u);
  EXPECT_TRUE(stage_.until([&] { return stage_.fact(0, 0, "drains given up") == "1"; }));
  EXPECT_EQ(stage_.cards().failed_calls(), 1u);
  stage_.cards().hold_flushes(0, 0, false);
  stage_.cards().hold_packets(1, 0, false);
  stage_.cards().lose(1, 0, SoftCards::kAcks, false);
  EXPECT_TRUE(stage_.until([&] { return writes.ended(); })) << stage_[0].dump();
  writes.expect_delivered();
  stage_.expect_service();
}

}  // namespace
}  // namespace fabric::test

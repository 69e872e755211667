#include "card/stage.h"

// The end of a path, step by step: what a card may still do at each of its steps. Every write is
// counted once, whatever that is (docs/design/0013-verbs.md).

namespace fabric::test {
namespace {

using End = SoftCards::End;

/// On cards that delete the completions of a queue pair with it, and on those that keep them.
class CardBreak : public testing::TestWithParam<bool> {
 protected:
  static constexpr uint32_t kWrites = 12;

  CardBreak() { stage_.expect_trouble(); }

  /// Both paths stand, and a few writes have gone by them.
  void warm_up() {
    Writes first(stage_[0], stage_[1], {.count = 8, .bytes = 64});
    first.submit();
    ASSERT_TRUE(stage_.until([&] { return first.ended(); }));
    first.expect_delivered();
    stage_.turn(50);
  }
  /// They are on the cable, and nobody has them yet.
  void launch(Writes& writes) {
    stage_.cards().hold_packets(1, SoftCards::kAny, true);
    writes.submit();
    for (uint32_t turns = 0; turns < 1000 && on_the_cable() < kWrites; ++turns) stage_.turn(1);
    ASSERT_EQ(on_the_cable(), kWrites);
    ASSERT_EQ(writes.landed(), 0u);
  }
  uint32_t on_the_cable() { return stage_.cards().on_the_cable(0, 0); }
  void expect_once(Writes& writes) {
    EXPECT_TRUE(stage_.until([&] { return writes.ended(); })) << stage_[0].dump();
    stage_.turn(500);
    writes.expect_delivered();
    stage_.expect_service();
  }

  Stage stage_{{.threads = false, .cards = {.keeps_completions = GetParam()}}};
};

INSTANTIATE_TEST_SUITE_P(Cards, CardBreak, testing::Bool(),
                         [](const auto& card) { return card.param ? "keep" : "delete"; });

// The packets land while the target asks for the error state: behind its decision, before the card
// has stopped. Who says a number before all receives are back leaves them out of it.
TEST_P(CardBreak, WhatLandsWithTheErrorStateIsCountedOnce) {
  warm_up();
  Writes writes(stage_[0], stage_[1], {.count = kWrites, .bytes = 1000});
  launch(writes);
  stage_.cards().land_with_the_error(1, 0, true);
  ASSERT_EQ(stage_.cards().say_of_pairs(1, 0, End::kTarget, IBV_EVENT_QP_FATAL), 1u);
  for (uint32_t turns = 0; turns < 1000 && on_the_cable() != 0; ++turns) stage_.turn(1);
  ASSERT_EQ(on_the_cable(), 0u) << "the error state was never asked for";
  stage_.cards().hold_packets(1, SoftCards::kAny, false);
  expect_once(writes);
}

// The error state stands, and its completion queue is empty: the packets come now, and the flushes
// behind them. Until a receive has been flushed nothing proves that no more land.
TEST_P(CardBreak, WhatLandsBehindTheErrorStateIsCountedOnce) {
  warm_up();
  Writes writes(stage_[0], stage_[1], {.count = kWrites, .bytes = 1000});
  launch(writes);
  stage_.cards().hold_flushes(1, 0, true);
  const uint64_t asked = stage_.cards().calls(SoftCards::Call::kToError, 1);
  ASSERT_EQ(stage_.cards().say_of_pairs(1, 0, End::kTarget, IBV_EVENT_QP_FATAL), 1u);
  const auto stopped = [&] { return stage_.cards().calls(SoftCards::Call::kToError, 1) > asked; };
  for (uint32_t turns = 0; turns < 1000 && !stopped(); ++turns) stage_.turn(1);
  ASSERT_TRUE(stopped());
  stage_.turn(20);  // it has heard that the state stands
  EXPECT_EQ(stage_.cards().deliver(0, 0, kWrites), kWrites);
  EXPECT_EQ(stage_.cards().landed_late(), kWrites);
  stage_.turn(20);
  stage_.cards().hold_flushes(1, 0, false);
  stage_.cards().hold_packets(1, SoftCards::kAny, false);
  expect_once(writes);
}

// Half of them land before, half behind the error state.
TEST_P(CardBreak, WhatLandsOnBothSidesOfTheErrorStateIsCountedOnce) {
  warm_up();
  Writes writes(stage_[0], stage_[1], {.count = kWrites, .bytes = 1000});
  launch(writes);
  stage_.cards().hold_flushes(1, 0, true);
  EXPECT_EQ(stage_.cards().deliver(0, 0, kWrites / 2), kWrites / 2);
  ASSERT_EQ(stage_.cards().break_path(0, 1, 0, End::kTarget), 1u);
  ASSERT_EQ(stage_.cards().say_of_pairs(1, 0, End::kTarget, IBV_EVENT_QP_FATAL), 0u)
      << "it is broken already";
  stage_.turn(20);
  EXPECT_EQ(stage_.cards().deliver(0, 0, kWrites), kWrites / 2);
  EXPECT_EQ(stage_.cards().landed_late(), kWrites / 2);
  stage_.cards().hold_flushes(1, 0, false);
  stage_.cards().hold_packets(1, SoftCards::kAny, false);
  expect_once(writes);
}

// A card that says nothing of requests which asked for no completion, also when they fail. The
// first error that comes back is then not the first request that was lost.
TEST_P(CardBreak, AnErrorDoesNotSpeakForThoseBeforeIt) {
  warm_up();
  Writes writes(stage_[0], stage_[1], {.count = kWrites, .bytes = 1000});
  stage_.cards().set_silent_when_unsignalled(true);
  launch(writes);
  stage_.cards().lose(0, 1, SoftCards::kData, true);
  stage_.cards().hold_packets(1, SoftCards::kAny, false);
  stage_.turn(1);
  ASSERT_EQ(on_the_cable(), 0u);
  ASSERT_EQ(stage_.cards().break_path(0, 1, 0, End::kSender), 1u);
  stage_.turn(5);
  stage_.cards().lose(0, 1, SoftCards::kData, false);
  expect_once(writes);
}

// Everything landed, and its acknowledgements are lost: only the target knows.
TEST_P(CardBreak, WhatWasTakenWithoutAWordIsNotSentAgain) {
  warm_up();
  Writes writes(stage_[0], stage_[1], {.count = kWrites, .bytes = 1000});
  launch(writes);
  stage_.cards().lose(1, 0, SoftCards::kAcks, true);
  EXPECT_EQ(stage_.cards().deliver(0, 0, kWrites), kWrites);
  stage_.turn(5);
  const uint64_t landed = stage_.cards().landed(1);
  ASSERT_EQ(stage_.cards().break_path(0, 1, 0, End::kSender), 1u);
  stage_.cards().hold_packets(1, SoftCards::kAny, false);
  EXPECT_TRUE(stage_.until([&] { return writes.ended(); }));
  EXPECT_EQ(stage_.cards().landed(1), landed) << "something was sent again";
  stage_.cards().lose(1, 0, SoftCards::kAcks, false);
  expect_once(writes);
}

// The flushes never come: the drain is given up, and as the target cannot say what came, what was
// under way is unknown.
TEST_P(CardBreak, ADrainThatDoesNotEndIsGivenUp) {
  warm_up();
  stage_.cards().allow_undrained();
  Writes writes(stage_[0], stage_[1], {.count = kWrites, .bytes = 1000});
  launch(writes);
  stage_.cards().hold_flushes(1, 0, true);
  EXPECT_EQ(stage_.cards().deliver(0, 0, kWrites / 2), kWrites / 2);
  stage_.cards().lose(1, 0, SoftCards::kAcks, true);
  ASSERT_EQ(stage_.cards().say_of_pairs(1, 0, End::kTarget, IBV_EVENT_QP_FATAL), 1u);
  EXPECT_TRUE(stage_.until([&] { return stage_.fact(1, 0, "drains given up") == "1"; }));
  stage_.cards().hold_packets(1, SoftCards::kAny, false);
  EXPECT_TRUE(stage_.until([&] { return writes.ended(); })) << stage_[0].dump();
  writes.expect_true();
  EXPECT_EQ(writes.landed(), kWrites / 2) << "it says what it has polled, and no more";
  stage_.cards().lose(1, 0, SoftCards::kAcks, false);
  stage_.cards().hold_flushes(1, 0, false);
  stage_.expect_service();
}

// No receive is left when the path breaks: all came back, and none by an error. One more has to.
TEST(CardDrain, ASumWithoutAnErrorProvesNothing) {
  constexpr uint32_t kReceives = 4;
  Stage stage({.threads = false, .network = {.receive_depth = kReceives}});
  stage.expect_trouble();
  Writes first(stage[0], stage[1], {.count = 1});
  first.submit();
  ASSERT_TRUE(stage.until([&] { return first.ended(); }));
  stage.turn(50);
  // The target gets no turn, so that its receives are used up and not filled again.
  stage.cards().hold_packets(1, 0, true);
  Writes writes(stage[0], stage[1], {.count = 2 * kReceives, .bytes = 1000});
  writes.submit();
  for (uint32_t turns = 0; turns < 1000 && stage.cards().on_the_cable(0, 0) < 2 * kReceives;) {
    stage.turn(1);
    ++turns;
  }
  stage.cards().fail({.call = SoftCards::Call::kPostReceive, .host = 1, .times = 1});
  stage.cards().hold_flushes(1, 0, true);
  EXPECT_EQ(stage.cards().deliver(0, 0, kReceives + 1), kReceives + 1);
  stage.cards().break_path(0, 1, 0, End::kTarget);
  stage.turn(30);
  EXPECT_GE(stage.cards().calls(SoftCards::Call::kToError, 1), 2u) << "it was asked for only once";
  stage.cards().hold_flushes(1, 0, false);
  stage.cards().hold_packets(1, 0, false);
  EXPECT_TRUE(stage.until([&] { return writes.ended(); })) << stage[0].dump();
  writes.expect_delivered();
  EXPECT_EQ(stage.fact(1, 0, "drains given up"), "0");
  stage.expect_service();
}

}  // namespace
}  // namespace fabric::test

#include "card/stage.h"

// What a device says by itself: ports, queues that overran, a device that is gone.

namespace fabric::test {
namespace {

using Call = SoftCards::Call;
using End = SoftCards::End;

/// Puts writes on the way, and something happens in the middle of them.
class CardEvent : public testing::Test {
 protected:
  void expect_once(Stage& stage, const std::function<void()>& happens,
                   const std::function<void()>& over = {}) {
    stage.expect_trouble();
    Writes there(stage[0], stage[1], {.count = 200, .bytes = 6000});
    Writes back(stage[1], stage[0], {.count = 200, .bytes = 6000});
    there.submit(0, 100);
    back.submit(0, 100);
    happens();
    there.submit(100, 100);
    back.submit(100, 100);
    if (over) over();
    EXPECT_TRUE(stage.until([&] { return there.ended() && back.ended(); })) << stage[0].dump();
    there.expect_delivered();
    back.expect_delivered();
    stage.expect_service();
  }
};

// It is the only one: what has not begun ends at once, and nothing is left in doubt.
TEST_F(CardEvent, APortThatGoesDownAndComesBack) {
  Stage stage;
  stage.expect_trouble();
  Writes there(stage[0], stage[1], {.count = 200, .bytes = 6000});
  Writes back(stage[1], stage[0], {.count = 200, .bytes = 6000});
  there.submit(0, 100);
  back.submit();
  stage.cards().port(0, 0, false);
  there.submit(100, 100);
  EXPECT_TRUE(stage.until([&] { return !stage.rail_up(0, 0); }));
  stage.cards().port(0, 0, true);
  EXPECT_TRUE(stage.until([&] { return there.ended() && back.ended(); })) << stage[0].dump();
  there.expect_true();
  EXPECT_EQ(there.unknown(), 0u);
  EXPECT_EQ(there.not_delivered(), there.with(Errc::kRailLost));
  back.expect_delivered();
  EXPECT_TRUE(stage.until([&] { return stage.rail_up(0, 0); }));
  stage.expect_service();
}

TEST_F(CardEvent, APortThatGoesDownForGoodHasAnotherBesideIt) {
  Stage stage({.rails = 2});
  expect_once(stage, [&] { stage.cards().port(1, 0, false); });
  EXPECT_TRUE(stage.until([&] { return !stage.rail_up(1, 0); }));
  EXPECT_TRUE(stage.rail_up(0, 0)) << "its own port is well";
}

// Nobody says anything: the sender's card finds out when its repeats are used up.
TEST_F(CardEvent, APortThatIsSilentlyDead) {
  Stage stage({.rails = 2, .network = {.timeout_code = 10, .retry_count = 3}});
  expect_once(
      stage, [&] { stage.cards().port(1, 0, false, false); },
      [&] {
        EXPECT_TRUE(stage.until([&] { return stage.cards().flushed() != 0; }));
        stage.cards().port(1, 0, true, false);
      });
}

TEST_F(CardEvent, APortThatIsDownAtTheBeginning) {
  Stage stage({.hosts = 3, .rails = 2});
  stage.expect_trouble();
  stage.close(2);
  stage.cards().port(2, 0, false);
  auto late = stage.open(2);
  ASSERT_TRUE(late) << late.error().what;
  EXPECT_TRUE(stage.until([&] { return !late->rail_stats()[0].up; }));
  Writes writes(stage[0], *late);
  writes.submit();
  EXPECT_TRUE(stage.until([&] { return writes.ended(); }));
  writes.expect_delivered();
  stage.cards().port(2, 0, true);
  EXPECT_TRUE(stage.until([&] { return late->rail_stats()[0].up; }));
}

// A device says the same twice, and news that concern nobody.
TEST_F(CardEvent, NewsThatChangeNothing) {
  Stage stage;
  Writes first(stage[0], stage[1]);
  first.submit();
  ASSERT_TRUE(stage.until([&] { return first.ended(); }));
  for (const ibv_event_type type :
       {IBV_EVENT_GID_CHANGE, IBV_EVENT_LID_CHANGE, IBV_EVENT_PKEY_CHANGE, IBV_EVENT_SM_CHANGE,
        IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ACTIVE}) {
    stage.cards().say(0, 0, type);
    stage.cards().say(1, 0, type);
  }
  for (const End end : {End::kSender, End::kTarget}) {
    stage.cards().say_of_pairs(0, 0, end, IBV_EVENT_COMM_EST);
    stage.cards().say_of_pairs(1, 0, end, IBV_EVENT_SQ_DRAINED);
  }
  stage.expect_service();
  EXPECT_EQ(stage.cards().calls(Call::kToError), 0u) << "a path was ended for nothing";
}

TEST_F(CardEvent, QueuePairsThatAreSaidToBeBroken) {
  for (const ibv_event_type type :
       {IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR}) {
    Stage stage;
    expect_once(stage, [&] {
      stage.cards().say_of_pairs(0, 0, End::kSender, type);
      stage.cards().say_of_pairs(1, 0, End::kTarget, type);
    });
  }
}

// More events than one look takes: those behind them are heard too.
TEST_F(CardEvent, ManyEventsAtOnce) {
  Stage stage;
  stage.expect_trouble();
  for (uint32_t i = 0; i < 300; ++i) stage.cards().say(0, 0, IBV_EVENT_SM_CHANGE);
  stage.cards().port(0, 0, false);
  EXPECT_TRUE(stage.until([&] { return !stage.rail_up(0, 0); }));
  stage.cards().port(0, 0, true);
  EXPECT_TRUE(stage.until([&] { return stage.rail_up(0, 0); }));
  stage.expect_service();
}

// Completions are lost, so nobody can say what came: what was under way ends as unknown, the rest
// goes on by a queue that works.
void overruns(uint32_t host) {
  Stage stage;
  stage.expect_trouble();
  {
    Writes first(stage[0], stage[1]);
    first.submit();
    ASSERT_TRUE(stage.until([&] { return first.ended(); }));
    Writes there(stage[0], stage[1], {.count = 200, .bytes = 6000});
    // What the sender was told to have arrived must not be lost with its completion here: of that
    // both sides could only say that their connection is lost.
    stage.cards().lose(1, 0, SoftCards::kAcks, true);
    there.submit(0, 100);
    stage.cards().overrun(host, 0);
    stage.cards().lose(1, 0, SoftCards::kAcks, false);
    there.submit(100, 100);
    EXPECT_TRUE(stage.until([&] { return there.ended(); })) << stage[0].dump();
    there.expect_true();
    EXPECT_EQ(there.not_delivered(), 0u);
    if (host == 0) {
      EXPECT_EQ(there.unknown(), 0u) << "its target knows all of them";
    }
  }
  stage.expect_service();
  stage.expect_service();
}

TEST_F(CardEvent, ACompletionQueueOfTheTargetThatOverran) { overruns(1); }
TEST_F(CardEvent, ACompletionQueueOfTheSenderThatOverran) { overruns(0); }

// Nothing that it is asked for happens any more, and no call but those that give back goes well.
TEST_F(CardEvent, ADeviceThatIsGoneHasAnotherBesideIt) {
  for (const uint32_t host : {0, 1}) {
    Stage stage({.rails = 2});
    stage.expect_trouble();
    Writes first(stage[0], stage[1], {.count = 64});
    first.submit();
    ASSERT_TRUE(stage.until([&] { return first.ended(); }));
    Writes there(stage[0], stage[1], {.count = 200, .bytes = 6000});
    Writes later(stage[0], stage[1]), back(stage[1], stage[0]);
    stage.cards().lose(1, 0, SoftCards::kAcks, true);  // as above
    there.submit(0, 100);
    stage.cards().fatal(host, 0);
    stage.cards().lose(1, 0, SoftCards::kAcks, false);
    there.submit(100, 100);
    EXPECT_TRUE(stage.until([&] { return there.ended(); })) << stage[0].dump();
    there.expect_true();
    EXPECT_EQ(there.not_delivered(), 0u);
    EXPECT_TRUE(stage.until([&] { return !stage.rail_up(host, 0); }));
    // It does not come back, whatever is said.
    stage.cards().say(host, 0, IBV_EVENT_PORT_ACTIVE);
    later.submit();
    back.submit();
    EXPECT_TRUE(stage.until([&] { return later.ended() && back.ended(); })) << stage[0].dump();
    later.expect_delivered();
    back.expect_delivered();
    EXPECT_FALSE(stage.rail_up(host, 0));
    stage.expect_service();  // with memory that is registered now, on what is left
  }
}

// It was the only one: everything ends by its deadline, and closing does too.
TEST_F(CardEvent, ADeviceThatIsGoneAndWasTheOnlyOne) {
  Stage stage({.config = {.drain_timeout = 1s}});
  stage.expect_trouble();
  Writes there(stage[0], stage[1], {.count = 100, .bytes = 6000, .timeout = 1s});
  stage.cards().lose(1, 0, SoftCards::kAcks, true);  // as above
  there.submit();
  stage.cards().fatal(1, 0);
  EXPECT_TRUE(stage.until([&] { return there.ended(); })) << stage[0].dump();
  there.expect_true();
  for (const uint32_t host : {0, 1}) EXPECT_TRUE(stage[host].close());
}

}  // namespace
}  // namespace fabric::test

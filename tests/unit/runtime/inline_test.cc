#include "runtime/inline.h"

#include <sched.h>

#include <functional>
#include <memory>
#include <vector>

#include <fabric/engine.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/thread.h"
#include "support/fake_progress.h"

namespace fabric::runtime::inline_test {
namespace {

using test::FakeProgress;

// As for the threads: lost wake-ups would take twice as long as this many rounds may.
constexpr uint32_t kRounds = 20;
constexpr int64_t kRoundsNs = kRounds * 25'000'000;
constexpr int64_t kPatienceNs = 20'000'000'000;

int64_t patience() { return monotonic_ns() + kPatienceNs; }

TEST(InlineDriver, TurnsEveryEngineOnceThenItsCallbacks) {
  InlineDriver driver;
  EXPECT_FALSE(driver.threaded());
  std::vector<int> order;
  FakeProgress a, b;
  a.on_turn = [&] { order.push_back(1); };
  b.on_turn = [&] { order.push_back(2); };
  a.on_callback = [&] { order.push_back(3); };
  b.on_callback = [&] { order.push_back(4); };
  ASSERT_TRUE(driver.attach(a, {}));
  ASSERT_TRUE(driver.attach(b, {}));
  a.work = 5;
  a.due = 1;
  b.due = 2;
  EXPECT_EQ(driver.turn(), 8u);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(driver.turn(), 0u);
  driver.detach(a);
  EXPECT_EQ(driver.turn(), 0u);
  EXPECT_EQ(a.turns, 2u);
  EXPECT_EQ(b.turns, 3u);
}

TEST(InlineDriver, DrivesUntilDoneOrTheDeadline) {
  InlineDriver driver;
  FakeProgress engine;
  ASSERT_TRUE(driver.attach(engine, {}));
  EXPECT_TRUE(driver.drive([&] { return engine.turns >= 3; }, patience()));
  const int64_t start = monotonic_ns();
  EXPECT_FALSE(driver.drive([] { return false; }, start + 3'000'000));
  EXPECT_GE(monotonic_ns() - start, 3'000'000);
  EXPECT_LT(monotonic_ns() - start, kPatienceNs);
  EXPECT_TRUE(driver.drive([] { return true; }, start));  // past, but done
}

TEST(InlineDriver, MakesExactlyOneTurnForAConditionThatHoldsTheSecondTime) {
  InlineDriver driver;
  FakeProgress engine;
  ASSERT_TRUE(driver.attach(engine, {}));
  EXPECT_TRUE(driver.drive([asked = 0]() mutable { return asked++ > 0; }, kNeverNs));
  EXPECT_EQ(engine.turns, 1u);
  EXPECT_EQ(engine.sleeps, 0u);
}

TEST(InlineDriver, SleepsWhenIdleInsteadOfBurningACore) {
  InlineDriver driver;
  FakeProgress engine;
  ASSERT_TRUE(driver.attach(engine, {.spin_ns = 100'000}));
  EXPECT_TRUE(driver.drive([&] { return engine.sleeps >= 1; }, patience()));
  const uint32_t turns = engine.turns;
  EXPECT_TRUE(driver.drive([&] { return engine.sleeps >= 4; }, patience()));
  EXPECT_LE(engine.turns - turns, 12u);  // a few a sleep, not thousands
}

TEST(InlineDriver, NeverSleepsWhileAnEngineMustBePolled) {
  InlineDriver driver;
  FakeProgress quiet, polled;
  polled.keep_polling = true;
  ASSERT_TRUE(driver.attach(quiet, {}));
  ASSERT_TRUE(driver.attach(polled, {}));
  EXPECT_TRUE(driver.drive([&] { return polled.turns >= 2000; }, patience()));
  EXPECT_EQ(quiet.sleeps + polled.sleeps, 0u);
}

TEST(InlineDriver, MakesTheNextTurnWhenTheFirstOfItsEnginesIsDue) {
  InlineDriver driver;
  FakeProgress lazy, due;
  due.next_after_ns = 2'000'000;
  ASSERT_TRUE(driver.attach(due, {}));
  ASSERT_TRUE(driver.attach(lazy, {}));
  const int64_t start = monotonic_ns();
  EXPECT_TRUE(driver.drive([&] { return due.sleeps >= kRounds; }, patience()));
  EXPECT_LT(monotonic_ns() - start, kRoundsNs);
  EXPECT_GE(monotonic_ns() - start, (kRounds - 1) * 2'000'000);
}

TEST(InlineDriver, IsWokenByWhatComesBetweenTheLastCheckAndTheSleep) {
  InlineDriver driver;
  FakeProgress engine;
  uint32_t rounds = 0;
  engine.on_armed = [&] {
    if (engine.work.load() != 0) return;
    ++rounds;
    // From another thread, as a submit would come.
    Result<Thread> other = Thread::start({}, [&] {
      engine.work = 1;
      driver.wake(engine);
    });
    ASSERT_TRUE(other);
    other->join();
  };
  ASSERT_TRUE(driver.attach(engine, {}));
  const int64_t start = monotonic_ns();
  EXPECT_TRUE(driver.drive([&] { return engine.worked >= kRounds; }, patience()));
  EXPECT_LT(monotonic_ns() - start, kRoundsNs);
  EXPECT_GE(engine.sleeps, kRounds);
}

TEST(InlineDriver, SeesACallbackThatBecameDueAfterTheTurn) {
  InlineDriver driver;
  FakeProgress engine;
  engine.on_look = [&] {
    // Behind every other look: half of them are the last look before a sleep.
    if (engine.looks % 2 == 1 && engine.called < kRounds) engine.due = 1;
  };
  ASSERT_TRUE(driver.attach(engine, {}));
  const int64_t start = monotonic_ns();
  EXPECT_TRUE(driver.drive([&] { return engine.called >= kRounds; }, patience()));
  EXPECT_LT(monotonic_ns() - start, kRoundsNs);
}

TEST(InlineDriver, AttachesAndDetachesOthersFromInsideACallback) {
  InlineDriver driver;
  FakeProgress host, before, after, bystander;
  auto late = std::make_unique<FakeProgress>();
  auto gone = std::make_unique<FakeProgress>();
  host.on_callback = [&] {
    driver.detach(*gone);
    gone.reset();  // a touch from here on is a use after free
    driver.detach(before);
    driver.detach(after);
    ASSERT_TRUE(driver.attach(*late, {}));
  };
  ASSERT_TRUE(driver.attach(before, {}));
  ASSERT_TRUE(driver.attach(host, {}));
  ASSERT_TRUE(driver.attach(*gone, {}));
  ASSERT_TRUE(driver.attach(after, {}));
  ASSERT_TRUE(driver.attach(bystander, {}));
  host.due = 1;
  bystander.due = 1;
  EXPECT_EQ(driver.turn(), 2u);  // no engine is skipped because others detached
  EXPECT_EQ(before.turns, 1u);
  EXPECT_EQ(after.looks, 0u);
  EXPECT_EQ(driver.turn(), 0u);
  EXPECT_EQ(before.turns, 1u);
  EXPECT_EQ(after.turns, 1u);
  EXPECT_EQ(late->turns, 1u);
  EXPECT_EQ(host.turns, 2u);
}

TEST(InlineDriver, DoesNotNestInsideACallback) {
  InlineDriver driver;
  FakeProgress engine;
  uint32_t inner = 99;
  bool met = true, already = false;
  engine.on_callback = [&] {
    engine.work = 1;
    inner = driver.turn();
    met = driver.drive([] { return false; }, kNeverNs);  // returns, although nothing can happen
    already = driver.drive([] { return true; }, kNeverNs);
  };
  ASSERT_TRUE(driver.attach(engine, {}));
  engine.due = 1;
  EXPECT_EQ(driver.turn(), 1u);
  EXPECT_EQ(inner, 0u);
  EXPECT_FALSE(met);
  EXPECT_TRUE(already);
  EXPECT_EQ(engine.turns, 1u);
}

TEST(InlineDriver, RunsJobsBetweenTurnsInOrder) {
  InlineDriver driver;
  FakeProgress engine;
  std::vector<int> ran;
  bool inside_turn = false;
  engine.on_turn = [&] {
    inside_turn = true;
    driver.offload([&] { ran.push_back(inside_turn ? -1 : 1); });
    driver.offload([&] { ran.push_back(2); });
    inside_turn = false;
  };
  ASSERT_TRUE(driver.attach(engine, {}));
  EXPECT_EQ(driver.turn(), 2u);
  EXPECT_EQ(ran, (std::vector<int>{1, 2}));
}

TEST(InlineDriver, RunsTheLastJobsAtItsEnd) {
  bool ran = false;
  {
    InlineDriver().offload([&] { ran = true; });
  }
  EXPECT_TRUE(ran);
}

TEST(InlineRuntime, TurnsWithoutEngines) {
  InlineRuntime runtime;
  EXPECT_EQ(runtime.turn(), 0u);
}

}  // namespace
}  // namespace fabric::runtime::inline_test

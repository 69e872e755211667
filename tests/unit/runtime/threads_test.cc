#include "runtime/threads.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "support/fake_progress.h"

namespace fabric::runtime::threads_test {
namespace {

using test::FakeProgress;

// Far above what anything here takes, also on a busy machine.
constexpr int64_t kPatienceNs = 20'000'000'000;
// A lost wake-up costs the bound of a sleep, 50 ms. So many rounds of them cannot fit in half of
// that time, and rounds that are woken take microseconds.
constexpr uint32_t kRounds = 20;
constexpr int64_t kRoundsNs = kRounds * 25'000'000;

bool eventually(const std::function<bool()>& condition) {
  const int64_t deadline = monotonic_ns() + kPatienceNs;
  while (!condition()) {
    if (monotonic_ns() > deadline) return false;
    sched_yield();
  }
  return true;
}

uint32_t thread_count() {
  uint32_t n = 0;
  for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    ++n;
  }
  return n;
}

TEST(ThreadsDriver, TurnsAndCallsOnTwoThreadsOfItsOwnThatBlockSignals) {
  FakeProgress engine;
  std::string turn_name, call_name;
  bool deaf = true;
  const auto look = [&deaf](std::string& name) {
    char buffer[16] = {};
    pthread_getname_np(pthread_self(), buffer, sizeof(buffer));
    name = buffer;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    if (sigismember(&mask, SIGINT) != 1) deaf = false;
  };
  engine.on_turn = [&] { look(turn_name); };
  engine.on_callback = [&] { look(call_name); };
  ThreadsDriver driver;
  EXPECT_TRUE(driver.threaded());
  ASSERT_TRUE(driver.attach(engine, {}));
  engine.work = 1;
  driver.wake(engine);
  EXPECT_TRUE(eventually([&] { return engine.worked == 1; }));
  engine.due = 1;
  driver.wake_callbacks(engine);
  EXPECT_TRUE(eventually([&] { return engine.called == 1; }));
  driver.detach(engine);
  EXPECT_EQ(turn_name, "fabric-worker");
  EXPECT_EQ(call_name, "fabric-call");
  EXPECT_TRUE(deaf);
}

TEST(ThreadsDriver, SleepsWhenIdleAndDoesNotSpinAgainForNothing) {
  FakeProgress engine;
  ThreadsDriver driver;
  ASSERT_TRUE(driver.attach(engine, {.spin_ns = 1'000'000}));
  EXPECT_TRUE(eventually([&] { return engine.sleeps >= 1; }));
  const uint32_t turns = engine.turns, sleeps = engine.sleeps;
  EXPECT_TRUE(eventually([&] { return engine.sleeps >= sleeps + 3; }));  // by the bound
  // One turn a sleep; one of slack, because the two counts are not read at once.
  EXPECT_LE(engine.turns - turns, engine.sleeps - sleeps + 1);
  driver.detach(engine);
}

TEST(ThreadsDriver, SpinsForItsTimeBeforeItSleeps) {
  FakeProgress engine;
  std::atomic<int64_t> slept_at{0};
  ThreadsDriver driver;
  engine.on_armed = [&] {
    int64_t never = 0;
    slept_at.compare_exchange_strong(never, monotonic_ns());
  };
  const int64_t start = monotonic_ns();
  ASSERT_TRUE(driver.attach(engine, {.spin_ns = 30'000'000}));
  EXPECT_TRUE(eventually([&] { return slept_at != 0; }));
  EXPECT_GE(slept_at - start, 30'000'000);
  driver.detach(engine);
}

// The narrowest moment: the worker has looked for the last time and is about to sleep.
TEST(ThreadsDriver, IsWokenByWhatComesBetweenTheLastCheckAndTheSleep) {
  FakeProgress engine;
  ThreadsDriver driver;
  uint32_t rounds = 0;
  std::atomic<int64_t> took_ns{0};
  const int64_t start = monotonic_ns();
  engine.on_armed = [&] {
    if (engine.work.load() != 0) return;  // arm() answers "not now": no round
    if (rounds++ == kRounds) took_ns = monotonic_ns() - start;
    engine.work = 1;
    driver.wake(engine);
  };
  ASSERT_TRUE(driver.attach(engine, {}));
  EXPECT_TRUE(eventually([&] { return took_ns != 0; }));
  driver.detach(engine);
  EXPECT_LT(took_ns, kRoundsNs);
  EXPECT_GE(engine.sleeps, kRounds);  // or arm() was asked and the sleep was skipped
}

TEST(ThreadsDriver, CallbackThreadIsWokenByWhatComesAfterItsLastLook) {
  FakeProgress engine;
  ThreadsDriver driver;
  uint32_t seen = 0, misses = 0;
  engine.on_look = [&] {
    misses = engine.called == seen ? misses + 1 : 0;
    seen = engine.called;
    // The thread checks, registers itself, checks again: only the wake can report what comes now.
    if (misses == 2 && seen < kRounds) {
      engine.due = 1;
      driver.wake_callbacks(engine);
    }
  };
  ASSERT_TRUE(driver.attach(engine, {}));
  EXPECT_TRUE(eventually([&] { return engine.called == kRounds; }));
  driver.detach(engine);
}

TEST(ThreadsDriver, MakesTheNextTurnWhenItIsDue) {
  FakeProgress engine;
  engine.next_after_ns = 2'000'000;
  ThreadsDriver driver;
  const int64_t start = monotonic_ns();
  ASSERT_TRUE(driver.attach(engine, {}));
  EXPECT_TRUE(eventually([&] { return engine.turns >= kRounds; }));
  EXPECT_LT(monotonic_ns() - start, kRoundsNs);
  EXPECT_GE(monotonic_ns() - start, (kRounds - 1) * 2'000'000);
  driver.detach(engine);
}

TEST(ThreadsDriver, IsWokenByADescriptorOfItsNetworks) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  FakeProgress engine;
  engine.fds = {ends[0]};
  std::atomic<bool> readable{false};
  std::atomic<uint32_t> reads{0};
  engine.on_turn = [&] {
    char byte = 0;
    if (readable.exchange(false)) reads += read(ends[0], &byte, 1) == 1;
  };
  ThreadsDriver driver;
  ASSERT_TRUE(driver.attach(engine, {}));
  const int64_t start = monotonic_ns();
  for (uint32_t i = 1; i <= kRounds; ++i) {
    const uint32_t sleeps = engine.sleeps;
    ASSERT_EQ(write(ends[1], "x", 1), 1);
    readable = true;
    ASSERT_TRUE(eventually([&] { return reads == i && engine.sleeps > sleeps; }));
  }
  EXPECT_LT(monotonic_ns() - start, kRoundsNs);
  driver.detach(engine);
  close(ends[0]);
  close(ends[1]);
}

TEST(ThreadsDriver, NeverSleepsWhileItIsToldToKeepPolling) {
  FakeProgress engine;
  engine.keep_polling = true;
  ThreadsDriver driver;
  ASSERT_TRUE(driver.attach(engine, {}));
  EXPECT_TRUE(eventually([&] { return engine.turns >= 2000; }));
  EXPECT_EQ(engine.sleeps, 0u);
  engine.keep_polling = false;
  EXPECT_TRUE(eventually([&] { return engine.sleeps > 0; }));
  driver.detach(engine);
}

TEST(ThreadsDriver, ASlowCallbackDoesNotHoldUpTurns) {
  FakeProgress engine;
  std::atomic<bool> release{false};
  engine.on_callback = [&] { eventually([&] { return release.load(); }); };
  ThreadsDriver driver;
  ASSERT_TRUE(driver.attach(engine, {}));
  engine.due = 1;
  driver.wake_callbacks(engine);
  EXPECT_TRUE(eventually([&] { return engine.due == 0; }));
  for (uint32_t i = 1; i <= 5; ++i) {
    engine.work = 1;
    driver.wake(engine);
    EXPECT_TRUE(eventually([&] { return engine.worked == i; }));
  }
  EXPECT_EQ(engine.called, 0u);
  release = true;
  driver.detach(engine);
}

TEST(ThreadsDriver, NothingIsCalledAfterDetach) {
  ThreadsDriver driver;
  const uint32_t before = thread_count();
  for (int i = 0; i < 20; ++i) {
    FakeProgress engine;
    engine.keep_polling = i % 2 == 0;
    ASSERT_TRUE(driver.attach(engine, {}));
    EXPECT_TRUE(eventually([&] { return engine.turns > 0; }));
    driver.detach(engine);
    // A joined thread is still in /proc for a moment.
    EXPECT_TRUE(eventually([&] { return thread_count() == before; }));
    const uint32_t turns = engine.turns, looks = engine.looks;
    driver.wake(engine);  // late ones are harmless
    driver.wake_callbacks(engine);
    driver.detach(engine);
    EXPECT_EQ(engine.turns, turns);
    EXPECT_EQ(engine.looks, looks);
  }
}

TEST(ThreadsDriver, KeepsEnginesApart) {
  ThreadsDriver driver;
  FakeProgress a, b;
  ASSERT_TRUE(driver.attach(a, {}));
  ASSERT_TRUE(driver.attach(b, {}));
  a.work = 1;
  driver.wake(a);
  b.work = 2;
  driver.wake(b);
  EXPECT_TRUE(eventually([&] { return a.worked == 1 && b.worked == 2; }));
  driver.detach(a);
  b.work = 1;
  driver.wake(b);
  EXPECT_TRUE(eventually([&] { return b.worked == 3; }));
  driver.detach(b);
}

TEST(ThreadsDriver, LeavesNothingBehindWhenItsWorkerCannotStart) {
  ThreadsDriver driver;
  FakeProgress engine;
  const uint32_t before = thread_count();
  const Result<void> attached = driver.attach(engine, {.cpus = {CPU_SETSIZE - 1}});
  ASSERT_FALSE(attached);
  EXPECT_EQ(attached.error().code, Errc::kInvalidArgument);
  EXPECT_TRUE(eventually([&] { return thread_count() == before; }));
  EXPECT_EQ(engine.turns, 0u);
  EXPECT_TRUE(driver.attach(engine, {}));
  driver.detach(engine);
}

TEST(ThreadsDriver, RunsJobsInOrderOnOneThreadAndFinishesThemAtItsEnd) {
  std::vector<int> ran;
  std::string name;
  {
    ThreadsDriver driver;
    for (int i = 0; i < 100; ++i) {
      driver.offload([&, i] {
        ran.push_back(i);
        if (i == 50) driver.offload([&] { ran.push_back(1000); });
        char buffer[16] = {};
        pthread_getname_np(pthread_self(), buffer, sizeof(buffer));
        name = buffer;
      });
    }
  }
  ASSERT_EQ(ran.size(), 101u);
  uint32_t in_order = 0;
  for (const int i : ran) in_order += i == static_cast<int>(in_order);
  EXPECT_EQ(in_order, 100u);
  EXPECT_EQ(name, "fabric-helper");
}

// A call that the kernel holds up, on a rail that loses everything for example, holds up no other
// rail: the first job waits here for one that was queued after it.
TEST(ThreadsDriver, AnOffloadQueueThatIsHeldUpHoldsUpNoOther) {
  std::atomic<bool> other_ran = false, went_on = false;
  {
    ThreadsDriver driver;
    driver.offload([&] { went_on = eventually([&] { return other_ran.load(); }); }, 1);
    driver.offload([&] { other_ran = true; }, Driver::kOffloadQueues - 1);
  }
  EXPECT_TRUE(went_on.load());
}

TEST(ThreadsDriver, IsWhatTheCoreFallsBackTo) {
  const std::unique_ptr<Driver> driver = make_threads_driver();
  EXPECT_TRUE(driver->threaded());
  const int64_t now_ns = driver->now_ns();
  EXPECT_LE(now_ns, monotonic_ns());
  const uint64_t earlier = driver->incarnation();
  EXPECT_LT(earlier, driver->incarnation());
  EXPECT_NE(driver->entropy(), driver->entropy());
}

}  // namespace
}  // namespace fabric::runtime::threads_test

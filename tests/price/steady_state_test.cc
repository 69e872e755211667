#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>

#include "price/counting.h"
#include "price/system_calls.h"
#include "stage.h"
#include "stepped_clock.h"
#include "support/log_guard.h"

// The steady state: between submit and completion nothing is allocated, no lock is taken and no
// system call made. The engines are inline, sender and receivers on this thread, so that all of it
// is seen.

namespace fabric::test {
namespace {

using bench::Stage;
using bench::SteppedClock;

struct Operation {
  const char* name;
  void (Stage::*run)();
  uint32_t receivers;
};

class SteadyState : public testing::TestWithParam<Operation> {
 protected:
  /// As often as it takes for everything that grows to have grown.
  static constexpr uint32_t kWarmUp = 200;
  /// Some milliseconds of the engines' clock: what is due every millisecond comes several times.
  static constexpr int64_t kSpanNs = 5'000'000;

  static Stage warm_stage() {
    Stage stage(GetParam().receivers, test_log_sink());
    for (uint32_t i = 0; i < kWarmUp; ++i) run(stage);
    return stage;
  }
  static void run(Stage& stage) { (stage.*GetParam().run)(); }
  static void run_for_a_while(Stage& stage) {
    const SteppedClock clock;
    while (clock.passed_ns() < kSpanNs) run(stage);
  }
  static Counts count() {
    Stage stage = warm_stage();
    Counting counting;
    run_for_a_while(stage);
    return counting.done();
  }
};

TEST_P(SteadyState, AllocatesNothing) {
  const Counts counts = count();
  EXPECT_EQ(counts.allocations, 0u) << counts.where;
  EXPECT_EQ(counts.frees, 0u) << counts.where;
}

TEST_P(SteadyState, TakesNoLock) {
  const Counts counts = count();
  EXPECT_EQ(counts.locks, 0u) << counts.where;
}

TEST_P(SteadyState, MakesNoSystemCall) {
  const auto calls = trace([](Window& window) {
    Stage stage = warm_stage();
    window.open = true;
    run_for_a_while(stage);
    window.open = false;
  });
  if (!calls) GTEST_SKIP() << "this process may not trace another one";
  EXPECT_EQ(calls->failure, "");
  EXPECT_TRUE(calls->by_number.empty()) << calls->text();
}

INSTANTIATE_TEST_SUITE_P(Operations, SteadyState,
                         testing::Values(Operation{"write", &Stage::write, 1},
                                         Operation{"span", &Stage::span, 1},
                                         Operation{"paged", &Stage::paged, 1},
                                         Operation{"scatter", &Stage::scatter, 56},
                                         Operation{"expectation", &Stage::expectation, 1}),
                         [](const auto& one) { return std::string(one.param.name); });

// The counters can count.

TEST(SteadyStateCounting, SeesAllocationsOfEveryKind) {
  Counting counting;
  auto one = std::make_unique<int>(1);
  one.reset();
  struct alignas(128) Wide {
    char bytes[128];
  };
  const auto wide = std::make_unique<Wide>();
  const std::string text(100, 'x');
  const Counts counts = counting.done();
  EXPECT_EQ(counts.allocations, 3u);
  EXPECT_EQ(counts.frees, 1u);
  EXPECT_NE(counts.where.find("malloc from"), std::string::npos) << counts.where;
}

TEST(SteadyStateCounting, SeesLocksOfEveryKind) {
  std::mutex mutex;
  std::timed_mutex timed;
  std::shared_mutex shared;
  Counting counting;
  { const std::lock_guard lock(mutex); }
  { const std::unique_lock lock(mutex, std::try_to_lock); }
  { const std::unique_lock lock(timed, std::chrono::seconds(1)); }
  { const std::shared_lock lock(shared); }
  { const std::unique_lock lock(shared); }
  EXPECT_EQ(counting.done().locks, 5u);
}

TEST(SteadyStateCounting, SeesSystemCallsWhileTheWindowIsOpen) {
  const auto calls = trace([](Window& window) {
    (void)::getppid();
    window.open = true;
    (void)::getppid();
    (void)::syscall(SYS_getppid);
    window.open = false;
    (void)::getppid();
  });
  if (!calls) GTEST_SKIP() << "this process may not trace another one";
  EXPECT_EQ(calls->failure, "");
  EXPECT_EQ(calls->of(SYS_getppid), 2u);
  EXPECT_EQ(calls->by_number.size(), 1u) << calls->text();
}

TEST(SteadyStateCounting, TellsWhenTheChildFailed) {
  const auto calls = trace([](Window&) { throw std::runtime_error("on purpose"); });
  if (!calls) GTEST_SKIP() << "this process may not trace another one";
  EXPECT_NE(calls->failure.find("on purpose"), std::string::npos) << calls->failure;
}

}  // namespace
}  // namespace fabric::test

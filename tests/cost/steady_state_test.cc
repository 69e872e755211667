#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <mutex>
#include <new>
#include <optional>
#include <ostream>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "bench/bench_engines.h"
#include "bench/stepped_clock.h"
#include "cost/counting.h"
#include "cost/system_calls.h"
#include "support/log_guard.h"

// The steady state: allocations, locks and system calls between submit and completion. The engines
// are inline, sender and receivers on this thread, so that all of them are counted.

namespace fabric::test::steady_state_test {
namespace {

using bench::BenchEngines;
using bench::SteppedClock;

struct Operation {
  const char* name;
  void (BenchEngines::*run)();
  uint32_t receivers;
  int64_t step_ns;  ///< between two looks at the clock, roughly
  BenchEngines::Of memory = BenchEngines::Of::kEngines;
};

void PrintTo(const Operation& operation, std::ostream* out) { *out << operation.name; }

// epoll_wait(), by its names on different machines.
#ifdef SYS_epoll_wait
constexpr std::array<uint64_t, 2> kLooks{SYS_epoll_wait, SYS_epoll_pwait};
#else
constexpr std::array<uint64_t, 1> kLooks{SYS_epoll_pwait};
#endif

class SteadyState : public testing::TestWithParam<Operation> {
 protected:
  // On the engines' clock. By then every table has its final size and every first control message
  // is answered; what is due every millisecond comes several times.
  static constexpr int64_t kMillisecondNs = 1'000'000;
  static constexpr int64_t kWarmUpNs = 20 * kMillisecondNs;
  static constexpr int64_t kWhileNs = 5 * kMillisecondNs;

  static BenchEngines warm_engines() {
    BenchEngines engines(GetParam().receivers, test_log_sink(), GetParam().memory);
    run(engines);
    run_for(engines, kWarmUpNs, SteppedClock(GetParam().step_ns));
    return engines;
  }
  static void run(BenchEngines& engines) { (engines.*GetParam().run)(); }
  static void run_for(BenchEngines& engines, int64_t span_ns, const SteppedClock& clock) {
    while (clock.passed_ns() < span_ns) run(engines);
  }
  static std::optional<SystemCalls> calls_of_a_while() {
    return trace([](Window& window) {
      BenchEngines engines = warm_engines();
      const SteppedClock clock(GetParam().step_ns);
      window.open = true;
      run_for(engines, kWhileNs, clock);
      window.open = false;
    });
  }
  static Counts count() {
    BenchEngines engines = warm_engines();
    const SteppedClock clock(GetParam().step_ns);
    Counting counting;
    run_for(engines, kWhileNs, clock);
    return counting.done();
  }
};

TEST_P(SteadyState, AllocatesNothing) {
  const Counts counts = count();
  EXPECT_EQ(counts.allocations, 0u) << counts.where_allocated;
  EXPECT_EQ(counts.frees, 0u) << counts.where_allocated;
}

TEST_P(SteadyState, TakesNoLock) {
  const Counts counts = count();
  EXPECT_EQ(counts.locks, 0u) << counts.where_locked;
}

TEST_P(SteadyState, MakesNoSystemCallButALookAtSocketsEachMillisecond) {
  const auto calls = calls_of_a_while();
  if (!calls) GTEST_SKIP() << "this process may not trace another one";
  ASSERT_EQ(calls->failure, "");
  uint64_t looks = 0;
  for (const uint64_t number : kLooks) looks += calls->of(number);
  // What the program registered the target fetches, and only the kernel can do that.
  const bool fetched = GetParam().memory == BenchEngines::Of::kProgram;
  const uint64_t fetches = calls->of(SYS_process_vm_readv);
  EXPECT_EQ(fetches != 0, fetched) << calls->text();
  EXPECT_EQ(looks + fetches, calls->total()) << calls->text();
  const uint64_t engines = GetParam().receivers + 1;
  EXPECT_LE(looks, engines * (kWhileNs / kMillisecondNs + 1)) << calls->text();
}

INSTANTIATE_TEST_SUITE_P(
    Operations, SteadyState,
    testing::Values(
        Operation{"write", &BenchEngines::write, 1, 500},
        Operation{"span", &BenchEngines::span, 1, 5'000},
        Operation{"paged", &BenchEngines::paged, 1, 20'000},
        Operation{"listed_pages", &BenchEngines::listed_pages, 1, 20'000},
        Operation{"ranged_pages", &BenchEngines::ranged_pages, 1, 20'000},
        Operation{"listed_writes", &BenchEngines::listed_writes, 1, 20'000},
        Operation{"scatter", &BenchEngines::scatter, 56, 5'000},
        Operation{"expectation", &BenchEngines::expectation, 1, 500},
        Operation{"registered_write", &BenchEngines::write, 1, 500, BenchEngines::Of::kProgram},
        Operation{"registered_pages", &BenchEngines::paged, 1, 20'000, BenchEngines::Of::kProgram}),
    [](const auto& one) { return std::string(one.param.name); });

// The counters can count.

TEST(SteadyStateCounting, SeesAllocationsOfEveryKind) {
  // Called by name: the compiler may omit a pair of calls that a new-expression makes.
  constexpr std::align_val_t kAlign{128};
  Counting counting;
  ::operator delete(::operator new(16));
  ::operator delete(::operator new(128, kAlign), kAlign);
  const std::string text(100, 'x');
  std::vector<int> numbers(10);
  numbers.resize(1000);
  const Counts counts = counting.done();
  EXPECT_EQ(counts.allocations, 5u) << counts.where_allocated;
  EXPECT_EQ(counts.frees, 3u) << counts.where_allocated;
  EXPECT_NE(counts.where_allocated.find("malloc from"), std::string::npos)
      << counts.where_allocated;
  EXPECT_NE(text.size(), numbers.size());
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

TEST(SteadyStateCounting, ReportsWhenTheChildFailed) {
  const auto calls = trace([](Window&) { throw std::runtime_error("on purpose"); });
  if (!calls) GTEST_SKIP() << "this process may not trace another one";
  EXPECT_NE(calls->failure.find("on purpose"), std::string::npos) << calls->failure;
}

}  // namespace
}  // namespace fabric::test::steady_state_test

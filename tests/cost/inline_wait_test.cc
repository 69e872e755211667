#include <sys/syscall.h>

#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>

#include <gtest/gtest.h>

#include <fabric/fabric.h>

#include "cost/system_calls.h"

// What an inline wait does while nothing arrives.

namespace fabric::test::inline_wait_test {
namespace {

using namespace std::chrono_literals;

/// The system calls of one wait that times out.
std::optional<SystemCalls> calls_of_a_wait(Nanos spin) {
  return trace([spin](Window& window) {
    Config config;
    config.networks = {{.provider = "shm"}};
    config.spin = spin;
    auto engine = Engine::open(config, std::make_shared<InlineRuntime>());
    if (!engine) throw std::runtime_error(engine.error().what);
    auto counter = engine->make_counter();
    if (!counter) throw std::runtime_error(counter.error().what);
    window.open = true;
    const auto waited = counter->wait(1, 20ms);
    window.open = false;
    if (waited.error().code != Errc::kTimeout) throw std::runtime_error("it did not time out");
  });
}

// The rank that a wait is for may be on the same CPU.
TEST(InlineWait, YieldsWhileItSpins) {
  const auto calls = calls_of_a_wait(10ms);
  if (!calls) GTEST_SKIP() << "this process may not trace another one";
  ASSERT_EQ(calls->failure, "");
  EXPECT_GT(calls->of(SYS_sched_yield), 0u) << calls->text();
}

TEST(InlineWait, ThatDoesNotSpinSleepsAtOnce) {
  const auto calls = calls_of_a_wait(0ms);
  if (!calls) GTEST_SKIP() << "this process may not trace another one";
  ASSERT_EQ(calls->failure, "");
  EXPECT_EQ(calls->of(SYS_sched_yield), 0u) << calls->text();
}

}  // namespace
}  // namespace fabric::test::inline_wait_test

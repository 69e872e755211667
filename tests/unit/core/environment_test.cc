#include <gtest/gtest.h>

#include <cstdlib>

#include <fabric/engine.h>

#include "support/log_guard.h"

namespace fabric::environment_test {
namespace {

// What a variable says must reach the threads too, which get it by another way than the core does.
// No machine has this CPU, so an engine that opens did not look.
TEST(Environment, ReachesTheWorkerThread) {
  ASSERT_EQ(setenv("FABRICLIB_WORKER_CPUS", "1000000", 1), 0);
  const auto engine = Engine::open({.log_sink = test::test_log_sink()});
  ASSERT_EQ(unsetenv("FABRICLIB_WORKER_CPUS"), 0);
  EXPECT_FALSE(engine);
  EXPECT_EQ(engine.error().code, Errc::kInvalidArgument);
}

// A network without NICs cannot choose any; the variable must not be ignored.
TEST(Environment, NearIsRefusedByANetworkWithoutNics) {
  ASSERT_EQ(setenv("FABRICLIB_NETWORKS", "shm near=auto", 1), 0);
  const auto engine = Engine::open({.log_sink = test::test_log_sink()});
  ASSERT_EQ(unsetenv("FABRICLIB_NETWORKS"), 0);
  ASSERT_FALSE(engine);
  EXPECT_EQ(engine.error().code, Errc::kInvalidArgument);
  EXPECT_STREQ(engine.error().what, "networks.near");
}

}  // namespace
}  // namespace fabric::environment_test

#include "support/log_guard.h"

#include <array>

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "support/log_listener.h"

namespace fabric::test::log_guard_test {
namespace {

void write(LogLevel level, std::string_view text) {
  const std::array fields{LogField{"peer", "7"}};
  const LogSink sink = test_log_sink();
  sink.write(sink.context, {.level = level, .area = "core", .text = text, .fields = fields});
}

void end_test() { LogListener().OnTestEnd(*testing::UnitTest::GetInstance()->current_test_info()); }

TEST(LogGuard, FailsATestThatDidNotExpectTheWarning) {
  write(LogLevel::kWarning, "the rail is gone");
  EXPECT_NONFATAL_FAILURE(end_test(), "the rail is gone peer=7");
  end_test();  // What was reported is not reported again.
}

TEST(LogGuard, FailsATestThatDidNotExpectTheError) {
  write(LogLevel::kError, "out of memory");
  EXPECT_NONFATAL_FAILURE(end_test(), "out of memory");
}

TEST(LogGuard, LetsExpectedWarningsAndLowerLevelsPass) {
  write(LogLevel::kInfo, "connected");
  write(LogLevel::kWarning, "the rail is gone");
  expect_log("rail is");
  EXPECT_EQ(logged("the rail is gone"), 1u);
  EXPECT_EQ(logged("connected"), 0u);
  end_test();
}

TEST(LogGuard, ForgetsAnExpectationWithItsTest) {
  expect_log("rail");
  end_test();
  write(LogLevel::kWarning, "the rail is gone");
  EXPECT_NONFATAL_FAILURE(end_test(), "rail");
}

}  // namespace
}  // namespace fabric::test::log_guard_test

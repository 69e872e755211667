#include "base/check.h"

#include <fabric/result.h>
#include <gtest/gtest.h>

namespace fabric::check_test {
namespace {

TEST(CheckDeathTest, NamesConditionMessageAndPlace) {
  const int n = 3;
  FABRIC_CHECK(n == 3);
  EXPECT_DEATH(FABRIC_CHECK(n == 4, "n is four"), "check failed: n == 4: n is four .*check_test");
  EXPECT_DEATH(FABRIC_CHECK(n == 5), "check failed: n == 5 \\(");
}

TEST(Check, EvaluatesItsConditionOnce) {
  int evaluated = 0;
  FABRIC_CHECK(++evaluated == 1);
  EXPECT_EQ(evaluated, 1);
}

#ifdef NDEBUG
TEST(Check, DebugChecksAreNotEvaluatedInRelease) {
  int evaluated = 0;
  FABRIC_DCHECK(++evaluated == 7, "never evaluated");
  EXPECT_EQ(evaluated, 0);
}
#else
TEST(CheckDeathTest, DebugChecksAreOnInDebug) {
  EXPECT_DEATH(FABRIC_DCHECK(1 + 1 == 3, "sums"), "1 \\+ 1 == 3: sums");
}
#endif

TEST(ResultDeathTest, NamesTheErrorThatWasNotChecked) {
  const Result<int> failed = fail(Errc::kUnreachable, "connect", 113);
  EXPECT_DEATH(static_cast<void>(*failed), "Unreachable: connect \\(native 113, .*check_test");
}

}  // namespace
}  // namespace fabric::check_test

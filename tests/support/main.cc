#include <cinttypes>
#include <cstdio>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/log_guard.h"
#include "support/log_listener.h"

// The seed comes first, so that a run that hangs or crashes can be replayed as well.
int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  // Listing is for machines: ctest reads the names from it.
  if (!testing::GTEST_FLAG(list_tests)) {
    std::printf("FABRICLIB_TEST_SEED=%" PRIu64 "\n", fabric::test::test_seed());
    std::fflush(stdout);
  }
  // The listeners own it. It was appended after the printer, so it runs first at a test's end and
  // the printer reports its failures.
  testing::UnitTest::GetInstance()->listeners().Append(new fabric::test::LogListener);
  return RUN_ALL_TESTS();
}

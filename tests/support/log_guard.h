#pragma once

#include <cstdint>
#include <string_view>

#include <fabric/log.h>

namespace fabric::test {

/// A sink that records into the test that is running. A warning or an error that the test did not
/// expect fails it when it ends, with the text and the fields.
///
/// Threads: any, several engines at once included.
LogSink test_log_sink();

/// Allows warnings and errors whose text or fields contain `text_part` until this test ends. May be
/// called before or after they are logged. A test that requires the warning also checks logged().
void expect_log(std::string_view text_part);

/// How many records at warning or above contain `text_part` so far in this test.
uint64_t logged(std::string_view text_part);

/// FABRICLIB_TEST_SEED, or 1. main() prints it before the first test.
uint64_t test_seed();

}  // namespace fabric::test

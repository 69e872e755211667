#pragma once

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <gtest/gtest.h>

namespace fabric::kv::test {

/// FABRICLIB_TEST_ROUNDS, by which long tests are scaled; default 1.
inline uint64_t test_rounds() {
  const char* text = std::getenv("FABRICLIB_TEST_ROUNDS");
  uint64_t times = 1;
  if (text == nullptr) return times;
  const auto parsed = std::from_chars(text, text + std::strlen(text), times);
  EXPECT_TRUE(parsed.ec == std::errc{} && times > 0) << "FABRICLIB_TEST_ROUNDS is '" << text << "'";
  return times;
}

}  // namespace fabric::kv::test

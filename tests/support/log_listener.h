#pragma once

#include <gtest/gtest.h>

namespace fabric::test {

/// Fails a test at its end for every warning or error that it did not expect.
class LogListener final : public testing::EmptyTestEventListener {
 public:
  void OnTestEnd(const testing::TestInfo& info) override;
};

}  // namespace fabric::test

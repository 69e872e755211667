#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <fabric/types.h>

#include "swarm/coverage.h"

namespace fabric::swarm {

/// A promise that did not hold: which one, what was seen, and when in virtual time.
struct Violation {
  std::string invariant{}, detail{};
  Nanos at{};
};

/// Keeps the first violation: later ones are usually its consequences.
class ViolationRecord {
 public:
  explicit ViolationRecord(std::function<Nanos()> clock) : clock_(std::move(clock)) {}
  void record(std::string_view invariant, std::string detail) {
    if (!first_) first_ = Violation{std::string(invariant), std::move(detail), clock_()};
  }
  bool none() const noexcept { return !first_.has_value(); }
  const std::optional<Violation>& first() const noexcept { return first_; }

 private:
  std::function<Nanos()> clock_;
  std::optional<Violation> first_;
};

/// What running one Plan gave.
struct RunResult {
  std::optional<Violation> violation{};  ///< empty: every promise held
  Coverage coverage{};
  uint64_t trace_hash = 0;  ///< over every event of the simulator: equal for equal plans
  uint64_t operations = 0;  ///< completed
  uint64_t bytes_checked = 0;
  Nanos virtual_time{};
};

}  // namespace fabric::swarm

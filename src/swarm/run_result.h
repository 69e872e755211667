#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <fabric/types.h>

namespace fabric::swarm {

/// A promise that was record: which one, where, and when.
struct Violation {
  std::string invariant{}, detail{};
  Nanos at{};
};

/// Keeps the first violation: what comes after it is its consequence.
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

}  // namespace fabric::swarm

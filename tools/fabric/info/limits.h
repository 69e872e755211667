#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace fabric::tool {

/// A limit with its value as text and as a number, a boolean or a word (none: unknown).
struct Limit {
  using Value = std::variant<std::monostate, bool, int64_t, uint64_t, std::string>;

  std::string name{};
  std::string text{};
  Value value{};
  std::string advice{};  ///< if the value has a cost: which, and how to change it
};

/// Limits of this process and system that networks depend on.
std::vector<Limit> find_limits();

}  // namespace fabric::tool

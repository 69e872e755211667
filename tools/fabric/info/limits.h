#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace fabric::tool {

/// A name and a value for people; for programs the same value as it is.
struct Limit {
  std::string name{};
  std::string text{};
  nlohmann::ordered_json value{};
  std::string advice{};  ///< when the value costs something: what, and how to change it
};

/// What of this process and system decides about networks.
std::vector<Limit> find_limits();

}  // namespace fabric::tool

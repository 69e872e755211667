#pragma once

#include <string>
#include <utility>
#include <vector>

namespace fabric::tool {

/// Names and values that a bug report should contain, the library first.
std::vector<std::pair<std::string, std::string>> versions();

}  // namespace fabric::tool

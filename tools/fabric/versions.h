#pragma once

#include <string>
#include <utility>
#include <vector>

namespace fabric::tool {

/// What a report of a problem should name, the library first. Names and values.
std::vector<std::pair<std::string, std::string>> versions();

}  // namespace fabric::tool

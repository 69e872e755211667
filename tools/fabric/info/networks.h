#pragma once

#include <string>
#include <vector>

#include <fabric/fabric.h>

namespace fabric::tool {

/// One network, looked at by itself. Without rails `why` says what is missing.
struct NetworkInfo {
  std::string name{};
  bool built = true;
  std::vector<RailStats> rails{};
  Error why{};
  std::string remedy{};  ///< what to do about it

  bool usable() const { return !rails.empty(); }
};

/// Every network of this build in the order of preference, then those that are known but not built,
/// then the engine's own address.
std::vector<NetworkInfo> find_networks();

}  // namespace fabric::tool

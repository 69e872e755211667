#pragma once

#include <string>
#include <vector>

#include <fabric/fabric.h>

namespace fabric::tool {

/// One network, opened by itself. Without rails, `why` says what is missing.
struct NetworkInfo {
  std::string name{};
  bool built = true;
  std::vector<RailStats> rails{};
  Error why{};
  std::string remedy{};  ///< how to make it usable

  bool usable() const { return !rails.empty(); }
};

/// Every network of this build in the order of preference, then those that are planned or not
/// built, then `self`, by which an engine reaches its own address. `near`: Network::near of those
/// over NICs.
std::vector<NetworkInfo> find_networks(const std::string& near);

}  // namespace fabric::tool

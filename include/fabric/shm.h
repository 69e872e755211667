#pragma once

#include <cstdint>
#include <string>

namespace fabric::shm {

/// Options of the same-host network, for Network::options.
struct Options {
  /// Independent queues between two engines, each a rail of its own; 1..kRailsMax, at most
  /// Network::rails_max.
  uint32_t lanes = 1;
  /// Absolute path of a directory for the socket file, for containers that share a directory but no
  /// network namespace. Empty: an abstract socket.
  std::string directory{};
};

}  // namespace fabric::shm

#pragma once

#include <vector>

#include <fabric/verbs.h>

#include "conformance/conformance.h"

namespace fabric::test {

/// What an engine on RDMA devices is opened with.
inline std::vector<Network> verbs_networks(verbs::Options devices, const TestEnvOptions& options) {
  // Few places, so that some writes wait for one and some immediates find none.
  if (options.faults) {
    devices.send_depth = 16;
    devices.receive_depth = 4;
  }
  std::vector<Network> all{verbs::network(devices)};
  if (options.second_network) {
    all.push_back(all.front());
    all.back().name = "second";
  }
  return all;
}

}  // namespace fabric::test

#pragma once

#include <string>
#include <utility>
#include <vector>

#include <fabric/verbs.h>

#include "conformance/conformance.h"

namespace fabric::test {

/// The networks of an engine on RDMA NICs.
inline std::vector<Network> verbs_networks(std::vector<std::string> devices, verbs::Options verbs,
                                           const TestEnvOptions& options) {
  // Short queues, so that some writes wait for a slot and some immediates find no receive.
  if (options.faults) {
    verbs.send_depth = 16;
    verbs.receive_depth = 4;
  }
  std::vector<Network> all{
      {.provider = "verbs", .devices = std::move(devices), .options = std::move(verbs)}};
  if (options.second_network) {
    all.push_back(all.front());
    all.back().name = "second";
  }
  return all;
}

}  // namespace fabric::test

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <fabric/result.h>

namespace fabric::verbs {

/// A port of an RDMA device, as Network::devices names it: "mlx5_0" or "mlx5_1:2".
struct PortName {
  std::string device{};
  uint8_t port = 1;
};

/// Fails with kInvalidArgument ("networks.devices") when the text is not such a name.
Result<PortName> parse_port_name(std::string_view text);

}  // namespace fabric::verbs

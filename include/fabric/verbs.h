#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <fabric/config.h>
#include <fabric/export.h>

namespace fabric::verbs {

/// The network over RDMA cards with reliable connections (RoCE, InfiniBand). What is left alone is
/// found out: every active port is a rail, with the GID that others can route to.
///
/// In a Network the same things stand as text: `devices = {"mlx5_0", "mlx5_1:2", "gid_index=3"}`.
struct Options {
  std::vector<std::string> devices{};  ///< "name" or "name:port"; empty: every active port
  int32_t gid_index = -1;              ///< -1: RoCE v2 with a routable address, if there is one
  uint32_t mtu_bytes = 0;              ///< 256..4096, a power of two; 0: what both ports can do
  uint32_t traffic_class = 0;          ///< 0..255; DSCP << 2 on RoCE
  uint32_t service_level = 0;          ///< 0..15
  uint32_t pkey_index = 0;
  /// 1..22: a packet is sent again after 4.096 us << code; cards round up.
  uint32_t timeout_code = 14;
  /// 0..6. Seven is refused: there are devices for which it means for ever, and then nobody notices
  /// a path that is dead.
  uint32_t retry_count = 5;
  uint32_t rnr_retry = 7;     ///< 0..7; 7: a receiver without room is waited for, until a deadline
  uint32_t rnr_timer = 12;    ///< 0..31: the pause that such a receiver asks for; 12: 0.64 ms
  uint32_t send_depth = 256;  ///< writes in flight on one path, 16..8192
  uint32_t receive_depth = 1024;  ///< immediates that a path takes before it is polled, 4..16384
  uint32_t inline_bytes = 64;     ///< up to this size the bytes travel in the request; 0..512
  /// Where control datagrams are received: an address of this host, or empty for those of the
  /// rails, and a port, 0 for any.
  std::string control_address{};
  uint32_t control_port = 0;
};

/// The line for Config::networks.
FABRIC_EXPORT Network network(const Options& options);

}  // namespace fabric::verbs

#pragma once

#include <cstdint>
#include <string>

namespace fabric::verbs {

/// Options of the network over RDMA NICs with reliable connections (RoCE, InfiniBand), for
/// Network::options. Network::devices names the ports: "mlx5_0" or "mlx5_1:2"; empty: every active
/// port is a rail, with the GID that other hosts can route to.
struct Options {
  int32_t gid_index = -1;      ///< -1: RoCE v2 with a routable address, if there is one
  uint32_t mtu_bytes = 0;      ///< 256..4096, a power of two; 0: what both ports can do
  uint32_t traffic_class = 0;  ///< 0..255; DSCP << 2 on RoCE
  uint32_t service_level = 0;  ///< 0..15
  uint32_t pkey_index = 0;
  /// 1..22: a packet is sent again after 4.096 us << code; NICs round up.
  uint32_t timeout_code = 14;
  /// 0..6. Seven is refused: for some NICs it means for ever, and a dead path would never fail.
  uint32_t retry_count = 5;
  uint32_t rnr_retry = 7;     ///< 0..7; 7: retry while the receiver has no buffer, until a deadline
  uint32_t rnr_timer = 12;    ///< 0..31: the delay that such a receiver asks for; 12: 0.64 ms
  uint32_t send_depth = 256;  ///< writes in flight on one path, 16..8192
  uint32_t receive_depth = 1024;  ///< immediates that a path can receive between polls, 4..16384
  uint32_t inline_bytes = 64;     ///< writes up to this size are posted inline; 0..512
  /// Where control datagrams are received: an address of this host (empty: the addresses of the
  /// rails) and a port (0: any).
  std::string control_address{};
  uint32_t control_port = 0;
};

}  // namespace fabric::verbs

#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include <fabric/provider.h>
#include <fabric/result.h>

#include "providers/verbs/gids.h"

// The wire formats of the verbs network. Decoded bytes come from outside and are not trusted: they
// are complete and in range, or the result is kBadFormat.

namespace fabric::verbs {

inline constexpr uint32_t kQpnPsnMax = (1u << 24) - 1;  ///< queue pairs and packets have 24 bits
inline constexpr uint32_t kControlAddressesMax = kRailsMax;

/// Where a socket receives control datagrams.
struct ControlAddress {
  GidBytes ip{};  ///< IPv6, or IPv4-mapped
  uint16_t port = 0;

  bool operator==(const ControlAddress&) const = default;
};

/// How a network is reached: one control address per rail.
struct Address {
  uint64_t instance = 0;  ///< random, one per opened network
  uint8_t rails = 0;
  std::vector<ControlAddress> control{};

  bool operator==(const Address&) const = default;
};
std::vector<std::byte> encode(const Address& address);
Result<Address> decode_address(std::span<const std::byte> bytes);

/// One end of a connection, as the other end needs it.
struct Endpoint {
  uint64_t nonce = 0;  ///< of this connection; QP numbers are reused
  uint32_t queue_pair = 0;
  uint32_t psn = 0;  ///< initial PSN, random: packets of an old connection do not match
  GidBytes gid{};
  uint16_t lid = 0;  ///< InfiniBand
  uint8_t mtu = 0;   ///< 1..5: 256..4096
  bool grh = true;   ///< global routing header; always on RoCE

  bool operator==(const Endpoint&) const = default;
};

struct PathHello {
  uint64_t from = 0, to = 0;  ///< instances
  uint8_t to_rail = 0;
  Endpoint end{};
};
std::vector<std::byte> encode(const PathHello& hello);
Result<PathHello> decode_hello(std::span<const std::byte> bytes);

struct PathAnswer {
  uint64_t hello_nonce = 0;
  Endpoint end{};
};
std::vector<std::byte> encode(const PathAnswer& answer);
Result<PathAnswer> decode_answer(std::span<const std::byte> bytes);

/// An rkey and the IOVA at which the region begins, which is at most kBaseMax, so that both fit in
/// WriteOp::rkey.
struct WireKey {
  static constexpr uint32_t kBaseMax = (1u << 30) - 1;
  uint32_t key = 0, base = 0;

  uint64_t packed() const noexcept { return uint64_t{base} << 32 | key; }
};
std::vector<std::byte> encode(const WireKey& key);
Result<WireKey> decode_key(std::span<const std::byte> bytes);

/// The header of every part of a control datagram.
struct DatagramPartHead {
  static constexpr uint32_t kBytes = 21;
  uint64_t from = 0;    ///< instance
  uint32_t number = 0;  ///< of the datagram
  uint16_t index = 0, count = 0;
  uint8_t address_index = 0;  ///< index of the sender's control address; answers go there
};
std::array<std::byte, DatagramPartHead::kBytes> encode(const DatagramPartHead& head);
Result<DatagramPartHead> decode_datagram_part(std::span<const std::byte> bytes);

}  // namespace fabric::verbs

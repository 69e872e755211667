#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include <fabric/provider.h>
#include <fabric/result.h>

#include "providers/verbs/gids.h"

// Every byte that one engine's verbs network says to another's. What is decoded here is from
// outside: whole and in range, or kBadFormat.

namespace fabric::verbs {

inline constexpr uint32_t kNumberMax = (1u << 24) - 1;  ///< queue pairs and packets have 24 bits
inline constexpr uint32_t kControlAddressesMax = kRailsMax;

/// Where control datagrams are received.
struct ControlAddress {
  GidBytes ip{};  ///< in the form of IPv6
  uint16_t port = 0;

  bool operator==(const ControlAddress&) const = default;
};

/// How a network is reached: a place on every rail.
struct Address {
  uint64_t instance = 0;  ///< random, one per opened network
  uint8_t rails = 0;
  std::vector<ControlAddress> control{};

  bool operator==(const Address&) const = default;
};
std::vector<std::byte> encode(const Address& address);
Result<Address> decode_address(std::span<const std::byte> bytes);

/// One end of a connection, as its other end has to know it.
struct Endpoint {
  uint64_t nonce = 0;  ///< of this life of the queue pair; its number may come again
  uint32_t queue_pair = 0;
  uint32_t packet = 0;  ///< the first packet's number, random: old packets do not fit
  GidBytes gid{};
  uint16_t lid = 0;  ///< InfiniBand
  uint8_t mtu = 0;   ///< 1..5: 256..4096
  bool grh = true;   ///< RoCE always has it

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

/// What a write needs beside the offset. Regions begin at an address of their own choice below
/// kBaseMax, so both fit in the number that a WriteOp carries.
struct WireKey {
  static constexpr uint32_t kBaseMax = (1u << 30) - 1;
  uint32_t key = 0, base = 0;

  uint64_t packed() const noexcept { return uint64_t{base} << 32 | key; }
};
std::vector<std::byte> encode(const WireKey& key);
Result<WireKey> decode_key(std::span<const std::byte> bytes);

/// In front of every fragment of a control datagram.
struct FragmentHead {
  static constexpr uint32_t kBytes = 21;
  uint64_t from = 0;    ///< instance
  uint32_t number = 0;  ///< of the datagram
  uint16_t index = 0, count = 0;
  uint8_t socket = 0;  ///< of the sender: there it can be answered
};
std::array<std::byte, FragmentHead::kBytes> encode(const FragmentHead& head);
Result<FragmentHead> decode_fragment(std::span<const std::byte> bytes);

}  // namespace fabric::verbs

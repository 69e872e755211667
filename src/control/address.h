#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fabric/peer.h>
#include <fabric/result.h>

// The address of an engine: plain bytes that the application may pass over any channel
// (contracts.md P14). Versioned, size-checked, one section per network, unknown sections skipped.

namespace fabric::control {

/// The address and the capabilities of one network of an engine.
struct NetworkSection {
  std::string provider{};  ///< "sim", "verbs", ...; at most kNameBytesMax
  std::string name{};      ///< peers meet on networks of the same provider and name
  uint8_t rails = 0;       ///< 1..kRailsMax
  FenceKind fence = FenceKind::kNone;
  uint32_t memory_kinds = 0;         ///< bit per MemoryKind
  std::vector<std::byte> address{};  ///< opaque, of the provider; <= OpenNetwork::kAddressBytesMax

  bool operator==(const NetworkSection&) const = default;
};

struct Address {
  uint64_t engine_id = 0;                  ///< never 0 on the wire
  uint64_t incarnation = 0;                ///< never 0 on the wire
  std::vector<NetworkSection> networks{};  ///< at most kNetworksMax, in order of preference

  bool operator==(const Address&) const = default;
};

inline constexpr uint32_t kNameBytesMax = 31;
inline constexpr uint32_t kNetworksMax = 8;

std::vector<std::byte> encode(const Address& address);
/// Fails with kBadFormat (truncated or hostile) or kVersion (other major); `what` is "address".
Result<Address> decode_address(std::span<const std::byte> bytes);

/// "fabric1:" and base64url without padding: survives shells, JSON and environment variables.
std::string address_to_text(std::span<const std::byte> bytes);
Result<std::vector<std::byte>> address_from_text(std::string_view text);

}  // namespace fabric::control

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fabric/memory.h>
#include <fabric/result.h>
#include <fabric/types.h>

// Region descriptors, which a peer needs to write into a region (contracts.md P12, P14), and the
// one-line offer of an address, a descriptor and a counter key.

namespace fabric::control {

struct RegionDesc {
  uint64_t owner_engine = 0;
  uint64_t owner_incarnation = 0;
  RegionId region{};
  uint64_t size_bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
  int32_t gpu = -1;
  uint64_t granted_to = 0;  ///< engine id of the only peer that may use it; 0 = anyone
  uint32_t grant = 0;       ///< number of the grant at its owner; 0 = the open descriptor
  uint64_t session = 0;     ///< the grant is released with this session (the grantee's number);
                            ///< 0 = none, or granted before the number was known

  struct Section {
    std::string network{};                            ///< its name
    std::vector<std::vector<std::byte>> rail_keys{};  ///< 1..kRailsMax, each <= kWireRkeyBytesMax
    bool operator==(const Section&) const = default;
  };
  std::vector<Section> networks{};

  bool operator==(const RegionDesc&) const = default;
};

/// Fails with kTooLarge beyond MemoryRegion::kDescBytesMax.
Result<std::vector<std::byte>> encode(const RegionDesc& desc);
/// Fails with kBadFormat or kVersion; `what` is "desc".
Result<RegionDesc> decode_desc(std::span<const std::byte> bytes);

struct OfferParts {
  std::vector<std::byte> address{};
  std::vector<std::byte> desc{};
  CounterKey key{};
};

/// "fabric-offer1:" and base64url of the three parts.
std::string encode_offer(const OfferParts& offer);
/// Fails with kBadFormat or kVersion; `what` is "offer". Does not check address and descriptor.
Result<OfferParts> decode_offer(std::string_view text);

}  // namespace fabric::control

#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <fabric/result.h>

// GID selection. A port has many GIDs; a link-local one, for example, reaches only its own subnet
// (L2 segment).

namespace fabric::verbs {

using GidBytes = std::array<uint8_t, 16>;

enum class GidType : uint8_t { kInfiniband, kRoceV1, kRoceV2 };

struct Gid {
  GidBytes bytes{};
  GidType type = GidType::kRoceV2;
  uint32_t index = 0;
};

bool is_zero(const GidBytes& gid) noexcept;
bool is_ipv4(const GidBytes& gid) noexcept;        ///< ::ffff:a.b.c.d
bool is_link_local(const GidBytes& gid) noexcept;  ///< fe80::/10, 169.254/16
/// An IP address that other hosts can send datagrams to.
bool is_routable_ip(const Gid& gid) noexcept;

/// The best first: routable before link-local, RoCE v2 before v1, IPv4 before IPv6, then by index.
/// Empty entries are left out.
std::vector<Gid> rank_gids(std::span<const Gid> table);

/// `index` -1: the best. Fails with kInvalidArgument (no such entry), kUnsupported (empty table).
Result<Gid> choose_gid(std::span<const Gid> table, int32_t index);

/// Chooses again for a port that has been using `now`. Without a configured index it is the same
/// address, at whatever index it has now; if that address is gone, the best other one, but never a
/// link-local one in place of a routable one, because addresses come back.
Result<Gid> choose_gid_again(std::span<const Gid> table, int32_t index, const Gid& now);

std::string to_text(const Gid& gid);  ///< "1: 10.0.0.1 (RoCE v2)"

}  // namespace fabric::verbs

#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <fabric/result.h>

// Which of a port's addresses is used. A port has many, and the wrong one connects on one switch
// and nowhere else.

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
/// An address of IP that datagrams can be sent to from another host.
bool is_routable_ip(const Gid& gid) noexcept;

/// The best first: RoCE v2 before v1, routable before link-local, IPv4 before IPv6, then by index.
/// Entries that are not in use are left out.
std::vector<Gid> rank_gids(std::span<const Gid> table);

/// `index` -1: the best. Fails with kInvalidArgument (no such entry), kUnsupported (none at all).
Result<Gid> choose_gid(std::span<const Gid> table, int32_t index);

/// The next choice of a port that has been using `now`: the same address, wherever it stands in the
/// table by now, if the choice is ours. Another one only if that is gone, and no link-local one for
/// one that was not: addresses come back.
Result<Gid> choose_gid_again(std::span<const Gid> table, int32_t index, const Gid& now);

std::string to_text(const Gid& gid);  ///< "1: 10.0.0.1 (RoCE v2)"

}  // namespace fabric::verbs

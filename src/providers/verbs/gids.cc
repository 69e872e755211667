#include "providers/verbs/gids.h"

#include <arpa/inet.h>

#include <algorithm>
#include <tuple>

namespace fabric::verbs {

namespace {

constexpr std::array<uint8_t, 12> kIpv4Prefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

/// Smaller is better.
auto rank(const Gid& gid) noexcept {
  const uint32_t type = gid.type == GidType::kRoceV1 ? 1 : 0;
  return std::tuple(is_link_local(gid.bytes), type, !is_ipv4(gid.bytes), gid.index);
}

}  // namespace

bool is_zero(const GidBytes& gid) noexcept {
  return std::all_of(gid.begin(), gid.end(), [](uint8_t byte) { return byte == 0; });
}

bool is_ipv4(const GidBytes& gid) noexcept {
  return std::equal(kIpv4Prefix.begin(), kIpv4Prefix.end(), gid.begin());
}

bool is_link_local(const GidBytes& gid) noexcept {
  if (is_ipv4(gid)) return gid[12] == 169 && gid[13] == 254;
  return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

bool is_routable_ip(const Gid& gid) noexcept {
  return gid.type != GidType::kInfiniband && !is_zero(gid.bytes) && !is_link_local(gid.bytes);
}

std::vector<Gid> rank_gids(std::span<const Gid> table) {
  std::vector<Gid> good;
  for (const Gid& gid : table) {
    // InfiniBand's default subnet prefix is link-local, so those must stay.
    if (!is_zero(gid.bytes)) good.push_back(gid);
  }
  std::sort(good.begin(), good.end(), [](const Gid& a, const Gid& b) { return rank(a) < rank(b); });
  return good;
}

Result<Gid> choose_gid(std::span<const Gid> table, int32_t index) {
  const std::vector<Gid> ranked = rank_gids(table);
  if (ranked.empty()) return fail(Errc::kUnsupported, "verbs: the port has no address (GID)");
  if (index < 0) return ranked.front();
  const auto chosen = std::find_if(ranked.begin(), ranked.end(), [&](const Gid& gid) {
    return gid.index == static_cast<uint32_t>(index);
  });
  if (chosen == ranked.end()) return fail(Errc::kInvalidArgument, "gid_index");
  return *chosen;
}

Result<Gid> choose_gid_again(std::span<const Gid> table, int32_t index, const Gid& now) {
  auto best = choose_gid(table, index);
  if (!best || index >= 0) return best;
  const auto same = std::find_if(table.begin(), table.end(), [&](const Gid& gid) {
    return gid.bytes == now.bytes && gid.type == now.type;
  });
  if (same != table.end()) return *same;
  const bool ethernet = best->type != GidType::kInfiniband;  // whose GIDs are usually link-local
  if (ethernet && is_link_local(best->bytes) && !is_link_local(now.bytes)) {
    return fail(Errc::kUnsupported, "verbs: the port has lost its address (GID)");
  }
  return best;
}

std::string to_text(const Gid& gid) {
  char text[INET6_ADDRSTRLEN] = "?";
  const bool v4 = is_ipv4(gid.bytes);
  ::inet_ntop(v4 ? AF_INET : AF_INET6, gid.bytes.data() + (v4 ? 12 : 0), text, sizeof(text));
  const char* type = gid.type == GidType::kInfiniband ? "InfiniBand"
                     : gid.type == GidType::kRoceV1   ? "RoCE v1"
                                                      : "RoCE v2";
  return std::to_string(gid.index) + ": " + text + " (" + type + ")";
}

}  // namespace fabric::verbs

#include <algorithm>
#include <utility>

#include <fabric/engine.h>
#include <fabric/kv_directory.h>

#include "base/base64.h"
#include "base/bytes.h"

// The bytes of a member:
//
//   "FKVM" | major u8 | minor u8 | length u16 (of everything) | engine_id u64 | incarnation u64 |
//   layout_hash u64 | capacity u32 | load u32 | role u8 | length u16, address | length u8, label

namespace fabric::kv {

namespace {

constexpr uint32_t kMagic = 'F' | 'K' << 8 | 'V' << 16 | 'M' << 24;
constexpr uint8_t kMajor = 1;
constexpr uint8_t kMinor = 0;
constexpr std::string_view kTextPrefix = "fabric-kv1:";
// Base64 of the largest member; longer text is not decoded at all.
constexpr size_t kTextBytesMax = kTextPrefix.size() + (kMemberBytesMax + 2) / 3 * 4;

bool printable(std::string_view text) noexcept {
  return std::ranges::all_of(text, [](char c) { return c >= 0x20 && c < 0x7f; });
}

Result<void> check(const Member& member) {
  if (member.engine_id == 0) return fail(Errc::kInvalidArgument, "member.engine_id is 0");
  if (member.incarnation == 0) return fail(Errc::kInvalidArgument, "member.incarnation is 0");
  if (member.address.empty()) return fail(Errc::kInvalidArgument, "member.address is empty");
  if (member.address.size() > kMemberAddressBytesMax) {
    return fail(Errc::kTooLarge, "member.address: more than kMemberAddressBytesMax");
  }
  if (member.role > Role::kRouter) return fail(Errc::kInvalidArgument, "member.role");
  if (member.label.size() > kMemberLabelBytesMax) {
    return fail(Errc::kTooLarge, "member.label: more than kMemberLabelBytesMax");
  }
  if (!printable(member.label)) {
    return fail(Errc::kInvalidArgument, "member.label: not printable ASCII");
  }
  return {};
}

}  // namespace

const char* to_string(Role role) noexcept {
  switch (role) {
    case Role::kPrefill:
      return "prefill";
    case Role::kDecode:
      return "decode";
    case Role::kRouter:
      return "router";
  }
  return "unknown";
}

Result<std::vector<std::byte>> encode(const Member& member) {
  if (const auto checked = check(member); !checked) return checked.error();
  static_assert(kMemberBytesMax <= UINT16_MAX);
  ByteWriter out(kMemberBytesMax);
  out.u32(kMagic);
  out.u8(kMajor);
  out.u8(kMinor);
  out.u16(static_cast<uint16_t>(44 + member.address.size() + member.label.size()));
  out.u64(member.engine_id);
  out.u64(member.incarnation);
  out.u64(member.layout_hash);
  out.u32(member.capacity);
  out.u32(member.load);
  out.u8(static_cast<uint8_t>(member.role));
  out.u16(static_cast<uint16_t>(member.address.size()));
  out.bytes(member.address);
  out.u8(static_cast<uint8_t>(member.label.size()));
  out.text(member.label);
  return out.take();
}

Result<Member> decode_member(std::span<const std::byte> bytes) {
  if (bytes.size() > kMemberBytesMax) return fail(Errc::kBadFormat, "member: too many bytes");
  ByteReader in(bytes);
  in.require(in.u32() == kMagic);
  const uint8_t major = in.u8();
  const uint8_t minor = in.u8();
  in.require(in.u16() == bytes.size());
  if (in.ok() && major != kMajor) return fail(Errc::kVersion, "member");
  Member member;
  member.engine_id = in.u64();
  member.incarnation = in.u64();
  member.layout_hash = in.u64();
  member.capacity = in.u32();
  member.load = in.u32();
  const uint8_t role = in.u8();
  in.require(role <= static_cast<uint8_t>(Role::kRouter));
  member.role = static_cast<Role>(in.ok() ? role : 0);
  const auto address = in.bytes(in.u16());
  member.address.assign(address.begin(), address.end());
  member.label = in.text(in.u8());
  in.require(minor > kMinor || in.remaining() == 0);
  if (!in.ok() || !check(member)) return fail(Errc::kBadFormat, "member");
  return member;
}

Result<std::string> to_text(const Member& member) {
  const auto bytes = encode(member);
  if (!bytes) return bytes.error();
  return std::string(kTextPrefix) + base64url_encode(*bytes);
}

Result<Member> member_from_text(std::string_view text) {
  if (text.size() > kTextBytesMax || !text.starts_with(kTextPrefix)) {
    return fail(Errc::kBadFormat, "member: no text that starts with fabric-kv1:");
  }
  const auto bytes = base64url_decode(text.substr(kTextPrefix.size()));
  if (!bytes) return fail(Errc::kBadFormat, "member");
  return decode_member(*bytes);
}

Result<Member> describe(Engine& engine) {
  Member member;
  member.address = engine.address();
  const auto self = engine.connect(member.address);
  if (!self) return self.error();
  const auto info = engine.peer_info(*self);
  if (!info) return info.error();
  member.engine_id = info->engine_id;
  member.incarnation = info->incarnation;
  return member;
}

std::vector<Change> changes(const View& before, const View& after) {
  using Kind = Change::Kind;
  std::vector<Change> found;
  auto old = before.members.begin();
  auto now = after.members.begin();
  while (old != before.members.end() || now != after.members.end()) {
    const bool no_old = old == before.members.end();
    const bool no_now = now == after.members.end();
    if (no_old || (!no_now && now->engine_id < old->engine_id)) {
      found.push_back({Kind::kJoined, false, *now++});
    } else if (no_now || old->engine_id < now->engine_id) {
      found.push_back({Kind::kLeft, false, *old++});
    } else {
      if (*old != *now) {
        found.push_back({Kind::kChanged, old->incarnation != now->incarnation, *now});
      }
      ++old, ++now;
    }
  }
  return found;
}

}  // namespace fabric::kv

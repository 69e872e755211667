#include "control/format.h"

#include <algorithm>

#include <fabric/types.h>

#include "base/check.h"
#include "control/address.h"

namespace fabric::control {

void write_prologue(ByteWriter& out, const Format& format, uint16_t type, size_t length) {
  FABRIC_CHECK(length <= UINT32_MAX);
  out.u32(format.magic);
  out.u8(format.major);
  out.u8(format.minor);
  out.u16(type);
  out.u32(static_cast<uint32_t>(length));
}

Result<Opened> read_prologue(std::span<const std::byte> bytes, const Format& format) {
  ByteReader in(bytes);
  const uint32_t found = in.u32();
  const uint8_t major = in.u8();
  const uint8_t minor = in.u8();
  const uint16_t type = in.u16();
  const uint32_t length = in.u32();
  if (!in.ok() || found != format.magic) return fail(Errc::kBadFormat, format.what);
  // Before the length: another major may define it differently.
  if (major != format.major) return fail(Errc::kVersion, format.what);
  if (length != bytes.size()) return fail(Errc::kBadFormat, format.what);
  return Opened{type, minor > format.minor, in};
}

void write_section(ByteWriter& out, uint16_t type, std::span<const std::byte> body) {
  FABRIC_CHECK(body.size() <= UINT16_MAX);
  out.u16(type);
  out.u16(static_cast<uint16_t>(body.size()));
  out.bytes(body);
}

Section read_section(ByteReader& in) {
  const uint16_t type = in.u16();
  const uint16_t length = in.u16();
  return {type, ByteReader(in.bytes(length))};
}

bool is_name(std::string_view name) noexcept {
  return !name.empty() && name.size() <= kNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
}

void write_name(ByteWriter& out, std::string_view name) {
  FABRIC_CHECK(is_name(name), "names are validated when they enter");
  out.u8(static_cast<uint8_t>(name.size()));
  out.text(name);
}

std::string read_name(ByteReader& in) {
  const std::string_view name = in.text(in.u8());
  in.require(is_name(name));
  return in.ok() ? std::string(name) : std::string();
}

void write_blob(ByteWriter& out, std::span<const std::byte> bytes) {
  FABRIC_CHECK(bytes.size() <= UINT16_MAX);
  out.u16(static_cast<uint16_t>(bytes.size()));
  out.bytes(bytes);
}

std::vector<std::byte> read_blob(ByteReader& in, size_t bytes_max) {
  const uint16_t length = in.u16();
  in.require(length <= bytes_max);
  const auto bytes = in.bytes(length);
  return {bytes.begin(), bytes.end()};
}

Errc read_errc(ByteReader& in) {
  const auto code = static_cast<Errc>(in.u8());
  // The compiler keeps the switch in to_string() complete, so it serves as the list of codes.
  in.require(to_string(code)[0] != '?');
  return in.ok() ? code : Errc::kOk;
}

bool read_bool(ByteReader& in) {
  const uint8_t value = in.u8();
  in.require(value <= 1);
  return value == 1;
}

uint32_t read_key(ByteReader& in) {
  const uint32_t key = in.u32();
  in.require(key != 0 && key < (1u << CounterKey::kBits));
  return key;
}

Result<std::string_view> strip_prefix(std::string_view text, std::string_view prefix,
                                      const char* what) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return fail(Errc::kBadFormat, what);
  const std::string_view found = text.substr(0, colon);
  if (found == prefix) return text.substr(colon + 1);

  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto without_number = [&](std::string_view s) {
    while (!s.empty() && digit(s.back())) s.remove_suffix(1);
    return s;
  };
  const bool other_number = without_number(found) == without_number(prefix) && digit(found.back());
  return fail(other_number ? Errc::kVersion : Errc::kBadFormat, what);
}

}  // namespace fabric::control

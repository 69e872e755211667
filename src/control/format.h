#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fabric/result.h>

#include "base/bytes.h"

// What every format has in common. Each starts with the same twelve bytes:
//
//   magic u32 | major u8 | minor u8 | type u16 | length u32 (of everything, these twelve included)
//
// Addresses, descriptors, offers and hellos go on with sections: type u16 | length u16 | body.
// Sections of unknown type are skipped. Bytes that follow the known fields of a section or body are
// refused, unless the minor version is newer than ours: then it has added fields there.

namespace fabric::control {

struct Format {
  uint32_t magic = 0;
  uint8_t major = 0;
  uint8_t minor = 0;
  const char* what = "";  ///< Error::what of everything that is wrong with it
};

/// Four letters, which stand in this order on the wire.
constexpr uint32_t magic(const char (&letters)[5]) noexcept {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(letters[i]);
  return value;
}

inline constexpr uint32_t kPrologueBytes = 12;

void write_prologue(ByteWriter& out, const Format& format, uint16_t type, size_t length);

/// What follows a prologue that fits.
struct Opened {
  uint16_t type = 0;
  bool newer_minor = false;
  ByteReader rest;
};
/// Fails with kBadFormat (too short, another magic, another length than the bytes have) or
/// kVersion.
Result<Opened> read_prologue(std::span<const std::byte> bytes, const Format& format);

void write_section(ByteWriter& out, uint16_t type, std::span<const std::byte> body);

struct Section {
  uint16_t type = 0;
  ByteReader body;
};
/// The next section of `in`, which has at least one byte left. A section that is cut short fails
/// `in` and has an empty body.
Section read_section(ByteReader& in);

/// Ends the known fields of a section or body.
inline void read_end(ByteReader& in, bool newer_minor) noexcept {
  in.require(newer_minor || in.remaining() == 0);
}

/// Length u8 and text. A name is not empty, prints in ASCII and has at most kNameBytesMax bytes.
bool is_name(std::string_view name) noexcept;
void write_name(ByteWriter& out, std::string_view name);
std::string read_name(ByteReader& in);

/// Length u16 and bytes.
void write_blob(ByteWriter& out, std::span<const std::byte> bytes);
std::vector<std::byte> read_blob(ByteReader& in, size_t bytes_max);

/// A code that this version knows.
Errc read_errc(ByteReader& in);
/// An enumerator 0 .. last of one byte.
template <class E>
E read_enum(ByteReader& in, E last) {
  const uint8_t value = in.u8();
  in.require(value <= static_cast<uint8_t>(last));
  return in.ok() ? static_cast<E>(value) : E{};
}
bool read_bool(ByteReader& in);
/// The wire form of a key that somebody handed out: 28 bits, not zero.
uint32_t read_key(ByteReader& in);

/// The text after `prefix` and a ':', where prefix ends in its major version ("fabric1"). Fails
/// with kVersion when only the number differs, kBadFormat otherwise.
Result<std::string_view> strip_prefix(std::string_view text, std::string_view prefix,
                                      const char* what);

}  // namespace fabric::control

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fabric/result.h>

#include "base/bytes.h"

// The common part of all wire formats. Each starts with the same twelve bytes:
//
//   magic u32 | major u8 | minor u8 | type u16 | length u32 (of everything, these twelve included)
//
// Addresses, descriptors, offers and hellos continue with sections: type u16 | length u16 | body.
// Sections of unknown type are skipped. Bytes after the known fields of a section or body are an
// error, unless the minor version is newer than ours: then it has added fields there.

namespace fabric::control {

struct Format {
  uint32_t magic = 0;
  uint8_t major = 0;
  uint8_t minor = 0;
  const char* what = "";  ///< Error::what of every error in it
};

/// Four letters, in this order on the wire.
constexpr uint32_t magic(const char (&letters)[5]) noexcept {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(letters[i]);
  return value;
}

inline constexpr uint32_t kPrologueBytes = 12;

void write_prologue(ByteWriter& out, const Format& format, uint16_t type, size_t length);

/// The message after a valid prologue.
struct Opened {
  uint16_t type = 0;
  bool newer_minor = false;
  ByteReader rest;
};
/// Fails with kBadFormat (too short, wrong magic, length differs from the size of `bytes`) or
/// kVersion.
Result<Opened> read_prologue(std::span<const std::byte> bytes, const Format& format);

void write_section(ByteWriter& out, uint16_t type, std::span<const std::byte> body);

struct Section {
  uint16_t type = 0;
  ByteReader body;
};
/// The next section of `in`, which has at least one byte left. A truncated section fails `in` and
/// has an empty body.
Section read_section(ByteReader& in);

/// Called after the known fields of a section or body.
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

/// A code that this version knows, or failure.
Errc read_errc(ByteReader& in);
/// An enumerator 0 .. last, as one byte.
template <class E>
E read_enum(ByteReader& in, E last) {
  const uint8_t value = in.u8();
  in.require(value <= static_cast<uint8_t>(last));
  return in.ok() ? static_cast<E>(value) : E{};
}
bool read_bool(ByteReader& in);
/// The wire form of a valid counter key: 28 bits, not zero.
uint32_t read_key(ByteReader& in);

/// The text after `prefix` and a ':'. The prefix ends in its major version ("fabric1"). Fails with
/// kVersion if only that number differs, else with kBadFormat.
Result<std::string_view> strip_prefix(std::string_view text, std::string_view prefix,
                                      const char* what);

}  // namespace fabric::control

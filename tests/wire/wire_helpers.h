#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include <fabric/result.h>

namespace fabric::control {

using Bytes = std::vector<std::byte>;

/// Hex to bytes; spaces are free, so that golden bytes can be grouped by field.
inline Bytes hex(std::string_view text) {
  Bytes bytes;
  int high = -1;
  for (const char c : text) {
    if (c == ' ') continue;
    const int digit = c <= '9' ? c - '0' : c - 'a' + 10;
    if (high < 0) {
      high = digit;
    } else {
      bytes.push_back(static_cast<std::byte>(high * 16 + digit));
      high = -1;
    }
  }
  return bytes;
}

inline std::string to_hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[static_cast<uint8_t>(b) >> 4];
    text += kDigits[static_cast<uint8_t>(b) & 15];
  }
  return text;
}

inline Bytes operator+(Bytes left, const Bytes& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

/// Writes `value` over the bytes at `at`, little-endian.
inline Bytes with(Bytes bytes, size_t at, uint64_t value, size_t width = 1) {
  for (size_t i = 0; i < width; ++i) bytes.at(at + i) = static_cast<std::byte>(value >> (8 * i));
  return bytes;
}

/// Where the prologue has its fields.
inline constexpr size_t kMajorAt = 4, kMinorAt = 5, kTypeAt = 6, kLengthAt = 8;

/// The length in the prologue made true again after bytes were added or removed.
inline Bytes with_length(Bytes bytes) {
  const size_t size = bytes.size();
  return with(std::move(bytes), kLengthAt, size, 4);
}

/// Every shorter prefix must be refused, with and without a length that admits to it.
template <class Decode>
void expect_no_prefix_decodes(const Bytes& whole, Decode decode, bool has_prologue) {
  for (size_t size = 0; size < whole.size(); ++size) {
    Bytes cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_EQ(decode(cut).error().code, Errc::kBadFormat) << "the first " << size << " bytes";
    if (has_prologue && size >= 12) {
      EXPECT_FALSE(decode(with_length(cut)))
          << "the first " << size << " bytes, with the length corrected";
    }
  }
}

}  // namespace fabric::control

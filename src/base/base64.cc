#include "base/base64.h"

#include <array>
#include <cstdint>

namespace fabric {

namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
constexpr uint8_t kForeign = 0xff;

constexpr auto kValues = [] {
  std::array<uint8_t, 256> values{};
  values.fill(kForeign);
  for (uint8_t i = 0; i < kAlphabet.size(); ++i) {
    values[static_cast<uint8_t>(kAlphabet[i])] = i;
  }
  return values;
}();

}  // namespace

std::string base64url_encode(std::span<const std::byte> bytes) {
  std::string text;
  text.reserve((bytes.size() * 4 + 2) / 3);
  uint32_t bits = 0;
  uint32_t held = 0;  // how many of the low bits are not written yet
  for (const std::byte b : bytes) {
    bits = bits << 8 | static_cast<uint8_t>(b);
    for (held += 8; held >= 6;) {
      held -= 6;
      text += kAlphabet[bits >> held & 63];
    }
  }
  if (held != 0) text += kAlphabet[bits << (6 - held) & 63];
  return text;
}

Result<std::vector<std::byte>> base64url_decode(std::string_view text) {
  // A single character in the last group holds six bits: no byte ends there.
  if (text.size() % 4 == 1) return fail(Errc::kBadFormat, "base64url length");
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() * 3 / 4);
  uint32_t bits = 0;
  uint32_t held = 0;
  for (const char c : text) {
    const uint8_t value = kValues[static_cast<uint8_t>(c)];
    if (value == kForeign) return fail(Errc::kBadFormat, "base64url character");
    bits = bits << 6 | value;
    held += 6;
    if (held >= 8) {
      held -= 8;
      bytes.push_back(static_cast<std::byte>(bits >> held));
    }
  }
  if ((bits & ((1u << held) - 1)) != 0) return fail(Errc::kBadFormat, "base64url trailing bits");
  return bytes;
}

}  // namespace fabric

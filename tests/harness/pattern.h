#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

// The byte pattern of the tests: bytes that differ with the seed and with the offset, so that a
// write that lands at the wrong offset or from the wrong source is found.

namespace fabric::test {

/// Overwrites a source whose write has completed. The pattern has odd bytes only, so this byte at a
/// target proves that the source was read after the completion.
inline constexpr std::byte kReusedByte{0xee};

/// Eight bytes of the pattern, at offsets 8 * index to 8 * index + 7.
inline uint64_t pattern_word(uint64_t seed, uint64_t index) {
  uint64_t mixed = (seed + 1) * 0x9e37'79b9'7f4a'7c15 + index * 0xbf58'476d'1ce4'e5b9;
  mixed = (mixed ^ mixed >> 29) * 0x94d0'49bb'1331'11eb;
  // Never zero: memory that no write has reached differs from memory that was written.
  return (mixed ^ mixed >> 31) | 0x0101'0101'0101'0101;
}

inline std::byte byte_of(uint64_t seed, uint64_t offset) {
  return static_cast<std::byte>(pattern_word(seed, offset / 8) >> offset % 8 * 8 & 0xff);
}

inline void fill(std::span<std::byte> bytes, uint64_t seed) {
  static_assert(std::endian::native == std::endian::little, "byte_of() takes words apart");
  for (uint64_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t word = pattern_word(seed, i / sizeof word);
    std::memcpy(bytes.data() + i, &word, std::min<uint64_t>(sizeof word, bytes.size() - i));
  }
}

/// Whether these are the bytes that fill() writes. `offset`: where in the pattern they begin.
inline bool holds(std::span<const std::byte> bytes, uint64_t seed, uint64_t offset = 0) {
  uint64_t i = 0;
  for (; (offset + i) % sizeof(uint64_t) != 0 && i < bytes.size(); ++i) {
    if (bytes[i] != byte_of(seed, offset + i)) return false;
  }
  for (; i < bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t word = pattern_word(seed, (offset + i) / sizeof word);
    const auto size = std::min<uint64_t>(sizeof word, bytes.size() - i);
    if (std::memcmp(bytes.data() + i, &word, size) != 0) return false;
  }
  return true;
}

/// Every byte is `value`: no write has landed here.
inline bool untouched(std::span<const std::byte> bytes, std::byte value = std::byte{0}) {
  if (bytes.empty()) return true;
  return bytes[0] == value && std::memcmp(&bytes[0], &bytes[0] + 1, bytes.size() - 1) == 0;
}

}  // namespace fabric::test

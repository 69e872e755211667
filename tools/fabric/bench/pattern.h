#pragma once

#include <cstdint>
#include <span>

namespace fabric::tool::bench {

inline constexpr uint64_t kWordBytes = 8;

/// Differs for every word of every round, so that bytes of an earlier round or of another slot are
/// detected (splitmix64).
constexpr uint64_t pattern_word(uint64_t round, uint64_t index) {
  uint64_t x = (round << 40) + index * 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// `offset` is that of the first byte in the sender's memory, a multiple of kWordBytes.
void fill(std::span<std::byte> bytes, uint64_t round, uint64_t offset);
bool matches(std::span<const std::byte> bytes, uint64_t round, uint64_t offset);

}  // namespace fabric::tool::bench

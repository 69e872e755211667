#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace fabric {

/// A running 64-bit hash for comparing the traces of two runs, the same on every machine. Not for
/// hostile input: collisions are easy to construct.
class TraceHash {
 public:
  constexpr TraceHash& add(uint64_t value) noexcept {
    mix(value);
    return *this;
  }
  /// Includes the length, so that "ab", "c" differs from "a", "bc".
  constexpr TraceHash& add(std::span<const std::byte> bytes) noexcept {
    add(static_cast<uint64_t>(bytes.size()));
    for (const std::byte b : bytes) mix(static_cast<uint8_t>(b));
    return *this;
  }
  constexpr TraceHash& add(std::string_view text) noexcept {
    add(static_cast<uint64_t>(text.size()));
    for (const char c : text) mix(static_cast<uint8_t>(c));
    return *this;
  }
  constexpr uint64_t value() const noexcept { return state_; }

 private:
  // Whole words, because a simulated write adds a dozen. The multiplication spreads differences to
  // higher bits, the shift to lower ones.
  constexpr void mix(uint64_t word) noexcept {
    state_ = (state_ ^ word) * 0x9e3779b97f4a7c15;
    state_ ^= state_ >> 32;
  }
  uint64_t state_ = 0xcbf29ce484222325;
};

}  // namespace fabric

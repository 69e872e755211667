#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace fabric {

/// A running 64-bit hash, to compare the traces of two runs. The same on every machine. Not for
/// hostile input: collisions are easy to make.
class TraceHash {
 public:
  constexpr TraceHash& add(uint64_t value) noexcept {
    mix(value);
    return *this;
  }
  /// The length is hashed too, or "ab", "c" would equal "a", "bc".
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
  // A word at a time: a simulated write adds a dozen. The product carries differences upwards, the
  // shift brings them back down.
  constexpr void mix(uint64_t word) noexcept {
    state_ = (state_ ^ word) * 0x9e3779b97f4a7c15;
    state_ ^= state_ >> 32;
  }
  uint64_t state_ = 0xcbf29ce484222325;
};

}  // namespace fabric

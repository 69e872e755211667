#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"

// A fuzz target feeds hostile bytes to a decoder. A value that the decoder accepts must be the same
// after another round of encoding and decoding. So the decoder accepts nothing that the encoder,
// with its checks, would refuse.

namespace fabric::fuzz {

inline std::span<const std::byte> input(const uint8_t* data, size_t size) {
  return std::as_bytes(std::span(data, size));
}

/// `value` is what `decode` has returned.
template <class T, class Encode, class Decode>
void expect_same_again(const T& value, Encode encode, Decode decode) {
  const auto encoded = encode(value);
  const auto again = decode(encoded);
  FABRIC_CHECK(again.has_value(), "what was encoded does not decode");
  FABRIC_CHECK(*again == value, "the decoded value differs");
}

}  // namespace fabric::fuzz

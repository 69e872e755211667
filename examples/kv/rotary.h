#pragma once

#include <cstdint>
#include <vector>

namespace transformer {

/// Rotary position embedding: elements i and i + size / 2 of a head are rotated by the angle
/// position * 10000^(-2 i / size).
///
/// The table is built by rotating step by step, from the sine and cosine of one step: products and
/// sums only, which are the same on every machine.
class Rotary {
 public:
  Rotary() = default;
  /// `size`: elements of a head that are rotated, a power of two.
  Rotary(uint32_t size, uint32_t positions);

  void turn(float* head, uint32_t position) const;

 private:
  uint32_t half_ = 0;
  std::vector<float> cosines_{};  ///< [position][half_]
  std::vector<float> sines_{};
};

}  // namespace transformer

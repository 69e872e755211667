#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>

// Arithmetic that gives the same bits on every machine, with every compiler and at every level of
// optimisation. Tokens are compared one by one between runs that divide the work differently, so
// every sum has one order, and the functions of libm, which differ in the last bit between
// libraries, are replaced. It holds with -ffp-contract=off: a fused multiply-add rounds once where
// two instructions round twice. The square root is exact by IEEE 754 and stays.

namespace transformer {

/// Four floats that the compiler keeps in a vector register.
using Float4 = float __attribute__((vector_size(16)));

inline Float4 load4(const float* at) {
  Float4 out;
  std::memcpy(&out, at, sizeof(out));
  return out;
}

inline void store4(float* at, Float4 value) { std::memcpy(at, &value, sizeof(value)); }

inline Float4 broadcast4(float value) { return Float4{value, value, value, value}; }

inline float sum4(Float4 value) { return (value[0] + value[1]) + (value[2] + value[3]); }

/// Four partial sums, element i in sum i % 4. `size` is a multiple of 4.
inline float dot(const float* a, const float* b, uint32_t size) {
  Float4 sum = broadcast4(0);
  for (uint32_t i = 0; i < size; i += 4) sum += load4(a + i) * load4(b + i);
  return sum4(sum);
}

/// e^x to within a few units of the last place; 0 below -87.
inline float exp_float(float x) {
  if (x < -87.0f) return 0;
  if (x > 88.0f) x = 88.0f;
  // x = n ln 2 + r with |r| <= ln 2 / 2. ln 2 in two parts, so that n ln 2 is exact enough.
  const auto n = static_cast<int32_t>(x * 1.44269504f + (x < 0 ? -0.5f : 0.5f));
  const auto whole = static_cast<float>(n);
  const float r = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
  float series = 1.0f / 720;
  series = series * r + 1.0f / 120;
  series = series * r + 1.0f / 24;
  series = series * r + 1.0f / 6;
  series = series * r + 0.5f;
  series = series * r + 1.0f;
  series = series * r + 1.0f;
  return series * std::bit_cast<float>(static_cast<uint32_t>(n + 127) << 23);
}

/// x * sigmoid(x), the activation of SwiGLU.
inline float silu(float x) { return x / (1.0f + exp_float(-x)); }

/// The upper half of a float, rounded to nearest, ties to even. Caches hold no NaN.
inline uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float from_bfloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

/// y = x / sqrt(mean(x^2)), without a weight: the next matrix has it. May be done in place.
inline void rms_norm(std::span<const float> x, float* y) {
  const float mean =
      dot(x.data(), x.data(), static_cast<uint32_t>(x.size())) / static_cast<float>(x.size());
  const float scale = 1.0f / std::sqrt(mean + 1e-6f);
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale;
}

/// splitmix64: weights and prompts from a seed.
class SeededNumbers {
 public:
  explicit SeededNumbers(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  /// In [-1, 1): a multiple of 2^-23, so that the conversion is exact.
  float uniform() {
    return static_cast<float>(static_cast<int64_t>(next()) >> 40) * (1.0f / (1 << 23));
  }

  uint32_t below(uint32_t bound) { return static_cast<uint32_t>((next() >> 32) * bound >> 32); }

 private:
  uint64_t state_;
};

}  // namespace transformer

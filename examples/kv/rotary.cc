#include "rotary.h"

#include <cmath>

namespace transformer {

namespace {

struct Turn {
  double cosine = 1;
  double sine = 0;
};

/// By the Taylor series: for 0 <= angle <= 1 sixteen terms are exact to the last bit but one.
Turn turn_by(double angle) {
  Turn out;
  double term = 1;
  for (int n = 1; n <= 16; ++n) {
    term = term * angle / n;
    const double signed_term = n % 4 < 2 ? term : -term;
    (n % 2 == 0 ? out.cosine : out.sine) += signed_term;
  }
  return out;
}

}  // namespace

Rotary::Rotary(uint32_t size, uint32_t positions)
    : half_(size / 2), cosines_(uint64_t{positions} * half_), sines_(uint64_t{positions} * half_) {
  // 10000^(-1 / half): a root of a power of two is a chain of square roots, which are exact.
  double ratio = 1.0 / 10000;
  for (uint32_t n = half_; n > 1; n /= 2) ratio = std::sqrt(ratio);
  double angle = 1;
  for (uint32_t i = 0; i < half_; ++i, angle *= ratio) {
    const Turn step = turn_by(angle);
    Turn at;
    for (uint32_t position = 0; position < positions; ++position) {
      cosines_[uint64_t{position} * half_ + i] = static_cast<float>(at.cosine);
      sines_[uint64_t{position} * half_ + i] = static_cast<float>(at.sine);
      at = {at.cosine * step.cosine - at.sine * step.sine,
            at.sine * step.cosine + at.cosine * step.sine};
    }
  }
}

void Rotary::turn(float* head, uint32_t position) const {
  const float* cosines = cosines_.data() + uint64_t{position} * half_;
  const float* sines = sines_.data() + uint64_t{position} * half_;
  for (uint32_t i = 0; i < half_; ++i) {
    const float a = head[i];
    const float b = head[i + half_];
    head[i] = a * cosines[i] - b * sines[i];
    head[i + half_] = b * cosines[i] + a * sines[i];
  }
}

}  // namespace transformer

#pragma once

#include <array>
#include <cstdint>

#include "base/check.h"

namespace fabric {

/// A seeded random number generator (xoshiro256**, its state filled by splitmix64). The standard
/// distributions differ between libraries, so the few that are needed are implemented here: a seed
/// gives the same sequence everywhere.
///
/// Threads: one at a time; other threads get a fork().
class Rng {
 public:
  explicit constexpr Rng(uint64_t seed) noexcept {
    for (uint64_t& word : state_) word = splitmix(seed);
  }

  constexpr uint64_t next() noexcept {
    const uint64_t result = rotate(state_[1] * 5, 7) * 9;
    const uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = rotate(state_[3], 45);
    return result;
  }

  /// 0 .. n - 1, without bias; n is not 0.
  constexpr uint64_t below(uint64_t n) noexcept {
    FABRIC_CHECK(n != 0);
    // 2^64 mod n: results below it are rejected, or small remainders would be more likely.
    const uint64_t uneven = (0 - n) % n;
    uint64_t drawn = next();
    while (drawn < uneven) drawn = next();
    return drawn % n;
  }

  /// lo .. hi, both included.
  constexpr uint64_t between(uint64_t lo, uint64_t hi) noexcept {
    FABRIC_CHECK(lo <= hi);
    const uint64_t count = hi - lo + 1;
    return count == 0 ? next() : lo + below(count);
  }

  /// True with probability `p`. Always draws once, so that a changed `p` does not shift the
  /// sequence of later draws.
  constexpr bool chance(double p) noexcept {
    // 53 bits: the most that a double holds exactly.
    return static_cast<double>(next() >> 11) * 0x1.0p-53 < p;
  }

  /// An independent generator, so that one component's draws do not shift another's.
  constexpr Rng fork() noexcept { return Rng(next()); }

 private:
  static constexpr uint64_t rotate(uint64_t x, int by) noexcept {
    return (x << by) | (x >> (64 - by));
  }
  static constexpr uint64_t splitmix(uint64_t& seed) noexcept {
    uint64_t z = (seed += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  std::array<uint64_t, 4> state_{};
};

}  // namespace fabric

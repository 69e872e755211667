#pragma once

#include <cstdint>
#include <ctime>

#include "base/sync.h"

// Replaces src/base/futex.h in the explorer's build. A limit is never reached: a sleep that only
// its time-out ends is a lost wake-up.

namespace fabric {

inline bool futex_wait(Atomic<uint32_t>& word, uint32_t value, const timespec*) noexcept {
  interleave::futex_wait(word.location(), value);
  return true;
}
// Waking all instead of one hides no error: a thread that is woken needlessly checks again.
inline void futex_wake_one(Atomic<uint32_t>& word) noexcept {
  interleave::futex_wake(word.location());
}
inline void futex_wake_all(Atomic<uint32_t>& word) noexcept {
  interleave::futex_wake(word.location());
}

}  // namespace fabric

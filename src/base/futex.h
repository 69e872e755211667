#pragma once

#include <cerrno>
#include <climits>
#include <cstdint>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/sync.h"

namespace fabric {

// The kernel reads the word directly.
static_assert(sizeof(Atomic<uint32_t>) == sizeof(uint32_t));
static_assert(Atomic<uint32_t>::is_always_lock_free);

/// Sleeps while the word is `value`, until a wake, a signal or the limit (null: none). The kernel
/// compares the word under its own lock. False: the call failed.
inline bool futex_wait(Atomic<uint32_t>& word, uint32_t value, const timespec* limit) noexcept {
  const long rc =
      syscall(SYS_futex, &word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, value, limit, nullptr, 0);
  return rc == 0 || errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT;
}

inline void futex_wake_one(Atomic<uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, nullptr, nullptr, 0);
}

inline void futex_wake_all(Atomic<uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace fabric

#include "base/parking.h"

#include <cerrno>
#include <climits>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/check.h"
#include "base/driver.h"

namespace fabric {

namespace {

// The kernel looks at the word itself.
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
static_assert(std::atomic<uint32_t>::is_always_lock_free);

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value,
           const timespec* timeout) noexcept {
  return syscall(SYS_futex, &word, operation | FUTEX_PRIVATE_FLAG, value, timeout, nullptr, 0);
}

}  // namespace

void ParkingSpot::sleep(Ticket ticket, int64_t timeout_ns) noexcept {
  if (timeout_ns <= 0) return;
  constexpr int64_t kSecond = 1'000'000'000;
  const timespec relative{static_cast<time_t>(timeout_ns / kSecond),
                          static_cast<long>(timeout_ns % kSecond)};
  // The kernel compares under its own lock: a wake() since prepare() changed the word, and the call
  // returns at once with EAGAIN. Signals and time-outs are reasons the caller allows.
  const long rc = futex(word_, FUTEX_WAIT, static_cast<uint32_t>(ticket),
                        timeout_ns == kNeverNs ? nullptr : &relative);
  FABRIC_CHECK(rc == 0 || errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT,
               "futex wait failed");
}

void ParkingSpot::wake_all() noexcept {
  uint32_t seen = word_.load(std::memory_order_relaxed);
  // An even word means that another wake() was faster and wakes the same sleepers.
  do {
    if ((seen & 1u) == 0) return;
  } while (!word_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel,
                                        std::memory_order_relaxed));
  futex(word_, FUTEX_WAKE, INT_MAX, nullptr);
}

}  // namespace fabric

#include "base/event_count.h"

#include <ctime>

#include "base/check.h"
#include "base/driver.h"
#include "base/futex.h"

namespace fabric {

void EventCount::sleep(Ticket ticket, int64_t timeout_ns) noexcept {
  if (timeout_ns <= 0) return;
  constexpr int64_t kSecond = 1'000'000'000;
  const timespec relative{static_cast<time_t>(timeout_ns / kSecond),
                          static_cast<long>(timeout_ns % kSecond)};
  // A wake() since prepare() changed the word, and the call returns at once. Callers expect early
  // returns, so signals and time-outs need no handling.
  FABRIC_CHECK(futex_wait(word_, static_cast<uint32_t>(ticket),
                          timeout_ns == kNeverNs ? nullptr : &relative),
               "futex wait failed");
}

void EventCount::wake_all() noexcept {
  // Relaxed: the exchange confirms the value, here and after a failed attempt.
  uint32_t seen = word_.load(std::memory_order_relaxed);
  // An even word means that another wake() came first and wakes the same sleepers.
  do {
    if ((seen & 1u) == 0) return;
    // Relaxed: a read-modify-write carries on the release of the fetch_add in wake().
  } while (!word_.compare_exchange_weak(seen, seen + 1, std::memory_order_relaxed));
  futex_wake_all(word_);
}

}  // namespace fabric

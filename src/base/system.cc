#include "base/system.h"

#include <sys/auxv.h>
#include <sys/random.h>

#include <atomic>
#include <cstring>
#include <ctime>

#include "base/clock.h"
#include "base/rng.h"

namespace fabric {

namespace {

int64_t wall_clock_ns() noexcept {
  timespec time{};
  clock_gettime(CLOCK_REALTIME, &time);  // cannot fail with a valid pointer
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// For a sandbox that forbids getrandom(): the 16 random bytes that the kernel passes to every
// process, mixed with the time and a call count.
[[gnu::cold]] uint64_t entropy_without_getrandom() noexcept {
  static std::atomic<uint64_t> calls{0};
  uint64_t seed[2] = {};
  const auto* at_random = reinterpret_cast<const void*>(getauxval(AT_RANDOM));
  if (at_random != nullptr) std::memcpy(seed, at_random, sizeof(seed));
  // A count: pairs with nothing.
  const uint64_t call = calls.fetch_add(1, std::memory_order_relaxed);
  Rng first(seed[0] ^ static_cast<uint64_t>(monotonic_ns()));
  return Rng(first.next() ^ seed[1] ^ call).next();
}

}  // namespace

uint64_t system_entropy() noexcept {
  uint64_t value = 0;
  // Requests this small are neither truncated nor interrupted.
  if (getrandom(&value, sizeof(value), 0) == sizeof(value)) return value;
  return entropy_without_getrandom();
}

uint64_t next_incarnation() noexcept {
  constexpr int kStepBits = 16;
  constexpr int kRandomBits = 18;
  static std::atomic<uint64_t> last{0};
  const uint64_t step = static_cast<uint64_t>(wall_clock_ns()) >> kStepBits;
  const uint64_t drawn = step << kRandomBits | system_entropy() >> (64 - kRandomBits);
  // Only the order of the values matters, and one variable has one order: relaxed.
  uint64_t previous = last.load(std::memory_order_relaxed);
  uint64_t next = 0;
  do {
    next = drawn > previous ? drawn : previous + 1;
  } while (!last.compare_exchange_weak(previous, next, std::memory_order_relaxed));
  return next;
}

}  // namespace fabric

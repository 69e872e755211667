#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include <fabric/result.h>

#include "base/membarrier.h"
#include "base/sync.h"

namespace fabric::runtime {

/// No sleep is longer. It bounds the harm of a network whose producer was stopped between
/// publishing and waking; everything else is woken by a ring.
inline constexpr int64_t kSleepMaxNs = 50'000'000;

/// Where a thread that polls engines sleeps: on an eventfd beside the networks' descriptors.
///
/// The one who publishes: publish, wake(). The one who sleeps: begin_sleep(), look once more, wait(),
/// end_sleep(). Publication and flag are two variables, so both sides have a full fence between
/// writing one and reading the other: either the ringer sees the flag or the sleeper's second look
/// sees the publication. Where the sleeper can make all threads pass a fence (base/membarrier.h)
/// the ringer has none of its own, and a ring while nobody sleeps is a load of a line that nobody
/// writes.
///
/// Threads: wake() from any thread, the rest from the sleeper.
class Waker {
 public:
  Waker() = default;
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;
  ~Waker();

  /// Once, before anything else. Fails with kExhausted.
  Result<void> open();

  void wake() noexcept {
    // Pairs with the fence in begin_sleep().
    if (light_) {
      light_fence();
    } else {
      full_fence();
    }
    wake_after_fence();
  }
  /// For one who has put a full fence behind the publication already.
  void wake_after_fence() noexcept {
    // Ordered by the fence. What was published has its own release and acquire.
    // The exchange is relaxed too: it only thins out the system calls, one ringer is enough.
    if (sleeping_.load(std::memory_order_relaxed) &&
        sleeping_.exchange(false, std::memory_order_relaxed)) {
      write();
    }
  }

  void begin_sleep() noexcept {
    sleeping_.store(true, std::memory_order_relaxed);  // ordered by the fence
    // Pairs with the fence in wake().
    if (light_) {
      fence_all_threads();
    } else {
      full_fence();
    }
  }
  void end_sleep() noexcept {
    // A ringer that still sees true writes once too often: the next wait() returns early.
    sleeping_.store(false, std::memory_order_relaxed);
  }

  /// Sleeps until a ring, until one of `others` is readable, or for `timeout_ns` (at most
  /// kSleepMaxNs).
  void wait(const std::vector<int>& others, int64_t timeout_ns) noexcept;

 private:
  void write() noexcept;

  const bool light_ = can_fence_all_threads();
  int fd_ = -1;
  std::vector<pollfd> polled_;  ///< kept, so that a sleep does not allocate in the long run
  alignas(64) Atomic<bool> sleeping_{false};
};

}  // namespace fabric::runtime

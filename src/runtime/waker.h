#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include <fabric/result.h>

#include "base/membarrier.h"
#include "base/sync.h"

namespace fabric::runtime {

/// Upper bound of one sleep. It limits the delay when a network's producer in another process was
/// stopped between publishing and waking; all other events wake the sleeper.
inline constexpr int64_t kSleepMaxNs = 50'000'000;

/// Puts the thread that runs turns to sleep in ppoll(), on an eventfd and the networks'
/// descriptors, and wakes it. An eventfd and not a futex (EventCount), because the sleeper waits
/// for descriptors too.
///
/// The publisher: publish, wake(). The sleeper: begin_sleep(), check once more, wait(),
/// end_sleep(). Publication and `sleeping_` are two variables, so both sides need a full fence
/// between writing one and reading the other: either the publisher sees the flag or the sleeper's
/// second check sees the publication. With membarrier() (base/membarrier.h) the sleeper pays for
/// both fences.
///
/// Cost: wake() while the sleeper is awake is one load of a cache line that nothing writes, with
/// membarrier(); otherwise also a full fence. Waking a sleeper costs one write() for all the wakers
/// of that sleep. begin_sleep() costs a membarrier().
///
/// Threads: wake() from any thread, all others from the sleeper. One sleeper.
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
  /// For callers that have issued a full fence after the publication.
  void wake_after_fence() noexcept {
    // Ordered by the fence. The published data has its own release and acquire.
    // The exchange is relaxed too: it only saves system calls, one write() wakes the sleeper.
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
    // A waker that still sees true writes once more: the next wait() returns early.
    sleeping_.store(false, std::memory_order_relaxed);
  }

  /// Sleeps until a wake(), until one of `others` is readable, or for `timeout_ns` (at most
  /// kSleepMaxNs).
  void wait(const std::vector<int>& others, int64_t timeout_ns) noexcept;

 private:
  void write() noexcept;

  const bool light_ = can_fence_all_threads();
  int fd_ = -1;
  std::vector<pollfd> polled_;  ///< a member, so that a sleep does not allocate in steady state
  alignas(64) Atomic<bool> sleeping_{false};
};

}  // namespace fabric::runtime

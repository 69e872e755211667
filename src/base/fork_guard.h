#pragma once

#include <atomic>
#include <cstdint>

namespace fabric {

namespace detail {
extern std::atomic<uint32_t> fork_generation;
}

/// Detects a fork() since its construction (contracts.md P21). Threads, descriptors and queue pairs
/// do not survive a fork(); code that holds them checks forked() first and leaves them alone in a
/// child. Children of vfork() and of a bare clone() are not detected: they may only exec anyway.
///
/// Threads: every call from any thread. Costs one load.
class ForkGuard {
 public:
  /// Throws std::bad_alloc when the process-wide handler cannot be installed.
  ForkGuard();

  bool forked() const noexcept {
    // Written only by the child's one thread inside fork(), before anything else runs there: no
    // ordering is needed.
    return generation_ != detail::fork_generation.load(std::memory_order_relaxed);
  }

 private:
  uint32_t generation_;
};

}  // namespace fabric

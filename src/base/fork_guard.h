#pragma once

#include <atomic>
#include <cstdint>

namespace fabric {

namespace detail {
extern std::atomic<uint32_t> fork_generation;
}

/// Knows whether it lives in a child of the process that made it (P21). Threads, descriptors and
/// queue pairs do not survive a fork(); code that holds them asks here first and then touches
/// nothing. Children of vfork() and of a bare clone() are not seen: they may only exec anyway.
///
/// Threads: everything from any thread. Costs one load.
class ForkGuard {
 public:
  /// Throws std::bad_alloc when the process-wide handler cannot be installed.
  ForkGuard();

  bool forked() const noexcept {
    // Written only by the child's one thread inside fork(), before anything else runs there: there
    // is nothing to be ordered with.
    return generation_ != detail::fork_generation.load(std::memory_order_relaxed);
  }

 private:
  uint32_t generation_;
};

}  // namespace fabric

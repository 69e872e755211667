#include "base/biased_lock.h"

#include <algorithm>

#include "base/membarrier.h"

namespace fabric {

void BiasedLock::revoke_slow() noexcept {
  revoked_ = owner_.load(std::memory_order_relaxed);
  owner_.store(nullptr, std::memory_order_relaxed);  // ordered by the fence
  streak_ = 0;
  rebias_after_ = std::min(rebias_after_ * 2, kRebiasAfterMax);
  fence_all_threads();
}

void BiasedLock::rebias() noexcept {
  streak_ = 0;
  if (!can_fence_all_threads()) return;
  for (Owner& owner : owners_) {
    const void* const thread = owner.thread.load(std::memory_order_relaxed);
    if (thread != nullptr && thread != candidate_) continue;
    // Relaxed, both: only this thread, the new owner, acts on them.
    owner.thread.store(candidate_, std::memory_order_relaxed);
    owner_.store(&owner, std::memory_order_relaxed);
    return;
  }
}

}  // namespace fabric

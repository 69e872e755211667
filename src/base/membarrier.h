#pragma once

// The expensive half of an asymmetric fence, by membarrier(): the rare side makes all threads of
// the process pass a full fence, so that the frequent side needs only light_fence(), a compiler
// fence.

namespace fabric {

/// Registers the process; call before the first light_fence() that relies on it. False: the kernel
/// is too old, or a sandbox forbids membarrier().
bool can_fence_all_threads() noexcept;

/// When this returns, every running thread of this process has passed a full fence.
void fence_all_threads() noexcept;

}  // namespace fabric

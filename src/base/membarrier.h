#pragma once

// The dear half of an asymmetric fence: a rare side makes all threads of the process pass a full
// fence, so that the frequent side needs nothing but light_fence().

namespace fabric {

/// Registers the process; call before the first light_fence() that counts on it. False: there are
/// no such fences here, an old kernel or a sandbox.
bool can_fence_all_threads() noexcept;

/// Every thread of this process that runs has passed a full fence when this returns.
void fence_all_threads() noexcept;

}  // namespace fabric

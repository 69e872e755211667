#pragma once

#include <cstdint>

// Which sanitizer this build has: a macro of g++, a feature of clang.

#if defined(__has_feature)
#define FABRIC_TEST_FEATURE(name) __has_feature(name)
#else
#define FABRIC_TEST_FEATURE(name) 0
#endif

namespace fabric::test {

#if defined(__SANITIZE_ADDRESS__) || FABRIC_TEST_FEATURE(address_sanitizer)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

#if defined(__SANITIZE_THREAD__) || FABRIC_TEST_FEATURE(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

/// Whether the child of a process with threads may allocate and start threads of its own. Neither
/// sanitizer's runtime lets go of its locks in a child: what another thread of the parent held at
/// the fork (AddressSanitizer: a size class of its allocator) stays held for ever.
inline constexpr bool kForksWithThreads = !kAddressSanitizer && !kThreadSanitizer;

/// Tests that repeat a run for every step of it take one step in this many. The release build takes
/// each; what a sanitizer finds does not depend on the exact step.
inline constexpr uint64_t kStepStride = kAddressSanitizer ? 7 : 1;

}  // namespace fabric::test

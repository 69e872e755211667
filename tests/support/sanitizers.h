#pragma once

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

}  // namespace fabric::test

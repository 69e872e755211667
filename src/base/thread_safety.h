#pragma once

// Clang's thread-safety attributes (-Wthread-safety), empty for other compilers: which lock guards
// a variable, and which lock a function takes, releases or needs. cmake/warnings.cmake makes a
// violation an error of a clang build.

#if defined(__clang__)
#define FABRIC_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define FABRIC_THREAD_ATTRIBUTE(x)
#endif

/// A class that is a lock.
#define FABRIC_CAPABILITY(name) FABRIC_THREAD_ATTRIBUTE(capability(name))
/// A class that holds a lock for its scope.
#define FABRIC_SCOPED_CAPABILITY FABRIC_THREAD_ATTRIBUTE(scoped_lockable)
/// A variable that is read and written only while the lock is held.
#define FABRIC_GUARDED_BY(lock) FABRIC_THREAD_ATTRIBUTE(guarded_by(lock))
/// A function that is called only while the lock is held.
#define FABRIC_REQUIRES(...) FABRIC_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
/// A function that is called only while the lock is not held, because it takes it.
#define FABRIC_EXCLUDES(...) FABRIC_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
/// A function that takes the lock and returns with it.
#define FABRIC_ACQUIRE(...) FABRIC_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define FABRIC_RELEASE(...) FABRIC_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
/// A function that has taken the lock if it returns the first argument.
#define FABRIC_TRY_ACQUIRE(...) FABRIC_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
/// A function that returns only if the lock is held.
#define FABRIC_ASSERT_CAPABILITY(lock) FABRIC_THREAD_ATTRIBUTE(assert_capability(lock))
/// A function that is not checked; a comment says why it is correct.
#define FABRIC_NO_THREAD_SAFETY_ANALYSIS FABRIC_THREAD_ATTRIBUTE(no_thread_safety_analysis)

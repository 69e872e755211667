#pragma once

#include <atomic>
#include <mutex>
#include <thread>

// The words in which lock-free code speaks of what threads share. Here they are nothing but other
// names for the standard ones. tests/explore compiles the same sources with a header of this name
// that puts them on a model of memory, and plays every order of events.

namespace fabric {

template <class T>
using Atomic = std::atomic<T>;

/// Shared, yet not atomic: the atomics beside it hand it from one owner to the next.
template <class T>
using Plain = T;

using Mutex = std::mutex;

inline void full_fence() noexcept { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void yield_thread() noexcept { std::this_thread::yield(); }

}  // namespace fabric

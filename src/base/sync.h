#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>

// The types that lock-free code uses for shared state. Here they are aliases of the standard ones.
// tests/explore compiles the same sources with another header of this name, which maps them to a
// memory model and explores every interleaving.

namespace fabric {

template <class T>
using Atomic = std::atomic<T>;

/// Shared but not atomic: adjacent atomics pass its ownership from thread to thread.
template <class T>
using Plain = T;

struct FreeUninitArray {
  std::align_val_t align{};
  void operator()(void* values) const noexcept { ::operator delete(values, align); }
};

/// An uninitialised array: a page is not touched before a value in it is written.
template <class T>
using UninitArray = std::unique_ptr<Plain<T>[], FreeUninitArray>;

template <class T>
UninitArray<T> make_uninit_array(uint64_t count) {
  // The lifetime of such a type begins with the first assignment.
  static_assert(std::is_trivially_copyable_v<T>);
  constexpr std::align_val_t kAlign{alignof(T)};
  return UninitArray<T>(static_cast<T*>(::operator new(sizeof(T) * count, kAlign)),
                        FreeUninitArray{kAlign});
}

using Mutex = std::mutex;

namespace detail {
inline constinit thread_local char thread_mark = 0;
}
/// Identifies the calling thread among those that are alive.
inline const void* this_thread_mark() noexcept { return &detail::thread_mark; }

/// A compiler fence, the cheap half of an asymmetric fence: the other side calls
/// fence_all_threads() (base/membarrier.h).
inline void light_fence() noexcept { std::atomic_signal_fence(std::memory_order_seq_cst); }
inline void full_fence() noexcept { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void yield_thread() noexcept { std::this_thread::yield(); }

}  // namespace fabric

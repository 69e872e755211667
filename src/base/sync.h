#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>

// The words in which lock-free code speaks of what threads share. Here they are nothing but other
// names for the standard ones. tests/explore compiles the same sources with a header of this name
// that puts them on a model of memory, and plays every order of events.

namespace fabric {

template <class T>
using Atomic = std::atomic<T>;

/// Shared, yet not atomic: the atomics beside it hand it from one owner to the next.
template <class T>
using Plain = T;

struct FreeUninitArray {
  std::align_val_t align{};
  void operator()(void* values) const noexcept { ::operator delete(values, align); }
};

/// Room for values of which none is touched before it is written.
template <class T>
using UninitArray = std::unique_ptr<Plain<T>[], FreeUninitArray>;

template <class T>
UninitArray<T> make_uninit_array(uint64_t count) {
  // Such a type begins to live when it is assigned to.
  static_assert(std::is_trivially_copyable_v<T>);
  constexpr std::align_val_t kAlign{alignof(T)};
  return UninitArray<T>(static_cast<T*>(::operator new(sizeof(T) * count, kAlign)), FreeUninitArray{kAlign});
}

using Mutex = std::mutex;

namespace detail {
inline constinit thread_local char thread_mark = 0;
}
/// Tells the calling thread from every other that is alive.
inline const void* this_thread_mark() noexcept { return &detail::thread_mark; }

/// Half of a full fence: enough where the other side calls fence_all_threads() (base/membarrier.h).
inline void light_fence() noexcept { std::atomic_signal_fence(std::memory_order_seq_cst); }
inline void full_fence() noexcept { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void yield_thread() noexcept { std::this_thread::yield(); }

}  // namespace fabric

#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <type_traits>

#include "explore/interleave.h"

// Replaces src/base/sync.h in the explorer's build: the same names, on the memory model.

namespace fabric {

template <class T>
class Atomic {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));
  using Site = interleave::Site;
  using Order = std::memory_order;

 public:
  Atomic() noexcept : Atomic(T{}) {}
  Atomic(T value) noexcept : location_(interleave::new_location(pack(value))) {}
  Atomic(const Atomic&) = delete;
  Atomic& operator=(const Atomic&) = delete;

  T load(Order order, Site at = interleave::here("load")) const noexcept {
    return unpack(interleave::load(location_, order, at));
  }
  void store(T value, Order order, Site at = interleave::here("store")) noexcept {
    interleave::store(location_, pack(value), order, at);
  }
  T exchange(T value, Order order, Site at = interleave::here("exchange")) noexcept {
    return modify([value](T) { return value; }, order, at);
  }
  T fetch_add(T by, Order order, Site at = interleave::here("fetch_add")) noexcept {
    return modify([by](T old) { return static_cast<T>(old + by); }, order, at);
  }
  T fetch_sub(T by, Order order, Site at = interleave::here("fetch_sub")) noexcept {
    return modify([by](T old) { return static_cast<T>(old - by); }, order, at);
  }
  T fetch_and(T with, Order order, Site at = interleave::here("fetch_and")) noexcept {
    return modify([with](T old) { return static_cast<T>(old & with); }, order, at);
  }
  T fetch_or(T with, Order order, Site at = interleave::here("fetch_or")) noexcept {
    return modify([with](T old) { return static_cast<T>(old | with); }, order, at);
  }
  T fetch_xor(T with, Order order, Site at = interleave::here("fetch_xor")) noexcept {
    return modify([with](T old) { return static_cast<T>(old ^ with); }, order, at);
  }

  bool compare_exchange_strong(T& expected, T wanted, Order success, Order failure,
                               Site at = interleave::here("compare_exchange")) noexcept {
    uint64_t seen = 0;
    if (interleave::begin_exchange(location_, pack(expected), &seen, success, failure, at)) {
      interleave::end_modify(location_, pack(wanted), success, at);
      return true;
    }
    expected = unpack(seen);
    return false;
  }
  bool compare_exchange_weak(T& expected, T wanted, Order success, Order failure,
                             Site at = interleave::here("compare_exchange")) noexcept {
    return compare_exchange_strong(expected, wanted, success, failure, at);
  }
  /// As in the standard, a failure has the order without its release.
  bool compare_exchange_weak(T& expected, T wanted, Order order,
                             Site at = interleave::here("compare_exchange")) noexcept {
    const Order failure = order == Order::acq_rel   ? Order::acquire
                          : order == Order::release ? Order::relaxed
                                                    : order;
    return compare_exchange_strong(expected, wanted, order, failure, at);
  }

  interleave::LocationId location() const noexcept { return location_; }

 private:
  template <class Next>
  T modify(Next next, Order order, Site at) noexcept {
    const T old = unpack(interleave::begin_modify(location_, order, at));
    interleave::end_modify(location_, pack(next(old)), order, at);
    return old;
  }
  static uint64_t pack(T value) noexcept {
    uint64_t packed = 0;
    std::memcpy(&packed, &value, sizeof(T));
    return packed;
  }
  static T unpack(uint64_t packed) noexcept {
    T value;
    std::memcpy(&value, &packed, sizeof(T));
    return value;
  }

  const interleave::LocationId location_;
};

/// Every access is checked: two unordered accesses, one of them a write, are a data race.
template <class T>
class Plain {
 public:
  Plain() noexcept : Plain(T{}) {}
  Plain(T value) noexcept : location_(interleave::new_location(0)), value_(value) {}
  Plain(const Plain&) = delete;
  Plain& operator=(const Plain&) = delete;
  Plain& operator=(const T& value) noexcept {
    interleave::plain_write(location_);
    value_ = value;
    return *this;
  }
  operator T() const noexcept {
    interleave::plain_read(location_);
    return value_;
  }

 private:
  const interleave::LocationId location_;
  T value_;
};

template <class T>
using UninitArray = std::unique_ptr<Plain<T>[]>;

template <class T>
UninitArray<T> make_uninit_array(uint64_t count) {
  return std::make_unique<Plain<T>[]>(count);
}

class Mutex {
 public:
  void lock() noexcept { interleave::lock(location_); }
  void unlock() noexcept { interleave::unlock(location_); }

 private:
  const interleave::LocationId location_ = interleave::new_location(0);
};

inline const void* this_thread_mark() noexcept { return interleave::this_thread(); }

// With the two halves of an asymmetric fence the kernel guarantees a full fence on each side.
inline void light_fence(interleave::Site at = interleave::here("fence")) noexcept {
  interleave::fence(at);
}
inline void full_fence(interleave::Site at = interleave::here("fence")) noexcept {
  interleave::fence(at);
}
inline void yield_thread() noexcept { interleave::yield(); }

}  // namespace fabric

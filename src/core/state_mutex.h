#pragma once

#include <atomic>
#include <mutex>

#include "base/check.h"
#include "base/light_mutex.h"
#include "base/sync.h"
#include "base/thread_safety.h"

namespace fabric::core {

/// The state lock, as clang's thread-safety analysis sees it. One tag for the state locks of all
/// engines: the analysis compares lock expressions, and the parts of an engine reach their lock by
/// different ones. No thread holds the locks of two engines.
class FABRIC_CAPABILITY("state lock") StateLock {};
inline constexpr StateLock state_lock{};

/// The mutex of one engine's state lock, which guards all state of the worker. Every lock() other
/// than the turn's own clears `undisturbed`, so that a turn can tell whether another thread may
/// have changed the state since the previous turn and skip its full scan if none did.
///
/// lock_for_turn() and unlock() are what the analysis takes as given: they tie the tag to mutex_.
class StateMutex {
 public:
  void lock() noexcept FABRIC_ACQUIRE(state_lock) {
    lock_for_turn();
    undisturbed_ = false;
  }
  void unlock() noexcept FABRIC_RELEASE(state_lock) FABRIC_NO_THREAD_SAFETY_ANALYSIS {
    set_holder(nullptr);
    mutex_.unlock();
  }

  /// Tells the analysis that the lock is held where it cannot see it: in a lambda, or in a function
  /// that is called through an interface. Debug builds check it; release builds do nothing.
  void assert_held() const noexcept FABRIC_ASSERT_CAPABILITY(state_lock) {
#ifndef NDEBUG
    // Relaxed: only the calling thread stores its own mark.
    FABRIC_CHECK(holder_.load(std::memory_order_relaxed) == this_thread_mark(),
                 "the state lock is not held by this thread");
#endif
  }

  // For the turn.
  void lock_for_turn() noexcept FABRIC_ACQUIRE(state_lock) FABRIC_NO_THREAD_SAFETY_ANALYSIS {
    mutex_.lock();
    set_holder(this_thread_mark());
  }
  bool undisturbed() const noexcept FABRIC_REQUIRES(state_lock) { return undisturbed_; }
  void watch(bool on) noexcept FABRIC_REQUIRES(state_lock) { undisturbed_ = on; }

 private:
  void set_holder([[maybe_unused]] const void* mark) noexcept {
#ifndef NDEBUG
    holder_.store(mark, std::memory_order_relaxed);
#endif
  }

  LightMutex mutex_;
  bool undisturbed_ FABRIC_GUARDED_BY(state_lock) = false;  ///< since watch(true)
#ifndef NDEBUG
  std::atomic<const void*> holder_{nullptr};
#endif
};

/// Holds the state lock for a scope.
class FABRIC_SCOPED_CAPABILITY StateGuard {
 public:
  explicit StateGuard(StateMutex& mutex) noexcept FABRIC_ACQUIRE(state_lock) : mutex_(mutex) {
    mutex_.lock();
  }
  /// The turn's own lock, taken by lock_for_turn().
  StateGuard(StateMutex& mutex, std::adopt_lock_t) noexcept FABRIC_REQUIRES(state_lock)
      : mutex_(mutex) {}
  ~StateGuard() FABRIC_RELEASE() { mutex_.unlock(); }
  StateGuard(const StateGuard&) = delete;
  StateGuard& operator=(const StateGuard&) = delete;

 private:
  StateMutex& mutex_;
};

}  // namespace fabric::core

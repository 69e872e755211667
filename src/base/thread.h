#pragma once

#include <pthread.h>

#include <functional>
#include <utility>
#include <vector>

#include <fabric/result.h>

namespace fabric {

/// A thread of the library: named, bound to CPUs from its first instruction, and with all signals
/// blocked, so that the application's signal handlers never run on it.
class Thread {
 public:
  struct Options {
    const char* name = "fabric";  ///< at most 15 characters, the kernel's limit
    std::vector<int> cpus{};      ///< empty: anywhere
  };
  /// Fails with kExhausted (no more threads), kInvalidArgument (no such CPU).
  static Result<Thread> start(const Options& options, std::function<void()> body);

  Thread() = default;
  Thread(Thread&& other) noexcept
      : handle_(other.handle_), joinable_(std::exchange(other.joinable_, false)) {}
  Thread& operator=(Thread&& other) noexcept {
    join();
    handle_ = other.handle_;
    joinable_ = std::exchange(other.joinable_, false);
    return *this;
  }
  ~Thread() { join(); }

  void join() noexcept;  ///< waits until the thread exits; a second call does nothing
  bool joinable() const noexcept { return joinable_; }

 private:
  explicit Thread(pthread_t handle) noexcept : handle_(handle), joinable_(true) {}
  pthread_t handle_{};
  bool joinable_ = false;
};

/// One iteration of a spin loop: yields to the sibling hardware thread.
inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // on this architecture "yield" does nothing on most cores
#endif
}

}  // namespace fabric

#pragma once

#include <pthread.h>

#include <functional>
#include <utility>
#include <vector>

#include <fabric/result.h>

namespace fabric {

/// A thread of the library: named, bound to CPUs from its first instruction, and deaf to signals,
/// so that the application's handlers never run on a stack that they do not know.
class Thread {
 public:
  struct Options {
    const char* name = "fabric";  ///< at most 15 characters, the kernel's limit
    std::vector<int> cpus{};      ///< empty: anywhere
  };
  /// Fails with kExhausted (no more threads), kInvalidArgument (no such CPU); nothing is left
  /// behind then.
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

  void join() noexcept;  ///< waits for its end; once is enough, more is harmless
  bool joinable() const noexcept { return joinable_; }

 private:
  explicit Thread(pthread_t handle) noexcept : handle_(handle), joinable_(true) {}
  pthread_t handle_{};
  bool joinable_ = false;
};

/// One step of a wait loop that spins: lets the other hardware thread run.
inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // on this architecture "yield" does nothing on most cores
#endif
}

}  // namespace fabric

#pragma once

#include <memory>

#include <fabric/export.h>
#include <fabric/notify.h>

namespace fabric {

namespace core {
struct WatcherState;
}

struct WatcherOptions {
  /// true: while armed, every turn polls the word, for GPU kernels and stores by other code; the
  /// worker does not sleep. false: only store() of this object wakes the worker, and P20 holds.
  bool polled = true;
};

/// Watches a 64-bit word. The notify gets (previous, value) as kWatch; successive changes may be
/// merged into one event, the last value is never lost.
///
/// Lifetime: the destructor disarms; no event is queued after it returns.
/// Threads: every function from any thread.
class FABRIC_EXPORT Watcher {
 public:
  Watcher(Watcher&&) noexcept;
  Watcher& operator=(Watcher&&) noexcept;
  ~Watcher();
  uint64_t* word() const noexcept;        ///< host address; GPU kernels may store to it (release)
  uint64_t gpu_address() const noexcept;  ///< 0 without a GPU
  void store(uint64_t value) noexcept;    ///< release, and wakes
  void arm() noexcept;
  void disarm() noexcept;  ///< returns after the last delivery has been queued

 private:
  friend class Engine;
  explicit Watcher(std::shared_ptr<core::WatcherState> state) noexcept;
  std::shared_ptr<core::WatcherState> state_;
};

}  // namespace fabric

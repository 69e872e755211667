#pragma once

#include <memory>

#include <fabric/export.h>
#include <fabric/notify.h>

namespace fabric {

namespace core {
struct WatcherState;
}

struct WatcherOptions {
  /// true: the word is polled every turn while armed, for kernels and foreign stores; the worker
  /// does not sleep. false: only store() of this object wakes the worker, and P20 holds.
  bool polled = true;
};

/// A 64-bit word. The notify gets (previous, value) as kWatch; steps may be merged, the last value
/// is never lost.
///
/// Lifetime: the destructor disarms; no event is queued after it returns.
/// Threads: everything from any thread.
class FABRIC_EXPORT Watcher {
 public:
  Watcher(Watcher&&) noexcept;
  Watcher& operator=(Watcher&&) noexcept;
  ~Watcher();
  uint64_t* word() const noexcept;           ///< host address; a kernel may store to it (release)
  uint64_t gpu_address() const noexcept;  ///< 0 without a GPU
  void store(uint64_t value) noexcept;       ///< release, and wakes
  void arm() noexcept;
  void disarm() noexcept;  ///< returns after the last delivery has been queued

 private:
  friend class Engine;
  explicit Watcher(std::shared_ptr<core::WatcherState> state) noexcept;
  std::shared_ptr<core::WatcherState> state_;
};

}  // namespace fabric

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <fabric/result.h>

// What a runtime is to the rest of the library: time, entropy, wake-ups and threads. The core never
// reads a clock, sleeps, starts a thread or draws a random number on its own; it asks its Driver.
// That is what makes the simulator honest.

namespace fabric {

inline constexpr int64_t kNeverNs = INT64_MAX;

/// What one turn did and when the next one is due.
struct TurnResult {
  uint32_t done = 0;           ///< 0: nothing happened, the caller may go idle
  int64_t next_ns = kNeverNs;  ///< the latest time for the next turn, on the driver's clock
  bool keep_polling = false;   ///< something is watched that cannot wake us: do not sleep
};

/// One engine, as its runtime sees it.
class Progress {
 public:
  virtual ~Progress() = default;
  /// A bounded amount of work, never a wait. One thread at a time.
  virtual TurnResult turn(int64_t now_ns) noexcept = 0;
  /// Runs callbacks that are due, outside the turn; returns how many. One thread at a time, but
  /// concurrently with turn().
  virtual uint32_t run_callbacks() noexcept = 0;
  /// Before a sleep: false when something arrived meanwhile. Called where turn() is called.
  virtual bool arm() noexcept = 0;
  /// Descriptors that become readable when a network has something; called once, after attach().
  virtual void wait_fds(std::vector<int>& out) const = 0;
  /// The caller of turn() goes to sleep; for statistics.
  virtual void on_sleep() noexcept {}
  /// The process that it stands for has died: no goodbye, no report, and from here on every handle
  /// is inert. Only a simulated world calls it, outside turns and callbacks of this engine.
  virtual void vanish() noexcept {}
};

struct AttachOptions {
  int64_t spin_ns = 0;      ///< how long to poll before sleeping
  std::vector<int> cpus{};  ///< where the worker thread may run; empty: anywhere
};

/// Threads: everything from any thread, unless it says otherwise.
class Driver {
 public:
  virtual ~Driver() = default;
  virtual int64_t now_ns() const noexcept = 0;
  virtual uint64_t entropy() noexcept = 0;
  /// A number for one life of an engine: larger for later calls, also after a restart of the
  /// process, and different for two calls at the same time.
  virtual uint64_t incarnation() noexcept = 0;

  /// From now on `progress` gets turns. Not before the engine is ready for them.
  virtual Result<void> attach(Progress& progress, const AttachOptions& options) = 0;
  /// After it returns nobody calls `progress` any more. Not from a turn or a callback of it.
  virtual void detach(Progress& progress) noexcept = 0;
  /// A turn is due soon. Cheap while the worker is awake. Publish first, then wake.
  virtual void wake(Progress& progress) noexcept = 0;
  /// Callbacks are due. Publish first, then wake.
  virtual void wake_callbacks(Progress& progress) noexcept = 0;

  /// true: turns happen on other threads, and a waiter parks. false: a waiter calls drive().
  virtual bool threaded() const noexcept = 0;
  /// true: its clock is a world's, and stands still while real processes go on.
  virtual bool virtual_time() const noexcept { return false; }
  /// true: an engine gets its turns only while its application waits or polls.
  virtual bool by_application() const noexcept { return false; }
  /// Not threaded: makes turns until done() or the deadline; true when done() said so.
  virtual bool drive(const std::function<bool()>& done, int64_t deadline_ns) = 0;
  /// Not threaded: one turn of `progress` and its callbacks, without moving a clock; returns how
  /// much was done. 0 for a threaded one, whose turns are others' to make.
  virtual uint32_t turn_one(Progress& progress) noexcept {
    return threaded() ? 0 : progress.turn(now_ns()).done + progress.run_callbacks();
  }
  /// Runs a call that may block in the kernel outside any turn. Jobs of one queue run one after
  /// another, in the order in which they came; where there are threads for it, no queue waits for
  /// another. `queue` is below kOffloadQueues.
  virtual void offload(std::function<void()> job, uint32_t queue = 0) = 0;
  /// One for everybody, and for each of eight rails three of its own: a network has calls that must
  /// not wait for its slow ones.
  static constexpr uint32_t kOffloadQueues = 1 + 3 * 8;
};

/// Real time, and for every engine that is attached a worker thread and a callback thread. Declared
/// here because the core, which may not look into src/runtime, falls back to it.
std::unique_ptr<Driver> make_threads_driver();

/// What a network gets when it is opened.
struct OpenContext {
  Driver* driver = nullptr;
  uint64_t engine_id = 0;
  std::function<void()> wake{};  ///< any thread: something arrived, a turn is due
  Progress* progress = nullptr;  ///< whose it is
};

}  // namespace fabric

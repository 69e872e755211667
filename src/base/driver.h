#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <fabric/result.h>

#include "base/log.h"

// The runtime contract: time, entropy, wake-ups and threads. The core never reads a clock, sleeps,
// starts a thread or draws a random number itself; it asks its Driver. The simulator relies on this
// to run unchanged engines deterministically.

namespace fabric {

inline constexpr int64_t kNeverNs = INT64_MAX;

/// What one turn did and when the next one is due.
struct TurnResult {
  uint32_t done = 0;           ///< 0: no work was done, the caller may go idle
  int64_t next_ns = kNeverNs;  ///< the latest time for the next turn, on the driver's clock
  bool keep_polling = false;   ///< a watched source cannot wake the worker: do not sleep
};

/// One engine, as seen by its runtime. The core implements it.
class Progress {
 public:
  virtual ~Progress() = default;
  /// Does a bounded amount of work and never blocks. One thread at a time.
  virtual TurnResult turn(int64_t now_ns) noexcept = 0;
  /// Runs callbacks that are due, outside the turn; returns how many. One thread at a time, but
  /// concurrently with turn().
  virtual uint32_t run_callbacks() noexcept = 0;
  /// Called before a sleep, by the thread that calls turn(); false when work arrived since the last
  /// turn.
  virtual bool arm() noexcept = 0;
  /// Descriptors that become readable when a network has work; called once, after attach().
  virtual void wait_fds(std::vector<int>& out) const = 0;
  /// The caller of turn() goes to sleep; for statistics.
  virtual void on_sleep() noexcept {}
  /// Simulates the death of the engine's process: it sends and reports nothing more, and every
  /// handle is inert. Only the simulator calls it, outside turns and callbacks of this engine.
  virtual void simulate_crash() noexcept {}
};

struct AttachOptions {
  int64_t spin_ns = 0;      ///< how long to poll before sleeping
  std::vector<int> cpus{};  ///< where the worker thread may run; empty: anywhere
};

/// A runtime: ThreadsDriver, InlineDriver (src/runtime) and the simulator's WorldDriver. It decides
/// which thread runs the turns of the engines attached to it.
///
/// Threads: every call from any thread, unless it says otherwise.
class Driver {
 public:
  virtual ~Driver() = default;
  virtual int64_t now_ns() const noexcept = 0;
  virtual uint64_t entropy() noexcept = 0;
  /// A number for one incarnation of an engine: larger for later calls, also after a restart of the
  /// process, and different for two calls at the same time.
  virtual uint64_t incarnation() noexcept = 0;

  /// Starts the turns of `progress`, which must be ready for them.
  virtual Result<void> attach(Progress& progress, const AttachOptions& options) = 0;
  /// Once it returns, `progress` is not called again. Not from a turn or a callback of `progress`.
  virtual void detach(Progress& progress) noexcept = 0;
  /// Requests a turn. Cheap while the worker is awake. Publish first, then wake.
  virtual void wake(Progress& progress) noexcept = 0;
  /// Callbacks are due. Publish first, then wake.
  virtual void wake_callbacks(Progress& progress) noexcept = 0;

  /// true: turns run on the runtime's threads, and a waiting thread sleeps on an EventCount.
  /// false: a waiting thread calls drive().
  virtual bool threaded() const noexcept = 0;
  /// true: the clock is simulated, and stops while real processes continue.
  virtual bool virtual_time() const noexcept { return false; }
  /// true: an engine gets its turns only while its application waits or polls.
  virtual bool by_application() const noexcept { return false; }
  /// Not threaded: runs turns until done() returns true or the deadline passes; true when done()
  /// did.
  virtual bool drive(const std::function<bool()>& done, int64_t deadline_ns) = 0;
  /// Not threaded: one turn of `progress` and its callbacks, without advancing a clock; the inline
  /// runtime also runs all offloaded jobs, of every engine. Returns how much was done; 0 inside a
  /// turn or a callback of the inline runtime, which do not nest. 0 if threaded: the runtime's own
  /// threads run the turns.
  virtual uint32_t turn_one(Progress& progress) noexcept {
    return threaded() ? 0 : progress.turn(now_ns()).done + progress.run_callbacks();
  }
  /// Runs a call that may block in the kernel outside any turn. Jobs of one offload queue run in
  /// FIFO order, one at a time; a threaded runtime runs different queues concurrently. `queue` is
  /// below kOffloadQueues.
  virtual void offload(std::function<void()> job, uint32_t queue = 0) = 0;
  /// Queue 0 is shared; each of eight rails has three more, so that a network's urgent calls do not
  /// wait for its slow ones.
  static constexpr uint32_t kOffloadQueues = 1 + 3 * 8;
};

/// Real time, with a worker thread and a callback thread for every attached engine. Declared here
/// because the core uses it by default and may not include src/runtime.
std::unique_ptr<Driver> make_threads_driver();

/// Passed to a provider that opens a network.
struct OpenContext {
  Driver* driver = nullptr;
  uint64_t engine_id = 0;
  std::function<void()> wake{};  ///< any thread: work arrived, a turn is due
  Progress* progress = nullptr;  ///< the engine that opens the network
  Log* log = nullptr;            ///< the engine's; null: tests that open a network alone
};

}  // namespace fabric

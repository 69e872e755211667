#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/biased_lock.h"
#include "base/clock.h"
#include "base/driver.h"
#include "base/system.h"
#include "runtime/job_queue.h"
#include "runtime/turn_lock.h"
#include "runtime/waker.h"

namespace fabric::runtime {

/// The inline runtime: no threads of its own. A thread that calls turn() or drive() runs the turns
/// of all attached engines, then their callbacks and all offloaded jobs; turn_one() runs the turn
/// and the callbacks of one engine, and also all jobs. The TurnLock admits one such thread at a
/// time and hands over between turns. Calls from inside a turn or a callback neither wait nor nest:
/// turn() and turn_one() return 0 there.
class InlineDriver final : public Driver {
 public:
  InlineDriver() : opened_(waker_.open()) {}
  ~InlineDriver() override { jobs_.run_all(); }

  int64_t now_ns() const noexcept override { return monotonic_ns(); }
  uint64_t entropy() noexcept override { return system_entropy(); }
  uint64_t incarnation() noexcept override { return next_incarnation(); }

  Result<void> attach(Progress& progress, const AttachOptions& options) override;
  void detach(Progress& progress) noexcept override;
  void wake(Progress&) noexcept override { waker_.wake(); }
  void wake_callbacks(Progress&) noexcept override { waker_.wake(); }

  bool threaded() const noexcept override { return false; }
  bool by_application() const noexcept override { return true; }
  bool drive(const std::function<bool()>& done, int64_t deadline_ns) override;
  uint32_t turn_one(Progress& progress) noexcept override;
  /// Jobs run between turns, on the thread that drives: this runtime promises to start no threads.
  void offload(std::function<void()> job, uint32_t queue = 0) override {
    (void)queue;  // one thread runs all jobs
    jobs_.push(std::move(job));
    waker_.wake();
  }

  uint32_t turn() noexcept;  ///< one of every engine; returns how much was done

 private:
  /// One attached engine.
  struct Attachment {
    Progress* progress;  ///< null: detached during a turn, erased before the next one
    int64_t spin_ns;
    std::vector<int> fds;
  };

  // Calls from a turn or a callback of the thread that holds the turn lock must not wait for it.
  bool inside() const noexcept {
    // Only this thread can have stored its own mark, so no ordering is needed.
    return inside_.load(std::memory_order_relaxed) == this_thread_mark();
  }
  bool enter(int64_t deadline_ns) {
    if (!turn_lock_.enter(deadline_ns)) return false;
    inside_.store(this_thread_mark(), std::memory_order_relaxed);  // as in inside()
    return true;
  }
  void leave() noexcept {
    inside_.store(nullptr, std::memory_order_relaxed);  // as in inside()
    turn_lock_.leave();
  }
  bool yield(int64_t deadline_ns) {
    inside_.store(nullptr, std::memory_order_relaxed);  // as in inside()
    if (!turn_lock_.yield(deadline_ns)) return false;
    inside_.store(this_thread_mark(), std::memory_order_relaxed);
    return true;
  }

  void sweep() noexcept;
  TurnResult turn_all(int64_t now_ns) noexcept;
  uint32_t run_callbacks() noexcept;
  bool sleep(const std::function<bool()>& done, int64_t until_ns) noexcept;
  int64_t spin_ns() const noexcept;

  /// One round of spinning. The engine that this wait is for may need this CPU.
  void spin() noexcept;

  // With keep_polling set, a sched_yield() on every 64th turn of drive(), if that turn was idle.
  static constexpr uint32_t kPollsPerYield = 64;
  // A yield with no other thread to run takes less than a microsecond; with one, at least two
  // switches. Yields get rarer while the CPU is not shared, and are made at every poll while it is:
  // a shared CPU is noticed within some ten microseconds, and a CPU of one's own loses less than a
  // tenth of the polls to them.
  static constexpr int64_t kSharedCpuNs = 2'000;
  static constexpr uint32_t kSpinsPerYieldMax = 128;
  // A thread that kept the CPU for so long computes: it is no engine that this one waits for. Then
  // a sleep is better, because the wake-up preempts that thread. Tried again after some sleeps.
  static constexpr int64_t kBusyCpuNs = 200'000;
  static constexpr uint32_t kSleepsWhileBusy = 64;

  Waker waker_;
  const Result<void> opened_;
  JobQueue jobs_;
  TurnLock turn_lock_{waker_};
  std::atomic<const void*> inside_{nullptr};
  // Guarded by the turn lock. Pointers, so that an attach during a turn moves no Attachment.
  std::vector<std::unique_ptr<Attachment>> attachments_;
  std::vector<int> fds_;
  bool has_detached_ = false;  ///< an engine detached during a turn: sweep() before the next
  int64_t idle_since_ns_ = kNeverNs;
  uint32_t spins_ = 0;            ///< since the last yield
  uint32_t spins_per_yield_ = 1;  ///< grows while this CPU is not shared
  uint32_t sleeps_at_once_ = 0;   ///< so many sleeps are not preceded by spinning
};

}  // namespace fabric::runtime

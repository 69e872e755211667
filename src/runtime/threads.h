#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/driver.h"
#include "base/thread.h"
#include "runtime/job_queue.h"

namespace fabric::runtime {

/// Real time and real threads: every attached engine has a worker, which makes its turns, and a
/// callback thread, so that a slow callback stalls nobody's network (P19). One more thread, started
/// when it is first needed, runs calls that may block in the kernel.
///
/// A worker spins for AttachOptions::spin_ns after its last work and then sleeps (P20).
class ThreadsDriver final : public Driver {
 public:
  ThreadsDriver();
  ~ThreadsDriver() override;

  int64_t now_ns() const noexcept override;
  uint64_t entropy() noexcept override;
  uint64_t incarnation() noexcept override;

  /// Fails with kExhausted (threads, descriptors, memory), kInvalidArgument ("cpus"); then no turn
  /// was made and nothing is left behind.
  Result<void> attach(Progress& progress, const AttachOptions& options) override;
  void detach(Progress& progress) noexcept override;
  void wake(Progress& progress) noexcept override;
  void wake_callbacks(Progress& progress) noexcept override;

  bool threaded() const noexcept override { return true; }
  bool drive(const std::function<bool()>& done, int64_t deadline_ns) override;
  /// When no thread can be started the job runs here, late but done.
  void offload(std::function<void()> job, uint32_t queue = 0) override;

 private:
  class WorkerThreads;
  WorkerThreads* find(const Progress& progress) const noexcept;
  Result<WorkerThreads*> attach_threads(Progress& progress);
  void detach_threads(WorkerThreads& threads) noexcept;

  // Crews are only ever added, and used again for the next engine: a wake() that comes while its
  // engine detaches rings a bell that nobody hears, never one that is gone.
  std::mutex mutex_;  ///< who has which threads, and the helpers' start; never held over a join
  std::vector<std::unique_ptr<WorkerThreads>> owned_;
  std::atomic<WorkerThreads*> all_threads_{nullptr};  ///< the same, to be searched without the mutex
  struct OffloadQueue {
    JobQueue jobs{};
    Thread thread{};
    // Beside the thread, which the destructor joins while a last job may still offload another.
    bool started = false;
  };
  bool closing_ = false;  ///< guarded by the mutex
  std::array<OffloadQueue, kOffloadQueues> offload_queues_;  ///< one a queue, started with its first job
};

}  // namespace fabric::runtime

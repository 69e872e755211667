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

/// The threads runtime: real time, and for every attached engine a worker thread that runs its
/// turns and a callback thread, so that a slow callback delays no network (contracts.md P19). Each
/// offload queue gets a thread with its first job, for calls that may block in the kernel.
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
  /// has run and all resources are released.
  Result<void> attach(Progress& progress, const AttachOptions& options) override;
  void detach(Progress& progress) noexcept override;
  void wake(Progress& progress) noexcept override;
  void wake_callbacks(Progress& progress) noexcept override;

  bool threaded() const noexcept override { return true; }
  bool drive(const std::function<bool()>& done, int64_t deadline_ns) override;
  /// If no thread can be started, the job runs on the caller's thread.
  void offload(std::function<void()> job, uint32_t queue = 0) override;

 private:
  class WorkerThreads;
  WorkerThreads* find(const Progress& progress) const noexcept;
  Result<WorkerThreads*> attach_threads(Progress& progress);
  void detach_threads(WorkerThreads& threads) noexcept;

  // WorkerThreads objects are added and reused for later engines, but freed only by the destructor:
  // a wake() that races with detach() wakes an object that exists, at worst without effect.
  std::mutex mutex_;  ///< guards attachment and the start of offload threads; not held over a join
  std::vector<std::unique_ptr<WorkerThreads>> owned_;
  std::atomic<WorkerThreads*> all_threads_{nullptr};  ///< owned_, searched without the mutex
  struct OffloadQueue {
    JobQueue jobs{};
    Thread thread{};
    // Not thread.joinable(): the destructor joins while a last job may still offload another.
    bool started = false;
  };
  bool closing_ = false;  ///< guarded by the mutex
  std::array<OffloadQueue, kOffloadQueues> offload_queues_;
};

}  // namespace fabric::runtime

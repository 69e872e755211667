#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <utility>

namespace fabric::runtime {

/// A FIFO queue of calls that may block, run one at a time.
///
/// Threads: every call from any thread. A job may push another job.
class JobQueue {
 public:
  void push(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
      queued_.fetch_add(1, std::memory_order_relaxed);
    }
    changed_.notify_all();
  }

  /// A check without the lock: a push() that it misses wakes the consumer afterwards.
  bool empty() const noexcept { return queued_.load(std::memory_order_relaxed) == 0; }

  /// Runs all queued jobs; returns how many. 0 while another thread, or a caller further up this
  /// stack, is in run_all(): that call runs them all.
  uint32_t run_all() {
    if (empty()) return 0;
    std::unique_lock lock(mutex_);
    if (running_) return 0;
    running_ = true;
    uint32_t ran = 0;
    for (; !jobs_.empty(); ++ran) {
      const std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      queued_.fetch_sub(1, std::memory_order_relaxed);
      lock.unlock();
      job();
      lock.lock();
    }
    running_ = false;
    lock.unlock();
    changed_.notify_all();
    return ran;
  }

  /// Waits for a job; false when the queue is empty and close() was called.
  bool wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !running_ && (!jobs_.empty() || closed_); });
    return !jobs_.empty();
  }

  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::atomic<uint32_t> queued_{0};  ///< how many; changed under the mutex, relaxed
  bool running_ = false;
  bool closed_ = false;
};

}  // namespace fabric::runtime

#include "runtime/threads.h"

#include <sched.h>

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/event_count.h"
#include "base/system.h"
#include "runtime/waker.h"

namespace fabric::runtime {

/// The worker thread and the callback thread of one engine. Owned by the driver's `owned_`; the
/// driver's mutex guards which engine it serves. `waker_` wakes the worker, `callbacks_due_` the
/// callback thread.
class ThreadsDriver::WorkerThreads {
 public:
  explicit WorkerThreads(WorkerThreads* next_) noexcept : next(next_) {}

  Result<void> open() { return waker_.open(); }

  Result<void> start(const AttachOptions& options) {
    spin_ns_ = options.spin_ns;
    fds_.clear();
    engine().wait_fds(fds_);
    stopping_.store(false, std::memory_order_relaxed);  // published by the start of the threads
    // The worker starts last: if it cannot be started, no turn has run.
    Result<Thread> callback_thread =
        Thread::start({.name = "fabric-call"}, [this] { run_callbacks_loop(); });
    if (!callback_thread) return callback_thread.error();
    callback_thread_ = *std::move(callback_thread);
    Result<Thread> worker =
        Thread::start({.name = "fabric-worker", .cpus = options.cpus}, [this] { work(); });
    if (!worker) {
      stop();
      return worker.error();
    }
    worker_ = *std::move(worker);
    return {};
  }

  void stop() noexcept {
    // Pairs with the acquire in stopping().
    stopping_.store(true, std::memory_order_release);
    waker_.wake();
    callbacks_due_.wake();
    worker_.join();
    callback_thread_.join();
  }

  void wake_after_fence() noexcept { waker_.wake_after_fence(); }
  void wake_callbacks() noexcept { callbacks_due_.wake(); }

  WorkerThreads* const next;
  /// The engine served; null: free. Release when it is set, acquire in find().
  std::atomic<Progress*> progress{nullptr};

 private:
  // With keep_polling set, a sched_yield() on every 64th turn, if that turn was idle: with fewer
  // cores than threads the thread that the worker polls for may be waiting for this core.
  static constexpr uint32_t kPollsPerYield = 64;

  Progress& engine() const noexcept {
    // Set before the threads start and cleared after they are joined.
    return *progress.load(std::memory_order_relaxed);
  }
  bool stopping() const noexcept {
    return stopping_.load(std::memory_order_acquire);  // pairs with the release in stop()
  }

  void work() noexcept {
    int64_t idle_since_ns = kNeverNs;
    for (uint32_t polls = 0; !stopping(); ++polls) {
      const int64_t now_ns = monotonic_ns();
      const TurnResult turn = engine().turn(now_ns);
      if (turn.done != 0) {
        idle_since_ns = kNeverNs;
        continue;
      }
      // Idle time runs from the last turn that did work and not from the last sleep: a spurious
      // wake-up, or the end of a bounded sleep, is no reason to spin again.
      if (idle_since_ns == kNeverNs) idle_since_ns = now_ns;
      if (turn.keep_polling) {
        if (polls % kPollsPerYield == 0) sched_yield();
      } else if (now_ns - idle_since_ns < spin_ns_) {
        cpu_relax();
      } else {
        sleep(turn.next_ns);
      }
    }
  }

  void sleep(int64_t until_ns) noexcept {
    waker_.begin_sleep();
    if (!stopping() && engine().arm()) {
      const int64_t now_ns = monotonic_ns();
      if (until_ns > now_ns) {
        engine().on_sleep();
        waker_.wait(fds_, until_ns - now_ns);
      }
    }
    waker_.end_sleep();
  }

  void run_callbacks_loop() noexcept {
    while (!stopping()) {
      if (engine().run_callbacks() != 0) continue;
      const EventCount::Ticket ticket = callbacks_due_.prepare();
      if (stopping() || engine().run_callbacks() != 0) continue;
      callbacks_due_.sleep(ticket, kNeverNs);
    }
  }

  Waker waker_;
  EventCount callbacks_due_;
  int64_t spin_ns_ = 0;
  std::vector<int> fds_;
  std::atomic<bool> stopping_{false};
  Thread callback_thread_;
  Thread worker_;
};

ThreadsDriver::ThreadsDriver() = default;

ThreadsDriver::~ThreadsDriver() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;  // a last job may offload another: no thread is started for that one
  }
  for (OffloadQueue& queue : offload_queues_) queue.jobs.close();
  for (OffloadQueue& queue : offload_queues_) queue.thread.join();
  // Jobs of queues whose thread could not be started, or that were queued after it had exited.
  for (bool again = true; again;) {
    again = false;
    for (OffloadQueue& queue : offload_queues_) again |= queue.jobs.run_all() != 0;
  }
  for (const auto& threads : owned_) threads->stop();  // no-op after detach()
}

int64_t ThreadsDriver::now_ns() const noexcept { return monotonic_ns(); }
uint64_t ThreadsDriver::entropy() noexcept { return system_entropy(); }
uint64_t ThreadsDriver::incarnation() noexcept { return next_incarnation(); }

ThreadsDriver::WorkerThreads* ThreadsDriver::find(const Progress& progress) const noexcept {
  // Usually a list of one. Both loads pair with the releases in attach_threads().
  WorkerThreads* threads = all_threads_.load(std::memory_order_acquire);
  while (threads != nullptr && threads->progress.load(std::memory_order_acquire) != &progress) {
    threads = threads->next;
  }
  return threads;
}

Result<ThreadsDriver::WorkerThreads*> ThreadsDriver::attach_threads(Progress& progress) {
  const std::lock_guard lock(mutex_);
  // Written under the mutex only, so these loads may be relaxed.
  WorkerThreads* const first = all_threads_.load(std::memory_order_relaxed);
  WorkerThreads* threads = first;
  while (threads != nullptr && threads->progress.load(std::memory_order_relaxed) != nullptr) {
    FABRIC_CHECK(threads->progress.load(std::memory_order_relaxed) != &progress, "attached twice");
    threads = threads->next;
  }
  if (threads == nullptr) {
    auto fresh = std::make_unique<WorkerThreads>(first);
    if (const Result<void> opened = fresh->open(); !opened) return opened.error();
    threads = owned_.emplace_back(std::move(fresh)).get();
    all_threads_.store(threads, std::memory_order_release);  // pairs with the acquire in find()
  }
  threads->progress.store(&progress,
                          std::memory_order_release);  // pairs with the acquire in find()
  // A wake() that does not find the threads yet has published before its fence, so the first turn,
  // which runs after this fence, sees the publication. Pairs with the fence in wake().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return threads;
}

void ThreadsDriver::detach_threads(WorkerThreads& threads) noexcept {
  const std::lock_guard lock(mutex_);
  // Relaxed: a wake() that still finds it has no effect; the mutex orders the next
  // attach_threads().
  threads.progress.store(nullptr, std::memory_order_relaxed);
}

Result<void> ThreadsDriver::attach(Progress& progress, const AttachOptions& options) {
  try {
    const Result<WorkerThreads*> threads = attach_threads(progress);
    if (!threads) return threads.error();
    Result<void> started;
    try {
      started = (*threads)->start(options);
    } catch (const std::bad_alloc&) {
      (*threads)->stop();
      started = fail(Errc::kExhausted, "attach");
    }
    if (!started) detach_threads(**threads);
    return started;
  } catch (const std::bad_alloc&) {
    return fail(Errc::kExhausted, "attach");
  }
}

void ThreadsDriver::detach(Progress& progress) noexcept {
  WorkerThreads* const threads = find(progress);
  if (threads == nullptr) return;
  threads->stop();
  detach_threads(*threads);
}

void ThreadsDriver::wake(Progress& progress) noexcept {
  // Pairs with the fence in attach_threads(), and with the one in Waker::begin_sleep().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (WorkerThreads* const threads = find(progress); threads != nullptr)
    threads->wake_after_fence();
}

void ThreadsDriver::wake_callbacks(Progress& progress) noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with the fence in attach_threads()
  if (WorkerThreads* const threads = find(progress); threads != nullptr) threads->wake_callbacks();
}

bool ThreadsDriver::drive(const std::function<bool()>&, int64_t) {
  FABRIC_CHECK(false, "drive() is for drivers that are not threaded");
  return false;
}

void ThreadsDriver::offload(std::function<void()> job, uint32_t index) {
  OffloadQueue& queue = offload_queues_[index];
  queue.jobs.push(std::move(job));
  {
    const std::lock_guard lock(mutex_);
    if (queue.started || closing_) return;
    Result<Thread> thread = Thread::start({.name = "fabric-helper"}, [&jobs = queue.jobs] {
      while (jobs.wait()) jobs.run_all();
    });
    if (thread) {
      queue.thread = *std::move(thread);
      queue.started = true;
      return;
    }
  }
  queue.jobs.run_all();  // without the lock: a job may call offload()
}

}  // namespace fabric::runtime

namespace fabric {

std::unique_ptr<Driver> make_threads_driver() { return std::make_unique<runtime::ThreadsDriver>(); }

}  // namespace fabric

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

/// The two threads of one engine.
class ThreadsDriver::WorkerThreads {
 public:
  explicit WorkerThreads(WorkerThreads* next_) noexcept : next(next_) {}

  Result<void> open() { return waker_.open(); }

  Result<void> start(const AttachOptions& options) {
    spin_ns_ = options.spin_ns;
    fds_.clear();
    engine().wait_fds(fds_);
    stopping_.store(false, std::memory_order_relaxed);  // published by the start of the threads
    // The worker last: when it cannot be started, the engine has not had a turn.
    Result<Thread> caller = Thread::start({.name = "fabric-call"}, [this] { call(); });
    if (!caller) return caller.error();
    caller_ = *std::move(caller);
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
    caller_.join();
  }

  void wake_after_fence() noexcept { waker_.wake_after_fence(); }
  void wake_callbacks() noexcept { callbacks_due_.wake(); }

  WorkerThreads* const next;
  /// Whose threads it is; null: free. Release when it is set, acquire in find().
  std::atomic<Progress*> progress{nullptr};

 private:
  // Keep-polling engines let others run this often: on a machine with fewer cores than threads the
  // one they wait for may be waiting for theirs.
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
      // Counted from the last work and not from the last sleep: being woken for nothing, or by the
      // bound on a sleep, is no reason to spin again.
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

  void call() noexcept {
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
  Thread caller_;
  Thread worker_;
};

ThreadsDriver::ThreadsDriver() = default;

ThreadsDriver::~ThreadsDriver() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;  // a last job may offload another: no thread is started for it any more
  }
  for (OffloadQueue& target : offload_queues_) target.jobs.close();
  for (OffloadQueue& target : offload_queues_) target.thread.join();
  // What is left when no helper could be started, or was left for one that had gone home.
  for (bool again = true; again;) {
    again = false;
    for (OffloadQueue& target : offload_queues_) again |= target.jobs.run_all() != 0;
  }
  for (const auto& threads : owned_) threads->stop();  // no-op for those that detached, as they should
}

int64_t ThreadsDriver::now_ns() const noexcept { return monotonic_ns(); }
uint64_t ThreadsDriver::entropy() noexcept { return system_entropy(); }
uint64_t ThreadsDriver::incarnation() noexcept { return next_incarnation(); }

ThreadsDriver::WorkerThreads* ThreadsDriver::find(const Progress& progress) const noexcept {
  // Usually there is one. Both loads pair with the releases in attach_threads().
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
  threads->progress.store(&progress, std::memory_order_release);  // pairs with the acquire in find()
  // A wake() that does not find the threads yet has published before its fence, so the first turn,
  // which comes after this one, sees it. Pairs with the fence in wake().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return threads;
}

void ThreadsDriver::detach_threads(WorkerThreads& threads) noexcept {
  const std::lock_guard lock(mutex_);
  // Relaxed: a wake() that still finds it rings for nobody, and the mutex orders the next attach_threads().
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
  if (WorkerThreads* const threads = find(progress); threads != nullptr) threads->wake_after_fence();
}

void ThreadsDriver::wake_callbacks(Progress& progress) noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with the fence in attach_threads()
  if (WorkerThreads* const threads = find(progress); threads != nullptr) threads->wake_callbacks();
}

bool ThreadsDriver::drive(const std::function<bool()>&, int64_t) {
  FABRIC_CHECK(false, "drive() is for drivers that are not threaded");
  return false;
}

void ThreadsDriver::offload(std::function<void()> job, uint32_t queue) {
  OffloadQueue& target = offload_queues_[queue];
  target.jobs.push(std::move(job));
  {
    const std::lock_guard lock(mutex_);
    if (target.started || closing_) return;
    Result<Thread> thread = Thread::start({.name = "fabric-helper"}, [&jobs = target.jobs] {
      while (jobs.wait()) jobs.run_all();
    });
    if (thread) {
      target.thread = *std::move(thread);
      target.started = true;
      return;
    }
  }
  target.jobs.run_all();  // without the lock: a job may call offload()
}

}  // namespace fabric::runtime

namespace fabric {

std::unique_ptr<Driver> make_threads_driver() { return std::make_unique<runtime::ThreadsDriver>(); }

}  // namespace fabric

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
class ThreadsDriver::Crew {
 public:
  explicit Crew(Crew* next_) noexcept : next(next_) {}

  Result<void> open() { return bell_.open(); }

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
    bell_.ring();
    spot_.wake();
    worker_.join();
    caller_.join();
  }

  void ring_after_fence() noexcept { bell_.ring_after_fence(); }
  void wake_callbacks() noexcept { spot_.wake(); }

  Crew* const next;
  /// Whose crew it is; null: free. Release when it is set, acquire in find().
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
    bell_.announce();
    if (!stopping() && engine().arm()) {
      const int64_t now_ns = monotonic_ns();
      if (until_ns > now_ns) {
        engine().on_sleep();
        bell_.wait(fds_, until_ns - now_ns);
      }
    }
    bell_.withdraw();
  }

  void call() noexcept {
    while (!stopping()) {
      if (engine().run_callbacks() != 0) continue;
      const ParkingSpot::Ticket ticket = spot_.prepare();
      if (stopping() || engine().run_callbacks() != 0) continue;
      spot_.sleep(ticket, kNeverNs);
    }
  }

  Doorbell bell_;
  ParkingSpot spot_;
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
    leaving_ = true;  // a last job may offload another: no thread is started for it any more
  }
  for (Helper& helper : helpers_) helper.jobs.close();
  for (Helper& helper : helpers_) helper.thread.join();
  // What is left when no helper could be started, or was left for one that had gone home.
  for (bool again = true; again;) {
    again = false;
    for (Helper& helper : helpers_) again |= helper.jobs.run_all() != 0;
  }
  for (const auto& crew : owned_) crew->stop();  // no-op for those that detached, as they should
}

int64_t ThreadsDriver::now_ns() const noexcept { return monotonic_ns(); }
uint64_t ThreadsDriver::entropy() noexcept { return system_entropy(); }
uint64_t ThreadsDriver::incarnation() noexcept { return next_incarnation(); }

ThreadsDriver::Crew* ThreadsDriver::find(const Progress& progress) const noexcept {
  // Usually there is one. Both loads pair with the releases in hire().
  Crew* crew = crews_.load(std::memory_order_acquire);
  while (crew != nullptr && crew->progress.load(std::memory_order_acquire) != &progress) {
    crew = crew->next;
  }
  return crew;
}

Result<ThreadsDriver::Crew*> ThreadsDriver::hire(Progress& progress) {
  const std::lock_guard lock(mutex_);
  // Written under the mutex only, so these loads may be relaxed.
  Crew* const first = crews_.load(std::memory_order_relaxed);
  Crew* crew = first;
  while (crew != nullptr && crew->progress.load(std::memory_order_relaxed) != nullptr) {
    FABRIC_CHECK(crew->progress.load(std::memory_order_relaxed) != &progress, "attached twice");
    crew = crew->next;
  }
  if (crew == nullptr) {
    auto fresh = std::make_unique<Crew>(first);
    if (const Result<void> opened = fresh->open(); !opened) return opened.error();
    crew = owned_.emplace_back(std::move(fresh)).get();
    crews_.store(crew, std::memory_order_release);  // pairs with the acquire in find()
  }
  crew->progress.store(&progress, std::memory_order_release);  // pairs with the acquire in find()
  // A wake() that does not find the crew yet has published before its fence, so the first turn,
  // which comes after this one, sees it. Pairs with the fence in wake().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return crew;
}

void ThreadsDriver::dismiss(Crew& crew) noexcept {
  const std::lock_guard lock(mutex_);
  // Relaxed: a wake() that still finds it rings for nobody, and the mutex orders the next hire().
  crew.progress.store(nullptr, std::memory_order_relaxed);
}

Result<void> ThreadsDriver::attach(Progress& progress, const AttachOptions& options) {
  try {
    const Result<Crew*> crew = hire(progress);
    if (!crew) return crew.error();
    Result<void> started;
    try {
      started = (*crew)->start(options);
    } catch (const std::bad_alloc&) {
      (*crew)->stop();
      started = fail(Errc::kExhausted, "attach");
    }
    if (!started) dismiss(**crew);
    return started;
  } catch (const std::bad_alloc&) {
    return fail(Errc::kExhausted, "attach");
  }
}

void ThreadsDriver::detach(Progress& progress) noexcept {
  Crew* const crew = find(progress);
  if (crew == nullptr) return;
  crew->stop();
  dismiss(*crew);
}

void ThreadsDriver::wake(Progress& progress) noexcept {
  // Pairs with the fence in hire(), and with the one in Doorbell::announce().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (Crew* const crew = find(progress); crew != nullptr) crew->ring_after_fence();
}

void ThreadsDriver::wake_callbacks(Progress& progress) noexcept {
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with the fence in hire()
  if (Crew* const crew = find(progress); crew != nullptr) crew->wake_callbacks();
}

bool ThreadsDriver::drive(const std::function<bool()>&, int64_t) {
  FABRIC_CHECK(false, "drive() is for drivers that are not threaded");
  return false;
}

void ThreadsDriver::offload(std::function<void()> job, uint32_t line) {
  Helper& helper = helpers_[line];
  helper.jobs.push(std::move(job));
  {
    const std::lock_guard lock(mutex_);
    if (helper.started || leaving_) return;
    Result<Thread> thread = Thread::start({.name = "fabric-helper"}, [&jobs = helper.jobs] {
      while (jobs.wait()) jobs.run_all();
    });
    if (thread) {
      helper.thread = *std::move(thread);
      helper.started = true;
      return;
    }
  }
  helper.jobs.run_all();  // without the lock: a job may call offload()
}

}  // namespace fabric::runtime

namespace fabric {

std::unique_ptr<Driver> make_threads_driver() { return std::make_unique<runtime::ThreadsDriver>(); }

}  // namespace fabric

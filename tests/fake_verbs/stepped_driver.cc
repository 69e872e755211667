#include "fake_verbs/stepped_driver.h"

#include <algorithm>
#include <utility>

namespace fabric::test {

namespace {

constexpr int64_t kRoundNs = 500;          // about what a turn takes
constexpr int64_t kKernelCallNs = 20'000;  // so that turns happen while a job is running
// An engine checks its sockets and async events only now and then, and before it sleeps. So a round
// without work proves nothing until the one before it ended with arm().
constexpr uint32_t kIdleRounds = 2;

}  // namespace

SteppedDriver::~SteppedDriver() {
  while (!jobs_.empty()) {
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    job.call();
  }
}

Result<void> SteppedDriver::attach(Progress& progress, const AttachOptions&) {
  engines_.push_back(&progress);
  idle_rounds_ = 0;
  return {};
}

void SteppedDriver::detach(Progress& progress) noexcept {
  // Only marked, because a round may be iterating over them: step() erases it.
  std::replace(engines_.begin(), engines_.end(), &progress, static_cast<Progress*>(nullptr));
}

void SteppedDriver::offload(std::function<void()> job, uint32_t) {
  jobs_.push_back({now_ns_ + kKernelCallNs, std::move(job)});
}

bool SteppedDriver::drive(const std::function<bool()>& done, int64_t deadline_ns) {
  // A wait inside a turn or a callback makes no progress.
  if (inside_) return done();
  idle_rounds_ = 0;
  while (!done()) {
    if (now_ns_ >= deadline_ns || !step(deadline_ns)) return false;
  }
  return true;
}

uint32_t SteppedDriver::turn_one(Progress& progress) noexcept {
  if (inside_) return 0;
  inside_ = true;
  nics_.run_to(now_ns_ += kRoundNs);
  const uint32_t done = progress.turn(now_ns_).done + progress.run_callbacks() + run_due_jobs();
  inside_ = false;
  return done;
}

/// One round. False: nothing will ever happen again, and there is no deadline.
bool SteppedDriver::step(int64_t deadline_ns) {
  inside_ = true;
  std::erase(engines_, nullptr);
  int64_t next_ns = kNeverNs;
  bool busy = nics_.run_to(now_ns_);
  busy = turn_all(next_ns) != 0 || busy;
  busy = run_due_jobs() != 0 || busy;
  busy = busy || !arm_all();
  inside_ = false;
  if (step_hook_) step_hook_();
  idle_rounds_ = busy ? 0 : idle_rounds_ + 1;
  if (idle_rounds_ < kIdleRounds) {
    now_ns_ += kRoundNs;
    return true;
  }
  next_ns = std::min(next_ns, nics_.next_event_ns());
  if (!jobs_.empty()) next_ns = std::min(next_ns, jobs_.front().due_ns);
  if (next_ns == kNeverNs && deadline_ns == kNeverNs) return false;
  now_ns_ = std::max(now_ns_ + kRoundNs, std::min(next_ns, deadline_ns));
  return true;
}

uint32_t SteppedDriver::turn_all(int64_t& next_ns) {
  uint32_t done = 0;
  // By index, because turns and callbacks may attach and detach engines.
  for (size_t i = 0; i < engines_.size(); ++i) {
    if (engines_[i] == nullptr) continue;
    const TurnResult turn = engines_[i]->turn(now_ns_);
    done += turn.done;
    next_ns = std::min(next_ns, turn.keep_polling ? now_ns_ : turn.next_ns);
  }
  for (size_t i = 0; i < engines_.size(); ++i) {
    if (engines_[i] != nullptr) done += engines_[i]->run_callbacks();
  }
  return done;
}

uint32_t SteppedDriver::run_due_jobs() {
  uint32_t ran = 0;
  for (; !jobs_.empty() && jobs_.front().due_ns <= now_ns_; ++ran) {
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    job.call();
  }
  return ran;
}

bool SteppedDriver::arm_all() noexcept {
  bool idle = true;
  for (Progress* engine : engines_) idle = (engine == nullptr || engine->arm()) && idle;
  return idle;
}

}  // namespace fabric::test

#include "runtime/inline.h"

#include <sched.h>

#include <algorithm>
#include <new>

#include <fabric/engine.h>

#include "base/thread.h"

namespace fabric::runtime {

Result<void> InlineDriver::attach(Progress& progress, const AttachOptions& options) {
  if (!opened_) return opened_.error();
  const bool nested = inside();
  if (!nested) enter(kNeverNs);
  Result<void> attached;
  try {
    auto attachment = std::make_unique<Attachment>(Attachment{&progress, options.spin_ns, {}});
    progress.wait_fds(attachment->fds);
    attachments_.push_back(std::move(attachment));
  } catch (const std::bad_alloc&) {
    attached = fail(Errc::kExhausted, "attach");
  }
  idle_since_ns_ = kNeverNs;  // the new engine has work: spin before the next sleep
  if (!nested) leave();
  return attached;
}

void InlineDriver::detach(Progress& progress) noexcept {
  const bool nested = inside();
  if (!nested) enter(kNeverNs);
  for (const auto& attachment : attachments_) {
    if (attachment->progress == &progress) attachment->progress = nullptr;
  }
  has_detached_ = true;
  // Inside a turn attachments_ is being iterated: the next turn_all() sweeps.
  if (!nested) {
    sweep();
    leave();
  }
}

void InlineDriver::sweep() noexcept {
  std::erase_if(attachments_,
                [](const auto& attachment) { return attachment->progress == nullptr; });
  has_detached_ = false;
}

TurnResult InlineDriver::turn_all(int64_t now_ns) noexcept {
  if (has_detached_) sweep();
  TurnResult all;
  // By index: turns and callbacks may attach and detach other engines.
  for (size_t i = 0; i < attachments_.size(); ++i) {
    if (attachments_[i]->progress == nullptr) continue;
    const TurnResult one = attachments_[i]->progress->turn(now_ns);
    all.done += one.done;
    all.next_ns = std::min(all.next_ns, one.next_ns);
    all.keep_polling = all.keep_polling || one.keep_polling;
  }
  all.done += run_callbacks();
  all.done += jobs_.run_all();
  return all;
}

uint32_t InlineDriver::run_callbacks() noexcept {
  uint32_t ran = 0;
  for (size_t i = 0; i < attachments_.size(); ++i) {
    if (attachments_[i]->progress != nullptr) ran += attachments_[i]->progress->run_callbacks();
  }
  return ran;
}

int64_t InlineDriver::spin_ns() const noexcept {
  int64_t longest = 0;
  for (const auto& attachment : attachments_) longest = std::max(longest, attachment->spin_ns);
  return longest;
}

/// Sleeps unless the check after begin_sleep() finds work. True: it slept.
bool InlineDriver::sleep(const std::function<bool()>& done, int64_t until_ns) noexcept {
  waker_.begin_sleep();
  bool may_sleep =
      !done() && !turn_lock_.has_urgent_waiter() && jobs_.empty() && run_callbacks() == 0;
  fds_.clear();
  for (size_t i = 0; may_sleep && i < attachments_.size(); ++i) {
    const Attachment& attachment = *attachments_[i];
    if (attachment.progress == nullptr) continue;
    may_sleep = attachment.progress->arm();
    fds_.insert(fds_.end(), attachment.fds.begin(), attachment.fds.end());
  }
  const int64_t now_ns = monotonic_ns();
  may_sleep = may_sleep && until_ns > now_ns;
  if (may_sleep) {
    for (const auto& attachment : attachments_) {
      if (attachment->progress != nullptr) attachment->progress->on_sleep();
    }
    waker_.wait(fds_, until_ns - now_ns);
  }
  waker_.end_sleep();
  return may_sleep;
}

void InlineDriver::spin() noexcept {
  cpu_relax();
  if (++spins_ < spins_per_yield_) return;
  spins_ = 0;
  const int64_t before_ns = monotonic_ns();
  sched_yield();
  const int64_t away_ns = monotonic_ns() - before_ns;
  const bool shared = away_ns >= kSharedCpuNs;
  spins_per_yield_ = shared ? 1 : std::min(2 * spins_per_yield_, kSpinsPerYieldMax);
  if (away_ns >= kBusyCpuNs) sleeps_at_once_ = kSleepsWhileBusy;
}

bool InlineDriver::drive(const std::function<bool()>& done, int64_t deadline_ns) {
  if (inside()) return done();
  if (!enter(deadline_ns)) return false;
  bool slept = false;
  for (uint32_t polls = 0;; ++polls) {
    const bool met = done();
    const int64_t now_ns = monotonic_ns();
    if (met || now_ns >= deadline_ns) {
      leave();
      return met;
    }
    const TurnResult turn = turn_all(now_ns);
    if (turn.done != 0) {
      idle_since_ns_ = kNeverNs;
    } else if (idle_since_ns_ == kNeverNs) {
      idle_since_ns_ = now_ns;
    }
    // The turn may have done what another thread waits for. After a yield the result of the turn is
    // stale.
    if (turn.done != 0 || std::exchange(slept, false) || turn_lock_.has_urgent_waiter()) {
      if (!yield(deadline_ns)) return false;
    } else if (turn.keep_polling) {
      if (polls % kPollsPerYield == 0) sched_yield();
    } else if (sleeps_at_once_ == 0 && now_ns - idle_since_ns_ < spin_ns()) {
      spin();
    } else {
      if (sleeps_at_once_ > 0) --sleeps_at_once_;
      slept = sleep(done, std::min(turn.next_ns, deadline_ns));
    }
  }
}

uint32_t InlineDriver::turn_one(Progress& progress) noexcept {
  if (inside()) return 0;
  enter(kNeverNs);
  uint32_t done = progress.turn(monotonic_ns()).done;
  done += progress.run_callbacks();
  done += jobs_.run_all();
  leave();
  return done;
}

uint32_t InlineDriver::turn() noexcept {
  if (inside()) return 0;
  enter(kNeverNs);
  const uint32_t done = turn_all(monotonic_ns()).done;
  leave();
  return done;
}

}  // namespace fabric::runtime

namespace fabric {

struct InlineRuntime::Impl {
  runtime::InlineDriver driver;
};

InlineRuntime::InlineRuntime() : impl_(std::make_unique<Impl>()) {}
InlineRuntime::~InlineRuntime() = default;
uint32_t InlineRuntime::turn() noexcept { return impl_->driver.turn(); }
Driver& InlineRuntime::driver() noexcept { return impl_->driver; }

}  // namespace fabric

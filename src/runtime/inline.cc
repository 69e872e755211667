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
    auto seat = std::make_unique<Seat>(Seat{&progress, options.spin_ns, {}});
    progress.wait_fds(seat->fds);
    seats_.push_back(std::move(seat));
  } catch (const std::bad_alloc&) {
    attached = fail(Errc::kExhausted, "attach");
  }
  idle_since_ns_ = kNeverNs;  // the newcomer has work: spin before the next sleep
  if (!nested) leave();
  return attached;
}

void InlineDriver::detach(Progress& progress) noexcept {
  const bool nested = inside();
  if (!nested) enter(kNeverNs);
  for (const auto& seat : seats_) {
    if (seat->progress == &progress) seat->progress = nullptr;
  }
  empty_seats_ = true;
  // Inside a turn the seats are being walked through: turn_all() sweeps.
  if (!nested) {
    sweep();
    leave();
  }
}

void InlineDriver::sweep() noexcept {
  std::erase_if(seats_, [](const auto& seat) { return seat->progress == nullptr; });
  empty_seats_ = false;
}

TurnResult InlineDriver::turn_all(int64_t now_ns) noexcept {
  if (empty_seats_) sweep();
  TurnResult all;
  // By index: turns and callbacks may attach and detach other engines.
  for (size_t i = 0; i < seats_.size(); ++i) {
    if (seats_[i]->progress == nullptr) continue;
    const TurnResult one = seats_[i]->progress->turn(now_ns);
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
  for (size_t i = 0; i < seats_.size(); ++i) {
    if (seats_[i]->progress != nullptr) ran += seats_[i]->progress->run_callbacks();
  }
  return ran;
}

int64_t InlineDriver::spin_ns() const noexcept {
  int64_t longest = 0;
  for (const auto& seat : seats_) longest = std::max(longest, seat->spin_ns);
  return longest;
}

/// Sleeps unless the second look finds something. True: it slept.
bool InlineDriver::sleep(const std::function<bool()>& done, int64_t until_ns) noexcept {
  bell_.announce();
  bool rest = !done() && !gate_.wanted() && jobs_.empty() && run_callbacks() == 0;
  fds_.clear();
  for (size_t i = 0; rest && i < seats_.size(); ++i) {
    const Seat& seat = *seats_[i];
    if (seat.progress == nullptr) continue;
    rest = seat.progress->arm();
    fds_.insert(fds_.end(), seat.fds.begin(), seat.fds.end());
  }
  const int64_t now_ns = monotonic_ns();
  rest = rest && until_ns > now_ns;
  if (rest) {
    for (const auto& seat : seats_) {
      if (seat->progress != nullptr) seat->progress->on_sleep();
    }
    bell_.wait(fds_, until_ns - now_ns);
  }
  bell_.withdraw();
  return rest;
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
    // What happened may be what another thread waits for. After the others were here the result of
    // the turn is old.
    if (turn.done != 0 || std::exchange(slept, false) || gate_.wanted()) {
      if (!pass(deadline_ns)) return false;
    } else if (turn.keep_polling) {
      if (polls % kPollsPerYield == 0) sched_yield();
    } else if (now_ns - idle_since_ns_ < spin_ns()) {
      cpu_relax();
    } else {
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

#include "providers/sim/driver.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "providers/sim/world.h"

namespace fabric::sim {
namespace {

// An engine that watches memory cannot be woken; this is how long it may overlook a change.
constexpr int64_t kPollNs = 1'000;
// An engine that always finds something to do at one instant would stop the clock. Thousands of
// turns are a large backlog; more is a livelock, and time moves on under it.
constexpr uint32_t kRoundsPerStep = 64;
constexpr uint32_t kStepsPerInstant = 64;

/// Marks a stretch of code, also when it is left by an exception of the user's.
class Inside {
 public:
  explicit Inside(bool& mark) noexcept : mark_(mark) { mark_ = true; }
  ~Inside() { mark_ = false; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  bool& mark_;
};

}  // namespace

int64_t WorldDriver::now_ns() const noexcept { return wire_.now_ns(); }

uint64_t WorldDriver::incarnation() noexcept {
  last_incarnation_ = std::max(last_incarnation_ + 1, static_cast<uint64_t>(now_ns()));
  return last_incarnation_;
}

Result<void> WorldDriver::attach(Progress& progress, const AttachOptions&) {
  FABRIC_CHECK(!seat_of_.contains(&progress), "attached twice");
  auto seat = std::find_if(seats_.begin(), seats_.end(),
                           [](const Seat& s) { return s.progress == nullptr; });
  if (seat == seats_.end()) seat = seats_.insert(seat, Seat{});
  *seat = Seat{};
  seat->progress = &progress;
  seat->runnable = true;
  seat_of_[&progress] = static_cast<uint32_t>(seat - seats_.begin());
  return {};
}

void WorldDriver::detach(Progress& progress) noexcept {
  // Its jobs still reach into the engine, so none may be left behind.
  run_jobs();
  const auto found = seat_of_.find(&progress);
  if (found == seat_of_.end()) return;
  seats_[found->second] = Seat{};
  seat_of_.erase(found);
}

void WorldDriver::wake(Progress& progress) noexcept {
  const auto found = seat_of_.find(&progress);
  if (found != seat_of_.end()) seats_[found->second].runnable = true;
}

void WorldDriver::wake_callbacks(Progress& progress) noexcept {
  const auto found = seat_of_.find(&progress);
  if (found != seat_of_.end()) seats_[found->second].callbacks = true;
}

void WorldDriver::offload(std::function<void()> job) {
  jobs_.push_back(std::move(job));
  // Whoever offloads may hold a lock that the job needs, so jobs wait for the next step. With no
  // engine left there may be none, and nobody's lock either.
  if (seat_of_.empty()) run_jobs();
}

uint32_t WorldDriver::turn_one(Progress& progress) noexcept {
  const auto found = seat_of_.find(&progress);
  if (found != seat_of_.end() && seats_[found->second].stopped) return 0;
  return Driver::turn_one(progress);
}

bool WorldDriver::drive(const std::function<bool()>& done, int64_t deadline_ns) {
  // A turn inside a turn would find the engine half changed. The core refuses such waits itself.
  if (in_engine_) return done();
  if (wire_.next_due_ns() <= now_ns()) advance(now_ns());  // a fault that was asked for now
  uint32_t steps_here = 0;
  while (true) {
    step();
    if (done()) return true;
    if (busy() && ++steps_here < kStepsPerInstant) continue;
    steps_here = 0;
    const int64_t next = busy() ? now_ns() + 1 : next_due_ns();
    // Nothing is under way and nobody has a timer: this world can never change again.
    if (next == kNeverNs && deadline_ns == kNeverNs) return false;
    if (next > deadline_ns) {
      advance(std::max(deadline_ns, now_ns()));
      return done();
    }
    advance(next);
  }
}

/// Everything that is due at this instant.
void WorldDriver::step() {
  for (uint32_t round = 0; round < kRoundsPerStep; ++round) {
    const bool jobs = run_jobs();
    const bool turns = turn_round();
    if (!jobs && !turns) break;
  }
  callback_round();
  run_actors();
}

bool WorldDriver::turn_round() {
  order_.clear();
  const int64_t now = now_ns();
  for (uint32_t i = 0; i < seats_.size(); ++i) {
    if (seats_[i].may_turn(now)) order_.push_back(i);
  }
  // Real hosts do not take turns in a fixed order either, and a bug may hide behind one.
  for (size_t left = order_.size(); left > 1; --left) {
    std::swap(order_[left - 1], order_[rng_.below(left)]);
  }
  for (const uint32_t seat : order_) take_turn(seat);
  return !order_.empty();
}

void WorldDriver::take_turn(uint32_t seat) {
  Progress* const progress = seats_[seat].progress;
  if (progress == nullptr) return;
  seats_[seat].runnable = false;  // before the turn, so that a wake during it is kept
  const int64_t now = now_ns();
  TurnResult result;
  {
    const Inside inside(in_engine_);
    result = progress->turn(now);
  }
  Seat& after = seats_[seat];
  after.not_before_ns = now + after.slow_ns;
  after.due_ns = result.keep_polling ? std::min(result.next_ns, now + kPollNs) : result.next_ns;
  if (result.done > 0 || after.due_ns <= now) after.runnable = true;
}

void WorldDriver::callback_round() {
  for (uint32_t i = 0; i < seats_.size(); ++i) {
    if (!seats_[i].may_call_back()) continue;
    seats_[i].callbacks = false;
    const Inside inside(in_engine_);
    // There may be more than it runs at once.
    if (seats_[i].progress->run_callbacks() > 0) seats_[i].callbacks = true;
  }
}

bool WorldDriver::run_jobs() {
  if (in_jobs_ || jobs_.empty()) return false;
  const Inside inside(in_jobs_);
  // A job may offload another one, which then runs in the same loop.
  for (size_t i = 0; i < jobs_.size(); ++i) std::exchange(jobs_[i], nullptr)();
  jobs_.clear();
  return true;
}

void WorldDriver::run_actors() {
  if (in_actors_) return;  // an actor may wait, and then the world runs without the actors
  const Inside inside(in_actors_);
  for (size_t i = 0; i < actors_.size(); ++i) {
    const auto actor = actors_[i];  // a copy: it may add another one
    actor();
  }
}

bool WorldDriver::busy() const noexcept {
  const int64_t now = now_ns();
  return !jobs_.empty() || std::any_of(seats_.begin(), seats_.end(), [now](const Seat& seat) {
    return seat.may_turn(now) || seat.may_call_back();
  });
}

int64_t WorldDriver::next_due_ns() const noexcept {
  int64_t next = wire_.next_due_ns();
  for (const Seat& seat : seats_) {
    if (seat.progress == nullptr || seat.stopped) continue;
    const int64_t due = seat.runnable ? 0 : seat.due_ns;
    next = std::min(next, std::max(due, seat.not_before_ns));
  }
  return next;
}

void WorldDriver::advance(int64_t to_ns) {
  std::vector<Fault> faults;
  do {
    wire_.run_to(to_ns);
    faults = wire_.take_for_engines();
    for (const Fault& fault : faults) apply(fault);
  } while (!faults.empty());
  for (Seat& seat : seats_) {
    if (seat.progress != nullptr && seat.due_ns <= to_ns) seat.runnable = true;
  }
}

/// What happens to the processes of a node. One that starts later is another process.
void WorldDriver::apply(const Fault& fault) {
  for (Progress* const engine : wire_.engines_of(fault.node)) {
    const auto found = seat_of_.find(engine);
    if (found == seat_of_.end()) continue;  // it is closing
    Seat& seat = seats_[found->second];
    switch (fault.kind) {
      case Fault::Kind::kCrash:
        engine->vanish();  // which gives up its seat
        break;
      case Fault::Kind::kStop:
        seat.stopped = true;
        break;
      case Fault::Kind::kContinue:
        seat.stopped = false;
        seat.runnable = seat.callbacks = true;
        break;
      default:
        seat.slow_ns = fault.time.count();
        seat.not_before_ns = 0;
        break;
    }
  }
}

}  // namespace fabric::sim

#include "providers/sim/driver.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "providers/sim/world.h"

namespace fabric::sim {
namespace {

// An engine with keep_polling cannot be woken; it gets a turn at this interval.
constexpr int64_t kPollNs = 1'000;
// An engine that always finds work at one instant would stop the clock. Thousands of turns are a
// large backlog; more is a livelock, and the clock advances regardless.
constexpr uint32_t kRoundsPerStep = 64;
constexpr uint32_t kStepsPerInstant = 64;

/// Sets a flag for a scope, also when the user's code throws.
class ScopedFlag {
 public:
  explicit ScopedFlag(bool& mark) noexcept : mark_(mark) { mark_ = true; }
  ~ScopedFlag() { mark_ = false; }
  ScopedFlag(const ScopedFlag&) = delete;
  ScopedFlag& operator=(const ScopedFlag&) = delete;

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
  FABRIC_CHECK(!slot_of_.contains(&progress), "attached twice");
  auto slot = std::find_if(slots_.begin(), slots_.end(),
                           [](const EngineSlot& s) { return s.progress == nullptr; });
  if (slot == slots_.end()) slot = slots_.insert(slot, EngineSlot{});
  slot->progress = &progress;
  const auto number = static_cast<uint32_t>(slot - slots_.begin());
  slot_of_[&progress] = number;
  set_runnable(number);
  return {};
}

void WorldDriver::detach(Progress& progress) noexcept {
  // Offloaded jobs refer to the engine, so all of them must run before it is detached.
  run_jobs();
  const auto found = slot_of_.find(&progress);
  if (found == slot_of_.end()) return;
  std::erase(runnable_, found->second);
  std::erase(calling_, found->second);
  slots_[found->second] = EngineSlot{};
  slot_of_.erase(found);
}

void WorldDriver::wake(Progress& progress) noexcept {
  const auto found = slot_of_.find(&progress);
  if (found != slot_of_.end()) set_runnable(found->second);
}

void WorldDriver::wake_callbacks(Progress& progress) noexcept {
  const auto found = slot_of_.find(&progress);
  if (found != slot_of_.end()) set_callbacks(found->second);
}

void WorldDriver::offload(std::function<void()> job, uint32_t) {
  jobs_.push_back(std::move(job));
  // The caller may hold a lock that the job needs, so jobs wait for the next step. Without an
  // attached engine there may be no next step, and no lock is held.
  if (slot_of_.empty()) run_jobs();
}

uint32_t WorldDriver::turn_one(Progress& progress) noexcept {
  const auto found = slot_of_.find(&progress);
  if (found != slot_of_.end() && slots_[found->second].stopped) return 0;
  return Driver::turn_one(progress);
}

bool WorldDriver::drive(const std::function<bool()>& done, int64_t deadline_ns) {
  // A nested turn would see the engine in an inconsistent state. The core refuses such waits
  // itself.
  if (in_engine_) return done();
  if (wire_.next_due_ns() <= now_ns()) advance(now_ns());  // a fault that is planned for now
  uint32_t steps_here = 0;
  while (true) {
    step();
    if (done()) return true;
    if (busy() && ++steps_here < kStepsPerInstant) continue;
    steps_here = 0;
    const int64_t next = busy() ? now_ns() + 1 : next_due_ns();
    // No event is queued and no engine has a timer: this world can never change again.
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
    const bool turns = run_due_turns();
    if (!jobs && !turns) break;
  }
  run_due_callbacks();
  run_step_hooks();
}

bool WorldDriver::run_due_turns() {
  order_.clear();
  const int64_t now = now_ns();
  std::erase_if(runnable_, [&](uint32_t slot) {
    if (!slots_[slot].may_turn(now)) return false;
    order_.push_back(slot);
    return true;
  });
  // Shuffled: real hosts run in no fixed order either, and a fixed order may hide a bug.
  for (size_t left = order_.size(); left > 1; --left) {
    std::swap(order_[left - 1], order_[rng_.below(left)]);
  }
  for (const uint32_t slot : order_) take_turn(slot);
  return !order_.empty();
}

void WorldDriver::take_turn(uint32_t slot) {
  Progress* const progress = slots_[slot].progress;
  if (progress == nullptr) return;
  slots_[slot].runnable = false;  // before the turn, so that a wake() during it is not lost
  const int64_t now = now_ns();
  TurnResult result;
  {
    const ScopedFlag inside(in_engine_);
    result = progress->turn(now);
  }
  EngineSlot& after = slots_[slot];
  after.not_before_ns = now + after.slow_ns;
  after.due_ns = result.keep_polling ? std::min(result.next_ns, now + kPollNs) : result.next_ns;
  if (result.done > 0 || after.due_ns <= now) set_runnable(slot);
  set_timer(slot);
}

void WorldDriver::set_runnable(uint32_t slot) {
  if (std::exchange(slots_[slot].runnable, true)) return;
  runnable_.push_back(slot);
}

void WorldDriver::set_callbacks(uint32_t slot) {
  if (std::exchange(slots_[slot].callbacks, true)) return;
  calling_.push_back(slot);
}

/// A slot has one valid entry in timers_, its earliest; if that expires too early it is set again.
/// So a turn that does not change the time of the next one costs nothing here.
void WorldDriver::set_timer(uint32_t slot) {
  const int64_t when = slots_[slot].next_turn_ns();
  if (when >= slots_[slot].timer_ns) return;
  slots_[slot].timer_ns = when;
  timers_.push({when, slot});
}

/// Removes the first timer, and sets it again if it expired too early. True when it is due.
bool WorldDriver::pop_timer() {
  const SlotTimer first = timers_.top();
  timers_.pop();
  EngineSlot& slot = slots_[first.slot];
  if (slot.timer_ns != first.when_ns) return false;  // stale
  slot.timer_ns = kNeverNs;
  if (slot.next_turn_ns() == first.when_ns) return true;
  set_timer(first.slot);
  return false;
}

void WorldDriver::run_due_callbacks() {
  if (calling_.empty()) return;
  called_.clear();
  std::erase_if(calling_, [&](uint32_t slot) {
    if (!slots_[slot].may_call_back()) return false;
    called_.push_back(slot);
    return true;
  });
  std::sort(called_.begin(), called_.end());  // in the order of attach()
  for (const uint32_t slot : called_) {
    slots_[slot].callbacks = false;
    const ScopedFlag inside(in_engine_);
    // One call may not run all of them.
    if (slots_[slot].progress->run_callbacks() > 0) set_callbacks(slot);
  }
}

bool WorldDriver::run_jobs() {
  if (in_jobs_ || jobs_.empty()) return false;
  const ScopedFlag inside(in_jobs_);
  // A job may offload another, which then runs in the same loop.
  for (size_t i = 0; i < jobs_.size(); ++i) std::exchange(jobs_[i], nullptr)();
  jobs_.clear();
  return true;
}

void WorldDriver::run_step_hooks() {
  if (in_step_hooks_ || step_hooks.empty()) return;
  const ScopedFlag inside(in_step_hooks_);
  step_hooks.call();
}

bool WorldDriver::busy() const noexcept {
  const int64_t now = now_ns();
  const auto turn = [&](uint32_t slot) { return slots_[slot].may_turn(now); };
  const auto call = [&](uint32_t slot) { return slots_[slot].may_call_back(); };
  return !jobs_.empty() || std::any_of(runnable_.begin(), runnable_.end(), turn) ||
         std::any_of(calling_.begin(), calling_.end(), call);
}

int64_t WorldDriver::next_due_ns() noexcept {
  int64_t next = wire_.next_due_ns();
  for (const uint32_t slot : runnable_) {
    if (!slots_[slot].stopped) next = std::min(next, slots_[slot].not_before_ns);
  }
  while (!timers_.empty() && timers_.top().when_ns < next) {
    const SlotTimer first = timers_.top();
    if (slots_[first.slot].timer_ns == first.when_ns &&
        slots_[first.slot].next_turn_ns() == first.when_ns) {
      return first.when_ns;
    }
    pop_timer();
  }
  return next;
}

void WorldDriver::advance(int64_t to_ns) {
  while (!wire_.run_to(to_ns)) {
    for (const Fault& fault : wire_.take_for_engines()) apply(fault);
  }
  while (!timers_.empty() && timers_.top().when_ns <= to_ns) {
    const uint32_t slot = timers_.top().slot;
    if (pop_timer()) set_runnable(slot);
  }
}

/// Applies a fault to the processes of a node; engines that are opened later are not affected.
void WorldDriver::apply(const Fault& fault) {
  for (Progress* const engine : wire_.engines_of(fault.node)) {
    const auto found = slot_of_.find(engine);
    if (found == slot_of_.end()) continue;  // it is closing
    EngineSlot& slot = slots_[found->second];
    switch (fault.kind) {
      case Fault::Kind::kCrash:
        engine->simulate_crash();  // detaches it
        break;
      case Fault::Kind::kStop:
        slot.stopped = true;
        break;
      case Fault::Kind::kContinue:
        slot.stopped = false;
        set_runnable(found->second);
        set_callbacks(found->second);
        break;
      default:
        slot.slow_ns = fault.time.count();
        slot.not_before_ns = 0;
        set_timer(found->second);
        break;
    }
  }
}

}  // namespace fabric::sim

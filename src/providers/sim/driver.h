#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <unordered_map>
#include <vector>

#include <fabric/sim.h>

#include "base/driver.h"
#include "base/rng.h"
#include "providers/sim/hooks.h"

namespace fabric::sim {

class Wire;

/// The runtime of a world with virtual time. drive() runs turns, callbacks, offloaded jobs and the
/// clock on the thread that waits; the clock advances only when no engine has work at this instant.
///
/// Threads: one at a time, see sim::World.
class WorldDriver final : public Driver {
 public:
  WorldDriver(Wire& wire, Rng rng) noexcept : wire_(wire), rng_(rng) {}

  int64_t now_ns() const noexcept override;
  uint64_t entropy() noexcept override { return rng_.next(); }
  uint64_t incarnation() noexcept override;
  Result<void> attach(Progress& progress, const AttachOptions& options) override;
  void detach(Progress& progress) noexcept override;
  void wake(Progress& progress) noexcept override;
  void wake_callbacks(Progress& progress) noexcept override;
  bool threaded() const noexcept override { return false; }
  bool virtual_time() const noexcept override { return true; }
  bool drive(const std::function<bool()>& done, int64_t deadline_ns) override;
  uint32_t turn_one(Progress& progress) noexcept override;
  void offload(std::function<void()> job, uint32_t queue = 0) override;

  /// Called in every step; a function may wait, and then the world runs without them.
  HookList<> step_hooks{};

 private:
  /// One attached engine.
  struct EngineSlot {
    Progress* progress = nullptr;  // null: free
    bool runnable = false;         // it is in runnable_, or in order_ of the current round
    bool callbacks = false;        // it is in calling_
    int64_t due_ns = kNeverNs;
    int64_t timer_ns = kNeverNs;  // of its valid entry in timers_; other entries are stale
    bool stopped = false;         // Fault::kStop
    int64_t slow_ns = 0;          // Fault::kSlow: the least time between turns
    int64_t not_before_ns = 0;

    bool may_turn(int64_t now_ns) const noexcept {
      return progress != nullptr && runnable && !stopped && now_ns >= not_before_ns;
    }
    bool may_call_back() const noexcept { return progress != nullptr && callbacks && !stopped; }
    int64_t next_turn_ns() const noexcept {
      return progress == nullptr || stopped ? kNeverNs : std::max(due_ns, not_before_ns);
    }
  };
  struct SlotTimer {
    int64_t when_ns = 0;
    uint32_t slot = 0;
    bool operator>(const SlotTimer& other) const noexcept {
      return when_ns != other.when_ns ? when_ns > other.when_ns : slot > other.slot;
    }
  };

  void step();
  bool run_due_turns();
  void take_turn(uint32_t slot);
  void run_due_callbacks();
  bool run_jobs();
  void run_step_hooks();
  bool busy() const noexcept;
  int64_t next_due_ns() noexcept;
  void set_runnable(uint32_t slot);
  void set_callbacks(uint32_t slot);
  void set_timer(uint32_t slot);
  bool pop_timer();
  void advance(int64_t to_ns);
  void apply(const Fault& fault);

  Wire& wire_;
  Rng rng_;
  uint64_t last_incarnation_ = 0;
  std::vector<EngineSlot> slots_;  // in the order of attach(): deterministic, unlike addresses
  std::unordered_map<const Progress*, uint32_t> slot_of_;  // for lookup only, never iterated
  // A step visits only these: most engines of a large world are idle.
  std::vector<uint32_t> runnable_, calling_;
  std::priority_queue<SlotTimer, std::vector<SlotTimer>, std::greater<>> timers_;
  std::vector<uint32_t> order_, called_;  // slots whose turn or callbacks are due in this round
  std::vector<std::function<void()>> jobs_;
  bool in_engine_ = false;  // a turn or a callback is running
  bool in_step_hooks_ = false;
  bool in_jobs_ = false;
};

}  // namespace fabric::sim

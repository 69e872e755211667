#include "swarm/swarm.h"

#include <algorithm>

#include "swarm/runner.h"

namespace fabric::swarm {

RunResult run(const Plan& plan) {
  Runner runner(plan);
  runner.run();
  return {.violation = runner.violation().first(),
          .coverage = runner.coverage(),
          .trace_hash = runner.trace_hash(),
          .operations = runner.ops_completed(),
          .bytes_checked = runner.bytes_checked(),
          .virtual_time = runner.now()};
}

namespace {

/// Delta debugging: runs reduced plans and keeps each that violates the same invariant.
class Shrinker {
 public:
  Shrinker(const Plan& plan, const Violation& violation, const RunFunction& run_plan,
           uint32_t tries_max)
      : best_{plan, violation, 0}, run_(run_plan), tries_max_(tries_max) {}

  Shrunk run() {
    for (bool shorter = true; shorter && left();) {
      shorter = false;
      shorter |= thin(&Plan::actions);
      shorter |= thin(&Plan::faults);
      shorter |= try_it([](Plan& s) { s.world.drop_control = 0; });
      shorter |= try_it([](Plan& s) { s.world.duplicate_control = 0; });
      shorter |= try_it([](Plan& s) { s.world.reorder_control = 0; });
    }
    return best_;
  }

 private:
  bool left() const { return best_.tries < tries_max_; }

  bool keep(const Plan& plan) {
    if (!left()) return false;
    ++best_.tries;
    const RunResult result = run_(plan);
    if (!result.violation || result.violation->invariant != best_.violation.invariant) {
      return false;
    }
    best_.plan = plan;
    best_.violation = *result.violation;
    return true;
  }

  template <class Change>
  bool try_it(Change change) {
    Plan plan = best_.plan;
    change(plan);
    const auto chance = [](const Plan& s) {
      return s.world.drop_control + s.world.duplicate_control + s.world.reorder_control;
    };
    return chance(plan) < chance(best_.plan) && keep(plan);
  }

  /// Removes halves, then quarters, down to single items, starting at the end: the last items run
  /// after the violation and go first.
  template <class T>
  bool thin(std::vector<T> Plan::*list) {
    bool shorter = false;
    for (size_t size = std::max<size_t>(1, (best_.plan.*list).size() / 2);; size /= 2) {
      size_t end = (best_.plan.*list).size();
      while (end > 0 && left()) {
        const size_t begin = end > size ? end - size : 0;
        Plan plan = best_.plan;
        auto& items = plan.*list;
        items.erase(items.begin() + static_cast<ptrdiff_t>(begin),
                    items.begin() + static_cast<ptrdiff_t>(end));
        shorter |= keep(plan);
        end = begin;
      }
      if (size <= 1) return shorter;
    }
  }

  Shrunk best_;
  const RunFunction& run_;
  uint32_t tries_max_;
};

}  // namespace

Shrunk shrink(const Plan& plan, const Violation& violation, const RunFunction& run_plan,
              uint32_t tries_max) {
  return Shrinker(plan, violation, run_plan, tries_max).run();
}

}  // namespace fabric::swarm

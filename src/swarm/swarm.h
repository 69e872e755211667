#pragma once

#include <cstdint>
#include <functional>

#include "swarm/plan.h"
#include "swarm/run_result.h"

// Randomized simulation testing: a seed gives a Plan, the Plan runs on the simulator with faults,
// and the library's promises are checked throughout.

namespace fabric::swarm {

/// Runs a plan to its end or to the first violation. Deterministic: one plan, one result.
RunResult run(const Plan& plan);

/// A reduced plan that still violates the same promise.
struct Shrunk {
  Plan plan{};
  Violation violation{};
  uint32_t tries = 0;
};

using RunFunction = std::function<RunResult(const Plan&)>;

/// Removes actions and faults that the violation does not need, by running reduced plans: at most
/// `tries_max`. A reduction is kept if `run_plan` violates the same invariant.
Shrunk shrink(const Plan& plan, const Violation& violation, const RunFunction& run_plan = run,
              uint32_t tries_max = 400);

}  // namespace fabric::swarm

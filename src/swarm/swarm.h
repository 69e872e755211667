#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "swarm/coverage.h"
#include "swarm/plan.h"
#include "swarm/run_result.h"

// Random worlds in which everything happens that can, and the promises are watched.

namespace fabric::swarm {

struct RunResult {
  std::optional<Violation> violation{};
  Coverage coverage{};
  uint64_t trace_hash = 0;
  uint64_t operations = 0;  ///< that ended
  uint64_t bytes_checked = 0;
  Nanos virtual_time{};
};

RunResult run(const Plan& plan);

struct Shrunk {
  Plan plan{};
  Violation violation{};
  uint32_t tries = 0;
};

using RunFunction = std::function<RunResult(const Plan&)>;

/// Takes out what is not needed to break the same promise. Plays at most `tries_max` plans.
Shrunk shrink(const Plan& plan, const Violation& violation, const RunFunction& run_plan = run,
              uint32_t tries_max = 400);

}  // namespace fabric::swarm

#pragma once

#include <map>
#include <string>
#include <vector>

#include "supervisor.h"
#include "workload.h"

namespace demo {

struct Options {
  double seconds = 15;
  uint32_t lanes = 2;
  transformer::Attention attention = transformer::Attention::kGrouped;
  std::string report = "build/demo/report.html";
};

/// What happened, for the final checks and the report.
struct Outcome {
  Workload workload{};
  std::string network{};
  std::map<uint32_t, std::vector<uint32_t>> expected{};  ///< tokens of one process, by prompt
  std::string killed{}, stopped{}, joined{}, drained{};
  int64_t killed_ns = 0, stopped_ns = 0, continued_ns = 0, joined_ns = 0, drained_ns = 0;
  int64_t left_ns = 0;
  bool clean_exit = false;                    ///< every process that was not killed exited with 0
  std::vector<std::string> leftover_files{};  ///< in /dev/shm after the run and not before
};

/// Runs the scenario and the checks and writes the report; returns the exit code.
int run_demo(const Options& options);

/// One line of the result.
struct Check {
  bool holds = false;
  std::string text{};
};
/// What must hold, with what was measured. Times and rates are not judged: they depend on the
/// machine.
std::vector<Check> final_checks(Supervisor& supervisor, const Outcome& outcome);

}  // namespace demo

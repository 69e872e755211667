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
  /// Not 0: instead of the scenario, this many requests while processes of every role are killed
  /// and stopped at random.
  uint64_t requests = 0;
  uint64_t chaos_seed = 0;
};

/// What happened, for the final checks and the report.
struct Outcome {
  Workload workload{};
  std::string network{};
  std::map<uint32_t, std::vector<uint32_t>> expected{};  ///< tokens of one process, by prompt
  std::string killed{}, stopped{}, joined{}, drained{};
  int64_t killed_ns = 0, stopped_ns = 0, continued_ns = 0, joined_ns = 0, drained_ns = 0;
  int64_t left_ns = 0;
  uint64_t wanted = 0;                        ///< requests, in a run with chaos
  std::map<std::string, uint64_t> chaos{};    ///< how often, by "killed: router"
  bool clean_exit = false;                    ///< every process that was not killed exited with 0
  std::vector<std::string> leftover_files{};  ///< in /dev/shm after the run and not before
};

/// Runs the scenario and the checks and writes the report; returns the exit code.
int run_demo(const Options& options);

/// Serves Options::requests requests while the faults that the seed says happen to the processes.
/// False: an expected event did not occur.
bool run_chaos(const Options& options, Supervisor& supervisor, Outcome& outcome);
/// Waits for the last answer, then ends the processes: decoders first, because prefillers serve
/// them.
bool end_processes(Supervisor& supervisor, Outcome& outcome);

/// One line of the result.
struct Check {
  bool holds = false;
  std::string text{};
};
/// What must hold, with what was measured. Times and rates are not judged: they depend on the
/// machine.
std::vector<Check> final_checks(Supervisor& supervisor, const Outcome& outcome);
std::vector<Check> chaos_checks(Supervisor& supervisor, const Outcome& outcome);

}  // namespace demo

#pragma once

#include "supervisor.h"

namespace demo {

/// What happened, for the final checks: times and spans by now_ns().
struct Timeline {
  struct Span {
    int64_t from_ns = 0, to_ns = 0;
  };
  // One receiver is killed in the middle of a request.
  uint32_t killed = 0, survivor = 0;  ///< survivor: the other receiver
  int64_t kill_ns = 0;
  Span before_kill{}, after_kill{}, after_join{};
  // Another one joins.
  uint32_t joined = 0;
  int64_t join_ns = 0;
  // The survivor of the kill is stopped, and continues.
  uint32_t stopped = 0;
  int64_t stop_ns = 0, stalled_ns = 0, continue_ns = 0, back_ns = 0;
  Span before_stop{}, while_stopped{};
  // With pauses between prompts and layers, then without.
  Span paced{}, full_speed{};
  bool clean_exit = false;                    ///< every process that was not killed exited with 0
  std::vector<std::string> leftover_files{};  ///< in /dev/shm after the run and not before
};

/// Runs the scenario and the checks; returns the exit code.
int run_demo(const Options& options);

/// Prints the report, with a check for each line. True: all passed.
bool run_final_checks(DemoSupervisor& supervisor, const Timeline& timeline);

}  // namespace demo

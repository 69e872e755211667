#pragma once

#include "supervisor.h"

namespace demo {

/// What happened, for the run_final_checks: moments and stretches on the clock of the host.
struct Timeline {
  struct Span {
    int64_t from_ns = 0, to_ns = 0;
  };
  // One receiver is killed in the middle of a request.
  uint32_t killed = 0, survivor = 0;  ///< survivor: the receiver that goes on
  int64_t kill_ns = 0;
  Span before_kill{}, after_kill{}, after_join{};
  // Another one takes its place.
  uint32_t joined = 0;
  int64_t join_ns = 0;
  // The survivor of the kill is stopped, and continues.
  uint32_t stopped = 0;
  int64_t stop_ns = 0, stalled_ns = 0, continue_ns = 0, back_ns = 0;
  Span before_stop{}, while_stopped{};
  // No pause between prompts and layers; before it there was one.
  Span paced{}, full_speed{};
  bool clean_exit = false;            ///< every process that was not killed ended by itself, with 0
  std::vector<std::string> leftover_files{};  ///< in /dev/shm afterwards and not before
};

/// Plays everything; returns the exit code.
int run_demo(const Options& options);

/// Prints what happened, each line checked. True: everything holds.
bool run_final_checks(DemoSupervisor& supervisor, const Timeline& timeline);

}  // namespace demo

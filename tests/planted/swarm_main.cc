#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "swarm/swarm.h"

// planted_swarm FIRST LAST: runs the plans of these seeds, each in a process of its own, so that a
// crash or a hang affects one seed only. Prints one line for each:
//
//     SEED ok | SEED violated PROMISE | SEED crashed SIGNAL | SEED hangs

namespace fabric::swarm {
namespace {

constexpr time_t kSecondsMax = 20;  // a run takes a fraction of one

/// In the child: runs the plan and writes the outcome to the pipe.
[[noreturn]] void run_and_report(uint64_t seed, int out) {
  // The messages of a crashing library are not part of the output.
  if (std::freopen("/dev/null", "w", stderr) == nullptr) std::_Exit(1);
  const itimerval limit{.it_interval = {}, .it_value = {kSecondsMax, 0}};
  setitimer(ITIMER_REAL, &limit, nullptr);  // SIGALRM
  prctl(PR_SET_PDEATHSIG, SIGKILL);         // a hanging child does not outlive its parent
  const RunResult result = run(draw_plan(seed));
  const std::string text =
      result.violation ? "violated " + result.violation->invariant : std::string("ok");
  const bool written = write(out, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  std::_Exit(written ? 0 : 1);
}

std::string run_in_child(uint64_t seed) {
  int pipe_fds[2];
  if (pipe(pipe_fds) != 0) std::abort();
  const pid_t child = fork();
  if (child < 0) std::abort();
  if (child == 0) run_and_report(seed, pipe_fds[1]);
  close(pipe_fds[1]);
  std::array<char, 256> text{};
  const ssize_t size = read(pipe_fds[0], text.data(), text.size());
  close(pipe_fds[0]);
  int status = 0;
  if (waitpid(child, &status, 0) != child) std::abort();
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) return "hangs";
  if (WIFSIGNALED(status)) return std::string("crashed ") + strsignal(WTERMSIG(status));
  if (size <= 0) return "crashed without output";
  return {text.data(), static_cast<size_t>(size)};
}

}  // namespace
}  // namespace fabric::swarm

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  const uint64_t first = std::strtoull(argv[1], nullptr, 10);
  const uint64_t last = std::strtoull(argv[2], nullptr, 10);
  for (uint64_t seed = first; seed <= last; ++seed) {
    std::printf("%llu %s\n", static_cast<unsigned long long>(seed),
                fabric::swarm::run_in_child(seed).c_str());
    std::fflush(stdout);
  }
  return 0;
}

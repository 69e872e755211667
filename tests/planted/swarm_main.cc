#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "swarm/swarm.h"

// planted_swarm FIRST LAST: plays the worlds of these seeds, each in a process of its own, so that
// a bug that crashes or hangs spoils one world and not the count. A line per world:
//
//     SEED ok | SEED broken PROMISE | SEED crashed SIGNAL | SEED hangs

namespace fabric::swarm {
namespace {

constexpr unsigned kSecondsMax = 20;  // a world takes a fraction of one

/// In the child: what became of the promises.
[[noreturn]] void play_and_tell(uint64_t seed, int out) {
  // What a crashing library has to say is not the runner's business.
  if (std::freopen("/dev/null", "w", stderr) == nullptr) std::_Exit(1);
  alarm(kSecondsMax);
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a hanging world does not outlive who counts it
  const Outcome outcome = play(draw_story(seed));
  const std::string said =
      outcome.violation ? "broken " + outcome.violation->invariant : std::string("ok");
  const bool told = write(out, said.data(), said.size()) == static_cast<ssize_t>(said.size());
  std::_Exit(told ? 0 : 1);
}

std::string fate_of(uint64_t seed) {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  const pid_t child = fork();
  if (child < 0) std::abort();
  if (child == 0) play_and_tell(seed, ends[1]);
  close(ends[1]);
  std::array<char, 256> said{};
  const ssize_t size = read(ends[0], said.data(), said.size());
  close(ends[0]);
  int status = 0;
  if (waitpid(child, &status, 0) != child) std::abort();
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) return "hangs";
  if (WIFSIGNALED(status)) return std::string("crashed ") + strsignal(WTERMSIG(status));
  if (size <= 0) return "crashed without a word";
  return {said.data(), static_cast<size_t>(size)};
}

}  // namespace
}  // namespace fabric::swarm

int main(int argc, char** argv) {
  if (argc != 3) return 64;
  const uint64_t first = std::strtoull(argv[1], nullptr, 10);
  const uint64_t last = std::strtoull(argv[2], nullptr, 10);
  for (uint64_t seed = first; seed <= last; ++seed) {
    std::printf("%llu %s\n", static_cast<unsigned long long>(seed),
                fabric::swarm::fate_of(seed).c_str());
    std::fflush(stdout);
  }
  return 0;
}

// One member process of a StressCluster (stress_cluster.h).
//
//   stress_worker CHANNEL SCOREBOARD SLOT GENERATION SEED BUFFER_BYTES LANES LOOP
//
// CHANNEL and SCOREBOARD are descriptors: the socket to the cluster, and the shared Scoreboard.

#include <sys/mman.h>
#include <sys/prctl.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "process/stress_member.h"

namespace fabric::stress {
namespace {

using namespace std::chrono_literals;

Config config_of(const MemberId& self, uint64_t lanes, Member::Log& log) {
  Config config;
  config.networks = {
      {.provider = "shm", .options = shm::Options{.lanes = static_cast<uint32_t>(lanes)}}};
  config.app_info = std::to_string(self.slot) + " " + std::to_string(self.generation);
  // A stopped peer is reported as stalled soon but never as lost: only dead peers are lost here.
  config.peer_timeout = 250ms;
  config.lost_timeout = 120s;
  config.spin = 20us;  // there are more processes than cores
  config.log_sink = log.sink();
  return config;
}

int run(char** words) {
  const auto number = [&](int i) { return std::strtoull(words[i], nullptr, 10); };
  UniqueFd channel(static_cast<int>(number(1)));
  const UniqueFd scoreboard_fd(static_cast<int>(number(2)));
  const MemberId self{static_cast<uint32_t>(number(3)), static_cast<uint32_t>(number(4))};
  const std::string_view loop = words[8];
  void* scoreboard = ::mmap(nullptr, sizeof(Scoreboard), PROT_READ | PROT_WRITE, MAP_SHARED,
                            scoreboard_fd.get(), 0);
  if (scoreboard == MAP_FAILED) return 2;

  Member::Log log;
  auto engine = Engine::open(config_of(self, number(7), log),
                             loop == "threads" ? nullptr : std::make_shared<InlineRuntime>());
  if (!engine) {
    std::fprintf(stderr, "open: %s %s\n", to_string(engine.error().code), engine.error().what);
    return 2;
  }
  Member member(*std::move(engine), {.self = self, .seed = number(5), .buffer_bytes = number(6)},
                *static_cast<Scoreboard*>(scoreboard), std::move(channel));
  member.watch(log);
  if (!member.begin()) return 2;
  if (loop == "moves") {
    // Every 32 steps in a new thread, which exits before the next one starts.
    for (bool more = true; more;) {
      std::thread([&] {
        for (int i = 0; i < 32 && more; ++i) more = member.step();
      }).join();
    }
  } else {
    while (member.step()) continue;
  }
  return member.finish() ? 0 : 1;
}

}  // namespace
}  // namespace fabric::stress

int main(int argc, char** argv) {
  // If the cluster exited before this call, step() sees the closed channel.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (argc != 9) return 2;
  return fabric::stress::run(argv);
}

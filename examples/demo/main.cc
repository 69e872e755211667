// `make demo`: a transformer is served by separate processes: a router, prefillers that compute the
// KV caches of prompts, and decoders that generate. A prefiller is killed, one is stopped past its
// lease and continued, one joins, and a decoder is drained; every token is compared with those of
// one process.
//
//   demo [--seconds N] [--lanes N] [--attention gqa|mla] [--report FILE]
//   demo --requests N [--chaos SEED]    kills and stops processes of every role at random
//   NETWORK='tcp' demo

#include <charconv>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "child.h"
#include "roles.h"
#include "scenario.h"

namespace {

template <class T>
bool parse(const char* text, T& out) {
  const char* end = text + std::strlen(text);
  const auto [at, error] = std::from_chars(text, end, out);
  return error == std::errc{} && at == end;
}

bool parse_attention(std::string_view text, transformer::Attention& out) {
  out = text == "mla" ? transformer::Attention::kLatent : transformer::Attention::kGrouped;
  return text == "mla" || text == "gqa";
}

/// demo --role ROLE NAME NETWORK PEER_TIMEOUT_NS LOST_TIMEOUT_NS ATTENTION: the command line of the
/// child processes.
int run_role(char** words) {
  demo::RoleOptions options{.name = words[1], .network = words[2]};
  int64_t peer_timeout_ns = 0;
  int64_t lost_timeout_ns = 0;
  if (!parse(words[3], peer_timeout_ns) || !parse(words[4], lost_timeout_ns) ||
      !parse_attention(words[5], options.attention)) {
    return 2;
  }
  options.peer_timeout = fabric::Nanos(peer_timeout_ns);
  options.lost_timeout = fabric::Nanos(lost_timeout_ns);
  const demo::ControlSocket control(demo::kChildFd);
  const std::string_view role = words[0];
  if (role == "router") return demo::run_router(control, options);
  return role == "prefiller" ? demo::run_prefiller(control, options)
                             : demo::run_decoder(control, options);
}

int usage() {
  std::fprintf(
      stderr,
      "usage: demo [--seconds N] [--lanes N] [--attention gqa|mla] [--report FILE]\n"
      "       demo --requests N [--chaos SEED] [--lanes N] [--attention gqa|mla]\n"
      "  --seconds    length of the run, 5 to 60; default 15\n"
      "  --lanes      paths between two processes on shm, 1 to %u; default 2\n"
      "  --attention  of the model: grouped queries or latent; default gqa\n"
      "  --report     default build/demo/report.html\n"
      "  --requests   serve N requests, 20 to 100000, while processes of every role are killed\n"
      "               and stopped at random; without a report\n"
      "  --chaos      which to kill and stop, and when; default 0: drawn, and printed\n"
      "The variable NETWORK selects the network; default shm.\n",
      fabric::kRailsMax);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 8 && std::string_view(argv[1]) == "--role") return run_role(argv + 2);
  demo::Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view option = argv[i];
    if (i + 1 == argc) return usage();
    bool good = false;
    if (option == "--seconds") good = parse(argv[i + 1], options.seconds);
    if (option == "--lanes") good = parse(argv[i + 1], options.lanes);
    if (option == "--attention") good = parse_attention(argv[i + 1], options.attention);
    if (option == "--report") good = !(options.report = argv[i + 1]).empty();
    if (option == "--requests") {
      good = parse(argv[i + 1], options.requests) && options.requests >= 20 &&
             options.requests <= 100'000;
    }
    if (option == "--chaos") good = parse(argv[i + 1], options.chaos_seed);
    if (!good) return usage();
  }
  if (options.chaos_seed != 0 && options.requests == 0) return usage();
  if (!(options.seconds >= 5 && options.seconds <= 60)) return usage();
  if (options.lanes < 1 || options.lanes > fabric::kRailsMax) return usage();
  return demo::run_demo(options);
}

// `make demo`: a source process writes pages of KV caches into the memory of receiver processes on
// the same host. One receiver is killed, another joins, one is stopped for a while; everything is
// checked.
//
//   demo [--seconds N] [--lanes N]

#include <charconv>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "child.h"
#include "scenario.h"

namespace {

template <class T>
bool parse(const char* text, T& out) {
  const char* end = text + std::strlen(text);
  const auto [at, error] = std::from_chars(text, end, out);
  return error == std::errc{} && at == end;
}

/// demo --role ROLE RECEIVER_ID LANES PEER_TIMEOUT_NS: the command line of the child processes.
int run_role(char** words) {
  demo::RoleOptions options;
  int64_t peer_timeout_ns = 0;
  if (!parse(words[1], options.receiver_id) || !parse(words[2], options.lanes) ||
      !parse(words[3], peer_timeout_ns)) {
    return 2;
  }
  options.peer_timeout = fabric::Nanos(peer_timeout_ns);
  const demo::ControlSocket control(demo::kChildFd);
  const bool is_source = std::string_view(words[0]) == "source";
  return is_source ? demo::run_source(control, options) : demo::run_receiver(control, options);
}

int usage() {
  std::fprintf(stderr,
               "usage: demo [--seconds N] [--lanes N]\n"
               "  --seconds  length of the run, 5 to 60; default 15\n"
               "  --lanes    paths between two processes, 1 to %u; default 2\n",
               fabric::kRailsMax);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 6 && std::string_view(argv[1]) == "--role") return run_role(argv + 2);
  demo::Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view option = argv[i];
    if (i + 1 == argc) return usage();
    const bool good = option == "--seconds" ? parse(argv[i + 1], options.seconds)
                      : option == "--lanes" ? parse(argv[i + 1], options.lanes)
                                            : false;
    if (!good) return usage();
  }
  if (!(options.seconds >= 5 && options.seconds <= 60)) return usage();
  if (options.lanes < 1 || options.lanes > fabric::kRailsMax) return usage();
  return demo::run_demo(options);
}

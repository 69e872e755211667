// fabric bench: how fast two processes write to each other, and whether the bytes are right.

#include <cstdio>
#include <memory>

#include <fmt/format.h>

#include "bench_error.h"
#include "connect.h"
#include "options.h"
#include "report.h"
#include "protocol.h"
#include "commands.h"

namespace fabric::tool {
namespace bench {
namespace {

int send(const Options& options, JsonSocket& socket) {
  if (!options.cpus.empty()) pin_to(options.cpus.front());
  Report report(options.plan, options.json);
  const bool right = run_sender(options.plan, socket, report);
  if (!right) fmt::print(stderr, "fabric bench: wrong bytes arrived\n");
  return right ? 0 : 1;
}

void receive(const Options& options, JsonSocket& socket) {
  if (!options.cpus.empty()) pin_to(options.cpus.back());
  run_receiver(options.plan.benchmark, options.listen ? options.plan.devices : options.peer_devices, socket);
}

/// Both sides: the receiver is a child.
int run_with_forked_receiver(const Options& options) {
  ForkedPeer peer([&](JsonSocket& socket) {
    try {
      receive(options, socket);
      return 0;
    } catch (const std::exception&) {
      return 1;  // the sender was told, and says it
    }
  });
  int code = 1;
  std::string why;
  try {
    code = send(options, peer.socket());
  } catch (const BenchError& error) {
    why = error.what();
  }
  // Who failed may go at once; who ended well lets the other end too.
  const ForkedPeer::ExitStatus end = peer.reap(why.empty() ? 10'000 : 1000);
  if (end.well && why.empty()) return code;
  // A signal explains more than what it led to; an exit code less.
  throw BenchError(end.signalled || why.empty() ? end.how : why);
}

int run(const Options& options) {
  try {
    if (options.listen) {
      JsonSocket socket = listen_at(*options.listen);
      receive(options, socket);
      return 0;
    }
    if (options.connect) {
      JsonSocket socket = connect_to(*options.connect);
      return send(options, socket);
    }
    return run_with_forked_receiver(options);
  } catch (const BenchError& error) {
    fmt::print(stderr, "fabric bench: {}\n", error.what());
    return 1;
  }
}

struct Text {
  Benchmark benchmark;
  const char* what;
  const char* examples;
};

constexpr Text kTexts[] = {
    {Benchmark::kWrite, "A stream of counted writes",
     "  fabric bench write --pin 0,1\n"
     "  fabric bench write --sizes 64K,1M --memory registered\n"
     "  fabric bench write --sizes 1M --footprint 256M     past the caches\n"
     "  fabric bench write --network verbs --devices mlx5_0 --peer-devices mlx5_1\n"
     "  fabric bench write --listen                        in one terminal, and in another\n"
     "  fabric bench write --connect 127.0.0.1"},
    {Benchmark::kPaged, "Many pages in one request, in another order at both ends",
     "  fabric bench paged --pages 1024 --sizes 1K,4K\n"
     "  fabric bench paged --sizes 64K --footprint 256M --json"},
    {Benchmark::kScatter, "One request to many engines, to each its own part",
     "  fabric bench scatter --targets 8 --sizes 4K\n"
     "  fabric bench scatter --targets 56 --sizes 256 --window 4"},
    {Benchmark::kLatency, "A counted write there and one back: half a round trip",
     "  fabric bench latency --pin 0,1\n"
     "  fabric bench latency --sizes 8 --progress threaded"},
    {Benchmark::kRate, "Small counted writes, as many as go",
     "  fabric bench rate --pin 0,1\n"
     "  fabric bench rate --group 1                        one submit() each"},
    {Benchmark::kMessage, "Messages to a listener: as many as go, then one at a time",
     "  fabric bench message --sizes 64,4K\n"
     "  fabric bench message --window 16 --json"},
    {Benchmark::kIdle, "What two engines with threads cost that have nothing to do",
     "  fabric bench idle\n"
     "  fabric bench idle --duration 60 --json"}};

constexpr const char* kExit =
    "Exit code 0: done, and all bytes were right; 1: wrong bytes, or the other side was lost;\n"
    "2: bad options.";

}  // namespace
}  // namespace bench

void add_bench(CLI::App& app, int& exit_code) {
  CLI::App* bench = app.add_subcommand("bench", "How fast two processes write to each other");
  bench->require_subcommand(1);
  bench->footer(fmt::format(
      "It starts the other side itself, on this host; with --listen and --connect the two sides\n"
      "are started by hand. The receiver looks at every byte that was written.\n\n"
      "Examples:\n  fabric bench write --pin 0,1\n  fabric bench latency --json\n\n{}",
      bench::kExit));
  for (const bench::Text& text : bench::kTexts) {
    auto options = std::make_shared<bench::Options>();
    options->plan.benchmark = text.benchmark;
    CLI::App* verb = bench->add_subcommand(to_string(text.benchmark), text.what);
    bench::add_options(*verb, *options);
    verb->footer(fmt::format("Examples:\n{}\n\n{}", text.examples, bench::kExit));
    verb->callback([options, &exit_code] {
      bench::validate(*options);
      exit_code = bench::run(*options);
    });
  }
}

}  // namespace fabric::tool

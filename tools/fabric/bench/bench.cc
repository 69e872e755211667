// fabric bench: throughput and latency between two processes, with every byte checked.

#include <cstdio>
#include <memory>

#include <fmt/format.h>

#include "bench_error.h"
#include "commands.h"
#include "connect.h"
#include "options.h"
#include "protocol.h"
#include "report.h"

namespace fabric::tool {
namespace bench {
namespace {

int send(const Options& options, JsonSocket& socket) {
  if (!options.cpus.empty()) pin_to(options.cpus.front());
  Report report(options.plan, options.json);
  const bool correct = run_sender(options.plan, socket, report);
  if (!correct) fmt::print(stderr, "fabric bench: wrong bytes arrived\n");
  return correct ? 0 : 1;
}

void receive(const Options& options, JsonSocket& socket) {
  if (!options.cpus.empty()) pin_to(options.cpus.back());
  run_receiver(options.plan.benchmark, options.listen ? options.plan.devices : options.peer_devices,
               socket);
}

/// Runs both sides; the receiver is a child process.
int run_with_forked_receiver(const Options& options) {
  ForkedPeer peer([&](JsonSocket& socket) {
    try {
      receive(options, socket);
      return 0;
    } catch (const std::exception&) {
      return 1;  // the error was sent to the sender, which prints it
    }
  });
  int code = 1;
  std::string why;
  try {
    code = send(options, peer.socket());
  } catch (const BenchError& error) {
    why = error.what();
  }
  // After a success the receiver gets time to finish.
  const ForkedPeer::ExitStatus end = peer.reap(why.empty() ? 10'000 : 1000);
  if (end.ok && why.empty()) return code;
  // A signal says more than the sender's error, which it caused; an exit code says less.
  throw BenchError(end.signalled || why.empty() ? end.text : why);
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
     "  fabric bench write --sizes 1M --footprint 256M     beyond the caches\n"
     "  fabric bench write --network verbs --devices mlx5_0 --peer-devices mlx5_1\n"
     "  fabric bench write --listen                        in one terminal; in another:\n"
     "  fabric bench write --connect 127.0.0.1"},
    {Benchmark::kPaged, "Many pages in one request, permuted differently at both sides",
     "  fabric bench paged --pages 1024 --sizes 1K,4K\n"
     "  fabric bench paged --sizes 64K --footprint 256M --json"},
    {Benchmark::kScatter, "One request to many engines, one part to each",
     "  fabric bench scatter --targets 8 --sizes 4K\n"
     "  fabric bench scatter --targets 56 --sizes 256 --window 4"},
    {Benchmark::kLatency, "Ping-pong of counted writes: half of the round-trip time",
     "  fabric bench latency --pin 0,1\n"
     "  fabric bench latency --sizes 8 --progress threaded"},
    {Benchmark::kRate, "The rate of small counted writes",
     "  fabric bench rate --pin 0,1\n"
     "  fabric bench rate --group 1                        one submit() each"},
    {Benchmark::kMessage, "Messages to a listener: throughput, then ping-pong",
     "  fabric bench message --sizes 64,4K\n"
     "  fabric bench message --window 16 --json"},
    {Benchmark::kKv, "The KV cache of requests: each layer is pushed when it is done",
     "  fabric bench kv --pin 0,1\n"
     "  fabric bench kv --sizes 32K --tensors 2            K and V apart\n"
     "  fabric bench kv --sizes 8 --pages 32               from the layer word to the first post"},
    {Benchmark::kIdle, "CPU time of two threaded engines without work",
     "  fabric bench idle\n"
     "  fabric bench idle --duration 60 --json"}};

constexpr const char* kExit =
    "Exit code 0: all bytes were correct; 1: wrong bytes, or the other side was lost;\n"
    "2: bad options.";

}  // namespace
}  // namespace bench

Command bench_command() {
  Command bench{
      .name = "bench",
      .help = "Measure throughput and latency between two processes",
      .footer = fmt::format(
          "Forks the receiver on this host; with --listen and --connect the two sides are started\n"
          "by hand. The receiver checks every byte.\n\n"
          "Examples:\n  fabric bench write --pin 0,1\n  fabric bench latency --json\n\n{}",
          bench::kExit)};
  for (const bench::Text& text : bench::kTexts) {
    auto options = std::make_shared<bench::Options>();
    options->plan.benchmark = text.benchmark;
    bench.commands.push_back(
        {.name = to_string(text.benchmark),
         .help = text.what,
         .footer = fmt::format("Examples:\n{}\n\n{}", text.examples, bench::kExit),
         .options = bench::options_of(*options),
         .run = [options] {
           bench::validate(*options);
           return bench::run(*options);
         }});
  }
  return bench;
}

}  // namespace fabric::tool

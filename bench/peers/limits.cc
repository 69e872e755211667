// What the host itself allows, with nothing between a program and its memory: one core that copies
// into shared memory, a bare ring that notifies another process of each copy, and one cache line
// that goes back and forth. No library can beat them for long; the comparison takes them as the
// limit, and the last one to notice when the hypervisor has moved the two cores apart.

#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "host.h"

namespace {

using peers::map;
using peers::now;
using peers::pause_cpu;
using peers::pin;

struct Options {
  uint64_t bytes = 8;
  uint64_t footprint = 0;  ///< 0: always the same bytes
  double duration = 0.3;
  std::vector<int> pin{0, 1};
};

/// Every word is another one; the last bytes of an odd size stay zero.
void fill(std::byte* at, uint64_t bytes) {
  for (uint64_t i = 0; i + sizeof(i) <= bytes; i += sizeof(i)) {
    const uint64_t word = (i + 1) * 0x9e3779b97f4a7c15;
    std::memcpy(at + i, &word, sizeof(word));
  }
}

/// The child dies with its parent, so that a failed measurement leaves no process spinning.
template <class Body>
pid_t start_child(int cpu, Body body) {
  const pid_t child = fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  pin(cpu);
  body();
  _exit(EXIT_SUCCESS);
}

void copy(const Options& options) {
  pin(options.pin.front());
  const uint64_t extent = std::max(options.footprint, options.bytes);
  std::byte* const target = map(extent, MAP_SHARED);
  std::byte* const source = map(extent, MAP_PRIVATE);
  fill(source, extent);
  const uint64_t batch = std::clamp<uint64_t>((1u << 20) / options.bytes, 1, 1000);
  uint64_t at = 0, copies = 0;
  const double begin = now();
  double end = begin;
  // The clock is read once in a batch of copies: it costs as much as a short copy.
  while (end - begin < options.duration) {
    for (uint64_t i = 0; i < batch; ++i) {
      std::memcpy(target + at, source + at, options.bytes);
      std::atomic_signal_fence(std::memory_order_seq_cst);  // each of them is a copy of its own
      at += options.bytes;
      if (at + options.bytes > extent) at = 0;
    }
    copies += batch;
    end = now();
  }
  const uint64_t last = std::min(copies * options.bytes, extent / options.bytes * options.bytes);
  if (std::memcmp(target, source, last) != 0) throw std::runtime_error("wrong bytes");
  const double rate = static_cast<double>(copies) / (end - begin);
  fmt::print(R"({{"benchmark":"copy","bytes":{},"ops_per_second":{:.1f},"gb_per_second":{:.6f}}})"
             "\n",
             options.bytes, rate, rate * static_cast<double>(options.bytes) / 1e9);
}

/// One sender, one receiver; an entry is a copy that the receiver counts.
struct Ring {
  static constexpr uint64_t kEntries = 4096;
  alignas(128) std::atomic<uint64_t> sent{0};
  alignas(128) std::atomic<uint64_t> counted{0};
  alignas(128) std::array<uint64_t, kEntries> keys{};
};

void rate(const Options& options) {
  auto* const ring = new (map(sizeof(Ring), MAP_SHARED)) Ring;
  std::byte* const target = map(4096, MAP_SHARED);
  const uint64_t word = 0x0102030405060708;
  start_child(options.pin.back(), [ring] {
    uint64_t seen = 0, sum = 0;
    for (;;) {
      const uint64_t sent = ring->sent.load(std::memory_order_acquire);
      if (sent == seen) {
        pause_cpu();
        continue;
      }
      for (; seen != sent; ++seen) sum += ring->keys[seen % Ring::kEntries];
      ring->counted.store(sum, std::memory_order_release);
    }
  });
  pin(options.pin.front());
  uint64_t sent = 0, counted = 0;
  const double begin = now();
  double end = begin;
  while (end - begin < options.duration) {
    for (int i = 0; i < 10'000; ++i) {
      while (sent - counted == Ring::kEntries) {
        counted = ring->counted.load(std::memory_order_acquire);
      }
      std::memcpy(target + sent % 512 * sizeof(word), &word, sizeof(word));
      ring->keys[sent % Ring::kEntries] = 1;
      ring->sent.store(++sent, std::memory_order_release);  // one notification each, as ours
    }
    end = now();
  }
  while (ring->counted.load(std::memory_order_acquire) != sent) pause_cpu();
  end = now();
  fmt::print(R"({{"benchmark":"rate","bytes":8,"ops_per_second":{:.1f}}})"
             "\n",
             static_cast<double>(sent) / (end - begin));
}

void probe(const Options& options) {
  struct Lines {
    alignas(128) std::atomic<uint64_t> there{0};
    alignas(128) std::atomic<uint64_t> back{0};
  };
  auto* const lines = new (map(sizeof(Lines), MAP_SHARED)) Lines;
  start_child(options.pin.back(), [lines] {
    for (uint64_t turn = 1;; ++turn) {
      while (lines->there.load(std::memory_order_acquire) != turn) pause_cpu();
      lines->back.store(turn, std::memory_order_release);
    }
  });
  pin(options.pin.front());
  constexpr uint64_t kTurns = 64;  // in one reading of the clock
  std::vector<double> times;
  uint64_t turn = 0;
  const double begin = now();
  for (double last = begin; last - begin < options.duration;) {
    for (uint64_t i = 0; i < kTurns; ++i) {
      lines->there.store(++turn, std::memory_order_release);
      while (lines->back.load(std::memory_order_acquire) != turn) pause_cpu();
    }
    const double end = now();
    times.push_back((end - last) / (2 * kTurns) * 1e9);
    last = end;
  }
  std::sort(times.begin(), times.end());
  fmt::print(R"({{"benchmark":"probe","half_round_trip_ns":{{"p50":{:.1f},"p99":{:.1f}}}}})"
             "\n",
             times[times.size() / 2], times[times.size() * 99 / 100]);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("The limits of this host: one JSON object a run");
  app.require_subcommand(1);
  const auto verb = [&](const char* name, const char* help, void (*run)(const Options&)) {
    CLI::App* const sub = app.add_subcommand(name, help);
    sub->add_option("--duration", options.duration, "Seconds")->check(CLI::Range(0.001, 60.0));
    sub->add_option("--pin", options.pin, "Two cores")->delimiter(',')->expected(2);
    sub->callback([&options, run] { run(options); });
    return sub;
  };
  CLI::App* const copies = verb("copy", "memcpy into shared memory", copy);
  copies->add_option("--bytes", options.bytes)->check(CLI::Range(uint64_t{1}, uint64_t{1} << 32));
  copies->add_option("--footprint", options.footprint, "Rotate over so many bytes");
  verb("rate", "8-byte copies that another process counts, through a bare ring", rate);
  verb("probe", "One cache line back and forth between the two cores", probe);
  try {
    CLI11_PARSE(app, argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "limits: {}\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

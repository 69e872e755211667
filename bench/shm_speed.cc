// How fast two processes of this host write to each other, next to a plain copy into the same kind
// of shared memory in the same run. Both processes poll; give them a core each.

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>

#include <fabric/fabric.h>

namespace {

using namespace fabric;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kBytes = 64u << 20;
constexpr uint32_t kRepeats = 5;

template <class T>
T need(Result<T> result, const char* what) {
  if (!result) {
    std::fprintf(stderr, "%s: %s: %s\n", what, to_string(result.error().code), result.error().what);
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  (void)sched_setaffinity(0, sizeof(set), &set);  // a wish: one core is enough to be correct
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// One of the two processes.
struct Side {
  std::shared_ptr<InlineRuntime> runtime = std::make_shared<InlineRuntime>();
  Engine engine = need(Engine::open({.networks = {{.provider = "shm"}}}, runtime), "open");
  MemoryRegion mapped = need(engine.allocate({.size_bytes = kBytes}), "allocate");
  std::vector<std::byte> heap{kBytes};
  MemoryRegion fetched =
      need(engine.register_memory({.address = heap.data(), .size_bytes = kBytes}), "register");
  Counter arrived = need(engine.make_counter(), "counter");
  Offer to_mapped{}, to_fetched{};

  void meet(int in, int out) {
    for (const MemoryRegion* region : {&mapped, &fetched}) {
      std::string offer = need(engine.offer(*region, arrived.key()), "offer");
      offer.resize(4096, '\0');
      if (::write(out, offer.data(), offer.size()) != 4096) std::exit(1);
    }
    for (Offer* offer : {&to_mapped, &to_fetched}) {
      std::string text(4096, '\0');
      for (size_t got = 0; got < text.size();) {
        const ssize_t n = ::read(in, text.data() + got, text.size() - got);
        if (n <= 0) std::exit(1);
        got += static_cast<size_t>(n);
      }
      *offer = need(engine.accept(text.c_str()), "accept");
    }
  }
  void until(uint64_t count) {
    while (arrived.count() < count) runtime->turn();
  }
};

/// The other side counts; this one writes `total` writes in submits of up to 64, then waits for the
/// answer of the other, so that all bytes are there at the end.
double stream(Side& side, const Offer& to, uint64_t size, uint64_t total, uint64_t& answers) {
  std::vector<Write> writes(std::min<uint64_t>(64, total));
  const uint64_t places = std::max<uint64_t>(1, std::min<uint64_t>(16, kBytes / size));
  const auto start = Clock::now();
  for (uint64_t sent = 0; sent < total;) {
    const uint64_t n = std::min<uint64_t>(writes.size(), total - sent);
    for (uint64_t i = 0; i < n; ++i) {
      const uint64_t at = (sent + i) % places * size;
      writes[i] = {.source = side.mapped.at(at),
                   .target = to.region.at(at),
                   .size_bytes = size,
                   .imm = to.key};
    }
    const auto taken = side.engine.submit(std::span<const Write>(writes.data(), n));
    if (taken) sent += *taken;
    side.runtime->turn();
  }
  side.until(++answers);
  return seconds_since(start);
}

struct Case {
  bool mapped;
  uint64_t size, total;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const bool mapped : {true, false}) {
    for (const uint64_t size :
         {8ull, 1ull << 10, 4ull << 10, 64ull << 10, 1ull << 20, 16ull << 20}) {
      const uint64_t cap = mapped ? 2'000'000 : 100'000;
      all.push_back({mapped, size, std::clamp<uint64_t>((1ull << 30) / size, 16, cap)});
    }
  }
  return all;
}

void receiver(Side& side) {
  uint64_t counted = 0;
  const auto answer = [&] {
    need(side.engine.submit(Write{.source = side.mapped.at(0),
                                  .target = side.to_mapped.region.at(0),
                                  .imm = side.to_mapped.key}),
         "answer");
  };
  for (const Case& one : cases()) {
    for (uint32_t repeat = 0; repeat < kRepeats; ++repeat) {
      counted += one.total;
      side.until(counted);
      // The sender's pattern, in the last place that was written.
      const auto bytes = one.mapped ? side.mapped.bytes() : std::span(side.heap);
      const uint64_t places = std::max<uint64_t>(1, std::min<uint64_t>(16, kBytes / one.size));
      const uint64_t at = (one.total - 1) % places * one.size;
      for (uint64_t i = at; i < at + one.size; i += 8) {
        uint64_t word = 0;
        std::memcpy(&word, bytes.data() + i, 8);
        if (word != i + 1) {
          std::fprintf(stderr, "wrong bytes at %llu\n", static_cast<unsigned long long>(i));
          std::_Exit(1);
        }
      }
      answer();
    }
  }
  for (uint32_t i = 0; i < kRepeats * 20'000; ++i) {
    side.until(++counted);
    answer();
  }
  side.until(counted + 1);
}

double copy_speed(uint64_t size, uint64_t total) {
  const uint64_t places = std::max<uint64_t>(1, std::min<uint64_t>(16, kBytes / size));
  static std::byte* const from = static_cast<std::byte*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  static std::byte* const to = static_cast<std::byte*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  static const bool touched = [] {
    std::memset(from, 1, kBytes);
    std::memset(to, 2, kBytes);
    return true;
  }();
  (void)touched;
  const auto start = Clock::now();
  for (uint64_t i = 0; i < total; ++i) {
    std::memcpy(to + i % places * size, from + i % places * size, size);
    asm volatile("" ::: "memory");
  }
  return seconds_since(start);
}

void sender(Side& side) {
  for (uint64_t i = 0; i < kBytes; i += 8) {
    const uint64_t word = i + 1;
    std::memcpy(side.mapped.bytes().data() + i, &word, 8);
  }
  uint64_t answers = 0;
  std::printf("%-8s %9s %9s %10s %10s %7s\n", "memory", "bytes", "writes", "M/s", "GB/s", "x copy");
  for (const Case& one : cases()) {
    const Offer& to = one.mapped ? side.to_mapped : side.to_fetched;
    std::vector<double> ours, plain;
    for (uint32_t repeat = 0; repeat < kRepeats; ++repeat) {
      plain.push_back(copy_speed(one.size, one.total));
      ours.push_back(stream(side, to, one.size, one.total, answers));
    }
    const double seconds = median(ours);
    std::printf("%-8s %9llu %9llu %10.3f %10.2f %7.2f\n", one.mapped ? "mapped" : "fetched",
                static_cast<unsigned long long>(one.size),
                static_cast<unsigned long long>(one.total),
                static_cast<double>(one.total) / seconds / 1e6,
                static_cast<double>(one.total * one.size) / seconds / 1e9, median(plain) / seconds);
    std::fflush(stdout);
  }
  std::vector<double> halves;
  for (uint32_t i = 0; i < kRepeats * 20'000; ++i) {
    const auto start = Clock::now();
    need(side.engine.submit(Write{.source = side.mapped.at(0),
                                  .target = side.to_mapped.region.at(0),
                                  .size_bytes = 8,
                                  .imm = side.to_mapped.key}),
         "ping");
    side.until(++answers);
    halves.push_back(seconds_since(start) / 2);
  }
  std::sort(halves.begin(), halves.end());
  std::printf("half round trip, 8 bytes: p50 %.0f ns, p99 %.0f ns\n",
              halves[halves.size() / 2] * 1e9, halves[halves.size() * 99 / 100] * 1e9);
  need(side.engine.submit(Write{.source = side.mapped.at(0),
                                .target = side.to_mapped.region.at(0),
                                .imm = side.to_mapped.key}),
       "end");
  side.runtime->turn();
  side.until(answers);
}

/// Two engines with threads that know each other and have nothing to do.
void idle() {
  Engine one = need(Engine::open({.networks = {{.provider = "shm"}}}), "open");
  Engine other = need(Engine::open({.networks = {{.provider = "shm"}}}), "open");
  Counter counter = need(other.make_counter(), "counter");
  MemoryRegion memory = need(other.allocate({.size_bytes = 4096}), "allocate");
  MemoryRegion source = need(one.allocate({.size_bytes = 4096}), "allocate");
  const Offer offer = need(one.accept(need(other.offer(memory, counter.key()), "offer")), "accept");
  need(one.submit(Write{.source = source.at(0),
                        .target = offer.region.at(0),
                        .size_bytes = 4096,
                        .imm = offer.key}),
       "write");
  need(counter.wait(1), "wait");
  constexpr double kSeconds = 3;
  const std::clock_t before = std::clock();
  std::this_thread::sleep_for(std::chrono::duration<double>(kSeconds));
  const double used = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  std::printf("idle, with threads: %.2f %% of a core an engine\n", used / kSeconds / 2 * 100);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Two processes of this host that write to each other.");
  std::vector<int> cpus{0, 1};
  app.add_option("--cpus", cpus, "where the two run")->expected(2);
  CLI11_PARSE(app, argc, argv);
  int there[2], back[2];
  if (::pipe(there) != 0 || ::pipe(back) != 0) return 1;
  const pid_t child = ::fork();
  pin(cpus[child == 0 ? 1 : 0]);
  Side side;
  if (child == 0) {
    side.meet(there[0], back[1]);
    receiver(side);
    return 0;
  }
  side.meet(back[0], there[1]);
  sender(side);
  int status = 0;
  ::waitpid(child, &status, 0);
  idle();
  return status == 0 ? 0 : 1;
}

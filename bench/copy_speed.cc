// The speed of copies into shared memory: libc compared with the variants of guarded_copy(), and
// the cost of its guard. Three situations: the same two buffers again and again (hot), buffers that
// no cache holds (cold), and a reader on another core that reads all bytes after each copy, whose
// time is included (read). All times are CPU times of the threads, so that other load does not
// count.

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "providers/shm/copy.h"
#include "providers/shm/proof.h"

namespace {

using namespace fabric;
using namespace fabric::shm;

struct Options {
  uint32_t repeat = 25;
  std::vector<uint64_t> sizes{8,      64,       256,      1024,     4096,      16384,    65536,
                              262144, 1u << 20, 2u << 20, 4u << 20, 16u << 20, 64u << 20};
  std::vector<std::string> situations{"hot", "cold", "read"};
  uint64_t sample_bytes = 2u << 20;  ///< bytes of one measurement
  bool json = false;
};

constexpr uint64_t kColdBytes = 256u << 20;

enum class Kind : uint8_t {
  kLibc,
  kBare,       ///< the instructions of the best variant, without section, slot and guard
  kUnguarded,  ///< a section that checks nothing
  kGuarded,
  kFenced,  ///< with a full fence, for an owner that cannot call membarrier
};
struct CopyVariant {
  const char* name;
  Kind kind;
  CopyMethod move;
};
constexpr std::array<CopyVariant, 8> kVariants{
    {{"memcpy", Kind::kLibc, CopyMethod::kBest},
     {"vector", Kind::kGuarded, CopyMethod::kVector},
     {"rep", Kind::kGuarded, CopyMethod::kRepMovsb},
     {"stream", Kind::kGuarded, CopyMethod::kNonTemporal},
     {"best", Kind::kGuarded, CopyMethod::kBest},
     {"bare", Kind::kBare, CopyMethod::kBest},
     {"no guard", Kind::kUnguarded, CopyMethod::kBest},
     {"fence", Kind::kFenced, CopyMethod::kBest}}};

enum class Situation : uint8_t { kHot, kCold, kRead };

/// CPU time of the calling thread.
double now() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof(set), &set);  // may fail on a machine with one core
}

std::byte* shared_memory(uint64_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(at);
}

/// The copy that guarded_copy() does from 4 KiB to 16 MiB on this kind of processor, and nothing
/// else: the difference is the cost of the guard.
void bare_copy(std::byte* target, const std::byte* source, uint64_t bytes) {
#if defined(__x86_64__)
  for (uint64_t at = 0; at < bytes;) {
    uint64_t chunk = std::min(bytes - at, kChunkBytes);
    std::byte* to = target + at;
    const std::byte* from = source + at;
    at += chunk;
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(chunk) : : "memory");
  }
#else
  std::memcpy(target, source, bytes);
#endif
}

/// Reads the copied bytes on another core, and reports when it is done.
class Reader {
 public:
  explicit Reader(const std::byte* target) : thread_([this, target] { run(target); }) {}
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() {
    bytes_.store(kEnd);
    committed.fetch_add(1);
    thread_.join();
  }
  void expect(uint64_t bytes) { bytes_.store(bytes); }
  /// Waits until it has read everything; returns the time that took.
  double wait() const {
    while (read_.load(std::memory_order_acquire) != committed.load(std::memory_order_relaxed)) {
      sched_yield();
    }
    return took_.load(std::memory_order_relaxed);
  }

  alignas(128) std::atomic<uint64_t> committed{0};

 private:
  static constexpr uint64_t kEnd = ~uint64_t{0};

  void run(const std::byte* target) {
    pin(1);
    for (uint64_t seen = 0;;) {
      const uint64_t last = committed.load(std::memory_order_acquire);
      if (last == seen) {
        sched_yield();
        continue;
      }
      const uint64_t bytes = bytes_.load();
      if (bytes == kEnd) return;
      const double begin = now();
      std::array<uint64_t, 8> sums{};
      for (uint64_t i = 0; i + sizeof(sums) <= bytes; i += sizeof(sums)) {
        std::array<uint64_t, 8> words;
        std::memcpy(words.data(), target + i, sizeof(words));
        for (size_t k = 0; k < words.size(); ++k) sums[k] ^= words[k];
      }
      took_.store(now() - begin, std::memory_order_relaxed);
      sum_.store(sums[0] ^ sums[1] ^ sums[2] ^ sums[3] ^ sums[4] ^ sums[5] ^ sums[6] ^ sums[7]);
      read_.store(seen = last, std::memory_order_release);
    }
  }

  alignas(128) std::atomic<uint64_t> read_{0};
  std::atomic<uint64_t> bytes_{0}, sum_{0};
  std::atomic<double> took_{0};
  std::thread thread_;  // last: it uses the rest
};

class Bench {
 public:
  explicit Bench(const Options& options)
      : options_(options),
        extent_(extent_of(options)),
        target_(shared_memory(extent_)),
        source_(shared_memory(extent_)),
        reader_(target_) {
    const auto slots = WriterSlots::of_process();
    slot_ = slots ? (*slots)->mine() : nullptr;
    if (slot_ == nullptr) throw std::runtime_error("no slot");
    register_membarrier();
    for (uint64_t i = 0; i < extent_; ++i) source_[i] = static_cast<std::byte>(i * 31 >> 3);
  }

  /// Seconds of one copy.
  double measure(const CopyVariant& variant, Situation situation, uint64_t bytes) {
    use_copy_method(variant.move);
    const uint64_t count = std::clamp<uint64_t>(options_.sample_bytes / bytes, 1, 20'000);
    const bool looks = variant.kind == Kind::kGuarded || variant.kind == Kind::kFenced;
    const Guard guard = looks ? Guard{&path_, 1, &rkey_, 2} : Guard{};
    std::atomic<uint64_t>& word = situation == Situation::kRead ? reader_.committed : unread_;
    reader_.expect(bytes);
    uint64_t at = situation == Situation::kCold ? cold_ : 0;
    uint64_t last = at;
    std::memset(target_ + at, 0, std::min<uint64_t>(bytes, 4096));
    const auto copy = [&] {
      const uint64_t value = word.load(std::memory_order_relaxed) + 1;
      if (variant.kind == Kind::kLibc || variant.kind == Kind::kBare) {
        variant.kind == Kind::kBare ? bare_copy(target_ + at, source_ + at, bytes)
                                    : void(std::memcpy(target_ + at, source_ + at, bytes));
        word.store(value, std::memory_order_release);
      } else {
        guarded_copy(*slot_, target_ + at, source_ + at, bytes, guard, {&word, value},
                     variant.kind == Kind::kFenced);
      }
    };
    // Puts the caches into the state that this variant leaves, not the previous one.
    if (situation != Situation::kCold) copy();
    if (situation == Situation::kRead) reader_.wait();
    double took = -now();
    for (uint64_t i = 0; i < count; ++i) {
      copy();
      if (situation == Situation::kRead) {
        took += now();
        took += reader_.wait();
        took -= now();
      }
      last = at;
      if (situation == Situation::kCold) at = next(at, bytes);
    }
    took += now();
    if (situation == Situation::kCold) cold_ = at;
    if (std::memcmp(target_ + last, source_ + last, bytes) != 0) {
      throw std::runtime_error("wrong bytes");
    }
    return took / static_cast<double>(count);
  }

 private:
  static uint64_t extent_of(const Options& options) {
    const auto& names = options.situations;
    const bool cold = std::find(names.begin(), names.end(), "cold") != names.end();
    return cold ? kColdBytes : *std::max_element(options.sizes.begin(), options.sizes.end());
  }
  uint64_t next(uint64_t at, uint64_t bytes) const {
    at += std::max<uint64_t>(bytes, 64);
    return at + bytes > extent_ ? 0 : at;
  }

  const Options options_;
  const uint64_t extent_;
  std::byte* target_;
  std::byte* source_;
  uint64_t cold_ = 0;  ///< where the next cold copy goes
  WriterSlot* slot_ = nullptr;
  std::atomic<uint64_t> path_{1}, rkey_{2}, unread_{0};
  Reader reader_;
};

std::string size_name(uint64_t bytes) {
  if (bytes >= 1u << 20) return fmt::format("{} MiB", bytes >> 20);
  if (bytes >= 1u << 10) return fmt::format("{} KiB", bytes >> 10);
  return fmt::format("{} B", bytes);
}

/// Seconds of each variant: the lower quartile of several runs. The variants alternate, so that
/// other load slows all of them.
std::array<double, kVariants.size()> measure_variants(Bench& bench, const Options& options,
                                                      Situation situation, uint64_t bytes) {
  std::array<std::vector<double>, kVariants.size()> all;
  for (uint32_t round = 0; round < options.repeat; ++round) {
    for (size_t i = 0; i < kVariants.size(); ++i) {
      all[i].push_back(bench.measure(kVariants[i], situation, bytes));
    }
  }
  std::array<double, kVariants.size()> best{};
  for (size_t i = 0; i < kVariants.size(); ++i) {
    std::sort(all[i].begin(), all[i].end());
    best[i] = all[i][all[i].size() / 4];
  }
  return best;
}

void print_cells(const std::array<double, kVariants.size()>& seconds, uint64_t bytes) {
  fmt::print("| {} |", size_name(bytes));
  for (const double each : seconds) {
    if (bytes < 1024) {
      fmt::print(" {:.1f} ns |", each * 1e9);
    } else {
      fmt::print(" {:.1f} |", static_cast<double>(bytes) / each / 1e9);
    }
  }
  fmt::print("\n");
}

void print_object(const std::array<double, kVariants.size()>& seconds, uint64_t bytes,
                  const std::string& situation) {
  nlohmann::ordered_json speeds;
  for (size_t i = 0; i < kVariants.size(); ++i) {
    speeds[kVariants[i].name] = static_cast<double>(bytes) / seconds[i] / 1e9;
  }
  const nlohmann::ordered_json line{
      {"situation", situation}, {"bytes", bytes}, {"gb_per_second", speeds}};
  fmt::print("{}\n", line.dump());
}

void print_situation(Bench& bench, const Options& options, const std::string& name) {
  const Situation situation = name == "hot"    ? Situation::kHot
                              : name == "cold" ? Situation::kCold
                                               : Situation::kRead;
  if (!options.json) {
    fmt::print("\n| {} |", situation == Situation::kRead ? "then read" : name);
    for (const CopyVariant& variant : kVariants) fmt::print(" {} |", variant.name);
    fmt::print("\n| --- |");
    for (size_t i = 0; i < kVariants.size(); ++i) fmt::print(" --- |");
    fmt::print("\n");
  }
  for (const uint64_t bytes : options.sizes) {
    // Reading the clock costs more than a short copy.
    if (situation == Situation::kRead && bytes < 65536) continue;
    const auto seconds = measure_variants(bench, options, situation, bytes);
    options.json ? print_object(seconds, bytes, name) : print_cells(seconds, bytes);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Copies into shared memory: nanoseconds below 1 KiB, GB/s from there on");
  app.add_option("--repeat", options.repeat)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--sizes", options.sizes, "Bytes of a copy")
      ->delimiter(',')
      ->check(CLI::Range(uint64_t{1}, kColdBytes));
  app.add_option("--situations", options.situations, "hot, cold or read")
      ->delimiter(',')
      ->check(CLI::IsMember({"hot", "cold", "read"}));
  app.add_flag("--json", options.json, "GB/s, one object a size");
  app.add_option("--sample-bytes", options.sample_bytes, "Bytes of one measurement")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    pin(0);
    Bench bench(options);
    if (!options.json) {
      fmt::print("guard: {}; membarrier: {}; procfs: {}\n",
                 guard_kind() == GuardKind::kRestartable ? "restartable" : "plain",
                 fence_support().membarrier, fence_support().procfs);
    }
    for (const std::string& name : options.situations) print_situation(bench, options, name);
  } catch (const std::exception& error) {
    fmt::print(stderr, "copy_speed: {}\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

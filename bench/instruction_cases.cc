// The program that bench/instructions runs under callgrind. Each case warms up, then runs its
// operations inside measured(), which callgrind's --toggle-collect names, and prints their number.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string_view>
#include <vector>

#ifdef FABRIC_HAS_VERBS
#include "verbs_rail_pair.h"
#endif
#include "bench_engines.h"
#include "core/counter_table.h"
#include "group_engines.h"
#include "kv_engines.h"
#include "stepped_clock.h"

extern "C" [[gnu::noinline]] void measured(const std::function<void()>& operation, uint32_t times) {
  for (uint32_t i = 0; i < times; ++i) operation();
}

/// Within measured(): callgrind stops counting on entry and continues on return.
extern "C" [[gnu::noinline]] void unmeasured(const std::function<void()>& rest) { rest(); }

namespace {

using namespace fabric;
using bench::BenchEngines;
using bench::need;

struct Case {
  const char* name;
  uint32_t receivers;  ///< engines that are written to; 0: no engine at all
  uint32_t parts;      ///< of one operation: its cost is divided by this
  uint32_t times;
  void (BenchEngines::*operation)();
};

constexpr uint32_t kTargets = 56;
constexpr int64_t kStepNs = 100;  // a small write reads the clock a few times
constexpr std::array<Case, 11> kCases{{
    {"single_write", 1, 1, 2000, &BenchEngines::write},
    {"span64_write", 1, BenchEngines::kSpan, 100, &BenchEngines::span},
    {"scatter56", kTargets, kTargets, 50, &BenchEngines::scatter},
    {"paged1024", 1, BenchEngines::kPages, 10, &BenchEngines::paged},
    {"listed_pages1024", 1, BenchEngines::kPages, 10, &BenchEngines::listed_pages},
    {"ranged_pages1024", 1, BenchEngines::kPages, 10, &BenchEngines::ranged_pages},
    {"listed_writes1024", 1, BenchEngines::kPages, 10, &BenchEngines::listed_writes},
    {"counted_immediate", 0, 256, 50, nullptr},
    {"message", 1, 1, 500, &BenchEngines::message},
    {"expectation", 1, 1, 2000, &BenchEngines::expectation},
    {"idle_turn", 1, 1, 2000, &BenchEngines::turn_sender},
}};

bool counting = false;

void measure(const Case& one, const std::function<void()>& operation) {
  // Warm-up: pools have grown, and the paths are open.
  for (uint32_t i = 0; i < one.times / 2 + 10; ++i) operation();
  {
    const bench::SteppedClock clock(kStepNs);
    counting = true;
    measured(operation, one.times);
    counting = false;
  }
  std::printf("%s %u\n", one.name, one.times * one.parts);
}

/// The counter table alone: the immediates of one poll, each for another counter than the one
/// before it, so that none can be merged.
void measure_counting(const Case& one) {
  core::CounterTable table({.live_max = 1024});
  std::vector<uint32_t> immediates(one.parts);
  for (uint32_t& immediate : immediates) {
    immediate = core::make_imm(need(table.acquire(0, 0), "acquire"), 1);
  }
  measure(one, [&] { need(table.arrive(immediates) == 0, "a stale immediate"); });
}

/// Runs a part of the case that is not counted.
void aside(const std::function<void()>& rest) {
  if (counting) {
    unmeasured(rest);
  } else {
    rest();
  }
}

/// The counter table alone: the immediates of one poll, each of which pays the share of another
/// member, and the last one meets the group.
void measure_group_arrivals() {
  constexpr uint32_t kMembers = bench::GroupEngines::kMembers;
  uint32_t met = 0;
  core::CounterTable table(
      {.live_max = 128,
       .fired = [](void* count, uint32_t, Errc) { ++*static_cast<uint32_t*>(count); },
       .context = &met});
  const CounterKey parent = need(table.acquire(0, 0), "acquire");
  std::vector<uint32_t> immediates;
  std::vector<core::CounterTable::Share> shares;
  for (uint32_t i = 0; i < kMembers; ++i) {
    const CounterKey member = need(table.acquire(0, 0), "acquire");
    need(table.link(member, parent, 1) == Errc::kOk, "link");
    immediates.push_back(core::make_imm(member, 1));
    shares.push_back(table.share_of(member, 1));
  }
  uint32_t rounds = 0;
  measure({"group_arrival", 0, kMembers, 50, nullptr}, [&] {
    aside([&] {
      need(table.take_shares(shares) == kMembers, "a share was there before");
      need(table.expect(parent, kMembers, 1), "expect");
    });
    need(table.arrive(immediates) == 0, "a stale immediate");
    need(met == ++rounds, "the group is not met");
  });
}

/// expect() of a group, up to its return.
void measure_group_expectations() {
  bench::GroupEngines engines;
  measure({"group_expectation", 0, 1, 200, nullptr}, [&] {
    engines.expect();
    aside([&] { engines.feed(); });
  });
}

/// The sender's side of a scatter, from submit() to its completion.
void measure_scatter_sender() {
  BenchEngines engines(kTargets);
  for (uint32_t i = 0; i < 3; ++i) engines.scatter();  // opens the paths
  measure({"scatter56_sender", kTargets, kTargets, 50, nullptr}, [&] {
    engines.send_scatter();
    aside([&] { engines.take_scatter(); });
  });
}

/// A layer of a request, from the store to the word until it is complete on both sides.
void measure_kv_layer(const char* name, uint32_t tensors) {
  bench::KvEngines engines(tensors);
  measure({name, 0, tensors * bench::KvEngines::kPages, 10, nullptr}, [&] {
    engines.push_layer();
    for (bool complete = false; !complete;) {
      engines.turn();
      aside([&] { complete = engines.is_complete(); });
    }
  });
}
void measure_kv_layer_together() { measure_kv_layer("kv_layer1024", 1); }
void measure_kv_layer_apart() { measure_kv_layer("kv_layer1024_apart", 2); }

#ifdef FABRIC_HAS_VERBS
constexpr uint32_t kChain = bench::VerbsRailPair::kChain;

/// Requests of one chain, up to the driver.
void measure_work_requests() {
  bench::VerbsRailPair rails(true);
  measure({"verbs_work_request", 0, kChain, 100, nullptr}, [&] {
    rails.post();
    aside([&] {
      rails.poll_sender();
      rails.poll_receiver();
    });
  });
}

/// The sender's side: one poll(), two signalled completions, which cover the whole chain.
void measure_completions() {
  bench::VerbsRailPair rails(false);
  measure({"verbs_completion", 0, kChain, 100, nullptr}, [&] {
    aside([&] { rails.post(); });
    rails.poll_sender();
  });
}

/// The receiver's side: one poll(), a completion each, and the receives that are posted again.
void measure_immediates() {
  bench::VerbsRailPair rails(true);
  measure({"verbs_immediate", 0, kChain, 100, nullptr}, [&] {
    aside([&] {
      rails.post();
      rails.poll_sender();
    });
    rails.poll_receiver();
  });
}
#endif

struct OwnCase {
  const char* name;
  void (*measure)();  ///< null: not in this build
};

constexpr std::array<OwnCase, 8> kOwnCases{{
    {"group_arrival", &measure_group_arrivals},
    {"group_expectation", &measure_group_expectations},
    {"scatter56_sender", &measure_scatter_sender},
    {"kv_layer1024", &measure_kv_layer_together},
    {"kv_layer1024_apart", &measure_kv_layer_apart},
#ifdef FABRIC_HAS_VERBS
    {"verbs_work_request", &measure_work_requests},
    {"verbs_completion", &measure_completions},
    {"verbs_immediate", &measure_immediates},
#else
    {"verbs_work_request", nullptr},
    {"verbs_completion", nullptr},
    {"verbs_immediate", nullptr},
#endif
}};

void run(const Case& one) {
  if (one.receivers == 0) return measure_counting(one);
  BenchEngines engines(one.receivers);
  measure(one, [&] { (engines.*one.operation)(); });
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string_view> names(argv + 1, argv + argc);
  const auto wanted = [&](const char* name) {
    return names.empty() || std::find(names.begin(), names.end(), name) != names.end();
  };
  try {
    for (const Case& one : kCases) {
      if (wanted(one.name)) run(one);
    }
    for (const OwnCase& one : kOwnCases) {
      if (!wanted(one.name)) continue;
      if (one.measure == nullptr) {
        std::printf("%s 0\n", one.name);
      } else {
        one.measure();
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "instruction_cases: %s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

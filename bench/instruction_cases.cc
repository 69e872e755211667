// What bench/instructions runs under callgrind. Each case warms up, then runs its operations inside
// measured(), whose entries and ends callgrind is told to look for, and tells how many there were.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string_view>
#include <vector>

#include "core/counter_table.h"
#include "stage.h"
#include "stepped_clock.h"

extern "C" [[gnu::noinline]] void measured(const std::function<void()>& operation, uint32_t times) {
  for (uint32_t i = 0; i < times; ++i) operation();
}

namespace {

using namespace fabric;
using bench::need;
using bench::Stage;

struct Case {
  const char* name;
  uint32_t receivers;  ///< engines that are written to; 0: no engine at all
  uint32_t parts;      ///< of one operation: what its price is divided by
  uint32_t times;
  void (Stage::*operation)();
};

constexpr uint32_t kTargets = 56;
constexpr int64_t kStepNs = 100;  // a small write looks at the clock a few times
constexpr std::array<Case, 7> kCases{{
    {"single_write", 1, 1, 2000, &Stage::write},
    {"span64_write", 1, Stage::kSpan, 100, &Stage::span},
    {"scatter56", kTargets, kTargets, 50, &Stage::scatter},
    {"paged1024", 1, Stage::kPages, 10, &Stage::paged},
    {"counted_immediate", 0, 256, 50, nullptr},
    {"message", 1, 1, 500, &Stage::message},
    {"expectation", 1, 1, 2000, &Stage::expectation},
}};

void measure(const Case& one, const std::function<void()>& operation) {
  // Everything that grows when it is first used has grown, and the paths are open.
  for (uint32_t i = 0; i < one.times / 2 + 10; ++i) operation();
  {
    const bench::SteppedClock clock(kStepNs);
    measured(operation, one.times);
  }
  std::printf("%s %u\n", one.name, one.times * one.parts);
}

/// The counter table alone: what a poll hands over, each immediate for another counter than the one
/// before it, so that no run is merged.
void measure_counting(const Case& one) {
  core::CounterTable table({.live_max = 1024});
  std::vector<uint32_t> immediates(one.parts);
  for (uint32_t& immediate : immediates) {
    immediate = core::make_imm(need(table.acquire(0, 0), "acquire"), 1);
  }
  measure(one, [&] { need(table.arrive(immediates) == 0, "a stale immediate"); });
}

void run(const Case& one) {
  if (one.receivers == 0) return measure_counting(one);
  Stage stage(one.receivers);
  measure(one, [&] { (stage.*one.operation)(); });
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string_view> names(argv + 1, argv + argc);
  try {
    for (const Case& one : kCases) {
      if (names.empty() || std::find(names.begin(), names.end(), one.name) != names.end()) run(one);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "instruction_cases: %s\n", error.what());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

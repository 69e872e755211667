// fabric sim: random simulations ("worlds") from a seed, with faults, every promise checked. The
// same seed gives the same run, event by event.

#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "swarm/swarm.h"

namespace fabric::tool {
namespace {

struct Options {
  uint64_t seed = 1;
  uint64_t worlds = 0;  // 0: one, or as many as the seconds allow
  double seconds = 0;
  bool show_plan = false;
  bool json = false;
};

/// Enough worlds for full coverage.
constexpr uint64_t kWorldsForFullCoverage = 500;

/// Totals over all worlds.
struct Sum {
  uint64_t worlds = 0, operations = 0, bytes = 0, trace = 0;
  Nanos virtual_time{};
  swarm::Coverage coverage{};

  void add(const swarm::RunResult& result) {
    ++worlds;
    operations += result.operations;
    bytes += result.bytes_checked;
    virtual_time += result.virtual_time;
    // Depends on the order of the worlds.
    trace = trace * 0x9e3779b97f4a7c15 + result.trace_hash;
    coverage.merge(result.coverage);
  }
};

int report_failure(const Options& options, const swarm::Plan& plan,
                   const swarm::Violation& violation) {
  // With --json, standard output holds only the JSON object.
  std::FILE* text_out = options.json ? stderr : stdout;
  fmt::print(text_out, "seed {}: violated: {}\n  {}\n  at {} ns of virtual time\nshrinking ...\n",
             plan.seed, violation.invariant, violation.detail, violation.at.count());
  std::fflush(text_out);
  const swarm::Shrunk shrunk = swarm::shrink(plan, violation);
  const std::string replay = fmt::format("fabric sim --seed {}", plan.seed);
  if (options.json) {
    const nlohmann::ordered_json report{{"seed", plan.seed},
                                        {"violation", shrunk.violation.invariant},
                                        {"detail", shrunk.violation.detail},
                                        {"at_ns", shrunk.violation.at.count()},
                                        {"plan", swarm::describe(shrunk.plan)},
                                        {"replay", replay}};
    fmt::print("{}\n", report.dump());
    return 1;
  }
  fmt::print("{} of {} actions and {} of {} faults are enough ({} plans tried):\n{}",
             shrunk.plan.actions.size(), plan.actions.size(), shrunk.plan.faults.size(),
             plan.faults.size(), shrunk.tries, swarm::describe(shrunk.plan));
  fmt::print("{} s  violated: {}: {}\n", static_cast<double>(shrunk.violation.at.count()) * 1e-9,
             shrunk.violation.invariant, shrunk.violation.detail);
  fmt::print("replay with: {}\n", replay);
  return 1;
}

void report_json(const Options& options, const Sum& sum) {
  nlohmann::ordered_json coverage;
  for (const auto& [section, names] : sum.coverage.sections()) coverage[section] = names;
  const nlohmann::ordered_json report{{"seed", options.seed},
                                      {"worlds", sum.worlds},
                                      {"operations", sum.operations},
                                      {"bytes_checked", sum.bytes},
                                      {"virtual_ns", sum.virtual_time.count()},
                                      {"coverage", coverage},
                                      {"missing", sum.coverage.missing()},
                                      {"trace", fmt::format("{:016x}", sum.trace)}};
  fmt::print("{}\n", report.dump());
}

void report_text(const Options& options, const Sum& sum) {
  fmt::print("{}", sum.coverage.table());
  const auto missing = sum.coverage.missing();
  if (sum.worlds >= kWorldsForFullCoverage) {
    for (const std::string& name : missing) fmt::print("not covered: {}\n", name);
  } else if (!missing.empty()) {
    fmt::print(
        "{} known events were not reached: full coverage takes more worlds (--worlds 1000)\n",
        missing.size());
  }
  fmt::print("{} worlds from seed {}: every promise held\n", sum.worlds, options.seed);
  fmt::print("{} operations completed, {} bytes compared, {:.3f} s of virtual time\n",
             sum.operations, sum.bytes, static_cast<double>(sum.virtual_time.count()) * 1e-9);
  fmt::print("replay with: fabric sim --seed {} --worlds {}\n", options.seed, sum.worlds);
  fmt::print("trace {:016x}\n", sum.trace);
}

/// The parser alone would accept -1 as 2^64 - 1.
std::string whole_number(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool good = error == std::errc{} && end == text.data() + text.size();
  return good ? "" : "must be a whole number below 2^64, not " + text;
}

std::string positive_time(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool good =
      error == std::errc{} && end == text.data() + text.size() && value > 0 && std::isfinite(value);
  return good ? "" : "must be a number of seconds above 0, not " + text;
}

int run(const Options& options) {
  using Clock = std::chrono::steady_clock;
  // Printed first, so that a run that hangs or crashes can be repeated.
  fmt::print(options.json ? stderr : stdout, "seed {}\n", options.seed);
  std::fflush(stdout);
  const uint64_t worlds =
      options.worlds > 0 ? options.worlds : (options.seconds > 0 ? UINT64_MAX : 1);
  const auto start = Clock::now();
  const bool on_terminal = ::isatty(STDERR_FILENO) != 0;
  auto last_progress = start;
  Sum sum;
  for (uint64_t i = 0; i < worlds; ++i) {
    const std::chrono::duration<double> spent = Clock::now() - start;
    if (options.seconds > 0 && i > 0 && spent.count() >= options.seconds) break;
    if (on_terminal && Clock::now() - last_progress >= std::chrono::seconds(1)) {
      last_progress = Clock::now();
      fmt::print(stderr, "\r{} worlds in {:.0f} s", i, spent.count());
    }
    const swarm::Plan plan = swarm::draw_plan(options.seed + i);
    if (options.show_plan) fmt::print(options.json ? stderr : stdout, "{}", swarm::describe(plan));
    const swarm::RunResult result = swarm::run(plan);
    if (result.violation) return report_failure(options, plan, *result.violation);
    sum.add(result);
  }
  if (last_progress != start) fmt::print(stderr, "\r\033[K");
  options.json ? report_json(options, sum) : report_text(options, sum);
  return 0;
}

}  // namespace

Command sim_command() {
  auto options = std::make_shared<Options>();
  const auto at_least_one = [](const std::string& text) {
    const std::string why = whole_number(text);
    return why.empty() && text == "0" ? std::string("must be at least 1") : why;
  };
  return {
      .name = "sim",
      .help = "Run random simulations with faults and check every promise",
      .footer =
          "Examples:\n"
          "  fabric sim --worlds 100\n"
          "  fabric sim --seconds 60 --json\n"
          "  fabric sim --seed 7 --plan\n\n"
          "Exit code 0: every promise held in every world; 1: one was violated; 2: bad options.\n"
          "The plan of a world that violates a promise is shrunk and printed;\n"
          "`fabric sim --seed N` runs that world again.",
      .options = {{.name = "--seed",
                   .help = "Seed of the first world; the next ones follow",
                   .target = &options->seed,
                   .show_default = true,
                   .check = whole_number},
                  {.name = "--worlds",
                   .help = "How many worlds; 1 without --seconds",
                   .target = &options->worlds,
                   .check = at_least_one},
                  {.name = "--seconds",
                   .help = "Start new worlds for that long",
                   .target = &options->seconds,
                   .check = positive_time},
                  {.name = "--plan",
                   .help = "Print the plan of each world before it runs",
                   .target = &options->show_plan},
                  {.name = "--json",
                   .help = "The report as JSON; the seed goes to standard error",
                   .target = &options->json}},
      .run = [options] { return run(*options); }};
}

}  // namespace fabric::tool

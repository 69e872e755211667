// fabric sim: random worlds from a seed, in which everything happens that can, and every promise is
// on_terminal. The same seed gives the same world, event by event.

#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "swarm/swarm.h"
#include "commands.h"

namespace fabric::tool {
namespace {

struct Options {
  uint64_t seed = 1;
  uint64_t worlds = 0;  // 0: one, or as many as the seconds allow
  double seconds = 0;
  bool plan = false;
  bool json = false;
};

/// So many worlds should have seen everything that is known to happen.
constexpr uint64_t kWorldsForFullCoverage = 500;

/// Everything that was seen, over all worlds.
struct Sum {
  uint64_t worlds = 0, operations = 0, bytes = 0, trace = 0;
  Nanos virtual_time{};
  swarm::Coverage coverage{};

  void add(const swarm::RunResult& result) {
    ++worlds;
    operations += result.operations;
    bytes += result.bytes_checked;
    virtual_time += result.virtual_time;
    // In order, so that two worlds that change slots are not the same.
    trace = trace * 0x9e3779b97f4a7c15 + result.trace_hash;
    coverage.merge(result.coverage);
  }
};

int report_failure(const Options& options, const swarm::Plan& plan,
                   const swarm::Violation& violation) {
  // What a person reads on the session; with --json standard output is for the program.
  std::FILE* text_out = options.json ? stderr : stdout;
  fmt::print(text_out, "seed {}: broken: {}\n  {}\n  at {} ns of virtual time\nshrinking ...\n",
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
  fmt::print("{} actions and {} faults are enough (of {} and {}; {} plans tried):\n{}",
             shrunk.plan.actions.size(), shrunk.plan.faults.size(), plan.actions.size(),
             plan.faults.size(), shrunk.tries, swarm::describe(shrunk.plan));
  fmt::print("{} s  broken: {}: {}\n", static_cast<double>(shrunk.violation.at.count()) * 1e-9,
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
    for (const std::string& name : missing) fmt::print("never happened: {}\n", name);
  } else if (!missing.empty()) {
    fmt::print("{} more that can happen did not: it takes a crowd (--worlds 1000) to see all\n",
               missing.size());
  }
  fmt::print("{} worlds from seed {} on: every promise held\n", sum.worlds, options.seed);
  fmt::print("{} operations ended, {} bytes compared, {:.3f} s of virtual time\n", sum.operations,
             sum.bytes, static_cast<double>(sum.virtual_time.count()) * 1e-9);
  fmt::print("replay with: fabric sim --seed {} --worlds {}\n", options.seed, sum.worlds);
  fmt::print("trace {:016x}\n", sum.trace);
}

/// CLI11 alone takes -1 for the largest number there is.
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
  // First of all, so that a run that hangs or crashes can be repeated.
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
    if (options.plan) fmt::print(options.json ? stderr : stdout, "{}", swarm::describe(plan));
    const swarm::RunResult result = swarm::run(plan);
    if (result.violation) return report_failure(options, plan, *result.violation);
    sum.add(result);
  }
  if (last_progress != start) fmt::print(stderr, "\r\033[K");
  options.json ? report_json(options, sum) : report_text(options, sum);
  return 0;
}

}  // namespace

void add_sim(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand(
      "sim", "Play random worlds on the simulator and watch every promise in them");
  verb->add_option("--seed", options->seed, "The first world; the next ones follow it")
      ->check(whole_number)
      ->capture_default_str();
  verb->add_option("--worlds", options->worlds, "How many worlds; 1 without --seconds")
      ->check(whole_number)
      ->check([](const std::string& text) { return text == "0" ? "must be at least 1" : ""; });
  verb->add_option("--seconds", options->seconds, "Begin new worlds for that long")
      ->check(positive_time);
  verb->add_flag("--plan", options->plan, "Tell each world before it is played");
  verb->add_flag("--json", options->json, "The report as JSON; the seed goes to standard error");
  verb->footer(
      "Examples:\n"
      "  fabric sim --worlds 100\n"
      "  fabric sim --seconds 60 --json\n"
      "  fabric sim --seed 7 --plan\n\n"
      "Exit code 0: every promise held in every world; 1: one was broken; 2: bad options.\n"
      "A world that breaks a promise is shrunk to a short plan; `fabric sim --seed N`\n"
      "plays it again.");
  verb->callback([options, &exit_code] { exit_code = run(*options); });
}

}  // namespace fabric::tool

#include "report.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace fabric::tool::bench {
namespace {

using Json = nlohmann::ordered_json;

/// Median and range over the repetitions.
struct Spread {
  double median = 0, least = 0, most = 0;
};

template <class Figure>
Spread spread(const Case& one, Figure figure) {
  std::vector<double> values;
  for (const Repetition& repetition : one.repetitions) values.push_back(figure(repetition));
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return {(values[(n - 1) / 2] + values[n / 2]) / 2, values.front(), values.back()};
}

Spread rate(const Case& one) {
  return spread(one, [](auto& r) { return static_cast<double>(r.counts) / r.seconds; });
}
Spread speed(const Case& one) {
  return spread(one, [](auto& r) { return static_cast<double>(r.bytes) / r.seconds * 1e-9; });
}
Spread half(const Case& one) {
  return spread(one, [](auto& r) { return r.half_p50; });
}
Spread half_p99(const Case& one) {
  return spread(one, [](auto& r) { return r.half_p99; });
}
Spread word(const Case& one) {
  return spread(one, [](auto& r) { return r.word_p50; });
}
Spread word_p99(const Case& one) {
  return spread(one, [](auto& r) { return r.word_p99; });
}
Spread cpu_per_gb(const Case& one, double Repetition::*cpu) {
  return spread(one, [&](auto& r) { return r.*cpu / static_cast<double>(r.bytes) * 1e9; });
}
/// In percent of a core, for one engine: there is one at each side.
double idle_percent(const Case& one) {
  return spread(one, [](auto& r) { return (r.sender_cpu + r.receiver_cpu) / 2 / r.seconds * 100; })
      .median;
}

std::string readable(uint64_t bytes) {
  constexpr uint64_t kKibi = 1024;
  if (bytes >= kKibi * kKibi * kKibi && bytes % (kKibi * kKibi * kKibi) == 0) {
    return fmt::format("{} GiB", bytes / kKibi / kKibi / kKibi);
  }
  if (bytes >= kKibi * kKibi && bytes % (kKibi * kKibi) == 0) {
    return fmt::format("{} MiB", bytes / kKibi / kKibi);
  }
  if (bytes >= kKibi && bytes % kKibi == 0) return fmt::format("{} KiB", bytes / kKibi);
  return fmt::format("{} B", bytes);
}

/// Three significant digits with a unit prefix.
std::string scaled(double value) {
  constexpr std::array<std::pair<double, const char*>, 3> kUnits{
      {{1e9, "G"}, {1e6, "M"}, {1e3, "k"}}};
  for (const auto& [unit, name] : kUnits) {
    if (value >= unit) return fmt::format("{:.3g} {}", value / unit, name);
  }
  return fmt::format("{:.3g} ", value);
}

/// The range over the repetitions, relative to the median.
std::string apart(const Spread& s) {
  return fmt::format("{:+.0f}..{:+.0f} %", (s.least / s.median - 1) * 100,
                     (s.most / s.median - 1) * 100);
}

bool timed(const Case& one) { return one.repetitions.front().half_p50 > 0; }
bool word_timed(const Case& one) { return one.repetitions.front().word_p50 > 0; }

Json percentiles(const Spread& middle, const Spread& late) {
  return {{"p50", middle.median}, {"p99", late.median},      {"least", middle.least},
          {"most", middle.most},  {"p99_least", late.least}, {"p99_most", late.most}};
}

}  // namespace

Report::Report(const BenchPlan& plan, bool json)
    : plan_(plan),
      json_(json),
      colour_(!json && ::isatty(STDOUT_FILENO) == 1 && std::getenv("NO_COLOR") == nullptr),
      watched_(::isatty(STDERR_FILENO) == 1) {}

void Report::head() const {
  fmt::print("{} over {}, {} progress, {} memory, {} x {} s\n", to_string(plan_.benchmark),
             plan_.network, plan_.threaded ? "threaded" : "inline",
             plan_.registered ? "registered" : "allocated", plan_.repetitions, plan_.seconds);
  if (plan_.benchmark == Benchmark::kIdle) return;
  const char* const timing =
      plan_.benchmark == Benchmark::kKv ? "word, post, p99" : "half trip, p99";
  fmt::print("{:>9} {:>10} {:>8} {:>14} {:>16} {:>20}  {}\n", "size", "per second", "GB/s", "range",
             timing, "CPU s/GB, tx and rx", "data");
}

void Report::add(const Case& one) {
  wipe();
  if (!json_ && !begun_) head();
  begun_ = true;
  json_ ? add_json(one) : add_text(one);
  std::fflush(stdout);
}

void Report::progress(uint64_t size, uint32_t repetition) {
  if (!watched_) return;
  fmt::print(stderr, "\r{} {}: {} of {} \x1b[K", to_string(plan_.benchmark), readable(size),
             repetition, plan_.repetitions);
  std::fflush(stderr);
  dirty_ = true;
}

void Report::wipe() {
  if (dirty_) fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  dirty_ = false;
}

void Report::add_text(const Case& one) const {
  if (plan_.benchmark == Benchmark::kIdle) {
    fmt::print("{:.2f} % of a core per engine\n", idle_percent(one));
    return;
  }
  const Spread ops = rate(one);
  const std::string trip =
      timed(one)        ? fmt::format("{:.0f}, {:.0f} ns", half(one).median, half_p99(one).median)
      : word_timed(one) ? fmt::format("{:.0f}, {:.0f} ns", word(one).median, word_p99(one).median)
                        : "-";
  const char* data = one.verified ? "ok" : "WRONG";
  const char* colour = !colour_ ? "" : one.verified ? "\x1b[32m" : "\x1b[31;1m";
  fmt::print("{:>9} {:>10} {:>8.3f} {:>14} {:>16} {:>20}  {}{}{}\n", readable(one.size),
             scaled(ops.median), speed(one).median, apart(ops), trip,
             fmt::format("{:.3f} {:.3f}", cpu_per_gb(one, &Repetition::sender_cpu).median,
                         cpu_per_gb(one, &Repetition::receiver_cpu).median),
             colour, data, colour_ ? "\x1b[0m" : "");
}

void Report::add_json(const Case& one) const {
  const bool idle = plan_.benchmark == Benchmark::kIdle;
  const auto figures = [idle](const Spread& s) {
    return idle ? Json() : Json{{"median", s.median}, {"least", s.least}, {"most", s.most}};
  };
  const char* name = to_string(plan_.benchmark);
  Json line{{"case", idle ? name : fmt::format("{}/{}", name, one.size)},
            {"benchmark", name},
            {"network", plan_.network},
            {"bytes", one.size},
            {"window", plan_.window},
            {"group", plan_.group},
            {"pages", plan_.pages},
            {"targets", plan_.targets},
            {"layers", plan_.layers},
            {"tensors", plan_.tensors},
            {"memory", plan_.registered ? "registered" : "allocated"},
            {"footprint", plan_.footprint},
            {"rails", plan_.rails},
            {"progress", plan_.threaded ? "threaded" : "inline"},
            {"seconds", plan_.seconds},
            {"repetitions", one.repetitions.size()}};
  line["ops_per_second"] = figures(rate(one));
  line["gb_per_second"] = figures(speed(one));
  line["half_round_trip_ns"] = nullptr;
  if (timed(one)) line["half_round_trip_ns"] = percentiles(half(one), half_p99(one));
  line["word_to_post_ns"] = nullptr;
  if (word_timed(one)) line["word_to_post_ns"] = percentiles(word(one), word_p99(one));
  line["cpu_seconds_per_gb"] = nullptr;
  if (!idle) {
    const Spread out = cpu_per_gb(one, &Repetition::sender_cpu);
    const Spread in = cpu_per_gb(one, &Repetition::receiver_cpu);
    line["cpu_seconds_per_gb"] = {{"sender", out.median},       {"receiver", in.median},
                                  {"sender_least", out.least},  {"sender_most", out.most},
                                  {"receiver_least", in.least}, {"receiver_most", in.most}};
  }
  line["cpu_percent"] = idle ? Json(idle_percent(one)) : Json();
  line["verified"] = one.verified;
  fmt::print("{}\n", line.dump());
}

}  // namespace fabric::tool::bench

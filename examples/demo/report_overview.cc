#include <algorithm>
#include <cstdio>

#include "report.h"
#include "svg.h"

// The picture of the whole run: what every process computed, received and generated, and when.

namespace demo {

namespace {

constexpr double kWidth = 1200;
constexpr double kLeft = 90;
constexpr double kRight = 1190;
constexpr double kTop = 64;
constexpr double kBarHeight = 9;

/// A bar, and below which others it has to be because they overlap.
struct Bar {
  int64_t from_ns = 0;
  int64_t to_ns = 0;
  std::string css_class{};
  std::string title{};
  uint32_t level = 0;
};

/// The first level that is free at the beginning of each bar. Returns how many there are.
uint32_t assign_levels(std::vector<Bar>& bars) {
  std::ranges::sort(bars, {}, &Bar::from_ns);
  std::vector<int64_t> free_at;
  for (Bar& bar : bars) {
    const auto at = std::ranges::find_if(free_at, [&](int64_t ns) { return ns <= bar.from_ns; });
    bar.level = static_cast<uint32_t>(at - free_at.begin());
    if (at == free_at.end()) free_at.push_back(0);
    free_at[bar.level] = std::max(bar.to_ns, bar.from_ns);
  }
  return std::max<uint32_t>(1, static_cast<uint32_t>(free_at.size()));
}

std::string request_title(uint64_t number, uint32_t attempt, const char* what) {
  std::string out = "request " + std::to_string(number);
  if (attempt > 0) out += ", attempt " + std::to_string(attempt);
  return out + ": " + what;
}

/// Chunks that a prefiller computed.
void add_prefill_bars(const Records& records, const std::string& name, std::vector<Bar>& bars) {
  for (const auto& [number, request] : records.requests) {
    for (const auto& [index, attempt] : request.attempts) {
      if (attempt.prefiller != name) continue;
      for (const ComputedLayer& layer : attempt.computed) {
        if (layer.layer == 0) {
          bars.push_back({.from_ns = layer.begin_ns,
                          .css_class = "compute",
                          .title = request_title(number, index, "prefill")});
        }
        if (!bars.empty()) bars.back().to_ns = layer.end_ns;
      }
    }
  }
}

/// Transfers, failures and what was generated at a decoder.
void add_decode_bars(const Records& records, const std::string& name, std::vector<Bar>& bars) {
  for (const auto& [number, request] : records.requests) {
    for (const auto& [index, attempt] : request.attempts) {
      if (attempt.decoder != name) continue;
      if (attempt.failed_ns > 0) {
        bars.push_back({attempt.started_ns, attempt.failed_ns, "failed",
                        request_title(number, index, ("failed: " + attempt.why).c_str())});
        if (attempt.pages_free_ns > attempt.failed_ns) {
          bars.push_back({attempt.failed_ns, attempt.pages_free_ns, "fenced",
                          request_title(number, index, "pages not proved quiet yet")});
        }
      } else if (attempt.complete_ns > 0) {
        bars.push_back({attempt.started_ns, attempt.complete_ns, "transfer",
                        request_title(number, index, "waits for its cache, layer by layer")});
        bars.push_back({attempt.complete_ns, std::max(request.done_ns, attempt.complete_ns),
                        "generate", request_title(number, index, "generates")});
      }
    }
  }
}

}  // namespace

std::string draw_overview(Supervisor& supervisor, const Outcome& outcome) {
  const Records& records = supervisor.records();
  int64_t begin_ns = INT64_MAX, end_ns = 0;
  for (const auto& [number, request] : records.requests) {
    begin_ns = std::min(begin_ns, request.submitted_ns);
    end_ns = std::max(end_ns, request.done_ns);
  }
  if (end_ns <= begin_ns) return "<p>No request was answered.</p>\n";
  const double scale = (kRight - kLeft) / static_cast<double>(end_ns - begin_ns);
  const auto x = [&](int64_t ns) {
    return kLeft + scale * static_cast<double>(std::clamp(ns, begin_ns, end_ns) - begin_ns);
  };
  std::vector<std::pair<std::string, std::vector<Bar>>> members;
  std::vector<uint32_t> levels;
  double height = kTop;
  for (const Process::Role role : {Process::Role::kPrefiller, Process::Role::kDecoder}) {
    for (const auto& process : supervisor.processes()) {
      if (process->role != role) continue;
      std::vector<Bar> bars;
      add_prefill_bars(records, process->name, bars);
      add_decode_bars(records, process->name, bars);
      levels.push_back(assign_levels(bars));
      height += levels.back() * (kBarHeight + 1) + 10;
      members.emplace_back(process->name, std::move(bars));
    }
  }
  Svg svg(kWidth, height + 20, "What every process did, over time");
  for (int64_t s = 0; s * 1'000'000'000 <= end_ns - begin_ns; ++s) {
    const double at = x(begin_ns + s * 1'000'000'000);
    svg.vertical(at, kTop, height, "grid");
    svg.text(at, height + 14, Svg::Anchor::kMiddle, std::to_string(s) + " s");
  }
  double y = kTop + 5;
  for (size_t i = 0; i < members.size(); ++i) {
    svg.text(kLeft - 6, y + kBarHeight, Svg::Anchor::kEnd, members[i].first, "name");
    for (const Bar& bar : members[i].second) {
      svg.box({x(bar.from_ns), y + bar.level * (kBarHeight + 1), x(bar.to_ns) - x(bar.from_ns),
               kBarHeight},
              bar.css_class, bar.title);
    }
    y += levels[i] * (kBarHeight + 1) + 10;
  }
  const std::pair<int64_t, std::string> marks[] = {
      {outcome.killed_ns, outcome.killed + " killed"},
      {outcome.joined_ns, outcome.joined + " started"},
      {outcome.stopped_ns, outcome.stopped + " stopped"},
      {outcome.continued_ns, outcome.stopped + " continued"},
      {outcome.drained_ns, outcome.drained + " drained"}};
  double label_y = 12;  // one below the other, so that labels of close events do not overlap
  for (const auto& [at_ns, text] : marks) {
    if (at_ns == 0) continue;
    svg.vertical(x(at_ns), label_y + 2, height, "mark", text);
    const bool late = x(at_ns) > kRight - 120;
    svg.text(x(at_ns) + (late ? -4 : 4), label_y + 4,
             late ? Svg::Anchor::kEnd : Svg::Anchor::kStart, text, "mark-label");
    label_y += 11;
  }
  return svg.str();
}

}  // namespace demo

#include "report.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "clock.h"
#include "svg.h"

namespace demo {

namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --faint: #d8dee4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --paper: #15181c; --faint: #39414a; } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 1240px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
svg { width: 100%; height: auto; display: block; }
.label, .name, .mark-label { font: 10px system-ui, sans-serif; fill: var(--ink); }
.name { font-weight: 600; } .mark-label { font-size: 9px; }
.grid { stroke: var(--faint); stroke-width: 0.5; }
.mark { stroke: #d1242f; stroke-width: 1; } .done { stroke: #1a7f37; stroke-width: 1; }
rect.compute { fill: #3b82c4; } rect.transfer { fill: #e8912d; } rect.generate { fill: #58a55c; }
rect.failed { fill: #d1242f; } rect.fenced { fill: #d1242f; opacity: 0.35; }
.key { display: inline-block; width: 0.9em; height: 0.9em; margin: 0 0.3em 0 1em; }
table { border-collapse: collapse; } td, th { padding: 0.15em 0.8em 0.15em 0; text-align: left; }
td.number, th.number { text-align: right; }
.holds { color: #1a7f37; } .fails { color: #d1242f; font-weight: 600; }
summary { cursor: pointer; margin: 0.6em 0; }
)";

// Checks the rendered page and records what is wrong with it, for the test that opens it in a
// browser: labels outside of their picture, pictures without size.
constexpr const char* kScript = R"(
window.addEventListener("load", () => {
  const wrong = [];
  for (const details of document.querySelectorAll("details")) details.open = true;
  for (const svg of document.querySelectorAll("svg")) {
    const frame = svg.getBoundingClientRect();
    const name = svg.getAttribute("aria-label");
    if (frame.width < 300 || frame.height < 40) wrong.push(name + ": no size");
    for (const item of svg.querySelectorAll("text, rect")) {
      const box = item.getBoundingClientRect();
      if (box.left < frame.left - 1 || box.right > frame.right + 1 ||
          box.top < frame.top - 1 || box.bottom > frame.bottom + 1) {
        wrong.push(name + ": outside: " + (item.textContent || item.className.baseVal));
      }
    }
  }
  document.body.dataset.wrong = wrong.join("; ");
  document.body.dataset.pictures = document.querySelectorAll("svg").length;
});
)";

std::string cell(const std::string& text, bool number = false) {
  return (number ? "<td class=\"number\">" : "<td>") + escaped(text) + "</td>";
}

std::string checks_section(const std::vector<Check>& checks) {
  std::string out = "<table id=\"checks\">\n";
  for (const Check& check : checks) {
    out += std::string("<tr><td class=\"") + (check.holds ? "holds\">ok" : "fails\">FAILED") +
           "</td>" + cell(check.text) + "</tr>\n";
  }
  return out + "</table>\n";
}

constexpr const char* kKeys =
    "<p><span class=\"key\" style=\"background:#3b82c4\"></span>prefill computes"
    "<span class=\"key\" style=\"background:#e8912d\"></span>cache arrives"
    "<span class=\"key\" style=\"background:#58a55c\"></span>decode generates"
    "<span class=\"key\" style=\"background:#d1242f\"></span>attempt that failed"
    "<span class=\"key\" style=\"background:#d1242f;opacity:0.35\"></span>"
    "its pages, until proved quiet. Point at a bar for its request.</p>\n";

/// The request of the median time to the first token among those answered on the first
/// attempt.
uint64_t typical_request(const Records& records) {
  std::vector<std::pair<int64_t, uint64_t>> times;
  for (const auto& [number, request] : records.requests) {
    if (request.done_ns == 0 || request.attempts.size() != 1) continue;
    times.emplace_back(request.first_token_ns - request.submitted_ns, number);
  }
  std::ranges::sort(times);
  return times.empty() ? 0 : times[times.size() / 2].second;
}

std::string layers_section(const Records& records, const Outcome& outcome) {
  const uint64_t typical = typical_request(records);
  std::string out = "<h2>Compute and transfer, layer by layer</h2>\n";
  if (typical == 0) return out + "<p>No request was answered on the first attempt.</p>\n";
  out +=
      "<p>Request " + std::to_string(typical) +
      ", the median of those answered on the first attempt. A layer is sent while the next one is "
      "computed; the decoder waits only for the last.</p>\n";
  return out + draw_request(typical, records.requests.at(typical), outcome.workload.model.layers);
}

std::string deaths_section(const Records& records, const Outcome& outcome) {
  std::string out =
      "<h2>When a member died</h2>\n<p>" + escaped(outcome.killed) + " was killed and " +
      escaped(outcome.stopped) +
      " was stopped past its lease, each in the middle of a prompt. The requests that "
      "they had were sent again, into other pages. The old pages went back to the "
      "pool only when no late write could land there: that is the time from failed to "
      "proved quiet.</p>\n";
  for (const auto& [number, request] : records.requests) {
    const bool failed = std::ranges::any_of(
        request.attempts, [](const auto& attempt) { return attempt.second.failed_ns > 0; });
    if (!failed) continue;
    out += "<details open><summary>Request " + std::to_string(number) + ": " +
           std::to_string(request.attempts.size()) + " attempts</summary>\n" +
           draw_request(number, request, outcome.workload.model.layers) + "</details>\n";
  }
  return out;
}

std::string events_section(const Records& records, int64_t begun_ns) {
  std::string out = "<h2>Events</h2>\n<table>\n";
  for (const TimelineEvent& event : records.events) {
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%.3f s",
                  static_cast<double>(event.at_ns - begun_ns) / 1e9);
    out += "<tr>" + cell(seconds, true) + cell(event.member) + cell(event.text) + "</tr>\n";
  }
  return out + "</table>\n";
}

std::string members_section(Supervisor& supervisor) {
  std::string out =
      "<h2>Members</h2>\n<table>\n<tr><th>process</th><th class=\"number\">pid</th><th>state</th>"
      "<th class=\"number\">requests</th><th class=\"number\">TTFT p50</th>"
      "<th class=\"number\">p99</th><th class=\"number\">pages</th></tr>\n";
  for (const Row& row : supervisor.rows(supervisor.begun_ns(), now_ns())) {
    char p50[32] = "", p99[32] = "";
    if (row.window.requests > 0) {
      std::snprintf(p50, sizeof(p50), "%.1f ms", row.window.p50_ms);
      std::snprintf(p99, sizeof(p99), "%.1f ms", row.window.p99_ms);
    }
    out += "<tr>" + cell(row.name) + cell(std::to_string(row.pid), true) + cell(row.state) +
           cell(std::to_string(row.requests), true) + cell(p50, true) + cell(p99, true) +
           cell(row.pages > 0 ? std::to_string(row.pages) : "", true) + "</tr>\n";
  }
  return out + "</table>\n";
}

}  // namespace

Check write_report(const std::string& path, Supervisor& supervisor, const Outcome& outcome,
                   const std::vector<Check>& checks) {
  const Records& records = supervisor.records();
  const std::filesystem::path file(path);
  std::error_code none;
  if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path(), none);
  std::ofstream out(file);
  out << "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
         "<meta name=\"viewport\" content=\"width=device-width\">\n"
         "<title>fabric-lib demo</title>\n<style>"
      << kStyle
      << "</style>\n</head>\n<body>\n<h1>A transformer served by processes that come and "
         "go</h1>\n<p>fabric-lib "
      << fabric::version() << ", network " << escaped(outcome.network)
      << ". Prefillers: tensor parallel " << outcome.workload.prefill.tp_size << ", pages of "
      << outcome.workload.prefill.page_tokens << " tokens; decoders: tensor parallel "
      << outcome.workload.decode.tp_size << ", pages of " << outcome.workload.decode.page_tokens
      << " tokens.</p>\n"
      << checks_section(checks) << "<h2>All processes</h2>\n"
      << kKeys << draw_overview(supervisor, outcome) << layers_section(records, outcome)
      << deaths_section(records, outcome) << members_section(supervisor)
      << events_section(records, supervisor.begun_ns()) << "<script>" << kScript
      << "</script>\n</body>\n</html>\n";
  out.close();
  return {.holds = out.good(),
          .text = "report: " + path + (out.good() ? "" : " cannot be written")};
}

}  // namespace demo

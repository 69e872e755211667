#include <algorithm>
#include <cstdarg>
#include <cstdio>

#include "scenario.h"

// The final checks: each states a condition and the measured values.

namespace demo {

namespace {

using ull = unsigned long long;

double millis(int64_t ns) { return static_cast<double>(ns) / 1e6; }

/// 50592 as "50,592".
std::string grouped(uint64_t number) {
  std::string out = std::to_string(number);
  for (size_t at = out.size(); at > 3;) out.insert(at -= 3, 1, ',');
  return out;
}

/// "1 attempt", "2 attempts".
std::string counted(uint64_t number, const char* what) {
  return grouped(number) + " " + what + (number == 1 ? "" : "s");
}

/// Attempts that a prefiller did not complete because it was killed or stopped.
struct Interrupted {
  uint64_t attempts = 0;
  int64_t last_failed_ns = 0;
  int64_t last_pages_free_ns = 0;
  int64_t last_answer_ns = 0;
  bool all_answered = true;
  bool all_pages_free = true;
};

class FinalChecks {
 public:
  FinalChecks(Supervisor& supervisor, const Outcome& outcome)
      : supervisor_(supervisor), records_(supervisor.records()), outcome_(outcome) {}

  std::vector<Check> run_chaos() {
    check_tokens();
    check_chaos();
    check_pages();
    check_cleanup();
    return std::move(checks_);
  }

  std::vector<Check> run() {
    check_tokens();
    check_sent_again();
    check_kill();
    check_stop();
    check_join();
    check_drain();
    check_pages();
    report_overlap();
    check_cleanup();
    return std::move(checks_);
  }

 private:
  [[gnu::format(printf, 3, 4)]] void check(bool holds, const char* format, ...) {
    char text[256];
    va_list values;
    va_start(values, format);
    std::vsnprintf(text, sizeof(text), format, values);
    va_end(values);
    checks_.push_back({holds, text});
  }

  void check_tokens() {
    uint64_t equal = 0, tokens = 0;
    for (const auto& [number, request] : records_.requests) {
      const auto expected = outcome_.expected.find(request.prompt);
      if (expected == outcome_.expected.end() || request.tokens != expected->second) continue;
      if (request.answers_differ) continue;
      ++equal;
      tokens += request.tokens.size();
    }
    const uint64_t requests = records_.requests.size();
    check(requests > 0 && equal == requests && (outcome_.wanted == 0 || equal == outcome_.wanted),
          "tokens: %s of %s requests answered with the %s tokens of the one-process run",
          grouped(equal).c_str(), grouped(requests).c_str(), grouped(tokens).c_str());
  }

  void check_chaos() {
    bool all = true;
    for (const char* what : {"killed", "stopped"}) {
      std::string counted;
      for (const char* role : {"router", "prefillers", "decoders"}) {
        const auto at = outcome_.chaos.find(std::string(what) + " " + role);
        const uint64_t times = at == outcome_.chaos.end() ? 0 : at->second;
        all = all && times > 0;
        counted += std::string(counted.empty() ? "" : ", ") + role + " " + std::to_string(times);
      }
      check(all, "%s: %s", what, counted.c_str());
    }
    uint64_t failed = 0;
    for (const auto& [number, request] : records_.requests) {
      for (const auto& [index, attempt] : request.attempts) failed += attempt.failed_ns > 0;
    }
    check(records_.sent_again() > 0, "sent again: %s times; %s attempts failed",
          grouped(records_.sent_again()).c_str(), grouped(failed).c_str());
  }

  void check_sent_again() {
    uint64_t failed = 0, open = 0;
    std::map<std::string, uint64_t> reasons;
    for (const auto& [number, request] : records_.requests) {
      if (request.done_ns == 0) ++open;
      for (const auto& [index, attempt] : request.attempts) {
        if (attempt.failed_ns == 0) continue;
        ++failed;
        ++reasons[attempt.why];
      }
    }
    std::string why;
    for (const auto& [reason, count] : reasons) {
      why += (why.empty() ? ": " : ", ") + std::to_string(count) + " " + reason;
    }
    check(open == 0 && failed > 0, "sent again: %s, %s failed%s; %s not answered",
          counted(records_.sent_again(), "request").c_str(), counted(failed, "attempt").c_str(),
          why.c_str(), grouped(open).c_str());
  }

  Interrupted interrupted(const std::string& prefiller, int64_t from_ns, int64_t to_ns) const {
    Interrupted out;
    for (const auto& [number, request] : records_.requests) {
      for (const auto& [index, attempt] : request.attempts) {
        if (attempt.prefiller != prefiller || attempt.failed_ns < from_ns) continue;
        if (attempt.failed_ns >= to_ns) continue;
        ++out.attempts;
        out.last_failed_ns = std::max(out.last_failed_ns, attempt.failed_ns);
        out.last_pages_free_ns = std::max(out.last_pages_free_ns, attempt.pages_free_ns);
        out.last_answer_ns = std::max(out.last_answer_ns, request.done_ns);
        out.all_answered = out.all_answered && request.done_ns > 0;
        // An attempt that could not even start leased nothing.
        out.all_pages_free =
            out.all_pages_free && (attempt.pages_free_ns > 0 || attempt.computed.empty());
      }
    }
    return out;
  }

  void check_kill() {
    const int64_t at_ns = outcome_.killed_ns;
    if (at_ns == 0) return check(false, "killed: no prefiller");
    const Interrupted seen = interrupted(outcome_.killed, at_ns, INT64_MAX);
    check(seen.attempts > 0 && seen.all_answered,
          "killed: %s; %s failed after %.0f ms, all requests answered after %.0f ms",
          outcome_.killed.c_str(), counted(seen.attempts, "attempt").c_str(),
          millis(seen.last_failed_ns - at_ns), millis(seen.last_answer_ns - at_ns));
    check(seen.all_pages_free, "killed: %s; pages proved quiet after %.0f ms",
          outcome_.killed.c_str(), millis(seen.last_pages_free_ns - at_ns));
  }

  void check_stop() {
    const int64_t at_ns = outcome_.stopped_ns;
    if (outcome_.continued_ns == 0) return check(false, "stopped: no prefiller that continued");
    const Interrupted seen = interrupted(outcome_.stopped, at_ns, INT64_MAX);
    check(seen.attempts > 0 && seen.all_answered && seen.all_pages_free &&
              seen.last_pages_free_ns < outcome_.continued_ns,
          "paused: %s for %.1f s; %s failed, pages proved quiet after %.1f s",
          outcome_.stopped.c_str(), millis(outcome_.continued_ns - at_ns) / 1e3,
          counted(seen.attempts, "attempt").c_str(), millis(seen.last_pages_free_ns - at_ns) / 1e3);
  }

  void check_join() {
    int64_t first_ns = 0;
    uint64_t requests = 0;
    for (const auto& [number, request] : records_.requests) {
      for (const auto& [index, attempt] : request.attempts) {
        if (attempt.prefiller != outcome_.joined || attempt.complete_ns == 0) continue;
        ++requests;
        if (first_ns == 0 || attempt.complete_ns < first_ns) first_ns = attempt.complete_ns;
      }
    }
    check(requests > 0, "joined: %s completed its first prompt after %.0f ms, %llu in total",
          outcome_.joined.c_str(), millis(first_ns - outcome_.joined_ns), ull{requests});
  }

  void check_drain() {
    const Process& process = supervisor_[outcome_.drained];
    uint64_t after = 0;
    for (const auto& [number, request] : records_.requests) {
      for (const auto& [index, attempt] : request.attempts) {
        if (attempt.decoder == outcome_.drained && attempt.complete_ns > outcome_.drained_ns) {
          ++after;
        }
      }
    }
    check(process.finished.count > 0 && process.finished.extra == process.finished.count,
          "drained: %s answered %s more and left after %.0f ms, %llu of %llu pages free",
          outcome_.drained.c_str(), counted(after, "request").c_str(),
          millis(outcome_.left_ns - outcome_.drained_ns), ull{process.finished.extra},
          ull{process.finished.count});
  }

  void check_pages() {
    uint64_t pages = 0, lost = 0, touched = 0;
    bool all = true;
    for (const auto& process : supervisor_.processes()) {
      if (process->role == Process::Role::kRouter || process->name == outcome_.killed) continue;
      all = all && process->finished.count > 0;
      pages += process->finished.count;
      lost += process->finished.count - process->finished.extra;
      touched += process->finished.wrong;
    }
    check(all && pages > 0 && lost == 0, "pages: %s total, %s lost", grouped(pages).c_str(),
          grouped(lost).c_str());
    check(all && touched == 0, "canary: %s touched", counted(touched, "freed page").c_str());
  }

  /// The part of the transfer that compute did not hide.
  void report_overlap() {
    std::vector<double> after;
    uint64_t bytes = 0;
    for (const auto& [number, request] : records_.requests) {
      for (const auto& [index, attempt] : request.attempts) {
        if (attempt.complete_ns == 0 || attempt.computed.empty()) continue;
        after.push_back(millis(attempt.complete_ns - attempt.computed.back().end_ns));
        bytes += attempt.bytes;
      }
    }
    std::ranges::sort(after);
    check(!after.empty(),
          "overlap: %.1f MB of cache; transfer complete %.2f ms after the last layer (p50)",
          static_cast<double>(bytes) / 1e6, after.empty() ? 0.0 : after[after.size() / 2]);
  }

  void check_cleanup() {
    check(outcome_.clean_exit && outcome_.leftover_files.empty(),
          "cleanup: %s; %zu new files in /dev/shm%s%s",
          outcome_.clean_exit ? "all processes exited" : "not all processes exited with 0",
          outcome_.leftover_files.size(), outcome_.leftover_files.empty() ? "" : ": ",
          outcome_.leftover_files.empty() ? "" : outcome_.leftover_files[0].c_str());
  }

  Supervisor& supervisor_;
  const Records& records_;
  const Outcome& outcome_;
  std::vector<Check> checks_{};
};

}  // namespace

std::vector<Check> chaos_checks(Supervisor& supervisor, const Outcome& outcome) {
  return FinalChecks(supervisor, outcome).run_chaos();
}

std::vector<Check> final_checks(Supervisor& supervisor, const Outcome& outcome) {
  return FinalChecks(supervisor, outcome).run();
}

}  // namespace demo

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdio>

#include "model.h"
#include "scenario.h"

// The final report: what must hold, next to what was measured. Times and rates are printed but not
// judged, because they depend on the machine.

namespace demo {

namespace {

using fabric::Errc;
using fabric::PeerState;
using ull = unsigned long long;

double millis(int64_t ns) { return static_cast<double>(ns) / 1e6; }

/// 50592 as "50,592".
std::string grouped(uint64_t number) {
  std::string out = std::to_string(number);
  for (size_t at = out.size(); at > 3;) out.insert(at -= 3, ",");
  return out;
}

class FinalChecks {
 public:
  FinalChecks(DemoSupervisor& supervisor, const Timeline& timeline)
      : supervisor_(supervisor), timeline_(timeline) {}

  bool print() {
    table();
    check_bytes_and_counts();
    check_operations();
    check_kill();
    check_join();
    check_stop();
    check_full_speed();
    check_cleanup();
    const std::string text =
        failed_ == 0 ? "all checks passed" : std::to_string(failed_) + " checks FAILED";
    std::printf("result: %s\n",
                supervisor_.screen().paint(failed_ == 0 ? Tone::kGood : Tone::kBad, text).c_str());
    std::fflush(stdout);
    return failed_ == 0;
  }

 private:
  [[gnu::format(printf, 3, 4)]] void check(bool holds, const char* format, ...) {
    if (!holds) ++failed_;
    std::printf("%s ", supervisor_.screen()
                           .paint(holds ? Tone::kGood : Tone::kBad, holds ? "[ok]" : "[FAILED]")
                           .c_str());
    va_list values;
    va_start(values, format);
    std::vprintf(format, values);
    va_end(values);
    std::printf("\n");
  }

  /// Rates and times of each receiver while it was connected, without the full-speed phase.
  void table() {
    std::vector<Row> rows = supervisor_.rows(timeline_.paced.from_ns, timeline_.paced.to_ns);
    for (size_t i = 0; i < rows.size(); ++i) {
      const ReceiverStats& stats = supervisor_.receivers()[i]->stats;
      if (stats.samples.empty()) continue;
      rows[i].window =
          stats.window(std::max(timeline_.paced.from_ns, stats.samples.front().counted_ns),
                       std::min(timeline_.paced.to_ns, stats.samples.back().counted_ns));
    }
    supervisor_.screen().conclude(supervisor_.seconds(), rows);
    std::printf("\n");
  }

  void check_bytes_and_counts() {
    uint64_t requests = 0, bytes = 0, wrong = 0, counted = 0, expected = 0, extra = 0, open = 0;
    for (const auto& receiver : supervisor_.receivers()) {
      const ReceiverStats& stats = receiver->stats;
      requests += stats.requests_done;
      bytes += stats.bytes_correct;
      wrong += stats.pages_wrong;
      counted += stats.pages_counted;
      extra += stats.counts_extra;
      expected += stats.pages_expected;
      // Requests that a killed process had not acknowledged are not counted.
      if (receiver->killed) expected -= stats.pages_open();
      if (!receiver->killed) open += stats.open.size();
    }
    check(wrong == 0 && bytes == counted * kPageBytes && bytes > 0,
          "bytes: %.2f GB in %s prompts, every byte checked, %s wrong pages",
          static_cast<double>(bytes) / 1e9, grouped(requests).c_str(), grouped(wrong).c_str());
    check(counted == expected && extra == 0 && open == 0,
          "counts: %s expected, %s counted, %s too many", grouped(expected).c_str(),
          grouped(counted).c_str(), grouped(extra).c_str());
  }

  void check_operations() {
    uint64_t failed = 0;
    bool only_the_killed = true;
    std::string why;
    for (const auto& receiver : supervisor_.receivers()) {
      const ReceiverStats& stats = receiver->stats;
      failed += stats.failures();
      if (stats.failed_ops.empty() && stats.refused.empty()) continue;
      why += "; " + receiver->name + ":";
      const auto add = [&](const auto& codes, const char* how) {
        for (const auto& [code, count] : codes) {
          why += (why.ends_with(":") ? " " : ", ") + std::to_string(count) + " " + how;
          why += to_string(code);
          only_the_killed = only_the_killed && receiver->killed && code == Errc::kPeerLost;
        }
      };
      add(stats.failed_ops, "");
      add(stats.refused, "refused: ");
    }
    const uint64_t accepted = supervisor_.operations_accepted();
    const uint64_t completed = supervisor_.operations_completed();
    check(accepted == completed && completed > failed && only_the_killed,
          "completions: %s of %s operations completed, %s successfully%s",
          grouped(completed).c_str(), grouped(accepted).c_str(),
          grouped(completed - failed).c_str(), why.c_str());
  }

  void check_kill() {
    if (timeline_.kill_ns == 0) return check(false, "killed: no receiver");
    Receiver& victim = supervisor_[timeline_.killed];
    ReceiverStats& stats = victim.stats;
    const int status = victim.child->reap();
    const bool lost = stats.state == PeerState::kLost && stats.failures() > 0;
    check(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && lost,
          "killed: %s lost %.1f ms after SIGKILL; %llu operations failed, the last after %.1f ms",
          victim.name.c_str(),
          lost ? millis(stats.entered_ns[PeerState::kLost] - timeline_.kill_ns) : 0.0,
          ull{stats.failures()}, lost ? millis(stats.last_failure_ns - timeline_.kill_ns) : 0.0);
    const Receiver& other = supervisor_[timeline_.survivor];
    const Window before = window(other.stats, timeline_.before_kill);
    const Window during = window(other.stats, timeline_.after_kill);
    const Window later = window(other.stats, timeline_.after_join);
    check(kept_running(other.stats, timeline_.after_kill) &&
              kept_running(other.stats, timeline_.after_join),
          "  %s: %.2f GB/s before, %.2f during, %.2f after; p99 %.2f, %.2f, %.2f ms",
          other.name.c_str(), before.gigabytes_per_second, during.gigabytes_per_second,
          later.gigabytes_per_second, before.p99, during.p99, later.p99);
  }

  void check_join() {
    if (timeline_.join_ns == 0) return check(false, "joined: no receiver");
    const Receiver& receiver = supervisor_[timeline_.joined];
    const auto& samples = receiver.stats.samples;
    const int64_t first_ns = samples.empty() ? timeline_.join_ns : samples.front().counted_ns;
    check(!samples.empty(),
          "joined: %s received its first prompt after %.1f ms, %llu prompts in all",
          receiver.name.c_str(), millis(first_ns - timeline_.join_ns),
          ull{receiver.stats.requests_done});
  }

  void check_stop() {
    if (timeline_.back_ns == 0) return check(false, "stopped: no receiver that reconnected");
    const Receiver& receiver = supervisor_[timeline_.stopped];
    const ReceiverStats& stats = receiver.stats;
    uint64_t late = 0;
    for (const Sample& sample : stats.samples) {
      const bool in_flight = sample.submitted_ns < timeline_.continue_ns;
      if (in_flight && sample.counted_ns >= timeline_.continue_ns) ++late;
    }
    check(stats.failures() == 0 && late > 0 && timeline_.stalled_ns > timeline_.stop_ns,
          "stopped: %s stalled %.2f s after SIGSTOP, back %.1f ms after SIGCONT; "
          "%llu late, %llu failed",
          receiver.name.c_str(), millis(timeline_.stalled_ns - timeline_.stop_ns) / 1e3,
          millis(timeline_.back_ns - timeline_.continue_ns), ull{late}, ull{stats.failures()});
    const Receiver& other = supervisor_[timeline_.joined];
    const Window before = window(other.stats, timeline_.before_stop);
    const Window during = window(other.stats, timeline_.while_stopped);
    check(kept_running(other.stats, timeline_.while_stopped),
          "  %s: %.2f GB/s before, %.2f during; p99 %.2f, %.2f ms", other.name.c_str(),
          before.gigabytes_per_second, during.gigabytes_per_second, before.p99, during.p99);
  }

  void check_full_speed() {
    double sum = 0;
    std::string each;
    for (const auto& receiver : supervisor_.receivers()) {
      const Window seen = window(receiver->stats, timeline_.full_speed);
      if (seen.requests == 0) continue;
      sum += seen.gigabytes_per_second;
      char text[80];
      std::snprintf(text, sizeof(text), ", %s p99 %.2f ms", receiver->name.c_str(), seen.p99);
      each += text;
    }
    check(sum > 0, "full speed: %.2f GB/s, every byte checked%s", sum, each.c_str());
  }

  void check_cleanup() {
    check(timeline_.clean_exit && timeline_.leftover_files.empty(),
          "cleanup: %s; %zu new files in /dev/shm%s%s",
          timeline_.clean_exit ? "all processes exited" : "not all processes exited with 0",
          timeline_.leftover_files.size(), timeline_.leftover_files.empty() ? "" : ": ",
          timeline_.leftover_files.empty() ? "" : timeline_.leftover_files[0].c_str());
  }

  static Window window(const ReceiverStats& stats, const Timeline::Span& span) {
    return stats.window(span.from_ns, span.to_ns);
  }

  /// Whether requests completed in the second half of the span: a receiver that depended on the
  /// killed or stopped one would have none. How many there should be depends on the machine.
  static bool kept_running(const ReceiverStats& stats, const Timeline::Span& span) {
    return window(stats, {(span.from_ns + span.to_ns) / 2, span.to_ns}).requests > 0;
  }

  DemoSupervisor& supervisor_;
  const Timeline& timeline_;
  int failed_ = 0;
};

}  // namespace

bool run_final_checks(DemoSupervisor& supervisor, const Timeline& timeline) {
  return FinalChecks(supervisor, timeline).print();
}

}  // namespace demo

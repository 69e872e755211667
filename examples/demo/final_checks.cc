#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdarg>
#include <cstdio>

#include "model.h"
#include "story.h"

// The end: what was promised, next to what was seen. Times are shown and not judged, because they
// belong to the machine; everything else has to hold.

namespace demo {

namespace {

using fabric::Errc;
using fabric::PeerState;
using ull = unsigned long long;

double millis(int64_t ns) { return static_cast<double>(ns) / 1e6; }

class Verdict {
 public:
  Verdict(Stage& stage, const Plot& plot) : stage_(stage), plot_(plot) {}

  bool print() {
    table();
    bytes_and_counts();
    operations();
    the_kill();
    the_join();
    the_stop();
    flat_out();
    leftovers();
    const std::string word = failed_ == 0 ? "everything holds" : "NOT everything holds";
    std::printf("verdict: %s\n",
                stage_.screen().paint(failed_ == 0 ? Tone::kGood : Tone::kBad, word).c_str());
    std::fflush(stdout);
    return failed_ == 0;
  }

 private:
  [[gnu::format(printf, 3, 4)]] void check(bool holds, const char* format, ...) {
    if (!holds) ++failed_;
    std::printf(
        "%s ",
        stage_.screen().paint(holds ? Tone::kGood : Tone::kBad, holds ? "[ok]" : "[NO]").c_str());
    va_list values;
    va_start(values, format);
    std::vprintf(format, values);
    va_end(values);
    std::printf("\n");
  }

  /// Rates and times of each receiver while it was there, up to where it goes flat out.
  void table() {
    std::vector<Row> rows = stage_.rows(plot_.paced.from_ns, plot_.paced.to_ns);
    for (size_t i = 0; i < rows.size(); ++i) {
      const Figures& figures = stage_.receivers()[i]->figures;
      if (figures.samples.empty()) continue;
      rows[i].window =
          figures.window(std::max(plot_.paced.from_ns, figures.samples.front().counted_ns),
                         std::min(plot_.paced.to_ns, figures.samples.back().counted_ns));
    }
    stage_.screen().conclude(stage_.seconds(), rows);
    std::printf("\n");
  }

  void bytes_and_counts() {
    uint64_t requests = 0, bytes = 0, wrong = 0, counted = 0, expected = 0, extra = 0, open = 0;
    for (const auto& receiver : stage_.receivers()) {
      const Figures& figures = receiver->figures;
      requests += figures.requests_done;
      bytes += figures.bytes_right;
      wrong += figures.pages_wrong;
      counted += figures.pages_counted;
      extra += figures.counts_extra;
      expected += figures.pages_expected;
      // What a process had not acknowledged when it was killed is nobody's to count.
      if (receiver->killed) expected -= figures.pages_open();
      if (!receiver->killed) open += figures.open.size();
    }
    check(wrong == 0 && bytes == counted * kPageBytes && bytes > 0,
          "bytes    %.2f GB in %llu prompts, every byte looked at, %llu pages wrong",
          static_cast<double>(bytes) / 1e9, ull{requests}, ull{wrong});
    check(counted == expected && extra == 0 && open == 0,
          "counts   %llu expected, %llu seen, %llu too many", ull{expected}, ull{counted},
          ull{extra});
  }

  void operations() {
    uint64_t failed = 0;
    bool only_the_killed = true;
    std::string why;
    for (const auto& receiver : stage_.receivers()) {
      const Figures& figures = receiver->figures;
      failed += figures.failures();
      if (figures.ended.empty() && figures.refused.empty()) continue;
      why += "; " + receiver->name + ":";
      const auto add = [&](const auto& codes, const char* how) {
        for (const auto& [code, count] : codes) {
          why += (why.ends_with(":") ? " " : ", ") + std::to_string(count) + " " + how;
          why += to_string(code);
          only_the_killed = only_the_killed && receiver->killed && code == Errc::kPeerLost;
        }
      };
      add(figures.ended, "");
      add(figures.refused, "refused: ");
    }
    const uint64_t accepted = stage_.operations_accepted(), ended = stage_.operations_ended();
    check(accepted == ended && ended > failed && only_the_killed,
          "ends     %llu of %llu operations, %llu well%s", ull{ended}, ull{accepted},
          ull{ended - failed}, why.c_str());
  }

  void the_kill() {
    if (plot_.kill_ns == 0) return check(false, "killed   nobody");
    Receiver& victim = stage_[plot_.killed];
    Figures& figures = victim.figures;
    const int status = victim.child->reap();
    const bool lost = figures.state == PeerState::kLost && figures.failures() > 0;
    check(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && lost,
          "killed   %s: lost %.1f ms after SIGKILL, %llu operations failed, the last at %.1f ms",
          victim.name.c_str(),
          lost ? millis(figures.entered_ns[PeerState::kLost] - plot_.kill_ns) : 0.0,
          ull{figures.failures()}, lost ? millis(figures.last_failure_ns - plot_.kill_ns) : 0.0);
    const Receiver& other = stage_[plot_.bystander];
    const Window before = window(other.figures, plot_.before_kill);
    const Window meanwhile = window(other.figures, plot_.after_kill);
    const Window later = window(other.figures, plot_.after_join);
    check(went_on(other.figures, plot_.after_kill) && went_on(other.figures, plot_.after_join),
          "         %s: %.2f GB/s before, %.2f meanwhile, %.2f later; p99 %.2f, %.2f, %.2f ms",
          other.name.c_str(), before.gigabytes_per_second, meanwhile.gigabytes_per_second,
          later.gigabytes_per_second, before.p99, meanwhile.p99, later.p99);
  }

  void the_join() {
    if (plot_.join_ns == 0) return check(false, "joined   nobody");
    const Receiver& receiver = stage_[plot_.joined];
    const auto& samples = receiver.figures.samples;
    const int64_t first_ns = samples.empty() ? plot_.join_ns : samples.front().counted_ns;
    check(!samples.empty(),
          "joined   %s: its first prompt was there after %.1f ms, %llu by the end",
          receiver.name.c_str(), millis(first_ns - plot_.join_ns),
          ull{receiver.figures.requests_done});
  }

  void the_stop() {
    if (plot_.back_ns == 0) return check(false, "stopped  nobody who came back");
    const Receiver& receiver = stage_[plot_.stopped];
    const Figures& figures = receiver.figures;
    uint64_t late = 0;
    for (const Sample& sample : figures.samples) {
      const bool under_way = sample.submitted_ns < plot_.continue_ns;
      if (under_way && sample.counted_ns >= plot_.continue_ns) ++late;
    }
    check(figures.failures() == 0 && late > 0 && plot_.stalled_ns > plot_.stop_ns,
          "stopped  %s %.2f s: stalled after %.2f s, back %.1f ms after SIGCONT; "
          "%llu late, %llu failed",
          receiver.name.c_str(), millis(plot_.continue_ns - plot_.stop_ns) / 1e3,
          millis(plot_.stalled_ns - plot_.stop_ns) / 1e3, millis(plot_.back_ns - plot_.continue_ns),
          ull{late}, ull{figures.failures()});
    const Receiver& other = stage_[plot_.joined];
    const Window before = window(other.figures, plot_.before_stop);
    const Window meanwhile = window(other.figures, plot_.while_stopped);
    check(went_on(other.figures, plot_.while_stopped),
          "         %s: %.2f GB/s before, %.2f meanwhile; p99 %.2f, %.2f ms", other.name.c_str(),
          before.gigabytes_per_second, meanwhile.gigabytes_per_second, before.p99, meanwhile.p99);
  }

  void flat_out() {
    double sum = 0;
    std::string each;
    for (const auto& receiver : stage_.receivers()) {
      const Window seen = window(receiver->figures, plot_.flat_out);
      if (seen.requests == 0) continue;
      sum += seen.gigabytes_per_second;
      char text[80];
      std::snprintf(text, sizeof(text), ", %s p99 %.2f ms", receiver->name.c_str(), seen.p99);
      each += text;
    }
    check(sum > 0, "flat out %.2f GB/s moved and looked at%s", sum, each.c_str());
  }

  void leftovers() {
    check(plot_.good_order && plot_.litter.empty(),
          "after    every process has ended%s; %zu new files in /dev/shm%s%s",
          plot_.good_order ? "" : ", not all of them well", plot_.litter.size(),
          plot_.litter.empty() ? "" : ": ", plot_.litter.empty() ? "" : plot_.litter[0].c_str());
  }

  static Window window(const Figures& figures, const Plot::Span& span) {
    return figures.window(span.from_ns, span.to_ns);
  }

  /// Whoever waits for the dead or the stopped has nothing to show for the second half. How much it
  /// should be nobody can say: the machine may have other things to do.
  static bool went_on(const Figures& figures, const Plot::Span& span) {
    return window(figures, {(span.from_ns + span.to_ns) / 2, span.to_ns}).requests > 0;
  }

  Stage& stage_;
  const Plot& plot_;
  int failed_ = 0;
};

}  // namespace

bool verdict(Stage& stage, const Plot& plot) { return Verdict(stage, plot).print(); }

}  // namespace demo

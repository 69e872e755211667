#include <sys/wait.h>

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
    std::printf("\n");
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
          "bytes    %.2f GB in %llu requests, every byte looked at; %llu pages wrong",
          static_cast<double>(bytes) / 1e9, ull{requests}, ull{wrong});
    check(counted == expected && extra == 0 && open == 0,
          "counts   %llu expected, %llu seen, %llu too many", ull{expected}, ull{counted},
          ull{extra});
  }

  void operations() {
    uint64_t failed = 0, elsewhere = 0, refused = 0;
    std::string why;
    for (const auto& receiver : stage_.receivers()) {
      const Figures& figures = receiver->figures;
      failed += figures.failures();
      for (const auto& [code, count] : figures.refused) refused += count;
      for (const auto& [code, count] : figures.ended) {
        why += " " + std::to_string(count) + " " + to_string(code) + " (" + receiver->name + ")";
        if (!receiver->killed || code != Errc::kPeerLost) ++elsewhere;
      }
      if (!receiver->killed) elsewhere += figures.refused.size();
    }
    check(stage_.operations_accepted() == stage_.operations_ended() && elsewhere == 0,
          "ends     %llu operations accepted, %llu ended; failed:%s; refused: %llu",
          ull{stage_.operations_accepted()}, ull{stage_.operations_ended()},
          failed == 0 ? " none" : why.c_str(), ull{refused});
  }

  void the_kill() {
    if (plot_.kill_ns == 0) return check(false, "kill     did not happen");
    Receiver& victim = stage_[plot_.killed];
    Figures& figures = victim.figures;
    const int status = victim.child->reap();
    const bool lost = figures.state == PeerState::kLost;
    const double noticed = lost ? millis(figures.entered_ns[PeerState::kLost] - plot_.kill_ns) : 0;
    check(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && lost && figures.failures() > 0,
          "kill     %s: lost %.1f ms after SIGKILL; %llu operations failed, the last at %.1f ms",
          victim.name.c_str(), noticed, ull{figures.failures()},
          figures.failures() > 0 ? millis(figures.last_failure_ns - plot_.kill_ns) : 0);
    const Figures& other = stage_[plot_.bystander].figures;
    const Window before = window(other, plot_.before_kill);
    const Window after = window(other, plot_.after_kill);
    const Window later = window(other, plot_.after_join);
    check(went_on(before, after),
          "         %s: %.2f GB/s before, %.2f after it, %.2f with another one; "
          "p99 %.2f, %.2f, %.2f ms",
          stage_[plot_.bystander].name.c_str(), before.gigabytes_per_second,
          after.gigabytes_per_second, later.gigabytes_per_second, before.p99, after.p99, later.p99);
  }

  void the_join() {
    if (plot_.join_ns == 0) return check(false, "join     did not happen");
    const Receiver& receiver = stage_[plot_.joined];
    const auto& samples = receiver.figures.samples;
    const int64_t first_ns = samples.empty() ? plot_.join_ns : samples.front().counted_ns;
    check(!samples.empty(),
          "join     %s: its first prompt was there after %.1f ms, %llu by the end",
          receiver.name.c_str(), millis(first_ns - plot_.join_ns),
          ull{receiver.figures.requests_done});
  }

  void the_stop() {
    if (plot_.continue_ns == 0) return check(false, "stop     did not happen");
    Receiver& receiver = stage_[plot_.stopped];
    Figures& figures = receiver.figures;
    uint64_t delayed = 0;
    for (const Sample& sample : figures.samples) {
      if (sample.submitted_ns < plot_.continue_ns && sample.counted_ns >= plot_.continue_ns) {
        ++delayed;
      }
    }
    check(figures.failures() == 0 && figures.entered_ns.contains(PeerState::kStalled) &&
              figures.state == PeerState::kConnected,
          "stop     %s for %.2f s: stalled after %.2f s, back %.1f ms after SIGCONT; "
          "%llu prompts late, 0 lost",
          receiver.name.c_str(), millis(plot_.continue_ns - plot_.stop_ns) / 1e3,
          millis(figures.entered_ns[PeerState::kStalled] - plot_.stop_ns) / 1e3,
          millis(figures.entered_ns[PeerState::kConnected] - plot_.continue_ns), ull{delayed});
    const Receiver& other = stage_[plot_.joined];
    const Window before = window(other.figures, plot_.before_stop);
    const Window meanwhile = window(other.figures, plot_.while_stopped);
    check(went_on(before, meanwhile),
          "         %s meanwhile: %.2f GB/s (before: %.2f), p99 %.2f ms (before: %.2f)",
          other.name.c_str(), meanwhile.gigabytes_per_second, before.gigabytes_per_second,
          meanwhile.p99, before.p99);
  }

  void flat_out() {
    double sum = 0;
    std::string each;
    for (const auto& receiver : stage_.receivers()) {
      if (receiver->killed) continue;
      const Window seen = window(receiver->figures, plot_.flat_out);
      sum += seen.gigabytes_per_second;
      char text[80];
      std::snprintf(text, sizeof(text), "%s%s p99 %.2f ms", each.empty() ? "" : ", ",
                    receiver->name.c_str(), seen.p99);
      each += text;
    }
    check(sum > 0, "flat out %.2f GB/s moved and looked at; %s", sum, each.c_str());
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

  /// A machine may have other things to do at any moment, so a quarter counts as undisturbed. One
  /// that waits for the dead or the stopped would have none.
  static bool went_on(const Window& before, const Window& after) {
    return before.requests > 0 && after.requests_per_second > before.requests_per_second / 4;
  }

  Stage& stage_;
  const Plot& plot_;
  int failed_ = 0;
};

}  // namespace

bool verdict(Stage& stage, const Plot& plot) { return Verdict(stage, plot).print(); }

}  // namespace demo

#include "story.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <set>

#include "model.h"

// The acts, in order.

namespace demo {

namespace {

using fabric::PeerState;

/// A prompt of 8 ms every 16 ms and receiver leaves the machine some air, so that the times show
/// the transfers and not the queue for a core.
constexpr int64_t kLayerNs = 250'000;
constexpr int64_t kRequestNs = 16'000'000;

/// At least a second, however short the show is: a quarter of it is the silence that makes a peer a
/// stalled one, and on a busy machine a healthy process may be silent for some time too.
int64_t stop_time_ns(const Options& options) {
  return std::max<int64_t>(static_cast<int64_t>(options.seconds / 15 * 2e9), 1'000'000'000);
}

std::set<std::string> files_in_shm() {
  std::set<std::string> names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", none)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

class Story {
 public:
  Story(const Options& options, Stage& stage, Plot& plot)
      : options_(options), stage_(stage), plot_(plot) {}

  /// False: something that had to happen did not.
  bool play() { return open() && kill_one() && another_joins() && stop_one() && flat_out(); }

 private:
  bool open() {
    stage_.pace(kLayerNs, kRequestNs);
    plot_.bystander = stage_.start_receiver();
    plot_.killed = stage_.start_receiver();
    stage_.say("two receivers: a prompt each every %.0f ms, a layer every %.2f ms",
               kRequestNs / 1e6, kLayerNs / 1e6);
    stage_.introduce(plot_.bystander);
    stage_.introduce(plot_.killed);
    if (!serves(plot_.bystander) || !serves(plot_.killed)) return false;
    plot_.before_kill = run(3.0);
    return true;
  }

  bool kill_one() {
    Receiver& victim = stage_[plot_.killed];
    victim.doomed = true;
    victim.child->channel().send({.kind = Note::Kind::kDie});
    if (!stage_.run_until([&] { return victim.killed; })) {
      return missed("the end of the receiver that should die");
    }
    plot_.kill_ns = victim.last_word.at_ns;
    stage_.say("%s is killed (SIGKILL) when %llu of the %u pages of a long prompt are there",
               victim.name.c_str(), static_cast<unsigned long long>(victim.last_word.count),
               kPagesLong);
    const bool lost = stage_.run_until([&] { return victim.figures.state == PeerState::kLost; });
    if (!lost) return missed("the loss of the receiver that was killed");
    plot_.after_kill = run(1.5);
    plot_.after_kill.from_ns = plot_.kill_ns;
    return true;
  }

  bool another_joins() {
    plot_.joined = stage_.start_receiver();
    const Receiver& receiver = stage_[plot_.joined];
    stage_.say("%s joins with a line of text (%zu characters)", receiver.name.c_str(),
               receiver.offer.size());
    plot_.join_ns = now_ns();
    stage_.introduce(plot_.joined);
    if (!serves(plot_.joined)) return false;
    plot_.after_join = run(3.0);
    plot_.before_stop = plot_.after_join;
    return true;
  }

  bool stop_one() {
    plot_.stopped = plot_.bystander;
    Receiver& receiver = stage_[plot_.stopped];
    auto& entered_ns = receiver.figures.entered_ns;
    plot_.stop_ns = now_ns();
    receiver.child->signal(SIGSTOP);
    stage_.say("%s is stopped (SIGSTOP)", receiver.name.c_str());
    const bool stalled =
        stage_.run_until([&] { return entered_ns[PeerState::kStalled] > plot_.stop_ns; });
    plot_.stalled_ns = entered_ns[PeerState::kStalled];
    stage_.run_for(plot_.stop_ns + stop_time_ns(options_) - now_ns());
    plot_.continue_ns = now_ns();
    receiver.child->signal(SIGCONT);
    plot_.while_stopped = {plot_.stop_ns, plot_.continue_ns};
    if (!stalled) return missed("the receiver that was stopped as stalled");
    stage_.say("%s continues (SIGCONT)", receiver.name.c_str());
    const bool back =
        stage_.run_until([&] { return entered_ns[PeerState::kConnected] > plot_.continue_ns; });
    plot_.back_ns = entered_ns[PeerState::kConnected];
    if (!back) return missed("the return of the receiver that was stopped");
    run(1.5);
    return true;
  }

  bool flat_out() {
    plot_.paced = {plot_.before_kill.from_ns, now_ns()};
    stage_.say("no pauses any more: as fast as it goes");
    stage_.pace(0, 0);
    plot_.flat_out = run(2.0);
    return true;
  }

  /// Until it has been sent a whole request.
  bool serves(uint32_t who) {
    const Figures& figures = stage_[who].figures;
    return stage_.run_until([&] { return figures.requests_done > 0; }) ||
           missed("a request that " + stage_[who].name + " has acknowledged");
  }

  bool missed(const std::string& what) {
    stage_.say("never seen: %s", what.c_str());
    return false;
  }

  /// `seconds` of a show of 15.
  Plot::Span run(double seconds) {
    const int64_t from_ns = now_ns();
    stage_.run_for(static_cast<int64_t>(seconds * options_.seconds / 15 * 1e9));
    return {from_ns, now_ns()};
  }

  const Options options_;
  Stage& stage_;
  Plot& plot_;
};

}  // namespace

int play(const Options& options) {
  const auto shm_before = files_in_shm();
  Screen screen;
  screen.say("fabric-lib %s: processes of this host write into each other's memory.",
             fabric::version());
  screen.say(
      "A prefiller pushes KV caches to decoders: %u layers, pages of %u KiB, prompts of %u "
      "tokens:",
      kLayers, kPageBytes >> 10, kPagesPerLayer * kTokensPerPage);
  screen.say("%u MiB in %u pages, one write with an immediate each, over %u lanes.",
             kLayers * kPagesPerLayer * (kPageBytes >> 10) >> 10, kLayers * kPagesPerLayer,
             options.lanes);
  screen.say(
      "p50 and p99: from the submit of a prompt's last layer until its decoder has counted "
      "all pages.\n");

  Plot plot;
  bool good = false;
  {
    Stage stage({.lanes = options.lanes, .peer_timeout = fabric::Nanos(stop_time_ns(options) / 4)},
                screen);
    good = Story(options, stage, plot).play();
    plot.good_order = stage.finish();
    std::ranges::set_difference(files_in_shm(), shm_before, std::back_inserter(plot.litter));
    good = verdict(stage, plot) && good;
  }
  return good ? 0 : 1;
}

}  // namespace demo

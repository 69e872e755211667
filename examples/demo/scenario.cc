#include "scenario.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <set>

#include "model.h"

// The phases of the demo, in order.

namespace demo {

namespace {

using fabric::PeerState;

/// Each receiver gets a prompt of 8 ms every 16 ms. The load leaves the CPUs idle at times, so that
/// latencies show the transfers and not CPU contention.
constexpr int64_t kLayerNs = 250'000;
constexpr int64_t kRequestNs = 16'000'000;

/// At least a second, however short the run: a quarter of it is the peer timeout, which must be
/// longer than a healthy process may be descheduled on a busy machine.
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

class Scenario {
 public:
  Scenario(const Options& options, DemoSupervisor& supervisor, Timeline& timeline)
      : options_(options), supervisor_(supervisor), timeline_(timeline) {}

  /// False: an expected event did not occur.
  bool run_all() { return open() && kill_one() && another_joins() && stop_one() && full_speed(); }

 private:
  bool open() {
    supervisor_.pace(kLayerNs, kRequestNs);
    timeline_.survivor = supervisor_.start_receiver();
    timeline_.killed = supervisor_.start_receiver();
    supervisor_.print_line("two receivers: a prompt each every %.0f ms, a layer every %.2f ms",
                           kRequestNs / 1e6, kLayerNs / 1e6);
    supervisor_.connect_source_to(timeline_.survivor);
    supervisor_.connect_source_to(timeline_.killed);
    if (!serves(timeline_.survivor) || !serves(timeline_.killed)) return false;
    timeline_.before_kill = run(3.0);
    return true;
  }

  bool kill_one() {
    Receiver& victim = supervisor_[timeline_.killed];
    victim.kill_requested = true;
    victim.child->control().send({.kind = MessageHeader::Kind::kDie});
    if (!supervisor_.run_until([&] { return victim.killed; })) {
      return missed("the exit of the receiver that should kill itself");
    }
    timeline_.kill_ns = victim.death_report.at_ns;
    supervisor_.print_line(
        "%s is killed (SIGKILL) when %llu of the %u pages of a long prompt have arrived",
        victim.name.c_str(), static_cast<unsigned long long>(victim.death_report.count),
        kPagesLong);
    const bool lost = supervisor_.run_until([&] { return victim.stats.state == PeerState::kLost; });
    if (!lost) return missed("state lost of the receiver that was killed");
    timeline_.after_kill = run(1.5);
    timeline_.after_kill.from_ns = timeline_.kill_ns;
    return true;
  }

  bool another_joins() {
    timeline_.joined = supervisor_.start_receiver();
    const Receiver& receiver = supervisor_[timeline_.joined];
    supervisor_.print_line("%s joins: its offer has %zu characters", receiver.name.c_str(),
                           receiver.offer.size());
    timeline_.join_ns = now_ns();
    supervisor_.connect_source_to(timeline_.joined);
    if (!serves(timeline_.joined)) return false;
    timeline_.after_join = run(3.0);
    timeline_.before_stop = timeline_.after_join;
    return true;
  }

  bool stop_one() {
    timeline_.stopped = timeline_.survivor;
    Receiver& receiver = supervisor_[timeline_.stopped];
    auto& entered_ns = receiver.stats.entered_ns;
    timeline_.stop_ns = now_ns();
    receiver.child->signal(SIGSTOP);
    supervisor_.print_line("%s is stopped (SIGSTOP)", receiver.name.c_str());
    const bool stalled =
        supervisor_.run_until([&] { return entered_ns[PeerState::kStalled] > timeline_.stop_ns; });
    timeline_.stalled_ns = entered_ns[PeerState::kStalled];
    supervisor_.run_for(timeline_.stop_ns + stop_time_ns(options_) - now_ns());
    timeline_.continue_ns = now_ns();
    receiver.child->signal(SIGCONT);
    timeline_.while_stopped = {timeline_.stop_ns, timeline_.continue_ns};
    if (!stalled) return missed("state stalled of the receiver that was stopped");
    supervisor_.print_line("%s continues (SIGCONT)", receiver.name.c_str());
    const bool back = supervisor_.run_until(
        [&] { return entered_ns[PeerState::kConnected] > timeline_.continue_ns; });
    timeline_.back_ns = entered_ns[PeerState::kConnected];
    if (!back) return missed("state connected of the receiver that was continued");
    run(1.5);
    return true;
  }

  bool full_speed() {
    timeline_.paced = {timeline_.before_kill.from_ns, now_ns()};
    supervisor_.print_line("full speed: no more pauses");
    supervisor_.pace(0, 0);
    timeline_.full_speed = run(2.0);
    return true;
  }

  /// Waits until the receiver has acknowledged a request.
  bool serves(uint32_t receiver_id) {
    const ReceiverStats& stats = supervisor_[receiver_id].stats;
    return supervisor_.run_until([&] { return stats.requests_done > 0; }) ||
           missed("an acknowledgement of " + supervisor_[receiver_id].name);
  }

  bool missed(const std::string& what) {
    supervisor_.print_line("not seen in time: %s", what.c_str());
    return false;
  }

  /// Runs for `seconds`, scaled to the length of the run (15 s by default).
  Timeline::Span run(double seconds) {
    const int64_t from_ns = now_ns();
    supervisor_.run_for(static_cast<int64_t>(seconds * options_.seconds / 15 * 1e9));
    return {from_ns, now_ns()};
  }

  const Options options_;
  DemoSupervisor& supervisor_;
  Timeline& timeline_;
};

}  // namespace

int run_demo(const Options& options) {
  const auto shm_before = files_in_shm();
  Screen screen;
  screen.print_line("fabric-lib %s: processes on this host write into each other's memory.",
                    fabric::version());
  screen.print_line(
      "A prefiller pushes KV caches to decoders: %u layers, pages of %u KiB, prompts of %u "
      "tokens:",
      kLayers, kPageBytes >> 10, kPagesPerLayer * kTokensPerPage);
  screen.print_line("%u MiB in %u pages, one write with an immediate each, over %u lanes.",
                    kLayers * kPagesPerLayer * (kPageBytes >> 10) >> 10, kLayers * kPagesPerLayer,
                    options.lanes);
  screen.print_line(
      "p50 and p99: from the submit of a prompt's last layer until its decoder has counted "
      "all pages.\n");

  Timeline timeline;
  bool good = false;
  {
    DemoSupervisor supervisor(
        {.lanes = options.lanes, .peer_timeout = fabric::Nanos(stop_time_ns(options) / 4)}, screen);
    good = Scenario(options, supervisor, timeline).run_all();
    timeline.clean_exit = supervisor.finish();
    std::ranges::set_difference(files_in_shm(), shm_before,
                                std::back_inserter(timeline.leftover_files));
    good = run_final_checks(supervisor, timeline) && good;
  }
  return good ? 0 : 1;
}

}  // namespace demo

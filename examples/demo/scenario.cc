#include "scenario.h"

#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "clock.h"
#include "report.h"

// The phases of the demo, in order.

namespace demo {

namespace {

using Kind = MessageHeader::Kind;
using Role = Process::Role;

/// A request takes about 50 ms of a core. The pace leaves the cores idle at times, so that
/// latencies show the service and not the queue.
constexpr int64_t kRequestNs = 90'000'000;
constexpr uint64_t kOpenMax = 8;
constexpr int64_t kShortestStopNs = 2'000'000'000;

/// At least two seconds, however short the run: fractions of it are the timeouts, which must be
/// longer than a healthy process may be descheduled on a busy machine.
int64_t stop_time_ns(const Options& options) {
  if (options.requests > 0) return kShortestStopNs;
  return std::max<int64_t>(static_cast<int64_t>(options.seconds / 15 * 3e9), kShortestStopNs);
}

/// Files of the library. Other programs come and go there too, and tests use fabriclib_ names.
std::set<std::string> files_in_shm() {
  std::set<std::string> names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", none)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("fabric") && !name.starts_with("fabriclib_")) names.insert(name);
  }
  return names;
}

bool exited_ok(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

class Scenario {
 public:
  Scenario(const Options& options, Supervisor& supervisor, Outcome& outcome)
      : options_(options), supervisor_(supervisor), outcome_(outcome) {}

  /// False: an expected event did not occur.
  bool run_all() {
    return open() && kill_one() && another_joins() && stop_one() && drain_one() && finish();
  }

 private:
  bool open() {
    supervisor_.start(Role::kRouter, "router");
    supervisor_.start(Role::kPrefiller, outcome_.killed = "prefill-1");
    supervisor_.start(Role::kPrefiller, outcome_.stopped = "prefill-2");
    supervisor_.start(Role::kDecoder, "decode-1");
    supervisor_.start(Role::kDecoder, outcome_.drained = "decode-2");
    for (const auto& process : supervisor_.processes()) {
      if (process->role == Role::kRouter) continue;
      if (!supervisor_.run_until([&] { return process->listed; })) {
        return missed("the directory to list " + process->name);
      }
    }
    pace(kRequestNs, kOpenMax);
    if (!answered_by("prefill-1") || !answered_by("prefill-2")) return false;
    run(2.0);
    return true;
  }

  bool kill_one() {
    Process& victim = supervisor_[outcome_.killed];
    victim.may_end = true;
    send(victim, Kind::kKill);
    if (!supervisor_.run_until([&] { return victim.ended; }))
      return missed("the kill of " + victim.name);
    outcome_.killed_ns = victim.stopping.at_ns;
    victim.state = "killed";
    supervisor_.note(victim.name, "is killed (SIGKILL) in layer " +
                                      std::to_string(victim.stopping.code) + " of request " +
                                      std::to_string(victim.stopping.request));
    if (!supervisor_.run_until([&] { return !victim.listed; }))
      return missed("the directory to drop " + victim.name);
    if (!answered(victim.stopping.request)) return false;
    run(1.5);
    return true;
  }

  bool another_joins() {
    outcome_.joined = "prefill-3";
    outcome_.joined_ns = now_ns();
    supervisor_.start(Role::kPrefiller, outcome_.joined);
    if (!answered_by(outcome_.joined)) return false;
    run(1.5);
    return true;
  }

  /// Stopped past its lease, so that its requests are sent to another prefiller, then continued in
  /// the middle of the prompt: its late writes must not land.
  bool stop_one() {
    Process& process = supervisor_[outcome_.stopped];
    send(process, Kind::kStop);
    if (!supervisor_.run_until([&] { return process.stopping.at_ns > 0; })) {
      return missed("the stop of " + process.name);
    }
    outcome_.stopped_ns = process.stopping.at_ns;
    process.state = "stopped";
    supervisor_.note(process.name, "is stopped (SIGSTOP) in layer " +
                                       std::to_string(process.stopping.code) + " of request " +
                                       std::to_string(process.stopping.request));
    const bool lost = supervisor_.run_until([&] { return !process.listed; });
    const bool served = lost && answered(process.stopping.request);
    supervisor_.run_for(outcome_.stopped_ns + stop_time_ns(options_) - now_ns());
    outcome_.continued_ns = now_ns();
    process.child->signal(SIGCONT);
    supervisor_.note(process.name, "continues (SIGCONT)");
    if (!lost) return missed("the directory to drop " + process.name);
    if (!served) return false;
    if (!supervisor_.run_until([&] { return process.listed; }))
      return missed("the directory to list " + process.name + " again");
    process.state = "serving";
    if (!answered_by(process.name, outcome_.continued_ns)) return false;
    run(1.0);
    return true;
  }

  bool drain_one() {
    Process& process = supervisor_[outcome_.drained];
    outcome_.drained_ns = now_ns();
    process.state = "draining";
    supervisor_.note(process.name, "is drained");
    send(process, Kind::kDrain);
    if (!supervisor_.run_until([&] { return process.ended; }))
      return missed("the end of " + process.name);
    outcome_.left_ns = now_ns();
    process.state = "left";
    supervisor_.note(process.name, "has left");
    run(1.5);
    return true;
  }

  bool finish() {
    pace(0, 0);
    return end_processes(supervisor_, outcome_);
  }

  void send(const Process& process, Kind kind) { process.child->control().send({.kind = kind}); }

  void pace(int64_t interval_ns, uint64_t open_max) {
    supervisor_["router"].child->control().send(
        {.kind = Kind::kPace, .count = open_max, .at_ns = interval_ns});
  }

  bool answered(uint64_t request) {
    const RequestRecord& record = supervisor_.records().requests[request];
    return supervisor_.run_until([&] { return record.done_ns > 0; }) ||
           missed("the answer to request " + std::to_string(request));
  }

  /// Waits until the prefiller has completed a request that it started after `since_ns`.
  bool answered_by(const std::string& prefiller, int64_t since_ns = 0) {
    return supervisor_.run_until([&] {
      return std::ranges::any_of(supervisor_.records().requests, [&](const auto& request) {
        return std::ranges::any_of(request.second.attempts, [&](const auto& attempt) {
          return attempt.second.prefiller == prefiller && attempt.second.started_ns >= since_ns &&
                 attempt.second.complete_ns > 0;
        });
      });
    }) || missed(prefiller + " to complete a request");
  }

  bool missed(const std::string& what) {
    supervisor_.note("", "timed out waiting for " + what);
    return false;
  }

  /// Runs for `seconds`, scaled to the length of the run (15 s by default).
  void run(double seconds) {
    supervisor_.run_for(static_cast<int64_t>(seconds * options_.seconds / 15 * 1e9));
  }

  const Options options_;
  Supervisor& supervisor_;
  Outcome& outcome_;
};

/// What one process generates for so many requests, without any transfer.
bool compute_expected(Outcome& outcome, uint64_t requests) {
  const auto model = transformer::Transformer::make(outcome.workload.model);
  if (!model) return false;
  for (uint64_t request = 1; request <= std::min<uint64_t>(requests, kPrompts); ++request) {
    const uint32_t i = prompt_of(request);
    const auto prompt = make_prompt(outcome.workload, i);
    auto tokens = transformer::generate(*model, prompt, outcome.workload.new_tokens);
    if (!tokens) return false;
    outcome.expected[i] = *std::move(tokens);
  }
  return true;
}

std::string network_text(const Options& options) {
  const char* chosen = std::getenv("NETWORK");
  if (chosen != nullptr && *chosen != '\0') return chosen;
  return "shm lanes=" + std::to_string(options.lanes);
}

void print_introduction(Screen& screen, const Outcome& outcome) {
  const transformer::ModelOptions& model = outcome.workload.model;
  screen.print_line("fabric-lib %s: prefill and decode of a transformer in separate processes.",
                    fabric::version());
  screen.print_line(
      "%u layers, %s, weights from a seed. Prefillers: tensor parallel %u, pages of %u",
      model.layers, model.attention == transformer::Attention::kLatent ? "MLA" : "GQA",
      outcome.workload.prefill.tp_size, outcome.workload.prefill.page_tokens);
  screen.print_line("tokens; decoders: tensor parallel %u, pages of %u. Network: %s.",
                    outcome.workload.decode.tp_size, outcome.workload.decode.page_tokens,
                    outcome.network.c_str());
  screen.print_line(
      "TTFT: from the router until the first token is at the decoder, last second.\n");
}

bool print_result(Supervisor& supervisor, const std::vector<Check>& checks) {
  Screen& screen = supervisor.screen();
  screen.conclude(supervisor.seconds(), supervisor.totals(supervisor.begun_ns(), now_ns()),
                  supervisor.rows(supervisor.begun_ns(), now_ns()));
  std::printf("\n");
  int failed = 0;
  for (const Check& check : checks) {
    if (!check.holds) ++failed;
    std::printf(
        "%s %s\n",
        screen.paint(check.holds ? Tone::kGood : Tone::kBad, check.holds ? "[ok]" : "[FAILED]")
            .c_str(),
        check.text.c_str());
  }
  const std::string text =
      failed == 0 ? "all checks passed" : std::to_string(failed) + " checks FAILED";
  std::printf("result: %s\n", screen.paint(failed == 0 ? Tone::kGood : Tone::kBad, text).c_str());
  std::fflush(stdout);
  return failed == 0;
}

}  // namespace

bool end_processes(Supervisor& supervisor, Outcome& outcome) {
  const auto missed = [&](const std::string& what) {
    supervisor.note("", "not seen in time: " + what);
    return false;
  };
  if (!supervisor.run_until([&] { return supervisor.router_is_idle(); })) {
    return missed("the last answer");
  }
  for (const Role role : {Role::kDecoder, Role::kPrefiller, Role::kRouter}) {
    for (const auto& process : supervisor.processes()) {
      if (process->role != role || process->ended) continue;
      process->child->control().send({.kind = Kind::kFinish});
      if (!supervisor.run_until([&] { return process->ended; })) {
        return missed("the end of " + process->name);
      }
      process->state = "ended";
    }
  }
  outcome.clean_exit = true;
  for (const auto& process : supervisor.processes()) {
    if (process->name == outcome.killed) continue;
    outcome.clean_exit = exited_ok(process->child->reap()) && outcome.clean_exit;
  }
  return true;
}

int run_demo(const Options& given) {
  const auto shm_before = files_in_shm();
  Screen screen;
  Options options = given;
  if (options.requests > 0) {
    if (options.chaos_seed == 0) options.chaos_seed = static_cast<uint64_t>(now_ns() / 1000);
    screen.print_line("chaos: the same once more with demo --requests %llu --chaos %llu\n",
                      static_cast<unsigned long long>(options.requests),
                      static_cast<unsigned long long>(options.chaos_seed));
  }
  Outcome outcome;
  outcome.workload = make_workload(options.attention);
  outcome.network = network_text(options);
  print_introduction(screen, outcome);
  const bool chaos = options.requests > 0;
  if (!compute_expected(outcome, chaos ? options.requests : kPrompts)) return 1;
  bool good = false;
  {
    const int64_t stop_ns = stop_time_ns(options);
    Supervisor supervisor({.network = outcome.network,
                           .peer_timeout = fabric::Nanos(stop_ns / 4),
                           .lost_timeout = fabric::Nanos(stop_ns / 2),
                           .attention = options.attention},
                          screen);
    supervisor.note("", "one process has generated the tokens of all " +
                            std::to_string(outcome.expected.size()) + " prompts");
    good = chaos ? run_chaos(options, supervisor, outcome)
                 : Scenario(options, supervisor, outcome).run_all();
    std::ranges::set_difference(files_in_shm(), shm_before,
                                std::back_inserter(outcome.leftover_files));
    std::vector<Check> checks =
        chaos ? chaos_checks(supervisor, outcome) : final_checks(supervisor, outcome);
    if (!good) checks.push_back({false, "scenario: an expected event did not occur"});
    if (!chaos) checks.push_back(write_report(options.report, supervisor, outcome, checks));
    good = print_result(supervisor, checks);
  }
  return good ? 0 : 1;
}

}  // namespace demo

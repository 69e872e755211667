#include <algorithm>
#include <array>
#include <csignal>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "clock.h"
#include "scenario.h"

// Requests while processes of every role are killed and stopped. What happens, to which process and
// after how many answers comes from the seed; the processes run as they like.

namespace demo {

namespace {

using Kind = MessageHeader::Kind;
using Role = Process::Role;

constexpr int64_t kRequestNs = 50'000'000;
constexpr uint64_t kOpenMax = 8;
constexpr uint32_t kMembersOfEachRole = 3;
constexpr uint64_t kRequestsPerFault = 8;
/// Attempt numbers of a router begin here times the routers before it: above all that those can
/// have used, also for messages that only they know of.
constexpr uint32_t kAttemptsPerRouter = 100'000;

enum class Fault { kKill, kStop };

const char* plural(Role role) {
  return role == Role::kRouter ? "router" : role == Role::kPrefiller ? "prefillers" : "decoders";
}

class ChaosScenario {
 public:
  ChaosScenario(const Options& options, Supervisor& supervisor, Outcome& outcome)
      : options_(options),
        supervisor_(supervisor),
        outcome_(outcome),
        random_(options.chaos_seed) {}

  bool run_all() {
    outcome_.wanted = options_.requests;
    return open() && serve() && end_processes(supervisor_, outcome_);
  }

 private:
  /// [0, below). The distributions of the standard library differ between its versions.
  uint64_t draw(uint64_t below) { return random_() % below; }

  bool open() {
    supervisor_.start(Role::kRouter, "router");
    for (uint32_t i = 0; i < kMembersOfEachRole; ++i) {
      start_member(Role::kPrefiller);
      start_member(Role::kDecoder);
    }
    pace();
    return true;
  }

  /// A name is used once: the loss of a killed member is reported after its successor has joined.
  void start_member(Role role) {
    const char* name = role == Role::kPrefiller ? "prefill-" : "decode-";
    supervisor_.start(role, name + std::to_string(++started_[role]));
  }

  bool serve() {
    const uint64_t faults = std::max<uint64_t>(options_.requests / kRequestsPerFault, 6);
    for (uint64_t i = 0; i < faults; ++i) {
      // The last answers come without a fault: it would hit nothing.
      const uint64_t after = 1 + i * (options_.requests - 6) / faults;
      if (!serve_until([&] { return supervisor_.records().answered() >= after; })) return false;
      const int64_t moment_ns = now_ns() + static_cast<int64_t>(draw(80'000'000));
      if (!serve_until([&] { return now_ns() >= moment_ns; })) return false;
      if (!inflict_next()) return false;
    }
    const auto all_answered = [&] {
      return supervisor_.records().answered() == options_.requests && stopped_.empty();
    };
    return serve_until(all_answered);
  }

  /// Continues what has been stopped long enough. False: nothing was answered for 30 s.
  template <class Done>
  bool serve_until(Done done) {
    constexpr int64_t kPatienceNs = 30'000'000'000;
    uint64_t answered = supervisor_.records().answered();
    int64_t progress_ns = now_ns();
    while (!done()) {
      continue_due();
      supervisor_.run_for(5'000'000);
      if (std::exchange(answered, supervisor_.records().answered()) != answered) {
        progress_ns = now_ns();
      }
      if (now_ns() < progress_ns + kPatienceNs) continue;
      supervisor_.note("", "not seen in time: an answer");
      return false;
    }
    return true;
  }

  void continue_due() {
    for (auto at = stopped_.begin(); at != stopped_.end();) {
      if (now_ns() < at->second) {
        ++at;
        continue;
      }
      Process& process = supervisor_[at->first];
      process.child->signal(SIGCONT);
      process.state = "serving";
      supervisor_.note(at->first, "continues (SIGCONT)");
      at = stopped_.erase(at);
    }
  }

  /// Each fault of each role once, in an order that is drawn, then again.
  bool inflict_next() {
    if (next_.empty()) {
      for (const Role role : {Role::kRouter, Role::kPrefiller, Role::kDecoder}) {
        for (const Fault fault : {Fault::kKill, Fault::kStop}) next_.push_back({role, fault});
      }
      for (size_t i = next_.size(); i > 1; --i) std::swap(next_[i - 1], next_[draw(i)]);
    }
    const auto [role, fault] = next_.back();
    next_.pop_back();
    std::vector<std::string> names;
    for (const auto& process : supervisor_.processes()) {
      if (process->role == role) names.push_back(process->name);
    }
    std::ranges::sort(names);
    const std::string& victim = names[draw(names.size())];
    ++outcome_.chaos[std::string(fault == Fault::kKill ? "killed " : "stopped ") + plural(role)];
    if (fault == Fault::kKill) return kill(role, victim);
    stop(victim);
    return true;
  }

  /// Half of them shorter than the time after which a peer is lost, half of them longer.
  void stop(const std::string& victim) {
    const bool lost = draw(2) == 1;
    const int64_t ms = static_cast<int64_t>(lost ? 1200 + draw(1300) : 10 + draw(400));
    int64_t& until_ns = stopped_[victim];
    until_ns = std::max(until_ns, now_ns() + ms * 1'000'000);
    supervisor_[victim].child->signal(SIGSTOP);
    supervisor_[victim].state = "stopped";
    supervisor_.note(victim, "is stopped (SIGSTOP) for " + std::to_string(ms) + " ms");
  }

  bool kill(Role role, const std::string& victim) {
    const std::string name = victim;  // its process is forgotten
    if (!supervisor_.kill(name)) return false;
    stopped_.erase(name);
    supervisor_.note(name, "is killed (SIGKILL)");
    role == Role::kRouter ? replace_router() : start_member(role);
    return true;
  }

  /// A router knows nothing of the one before: what is open is sent again, and members announce
  /// themselves to it.
  void replace_router() {
    const Process& router = supervisor_.start(Role::kRouter, "router");
    const uint32_t attempt = ++routers_ * kAttemptsPerRouter;
    for (const auto& [number, request] : supervisor_.records().requests) {
      if (request.done_ns > 0) continue;
      router.child->control().send(
          {.kind = Kind::kResume, .code = request.prompt, .request = number, .attempt = attempt});
    }
    pace();
    for (const auto& process : supervisor_.processes()) {
      if (process->role == Role::kRouter) continue;
      process->child->control().send({.kind = Kind::kSeed}, router.address);
    }
  }

  void pace() {
    const auto& requests = supervisor_.records().requests;
    supervisor_["router"].child->control().send(
        {.kind = Kind::kPace,
         .request = requests.empty() ? 0 : requests.rbegin()->first,
         .count = kOpenMax,
         .extra = options_.requests,
         .at_ns = kRequestNs});
  }

  const Options options_;
  Supervisor& supervisor_;
  Outcome& outcome_;
  std::mt19937_64 random_;
  std::map<Role, uint32_t> started_{};
  std::vector<std::pair<Role, Fault>> next_{};
  std::map<std::string, int64_t> stopped_{};  ///< until when
  uint32_t routers_ = 0;                      ///< that were replaced
};

}  // namespace

bool run_chaos(const Options& options, Supervisor& supervisor, Outcome& outcome) {
  return ChaosScenario(options, supervisor, outcome).run_all();
}

}  // namespace demo

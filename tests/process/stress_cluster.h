#pragma once

#include <sys/types.h>

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/unique_fd.h"
#include "process/stress_plan.h"

// The referee of a stress: starts its processes, kills, stops and fences them, and holds what each
// one reports against what was done. It knows the truth, so every loss that is not one is a
// failure, and so is every loss that somebody does not notice.

namespace fabric::stress {

struct ClusterOptions {
  uint64_t seed = 1;
  uint64_t buffer_bytes = 1 << 20;
};

/// What a member holds of the system and of its engine.
struct Footprint {
  uint64_t descriptors = 0, mappings = 0, regions = 0, peers = 0;
  bool within(const Footprint& other) const;
};

class StressCluster {
 public:
  explicit StressCluster(const ClusterOptions& options);
  ~StressCluster();  ///< kills and reaps whoever is left
  StressCluster(const StressCluster&) = delete;
  StressCluster& operator=(const StressCluster&) = delete;

  /// Starts the next generation of a slot and lets it meet everybody who is there.
  void start(uint32_t slot);
  void kill(uint32_t slot);  ///< SIGKILL; it is reaped by pump()
  void stop(uint32_t slot);
  void resume(uint32_t slot);
  /// `by` shuts `whom` out, or takes back the memory that it writes to. Both go on afterwards.
  void fence(uint32_t by, uint32_t whom);
  void revoke(uint32_t by, uint32_t whom);
  void close(uint32_t slot);  ///< it says goodbye and ends with 0
  void drain();               ///< all: end your rounds and settle your counts
  void run_for(uint64_t us);   ///< lets them work, and listens
  /// Lingers until one is likely to be in the middle of a long write to the other.
  void await_long_write(uint32_t writer, uint32_t owner);
  /// Stops a writer that is likely to be in the middle of a long write to the other.
  void stop_mid_write(uint32_t writer, uint32_t owner);

  bool alive(uint32_t slot) const { return processes_.contains(slot); }
  bool threaded(uint32_t slot) const { return processes_.at(slot).loop == "threads"; }
  std::vector<uint32_t> slots() const;

  // Each waits, and fails with what everybody is at when that takes too long.
  bool await_rounds(uint64_t more);  ///< from everybody who is there to everybody else
  bool await_losses();               ///< all who met a dead one have noticed and released it
  bool await_fences();               ///< that were asked for have ended
  bool await_stall(uint32_t of);     ///< somebody says that it is stalled
  bool await_reconciled();
  bool await_exit(uint32_t slot);
  // Of a member that is alone.
  Footprint footprint(uint32_t slot);
  bool await_footprint(uint32_t slot, const Footprint& before);  ///< it is that small again

  bool failed() const { return failed_; }
  void print_times() const;  ///< from each kill to the moment at which a survivor knew

 private:
  struct MemberProcess {
    HostProcess member{};
    pid_t pid = -1;
    UniqueFd channel{};
    std::string address{}, loop{};
    std::set<HostProcess> met{};            ///< whose loss it has not reported
    std::multiset<HostProcess> to_release{};   ///< lost, with operations that have not ended
    std::map<HostProcess, int> may_lose{};  ///< fences that end sessions of the living
    std::set<HostProcess> stalled{};
    uint32_t fences = 0;  ///< asked for, not answered
    bool stopped = false, closing = false, reconciled = false;
    std::optional<Footprint> footprint{};
  };

  void fail(const std::string& what);
  bool await(const char* what, const std::function<bool()>& met);
  void pump(int timeout_ms);
  void receive(MemberProcess& process);
  void reap();
  void on_report(MemberProcess& process, const std::string& text);
  void on_lost(MemberProcess& process, const HostProcess& member, int64_t at_ns, const std::string& code);
  void command(MemberProcess& process, const std::string& text);
  void meet(MemberProcess& process, const MemberProcess& other);
  void on_exit(const MemberProcess& process);
  void dump_state();
  MemberProcess* find(const HostProcess& member);
  uint64_t rounds(uint32_t writer, uint32_t owner) const;

  const ClusterOptions options_;
  Rng rng_;
  UniqueFd scoreboard_fd_;
  Scoreboard* scoreboard_ = nullptr;
  std::map<uint32_t, MemberProcess> processes_;  ///< by slot
  std::array<uint32_t, kSlotsMax> generations_{};
  std::map<HostProcess, int64_t> killed_ns_;
  std::set<HostProcess> closed_;
  std::vector<pid_t> dying_;
  std::vector<int64_t> noticed_ns_;
  bool failed_ = false;
};

}  // namespace fabric::stress

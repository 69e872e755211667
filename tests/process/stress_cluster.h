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

// A cluster of real processes under stress. StressCluster runs in the test: it starts the members,
// kills, stops and fences them, and compares what each member reports with what was done. A loss
// reported for a live member is a failure, and so is a loss that a member does not report.

namespace fabric::stress {

struct ClusterOptions {
  uint64_t seed = 1;
  uint64_t buffer_bytes = 1 << 20;
};

/// The resources that a member uses.
struct Footprint {
  uint64_t descriptors = 0, mappings = 0, regions = 0, peers = 0;
  bool within(const Footprint& other) const;
};

/// Owns the member processes (stress_worker) and the text channels to them. Commands go out and
/// reports come in as one text packet each; pump() handles them. Not thread-safe.
class StressCluster {
 public:
  explicit StressCluster(const ClusterOptions& options);
  ~StressCluster();  ///< kills and reaps the remaining processes
  StressCluster(const StressCluster&) = delete;
  StressCluster& operator=(const StressCluster&) = delete;

  /// Starts the next generation of a slot and connects it to all other members.
  void start(uint32_t slot);
  void kill(uint32_t slot);  ///< SIGKILL; it is reaped by pump()
  void stop(uint32_t slot);
  void resume(uint32_t slot);
  /// `by` fences `whom`, or revokes the memory that `whom` writes to. Both continue afterwards.
  void fence(uint32_t by, uint32_t whom);
  void revoke(uint32_t by, uint32_t whom);
  void close(uint32_t slot);  ///< closes its engine and exits with 0
  void drain();               ///< all members: finish the current rounds and reconcile the counts
  void run_for(uint64_t us);  ///< lets the members run, and handles their reports
  /// Waits until `writer` is probably in the middle of a long write to `owner`.
  void await_long_write(uint32_t writer, uint32_t owner);
  /// Stops `writer`, probably in the middle of a long write to `owner`.
  void stop_mid_write(uint32_t writer, uint32_t owner);

  bool alive(uint32_t slot) const { return processes_.contains(slot); }
  bool threaded(uint32_t slot) const { return processes_.at(slot).loop == "threads"; }
  std::vector<uint32_t> slots() const;

  // Each waits; on timeout it fails and prints the state of all members.
  bool await_rounds(uint64_t more);  ///< from every member to every other
  bool await_losses();               ///< every peer of a dead member has reported and released it
  bool await_fences();               ///< all requested fences have completed
  bool await_stall(uint32_t of);     ///< some member reports it as stalled
  bool await_reconciled();
  bool await_exit(uint32_t slot);
  // For a member without peers.
  Footprint footprint(uint32_t slot);
  bool await_footprint(uint32_t slot,
                       const Footprint& before);  ///< until it is not larger than before

  bool failed() const { return failed_; }
  void print_times() const;  ///< from each kill to the report of a survivor

 private:
  struct MemberProcess {
    MemberId member{};
    pid_t pid = -1;
    UniqueFd channel{};
    std::string address{}, loop{};
    std::set<MemberId> met{};              ///< members whose loss it has not reported
    std::multiset<MemberId> to_release{};  ///< lost, with operations still outstanding
    std::map<MemberId, int> may_lose{};    ///< fences that close sessions of live members
    std::set<MemberId> stalled{};
    uint32_t fences = 0;  ///< requested, not answered
    bool stopped = false, closing = false, reconciled = false;
    std::optional<Footprint> footprint{};
  };

  void fail(const std::string& what);
  bool await(const char* what, const std::function<bool()>& met);
  void pump(int timeout_ms);
  void receive(MemberProcess& process);
  void reap();
  void on_report(MemberProcess& process, const std::string& text);
  void on_lost(MemberProcess& process, const MemberId& member, int64_t at_ns,
               const std::string& code);
  void command(MemberProcess& process, const std::string& text);
  void meet(MemberProcess& process, const MemberProcess& other);
  void on_exit(const MemberProcess& process);
  void dump_state();
  MemberProcess* find(const MemberId& member);
  uint64_t rounds(uint32_t writer, uint32_t owner) const;

  const ClusterOptions options_;
  Rng rng_;
  UniqueFd scoreboard_fd_;
  Scoreboard* scoreboard_ = nullptr;
  std::map<uint32_t, MemberProcess> processes_;  ///< by slot
  std::array<uint32_t, kSlotsMax> generations_{};
  std::map<MemberId, int64_t> killed_ns_;
  std::set<MemberId> closed_;
  std::vector<pid_t> dying_;
  std::vector<int64_t> noticed_ns_;
  bool failed_ = false;
};

}  // namespace fabric::stress

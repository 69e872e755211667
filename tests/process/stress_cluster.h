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

// The referee of a crowd: starts its processes, kills, stops and fences them, and holds what each
// one reports against what was done. It knows the truth, so every loss that is not one is a
// failure, and so is every loss that somebody does not notice.

namespace fabric::crowd {

struct RefereeOptions {
  uint64_t seed = 1;
  uint64_t plot_bytes = 1 << 20;
};

/// What a member holds of the system and of its engine.
struct Footprint {
  uint64_t descriptors = 0, mappings = 0, regions = 0, peers = 0;
  bool within(const Footprint& other) const;
};

class Referee {
 public:
  explicit Referee(const RefereeOptions& options);
  ~Referee();  ///< kills and reaps whoever is left
  Referee(const Referee&) = delete;
  Referee& operator=(const Referee&) = delete;

  /// Starts the next life of a slot and lets it meet everybody who is there.
  void start(uint32_t slot);
  void kill(uint32_t slot);  ///< SIGKILL; it is reaped by pump()
  void stop(uint32_t slot);
  void go_on(uint32_t slot);
  /// `by` shuts `whom` out, or takes back the memory that it writes to. Both go on afterwards.
  void fence(uint32_t by, uint32_t whom);
  void revoke(uint32_t by, uint32_t whom);
  void close(uint32_t slot);  ///< it says goodbye and ends with 0
  void quiet();               ///< all: end your rounds and settle your counts
  void linger(uint64_t us);   ///< lets them work, and listens
  /// Lingers until one is likely to be in the middle of a long write to the other.
  void aim(uint32_t writer, uint32_t owner);
  /// Stops a writer that is likely to be in the middle of a long write to the other.
  void stop_writing(uint32_t writer, uint32_t owner);

  bool alive(uint32_t slot) const { return workers_.contains(slot); }
  bool threaded(uint32_t slot) const { return workers_.at(slot).loop == "threads"; }
  std::vector<uint32_t> slots() const;

  // Each waits, and fails with what everybody is at when that takes too long.
  bool await_rounds(uint64_t more);  ///< from everybody who is there to everybody else
  bool await_losses();               ///< all who met a dead one have noticed and buried it
  bool await_fences();               ///< that were asked for have ended
  bool await_stall(uint32_t of);     ///< somebody says that it is stalled
  bool await_settled();
  bool await_end(uint32_t slot);
  // Of a member that is alone.
  Footprint footprint(uint32_t slot);
  bool await_footprint(uint32_t slot, const Footprint& before);  ///< it is that small again

  bool failed() const { return failed_; }
  void print_times() const;  ///< from each kill to the moment at which a survivor knew

 private:
  struct Worker {
    Party party{};
    pid_t pid = -1;
    UniqueFd line{};
    std::string address{}, loop{};
    std::set<Party> met{};            ///< whose loss it has not reported
    std::multiset<Party> to_bury{};   ///< lost, with operations that have not ended
    std::map<Party, int> may_lose{};  ///< fences that end sessions of the living
    std::set<Party> stalled{};
    uint32_t fences = 0;  ///< asked for, not answered
    bool stopped = false, closing = false, settled = false;
    std::optional<Footprint> footprint{};
  };

  void fail(const std::string& what);
  bool await(const char* what, const std::function<bool()>& met);
  void pump(int timeout_ms);
  void listen(Worker& worker);
  void reap();
  void on_line(Worker& worker, const std::string& line);
  void on_lost(Worker& worker, const Party& party, int64_t at_ns, const std::string& code);
  void say(Worker& worker, const std::string& line);
  void meet(Worker& worker, const Worker& other);
  void gone(const Worker& worker);
  void explain();
  Worker* find(const Party& party);
  uint64_t rounds(uint32_t writer, uint32_t owner) const;

  const RefereeOptions options_;
  Rng rng_;
  UniqueFd board_fd_;
  Board* board_ = nullptr;
  std::map<uint32_t, Worker> workers_;  ///< by slot
  std::array<uint32_t, kSlotsMax> lives_{};
  std::map<Party, int64_t> killed_ns_;
  std::set<Party> closed_;
  std::vector<pid_t> dying_;
  std::vector<int64_t> noticed_ns_;
  bool failed_ = false;
};

}  // namespace fabric::crowd

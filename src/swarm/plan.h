#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <fabric/sim.h>

// A plan is a world on paper: who is there, who does what, what goes wrong. Everything is drawn
// before anything happens, so that a plan can be told, and shortened when it ends badly.

namespace fabric::swarm {

/// What a node does at a moment. Everything else about it comes from `rng`, so that a action stays
/// what it is when others are taken out of the plan.
struct Action {
  enum class Kind : uint8_t {
    kWrite,
    kWrites,  ///< several in one call
    kPaged,
    kScatter,
    kSignal,
    kSend,
    kTimer,
    kWatch,    ///< stores to a watched word
    kExpect,   ///< waits for a counter that nobody waits for yet
    kTake,     ///< polls one
    kGroupWait,    ///< waits for one write of every peer at once
    kCancel,   ///< an operation, or a batch
    kWait,     ///< blocks for a batch
    kRelease,  ///< lets go of a counter
    kFence,
    kDeregister,
    kDisconnect,
    kRestart,  ///< closes the engine and opens the next one a little later
    kMisuse,   ///< something that must be refused
  };
  static constexpr uint32_t kKinds = 19;

  Nanos at{};
  Kind kind = Kind::kWrite;
  uint32_t node = 0, other = 0;
  uint64_t seed = 0;
};

const char* to_string(Action::Kind kind) noexcept;

/// A fault from `at` on, undone after `lasts`. After a crash the node comes back then.
struct PlannedFault {
  Nanos at{}, lasts{};
  sim::Fault fault{};
};

struct NodePlan {
  std::vector<sim::NodeNetwork> networks{};
  bool tight = false;  ///< small bounds: its queues run full
  bool reroute = false;
};

struct Plan {
  uint64_t seed = 0;
  sim::WorldOptions world{};
  bool grants = false;   ///< memory is shown to one peer at a time
  bool job_key = false;  ///< all of them have the same
  std::vector<NodePlan> nodes{};
  Nanos quiet_after{};  ///< when the actions are done and the faults over
  std::vector<Action> actions{};
  std::vector<PlannedFault> faults{};
};

Plan draw_plan(uint64_t seed);

/// For a person to read.
std::string describe(const Plan& plan);

}  // namespace fabric::swarm

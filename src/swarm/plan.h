#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <fabric/sim.h>

// A plan fixes a random run before it starts: nodes, actions and faults, all drawn from one seed.
// It can therefore be printed, repeated, and reduced when it violates a promise.

namespace fabric::swarm {

/// What a node does at one time. Sizes, timeouts and other details are drawn from the action's own
/// seed, so that removing other actions from the plan does not change it.
struct Action {
  enum class Kind : uint8_t {
    kWrite,
    kWrites,  ///< several in one submit()
    kPaged,
    kScatter,
    kSignal,
    kSend,
    kTimer,
    kWatch,      ///< stores to a watcher
    kExpect,     ///< arms an expectation on a counter that has none
    kTake,       ///< try_take() on a counter
    kGroupWait,  ///< expects one write from every peer, through a counter group
    kCancel,     ///< an operation, or a batch
    kWait,       ///< blocks for a batch
    kRelease,    ///< releases or closes a counter
    kFence,
    kRevoke,
    kDeregister,
    kDisconnect,
    kRestart,  ///< closes the engine and opens another one after a while
    kMisuse,   ///< a call that must be refused
    kDrop,     ///< goes on without a peer
    kDisarm,   ///< ends an expectation and arms the next one
    kListed,   ///< a range of a prepared write list
  };
  static constexpr uint32_t kKinds = 23;

  Nanos at{};
  Kind kind = Kind::kWrite;
  uint32_t node = 0, other = 0;
  uint64_t seed = 0;
};

const char* to_string(Action::Kind kind) noexcept;

/// A fault from `at` on, undone after `lasts`. A crashed node restarts at that time.
struct PlannedFault {
  Nanos at{}, lasts{};
  sim::Fault fault{};
};

struct NodePlan {
  std::vector<sim::NodeNetwork> networks{};
  bool tight = false;  ///< small limits, so that its queues fill up
  bool reroute = false;
};

struct Plan {
  uint64_t seed = 0;
  sim::WorldOptions world{};
  bool grants = false;   ///< descriptors are granted to one peer each
  bool job_key = false;  ///< all engines share a job key
  std::vector<NodePlan> nodes{};
  Nanos quiet_after{};  ///< no action or fault is later than this
  std::vector<Action> actions{};
  std::vector<PlannedFault> faults{};
};

Plan draw_plan(uint64_t seed);

/// The plan as text, one line for each node, action and fault.
std::string describe(const Plan& plan);

}  // namespace fabric::swarm

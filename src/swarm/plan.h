#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <fabric/sim.h>

// A story is a world on paper: who is there, who does what, what goes wrong. Everything is drawn
// before anything happens, so that a story can be told, and shortened when it ends badly.

namespace fabric::swarm {

/// What a node does at a moment. Everything else about it comes from `dice`, so that a deed stays
/// what it is when others are taken out of the story.
struct Deed {
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
    kRound,    ///< waits for one write of every peer at once
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
  uint64_t dice = 0;
};

const char* to_string(Deed::Kind kind) noexcept;

/// A fault from `at` on, undone after `lasts`. After a crash the node comes back then.
struct Trouble {
  Nanos at{}, lasts{};
  sim::Fault fault{};
};

struct NodePlan {
  std::vector<sim::NodeNetwork> networks{};
  bool tight = false;  ///< small bounds: its queues run full
  bool reroute = false;
};

struct Story {
  uint64_t seed = 0;
  sim::WorldOptions world{};
  bool grants = false;   ///< memory is shown to one peer at a time
  bool job_key = false;  ///< all of them have the same
  std::vector<NodePlan> nodes{};
  Nanos calm{};  ///< when the deeds are done and the troubles over
  std::vector<Deed> deeds{};
  std::vector<Trouble> troubles{};
};

Story draw_story(uint64_t seed);

/// For a person to read.
std::string tell(const Story& story);

}  // namespace fabric::swarm

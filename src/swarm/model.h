#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <fabric/fabric.h>

#include "swarm/target_arena.h"

// What is true in a world, written down beside the engines: who sent what to which counter, what a
// NIC has handed over of it, and what its end said.

namespace fabric::swarm {

inline constexpr uint32_t kNone = UINT32_MAX;

/// One count of an operation, and its bytes.
struct Part {
  enum class Fate : uint8_t { kInFlight, kDelivered, kNotDelivered, kUnknown };
  uint32_t number = 0;
  uint64_t op = 0;
  Nanos submitted{};
  uint32_t session = kNone;
  uint32_t arena = kNone, slot = 0;  ///< nobody: it brings no bytes
  uint32_t counter = kNone;             ///< nobody: it does not count
  uint32_t shards_counted = 0, shards_total = 0;         ///< of it that the NIC has handed over
  Fate fate = Fate::kInFlight;
};

/// One counter and what it should say.
struct CounterModel {
  uint32_t number = 0, node = 0, incarnation = 0;
  std::optional<Counter> counter{};  ///< empty: released
  CounterKey key{};
  uint64_t name = 0;    ///< not 0: senders have to resolve it
  uint64_t wanted = 1;  ///< as many counts are sent to it, and no more
  uint32_t only_from = kNone;
  uint32_t bound_session = kNone;  ///< the session whose end is the end of its wait
  uint32_t group_wait = kNone;  ///< which one it is a member of ...
  uint32_t from_session = kNone;
  PeerId member{};                     ///< ... and whose
  std::vector<uint32_t> parts{};       ///< that may count: all but those that were not delivered
  int64_t units = 0;                   ///< that the NIC has handed over
  Nanos arrived_at{};                  ///< the last of them
  uint64_t taken = 0;                  ///< whole counts
  uint64_t armed_by = 0;                  ///< the op that waits for it
  bool met = false;                  ///< that one has all it asked for ...
  Nanos met_at{};                    ///< ... since then
  bool may_miss_counts = false;                  ///< for a reason that was told, counts may be missing
  bool has_local_writes = false;                   ///< some of it came without a network, unseen
  bool done = false;                   ///< all of it was taken and looked at
  std::map<uint32_t, CounterKey> resolved{};  ///< by session

  bool open() const noexcept { return counter.has_value() && !done && !may_miss_counts; }
};

/// An accepted operation that has not been reported.
struct PendingOp {
  enum class Kind : uint8_t {
    kWrite,
    kPaged,
    kScatter,
    kSignal,
    kSend,
    kTimer,
    kResolve,
    kFence,
    kDeregister,
    kExpect,
    kGroupWait,
  };
  static constexpr uint32_t kKinds = 11;

  uint64_t tag = 0;
  Kind kind = Kind::kWrite;
  uint32_t node = 0, incarnation = 0;
  Nanos submitted{}, report_by{};
  Nanos recheck_at{};  ///< when it is looked at whether the bound has passed
  Nanos deadline{};   ///< its deadline, or when an alarm rings
  OpId id{};
  std::vector<uint32_t> parts{};
  std::span<std::byte> source{};
  uint64_t bytes = 0;
  std::optional<Batch> batch{};
  bool silent = false;         ///< nobody hears of its success
  bool cancelled = false;      ///< asked for
  uint32_t subject = kNone;  ///< the model, arena, session or group_wait that it is about
  uint32_t session = kNone;      ///< of a resolve
  uint64_t message = 0;
  bool no_listener = false;              ///< a message to a channel without a listener
  std::unique_ptr<CounterKey> answer{};  ///< of a resolve
};

const char* to_string(PendingOp::Kind kind) noexcept;

/// A session from one node to another, as its opener sees it.
struct Session {
  uint32_t number = 0;
  uint32_t from = 0, to = 0, from_incarnation = 0, to_incarnation = 0;
  PeerId peer{};
  PeerId peer_at_target{};  ///< what the other side calls it; known once it has heard the first message
  uint64_t session_id_op = 0;  ///< the op that tells it
  bool closed = false;
  Nanos fenced_at = Nanos::max();                 ///< its target has shut it out
  std::map<uint32_t, RemoteRegion> regions{};  ///< by arena
};

/// Memory that others write.
struct OwnedArena {
  uint32_t node = 0, incarnation = 0;
  TargetArena memory;
  std::optional<MemoryRegion> region{};
  bool closing = false;        ///< nobody should use it any more
  Nanos fenced_at = Nanos::max();  ///< nothing can land any more since then
  OpId late{};                 ///< the deregistration that ended without proof
};

/// A wait for one write of every peer.
struct GroupWait {
  uint32_t node = 0;
  std::optional<CounterGroup> group{};
  std::vector<uint32_t> members{};
  uint32_t attempts = 0;  ///< how often
};

}  // namespace fabric::swarm

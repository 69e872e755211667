#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <fabric/fabric.h>

#include "swarm/target_arena.h"

// The model that the engines are checked against: which writes went to which counter and memory,
// what the simulated NICs delivered of them, and what their completions reported. Objects name each
// other by index (kNone: none) into the Runner's deques; see runner.h.

namespace fabric::swarm {

/// Units of one count: divisible by every number of shards.
inline constexpr int64_t kUnits = 840;

inline constexpr uint32_t kNone = UINT32_MAX;

/// One write or signal of an operation: a byte range, a count, or both.
struct Part {
  enum class Fate : uint8_t { kInFlight, kDelivered, kNotDelivered, kUnknown };
  uint32_t number = 0;
  uint64_t op = 0;  ///< tag of its PendingOp
  Nanos submitted{};
  uint32_t session = kNone;
  uint32_t arena = kNone, slot = 0;               ///< kNone: it has no bytes
  uint32_t grant = kNone;                         ///< that it writes under; kNone: open memory
  uint32_t counter = kNone;                       ///< kNone: it is not counted
  uint32_t shards_counted = 0, shards_total = 0;  ///< immediates that arrived, and in all
  Fate fate = Fate::kInFlight;
};

/// A Counter and the value it must have.
struct CounterModel {
  uint32_t number = 0, node = 0, incarnation = 0;
  std::optional<Counter> counter{};  ///< empty: released
  CounterKey key{};
  uint64_t name = 0;                          ///< not 0: senders resolve it by this name
  uint64_t wanted = 1;                        ///< counts that are sent to it, and no more
  uint32_t only_from = kNone;                 ///< the one node that may write to it
  uint32_t bound_session = kNone;             ///< whose loss fails the expectation: bind()
  uint32_t group_wait = kNone;                ///< that it is a member of,
  uint32_t from_session = kNone;              ///< the session of that member,
  PeerId member{};                            ///< and the member's peer
  std::vector<uint32_t> parts{};              ///< sent to it, except those known as not delivered
  int64_t units = 0;                          ///< delivered by the NIC, in 840ths of a count
  Nanos arrived_at{};                         ///< when the last of them came
  uint64_t taken = 0;                         ///< counts taken by expectations and try_take()
  uint64_t armed_by = 0;                      ///< tag of the pending expectation; 0: none
  bool met = false;                           ///< enough has arrived for that expectation
  Nanos met_at{};                             ///< since when
  bool may_miss_counts = false;               ///< poisoned, or a sender is lost
  bool has_local_writes = false;              ///< a node wrote to itself: no arrival is seen
  bool done = false;                          ///< all counts were taken, all bytes compared
  std::map<uint32_t, CounterKey> resolved{};  ///< counter keys by session

  bool open() const noexcept { return counter.has_value() && !done && !may_miss_counts; }
};

/// An accepted operation whose completion has not been reported.
struct PendingOp {
  enum class Kind : uint8_t {
    kWrite,
    kPaged,
    kListed,
    kScatter,
    kSignal,
    kSend,
    kTimer,
    kResolve,
    kFence,
    kRevoke,
    kDeregister,
    kExpect,
    kGroupWait,
    kDrop,
  };
  static constexpr uint32_t kKinds = 14;

  uint64_t tag = 0;
  Kind kind = Kind::kWrite;
  uint32_t node = 0, incarnation = 0;
  Nanos submitted{};
  Nanos report_by{};   ///< latest time of its completion, pauses of its process not counted
  Nanos recheck_at{};  ///< its entry in Runner::report_deadlines_
  Nanos deadline{};    ///< of the operation; of a timer, when it fires
  OpId id{};
  std::vector<uint32_t> parts{};
  std::span<std::byte> source{};
  uint64_t bytes = 0;
  std::optional<Batch> batch{};
  bool silent = false;       ///< no notification: only its failure is reported, to subscribers
  bool cancelled = false;    ///< cancel() was called
  uint32_t subject = kNone;  ///< index of the counter, arena, session, grant or group wait
  uint32_t session = kNone;  ///< of a resolve
  uint64_t message = 0;
  bool no_listener = false;              ///< a message to a channel without a listener
  std::unique_ptr<CounterKey> answer{};  ///< of a resolve
};

const char* to_string(PendingOp::Kind kind) noexcept;

/// A connection from one process to another, as its initiator sees it.
struct Session {
  uint32_t number = 0;
  uint32_t from = 0, to = 0, from_incarnation = 0, to_incarnation = 0;
  PeerId peer{};                   ///< the target, at the initiator
  PeerId peer_at_target{};         ///< the initiator, at the target; known from its first message
  uint64_t session_number_op = 0;  ///< tag of the send that carries the session's number there
  uint64_t last_received = 0;      ///< number of the last message that the target received
  bool closed = false;
  Nanos fenced_at = Nanos::max();              ///< when the target's fence was proved
  std::map<uint32_t, RemoteRegion> regions{};  ///< by arena
  std::map<uint32_t, uint32_t> grants{};       ///< grants of those regions, by arena
};

/// Access of one session to one arena, under rkeys of its own.
struct GrantModel {
  uint32_t session = kNone, arena = kNone;
  GrantId id{};
  bool revoked = false;            ///< its revocation was submitted: new writes do not use it
  Nanos fenced_at = Nanos::max();  ///< when its revocation was proved
  OpId late{};                     ///< a revocation that completed before its proof
};

/// Memory that peers write, and its registration.
struct OwnedArena {
  uint32_t node = 0, incarnation = 0;
  TargetArena memory;
  std::optional<MemoryRegion> region{};
  bool closing = false;            ///< being deregistered: new writes avoid it
  Nanos fenced_at = Nanos::max();  ///< when its deregistration was proved
  OpId late{};                     ///< a deregistration that completed before its proof
};

/// An expectation of one write from every peer, by a CounterGroup.
struct GroupWait {
  uint32_t node = 0;
  std::optional<CounterGroup> group{};
  std::vector<uint32_t> members{};  ///< counters, one for each peer
  uint32_t attempts = 0;            ///< times it was armed again after a lost peer
};

}  // namespace fabric::swarm

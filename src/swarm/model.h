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

inline constexpr uint32_t kNobody = UINT32_MAX;

/// One count of an operation, and its bytes.
struct Part {
  enum class Fate : uint8_t { kUnderWay, kDelivered, kNotDelivered, kUnknown };
  uint32_t number = 0;
  uint64_t task = 0;
  Nanos begun{};
  uint32_t way = kNobody;
  uint32_t field = kNobody, place = 0;  ///< nobody: it brings no bytes
  uint32_t tally = kNobody;             ///< nobody: it does not count
  uint32_t shards = 0, cut = 0;         ///< of it that the NIC has handed over
  Fate fate = Fate::kUnderWay;
};

/// One counter and what it should say.
struct Tally {
  uint32_t number = 0, node = 0, life = 0;
  std::optional<Counter> counter{};  ///< empty: released
  CounterKey key{};
  uint64_t name = 0;    ///< not 0: senders have to resolve it
  uint64_t wanted = 1;  ///< as many counts are sent to it, and no more
  uint32_t only_from = kNobody;
  uint32_t bound = kNobody;  ///< the way whose end is the end of its wait
  uint32_t round = kNobody;  ///< which one it is a member of ...
  uint32_t from_way = kNobody;
  PeerId member{};                     ///< ... and whose
  std::vector<uint32_t> parts{};       ///< that may count: all but those that were not delivered
  int64_t units = 0;                   ///< that the NIC has handed over
  Nanos arrived_at{};                  ///< the last of them
  uint64_t taken = 0;                  ///< whole counts
  uint64_t armed = 0;                  ///< the task that waits for it
  bool fired = false;                  ///< that one has all it asked for ...
  Nanos fired_at{};                    ///< ... since then
  bool loose = false;                  ///< for a reason that was told, counts may be missing
  bool self = false;                   ///< some of it came without a network, unseen
  bool done = false;                   ///< all of it was taken and looked at
  std::map<uint32_t, CounterKey> resolved{};  ///< by way

  bool open() const noexcept { return counter.has_value() && !done && !loose; }
};

/// An accepted operation that has not been reported.
struct Task {
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
    kRound,
  };
  static constexpr uint32_t kKinds = 11;

  uint64_t tag = 0;
  Kind kind = Kind::kWrite;
  uint32_t node = 0, life = 0;
  Nanos submitted{}, bound{};
  Nanos look{};  ///< when it is looked at whether the bound has passed
  Nanos due{};   ///< its deadline, or when an alarm rings
  OpId id{};
  std::vector<uint32_t> parts{};
  std::span<std::byte> source{};
  uint64_t bytes = 0;
  std::optional<Batch> batch{};
  bool silent = false;         ///< nobody hears of its success
  bool cancelled = false;      ///< asked for
  uint32_t subject = kNobody;  ///< the tally, field, way or round that it is about
  uint32_t way = kNobody;      ///< of a resolve
  uint64_t message = 0;
  bool deaf = false;              ///< a message to a channel without a listener
  std::unique_ptr<CounterKey> answer{};  ///< of a resolve
};

const char* to_string(Task::Kind kind) noexcept;

/// A session from one node to another, as its opener sees it.
struct Way {
  uint32_t number = 0;
  uint32_t from = 0, to = 0, from_life = 0, to_life = 0;
  PeerId peer{};
  PeerId there{};  ///< what the other side calls it; known once it has heard the first message
  uint64_t greeting = 0;  ///< the task that tells it
  bool ended = false;
  Nanos fenced = Nanos::max();                 ///< its target has shut it out
  std::map<uint32_t, RemoteRegion> regions{};  ///< by field
};

/// Memory that others write.
struct OwnedField {
  uint32_t node = 0, life = 0;
  Field field;
  std::optional<MemoryRegion> region{};
  bool closing = false;        ///< nobody should use it any more
  Nanos ended = Nanos::max();  ///< nothing can land any more since then
  OpId late{};                 ///< the deregistration that ended without proof
};

/// A wait for one write of every peer.
struct Round {
  uint32_t node = 0;
  std::optional<CounterGroup> group{};
  std::vector<uint32_t> tallies{};
  uint32_t asked = 0;  ///< how often
};

}  // namespace fabric::swarm

#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

namespace fabric {

using Nanos = std::chrono::nanoseconds;

/// Handles are slot and generation: 8 bytes, trivially copyable, never reused while stale copies
/// could lie. A default handle is "none". Not an aggregate, or `.batch = 3` would compile by brace
/// elision.
///
/// Threads: copy freely.
template <class Tag>
struct Handle {
  uint32_t slot = 0;
  uint32_t generation = 0;  ///< 0 = none
  constexpr Handle() = default;
  constexpr explicit Handle(uint32_t slot_, uint32_t generation_)
      : slot(slot_), generation(generation_) {}
  constexpr explicit operator bool() const noexcept { return generation != 0; }
  friend constexpr auto operator<=>(const Handle&, const Handle&) = default;
};

using PeerId = Handle<struct PeerTag>;      ///< one session with one incarnation of a remote engine
using OpId = Handle<struct OpTag>;          ///< one accepted operation
using RegionId = Handle<struct RegionTag>;  ///< local registered memory
using BatchId = Handle<struct BatchTag>;    ///< operations waited for and cancelled together
using GroupId = Handle<struct GroupTag>;    ///< a fixed list of peers

/// A place in local registered memory.
struct LocalRef {
  RegionId region{};
  uint64_t offset = 0;
};

struct RemoteRef;

/// A peer's region after import_region(). Not serialisable: ship the descriptor instead.
struct RemoteRegion : Handle<struct RemoteRegionTag> {
  using Handle::Handle;
  constexpr RemoteRef at(uint64_t offset) const noexcept;
};

/// A place in a peer's region.
struct RemoteRef {
  RemoteRegion region{};
  uint64_t offset = 0;
};

constexpr RemoteRef RemoteRegion::at(uint64_t offset) const noexcept { return {*this, offset}; }

/// How long an operation may take, counted from the submit. Relative, so that a prepared request
/// can be reused and the same code runs in virtual time.
struct Timeout {
  static constexpr int64_t kDefault = INT64_MIN;  ///< Config::default_timeout
  static constexpr int64_t kForever = INT64_MAX;  ///< waits only; refused on writes

  int64_t ns = kDefault;

  constexpr Timeout() = default;
  template <class Rep, class Period>
  constexpr Timeout(std::chrono::duration<Rep, Period> d)  // so that `.timeout = 30s` reads well
      : ns(std::chrono::duration_cast<Nanos>(d).count()) {}
  static constexpr Timeout forever() {
    Timeout t;
    t.ns = kForever;
    return t;
  }
};

/// What the sender knows about the target's bytes once an operation has completed (P3).
enum class Remote : uint8_t {
  kDelivered,     ///< the target took it, and its count is certain
  kNotDelivered,  ///< not counted, and nothing of it lands any more
  kUnknown,       ///< neither could be proved: writes may land until the owner fences
};

/// Urgent work overtakes what has not been posted yet; bulk work is posted in slices, so that
/// urgent work waits at most for one slice per NIC (Config::bulk_slice_bytes).
enum class Priority : uint8_t { kNormal, kUrgent, kBulk };

/// What a write counts under: 28 bits that the receiver handed out (Counter::key(), or resolve()
/// of a name). Ship it as 4 bytes in a message of your own. A default CounterKey means no immediate.
class CounterKey {
 public:
  static constexpr uint32_t kBits = 28;

  constexpr CounterKey() = default;
  static constexpr CounterKey from_wire(uint32_t bits) noexcept { return CounterKey(bits & ((1u << kBits) - 1)); }
  constexpr uint32_t wire() const noexcept { return bits_; }
  constexpr explicit operator bool() const noexcept { return bits_ != 0; }
  friend constexpr auto operator<=>(const CounterKey&, const CounterKey&) = default;

 private:
  constexpr explicit CounterKey(uint32_t bits) : bits_(bits) {}
  uint32_t bits_ = 0;
};

/// The most NICs that may carry one write: 840, the units of a count, divides by 1..8.
inline constexpr uint32_t kRailsMax = 8;

}  // namespace fabric

#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

namespace fabric {

using Nanos = std::chrono::nanoseconds;

/// Slot and generation: 8 bytes, trivially copyable. A stale copy never refers to the next object
/// in the slot, because its generation differs. A default handle is "none". Not an aggregate: then
/// `.batch = 3` would compile by brace elision.
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
using PageListId = Handle<struct PageListTag>;    ///< a prepared list of pages
using WriteListId = Handle<struct WriteListTag>;  ///< a prepared list of writes
using GrantId = Handle<struct GrantTag>;  ///< access of one peer to a region, revocable alone

/// An offset in local registered memory.
struct LocalRef {
  RegionId region{};
  uint64_t offset = 0;
};

struct RemoteRef;

/// A peer's region after import_region(). Not serialisable: send the descriptor instead.
struct RemoteRegion : Handle<struct RemoteRegionTag> {
  using Handle::Handle;
  constexpr RemoteRef at(uint64_t offset) const noexcept;
};

/// An offset in a peer's region.
struct RemoteRef {
  RemoteRegion region{};
  uint64_t offset = 0;
};

constexpr RemoteRef RemoteRegion::at(uint64_t offset) const noexcept { return {*this, offset}; }

/// How long an operation may take from its submit. Relative, so that a prepared request can be
/// reused and the same code runs in virtual time.
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

/// What the sender knows about the target's bytes once an operation has completed
/// (contracts.md P3).
enum class Remote : uint8_t {
  kDelivered,     ///< the target took it, and its count is certain
  kNotDelivered,  ///< not counted, and none of its bytes can land any more
  kUnknown,       ///< neither could be proved: bytes may land until the target's owner fences
};

/// Urgent work overtakes work that is not posted yet. Bulk work is posted in slices, so that urgent
/// work waits for at most one slice per NIC (Config::bulk_slice_bytes).
enum class Priority : uint8_t { kNormal, kUrgent, kBulk };

/// Names a counter of the receiver: 28 bits from Counter::key(), or from resolve() of a name. Send
/// it to the writers as 4 bytes in a message. A default CounterKey means no immediate. Not a memory
/// key: those (rkeys) are inside region descriptors.
class CounterKey {
 public:
  static constexpr uint32_t kBits = 28;

  constexpr CounterKey() = default;
  static constexpr CounterKey from_wire(uint32_t bits) noexcept {
    return CounterKey(bits & ((1u << kBits) - 1));
  }
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

#pragma once

#include <fabric/notify.h>
#include <fabric/types.h>

namespace fabric {

// Requests are plain data with a default for every field. submit() keeps no pointer into the
// caller's memory: it copies spans into bounded arenas, and everything else is a handle
// (contracts.md P22). The bytes of the regions are borrowed until completion.

/// One write. Adds one to the target's counter when `imm` is set; size 0 is legal.
///
/// A large write is striped over the NICs, and each stripe adds its share of one count. So a count
/// proves something only when it equals the number of writes sent to the counter. Wrong:
///
///     submit(Write{.source = a, .target = x, .size_bytes = 1 << 20, .imm = key});
///     submit(Write{.source = b, .target = y, .size_bytes = 1 << 20, .imm = key});
///     // target: counter.wait(1), then read x. Half of x and half of y also make one count.
///
/// Right: the target waits for 2; or each write has a counter of its own; or both are `unsplit`.
struct Write {
  LocalRef source{};
  RemoteRef target{};
  uint64_t size_bytes = 0;
  CounterKey imm{};
  Priority priority = Priority::kNormal;
  bool unsplit = false;  ///< never striped: one NIC carries all of it
  Timeout timeout{};
  BatchId batch{};
  Notify notify{};
};
static_assert(sizeof(Write) <= 104);

/// Byte offset of page i in its region: offset_bytes + indices[i] * stride_bytes.
struct Pages {
  std::span<const uint32_t> indices{};
  uint64_t stride_bytes = 0;
  uint64_t offset_bytes = 0;
};

/// Many pages of equal size between two regions: one count per page, one completion for all.
struct PagedWrite {
  RegionId source{};
  Pages source_pages{};
  RemoteRegion target{};
  Pages target_pages{};
  uint64_t page_bytes = 0;
  CounterKey imm{};
  Priority priority = Priority::kNormal;
  Timeout timeout{};
  BatchId batch{};
  Notify notify{};
};

struct ScatterTarget {
  RemoteRef target{};  ///< implies the peer
  uint64_t source_offset = 0;
  uint64_t size_bytes = 0;
  CounterKey imm{};  ///< each receiver has a counter key of its own
};
static_assert(sizeof(ScatterTarget) <= 40);

/// One source region to many peers, each with its own offsets, length and counter key. One count
/// per target. A target that fails does not stop the others.
struct Scatter {
  RegionId source{};
  std::span<const ScatterTarget> targets{};
  GroupId group{};  ///< optional: target i is a region of member i, which saves look-ups
  Priority priority = Priority::kNormal;
  Timeout timeout{};
  BatchId batch{};
  Notify notify{};
};

/// Adds one to a counter of each member, without bytes: a barrier. keys: one for all, or one each.
struct Signal {
  GroupId group{};
  std::span<const CounterKey> keys{};
  Priority priority = Priority::kUrgent;
  Timeout timeout{};
  BatchId batch{};
  Notify notify{};
};

/// A small two-sided message, copied. Completes when it is queued at the peer's listener. Refused
/// with kTooLarge above PeerInfo::message_bytes_max; completes with kUnsupported when the channel
/// has no listener.
///
/// Messages of one session and channel arrive in the order of their submits; with writes and with
/// other channels they have no order (P7). One that fails is skipped: with kNotDelivered it never
/// arrives, with kUnknown it may still arrive, in its place. Later ones do not wait for it.
struct Send {
  PeerId peer{};
  uint16_t channel = 0;  ///< one per workload that shares the engine
  std::span<const std::byte> bytes{};
  Timeout timeout{};
  BatchId batch{};
  Notify notify{};
};

/// Completes `after` from now on the engine's clock, which may be virtual.
struct Timer {
  Nanos after{};
  BatchId batch{};
  Notify notify{};
};

/// Looks up the counter keys of a peer's named counters: many names in one round trip, once, before
/// the hot path. The keys are stored in the caller's `out`, which must stay valid until completion.
struct Resolve {
  PeerId peer{};
  std::span<const uint64_t> names{};
  std::span<CounterKey> out{};
  Timeout timeout{};
  BatchId batch{};
  Notify notify{};
};

/// Completes when no write of this session of the peer can land here any more; the peer is fenced
/// from then on. Without proof in time it completes with kTimeout and Remote::kUnknown.
struct Fence {
  PeerId peer{};
  Timeout timeout{};
  BatchId batch{};
  Notify notify{};
};

/// Revokes one grant; completes when no write under it can land any more (P13). The session, the
/// peer's other grants and the region go on. At the peer, writes under this grant that are not
/// posted yet complete with kNotFound, posted ones drain; what a peer that does not answer still
/// sends is refused (kRemoteAccess).
///
/// Completes with ok also when the grant has ended already: revoked before, with its session, or
/// with its region. Without proof in time it completes with kTimeout and Remote::kUnknown; the
/// proof may follow as kFenceProved with this op and no peer. kBusy while another Revoke of the
/// grant is pending, kNotFound for an id that grant() did not return.
struct Revoke {
  GrantId grant{};
  Timeout timeout{};
  BatchId batch{};
  Notify notify{};
};

/// Completes when no remote write can land in the region any more (P13).
struct Deregister {
  RegionId region{};
  Timeout timeout{};
  BatchId batch{};
  Notify notify{};
};

}  // namespace fabric

#pragma once

#include <fabric/notify.h>
#include <fabric/types.h>

namespace fabric {

// Every request: plain data, every field has a default. No pointer into the caller's memory
// outlives submit(): spans are copied into bounded arenas before it returns, everything else is a
// handle (P22). The bytes of the regions are borrowed until completion.

/// One write. Counts one at the target when `imm` is set; size 0 is legal.
///
/// A large write is cut over the NICs and each piece adds its share of one count. So a count is
/// proof only when it equals everything sent to the key; the halves of two writes also make one.
/// Who acts on a part needs a key of its own for it, or `whole`.
struct Write {
  LocalRef source{};
  RemoteRef target{};
  uint64_t size_bytes = 0;
  CounterKey imm{};
  Priority priority = Priority::kNormal;
  bool unsplit = false;  ///< one NIC, one piece
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

/// Many equal pieces between two regions; one count per page, one completion for all.
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
  RemoteRef target{};  ///< names the peer as well
  uint64_t source_offset = 0;
  uint64_t size_bytes = 0;
  CounterKey imm{};  ///< receivers have keys of their own
};
static_assert(sizeof(ScatterTarget) <= 40);

/// One source region to many peers, each with its own offsets, length and key. One count per
/// target. A target that fails does not stop the others.
struct Scatter {
  RegionId source{};
  std::span<const ScatterTarget> targets{};
  GroupId group{};  ///< optional: target i is a region of member i, which saves the look-ups
  Priority priority = Priority::kNormal;
  Timeout timeout{};
  BatchId batch{};
  Notify notify{};
};

/// Adds one to each member's counter, no bytes: a barrier. keys: one for all, or one per member.
struct Signal {
  GroupId group{};
  std::span<const CounterKey> keys{};
  Priority priority = Priority::kUrgent;
  Timeout timeout{};
  BatchId batch{};
  Notify notify{};
};

/// A small two-sided message, copied; not ordered with writes (P7). Done when it is queued at the
/// peer's listener. Fails with kTooLarge above PeerInfo::message_bytes_max; ends with kUnsupported
/// when nobody listens on the channel.
struct Send {
  PeerId peer{};
  uint16_t channel = 0;  ///< several workloads share one engine: each listens on its own
  std::span<const std::byte> bytes{};
  Timeout timeout{};
  BatchId batch{};
  Notify notify{};
};

/// An alarm on the engine's clock: also in virtual time.
struct Timer {
  Nanos after{};
  BatchId batch{};
  Notify notify{};
};

/// Names of a peer to keys, once, ahead of the hot path; many names in one round trip. The keys are
/// in the caller's `out`, which must stay alive until the operation ends.
struct Resolve {
  PeerId peer{};
  std::span<const uint64_t> names{};
  std::span<CounterKey> out{};
  Timeout timeout{};
  BatchId batch{};
  Notify notify{};
};

/// Completes when no write of this session of the peer can land here any more; the peer is fenced
/// from then on. Ends with kTimeout and Remote::kUnknown when that cannot be proved in time.
struct Fence {
  PeerId peer{};
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

#pragma once

#include <fabric/notify.h>
#include <fabric/types.h>

namespace fabric {

// Requests are plain data with a default for every field. submit() keeps no pointer into the
// caller's memory: it copies spans into bounded arenas, and everything else is a handle
// (contracts.md P22). The bytes of the regions are borrowed until completion.

/// One write. Adds one to the target's counter when `imm` is set; size 0 is legal.
///
/// A write that has at least 2 x stripe_bytes_min (Network, Config) is cut over the NICs of its
/// network, smaller ones take the NICs in turn, whatever their peers; a NIC that was given more
/// bytes than the others passes its turn on. Of a write that is cut, each stripe adds its share of
/// one count. So a count proves something only when it equals the number of writes sent to the
/// counter. Wrong:
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

/// Byte offset of element j of page i in its region:
///
///     offset_bytes + index[i] * stride_bytes + j * inner_stride_bytes
///
/// The indices are in the request, which copies them at submit, or in a prepared list
/// (Engine::make_page_list), of which submit() only takes the name: `indices` or `list`, not both.
struct Pages {
  std::span<const uint32_t> indices{};
  uint64_t stride_bytes = 0;
  uint64_t offset_bytes = 0;
  PageListId list{};
  uint64_t inner_stride_bytes = 0;
};

/// Many parts of equal size between two regions: one count for each, one completion for all.
///
/// A part is a page, or, with an inner count, one of that many elements of a page. A slice of the
/// heads of a KV cache, which has [page][token][head] here and there, takes no index per token:
///
///     PagedWrite{.source = cache,
///                .source_pages = {.stride_bytes = kPage, .offset_bytes = layer + slice,
///                                 .list = pages, .inner_stride_bytes = kToken},
///                .target = theirs,
///                .target_pages = {.stride_bytes = kTheirPage, .offset_bytes = their_layer,
///                                 .list = their_pages, .inner_stride_bytes = kTheirToken},
///                .page_bytes = kSlice, .inner_count = kTokensPerPage}
///
/// Parts are numbered page by page: Event::first_failed of element j of page i is
/// i * inner_count + j.
///
/// Cost: with prepared lists submit() takes the same time for any number of pages. Indices in the
///   request are read and copied, 4 bytes each, into Config::index_arena_bytes.
/// Fails with kInvalidArgument (no pages, `indices` and `list` on one side, a different number of
/// pages on both sides, inner_count 0), kNotFound (a list that was destroyed, or is of another
/// engine), kOutOfBounds, kTooLarge (more than 2^32 - 1 parts, or indices that never fit in the
/// arena), kExhausted.
struct PagedWrite {
  RegionId source{};
  Pages source_pages{};
  RemoteRegion target{};
  Pages target_pages{};
  uint64_t page_bytes = 0;   ///< of one part
  uint32_t inner_count = 1;  ///< parts of a page
  CounterKey imm{};
  Priority priority = Priority::kNormal;
  Timeout timeout{};
  BatchId batch{};
  Notify notify{};
};

/// The writes `first` to `first + count - 1` of a prepared list (Engine::make_write_list), from one
/// region to one region of a peer: one count for each write, one completion for all. Regions and
/// base offsets are named here, so that a list outlives a session, and serves every peer that has
/// the same layout.
///
/// A write of a list is never striped: one NIC carries all of it. The NICs share the range by
/// bytes. It is one work request, so it completes with kTooLarge where the network's largest one is
/// smaller (Caps::write_bytes_max); the others are not affected. Event::first_failed counts from
/// `first`.
///
/// Cost: submit() takes the same time for any count, if all of the list lies inside both regions.
///   Otherwise it looks at each write of the range.
/// Fails with kInvalidArgument (no list, count 0), kNotFound (a list that was destroyed, or is of
/// another engine), kOutOfBounds (`first` or `count`: not in the list; `source` or `target`: a
/// write past the region), kExhausted.
struct ListedWrites {
  WriteListId list{};
  uint32_t first = 0;
  uint32_t count = 0;
  LocalRef source{};
  RemoteRef target{};
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
///
/// Targets are striped as writes are: from 2 x stripe_bytes_min on a target is cut over the NICs of
/// its network, and each stripe adds its share of the one count, with what Write says about such
/// counts; smaller ones take the NICs in turn. A target completes, and counts in its batch, once:
/// when all its stripes have. The first target is posted before the others are prepared; there is
/// no order between targets.
///
/// Cost: submit() checks each target, and copies 40 bytes of it into Config::index_arena_bytes.
/// Fails with kInvalidArgument (no source or targets, or `group` has other members), kNotFound
/// (`source`, a region of a target, `group`), kOutOfBounds, kTooLarge (targets that never fit in
/// the arena), kExhausted. A target whose peer is lost fails alone.
struct Scatter {
  RegionId source{};
  std::span<const ScatterTarget> targets{};
  GroupId group{};  ///< optional: target i is a region of member i, which saves look-ups
  Priority priority = Priority::kNormal;
  bool unsplit = false;  ///< no target is striped: one NIC carries all of it
  Timeout timeout{};
  BatchId batch{};
  Notify notify{};
};

/// Adds one to a counter of each member, without bytes: a barrier. `keys`: one for all, or one per
/// member.
struct Signal {
  GroupId group{};
  std::span<const CounterKey> keys{};
  Priority priority = Priority::kUrgent;
  Timeout timeout{};
  BatchId batch{};
  Notify notify{};
};

/// A two-sided message of at most 1 MiB, copied. Completes when it is queued at the peer's
/// listener. Refused with kTooLarge above PeerInfo::message_bytes_max; completes with kUnsupported
/// when the channel has no listener.
///
/// Messages of one session and channel arrive in the order of their submits; with writes and with
/// other channels they have no order (P7). One that fails is skipped: with kNotDelivered it never
/// arrives, with kUnknown it may still arrive, in its place. Later ones do not wait for it.
/// Channels do not wait for each other, and large messages of several channels take turns.
///
/// Cost: submit() copies the bytes into Config::index_arena_bytes, the peer's engine copies them
///   into the listener's buffer. Above 64 KiB the message goes in parts, of which one session has
///   256 KiB in flight: for bulk data use writes.
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
/// the hot path. The counter keys are stored in the caller's `out`, which must stay valid until
/// completion.
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
/// As in I/O fencing: it excludes a peer, and orders nothing (unlike ucp_worker_fence, shmem_fence
/// or IBV_SEND_FENCE).
struct Fence {
  PeerId peer{};
  Timeout timeout{};
  BatchId batch{};
  Notify notify{};
};

/// Goes on without a peer: one call for what a system does when a rank is gone, or must be treated
/// so. When submit() returns, the peer is masked in all counter groups. The worker's next turn
/// disconnects it at once, without waiting for its answer, and ends this engine's writes to it with
/// kPeerLost: their sources are free when they complete. The operation itself is a Fence: it
/// completes with kOk only when no write of this session of the peer can land here any more;
/// without proof in time with kTimeout and Remote::kUnknown, and kFenceProved may follow. With
/// kBusy when a fence of the peer is running, whose completion has the proof.
///
/// Cost: submit() takes the state lock.
/// Fails with kNotFound for a session that was forgotten (Engine::peers()): its members are masked,
/// and there is nothing left to prove it by. kExhausted: try again, also when a group was masked.
struct Drop {
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
/// proof may follow as kFenceProved with this op and no peer.
///
/// Cost: one message to the peer and back, which waits for the writes that the peer has posted
///   under the grant, and a deregistration on every NIC; in the engine O(live grants of the
///   region).
/// Fails with kInvalidArgument (no grant), kExhausted. Completes with kBusy while another Revoke of
/// the grant is pending, with kNotFound for an id that this engine's grant() did not return: that
/// of another engine of the process revokes nothing and proves nothing.
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

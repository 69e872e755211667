#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include <fabric/provider.h>
#include <fabric/stats.h>

#include "base/driver.h"
#include "control/message.h"
#include "core/cut_target.h"
#include "core/op.h"
#include "core/pending.h"
#include "core/post_batch.h"
#include "core/state_mutex.h"

// From operations to posted writes and back: routing, cutting, queueing per path, posting, retiring
// completions, failover.

namespace fabric::core {

class EngineCore;
struct LocalRegion;
struct Peer;
struct RemoteRegionSlot;
struct CachedRoute;
struct CachedPath;

/// In InflightWrite::op: a probe of the engine's own, which belongs to no operation.
inline constexpr uint32_t kProbe = kNone - 1;

/// The result of a write, as far as its rail knows it.
struct CompletionStatus {
  Errc code = Errc::kOk;
  Remote remote = Remote::kDelivered;
};

/// The target's report on its end of a path, sent once that end is closed and drained.
struct DrainReport {
  bool received = false;
  bool exact = false;          ///< `imms_received` is exact, so that replay is possible
  uint64_t imms_received = 0;  ///< immediates that the target received, stale ones included
};

/// One rail here to one rail of one peer, in the direction of our writes. A path outlives its
/// connections: it is opened again, with a new `id` and `ref`, after one has broken.
struct Path {
  enum class State : uint8_t {
    kFree,
    kOpening,
    kReady,
    kClosing,     ///< this end is being torn down
    kBackingOff,  ///< no connection; it is opened again at `retry_ns`
  };
  State state FABRIC_GUARDED_BY(state_lock) = State::kFree;
  uint32_t index FABRIC_GUARDED_BY(state_lock) = 0;
  uint32_t peer FABRIC_GUARDED_BY(state_lock) = kNone;  ///< slot
  uint8_t network FABRIC_GUARDED_BY(state_lock) = 0;
  uint8_t rail FABRIC_GUARDED_BY(state_lock) = 0;
  uint8_t remote_rail FABRIC_GUARDED_BY(state_lock) = 0;
  bool peer_lost FABRIC_GUARDED_BY(state_lock) = false;  ///< not opened again once it is down
  /// The last use failed: nothing is posted until a probe completes.
  bool needs_probe FABRIC_GUARDED_BY(state_lock) = false;
  /// This connection was ready once, so writes may have been posted.
  bool started FABRIC_GUARDED_BY(state_lock) = false;
  /// The peer rejected it permanently: freed once it is down.
  bool rejected FABRIC_GUARDED_BY(state_lock) = false;
  /// This connection failed; this side did not close it.
  bool broke FABRIC_GUARDED_BY(state_lock) = false;
  /// The target reported that its end is down.
  bool remote_closed FABRIC_GUARDED_BY(state_lock) = false;
  uint32_t id FABRIC_GUARDED_BY(state_lock) = 0;  ///< the provider's
  /// Its number in control messages; new each time it is opened.
  uint32_t ref FABRIC_GUARDED_BY(state_lock) = 0;
  std::array<PendingQueue, 3> queue FABRIC_GUARDED_BY(state_lock){};  ///< by priority
  std::array<uint32_t, 3> next_active FABRIC_GUARDED_BY(state_lock){kNone, kNone, kNone};
  /// In the rail's list of paths with work.
  std::array<bool, 3> active FABRIC_GUARDED_BY(state_lock){};
  /// InflightWrites, oldest first.
  uint32_t first_inflight FABRIC_GUARDED_BY(state_lock) = kNone;
  uint32_t last_inflight FABRIC_GUARDED_BY(state_lock) = kNone;
  /// Writes in that list, and in compact post batches.
  uint32_t inflight FABRIC_GUARDED_BY(state_lock) = 0;

  // Failover (failover.cc).
  /// Of this connection; done: acknowledged.
  uint64_t imms_posted FABRIC_GUARDED_BY(state_lock) = 0;
  uint64_t imms_done FABRIC_GUARDED_BY(state_lock) = 0;
  /// Retired by the break, in posting order.
  std::vector<uint32_t> in_doubt FABRIC_GUARDED_BY(state_lock){};
  /// The lowest that was ever among them.
  uint64_t in_doubt_seq FABRIC_GUARDED_BY(state_lock) = UINT64_MAX;
  DrainReport drain_report FABRIC_GUARDED_BY(state_lock){};
  uint32_t failures FABRIC_GUARDED_BY(state_lock) = 0;  ///< in a row
  /// kBackingOff: when it is reopened; kReady: when the next probe is due.
  int64_t retry_ns FABRIC_GUARDED_BY(state_lock) = kNeverNs;
  uint32_t probe FABRIC_GUARDED_BY(state_lock) = kNone;  ///< cookie of the probe in flight
  int64_t probe_deadline_ns FABRIC_GUARDED_BY(state_lock) = kNeverNs;
};

/// One work request, from when it is made until it is retired, or, if it is in doubt, reconciled.
/// Entries of a compact PostBatch have none.
struct InflightWrite {
  WriteOp wr FABRIC_GUARDED_BY(state_lock){};
  uint32_t op FABRIC_GUARDED_BY(state_lock) = kNone;  ///< kNone: this record is free; or kProbe
  uint32_t part FABRIC_GUARDED_BY(state_lock) = 0;
  uint32_t path FABRIC_GUARDED_BY(state_lock) = kNone;
  uint32_t peer FABRIC_GUARDED_BY(state_lock) = kNone;  ///< slot
  /// In the list of its path, or `next` in the free list.
  uint32_t prev FABRIC_GUARDED_BY(state_lock) = kNone;
  uint32_t next FABRIC_GUARDED_BY(state_lock) = kNone;
  /// The source, which must stay registered until it retires.
  uint32_t region_slot FABRIC_GUARDED_BY(state_lock) = kNone;
  uint64_t seq FABRIC_GUARDED_BY(state_lock) = 0;       ///< counts the writes to its peer
  int64_t posted_ns FABRIC_GUARDED_BY(state_lock) = 0;  ///< when it was made
  Priority priority FABRIC_GUARDED_BY(state_lock){};
  /// Immediates posted on its path before it; UINT64_MAX: the rail has not accepted it.
  uint64_t imms_before FABRIC_GUARDED_BY(state_lock) = UINT64_MAX;
  uint64_t offset FABRIC_GUARDED_BY(state_lock) = 0;  ///< of its first byte in the part
  /// Of a write or a cut target: what it is a slice of.
  Shard shard FABRIC_GUARDED_BY(state_lock){};
  /// Of a scatter target that is cut: its CutTarget.
  uint32_t cut FABRIC_GUARDED_BY(state_lock) = kNone;
  /// Its path broke; the drain report decides what became of it.
  bool in_doubt FABRIC_GUARDED_BY(state_lock) = false;
  /// Of a write in doubt, as far as this side knows.
  CompletionStatus status FABRIC_GUARDED_BY(state_lock){};
  /// Not kOk: must not be replayed, and completes with this code.
  Errc replay_error FABRIC_GUARDED_BY(state_lock) = Errc::kOk;
};

/// A connection that broke, until the target's drain report tells which of its writes were
/// delivered. The path may have a new connection by then.
struct BrokenConnection {
  uint32_t peer FABRIC_GUARDED_BY(state_lock) = kNone;  ///< slot
  uint32_t ref FABRIC_GUARDED_BY(state_lock) = 0;       ///< of the path
  uint8_t network FABRIC_GUARDED_BY(state_lock) = 0;
  uint8_t rail FABRIC_GUARDED_BY(state_lock) = 0;
  uint64_t imms_done FABRIC_GUARDED_BY(state_lock) = 0;  ///< immediates that were acknowledged here
  /// Of all writes that were ever in doubt on it.
  uint64_t oldest_seq FABRIC_GUARDED_BY(state_lock) = UINT64_MAX;
  /// In doubt, in posting order, until completed or replayed.
  std::vector<uint32_t> writes FABRIC_GUARDED_BY(state_lock){};
  /// What was not posted yet of shards that were begun on it.
  PendingQueue partly_posted FABRIC_GUARDED_BY(state_lock){};
};

/// An open rail, its scheduling lists, and its in-flight counts. Registration reaches it without
/// the state lock, and uses only what the lock does not guard.
struct RailSlot {
  Rail* rail = nullptr;
  Caps caps{};
  uint8_t network = 0, index = 0;
  bool up FABRIC_GUARDED_BY(state_lock) = true;
  uint32_t inflight FABRIC_GUARDED_BY(state_lock) = 0;    ///< the sum over its paths
  uint64_t bulk_bytes FABRIC_GUARDED_BY(state_lock) = 0;  ///< of bulk writes in flight
  /// Paths with work, by priority.
  std::array<uint32_t, 3> first_active FABRIC_GUARDED_BY(state_lock){kNone, kNone, kNone};
  std::array<uint32_t, 3> last_active FABRIC_GUARDED_BY(state_lock){kNone, kNone, kNone};
  uint32_t active_paths FABRIC_GUARDED_BY(state_lock) = 0;  ///< how many are in these lists
  /// A copy by CPU may have completed at once.
  bool posted_this_turn FABRIC_GUARDED_BY(state_lock) = false;
  /// Bytes of the writes that it was chosen for among several rails, plus kDealtPerWrite for each.
  uint64_t dealt_bytes FABRIC_GUARDED_BY(state_lock) = 0;
  uint32_t staged_count FABRIC_GUARDED_BY(state_lock) = 0;
  /// Work requests of the fast path, for the next post.
  std::array<WriteOp, kPostMax> staged FABRIC_GUARDED_BY(state_lock){};
  /// The last of the post batches that are staged.
  PostBatch* open_post_batch FABRIC_GUARDED_BY(state_lock) = nullptr;
  /// In flight here, not yet accepted by a full provider.
  std::vector<WriteOp> backlog FABRIC_GUARDED_BY(state_lock){};
  /// Immediates of the current poll.
  std::vector<uint32_t> arrived_imms FABRIC_GUARDED_BY(state_lock){};
  Traffic tx FABRIC_GUARDED_BY(state_lock){}, rx FABRIC_GUARDED_BY(state_lock){};
};

/// An open network. Its index in EngineCore::networks is its rank in the order of preference.
struct NetworkSlot {
  std::string provider{}, name{};
  std::unique_ptr<OpenNetwork> network{};
  std::vector<RailSlot> rails{};
  uint32_t memory_kinds = 0;
  FenceKind fence = FenceKind::kNone;
  bool count_is_final = true;  ///< on all of its rails
  bool is_self = false;
  uint64_t stripe_bytes_min = 0;  ///< as effective: of the network, of the engine, or the default
  /// Round robin over rails, for all peers together: writes to many peers use all rails evenly. A
  /// rail that was dealt more than `dealt_max` passes its turn on (deal.cc).
  uint32_t rotation FABRIC_GUARDED_BY(state_lock) = 0;
  uint64_t dealt_max FABRIC_GUARDED_BY(state_lock) = 0;
};

/// One member of a Signal.
struct SignalTarget {
  PeerId peer{};
  CounterKey key{};
};

/// The data path of an engine: turns transfers (writes, paged and listed writes, scatters, signals)
/// into work requests, retires their completions, and replays what a broken connection left in
/// doubt.
///
/// Owner: EngineCore. Everything here runs under the state lock, nearly all of it on the worker
/// during its turn. Rails are posted to and polled only there. close(), cancel(), disconnect() and
/// dumps take the lock on other threads; they may stop operations, close paths and expand batches.
///
/// The concepts, from the request down to the wire:
/// - An *operation* (Op) is what was submitted. It completes once, with one code.
/// - A *part* is what completions count: the write itself, one page, one target. Every part
///   completes once, and is reported to the batch of its operation.
/// - A *shard* is the share of one path in a write or a scatter target that is striped over several
///   rails. Every shard carries one immediate, which tells the target how many shards there are.
/// - A *slice* is one work request of a shard that is too large for one, or is bulk and must not
///   block the rail. Only the last slice carries the immediate. A write or a target completes when
///   all slices of all shards have: SliceProgress counts them, in the operation for a write, in a
///   CutTarget for a target of several slices. Other parts are one work request.
/// - A *pending fragment* (PendingFragment) is accepted and not posted: the rest of a shard, or a
///   run of parts. It waits for its peer to connect, then for room on its path.
/// - An *in-flight write* (InflightWrite) is one work request from the moment it is made until it
///   is retired. It is in the in-flight counts of its path, rail, source region and operation, and
///   its index is the cookie that the provider returns.
/// - A *post batch* (PostBatch) is the compressed record of up to 32 in-flight writes. It keeps the
///   same counts, and is expanded into InflightWrites when one of them needs attention.
///
/// The sequence of steps is the same for all work: submit, make work requests, post, retire,
/// complete, report. What differs is how much has to be decided. The fast path (fast_path.cc)
/// handles the common case: the route is cached, nothing is queued in front, the rail has room,
/// nothing needs to be cut. It stages work requests straight from the submission ring, records them
/// in post batches, and retires runs of successful completions with a few additions. Everything
/// else takes the slow path: route.cc makes pending fragments, datapath.cc schedules them (strict
/// priority, round robin between paths) and makes in-flight writes, transfer.cc retires these one
/// by one.
///
/// Life of a work request: made -> offered to the rail -> accepted (it gets its position among the
/// immediates of its path: the target counts only what was really sent), or kept in
/// RailSlot::backlog until the provider has room -> *retired* when the provider reports its
/// completion. The part or fragment *completes* then, unless the connection broke: on networks with
/// exact replay the write is then *in doubt*, leaves the in-flight counts of path, rail and region,
/// and stays with its operation. failover.cc holds it with a BrokenConnection until the target's
/// drain report says how many immediates arrived: what lies before that point completes as
/// delivered; later writes were not counted, and are replayed on another path, or a new connection
/// of this one.
///
/// Invariants (check_invariants(), in debug builds): every count equals the sum of the records
/// that it covers; every in-flight write is in the list of its path or in doubt, never both; every
/// pending fragment is in one queue and in the list of its operation; between calls nothing is
/// staged and no operation is held; imms_done <= imms_posted on every path.
class Transfers {
 public:
  explicit Transfers(EngineCore& core);

  void start(Op& op) FABRIC_REQUIRES(state_lock);
  /// Deadline, cancel or close: completes what is not posted; the rest drains.
  void stop(Op& op, Errc code) FABRIC_REQUIRES(state_lock);
  /// The operation does not drain in time. First call: closes the paths that have its writes in
  /// flight. Second call: completes what is in doubt without the drain report.
  void force_drain(Op& op) FABRIC_REQUIRES(state_lock);
  void peer_connected(Peer& peer) FABRIC_REQUIRES(state_lock);
  void peer_lost(Peer& peer, Errc code) FABRIC_REQUIRES(state_lock);
  /// The lease is valid again: fragments that waited for it may be posted.
  void lease_renewed(Peer& peer) FABRIC_REQUIRES(state_lock);
  /// Completes what is pending for the peer; what is posted drains and is not replayed.
  void stop_queued(Peer& peer, Errc code) FABRIC_REQUIRES(state_lock);
  /// Completes what is pending for an imported region that was revoked.
  void region_revoked(RemoteRegion handle) FABRIC_REQUIRES(state_lock);
  /// Completes what is pending for the peer under a counter key that it closed. Posted writes may
  /// drain, but none may follow once this engine has confirmed to the peer that it is quiescent
  /// (contracts.md P11).
  void key_revoked(const Peer& peer, CounterKey key) FABRIC_REQUIRES(state_lock);
  void warm(Peer& peer, uint32_t rails = kRailsMax) FABRIC_REQUIRES(state_lock);

  void path_answered(Peer& peer, uint32_t ref, Errc code, std::span<const std::byte> answer)
      FABRIC_REQUIRES(state_lock);
  /// The target's drain report: its end of a path is closed, and this is what it received.
  void on_drain_report(Peer& peer, const control::PathDrained& state) FABRIC_REQUIRES(state_lock);
  /// Requests a probe, a zero-byte write without an immediate, on every ready path of the peer: its
  /// completion shows that the host answers.
  void probe(Peer& peer) FABRIC_REQUIRES(state_lock);
  bool can_probe(const Peer& peer) const noexcept FABRIC_REQUIRES(state_lock);
  /// Opens paths whose back-off is over and sends probes that are due; returns how many.
  uint32_t tick(int64_t now_ns) FABRIC_REQUIRES(state_lock);
  int64_t next_ns() const noexcept FABRIC_REQUIRES(state_lock) { return next_ns_; }
  void begin_polls() noexcept FABRIC_REQUIRES(state_lock) {
    polls_exhausted_ = true;
    posted_ = false;  // the polls that follow cover what submissions have posted
  }
  /// Every rail polled in this turn was polled until it had no more events.
  bool polls_exhausted() const noexcept FABRIC_REQUIRES(state_lock) { return polls_exhausted_; }
  uint32_t poll(NetworkSlot& network) FABRIC_REQUIRES(state_lock);
  uint32_t post_all() FABRIC_REQUIRES(state_lock);
  /// Fragments are ready to be posted, or writes were refused: only then post_all() has work.
  bool may_post() const noexcept FABRIC_REQUIRES(state_lock) {
    return active_total_ != 0 || has_backlog_;
  }
  bool posted() const noexcept FABRIC_REQUIRES(state_lock) {
    return posted_;
  }  ///< since poll_again()
  uint32_t poll_again(NetworkSlot& network) FABRIC_REQUIRES(state_lock);
  /// The fast path: adds writes to post batches, from the head of `slots` up to the first that is
  /// not eligible. Returns how many.
  uint32_t try_add(std::span<const uint32_t> slots) FABRIC_REQUIRES(state_lock);
  /// Posts what the fast path has staged. Required before anything changes rails, paths or regions.
  void flush_staged() FABRIC_REQUIRES(state_lock) {
    flow_.batch = {};
    if (!staged_rails_.empty()) post_staged();
  }
  /// Gives every entry in flight an InflightWrite, because one of them needs attention.
  void expand(PostBatch& post_batch) FABRIC_REQUIRES(state_lock);
  void expand_post_batch(uint32_t index) FABRIC_REQUIRES(state_lock) {
    expand(*post_batches_.at(index));
  }
  void expand_all() FABRIC_REQUIRES(state_lock);  ///< invalidates cached routes as well
  /// Invalidates every CachedRoute: rails, paths, peers, regions or rkeys have changed.
  void routes_changed() noexcept FABRIC_REQUIRES(state_lock) { ++epoch_; }
  /// The lowest sequence number among the writes to the peer that are in flight or in doubt;
  /// UINT64_MAX: none.
  uint64_t oldest_inflight(const Peer& peer) const noexcept FABRIC_REQUIRES(state_lock);
  /// Parts that are not posted: of one operation, and of all that wait for one path.
  uint64_t queued_parts(const Op& op) noexcept FABRIC_REQUIRES(state_lock);
  uint64_t queued_on(const Path& path) noexcept FABRIC_REQUIRES(state_lock);
  /// Calls `visit` with the slot of every peer that the operation waits for.
  template <class F>
  void each_peer_of(const Op& op, F&& visit) FABRIC_REQUIRES(state_lock) {
    for (uint32_t i = op.pending; i != kNone; i = pending_.at(i).op_next) {
      visit(pending_.at(i).peer);
    }
    for (const InflightWrite& write : inflight_) {
      if (write.op == op.slot) visit(write.peer);
    }
  }
  bool idle() const noexcept FABRIC_REQUIRES(state_lock);  ///< no path is left
  /// Aborts if a count differs from the records that it covers (invariants.cc). Only between
  /// calls of the other functions; debug builds only.
  void check_invariants() const FABRIC_REQUIRES(state_lock);
  // Pool levels, for dumps.
  uint64_t pending_held() const noexcept FABRIC_REQUIRES(state_lock) { return pending_.held(); }
  uint64_t inflight_held() const noexcept FABRIC_REQUIRES(state_lock) {  ///< without probes
    auto held = static_cast<uint64_t>(std::count_if(
        inflight_.begin(), inflight_.end(),
        [](const InflightWrite& write) FABRIC_REQUIRES(state_lock) { return write.op < kProbe; }));
    post_batches_.each([&](const PostBatch& post_batch) {
      if (post_batch.compact) held += PostBatch::popcount(post_batch.inflight);
    });
    return held;
  }
  uint64_t broken_held() const noexcept FABRIC_REQUIRES(state_lock) { return broken_.size(); }
  const std::vector<std::unique_ptr<Path>>& paths() const noexcept FABRIC_REQUIRES(state_lock) {
    return paths_;
  }
  Path& path_at(uint32_t index) noexcept FABRIC_REQUIRES(state_lock) { return *paths_[index]; }

 private:
  struct PartSpec {  ///< what one part of an operation reads, writes and counts at the target
    RemoteRegion target{};
    uint64_t source_offset = 0, target_offset = 0, size_bytes = 0;
    CounterKey counter_key{};
  };
  struct RailSet {  ///< some of the rails of a network
    std::array<uint8_t, kRailsMax> index{};
    uint32_t count = 0;
  };

  // route.cc: from an operation to pending fragments; opening paths
  void start_parts(Op& op, uint32_t first, uint32_t count) FABRIC_REQUIRES(state_lock);
  void route(uint32_t index) FABRIC_REQUIRES(state_lock);
  NetworkSlot* choose_network(const Op& op, uint32_t part, const Peer& peer, Errc& why)
      FABRIC_REQUIRES(state_lock);
  void route_sliced(Op& op, uint32_t part, Peer& peer, NetworkSlot& network, const RailSet& up)
      FABRIC_REQUIRES(state_lock);
  void route_paged(Op& op, Peer& peer, NetworkSlot& network, const RailSet& up)
      FABRIC_REQUIRES(state_lock);
  void route_listed(Op& op, Peer& peer, NetworkSlot& network, const RailSet& up)
      FABRIC_REQUIRES(state_lock);
  void enqueue(Op& op, Peer& peer, NetworkSlot& network, uint32_t rail, PendingFragment fragment)
      FABRIC_REQUIRES(state_lock);
  Path* path_for(Peer& peer, NetworkSlot& network, uint32_t rail) FABRIC_REQUIRES(state_lock);
  /// kExhausted is temporary, every other error is final.
  Errc open_path(Peer& peer, Path& path) FABRIC_REQUIRES(state_lock);
  void pair_rails(const Peer& peer, Path& path) FABRIC_REQUIRES(state_lock);
  void complete_unposted(Op& op, const PendingFragment& fragment, PeerId peer, Errc code)
      FABRIC_REQUIRES(state_lock);
  void drop_pending(uint32_t index, Errc code) FABRIC_REQUIRES(state_lock);
  void link_to_op(Op& op, uint32_t index) FABRIC_REQUIRES(state_lock);
  void unlink_from_op(Op& op, uint32_t index) FABRIC_REQUIRES(state_lock);
  Path* take_path() FABRIC_REQUIRES(state_lock);
  void free_path(Path& path) FABRIC_REQUIRES(state_lock);

  // deal.cc: which rail is next, by turns and by bytes
  /// What a write is dealt as beside its bytes, so that the smallest ones are spread as well.
  static constexpr uint64_t kDealtPerWrite = 1024;
  static void deal(NetworkSlot& network, RailSlot& rail, uint64_t bytes, uint32_t writes = 1)
      FABRIC_REQUIRES(state_lock) {
    ++network.rotation;
    rail.dealt_bytes += bytes + writes * kDealtPerWrite;
  }
  static uint32_t least_dealt(NetworkSlot& network, std::span<RailSlot* const> rails,
                              uint64_t behind_max) FABRIC_REQUIRES(state_lock);
  static uint32_t next_rail(NetworkSlot& network, const RailSet& up) FABRIC_REQUIRES(state_lock);
  static uint32_t deal_one(NetworkSlot& network, const RailSet& up, uint64_t bytes)
      FABRIC_REQUIRES(state_lock);
  static void deal_to(NetworkSlot& network, const RailSet& up, uint32_t at, uint64_t bytes,
                      uint32_t writes = 1) FABRIC_REQUIRES(state_lock);
  static const CachedPath& least_dealt_path(const CachedRoute& route) FABRIC_REQUIRES(state_lock);
  void deal_listed(Op& op, Peer& peer, NetworkSlot& network, const RailSet& up)
      FABRIC_REQUIRES(state_lock);
  uint64_t bytes_to_post(Op& op, const PendingFragment& fragment) noexcept
      FABRIC_REQUIRES(state_lock);

  // datapath.cc: scheduling, posting, polling
  void on_event(NetworkSlot& network, RailSlot& rail, const RailEvent& event)
      FABRIC_REQUIRES(state_lock);
  void count_arrived_imms(RailSlot& rail) FABRIC_REQUIRES(state_lock);
  void count_repeated_imm(RailSlot& rail, uint32_t imm, uint32_t n) FABRIC_REQUIRES(state_lock);
  uint32_t post(NetworkSlot& network) FABRIC_REQUIRES(state_lock);
  uint32_t post(RailSlot& rail, std::span<WriteOp> wrs) FABRIC_REQUIRES(state_lock);
  bool may_post(const InflightWrite& write) FABRIC_REQUIRES(state_lock);
  void activate(Path& path, uint32_t priority) FABRIC_REQUIRES(state_lock);
  uint32_t make_writes(RailSlot& rail, std::span<WriteOp> out) FABRIC_REQUIRES(state_lock);
  bool next_path(RailSlot& rail, uint32_t& priority, Path*& path) FABRIC_REQUIRES(state_lock);
  void deactivate_first(RailSlot& rail, uint32_t priority) FABRIC_REQUIRES(state_lock);
  void deactivate(Path& path, uint32_t priority) FABRIC_REQUIRES(state_lock);
  bool room_for_bulk(const RailSlot& rail, const Path& path) noexcept FABRIC_REQUIRES(state_lock);
  uint32_t make_write(RailSlot& rail, Path& path, uint32_t priority) FABRIC_REQUIRES(state_lock);
  uint32_t make_part_batch(RailSlot& rail, Path& path, uint32_t priority, std::span<WriteOp> out)
      FABRIC_REQUIRES(state_lock);
  static void fill_pages(std::span<WriteOp> out, const WriteOp& wr, const Op& op,
                         PendingFragment& fragment) noexcept;
  static uint64_t fill_listed(std::span<WriteOp> out, const WriteOp& wr, const Op& op,
                              const PendingFragment& fragment) noexcept;
  void fill_wr(WriteOp& wr, const Op& op, const Path& path, const PartSpec& source, uint32_t shards)
      FABRIC_REQUIRES(state_lock);
  void advance_pending(Op& op, uint32_t index, uint64_t bytes) FABRIC_REQUIRES(state_lock);

  // inflight.h: records and counts of in-flight writes
  uint32_t take_inflight() FABRIC_REQUIRES(state_lock);
  void give_back_inflight(uint32_t cookie) FABRIC_REQUIRES(state_lock);
  static bool room_for(const RailSlot& rail, const Path& path) noexcept FABRIC_REQUIRES(state_lock);
  static uint32_t room_on(const RailSlot& rail, const Path& path) noexcept
      FABRIC_REQUIRES(state_lock);
  void open_inflight(uint32_t cookie, Op& op, Peer& peer, Path& path, RailSlot& rail,
                     LocalRegion* region) FABRIC_REQUIRES(state_lock);
  void close_inflight(const InflightWrite& write, Path& path, RailSlot& rail)
      FABRIC_REQUIRES(state_lock);

  // fast_path.cc: cached routes, post batches, successful completions
  CachedRoute& refresh_route(RemoteRegionSlot& remote, MemoryKind source_kind)
      FABRIC_REQUIRES(state_lock);
  void post_staged() FABRIC_REQUIRES(state_lock);
  bool select_flow(RegionId source, RemoteRegion target) FABRIC_REQUIRES(state_lock);
  bool look_up_flow(RegionId source, RemoteRegion target) FABRIC_REQUIRES(state_lock);
  static const CachedPath& next_cached_path(const CachedRoute& route) FABRIC_REQUIRES(state_lock);
  static uint32_t fast_path_room(const CachedPath& cached_path) noexcept
      FABRIC_REQUIRES(state_lock);
  static bool has_fast_path_room(const RailSlot& rail, const Path& path) noexcept
      FABRIC_REQUIRES(state_lock);
  static bool fits_fast_path(const Op& op, int64_t now_ns) noexcept;
  uint32_t add_burst(std::span<const uint32_t> slots) FABRIC_REQUIRES(state_lock);
  uint32_t add_targets(Op& op, uint32_t first, uint32_t most) FABRIC_REQUIRES(state_lock);
  PostBatch& take_post_batch(RailSlot& rail, LocalRegion* region, const Op& op)
      FABRIC_REQUIRES(state_lock);
  PostBatch& new_post_batch(Path& path, Peer& peer, RailSlot& rail, LocalRegion* region,
                            const Op& op) FABRIC_REQUIRES(state_lock);
  PostBatch& post_batch_on(const CachedPath& cached_path, const Op& op) FABRIC_REQUIRES(state_lock);
  PostBatch& target_batch_on(RailSlot& rail, LocalRegion* region, const Op& op)
      FABRIC_REQUIRES(state_lock);
  WriteOp wr_template(const CachedPath& cached_path) const noexcept FABRIC_REQUIRES(state_lock);
  static bool fill_from(WriteOp& wr, const WriteOp& base, uint32_t cookie, Priority priority,
                        const PartSpec& source) noexcept;
  void account_added(PostBatch& post_batch, const CachedPath& cached_path, uint32_t n)
      FABRIC_REQUIRES(state_lock);
  void on_posted_targets(PostBatch& post_batch, uint32_t accepted) FABRIC_REQUIRES(state_lock);
  void on_posted(PostBatch& post_batch, uint32_t accepted) FABRIC_REQUIRES(state_lock);
  void add_to_backlog(RailSlot& rail, std::span<WriteOp> rest) FABRIC_REQUIRES(state_lock);
  uint32_t split_out(PostBatch& post_batch, uint32_t at) FABRIC_REQUIRES(state_lock);
  void insert_inflight(Path& path, uint32_t cookie) FABRIC_REQUIRES(state_lock);
  uint32_t retire_batched(std::span<const RailEvent> events) FABRIC_REQUIRES(state_lock);
  uint32_t retire_across_batches(const RailEvent& run, uint32_t left) FABRIC_REQUIRES(state_lock);
  void retire_expanded(PostBatch& post_batch, uint32_t batch_cookie, const RailEvent& event)
      FABRIC_REQUIRES(state_lock);
  void retire_delivered_batch(PostBatch& post_batch, uint32_t bits) FABRIC_REQUIRES(state_lock);
  void retire_delivered_targets(PostBatch& post_batch, uint32_t bits) FABRIC_REQUIRES(state_lock);
  void complete_batched_parts(uint32_t owner_op, uint32_t n, uint64_t bytes)
      FABRIC_REQUIRES(state_lock);
  uint64_t complete_writes(const PostBatch& post_batch, uint32_t bits, uint32_t n)
      FABRIC_REQUIRES(state_lock);
  uint64_t bytes_of(const PostBatch& post_batch, uint32_t bits, uint32_t n) const noexcept
      FABRIC_REQUIRES(state_lock);
  void retire_delivered(uint32_t cookie) FABRIC_REQUIRES(state_lock);
  void after_retire(Peer& peer, Path& path) FABRIC_REQUIRES(state_lock);

  // transfer.cc: retiring and completing what is not the common case; closing paths
  PartSpec part_of(const Op& op, uint32_t part) const noexcept FABRIC_REQUIRES(state_lock);
  /// The same for a paged write, without a search if parts are visited in order.
  PartSpec page_of(const Op& op, uint32_t part, PageCursor& cursor) const noexcept
      FABRIC_REQUIRES(state_lock);
  void retire_write(uint32_t cookie, const CompletionStatus& reported) FABRIC_REQUIRES(state_lock);
  void complete_inflight(const InflightWrite& write, const CompletionStatus& status)
      FABRIC_REQUIRES(state_lock);
  SliceProgress* slices_of(Op& op, uint32_t cut) noexcept FABRIC_REQUIRES(state_lock);
  bool complete_slice(Op& op, uint32_t part, uint32_t cut, PeerId peer,
                      const CompletionStatus& status, uint64_t bytes) FABRIC_REQUIRES(state_lock);
  void drop_slices(Op& op, uint32_t cut, Errc code) FABRIC_REQUIRES(state_lock);
  void complete_part(Op& op, uint32_t part, PeerId peer, const CompletionStatus& status,
                     uint64_t bytes) FABRIC_REQUIRES(state_lock);
  void complete_if_done(Op& op) FABRIC_REQUIRES(state_lock);
  void poison_key(const Op& op, uint32_t part, PeerId peer, Errc code) FABRIC_REQUIRES(state_lock);
  void drop_path_pending(Path& path, Errc code) FABRIC_REQUIRES(state_lock);
  template <class F>
  void drop_pending_where(F&& wanted, Errc code) FABRIC_REQUIRES(state_lock);
  void on_path_down(const RailSlot& rail, const RailEvent& event) FABRIC_REQUIRES(state_lock);
  void path_down(Path& path, Errc code) FABRIC_REQUIRES(state_lock);
  void close_path(Path& path) FABRIC_REQUIRES(state_lock);
  void begin_close(Path& path) FABRIC_REQUIRES(state_lock);

  // failover.cc: broken connections, back-off, probes
  RailSet rails_for_new_work(const Peer& peer, const NetworkSlot& network) const
      FABRIC_REQUIRES(state_lock);
  void on_rail_state(NetworkSlot& network, RailSlot& rail, const RailEvent& event)
      FABRIC_REQUIRES(state_lock);
  void schedule_reopen(Path& path, bool on_purpose) FABRIC_REQUIRES(state_lock);
  bool goes_in_doubt(const InflightWrite& write, const Path& path,
                     const CompletionStatus& status) const FABRIC_REQUIRES(state_lock);
  bool may_replay(Op& op, uint32_t cut) noexcept FABRIC_REQUIRES(state_lock);
  bool replay_is_exact(const Path& path) const noexcept FABRIC_REQUIRES(state_lock);
  bool on_given_up(const InflightWrite& write, Path& path, const CompletionStatus& status)
      FABRIC_REQUIRES(state_lock);
  void put_in_doubt(uint32_t cookie, Path& path, const CompletionStatus& status)
      FABRIC_REQUIRES(state_lock);
  void record_broken(Path& path) FABRIC_REQUIRES(state_lock);
  void reconcile(BrokenConnection& broken, const DrainReport& report) FABRIC_REQUIRES(state_lock);
  void reconcile_writes(BrokenConnection& broken, const DrainReport& report)
      FABRIC_REQUIRES(state_lock);
  void drop_broken(size_t at) FABRIC_REQUIRES(state_lock);
  void complete_in_doubt(uint32_t cookie, CompletionStatus status) FABRIC_REQUIRES(state_lock);
  void replay(BrokenConnection& broken, uint32_t cookie) FABRIC_REQUIRES(state_lock);
  void replay_shard(BrokenConnection& broken, Op& op, PendingFragment rest)
      FABRIC_REQUIRES(state_lock);
  void resend(Op& op, Peer& peer, uint8_t network, PendingFragment fragment)
      FABRIC_REQUIRES(state_lock);
  void reroute(Path& path) FABRIC_REQUIRES(state_lock);
  void move_pending(uint32_t index, Path& to) FABRIC_REQUIRES(state_lock);
  void start_probe(Path& path) FABRIC_REQUIRES(state_lock);
  void complete_probe(Path& path, const CompletionStatus& status) FABRIC_REQUIRES(state_lock);
  void on_ack_timeout(Peer& peer, const Path& failed) FABRIC_REQUIRES(state_lock);
  void request_probe(Path& path) FABRIC_REQUIRES(state_lock);
  void back_off(Path& path) FABRIC_REQUIRES(state_lock);

  // invariants.cc
  struct InflightSums;
  void sum_post_batches(InflightSums& sums) const FABRIC_REQUIRES(state_lock);
  void sum_records(InflightSums& sums) const FABRIC_REQUIRES(state_lock);
  void check_paths(const InflightSums& sums) const FABRIC_REQUIRES(state_lock);
  void check_rails(const InflightSums& sums) const FABRIC_REQUIRES(state_lock);
  void check_regions(const InflightSums& sums) const FABRIC_REQUIRES(state_lock);
  void check_ops(InflightSums& sums) const FABRIC_REQUIRES(state_lock);
  void check_pending() const FABRIC_REQUIRES(state_lock);
  void check_cut_targets(InflightSums& sums) const FABRIC_REQUIRES(state_lock);
  uint64_t check_queue(const PendingQueue& queue) const FABRIC_REQUIRES(state_lock);

  EngineCore& core_;
  PendingPool pending_ FABRIC_GUARDED_BY(state_lock);
  CutTargetPool cut_targets_ FABRIC_GUARDED_BY(state_lock);
  PostBatchPool post_batches_ FABRIC_GUARDED_BY(state_lock);
  std::vector<std::unique_ptr<Path>> paths_ FABRIC_GUARDED_BY(state_lock);
  std::vector<uint32_t> free_paths_ FABRIC_GUARDED_BY(state_lock);
  /// By cookie. A deque: expand() may add records while references to others are in use.
  std::deque<InflightWrite> inflight_ FABRIC_GUARDED_BY(state_lock);
  uint32_t free_inflight_head_ FABRIC_GUARDED_BY(state_lock) = kNone;  ///< head of the free list
  size_t free_inflight_count_ FABRIC_GUARDED_BY(state_lock) = 0;       ///< its length
  std::vector<std::unique_ptr<BrokenConnection>> broken_ FABRIC_GUARDED_BY(state_lock);
  int64_t next_ns_ FABRIC_GUARDED_BY(state_lock) = kNeverNs;  ///< when tick() has something to do
  bool polls_exhausted_ FABRIC_GUARDED_BY(state_lock) = true;
  // Scratch of one call. Members, because initialising them costs more than a turn without work.
  std::array<RailEvent, 64> polled_ FABRIC_GUARDED_BY(state_lock){};
  std::array<WriteOp, kPostMax> posting_ FABRIC_GUARDED_BY(state_lock){};
  /// A one-entry cache: source, target and route of the last part that took the fast path.
  struct Flow {
    uint64_t epoch = 0;  ///< valid until routes_changed()
    RegionId source{};
    RemoteRegion target{};
    BatchId batch{};  ///< checked not to be cancelled; until flush_staged()
    LocalRegion* region = nullptr;
    const CachedRoute* route = nullptr;
    const uint64_t* lkeys = nullptr;  ///< by rail
  };
  Flow flow_ FABRIC_GUARDED_BY(state_lock){};
  std::vector<RailSlot*> staged_rails_ FABRIC_GUARDED_BY(state_lock);  ///< with staged writes
  uint32_t active_total_ FABRIC_GUARDED_BY(state_lock) = 0;            ///< the sum over all rails
  bool has_backlog_ FABRIC_GUARDED_BY(state_lock) = false;  ///< a rail may have refused writes
  bool posted_ FABRIC_GUARDED_BY(state_lock) = false;
  uint64_t epoch_ FABRIC_GUARDED_BY(state_lock) = 1;  ///< a CachedRoute of another epoch is invalid
};

}  // namespace fabric::core

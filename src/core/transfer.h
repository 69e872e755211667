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
#include "core/pending.h"
#include "core/op.h"
#include "core/post_batch.h"

// From operations to posted writes and back: cutting, dealing, queueing per path, posting, and
// counting what ended how.

namespace fabric::core {

class EngineCore;
struct LocalRegion;
struct Peer;
struct RemoteRegionSlot;
struct CachedRoute;
struct CachedPath;

/// In the place of an operation: the write belongs to the engine itself.
inline constexpr uint32_t kProbe = kNone - 1;

/// How a write ended, as far as its rail knows.
struct CompletionStatus {
  Errc code = Errc::kOk;
  Remote remote = Remote::kDelivered;
};

/// What the target said of its end of a path, once that was down and drained.
struct DrainReport {
  bool received = false;
  bool exact = false;
  uint64_t taken = 0;  ///< immediates: R of the failover protocol
};

/// One rail here to one rail of one peer, in the direction of our writes.
struct Path {
  enum class State : uint8_t {
    kFree,
    kOpening,
    kReady,
    kClosing,  ///< this end is being torn down
    kBackingOff,  ///< it broke; it is opened again at `retry_ns`
  };
  State state = State::kFree;
  uint32_t index = 0;
  uint32_t peer = kNone;  ///< slot
  uint8_t network = 0, rail = 0, remote_rail = 0;
  bool peer_lost = false;   ///< not reopened once it is down
  bool needs_probe = false;     ///< it broke before: a probe has to come back before anything is posted
  bool started = false;     ///< this connection was ready once, so writes may have been posted
  bool rejected = false;    ///< refused for good: forgotten once it is down
  bool broke = false;       ///< this connection did, by itself
  bool remote_closed = false;  ///< the target said that its end is down
  uint32_t id = 0;          ///< the provider's
  uint32_t ref = 0;         ///< under which its answer comes back; new each time it is opened
  std::array<PendingQueue, 3> queue{};  ///< by priority
  std::array<uint32_t, 3> next_active{kNone, kNone, kNone};
  std::array<bool, 3> listed{};                      ///< in the rail's list of paths with work
  uint32_t first_inflight = kNone, last_inflight = kNone;  ///< in flight, oldest first
  uint32_t inflight = 0;

  // Failover (failover.cc).
  uint64_t imms_posted = 0, imms_done = 0;  ///< of this connection; done: acknowledged
  std::vector<uint32_t> in_doubt{};         ///< writes that the break gave back, in posting order
  uint64_t in_doubt_seq = UINT64_MAX;       ///< of the first of them
  DrainReport drain_report{};
  uint32_t failures = 0;  ///< in a row
  int64_t retry_ns = kNeverNs;
  uint32_t probe = kNone;  ///< the write that finds out whether it works
  int64_t probe_until_ns = kNeverNs;
};

/// A posted part of an operation.
struct InflightWrite {
  WriteOp wire{};
  uint32_t op = kNone;
  uint32_t part = 0;
  uint32_t path = kNone;
  uint32_t peer = kNone;  ///< slot
  uint32_t prev = kNone, next = kNone;
  uint32_t region_slot = kNone;  ///< the source, which must not be deregistered under it
  uint64_t seq = 0;              ///< of its peer
  int64_t posted_ns = 0;
  Priority priority{};
  /// Immediates that were posted on its path before it; the largest: the rail never took it.
  uint64_t imms_before = UINT64_MAX;
  uint64_t offset = 0;      ///< in its write
  Shard shard{};            ///< of a write: what it is a slice of
  bool in_doubt = false;    ///< its path broke: its fate waits for the word of the target
  CompletionStatus status{};           ///< of a in_doubt one, as far as this side knows
  Errc replay_error = Errc::kOk;  ///< why it must not be sent again
};

/// A connection that broke, with the writes whose fate only the target knows, until it says so.
struct BrokenConnection {
  uint32_t peer = kNone;  ///< slot
  uint32_t ref = 0;       ///< of the path
  uint8_t network = 0, rail = 0;
  uint64_t imms_done = 0;
  uint64_t oldest_seq = UINT64_MAX;  ///< of the writes that it was made with
  std::vector<uint32_t> writes{};    ///< in posting order; those whose operation has ended are gone
  PendingQueue partly_posted{};                ///< rests of shards of which a part was posted on it
};

/// An opened rail with what is in flight on it.
struct RailSlot {
  Rail* rail = nullptr;
  Caps caps{};
  uint8_t network = 0, index = 0;
  bool up = true;
  uint32_t inflight = 0;
  uint64_t bulk_bytes = 0;  ///< of bulk writes in flight
  std::array<uint32_t, 3> first_active{kNone, kNone, kNone};
  std::array<uint32_t, 3> last_active{kNone, kNone, kNone};
  uint32_t listed = 0;  ///< how many paths are in these lists
  bool posted_this_turn = false;  ///< posted to in this turn: it may have ended at once
  uint32_t staged_count = 0;
  std::array<WriteOp, kPostMax> staged{};  ///< made by the short way, to be posted next
  PostBatch* open_batch = nullptr;                ///< the last of the post batches that they are
  std::vector<WriteOp> refused{};  ///< made, and not taken by the provider for want of room
  std::vector<uint32_t> arrived_imms{};   ///< immediates of the present poll
  Traffic tx{}, rx{};
};

/// An opened network with its place in the order of preference.
struct NetworkSlot {
  std::string provider{}, name{};
  std::unique_ptr<OpenNetwork> network{};
  std::vector<RailSlot> rails{};
  uint32_t memory_kinds = 0;
  FenceKind fence = FenceKind::kNone;
  bool is_self = false;
};

/// One member of a Signal: who and under which key.
struct SignalTarget {
  PeerId peer{};
  CounterKey key{};
};

class Transfers {
 public:
  explicit Transfers(EngineCore& core);

  void start(Op& op);
  /// Deadline, cancel or close: what is not posted ends now, the rest drains.
  void stop(Op& op, Errc code);
  /// The drain bound has passed: the paths that hold its writes are torn down.
  void force_drain(Op& op);
  void peer_connected(Peer& peer);
  void peer_lost(Peer& peer, Errc code);
  /// The lease is good again: what waited for it may be posted.
  void peer_resumed(Peer& peer);
  /// Ends what is queued for the peer and not posted.
  void stop_queued(Peer& peer, Errc code);
  /// Ends what is queued for an imported region that was revoked.
  void region_revoked(RemoteRegion handle);
  /// Ends what is queued for the peer under a key that it closed: what is posted may drain, but
  /// nothing may follow once the peer has been told that we are quiet (P11).
  void key_revoked(const Peer& peer, CounterKey key);
  void warm(Peer& peer, uint32_t rails = kRailsMax);

  void path_answered(Peer& peer, uint32_t ref, Errc code, std::span<const std::byte> answer);
  /// The target's end of a path is down: what it had taken.
  void path_state(Peer& peer, const control::PathState& state);
  /// A ready path of the peer carries a write without bytes, to see whether its host answers.
  void probe(Peer& peer);
  bool can_probe(const Peer& peer) const noexcept;
  /// Opens paths again whose rest is over; returns how much was done.
  uint32_t tick(int64_t now_ns);
  int64_t next_ns() const noexcept { return next_ns_; }
  void begin_polls() noexcept {
    drained_ = true;
    posted_ = false;  // what submissions have posted is polled now
  }
  /// Every rail that was polled in this turn has handed out all it had.
  bool drained() const noexcept { return drained_; }
  uint32_t poll(NetworkSlot& network);
  uint32_t post(NetworkSlot& network);
  /// Something waits to be posted, or was refused: only then post() has work.
  bool may_post() const noexcept { return listed_ != 0 || refused_; }
  void begin_posts() noexcept { refused_ = false; }
  bool posted() const noexcept { return posted_; }  ///< since poll_again()
  uint32_t poll_again(NetworkSlot& network);
  /// Takes writes that need no cutting and that nobody is in front of, from the head of `slots` to
  /// the first that is something else. Returns how many.
  uint32_t try_add(std::span<const uint32_t> slots);
  /// Before anything else happens to rails, paths or regions.
  void flush_staged() {
    flow_.batch = {};
    if (!staged_rails_.empty()) post_staged();
  }
  /// A post_batch becomes writes: something is going to happen to one of them.
  void expand(PostBatch& post_batch);
  void expand_post_batch(uint32_t index) { expand(*post_batches_.at(index)); }
  void expand_all();  ///< and what was found out about routes is forgotten
  /// Which path leads where, and whether it may be taken, has to be found out again: something
  /// about rails, paths, peers, regions or keys has changed.
  void routes_changed() noexcept { ++epoch_; }
  /// The lowest number among the writes in flight to the peer; UINT64_MAX: none.
  uint64_t oldest_inflight(const Peer& peer) const noexcept;
  /// Unposted parts: of one operation, and of all that wait for one rail or peer.
  uint64_t queued_parts(const Op& op) noexcept;
  uint64_t queued_on(const Path& path) noexcept;
  /// Calls `visit` with the slot of every peer that holds a part of the operation.
  template <class F>
  void each_peer_of(const Op& op, F&& visit) {
    for (uint32_t i = op.pending; i != kNone; i = pending_.at(i).op_next) {
      visit(pending_.at(i).peer);
    }
    for (const InflightWrite& write : inflight_) {
      if (write.op == op.self) visit(write.peer);
    }
  }
  bool idle() const noexcept;  ///< no path is open any more
  // What is held now, for dumps.
  uint64_t pending_held() const noexcept { return pending_.held(); }
  uint64_t inflight_held() const noexcept {  ///< of operations
    auto held = static_cast<uint64_t>(std::count_if(
        inflight_.begin(), inflight_.end(), [](const InflightWrite& write) { return write.op < kProbe; }));
    post_batches_.each([&](const PostBatch& post_batch) {
      if (post_batch.compact) held += PostBatch::popcount(post_batch.inflight);
    });
    return held;
  }
  uint64_t broken_held() const noexcept { return broken_.size(); }
  const std::vector<std::unique_ptr<Path>>& paths() const noexcept { return paths_; }
  Path& path_at(uint32_t index) noexcept { return *paths_[index]; }

 private:
  struct PartSource {  ///< what one part of an operation reads, writes and counts
    RemoteRegion target{};
    uint64_t source_offset = 0, target_offset = 0, size_bytes = 0;
    CounterKey imm{};
  };
  struct UpRails {  ///< of a network, those that carry new work
    std::array<uint8_t, kRailsMax> index{};
    uint32_t count = 0;
  };

  void start_parts(Op& op, uint32_t first, uint32_t count);
  void route(uint32_t index);
  NetworkSlot* choose_network(const Op& op, uint32_t part, const Peer& peer, Errc& why);
  void route_write(Op& op, Peer& peer, NetworkSlot& network, const UpRails& up);
  void route_paged(Op& op, Peer& peer, NetworkSlot& network, const UpRails& up);
  void enqueue(Op& op, Peer& peer, NetworkSlot& network, uint32_t rail, PendingFragment fragment);
  Path* path_for(Peer& peer, NetworkSlot& network, uint32_t rail);
  /// kExhausted may be over soon; everything else is not.
  Errc open_path(Peer& peer, Path& path);
  void pair_rails(const Peer& peer, Path& path);
  void complete_unposted(Op& op, const PendingFragment& fragment, PeerId peer, Errc code);
  void drop_path_pending(Path& path, Errc code);
  template <class F>
  void drop_pending_where(F&& wanted, Errc code);
  void free_path(Path& path);
  void activate(Path& path, uint32_t priority);
  void drop_pending(uint32_t index, Errc code);
  void link_to_op(Op& op, uint32_t index);
  void unlink_from_op(Op& op, uint32_t index);
  PartSource part_of(const Op& op, uint32_t part) const noexcept;
  uint32_t post(RailSlot& rail, std::span<WriteOp> batch);
  void refuse(RailSlot& rail, std::span<WriteOp> rest);
  bool may_post(const InflightWrite& write);
  void take_counts(RailSlot& rail);
  void take_burst(RailSlot& rail, uint32_t imm, uint32_t n);
  uint32_t make_writes(RailSlot& rail, std::span<WriteOp> out);
  bool next_path(RailSlot& rail, uint32_t& priority, Path*& path);
  void unlist(RailSlot& rail, uint32_t priority);
  void unlist_path(Path& path, uint32_t priority);
  static bool room_for(const RailSlot& rail, const Path& path) noexcept;
  static uint32_t room_on(const RailSlot& rail, const Path& path) noexcept;
  bool room_for_bulk(const RailSlot& rail, const Path& path) noexcept;
  uint32_t make_write(RailSlot& rail, Path& path, uint32_t priority);
  uint32_t make_page_batch(RailSlot& rail, Path& path, uint32_t priority, std::span<WriteOp> out);
  void fill_wire(WriteOp& wire, const Op& op, const Path& path, const PartSource& source);
  void advance_pending(Op& op, uint32_t index, uint64_t bytes);
  CachedRoute& find_route(RemoteRegionSlot& remote, MemoryKind here);
  void post_staged();
  bool has_flow(RegionId source, RemoteRegion target);
  bool look_up_flow(RegionId source, RemoteRegion target);
  const CachedPath& next_cached_path() const noexcept;
  static uint32_t fast_path_room(const CachedPath& cached_path) noexcept;
  static bool fits_fast_path(const Op& op, int64_t now_ns) noexcept;
  uint32_t add_burst(std::span<const uint32_t> slots);
  bool try_add_part(Op& op, uint32_t part, const PartSource& source);
  PostBatch& new_post_batch(Path& path, Peer& peer, RailSlot& rail, LocalRegion* region, const Op& op);
  PostBatch& post_batch_on(const CachedPath& cached_path, const Op& op, uint32_t of, uint32_t part);
  WriteOp wire_template(const CachedPath& cached_path) const noexcept;
  static bool fill_from(WriteOp& wire, const WriteOp& base, uint32_t cookie, Priority priority,
                   const PartSource& source) noexcept;
  void account_added(PostBatch& post_batch, const CachedPath& cached_path, uint32_t n);
  void on_posted(PostBatch& post_batch, uint32_t taken);
  uint32_t split_out(PostBatch& post_batch, uint32_t at);
  uint32_t retire_batched(std::span<const WireEvent> events);
  uint32_t retire_across_batches(const WireEvent& run, uint32_t left);
  void retire_expanded(PostBatch& post_batch, uint32_t batch_cookie, const WireEvent& event);
  void retire_delivered_batch(PostBatch& post_batch, uint32_t bits);
  uint64_t complete_writes(const PostBatch& post_batch, uint32_t bits, uint32_t n);
  uint64_t bytes_of(const PostBatch& post_batch, uint32_t bits, uint32_t n) const noexcept;
  void link_inflight(Path& path, uint32_t cookie);
  void after_retire(Peer& peer, Path& path);
  void open_inflight(uint32_t cookie, Op& op, Peer& peer, Path& path, RailSlot& rail,
                  LocalRegion* region);
  void close_inflight(const InflightWrite& write, Path& path, RailSlot& rail);
  void retire_delivered(uint32_t cookie);
  void retire_write(uint32_t cookie, const CompletionStatus& reported);
  void complete_fragment(Op& op, PeerId peer, const CompletionStatus& status, uint64_t bytes);
  void complete_part(Op& op, uint32_t part, PeerId peer, const CompletionStatus& status, uint64_t bytes);
  void complete_if_done(Op& op);
  void poison_key(const Op& op, uint32_t part, PeerId peer, Errc code);
  void on_path_down(const RailSlot& rail, const WireEvent& event);
  void path_down(Path& path, Errc code);
  void close_path(Path& path);
  void begin_close(Path& path);
  void schedule_reopen(Path& path, bool at_once);

  // failover.cc
  UpRails up_rails(const Peer& peer, const NetworkSlot& network) const;
  void on_rail_state(NetworkSlot& network, RailSlot& rail, const WireEvent& event);
  bool goes_in_doubt(const InflightWrite& write, const Path& path, const CompletionStatus& status) const;
  bool may_replay(const Op& op) const noexcept;
  bool replay_is_exact(const Path& path) const noexcept;
  bool on_given_up(const InflightWrite& write, Path& path, const CompletionStatus& status);
  void put_in_doubt(uint32_t cookie, Path& path, const CompletionStatus& status);
  void record_broken(Path& path);
  void reconcile(BrokenConnection& broken, const DrainReport& report);
  void reconcile_writes(BrokenConnection& broken, const DrainReport& report);
  void drop_broken(size_t at);
  void complete_in_doubt(uint32_t cookie, CompletionStatus status);
  void complete_inflight(const InflightWrite& write, const CompletionStatus& status);
  void replay(BrokenConnection& broken, uint32_t cookie);
  void replay_shard(BrokenConnection& broken, Op& op, const Shard& shard, uint64_t from);
  void resend(Op& op, Peer& peer, uint8_t network, PendingFragment fragment);
  void reroute(Path& path);
  void move_pending(uint32_t index, Path& to);
  void start_probe(Path& path);
  void complete_probe(Path& path, const CompletionStatus& status);
  void on_no_answer(Peer& peer, const Path& failed);
  void request_probe(Path& path);
  void back_off(Path& path);
  void on_event(NetworkSlot& network, RailSlot& rail, const WireEvent& event);
  Path* take_path();
  uint32_t take_inflight();
  void give_back_inflight(uint32_t cookie);

  EngineCore& core_;
  PendingPool pending_;
  PostBatchPool post_batches_;
  std::vector<std::unique_ptr<Path>> paths_;
  std::vector<uint32_t> free_paths_;
  std::deque<InflightWrite> inflight_;  ///< they stay where they are: dissolving a post_batch makes more of them
  uint32_t free_inflight_ = kNone;  ///< by `next`
  size_t inflight_free_ = 0;
  std::vector<std::unique_ptr<BrokenConnection>> broken_;
  int64_t next_ns_ = kNeverNs;  ///< when tick() has something to do
  // Of one call, and kept: to make them anew costs more than a turn with nothing to do.
  bool drained_ = true;
  std::array<WireEvent, 64> polled_{};
  std::array<WriteOp, kPostMax> posting_{};
  /// Of the last part that went the short way: what was found out about its two ends.
  struct Flow {
    uint64_t epoch = 0;  ///< good until routes_changed()
    RegionId source{};
    RemoteRegion target{};
    BatchId batch{};  ///< refuses nobody; until flush_staged()
    LocalRegion* region = nullptr;
    const CachedRoute* route = nullptr;
    const uint64_t* local_keys = nullptr;  ///< by rail
  };
  Flow flow_{};
  std::vector<RailSlot*> staged_rails_;  ///< that have some
  uint32_t listed_ = 0;                   ///< paths in the lists of all rails
  bool refused_ = false;                  ///< some rail may have writes that it did not take
  bool posted_ = false;
  uint64_t epoch_ = 1;  ///< of every CachedRoute: it ends with any change of paths
};

}  // namespace fabric::core

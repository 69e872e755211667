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

// From operations to posted pieces and back: cutting, dealing, queueing per path, posting, and
// counting what ended how.

namespace fabric::core {

class EngineCore;
struct LocalRegion;
struct Peer;
struct RemoteRegionSlot;
struct Route;
struct Lane;

/// In the place of an operation: the piece belongs to the engine itself.
inline constexpr uint32_t kProbe = kNone - 1;

/// How a piece ended, as far as its rail knows.
struct PieceEnd {
  Errc code = Errc::kOk;
  Remote remote = Remote::kDelivered;
};

/// What the target said of its end of a path, once that was down and drained.
struct FarEnd {
  bool said = false;
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
    kResting,  ///< it broke; it is opened again at `retry_ns`
  };
  State state = State::kFree;
  uint32_t index = 0;
  uint32_t peer = kNone;  ///< slot
  uint8_t network = 0, rail = 0, remote_rail = 0;
  bool peer_gone = false;   ///< not reopened once it is down
  bool suspect = false;     ///< it broke before: a probe has to come back before anything is posted
  bool started = false;     ///< this connection was ready once, so pieces may have been posted
  bool unwanted = false;    ///< refused for good: forgotten once it is down
  bool broke = false;       ///< this connection did, by itself
  bool far_closed = false;  ///< the target said that its end is down
  uint32_t id = 0;          ///< the provider's
  uint32_t ref = 0;         ///< under which its answer comes back; new each time it is opened
  std::array<EntryQueue, 3> queue{};  ///< by priority
  std::array<uint32_t, 3> next_active{kNone, kNone, kNone};
  std::array<bool, 3> listed{};                      ///< in the rail's list of paths with work
  uint32_t first_piece = kNone, last_piece = kNone;  ///< in flight, oldest first
  uint32_t posted = 0;

  // Failover (failover.cc).
  uint64_t imms_posted = 0, imms_done = 0;  ///< of this connection; done: acknowledged
  std::vector<uint32_t> stranded{};         ///< pieces that the break gave back, in posting order
  uint64_t stranded_seq = UINT64_MAX;       ///< of the first of them
  FarEnd far{};
  uint32_t failures = 0;  ///< in a row
  int64_t retry_ns = kNeverNs;
  uint32_t probe = kNone;  ///< the piece that finds out whether it works
  int64_t probe_until_ns = kNeverNs;
};

/// A posted part of an operation.
struct Piece {
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
  bool stranded = false;    ///< its path broke: its fate waits for the word of the target
  PieceEnd end{};           ///< of a stranded one, as far as this side knows
  Errc barred = Errc::kOk;  ///< why it must not be sent again
};

/// A connection that broke, with the pieces whose fate only the target knows, until it says so.
struct Wreck {
  uint32_t peer = kNone;  ///< slot
  uint32_t ref = 0;       ///< of the path
  uint8_t network = 0, rail = 0;
  uint64_t imms_done = 0;
  uint64_t oldest_seq = UINT64_MAX;  ///< of the pieces that it was made with
  std::vector<uint32_t> pieces{};    ///< in posting order; those whose operation has ended are gone
  EntryQueue begun{};                ///< rests of shards of which a part was posted on it
};

/// An opened rail with what is in flight on it.
struct RailSlot {
  Rail* rail = nullptr;
  Caps caps{};
  uint8_t network = 0, index = 0;
  bool up = true;
  uint32_t posted = 0;
  uint64_t bulk_bytes = 0;  ///< of bulk pieces in flight
  std::array<uint32_t, 3> first_active{kNone, kNone, kNone};
  std::array<uint32_t, 3> last_active{kNone, kNone, kNone};
  uint32_t listed = 0;  ///< how many paths are in these lists
  bool turned = false;  ///< posted to in this turn: it may have ended at once
  uint32_t express_count = 0;
  std::array<WriteOp, kPostMax> express{};  ///< made by the short way, to be posted next
  Train* boarding = nullptr;                ///< the last of the trains that they are
  std::vector<WriteOp> refused{};  ///< made, and not taken by the provider for want of room
  std::vector<uint32_t> inbox{};   ///< immediates of the present poll
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
  /// The drain bound has passed: the paths that hold its pieces are torn down.
  void force(Op& op);
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
  uint32_t board(std::span<const uint32_t> slots);
  /// Before anything else happens to rails, paths or regions.
  void end_express() {
    known_.batch = {};
    if (!express_rails_.empty()) post_express();
  }
  /// A train becomes pieces: something is going to happen to one of them.
  void dissolve(Train& train);
  void dissolve_train(uint32_t index) { dissolve(*trains_.at(index)); }
  void dissolve_all();  ///< and what was found out about routes is forgotten
  /// Which path leads where, and whether it may be taken, has to be found out again: something
  /// about rails, paths, peers, regions or keys has changed.
  void routes_changed() noexcept { ++epoch_; }
  /// The lowest number among the pieces in flight to the peer; UINT64_MAX: none.
  uint64_t oldest_piece(const Peer& peer) const noexcept;
  /// Unposted parts: of one operation, and of all that wait for one rail or peer.
  uint64_t queued_parts(const Op& op) noexcept;
  uint64_t queued_on(const Path& path) noexcept;
  /// Calls `visit` with the slot of every peer that holds a part of the operation.
  template <class F>
  void each_peer_of(const Op& op, F&& visit) {
    for (uint32_t i = op.entries; i != kNone; i = entries_.at(i).op_next) {
      visit(entries_.at(i).peer);
    }
    for (const Piece& piece : pieces_) {
      if (piece.op == op.self) visit(piece.peer);
    }
  }
  bool idle() const noexcept;  ///< no path is open any more
  // What is held now, for dumps.
  uint64_t entries_held() const noexcept { return entries_.held(); }
  uint64_t pieces_held() const noexcept {  ///< of operations
    auto held = static_cast<uint64_t>(std::count_if(
        pieces_.begin(), pieces_.end(), [](const Piece& piece) { return piece.op < kProbe; }));
    trains_.each([&](const Train& train) {
      if (train.whole) held += Train::number(train.out);
    });
    return held;
  }
  uint64_t wrecks_held() const noexcept { return wrecks_.size(); }
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
  void route(uint32_t entry_index);
  NetworkSlot* choose_network(const Op& op, uint32_t part, const Peer& peer, Errc& why);
  void route_write(Op& op, Peer& peer, NetworkSlot& network, const UpRails& up);
  void route_paged(Op& op, Peer& peer, NetworkSlot& network, const UpRails& up);
  void enqueue(Op& op, Peer& peer, NetworkSlot& network, uint32_t rail, Entry entry);
  Path* path_for(Peer& peer, NetworkSlot& network, uint32_t rail);
  /// kExhausted may be over soon; everything else is not.
  Errc open_path(Peer& peer, Path& path);
  void pair_rails(const Peer& peer, Path& path);
  void end_parts(Op& op, const Entry& entry, PeerId peer, Errc code);
  void drop_path_entries(Path& path, Errc code);
  template <class F>
  void drop_entries_where(F&& wanted, Errc code);
  void forget_path(Path& path);
  void activate(Path& path, uint32_t priority);
  void drop_entry(uint32_t entry_index, Errc code);
  void link_to_op(Op& op, uint32_t entry_index);
  void unlink_from_op(Op& op, uint32_t entry_index);
  PartSource part_of(const Op& op, uint32_t part) const noexcept;
  uint32_t post(RailSlot& rail, std::span<WriteOp> batch);
  void refuse(RailSlot& rail, std::span<WriteOp> rest);
  bool may_post(const Piece& piece);
  void take_counts(RailSlot& rail);
  void take_run(RailSlot& rail, uint32_t imm, uint32_t n);
  uint32_t make_pieces(RailSlot& rail, std::span<WriteOp> out);
  bool next_path(RailSlot& rail, uint32_t& priority, Path*& path);
  void unlist(RailSlot& rail, uint32_t priority);
  void unlist_path(Path& path, uint32_t priority);
  static bool room_for(const RailSlot& rail, const Path& path) noexcept;
  static uint32_t room_on(const RailSlot& rail, const Path& path) noexcept;
  bool room_for_bulk(const RailSlot& rail, const Path& path) noexcept;
  uint32_t make_piece(RailSlot& rail, Path& path, uint32_t priority);
  uint32_t make_pages(RailSlot& rail, Path& path, uint32_t priority, std::span<WriteOp> out);
  void fill_wire(WriteOp& wire, const Op& op, const Path& path, const PartSource& source);
  void advance_entry(Op& op, uint32_t entry_index, uint64_t bytes);
  Route& find_route(RemoteRegionSlot& remote, MemoryKind here);
  void post_express();
  bool knows(RegionId source, RemoteRegion target);
  bool know(RegionId source, RemoteRegion target);
  const Lane& next_lane() const noexcept;
  static uint32_t places_on(const Lane& lane) noexcept;
  static bool may_board(const Op& op, int64_t now_ns) noexcept;
  uint32_t board_run(std::span<const uint32_t> slots);
  bool board_part(Op& op, uint32_t part, const PartSource& source);
  Train& new_train(Path& path, Peer& peer, RailSlot& rail, LocalRegion* region, const Op& op);
  Train& train_on(const Lane& lane, const Op& op, uint32_t of, uint32_t part);
  WriteOp stamp_of(const Lane& lane) const noexcept;
  static bool load(WriteOp& wire, const WriteOp& stamp, uint32_t cookie, Priority priority,
                   const PartSource& source) noexcept;
  void boarded(Train& train, const Lane& lane, uint32_t n);
  void depart(Train& train, uint32_t taken);
  uint32_t get_off(Train& train, uint32_t at);
  uint32_t cars_ended(std::span<const WireEvent> events);
  uint32_t cars_of_several(const WireEvent& run, uint32_t left);
  void car_ended(Train& train, uint32_t train_cookie, const WireEvent& event);
  void cars_arrived(Train& train, uint32_t cars);
  uint64_t end_writes(const Train& train, uint32_t cars, uint32_t n);
  uint64_t bytes_of(const Train& train, uint32_t cars, uint32_t n) const noexcept;
  void link_piece(Path& path, uint32_t cookie);
  void look_for_work(Peer& peer, Path& path);
  void piece_made(uint32_t cookie, Op& op, Peer& peer, Path& path, RailSlot& rail,
                  LocalRegion* region);
  void piece_left(const Piece& piece, Path& path, RailSlot& rail);
  void piece_delivered(uint32_t cookie);
  void piece_ended(uint32_t cookie, const PieceEnd& end);
  void shard_ended(Op& op, PeerId peer, const PieceEnd& end, uint64_t bytes);
  void part_ended(Op& op, uint32_t part, PeerId peer, const PieceEnd& end, uint64_t bytes);
  void finish_if_ended(Op& op);
  void spoil(const Op& op, uint32_t part, PeerId peer, Errc code);
  void on_path_down(const RailSlot& rail, const WireEvent& event);
  void path_down(Path& path, Errc code);
  void close_path(Path& path);
  void withdraw(Path& path);
  void next_life(Path& path, bool at_once);

  // failover.cc
  UpRails up_rails(const Peer& peer, const NetworkSlot& network) const;
  void on_rail_state(NetworkSlot& network, RailSlot& rail, const WireEvent& event);
  bool may_strand(const Piece& piece, const Path& path, const PieceEnd& end) const;
  bool may_repeat(const Op& op) const noexcept;
  bool exact(const Path& path) const noexcept;
  bool given_up(const Piece& piece, Path& path, const PieceEnd& end);
  void strand(uint32_t cookie, Path& path, const PieceEnd& end);
  void make_wreck(Path& path);
  void settle(Wreck& wreck, const FarEnd& far);
  void settle_pieces(Wreck& wreck, const FarEnd& far);
  void drop_wreck(size_t at);
  void end_stranded(uint32_t cookie, PieceEnd end);
  void end_piece(const Piece& piece, const PieceEnd& end);
  void repeat(Wreck& wreck, uint32_t cookie);
  void repeat_shard(Wreck& wreck, Op& op, const Shard& shard, uint64_t from);
  void send_again(Op& op, Peer& peer, uint8_t network, Entry entry);
  void reroute(Path& path);
  void move_entry(uint32_t entry_index, Path& to);
  void start_probe(Path& path);
  void probe_ended(Path& path, const PieceEnd& end);
  void nobody_answers(Peer& peer, const Path& failed);
  void ask_host(Path& path);
  void rest(Path& path);
  void on_event(NetworkSlot& network, RailSlot& rail, const WireEvent& event);
  Path* take_path();
  uint32_t take_piece();
  void give_piece(uint32_t cookie);

  EngineCore& core_;
  EntryPool entries_;
  TrainYard trains_;
  std::vector<std::unique_ptr<Path>> paths_;
  std::vector<uint32_t> free_paths_;
  std::deque<Piece> pieces_;  ///< they stay where they are: dissolving a train makes more of them
  uint32_t free_piece_ = kNone;  ///< by `next`
  size_t pieces_free_ = 0;
  std::vector<std::unique_ptr<Wreck>> wrecks_;
  int64_t next_ns_ = kNeverNs;  ///< when tick() has something to do
  // Of one call, and kept: to make them anew costs more than a turn with nothing to do.
  bool drained_ = true;
  std::array<WireEvent, 64> polled_{};
  std::array<WriteOp, kPostMax> posting_{};
  /// Of the last part that went the short way: what was found out about its two ends.
  struct Known {
    uint64_t epoch = 0;  ///< good until routes_changed()
    RegionId source{};
    RemoteRegion target{};
    BatchId batch{};  ///< refuses nobody; until end_express()
    LocalRegion* region = nullptr;
    const Route* route = nullptr;
    const uint64_t* local_keys = nullptr;  ///< by rail
  };
  Known known_{};
  std::vector<RailSlot*> express_rails_;  ///< that have some
  uint32_t listed_ = 0;                   ///< paths in the lists of all rails
  bool refused_ = false;                  ///< some rail may have pieces that it did not take
  bool posted_ = false;
  uint64_t epoch_ = 1;  ///< of every Route: it ends with any change of paths
};

}  // namespace fabric::core

#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <fabric/provider.h>
#include <fabric/shm.h>

#include "base/driver.h"
#include "base/log.h"
#include "providers/shm/copy.h"
#include "providers/shm/proof.h"
#include "providers/shm/ring.h"
#include "providers/shm/rkeys.h"
#include "providers/shm/shared_header.h"
#include "providers/shm/shm_peer.h"
#include "providers/shm/writer_slots.h"

namespace fabric::shm {

inline constexpr uint32_t kQueueDepth = 1024;
/// The most that a rail copies in one turn: some 100 us, which bounds how long the other networks
/// of the same worker wait.
inline constexpr uint64_t kTurnBytes = 1u << 20;

/// The lower half of a path id is its slot in the table; the upper half is its generation.
inline constexpr uint32_t kSlotBits = 16;
constexpr uint32_t slot_of(uint32_t id) noexcept { return id & ((1u << kSlotBits) - 1); }

class ShmNetwork;

/// One lane: its outgoing and inbound paths, the writes on them, and the fences of revoked rkeys.
/// README.md describes the data flow.
///
/// A write on an OutPath is stored directly (mapped memory), posted to the target as pull requests,
/// or queued until the path or its memory is ready. It completes into `completions_`, from which
/// poll() reports it. poll() also takes the immediates and pull requests that arrive on the
/// InPaths.
///
/// Owner: ShmNetwork. Threads: the worker, under the engine's state lock; only register_memory()
///   and deregister_memory() may be called by any thread (RkeyTable's lock, `revoked_mutex_`).
/// Invariant: post() accepts a write only while completions_count_ + queued_ + pulls_outstanding_ <
///   kQueueDepth, so that every accepted write has room for its completion.
class ShmRail final : public Rail {
 public:
  ShmRail(ShmNetwork& network, uint32_t lane);

  const Caps& caps() const noexcept override { return caps_; }
  std::string_view device() const noexcept override { return device_; }
  std::vector<std::pair<std::string, std::string>> facts() const override;

  Result<uint64_t> register_memory(const Memory& memory,
                                   std::vector<std::byte>& wire_rkey) override;
  void deregister_memory(uint64_t lkey, uint32_t cookie) noexcept override;
  Result<uint64_t> import_rkey(std::span<const std::byte> wire_rkey) override;

  Result<uint32_t> open_path(std::span<const std::byte> peer, uint32_t remote_rail,
                             std::vector<std::byte>& hello) override;
  Result<uint32_t> accept_path(std::span<const std::byte> hello,
                               std::vector<std::byte>& answer) override;
  Result<void> start_path(uint32_t path, std::span<const std::byte> answer) override;
  void close_path(uint32_t path, bool inbound) noexcept override;

  uint32_t post(std::span<const WriteOp> ops) noexcept override;
  uint32_t poll(std::span<RailEvent> out) noexcept override;
  bool busy() const noexcept override { return copying_; }

  /// The target sent the ring of an outgoing path of this lane.
  void ring_ready(ShmPeer& from, const RingReady& frame, UniqueFd ring);
  /// Sends the rings of inbound paths that waited until it was known whether we can read the peer.
  void announce_rings(ShmPeer& to);
  /// Half of the budget was used since the last poll(): some ten microseconds or more.
  bool copied_much() const noexcept { return copy_budget_ < kTurnBytes / 2; }
  /// The last poll() returned events.
  bool polled_events() const noexcept { return polled_events_; }
  /// poll() would make progress. Exact; called before the worker sleeps.
  bool has_work() noexcept;
  /// The same, cheap and conservative: true while any multi-poll work is ongoing.
  bool pending_work() const noexcept;
  /// Fences or closing paths wait for a proof, so the worker may only sleep briefly.
  bool has_pending_proofs() const noexcept {
    return !fences_.empty() || closing_in_ != 0 || closing_out_ != 0;
  }

 private:
  /// The final code of a write.
  struct WriteStatus {
    Errc code = Errc::kOk;
    Remote remote = Remote::kDelivered;
  };
  /// A write that waits on its path, in a list linked by index.
  struct QueuedWrite {
    WriteOp op{};
    uint64_t copied_bytes = 0;  ///< stored or posted so far
    uint32_t next = 0;
  };
  /// The sender's note on a pull request in the ring. A bounced write may need several.
  struct PostedPull {
    uint32_t cookie = 0;
    bool last = true;      ///< the last request of its write
    bool aborted = false;  ///< the path closed before the rest of the write was posted
    uint64_t bounce_bytes = 0;
  };

  /// The sender's end of a path. Invariant: writes leave in posting order; while some are queued,
  /// none is stored directly.
  struct OutPath {
    std::shared_ptr<ShmPeer> to{};
    uint32_t id = 0;
    bool live = false;
    bool started = false;
    bool closing = false;
    bool open = false;      ///< started, ring mapped and not closing: writes may be posted
    Errc code = Errc::kOk;  ///< why it broke
    Mapping memory{};       ///< of the ring
    Ring* ring = nullptr;   ///< null until the target sent it
    bool can_pull = false;  ///< the target can read our memory; else bytes are bounced
    Guard guard{};
    uint64_t imms_posted = 0;
    uint64_t imms_taken = 0;    ///< by the target, when last read
    uint64_t imms_counted = 0;  ///< added to the target's ArrivalCount up to here
    uint64_t pulls_posted = 0;
    uint64_t pulls_retired = 0;
    uint64_t bounced = 0, bounce_freed = 0;  ///< running totals of bytes
    std::array<PostedPull, Ring::kPulls> posted_pulls{};
    WriteStatus failed{};                            ///< of a write with requests outstanding
    uint32_t first = UINT32_MAX, last = UINT32_MAX;  ///< queued writes
    uint32_t closing_scans = 0;                      ///< scans since it began to close
    uint64_t last_completion = 0;                    ///< of its writes, counted as reported_

    /// The code for writes of a broken path. A closed connection means a lost peer as well: a
    /// target with open paths disconnects only when its engine closes or its process dies.
    Errc break_code() const noexcept {
      return to->dead() || to->disconnected() ? Errc::kPeerLost : Errc::kRailLost;
    }
    bool idle(uint64_t reported) const noexcept {
      return first == UINT32_MAX && pulls_posted == pulls_retired && last_completion <= reported;
    }
  };

  /// The target's end of a path. Owns the ring. Closing: the epoch is revoked, a Proof shows that
  /// no section of the sender is running, the committed immediates are taken, then the path is
  /// down.
  struct InPath {
    std::shared_ptr<ShmPeer> from{};
    uint32_t id = 0;
    bool live = false;
    uint32_t lane = 0, number = 0;  ///< as in the hello
    SharedMemory memory{};
    Ring* ring = nullptr;
    bool announced = false;  ///< the ring was sent to the sender
    uint32_t epoch_index = 0;
    uint64_t epoch = 0;
    uint64_t imms_taken = 0;
    uint64_t pulls_taken = 0;
    uint64_t pulled_bytes = 0;    ///< of the current pull request
    uint64_t imms_delivered = 0;  ///< of stored and of pulled writes
    bool closing = false;
    bool lost = false;  ///< the sender is dead
    std::optional<Proof> proof{};
    bool proved = false;
  };

  /// A revoked rkey and the peers that may still be storing under it.
  struct RkeyFence {
    WireRkey rkey{};
    uint32_t cookie = 0;
    struct Writer {
      std::shared_ptr<ShmPeer> peer{};
      std::shared_ptr<const PeerWriterSlots> writer_slots{};
      Proof proof;
    };
    std::vector<Writer> writers{};
  };
  /// Handed over from deregister_memory() to the worker.
  struct RevokedRkey {
    WireRkey rkey{};
    uint32_t cookie = 0;
  };

  // connect.cc
  template <class Path>
  static Path* find(const std::vector<std::unique_ptr<Path>>& paths, uint32_t id) noexcept {
    const uint32_t slot = slot_of(id);
    if (slot >= paths.size()) return nullptr;
    Path* const path = paths[slot].get();
    return path->live && path->id == id ? path : nullptr;
  }
  OutPath* out_path(uint32_t id) noexcept { return find(out_, id); }
  InPath* in_path(uint32_t id) noexcept { return find(in_, id); }
  void announce_ring(InPath& path);
  void break_path(OutPath& path, Errc code) noexcept;
  void withdraw_pulls(OutPath& path) noexcept;
  void change_pull_states(OutPath& path, PullRequest::State from, PullRequest::State to) noexcept;
  void check_paths() noexcept;
  uint32_t poll_closing_out(std::span<RailEvent> out) noexcept;
  uint32_t poll_closing_in(std::span<RailEvent> out) noexcept;
  bool inbound_fenced(InPath& path) noexcept;
  bool can_advance(OutPath& path) noexcept;

  // datapath.cc: outgoing writes
  /// kDequeued: completed, or posted to the target; kBlocked: stays queued.
  enum class Advance : uint8_t { kDequeued, kBlocked };
  uint32_t store_burst(OutPath& path, std::span<const WriteOp> ops) noexcept;
  void refuse_burst(OutPath& path, std::span<const WriteOp> ops, uint64_t imms) noexcept;
  void post_one(OutPath* path, const WriteOp& op) noexcept;
  Advance advance(OutPath& path, const WriteOp& op, uint64_t& copied) noexcept;
  Advance store(OutPath& path, const WriteOp& op, uint64_t& copied,
                const ShmPeer::RkeyView& view) noexcept;
  Advance post_pulls(OutPath& path, const WriteOp& op, uint64_t& posted_bytes) noexcept;
  Advance refuse(OutPath& path, const WriteOp& op) noexcept;
  void publish_pull(OutPath& path, const PullRequest& request, const PostedPull& posted) noexcept;
  bool imm_room(OutPath& path) noexcept;
  RailEvent& completion_slot(uint32_t offset) noexcept {
    return completions_[(completions_head_ + offset) % kQueueDepth];
  }
  void complete(OutPath& path, uint32_t cookie, WriteStatus status) noexcept {
    completion_slot(completions_count_++) = {
        .code = status.code, .remote = status.remote, .cookie = cookie, .path = path.id};
    path.last_completion = reported_ + completions_count_;
  }
  void defer_wake(OutPath& path) noexcept;
  void flush_wake() noexcept;
  void wake_target(OutPath& path, uint64_t sleep_epoch) noexcept;
  void enqueue(OutPath& path, const WriteOp& op, uint64_t copied) noexcept;
  void advance_queue(OutPath& path) noexcept;
  void retire_pulls(OutPath& path) noexcept;
  uint32_t poll_completions(std::span<RailEvent> out) noexcept;
  bool has_ongoing() const noexcept;
  uint32_t poll_ongoing(std::span<RailEvent> out) noexcept;
  uint32_t poll_inbound(std::span<RailEvent> out) noexcept;
  uint32_t take_inbound(InPath& path, std::span<RailEvent> out) noexcept;

  // inbound.cc: immediates and pull requests
  uint32_t take_imms(InPath& path, std::span<RailEvent> out) noexcept;
  static void imms_freed(InPath& path, uint64_t before) noexcept;
  static bool imm_ready(const InPath& path) noexcept {
    // Relaxed: only a hint, take_imms() loads it with acquire.
    const uint64_t word =
        path.ring->imms[path.imms_taken % Ring::kImms].load(std::memory_order_relaxed);
    return word >> 32 == Ring::imm_word(path.imms_taken, 0) >> 32;
  }
  static bool pull_ready(const InPath& path) noexcept {
    // Only a hint, begin_pull() checks it. Untrusted: final states that only we may set are
    // ignored.
    const uint64_t word =
        path.ring->pulls[path.pulls_taken % Ring::kPulls].word.load(std::memory_order_relaxed);
    if (word >> PullRequest::kStateBits != path.pulls_taken) return false;
    const auto state = static_cast<uint32_t>(word & ((1u << PullRequest::kStateBits) - 1));
    return state == PullRequest::kPublished || state == PullRequest::kTaken ||
           state == PullRequest::kWithdrawn || state == PullRequest::kAbandoned;
  }
  uint32_t take_pulls(InPath& path, std::span<RailEvent> out) noexcept;
  struct PullJob;
  bool begin_pull(InPath& path, uint64_t position, PullJob& job) noexcept;
  void finish_pulls(InPath& path, std::span<PullJob> jobs, std::span<RailEvent> out,
                    uint32_t& n) noexcept;

  // memory.cc
  uint32_t poll_fences(std::span<RailEvent> out) noexcept;
  void begin_fences() noexcept;

  ShmNetwork& network_;
  const uint32_t lane_;
  const std::string device_;
  const Caps caps_;

  std::vector<std::unique_ptr<OutPath>> out_;  ///< by slot, the lower half of the id
  std::vector<uint32_t> out_free_;
  std::vector<std::unique_ptr<InPath>> in_;
  std::vector<uint32_t> in_free_;
  std::vector<InPath*> watched_;  ///< inbound paths whose rings are polled
  uint32_t serial_ = 0;           ///< generation for the upper half of ids
  uint32_t next_in_ = 0;          ///< round robin: watched path to poll first
  bool pulls_first_ = false;

  OutPath* wake_pending_ = nullptr;  ///< published to; flush_wake() wakes its target if asleep
  std::vector<QueuedWrite> queued_writes_;
  uint32_t free_queued_write_ = 0;
  uint32_t queued_ = 0;             ///< queued writes of all paths
  uint32_t pulls_outstanding_ = 0;  ///< pull requests posted and not retired
  uint32_t closing_out_ = 0, closing_in_ = 0;
  std::array<RailEvent, kQueueDepth> completions_{};  ///< FIFO of completed writes for poll()
  uint32_t completions_head_ = 0, completions_count_ = 0;
  uint64_t reported_ = 0;  ///< completions that poll() has returned
  uint64_t copy_budget_ = kTurnBytes;
  bool polled_events_ = false;
  bool copying_ = false;     ///< the budget ran out: the next poll() continues a copy or a pull
  uint64_t scan_seen_ = 0;   ///< ShmNetwork::scans() when last acted on
  bool fresh_scan_ = false;  ///< this poll acts on a new scan: proofs may ask the kernel

  std::mutex revoked_mutex_;
  std::vector<RevokedRkey> revoked_;
  std::atomic<uint32_t> revoked_count_{0};
  std::vector<RkeyFence> fences_;
  std::array<uint64_t, 5> proved_by_{};  ///< by Proof::By
};

/// The network between the engines of one host: the peers with their socket connections, the
/// SharedHeader and RkeyTable of this engine, and the lanes (ShmRail) that share them.
///
/// Memory shows nearly everything that happens. What it does not show (new connections, closed
/// sockets, deaths) is found by scan(), about once per millisecond and after each sleep.
///
/// Owner: the core. Threads: the worker, under the engine's state lock; RkeyTable locks itself.
/// Invariant: a ShmPeer is in `peers_` while it has a link, a path or an incoming connection.
class ShmNetwork final : public OpenNetwork {
 public:
  static Result<std::unique_ptr<OpenNetwork>> open(const Options& options,
                                                   const OpenContext& context);
  ~ShmNetwork() override;

  uint32_t rail_count() const noexcept override { return static_cast<uint32_t>(rails_.size()); }
  Rail& rail(uint32_t index) noexcept override { return *rails_[index]; }

  std::vector<std::byte> address() const override { return encode(address_); }
  Result<uint32_t> open_link(std::span<const std::byte> address) override;
  void close_link(uint32_t link) noexcept override;
  uint32_t control_bytes_max() const noexcept override { return kControlBytesMax; }
  bool send(uint32_t link, std::span<const std::byte> datagram) noexcept override;
  uint32_t receive(std::span<std::byte> out) noexcept override;
  bool take_lost(uint32_t& link) noexcept override;
  PendingWork pending_work() noexcept override;
  bool sleep_through(uint32_t arrivals) noexcept override;
  bool arm() noexcept override;
  int wait_fd() const noexcept override { return events_.get(); }

  // For the rails.
  SharedHeader& own_header() noexcept { return *header_.mapping.as<SharedHeader>(); }
  RkeyTable& rkeys() noexcept { return rkeys_; }
  const Address& own_address() const noexcept { return address_; }
  int64_t now_ns() const noexcept { return driver_.now_ns(); }
  void wake() const { wake_(); }
  /// The peer at an address, created if needed; it is connected later. Fails with kBadFormat,
  /// kUnreachable, kExhausted.
  Result<std::shared_ptr<ShmPeer>> peer(std::span<const std::byte> address);
  Result<std::shared_ptr<ShmPeer>> peer(const Address& address);
  /// Disconnects a peer without links and paths, and forgets it once it has disconnected too.
  void release_if_unused(ShmPeer& one) noexcept;
  std::string read_access_text() const;               ///< for facts(): peers by read method
  std::string peers_text() const;                     ///< for facts(): number of peers
  uint64_t wakes() const noexcept { return wakes_; }  ///< wake frames received
  /// Sends it our ArrivalCount, if it counts arrivals and has not got it yet.
  void share_arrivals(ShmPeer& to);
  /// Finds out whether we can read the peer's memory. May take a round trip.
  void probe_read_access(ShmPeer& from);
  /// Peers that may have mapped our shared pages.
  std::vector<std::shared_ptr<ShmPeer>> possible_writers() const;
  void announce_block_released(uint64_t block);
  Result<std::pair<uint32_t, uint64_t>> take_path_epoch();  ///< index in path_epochs, and value
  void free_path_epoch(uint32_t epoch_index) { free_epochs_.push_back(epoch_index); }
  WriterSlot* writer_slot() noexcept { return writer_slots_->mine(); }
  /// Makes sure that the calling thread holds a slot, so that peers see our death in memory.
  /// Without a slot they have to ask the kernel.
  void take_writer_slot() noexcept { (void)writer_slots_->mine(); }
  /// Number of scans; a rail compares it to know when to check its paths.
  uint64_t scans() const noexcept { return scans_; }

 private:
  // One datagram carries one control message: twice the default maximum, with room for the frame.
  static constexpr uint32_t kControlBytesMax = 128u << 10;

  /// An accepted connection that has not sent its greeting yet.
  struct UngreetedSocket {
    UniqueFd socket;
    Credentials who{};
  };

  ShmNetwork(const OpenContext& context, WriterSlots* writer_slots, SharedMemory header,
             SharedMemory arrivals);
  Result<void> start(const Options& options);
  bool ensure_connected(ShmPeer& to);
  void populate_some() noexcept;
  void scan_if_due(bool slept);
  void scan();
  void handle_events();
  void accept_connections();
  void read_greeting(int socket);
  void queue_read(const std::shared_ptr<ShmPeer>& from);
  uint32_t next_datagram(std::span<std::byte> out);
  uint32_t read_frames(ShmPeer& from, std::span<std::byte> out);
  void handle(ShmPeer& from, const Frame& frame, std::span<UniqueFd> descriptors);
  void set_timer(int64_t interval_ns) noexcept;

  Driver& driver_;
  const std::function<void()> wake_;
  WriterSlots* const writer_slots_;
  SharedMemory header_;
  Mapping arrivals_;                                 ///< our ArrivalCount
  std::shared_ptr<const UniqueFd> arrivals_memory_;  ///< the same, for peers that count
  uint32_t arrivals_needed_ = 1;                     ///< before there is something to do for them
  RkeyTable rkeys_;
  Address address_{};
  Greeting greeting_{};
  std::array<std::byte, Beacon::kBytes> beacon_{};
  UniqueFd listener_, events_, timer_;
  bool listening_ = true;  ///< false: out of descriptors, not polled until the next scan
  std::shared_ptr<const UniqueFd> own_memory_;  ///< /proc/self/mem, for peers that need it
  int64_t timer_ns_ = 0;
  std::vector<std::unique_ptr<ShmRail>> rails_;

  std::map<uint64_t, std::shared_ptr<ShmPeer>> peers_;  ///< by instance
  std::vector<ShmPeer*> peer_list_;                     ///< the same peers, fast to iterate
  std::map<int, uint64_t> by_socket_;                   ///< incoming connections: instance
  std::map<int, UngreetedSocket> ungreeted_;            ///< by socket
  std::map<uint32_t, std::shared_ptr<ShmPeer>> links_;
  uint32_t next_link_ = 1;
  std::vector<uint32_t> free_connections_;
  uint32_t next_connection_ = 0;
  std::vector<uint32_t> free_epochs_;
  uint32_t next_epoch_index_ = 0;
  uint64_t next_epoch_ = 1;

  std::vector<std::byte> buffer_;
  std::deque<std::shared_ptr<ShmPeer>> read_queue_;  ///< peers whose connections may be readable
  std::vector<uint32_t> lost_links_;                 ///< links to closed or dead peers, to report
  uint32_t calls_ = 0;
  uint32_t calls_since_scan_ = 0;  ///< pending_work() calls since the last clock read
  int64_t next_scan_ns_ = 0;
  uint64_t scans_ = 0;
  uint64_t wakes_ = 0;
};

}  // namespace fabric::shm

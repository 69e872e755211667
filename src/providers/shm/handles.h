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

#include "base/driver.h"
#include "base/log.h"
#include "providers/shm/writer_slots.h"
#include "providers/shm/copy.h"
#include "providers/shm/shared_header.h"
#include "providers/shm/rkeys.h"
#include "providers/shm/shm_peer.h"
#include "providers/shm/proof.h"
#include "providers/shm/ring.h"

namespace fabric::shm {

inline constexpr uint32_t kQueueDepth = 1024;
/// What one turn copies: some 100 us of memory bandwidth, the longest that another network of the
/// same worker waits.
inline constexpr uint64_t kTurnBytes = 1u << 20;

/// The lower half of a path's id is its place; the upper one tells its lives apart.
inline constexpr uint32_t kSlotBits = 16;
constexpr uint32_t slot_of(uint32_t id) noexcept { return id & ((1u << kSlotBits) - 1); }

class ShmNetwork;

/// One lane: paths and their pieces. See README.md for the data that flows.
class ShmRail final : public Rail {
 public:
  ShmRail(ShmNetwork& network, uint32_t lane);

  const Caps& caps() const noexcept override { return caps_; }
  std::string_view device() const noexcept override { return device_; }
  std::vector<std::pair<std::string, std::string>> facts() const override;

  Result<uint64_t> register_memory(const Memory& memory, std::vector<std::byte>& wire_key) override;
  void deregister_memory(uint64_t local_key, uint32_t cookie) noexcept override;
  Result<uint64_t> import_key(std::span<const std::byte> wire_key) override;

  Result<uint32_t> open_path(std::span<const std::byte> peer, uint32_t remote_rail,
                             std::vector<std::byte>& hello) override;
  Result<uint32_t> accept_path(std::span<const std::byte> hello,
                               std::vector<std::byte>& answer) override;
  Result<void> start_path(uint32_t path, std::span<const std::byte> answer) override;
  void close_path(uint32_t path, bool inbound) noexcept override;

  uint32_t post(std::span<const WriteOp> ops) noexcept override;
  uint32_t poll(std::span<WireEvent> out) noexcept override;
  bool busy() const noexcept override { return copying_; }

  /// The target's half of a path of this lane is there.
  void ring_ready(ShmPeer& from, const RingReady& frame, UniqueFd ring);
  /// How the peer's memory can be read is known now: its paths may begin.
  void announce_rings(ShmPeer& to);
  /// Since the last poll(): some ten microseconds or more.
  bool copied_much() const noexcept { return copy_budget_ < kTurnBytes / 2; }
  /// The last poll() had something to tell.
  bool polled_events() const noexcept { return polled_events_; }
  /// Something that poll() would act on; asked before a sleep.
  bool has_work() noexcept;
  /// The same, quickly: whatever takes more than one poll counts as something.
  bool pending_work() const noexcept;
  /// Fences whose proof is outstanding: the sleep must be short.
  bool has_pending_proofs() const noexcept {
    return !fences_.empty() || closing_in_ != 0 || closing_out_ != 0;
  }

 private:
  struct WriteStatus {
    Errc code = Errc::kOk;
    Remote remote = Remote::kDelivered;
  };
  struct QueuedWrite {
    WriteOp op{};
    uint64_t copied_bytes = 0;  ///< or posted_bytes to the bounce buffer
    uint32_t next = 0;
  };
  /// A piece that the target works at.
  struct PostedPull {
    uint32_t cookie = 0;
    bool last = true;  ///< a piece that bounces may need several pulls_posted
    bool aborted = false;  ///< and its path may close before the last of them
    uint64_t bounce_bytes = 0;
  };

  /// The sender's end.
  struct OutPath {
    std::shared_ptr<ShmPeer> to{};
    uint32_t id = 0;
    bool live = false;
    bool started = false;
    bool closing = false;
    bool open = false;      ///< started, announced and not closing: pieces may leave
    Errc code = Errc::kOk;  ///< why it broke
    Mapping memory{};
    Ring* ring = nullptr;  ///< null until the target has announced it
    bool can_pull = false;
    Guard guard{};
    uint64_t imms_posted = 0;
    uint64_t imms_taken = 0;  ///< by the target, as last seen
    uint64_t pulls_posted = 0;
    uint64_t pulls_retired = 0;
    uint64_t bounced = 0, bounce_freed = 0;  ///< bytes, running
    std::array<PostedPull, Ring::kPulls> posted_pulls{};
    WriteStatus failed{};                                ///< of a piece whose pulls_posted are not all back
    uint32_t first = UINT32_MAX, last = UINT32_MAX;  ///< pieces that wait
    uint32_t closing_scans = 0;                           ///< looks since it began to close
    uint64_t last_completion = 0;                           ///< of its pieces, as ShmRail::reported_ counts

    /// What its pieces end with. A death may be seen here before the core hears of it, and the end
    /// of a connection before the death: a target with a path hangs up only when its engine is over.
    Errc break_code() const noexcept {
      return to->dead() || to->disconnected() ? Errc::kPeerLost : Errc::kRailLost;
    }
    bool idle(uint64_t reported) const noexcept {
      return first == UINT32_MAX && pulls_posted == pulls_retired && last_completion <= reported;
    }
  };

  /// The target's end.
  struct InPath {
    std::shared_ptr<ShmPeer> from{};
    uint32_t id = 0;
    bool live = false;
    uint32_t lane = 0, number = 0;  ///< as in the hello
    SharedMemory memory{};
    Ring* ring = nullptr;
    bool announced = false;  ///< its sender has the ring
    uint32_t epoch_index = 0;
    uint64_t epoch = 0;
    uint64_t imms_taken = 0;
    uint64_t pulls_taken = 0;
    uint64_t pulled_bytes = 0;     ///< bytes of the request at hand
    uint64_t imms_delivered = 0;  ///< counted, by both ways
    bool closing = false;
    bool lost = false;  ///< the sender broke the ring's rules, or its process is gone
    std::optional<Proof> proof{};
    bool proved = false;
  };

  /// A rkey that was taken back, and whoever may still be storing under it.
  struct Fence {
    WireRkey rkey{};
    uint32_t cookie = 0;
    struct Writer {
      std::shared_ptr<ShmPeer> peer{};
      std::shared_ptr<const PeerWriterSlots> writer_slots{};
      Proof proof;
    };
    std::vector<Writer> writers{};
  };
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
  uint32_t poll_closing_out(std::span<WireEvent> out) noexcept;
  uint32_t poll_closing_in(std::span<WireEvent> out) noexcept;
  bool inbound_fenced(InPath& path) noexcept;
  bool can_advance(OutPath& path) noexcept;

  // datapath.cc: what leaves
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
  WireEvent& completion_slot(uint32_t offset) noexcept {
    return completions_[(completions_head_ + offset) % kQueueDepth];
  }
  void complete(OutPath& path, uint32_t cookie, WriteStatus status) noexcept {
    completion_slot(completions_count_++) = {
        .code = status.code, .remote = status.remote, .cookie = cookie, .path = path.id};
    path.last_completion = reported_ + completions_count_;
  }
  void defer_wake(OutPath& path) noexcept;
  void flush_wake() noexcept;
  void enqueue(OutPath& path, const WriteOp& op, uint64_t copied) noexcept;
  void advance_queue(OutPath& path) noexcept;
  void retire_pulls(OutPath& path) noexcept;
  uint32_t poll_completions(std::span<WireEvent> out) noexcept;
  bool has_ongoing() const noexcept;
  uint32_t poll_ongoing(std::span<WireEvent> out) noexcept;
  uint32_t poll_inbound(std::span<WireEvent> out) noexcept;
  uint32_t take_inbound(InPath& path, std::span<WireEvent> out) noexcept;

  // inbound.cc: what arrives
  uint32_t take_imms(InPath& path, std::span<WireEvent> out) noexcept;
  static bool imm_ready(const InPath& path) noexcept {
    // take_imms() looks properly.
    const uint64_t word =
        path.ring->imms[path.imms_taken % Ring::kImms].load(std::memory_order_relaxed);
    return word >> 32 == Ring::imm_word(path.imms_taken, 0) >> 32;
  }
  static bool pull_ready(const InPath& path) noexcept {
    // begin_pull() looks properly. From outside: any state but an end that is ours to write.
    const uint64_t word =
        path.ring->pulls[path.pulls_taken % Ring::kPulls].word.load(std::memory_order_relaxed);
    if (word >> PullRequest::kStateBits != path.pulls_taken) return false;
    const auto state = static_cast<uint32_t>(word & ((1u << PullRequest::kStateBits) - 1));
    return state == PullRequest::kPublished || state == PullRequest::kTaken || state == PullRequest::kWithdrawn ||
           state == PullRequest::kAbandoned;
  }
  uint32_t take_pulls(InPath& path, std::span<WireEvent> out) noexcept;
  struct PullJob;
  bool begin_pull(InPath& path, uint64_t position, PullJob& job) noexcept;
  void finish_pulls(InPath& path, std::span<PullJob> jobs, std::span<WireEvent> out,
                     uint32_t& n) noexcept;

  // memory.cc
  uint32_t poll_fences(std::span<WireEvent> out) noexcept;
  void begin_fences() noexcept;

  ShmNetwork& network_;
  const uint32_t lane_;
  const std::string device_;
  const Caps caps_;

  std::vector<std::unique_ptr<OutPath>> out_;  ///< by slot, the lower half of an id
  std::vector<uint32_t> out_free_;
  std::vector<std::unique_ptr<InPath>> in_;
  std::vector<uint32_t> in_free_;
  std::vector<InPath*> watched_;  ///< of those, whose ring may have something
  uint32_t serial_ = 0;           ///< upper half of the ids
  uint32_t next_in_ = 0;         ///< whose turn it is to be first
  bool pulls_first_ = false;

  OutPath* wake_pending_ = nullptr;  ///< something was, and its target is to be woken if it sleeps
  std::vector<QueuedWrite> queued_writes_;
  uint32_t free_queued_write_ = 0;
  uint32_t queued_ = 0;  ///< pieces that wait
  uint32_t pulls_outstanding_ = 0;  ///< pulls_posted that are out
  uint32_t closing_out_ = 0, closing_in_ = 0;
  std::array<WireEvent, kQueueDepth> completions_{};  ///< ends, as poll() hands them out
  uint32_t completions_head_ = 0, completions_count_ = 0;
  uint64_t reported_ = 0;  ///< ends that poll() has handed out
  uint64_t copy_budget_ = kTurnBytes;
  bool polled_events_ = false;
  bool copying_ = false;     ///< the next poll() goes on with a copy or a fetch
  uint64_t scan_seen_ = 0;      ///< the network's last look that was acted on
  bool fresh_scan_ = false;  ///< this poll acts on one: slower questions may be asked

  std::mutex revoked_mutex_;
  std::vector<RevokedRkey> revoked_;
  std::atomic<uint32_t> revoked_count_{0};
  std::vector<Fence> fences_;
  std::array<uint64_t, 5> proved_by_{};  ///< by Proof::By
};

/// Lines to the engines of this host, and the lanes that share them.
class ShmNetwork final : public OpenNetwork {
 public:
  struct Options {
    uint32_t lanes = 1;
    std::string directory{};
  };
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
  bool arm() noexcept override;
  int wait_fd() const noexcept override { return events_.get(); }

  // For the rails.
  SharedHeader& own_header() noexcept { return *header_.mapping.as<SharedHeader>(); }
  RkeyTable& rkeys() noexcept { return rkeys_; }
  const Address& own_address() const noexcept { return address_; }
  int64_t now_ns() const noexcept { return driver_.now_ns(); }
  void wake() const { wake_(); }
  /// Whom an address leads to, with a connection that is open or will be. Fails with kBadFormat,
  /// kUnreachable, kExhausted.
  Result<std::shared_ptr<ShmPeer>> peer(std::span<const std::byte> address);
  Result<std::shared_ptr<ShmPeer>> peer(const Address& address);
  /// Lines that neither a link nor a path needs any more are hung up.
  void release_if_unused(ShmPeer& one) noexcept;
  std::string read_access_text() const;  ///< how many neighbours' memory is read in which way
  /// Finds out how the peer's memory can be read. The answer may take a while.
  void probe_read_access(ShmPeer& from);
  /// How many there are, and what they lack.
  std::string peers_text() const;
  /// Everybody who may have something of ours mapped.
  std::vector<std::shared_ptr<ShmPeer>> possible_writers() const;
  void announce_block_released(uint64_t block);
  Result<std::pair<uint32_t, uint64_t>> take_path_epoch();  ///< place and value
  void free_path_epoch(uint32_t epoch_index) { free_epochs_.push_back(epoch_index); }
  WriterSlot* writer_slot() noexcept { return writer_slots_->mine(); }
  /// From here on memory shows the end of this process: whoever works with it need not ask the
  /// kernel at every step.
  void take_writer_slot() noexcept { (void)writer_slots_->mine(); }  // without a slot the kernel is asked
  /// Counts the looks for what no poll shows: deaths, ends of lines. Rails compare.
  uint64_t scans() const noexcept { return scans_; }

 private:
  // One datagram carries one message: twice the default message, with room for its frame.
  static constexpr uint32_t kControlBytesMax = 128u << 10;

  struct UngreetedSocket {
    UniqueFd socket;
    Credentials who{};
  };

  ShmNetwork(const OpenContext& context, WriterSlots* writer_slots, SharedMemory header) noexcept;
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
  RkeyTable rkeys_;
  Address address_{};
  Greeting greeting_{};
  std::array<std::byte, Beacon::kBytes> beacon_{};
  UniqueFd listener_, events_, timer_;
  bool listening_ = true;  ///< false: not watched until the next look, for want of descriptors
  std::shared_ptr<const UniqueFd> own_memory_;  ///< for those who cannot read it otherwise
  int64_t timer_ns_ = 0;
  std::vector<std::unique_ptr<ShmRail>> rails_;

  std::map<uint64_t, std::shared_ptr<ShmPeer>> peers_;  ///< by instance
  std::vector<ShmPeer*> peer_list_;                             ///< the same ones, quick to walk
  std::map<int, uint64_t> by_socket_;                          ///< lines in
  std::map<int, UngreetedSocket> ungreeted_;                          ///< connected, and not a word yet
  std::map<uint32_t, std::shared_ptr<ShmPeer>> links_;
  uint32_t next_link_ = 1;
  std::vector<uint32_t> free_connections_;
  uint32_t next_connection_ = 0;
  std::vector<uint32_t> free_epochs_;
  uint32_t next_epoch_index_ = 0;
  uint64_t next_epoch_ = 1;

  std::vector<std::byte> buffer_;
  std::deque<std::shared_ptr<ShmPeer>> read_queue_;  ///< whose lines have something
  std::vector<uint32_t> lost_links_;                   ///< links to processes that are gone
  uint32_t calls_ = 0;
  uint32_t calls_since_scan_ = 0;  ///< of pending_work(), since the last look at the clock
  int64_t next_scan_ns_ = 0;
  uint64_t scans_ = 0;
};

}  // namespace fabric::shm

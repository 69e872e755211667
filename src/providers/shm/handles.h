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
  void ring_ready(Neighbour& from, const RingReady& frame, UniqueFd ring);
  /// How the neighbour's memory can be read is known now: its paths may begin.
  void show_rings(Neighbour& to);
  /// Since the last poll(): some ten microseconds or more.
  bool copied_much() const noexcept { return budget_ < kTurnBytes / 2; }
  /// The last poll() had something to tell.
  bool found() const noexcept { return found_; }
  /// Something that poll() would act on; asked before a sleep.
  bool has_work() noexcept;
  /// The same, quickly: whatever takes more than one poll counts as something.
  bool pending_work() const noexcept;
  /// Fences whose proof is outstanding: the sleep must be short.
  bool has_proofs_awaited() const noexcept {
    return !fences_.empty() || closing_in_ != 0 || closing_out_ != 0;
  }

 private:
  struct Outcome {
    Errc code = Errc::kOk;
    Remote remote = Remote::kDelivered;
  };
  struct Piece {
    WriteOp op{};
    uint64_t copied_bytes = 0;  ///< or given to the bounce buffer
    uint32_t next = 0;
  };
  /// A piece that the target works at.
  struct Ordered {
    uint32_t cookie = 0;
    bool last = true;  ///< a piece that bounces may need several orders
    bool cut = false;  ///< and its path may close before the last of them
    uint64_t bounce_bytes = 0;
  };

  /// The sender's end.
  struct OutPath {
    std::shared_ptr<Neighbour> to{};
    uint32_t id = 0;
    bool live = false;
    bool started = false;
    bool closing = false;
    bool open = false;      ///< started, shown and not closing: pieces may leave
    Errc code = Errc::kOk;  ///< why it broke
    Mapping memory{};
    Ring* ring = nullptr;  ///< null until the target has shown it
    bool pulls = false;
    Guard guard{};
    uint64_t counts = 0;        ///< published
    uint64_t counts_taken = 0;  ///< by the target, as last seen
    uint64_t orders = 0;
    uint64_t orders_ended = 0;
    uint64_t bounced = 0, bounce_freed = 0;  ///< bytes, running
    std::array<Ordered, Ring::kOrders> ordered{};
    Outcome failed{};                                ///< of a piece whose orders are not all back
    uint32_t first = UINT32_MAX, last = UINT32_MAX;  ///< pieces that wait
    uint32_t patience = 0;                           ///< looks since it began to close
    uint64_t last_end = 0;                           ///< of its pieces, as ShmRail::told_ counts

    /// What its pieces end with. A death may be seen here before the core hears of it, and the end
    /// of a line before the death: a target with a path hangs up only when its engine is over.
    Errc broken_by() const noexcept {
      return to->gone() || to->left() ? Errc::kPeerLost : Errc::kRailLost;
    }
    bool quiet(uint64_t told) const noexcept {
      return first == UINT32_MAX && orders == orders_ended && last_end <= told;
    }
  };

  /// The target's end.
  struct InPath {
    std::shared_ptr<Neighbour> from{};
    uint32_t id = 0;
    bool live = false;
    uint32_t lane = 0, number = 0;  ///< as in the hello
    SharedMemory memory{};
    Ring* ring = nullptr;
    bool shown = false;  ///< its sender has the ring
    uint32_t permit = 0;
    uint64_t permit_value = 0;
    uint64_t counts = 0;      ///< taken
    uint64_t orders = 0;      ///< taken
    uint64_t fetched = 0;     ///< bytes of the order at hand
    uint64_t immediates = 0;  ///< counted, by both ways
    bool closing = false;
    bool lost = false;  ///< the sender broke the ring's rules, or its process is gone
    std::optional<Proof> proof{};
    bool proved = false;
  };

  /// A key that was taken back, and whoever may still be storing under it.
  struct Fence {
    WireKey key{};
    uint32_t cookie = 0;
    struct Writer {
      std::shared_ptr<Neighbour> neighbour{};
      std::shared_ptr<const PeerCards> cards{};
      Proof proof;
    };
    std::vector<Writer> inside{};
  };
  struct Revoked {
    WireKey key{};
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
  void show_ring(InPath& path);
  void break_out(OutPath& path, Errc code) noexcept;
  void withdraw_orders(OutPath& path) noexcept;
  void take_back(OutPath& path, Order::State from, Order::State to) noexcept;
  void look_at_paths() noexcept;
  uint32_t poll_out_ends(std::span<WireEvent> out) noexcept;
  uint32_t poll_in_ends(std::span<WireEvent> out) noexcept;
  bool in_end_proved(InPath& path) noexcept;
  bool can_go_on(OutPath& path) noexcept;

  // datapath.cc: what leaves
  enum class Step : uint8_t { kEnded, kWaits };
  uint32_t store_run(OutPath& path, std::span<const WriteOp> ops) noexcept;
  void refuse_run(OutPath& path, std::span<const WriteOp> ops, uint64_t counts) noexcept;
  void post_one(OutPath* path, const WriteOp& op) noexcept;
  Step advance(OutPath& path, const WriteOp& op, uint64_t& copied) noexcept;
  Step store(OutPath& path, const WriteOp& op, uint64_t& copied,
             const Neighbour::View& view) noexcept;
  Step order(OutPath& path, const WriteOp& op, uint64_t& given) noexcept;
  Step refused(OutPath& path, const WriteOp& op) noexcept;
  void publish(OutPath& path, const Order& order, const Ordered& note) noexcept;
  bool count_room(OutPath& path) noexcept;
  WireEvent& place_for_end(uint32_t behind) noexcept {
    return done_[(done_head_ + behind) % kQueueDepth];
  }
  void end(OutPath& path, uint32_t cookie, Outcome outcome) noexcept {
    place_for_end(done_count_++) = {
        .code = outcome.code, .remote = outcome.remote, .cookie = cookie, .path = path.id};
    path.last_end = told_ + done_count_;
  }
  void published(OutPath& path) noexcept;
  void wake_published() noexcept;
  void wait_in_line(OutPath& path, const WriteOp& op, uint64_t copied) noexcept;
  void go_on(OutPath& path) noexcept;
  void collect_orders(OutPath& path) noexcept;
  uint32_t poll_done(std::span<WireEvent> out) noexcept;
  bool has_begun() const noexcept;
  uint32_t poll_rest(std::span<WireEvent> out) noexcept;
  uint32_t poll_arrivals(std::span<WireEvent> out) noexcept;
  uint32_t take_both(InPath& path, std::span<WireEvent> out) noexcept;

  // inbound.cc: what arrives
  uint32_t take_counts(InPath& path, std::span<WireEvent> out) noexcept;
  static bool has_count(const InPath& path) noexcept {
    // take_counts() looks properly.
    const uint64_t word =
        path.ring->counts[path.counts % Ring::kCounts].load(std::memory_order_relaxed);
    return word >> 32 == Ring::count_word(path.counts, 0) >> 32;
  }
  static bool has_order(const InPath& path) noexcept {
    // begin_job() looks properly. From outside: any state but an end that is ours to write.
    const uint64_t word =
        path.ring->orders[path.orders % Ring::kOrders].word.load(std::memory_order_relaxed);
    if (word >> Order::kStateBits != path.orders) return false;
    const auto state = static_cast<uint32_t>(word & ((1u << Order::kStateBits) - 1));
    return state == Order::kPublished || state == Order::kTaken || state == Order::kWithdrawn ||
           state == Order::kAbandoned;
  }
  uint32_t take_orders(InPath& path, std::span<WireEvent> out) noexcept;
  struct Job;
  bool begin_job(InPath& path, uint64_t position, Job& job) noexcept;
  void finish_orders(InPath& path, std::span<Job> jobs, std::span<WireEvent> out,
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
  uint32_t first_in_ = 0;         ///< whose turn it is to be first
  bool orders_first_ = false;

  OutPath* published_ = nullptr;  ///< something was, and its target is to be woken if it sleeps
  std::vector<Piece> pieces_;
  uint32_t free_piece_ = 0;
  uint32_t waiting_ = 0;  ///< pieces that wait
  uint32_t ordered_ = 0;  ///< orders that are out
  uint32_t closing_out_ = 0, closing_in_ = 0;
  std::array<WireEvent, kQueueDepth> done_{};  ///< ends, as poll() hands them out
  uint32_t done_head_ = 0, done_count_ = 0;
  uint64_t told_ = 0;  ///< ends that poll() has handed out
  uint64_t budget_ = kTurnBytes;
  bool found_ = false;
  bool copying_ = false;     ///< the next poll() goes on with a copy or a fetch
  uint64_t looked_ = 0;      ///< the network's last look that was acted on
  bool fresh_look_ = false;  ///< this poll acts on one: slower questions may be asked

  std::mutex revoked_mutex_;
  std::vector<Revoked> revoked_;
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
  Front& front() noexcept { return *front_.mapping.as<Front>(); }
  Keys& keys() noexcept { return keys_; }
  const Address& own_address() const noexcept { return address_; }
  int64_t now_ns() const noexcept { return driver_.now_ns(); }
  void wake() const { wake_(); }
  /// Whom an address leads to, with a line that is open or will be. Fails with kBadFormat,
  /// kUnreachable, kExhausted.
  Result<std::shared_ptr<Neighbour>> neighbour(std::span<const std::byte> address);
  Result<std::shared_ptr<Neighbour>> neighbour(const Address& address);
  /// Lines that neither a link nor a path needs any more are hung up.
  void let_go(Neighbour& one) noexcept;
  std::string reach_text() const;  ///< how many neighbours' memory is read in which way
  /// Finds out how the neighbour's memory can be read. The answer may take a while.
  void find_reach(Neighbour& from);
  /// How many there are, and what they lack.
  std::string neighbours_text() const;
  /// Everybody who may have something of ours mapped.
  std::vector<std::shared_ptr<Neighbour>> everybody() const;
  void block_unused(uint64_t block);
  Result<std::pair<uint32_t, uint64_t>> take_permit();  ///< place and value
  void free_permit(uint32_t permit) { free_permits_.push_back(permit); }
  Card* card() noexcept { return cards_->mine(); }
  /// From here on memory shows the end of this process: whoever works with it need not ask the
  /// kernel at every step.
  void show_life() noexcept { (void)cards_->mine(); }  // without a card the kernel is asked
  /// Counts the looks for what no poll shows: deaths, ends of lines. Rails compare.
  uint64_t looks() const noexcept { return looks_; }

 private:
  // One datagram carries one message: twice the default message, with room for its frame.
  static constexpr uint32_t kControlBytesMax = 128u << 10;

  struct Stranger {
    UniqueFd socket;
    Credentials who{};
  };

  ShmNetwork(const OpenContext& context, Cards* cards, SharedMemory front) noexcept;
  Result<void> start(const Options& options);
  bool reach(Neighbour& to);
  void populate_some() noexcept;
  void look_if_due(bool slept);
  void look_around();
  void look_at_events();
  void let_in();
  void greet(int socket);
  void expect_mail(const std::shared_ptr<Neighbour>& from);
  uint32_t next_mail(std::span<std::byte> out);
  uint32_t read_mail(Neighbour& from, std::span<std::byte> out);
  void handle(Neighbour& from, const Frame& frame, std::span<UniqueFd> descriptors);
  void set_timer(int64_t interval_ns) noexcept;

  Driver& driver_;
  const std::function<void()> wake_;
  Cards* const cards_;
  SharedMemory front_;
  Keys keys_;
  Address address_{};
  Greeting greeting_{};
  std::array<std::byte, Beacon::kBytes> beacon_{};
  UniqueFd listener_, events_, timer_;
  bool listening_ = true;  ///< false: not watched until the next look, for want of descriptors
  std::shared_ptr<const UniqueFd> own_memory_;  ///< for those who cannot read it otherwise
  int64_t timer_ns_ = 0;
  std::vector<std::unique_ptr<ShmRail>> rails_;

  std::map<uint64_t, std::shared_ptr<Neighbour>> neighbours_;  ///< by instance
  std::vector<Neighbour*> listed_;                             ///< the same ones, quick to walk
  std::map<int, uint64_t> by_socket_;                          ///< lines in
  std::map<int, Stranger> strangers_;                          ///< connected, and not a word yet
  std::map<uint32_t, std::shared_ptr<Neighbour>> links_;
  uint32_t next_link_ = 1;
  std::vector<uint32_t> free_lines_;
  uint32_t next_line_ = 0;
  std::vector<uint32_t> free_permits_;
  uint32_t next_permit_ = 0;
  uint64_t next_permit_value_ = 1;

  std::vector<std::byte> buffer_;
  std::deque<std::shared_ptr<Neighbour>> mail_;  ///< whose lines have something
  std::vector<uint32_t> lost_;                   ///< links to processes that are gone
  uint32_t calls_ = 0;
  uint32_t calls_unlooked_ = 0;  ///< of pending_work(), since the last look at the clock
  int64_t next_look_ns_ = 0;
  uint64_t looks_ = 0;
};

}  // namespace fabric::shm

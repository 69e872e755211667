#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include <fabric/config.h>
#include <fabric/provider.h>

#include "base/driver.h"
#include "providers/verbs/account.h"
#include "providers/verbs/device.h"
#include "providers/verbs/socket.h"

namespace fabric::verbs {

/// The result of an offloaded job (Driver::offload), for the rail that started it.
struct JobResult {
  enum class Kind : uint8_t {
    kConnected,    ///< connect() has returned: error, remote_gid
    kInError,      ///< the queue pair is in the error state, unless `error` is set
    kDestroyed,    ///< the queue pair is destroyed
    kQpMade,       ///< for the QP pool: queue, qp; null when the call failed
    kFenced,       ///< a memory region is deregistered: cookie
    kPortQueried,  ///< port; null when the query failed
  };
  Kind kind = Kind::kConnected;
  Direction direction = Direction::kOut;
  int error = 0;
  uint32_t path = 0;
  uint32_t cookie = 0;
  std::shared_ptr<CompletionQueue> queue{};
  std::shared_ptr<QueuePair> qp{};
  std::shared_ptr<PortState> port{};
  GidBytes remote_gid{};  ///< of the other end
};

/// Queue of job results. A job may outlive its rail, so besides the queue pair it holds only this
/// object, by shared_ptr.
///
/// Threads: put() from any thread; take() and close() from the rail, under the engine's state lock.
class JobResults {
 public:
  explicit JobResults(std::function<void()> wake) : wake_(std::move(wake)) {}
  void put(JobResult result) noexcept;
  bool empty() const noexcept {
    return !has_results_.load(std::memory_order_acquire);
  }  // pairs with put()
  std::vector<JobResult> take();
  void close() noexcept;  ///< from now on put() drops its argument and wakes no engine

 private:
  std::mutex mutex_;
  std::vector<JobResult> results_;
  std::atomic<bool> has_results_{false};
  std::function<void()> wake_;
};

// A path's id is its slot in the lower 16 bits and the slot's generation above: 31 bits together,
// because a wr_id holds it next to the direction bit.
inline constexpr uint32_t kSlotBits = 16;
inline constexpr uint32_t kGenerations = 1u << 15;
constexpr uint32_t slot_of(uint32_t id) noexcept { return id & ((1u << kSlotBits) - 1); }

/// The wr_id of a receive: the top bit, and the path's id. A send's wr_id has its number in the
/// lower half instead (datapath.cc).
constexpr uint64_t receive_id(uint32_t path) noexcept {
  return uint64_t{1} << 63 | uint64_t{path} << 32;
}

// An lkey of the provider interface: the device's lkey in the lower half, the slot in the table
// of memory regions above it, and in the top bit whether the CPU can read the memory, so that its
// bytes may be sent inline.
inline constexpr uint32_t kMemoryMax = 1u << 16;
inline constexpr uint64_t kReadable = uint64_t{1} << 63;
constexpr uint32_t memory_slot(uint64_t key) noexcept {
  return static_cast<uint32_t>(key >> 32) & (kMemoryMax - 1);
}
constexpr bool is_readable(uint64_t key) noexcept { return (key & kReadable) != 0; }

/// The sender's end of a path. States advance in the order of the enumeration, and never back:
/// kOpened until start_path(), kStarting until the queue pair is connected, kReady while it carries
/// writes, kBreaking while it is drained, kDown until poll() has reported kPathDown.
struct OutPath {
  enum class State : uint8_t { kOpened, kStarting, kReady, kBreaking, kDown };
  uint32_t id = 0;
  State state = State::kOpened;
  bool is_delivering = false;        ///< its id is in VerbsRail::delivering_
  bool connecting = false;           ///< the connect job is running; no other job may use the QP
  bool destroying = false;           ///< the drain was abandoned, the QP is being destroyed
  uint32_t first_failed = 0;         ///< number of the request that failed first
  Errc code = Errc::kRailLost;       ///< completion code of the first_failed
  Remote remote = Remote::kUnknown;  ///< whether the first_failed was delivered
  Remote remote_after = Remote::kUnknown;  ///< whether requests posted after it were
  std::shared_ptr<QueuePair> qp{};
  SendTracker sends{};
  std::unique_ptr<uint32_t[]> cookies{};  ///< of in-flight requests, by number & mask
  uint32_t mask = 0;
  uint32_t owed = 0;            ///< refused writes that poll() has not reported yet
  std::vector<WriteOp> held{};  ///< posted while kStarting; handed to the NIC once connected
  uint32_t psn = 0;             ///< initial PSN
  LocalEnd local{};
  Endpoint remote_end{};
  uint64_t nonce = 0;
  int64_t deadline_ns = kNeverNs;
};

/// The target's end of a path: kReady from accept_path(), also while its queue pair is still being
/// connected; then as OutPath.
struct InPath {
  enum class State : uint8_t { kReady, kBreaking, kDown };
  uint32_t id = 0;
  State state = State::kReady;
  bool connecting = false;  ///< the connect job is running; no other job may use the QP
  bool in_error = false;    ///< the QP has reached the error state
  bool destroying = false;  ///< the drain was abandoned, the QP is being destroyed
  std::shared_ptr<QueuePair> qp{};
  ReceiveTracker receives{};
  uint64_t taken = 0;                     ///< immediates delivered to the engine
  std::pair<uint64_t, uint64_t> hello{};  ///< instance and nonce, the key in accepted_
  int64_t deadline_ns = kNeverNs;
};

/// Slot table with generations: find() of a stale id returns null. add() searches linearly, because
/// a rail has few paths and opening one is not on the data path.
template <class Path>
class PathTable {
 public:
  Path* add() {
    uint32_t slot = 0;
    while (slot < paths_.size() && paths_[slot] != nullptr) ++slot;
    if (slot >= 1u << kSlotBits) return nullptr;
    if (slot == paths_.size()) {
      paths_.emplace_back();
      generations_.push_back(0);
    }
    generations_[slot] = generations_[slot] % (kGenerations - 1) + 1;
    paths_[slot] = std::make_unique<Path>();
    paths_[slot]->id = generations_[slot] << kSlotBits | slot;
    return paths_[slot].get();
  }
  Path* find(uint32_t id) const noexcept {
    const uint32_t slot = slot_of(id);
    Path* path = slot < paths_.size() ? paths_[slot].get() : nullptr;
    return path != nullptr && path->id == id ? path : nullptr;
  }
  void erase(uint32_t id) noexcept {
    if (find(id) != nullptr) paths_[slot_of(id)].reset();
  }
  template <class F>
  void each(F&& f) {
    for (size_t i = 0; i < paths_.size(); ++i) {
      if (paths_[i] != nullptr) f(*paths_[i]);
    }
  }

 private:
  std::vector<std::unique_ptr<Path>> paths_;
  std::vector<uint32_t> generations_;
};

/// One port of one NIC: its completion queues, the pools of ready queue pairs, the table of memory
/// regions, and both ends of the paths that use this port. README.md describes the stages of a
/// path; design 0013 the drain that exact failover depends on.
///
/// Owner: VerbsNetwork. Offloaded jobs may outlive it: they hold only shared objects (device, queue
/// pairs, `job_results_`), never the rail.
/// Threads: everything runs under the engine's state lock, except register_memory(),
/// deregister_memory() and import_rkey(), which any thread may call. No call here enters the kernel
/// to change a queue pair: that is done by offloaded jobs, whose results poll() takes from
/// `job_results_`. (The one exception is take_qp() when its pool is empty.)
/// Invariant: every request that was posted, or that post() took and refused, is reported by poll()
/// exactly once, and before the kPathDown of its path.
class VerbsRail final : public Rail {
 public:
  VerbsRail(std::shared_ptr<CompletionQueue> queue, const OpenContext& context, uint64_t instance,
            uint32_t index);
  ~VerbsRail() override;
  VerbsRail(const VerbsRail&) = delete;
  VerbsRail& operator=(const VerbsRail&) = delete;

  const Caps& caps() const noexcept override { return caps_; }
  std::string_view device() const noexcept override { return device_->name(); }
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

  const Device& port() const noexcept { return *device_; }
  /// Requests completion events before the worker sleeps. False: there is work to do now.
  bool arm() noexcept;
  bool up() const noexcept { return up_; }
  /// A link was opened, so paths to its peer will follow (comes), or it was closed: the QP pools
  /// hold one more, or one less.
  void expect_peer(bool comes);
  /// Some path has a deadline that only poll() checks.
  bool is_timed() const noexcept { return timed_paths_ != 0; }
  bool is_dead() const noexcept { return fatal_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kChain = 32;  ///< work requests per doorbell
  /// Selective signalling: every 16th request of a chain, so that send queue slots are freed while
  /// a long chain is in flight, and the last, whose completion covers those before it.
  static constexpr uint32_t kSignalEvery = 16;
  static constexpr uint32_t kPollBatch = 32;           ///< completions per ibv_poll_cq()
  static constexpr uint32_t kPollsPerEventCheck = 64;  ///< polls between reads of async events
  /// Limit of connecting: the kernel searches for an unresolved neighbour for one second, and needs
  /// a millisecond or two otherwise. kConnectEachNs is added for every connect queued before.
  static constexpr int64_t kConnectNs = 1'500'000'000, kConnectEachNs = 5'000'000;
  /// Time between the decision to abandon a drain that cannot finish and destroying its QP. Polls
  /// in between still take completions of writes whose sender already knows they were delivered.
  static constexpr int64_t kLastPollsNs = 50'000'000;
  /// Marks, in `events_` only, a kCompletion event of a write that post() refused: such an event is
  /// counted in OutPath::owed until report_events() hands it to the engine. Stored in
  /// RailEvent::inbound, which a kCompletion event does not use; it is cleared to 0 on the way out.
  static constexpr uint8_t kOwed = 2;

  struct Accepted {
    uint32_t path = 0;
    std::vector<std::byte> answer{};
  };

  /// Queue pairs in INIT, made ahead by jobs: ibv_create_qp() is too slow for a turn.
  struct QpPool {
    static constexpr size_t kSize = 2;
    static constexpr size_t kExpectedMax = 64;
    std::vector<std::shared_ptr<QueuePair>> ready{};
    uint32_t pending = 0;  ///< jobs that are making one
    size_t expected = 0;   ///< extra ones, for links whose paths are not open yet
  };

  /// The rail's three offload queues; jobs of one queue run one after another. Connecting to an
  /// address that does not resolve blocks for a second, so it must delay neither teardowns nor
  /// connects to addresses that resolved before.
  enum class OffloadQueue : uint8_t { kGeneral, kConnect, kConnectUnresolved };

  // connect.cc
  Result<std::shared_ptr<QueuePair>> take_qp(Direction direction);
  std::shared_ptr<CompletionQueue> find_queue(uint32_t cqes) const;
  void fill_pool(Direction direction);
  void qp_made(const JobResult& result);
  void drop_overrun_qps();
  Endpoint local_endpoint(const QueuePair& qp, uint64_t nonce, uint32_t psn) const;
  void connect_later(const std::shared_ptr<QueuePair>& qp, Direction direction, uint32_t path,
                     const LocalEnd& local, const Endpoint& remote_end, uint32_t psn);
  void connected(OutPath& path, int error);
  void connected(InPath& path, int error);
  void note_resolution(const GidBytes& remote, int error);

  void offload(std::function<void()> job, OffloadQueue queue = OffloadQueue::kGeneral) {
    static_assert(Driver::kOffloadQueues > 3 * kRailsMax);
    driver_.offload(std::move(job), 1 + 3 * index_ + static_cast<uint32_t>(queue));
  }

  // teardown.cc
  void tear_down(OutPath& path) noexcept;
  void tear_down(InPath& path) noexcept;
  void take_job_results() noexcept;
  void in_error_state(OutPath& path, int error) noexcept;
  void in_error_state(InPath& path, int error) noexcept;
  void check_drain(InPath& path) noexcept;
  void move_to_error_later(const std::shared_ptr<QueuePair>& qp, Direction direction,
                           uint32_t path);
  void destroy_later(const std::shared_ptr<QueuePair>& qp, Direction direction, uint32_t path);
  void check_deadlines() noexcept;
  void finish(OutPath& path, bool proved) noexcept;
  void finish(InPath& path, bool proved) noexcept;
  void forget(const RailEvent& down);
  void release(std::shared_ptr<QueuePair>& qp, Direction direction) noexcept;

  // events.cc
  void poll_async_events() noexcept;
  void on_event(const ibv_async_event& event) noexcept;
  void rail_state(bool up) noexcept;
  void query_port_later();
  void port_queried(const JobResult& result);
  void overrun(const ibv_cq* cq) noexcept;
  void tear_down_all(const ibv_cq* cq) noexcept;
  void qp_failed(const ibv_qp* qp) noexcept;

  // datapath.cc
  uint32_t post_chain(OutPath& path, std::span<const WriteOp> ops) noexcept;
  void refuse(OutPath* path, std::span<const WriteOp> ops, Errc code) noexcept;
  bool refill(InPath& path) noexcept;
  bool post_marker(OutPath& path) noexcept;
  uint32_t report_events(std::span<RailEvent> out) noexcept;
  uint32_t report_deliveries(std::span<RailEvent> out) noexcept;
  uint32_t take(std::span<const ibv_wc> completions, std::span<RailEvent> out) noexcept;
  void receive_failed(InPath& path) noexcept;
  void send_failed(OutPath& path, const ibv_wc& completion) noexcept;
  uint32_t poll_queues(std::span<RailEvent> out) noexcept;

  const std::shared_ptr<Device> device_;
  Driver& driver_;
  const uint64_t instance_;
  const uint32_t index_;
  const std::shared_ptr<JobResults> job_results_;
  Caps caps_;
  std::vector<std::shared_ptr<CompletionQueue>> queues_;
  std::array<QpPool, 2> qp_pools_;  ///< by Direction
  std::set<GidBytes> unresolved_;   ///< GIDs to which the last connect failed
  PathTable<OutPath> out_;
  PathTable<InPath> in_;
  /// Queue pairs of outbound paths that went down while connecting; released when that job returns.
  std::map<uint32_t, std::shared_ptr<QueuePair>> orphans_;
  std::map<std::pair<uint64_t, uint64_t>, Accepted> accepted_;  ///< by instance and nonce
  std::deque<std::pair<uint64_t, uint64_t>> closed_hellos_;     ///< keys in accepted_, oldest first
  std::vector<uint32_t> delivering_;  ///< outbound paths with deliveries to report
  std::deque<RailEvent> events_;      ///< to report: everything but deliveries and immediates
  std::vector<ibv_wc> polled_early_;  ///< completions that arm() found
  uint32_t timed_paths_ = 0;          ///< paths in kStarting or kBreaking
  uint64_t drains_abandoned_ = 0;     ///< for facts()
  uint32_t polls_ = 0;
  bool up_ = true;
  std::atomic<bool> fatal_{false};   ///< also read by register_memory(); relaxed, orders nothing
  bool check_events_ = true;         ///< read async events in the next poll()
  bool port_query_pending_ = false;  ///< a job queries the port
  bool port_query_again_ = false;    ///< and its answer may be stale: query once more

  // Work request templates: the fields that never change are filled in at construction.
  std::array<ibv_send_wr, kChain> sends_{};
  std::array<ibv_sge, kChain> sources_{};
  std::vector<ibv_recv_wr> receives_;

  // Memory regions. An entry is written, by any thread, before its lkey is returned; the data path
  // reads `shifts_` without the mutex.
  std::mutex memory_mutex_;
  std::vector<ibv_mr*> memory_;
  ibv_mr dead_device_mr_{};  ///< placeholder for memory registered after a fatal device error
  std::vector<uint32_t> memory_free_;
  const std::unique_ptr<uint64_t[]> shifts_;  ///< virtual address minus IOVA, by memory slot
};

/// The open network: its rails, and the UDP sockets for control datagrams.
///
/// Threads: under the engine's state lock.
class VerbsNetwork final : public OpenNetwork {
 public:
  static Result<std::unique_ptr<OpenNetwork>> open(const Network& spec, const OpenContext& context);

  uint32_t rail_count() const noexcept override { return static_cast<uint32_t>(rails_.size()); }
  Rail& rail(uint32_t index) noexcept override { return *rails_[index]; }
  std::vector<std::byte> address() const override { return encode(address_); }
  Result<uint32_t> open_link(std::span<const std::byte> address) override;
  void close_link(uint32_t link) noexcept override;
  uint32_t control_bytes_max() const noexcept override { return kControlBytesMax; }
  bool send(uint32_t link, std::span<const std::byte> datagram) noexcept override;
  uint32_t receive(std::span<std::byte> out) noexcept override;
  bool arm() noexcept override;
  int wait_fd() const noexcept override { return wait_.get(); }

 private:
  static constexpr uint32_t kTurnsPerRead = 4;  ///< turns between reads of the sockets
  static constexpr uint32_t kNoRail = UINT32_MAX;

  VerbsNetwork(ControlSockets sockets, Address address)
      : sockets_(std::move(sockets)), address_(std::move(address)) {}
  void map_sockets_to_rails();
  Result<void> watch();
  void set_timer(bool on) noexcept;
  void forget(const VerbsRail& rail) noexcept;

  ControlSockets sockets_;
  const Address address_;
  std::vector<std::unique_ptr<VerbsRail>> rails_;
  std::vector<uint32_t> rail_of_socket_;  ///< kNoRail: bound to an address that is no rail's
  std::vector<ControlPeer> control_peers_;
  UniqueFd wait_, timer_;
  bool timer_on_ = false;
  uint32_t turns_ = 0;
  bool read_sockets_ = true;  ///< in the next receive(), whatever turn it is
};

}  // namespace fabric::verbs

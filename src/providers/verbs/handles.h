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

#include <fabric/provider.h>

#include "base/driver.h"
#include "providers/verbs/account.h"
#include "providers/verbs/device.h"
#include "providers/verbs/socket.h"

namespace fabric::verbs {

/// What a job outside the turn has to say to the rail.
struct JobResult {
  enum class Kind : uint8_t {
    kConnected,  ///< or not: error
    kInError,    ///< the queue pair is in the error state
    kDestroyed,
    kQpMade,   ///< a queue pair in stock, or none: queue, qp
    kFenced,  ///< a registration is gone: cookie
    kPortQueried,  ///< at the port, or not: port
  };
  Kind kind = Kind::kConnected;
  Direction direction = Direction::kOut;
  int error = 0;
  uint32_t path = 0;
  uint32_t cookie = 0;
  std::shared_ptr<CompletionQueue> queue{};
  std::shared_ptr<QueuePair> qp{};
  std::shared_ptr<PortState> port{};
  GidBytes far{};  ///< of a connection
};

/// Jobs may be at it when the rail is gone, so they share this with it and nothing else.
class JobResults {
 public:
  explicit JobResults(std::function<void()> wake) : wake_(std::move(wake)) {}
  void put(JobResult result) noexcept;
  bool empty() const noexcept {
    return !has_results_.load(std::memory_order_acquire);
  }  // pairs with put()
  std::vector<JobResult> take();
  void close() noexcept;  ///< nobody is woken from here on

 private:
  std::mutex mutex_;
  std::vector<JobResult> results_;
  std::atomic<bool> has_results_{false};
  std::function<void()> wake_;
};

/// The lower half of a path's id is its place; the upper one tells its lives apart. 31 bits,
/// because a completion carries it beside the direction.
inline constexpr uint32_t kSlotBits = 16;
inline constexpr uint32_t kGenerations = 1u << 15;
constexpr uint32_t slot_of(uint32_t id) noexcept { return id & ((1u << kSlotBits) - 1); }

/// The name of a request in its completion: path and number; the top bit is for receives, which
/// need no number.
constexpr uint64_t receive_id(uint32_t path) noexcept {
  return uint64_t{1} << 63 | uint64_t{path} << 32;
}

// A local key: the device's in the lower half, above it the place in the table of registrations,
// and on top whether the CPU can read the memory, so that bytes may travel inside a request.
inline constexpr uint32_t kMemoryMax = 1u << 16;
inline constexpr uint64_t kReadable = uint64_t{1} << 63;
constexpr uint32_t memory_slot(uint64_t key) noexcept {
  return static_cast<uint32_t>(key >> 32) & (kMemoryMax - 1);
}
constexpr bool is_readable(uint64_t key) noexcept { return (key & kReadable) != 0; }

/// The sender's end.
struct OutPath {
  enum class State : uint8_t { kOpened, kStarting, kReady, kBreaking, kDown };
  uint32_t id = 0;
  State state = State::kOpened;
  bool is_delivering = false;            ///< it stands in VerbsRail::delivering_
  bool connecting = false;      ///< the job is under way; whatever comes next waits for it
  bool destroying = false;      ///< the drain was given up
  uint32_t culprit = 0;         ///< the request whose fault it was, if `code` says so
  Errc code = Errc::kRailLost;  ///< of that one
  Remote remote = Remote::kUnknown;
  Remote remote_after = Remote::kUnknown;  ///< and of what is behind it
  std::shared_ptr<QueuePair> qp{};
  SendAccount sends{};
  std::unique_ptr<uint32_t[]> cookies{};  ///< by number
  uint32_t mask = 0;
  uint32_t owed = 0;            ///< refused pieces whose end is not polled yet
  std::vector<WriteOp> held{};  ///< posted before the connection stood
  uint32_t packet = 0;
  Near near{};
  Endpoint far{};
  uint64_t nonce = 0;
  int64_t deadline_ns = kNeverNs;
};

/// The target's end.
struct InPath {
  enum class State : uint8_t { kReady, kBreaking, kDown };
  uint32_t id = 0;
  State state = State::kReady;
  bool connecting = false;  ///< the job is under way; whatever comes next waits for it
  bool in_error = false;    ///< the job is back
  bool destroying = false;
  std::shared_ptr<QueuePair> qp{};
  ReceiveAccount receives{};
  uint64_t taken = 0;  ///< immediates
  std::pair<uint64_t, uint64_t> hello{};
  int64_t deadline_ns = kNeverNs;
};

/// Places with lives. Never many, and never in the way of a write.
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

/// One port: paths and their pieces. README.md tells the life of a path.
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

  const Device& port() const noexcept { return *device_; }
  /// Before a sleep: false when there is something to do at once.
  bool arm() noexcept;
  bool up() const noexcept { return up_; }
  /// Paths to one more peer will be opened soon; or not, if they have not been by now.
  void expect_peer(bool comes);
  /// Something has a limit in time, and needs a look at it.
  bool is_timed() const noexcept { return timed_paths_ != 0; }
  bool is_dead() const noexcept { return fatal_.load(std::memory_order_relaxed); }

 private:
  static constexpr uint32_t kChain = 32;  ///< requests for one doorbell
  /// Of a chain, those that ask for a completion: every so many, so that places come free while a
  /// long one is under way, and the last, or nobody would hear of those before it.
  static constexpr uint32_t kSignalEvery = 16;
  static constexpr uint32_t kPollBatch = 32;     ///< completions of one look
  static constexpr uint32_t kPollsPerEventCheck = 64;  ///< polls between looks at the device's events
  /// Until a connection stands. The kernel looks for one neighbour for a second; for those who are
  /// there a card takes it a millisecond or two, and many can be in line before this one.
  static constexpr int64_t kConnectNs = 1'500'000'000, kConnectEachNs = 5'000'000;
  /// Before a drain is given up that cannot end: what has completed by then is still taken. Its
  /// sender has been told that it arrived.
  static constexpr int64_t kLastPollsNs = 50'000'000;
  static constexpr uint8_t kOwed = 2;  ///< WireEvent::inbound of a refused piece, before it is told

  struct Accepted {
    uint32_t path = 0;
    std::vector<std::byte> answer{};
  };

  /// Queue pairs that stand ready: to make one takes the kernel a while.
  struct QpPool {
    static constexpr size_t kSize = 2;
    static constexpr size_t kExpectedMax = 64;
    std::vector<std::shared_ptr<QueuePair>> ready{};
    uint32_t pending = 0;
    size_t expected = 0;  ///< beyond the usual: peers whose paths are not open yet
  };

  /// Calls into the kernel that wait for each other. On a rail that loses everything it looks for a
  /// neighbour's address for a second, and a path that has to end, or one to another neighbour,
  /// must not wait for that.
  enum class OffloadQueue : uint8_t { kGeneral, kConnect, kConnectUnresolved };

  // connect.cc
  Result<std::shared_ptr<QueuePair>> take_qp(Direction direction);
  std::shared_ptr<CompletionQueue> find_queue(uint32_t cqes) const;
  void fill_pool(Direction direction);
  void qp_made(const JobResult& result);
  void drop_overrun_qps();
  Endpoint local_endpoint(const QueuePair& qp, uint64_t nonce, uint32_t packet) const;
  void connect_later(const std::shared_ptr<QueuePair>& qp, Direction direction, uint32_t path,
                     const Near& near, const Endpoint& far, uint32_t packet);
  void connected(OutPath& path, int error);
  void connected(InPath& path, int error);
  void note_resolution(const GidBytes& far, int error);

  void offload(std::function<void()> job, OffloadQueue queue = OffloadQueue::kGeneral) {
    static_assert(Driver::kOffloadQueues > 3 * kRailsMax);
    driver_.offload(std::move(job), 1 + 3 * index_ + static_cast<uint32_t>(queue));
  }

  // breaks.cc
  void tear_down(OutPath& path) noexcept;
  void tear_down(InPath& path) noexcept;
  void take_job_results() noexcept;
  void in_error_state(OutPath& path, int error) noexcept;
  void in_error_state(InPath& path, int error) noexcept;
  void check_drain(InPath& path) noexcept;
  void move_to_error_later(const std::shared_ptr<QueuePair>& qp, Direction direction, uint32_t path);
  void destroy_later(const std::shared_ptr<QueuePair>& qp, Direction direction, uint32_t path);
  void check_deadlines() noexcept;
  void finish(OutPath& path, bool proved) noexcept;
  void finish(InPath& path, bool proved) noexcept;
  void forget(const WireEvent& down);
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
  uint32_t report_events(std::span<WireEvent> out) noexcept;
  uint32_t report_deliveries(std::span<WireEvent> out) noexcept;
  uint32_t take(std::span<const ibv_wc> completions, std::span<WireEvent> out) noexcept;
  void receive_failed(InPath& path) noexcept;
  void send_failed(OutPath& path, const ibv_wc& completion) noexcept;
  uint32_t poll_queues(std::span<WireEvent> out) noexcept;

  const std::shared_ptr<Device> device_;
  Driver& driver_;
  const uint64_t instance_;
  const uint32_t index_;
  const std::shared_ptr<JobResults> job_results_;
  Caps caps_;
  std::vector<std::shared_ptr<CompletionQueue>> queues_;
  std::array<QpPool, 2> qp_pools_;  ///< by direction
  std::set<GidBytes> unresolved_;  ///< to whom the last attempt to connect failed
  PathTable<OutPath> out_;
  PathTable<InPath> in_;
  /// Queue pairs of outbound ends that were over before they were connected: the kernel is at it.
  std::map<uint32_t, std::shared_ptr<QueuePair>> orphans_;
  std::map<std::pair<uint64_t, uint64_t>, Accepted> accepted_;  ///< by instance and nonce
  std::deque<std::pair<uint64_t, uint64_t>> closed_hellos_;
  std::vector<uint32_t> delivering_;    ///< outbound ends with deliveries that are not told yet
  std::deque<WireEvent> events_;  ///< all that is rare
  std::vector<ibv_wc> polled_early_;     ///< found while arming
  uint32_t timed_paths_ = 0;            ///< paths that are being started or drained
  uint64_t drains_abandoned_ = 0;         ///< drains
  uint32_t polls_ = 0;
  bool up_ = true;
  std::atomic<bool> fatal_{false};  ///< read by whoever registers; nothing is ordered by it
  bool check_events_ = true;                ///< at the device's events, before anything else
  bool port_query_pending_ = false;         ///< a job is at it
  bool port_query_again_ = false;       ///< and has to go once more

  // Requests with everything filled in that is the same for all of them.
  std::array<ibv_send_wr, kChain> sends_{};
  std::array<ibv_sge, kChain> sources_{};
  std::vector<ibv_recv_wr> receives_;

  // Registered memory. The table is written by any thread before its key is given out.
  std::mutex memory_mutex_;
  std::vector<ibv_mr*> memory_;
  ibv_mr dead_device_mr_{};  ///< stands there for what was to be registered when the device was gone
  std::vector<uint32_t> memory_free_;
  const std::unique_ptr<uint64_t[]> shifts_;  ///< from an address here to one that the device knows
};

/// Its rails, and the socket for control datagrams.
class VerbsNetwork final : public OpenNetwork {
 public:
  static Result<std::unique_ptr<OpenNetwork>> open(const Options& options, uint32_t rails_max,
                                                   const OpenContext& context);

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
  static constexpr uint32_t kTurnsPerRead = 4;  ///< turns between looks at the sockets
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
  std::vector<uint32_t> rail_of_socket_;  ///< or kNoRail: a place of the host's own
  std::vector<Link> links_;
  UniqueFd wait_, timer_;
  bool timer_on_ = false;
  uint32_t turns_ = 0;
  bool read_sockets_ = true;
};

}  // namespace fabric::verbs

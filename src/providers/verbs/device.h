#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <fabric/memory.h>
#include <fabric/result.h>
#include <fabric/verbs.h>

#include "providers/verbs/gids.h"
#include "providers/verbs/library.h"
#include "providers/verbs/port_name.h"
#include "providers/verbs/wire.h"

// Owners of the C objects of libibverbs. Each holds a reference to the object it was made from, so
// they are destroyed in the right order, whether a path or an offloaded job releases them last.

namespace fabric::verbs {

/// The current attributes of a port: cables, switches and administrators change them.
struct PortState {
  ibv_port_attr attributes{};
  Gid gid{};                ///< in use
  std::vector<Gid> gids{};  ///< all, the best first
};

/// The local port's part of a connection's attributes. A path keeps the values of its hello, even
/// if the port changes before it is connected: the other end uses them.
struct LocalEnd {
  uint32_t gid_index = 0;
  uint8_t mtu = 0;  ///< as on the wire: 1..5
};

/// One port of one device, opened: its context, protection domains and completion channel.
///
/// Threads: query_port_state() from any thread; everything that reads or sets the port's state
/// under the engine's state lock.
class Device {
 public:
  /// Fails with kUnsupported, kPermission, kExhausted, kInvalidArgument (options).
  static Result<std::shared_ptr<Device>> open(ibv_device* device, uint8_t port,
                                              const Options& options);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  ibv_context* context() const noexcept { return context_; }
  ibv_pd* memory_domain() const noexcept { return pd_; }
  /// The protection domain of queue pairs. With a thread domain the driver takes no locks: all
  /// posting and polling happens under the engine's state lock anyway.
  ibv_pd* path_domain() const noexcept { return parent_ != nullptr ? parent_ : pd_; }
  ibv_comp_channel* channel() const noexcept { return channel_; }
  const std::string& name() const noexcept { return name_; }
  uint8_t port() const noexcept { return port_; }
  const Options& options() const noexcept { return options_; }
  const ibv_device_attr& limits() const noexcept { return limits_; }
  bool takes_dmabuf() const noexcept { return dmabuf_; }
  uint32_t memory_kinds() const noexcept;

  /// Queries the kernel, which may query the NIC: from any thread, but not in a turn. `now`: the
  /// GID in use, or null.
  Result<PortState> query_port_state(const Gid* now) const;
  // The rest under the engine's state lock.
  void set_state(PortState state) { state_ = std::move(state); }
  const PortState& state() const noexcept { return state_; }
  const Gid& gid() const noexcept { return state_.gid; }
  bool active() const noexcept { return state_.attributes.state == IBV_PORT_ACTIVE; }
  uint8_t mtu() const noexcept;  ///< as on the wire: 1..5
  LocalEnd local_end() const noexcept { return {gid().index, mtu()}; }
  std::vector<std::pair<std::string, std::string>> facts() const;
  /// Why Network::near picked the device, as a fact. Before the first turn.
  void set_nearness(std::string text) { nearness_ = std::move(text); }

 private:
  Device(ibv_context* context, std::string name, uint8_t port, const Options& options);
  Result<void> query();
  Result<void> make_domains();

  ibv_context* const context_;
  const std::string name_;
  const uint8_t port_;
  const Options options_;
  ibv_pd* pd_ = nullptr;
  ibv_td* td_ = nullptr;
  ibv_pd* parent_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_device_attr limits_{};
  PortState state_{};
  bool dmabuf_ = false;
  std::string nearness_{};
};

/// The names of all RDMA devices, in the order of libibverbs. Fails with kUnsupported.
Result<std::vector<std::string>> device_names();

/// Which ports to open.
struct PortSelection {
  std::span<const PortName> ports{};  ///< these; empty: every active one
  std::span<const std::string>
      devices{};  ///< then only of these devices, in this order; empty: all
  uint32_t most = 0;
};
Result<std::vector<std::shared_ptr<Device>>> open_devices(const PortSelection& which,
                                                          const Options& options);

/// A completion queue shared by many queue pairs. Each reserves CQEs for everything that it can
/// have outstanding, so the queue never overruns.
struct CompletionQueue {
  static Result<std::shared_ptr<CompletionQueue>> make(std::shared_ptr<Device> device,
                                                       uint32_t least);
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  const std::shared_ptr<Device> device;
  ibv_cq* cq = nullptr;
  uint32_t size = 0;
  uint32_t reserved = 0;  ///< CQEs reserved by queue pairs
  bool overrun = false;   ///< completions were lost: drains on it can no longer be proved
  bool armed = false;     ///< a completion event was requested and has not come

 private:
  explicit CompletionQueue(std::shared_ptr<Device> d) noexcept : device(std::move(d)) {}
};

enum class Direction : uint8_t { kOut, kIn };

/// One end of a connection. Only these calls change the queue pair's state; they may block in the
/// kernel, so they run in offloaded jobs, one job at a time for a queue pair.
class QueuePair {
 public:
  /// In the state INIT; the caller has reserved its CQEs on `queue`.
  static Result<std::shared_ptr<QueuePair>> make(std::shared_ptr<CompletionQueue> queue,
                                                 Direction direction);
  ~QueuePair() { destroy(); }
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  /// Moves to RTR, and an outbound end on to RTS with the initial PSN `psn`. Returns an errno.
  /// Blocks for a second when the kernel cannot resolve the neighbour's address.
  int connect(const LocalEnd& local, const Endpoint& remote_end, uint32_t psn) noexcept;
  /// From any thread: a connect() that has not begun returns ECANCELED.
  void abandon() noexcept { abandoned_.store(true, std::memory_order_relaxed); }
  int to_error() noexcept;
  void destroy() noexcept;  ///< idempotent

  ibv_qp* get() const noexcept { return qp_; }
  uint32_t number() const noexcept { return number_; }
  uint32_t inline_bytes() const noexcept { return inline_bytes_; }
  const std::shared_ptr<CompletionQueue>& queue() const noexcept { return queue_; }

  /// CQEs to reserve for one end.
  static uint32_t cqes(Direction direction, const Options& options) noexcept {
    return (direction == Direction::kOut ? options.send_depth : options.receive_depth) + kMarkers;
  }

 private:
  // One request above the depth: the marker of a drain.
  static constexpr uint32_t kMarkers = 1;

  QueuePair(std::shared_ptr<CompletionQueue> queue, Direction direction) noexcept
      : queue_(std::move(queue)), direction_(direction) {}
  int to_init() noexcept;
  int to_receive(const LocalEnd& local, const Endpoint& remote_end) noexcept;
  int to_send(uint32_t psn) noexcept;

  const std::shared_ptr<CompletionQueue> queue_;
  const Direction direction_;
  ibv_qp* qp_ = nullptr;
  uint32_t number_ = 0;
  uint32_t inline_bytes_ = 0;
  std::atomic<bool> abandoned_{false};  ///< relaxed: orders nothing
};

}  // namespace fabric::verbs

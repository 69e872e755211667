#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <fabric/memory.h>
#include <fabric/result.h>

#include "providers/verbs/gids.h"
#include "providers/verbs/library.h"
#include "providers/verbs/port_name.h"
#include "providers/verbs/wire.h"

// The C objects of libibverbs with owners. Each holds what it was made from, so whoever lets go
// last, a path or a job that is still in the kernel, takes them down in the right order.

namespace fabric::verbs {

/// What a port is at the moment: cables, switches and administrators change it.
struct PortState {
  ibv_port_attr attributes{};
  Gid gid{};                ///< the one in use
  std::vector<Gid> gids{};  ///< the best first
};

/// What a connection has to know of its own port. Kept from the hello on: the far side has been
/// told of this one.
struct Near {
  uint32_t gid_index = 0;
  uint8_t mtu = 0;  ///< as on the wire: 1..5
};

/// One port of one device, opened.
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
  /// Of queue pairs. With a thread domain the driver takes no locks: everything on a queue pair
  /// happens under the engine's lock anyway.
  ibv_pd* path_domain() const noexcept { return parent_ != nullptr ? parent_ : pd_; }
  ibv_comp_channel* channel() const noexcept { return channel_; }
  const std::string& name() const noexcept { return name_; }
  uint8_t port() const noexcept { return port_; }
  const Options& options() const noexcept { return options_; }
  const ibv_device_attr& limits() const noexcept { return limits_; }
  bool takes_dmabuf() const noexcept { return dmabuf_; }
  uint32_t memory_kinds() const noexcept;

  /// Asks the kernel, which asks the card: from any thread, not in a turn. `now`: the GID in use,
  /// if there is one.
  Result<PortState> query_port_state(const Gid* now) const;
  /// The rest under the engine's lock.
  void set_state(PortState state) { state_ = std::move(state); }
  const PortState& state() const noexcept { return state_; }
  const Gid& gid() const noexcept { return state_.gid; }
  bool active() const noexcept { return state_.attributes.state == IBV_PORT_ACTIVE; }
  uint8_t mtu() const noexcept;  ///< as on the wire: 1..5
  Near near() const noexcept { return {gid().index, mtu()}; }
  std::vector<std::pair<std::string, std::string>> facts() const;

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
};

/// The ports that the options name, or all that are active.
Result<std::vector<std::shared_ptr<Device>>> open_devices(const Options& options, uint32_t most);

/// Completions of many queue pairs. A place is set aside for everything that they can have
/// outstanding, so it never overruns.
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
  bool overrun = false;  ///< completions were lost: nothing on it can be proved any more
  bool armed = false;

 private:
  explicit CompletionQueue(std::shared_ptr<Device> d) noexcept : device(std::move(d)) {}
};

enum class Direction : uint8_t { kOut, kIn };

/// One end of a connection. States change by its calls only, and those may block in the kernel.
class QueuePair {
 public:
  /// In the state INIT, on places of `queue` that the caller has set aside.
  static Result<std::shared_ptr<QueuePair>> make(std::shared_ptr<CompletionQueue> queue,
                                                 Direction direction);
  ~QueuePair() { destroy(); }
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  /// Ready to receive from `far`; an end that sends is ready for that too. The first packet of
  /// this end has the number `packet`. Returns an errno. Takes a second where the kernel finds no
  /// neighbour of that address.
  int connect(const Near& near, const Endpoint& far, uint32_t packet) noexcept;
  /// From any thread: a connect() that has not begun has nothing to do any more.
  void abandon() noexcept { abandoned_.store(true, std::memory_order_relaxed); }
  int to_error() noexcept;
  void destroy() noexcept;  ///< once is enough, more is harmless

  ibv_qp* get() const noexcept { return qp_; }
  uint32_t number() const noexcept { return number_; }
  uint32_t inline_bytes() const noexcept { return inline_bytes_; }
  const std::shared_ptr<CompletionQueue>& queue() const noexcept { return queue_; }

  /// What has to be set aside for one end.
  static uint32_t cqes(Direction direction, const Options& options) noexcept {
    return (direction == Direction::kOut ? options.send_depth : options.receive_depth) + kMarkers;
  }

 private:
  // One request more than the depth, for the marker of a drain.
  static constexpr uint32_t kMarkers = 1;

  QueuePair(std::shared_ptr<CompletionQueue> queue, Direction direction) noexcept
      : queue_(std::move(queue)), direction_(direction) {}
  int to_init() noexcept;
  int to_receive(const Near& near, const Endpoint& far) noexcept;
  int to_send(uint32_t packet) noexcept;

  const std::shared_ptr<CompletionQueue> queue_;
  const Direction direction_;
  ibv_qp* qp_ = nullptr;
  uint32_t number_ = 0;
  uint32_t inline_bytes_ = 0;
  std::atomic<bool> abandoned_{false};  ///< nothing is ordered by it
};

}  // namespace fabric::verbs

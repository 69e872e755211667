#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fabric/config.h>
#include <fabric/counter.h>
#include <fabric/export.h>
#include <fabric/memory.h>
#include <fabric/notify.h>
#include <fabric/peer.h>
#include <fabric/stats.h>
#include <fabric/transfer.h>
#include <fabric/watcher.h>

namespace fabric {

class Driver;
namespace core {
class EngineCore;
struct SubscriptionState;
}  // namespace core
namespace sim {
class World;
}

/// Time, wake-ups and threads. The library has three: threads (the default), InlineRuntime,
/// sim::World. Only the library implements it.
class FABRIC_EXPORT Runtime {
 public:
  virtual ~Runtime() = default;

 private:
  friend class Engine;
  virtual Driver& driver() noexcept = 0;
};

/// Several inline engines in one thread: a wait on any of them drives all of them.
///
/// Lifetime: outlives its engines, which hold it.
/// Threads: one thread at a time.
class FABRIC_EXPORT InlineRuntime final : public Runtime {
 public:
  InlineRuntime();
  ~InlineRuntime() override;
  uint32_t turn() noexcept;  ///< one bounded turn of every engine; returns how much was done

 private:
  Driver& driver() noexcept override;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Ends with its destructor: no event is delivered after it returns (unless it is destroyed inside
/// its own callback, which then still finishes).
///
/// Threads: destroy it from any thread.
class FABRIC_EXPORT Subscription {
 public:
  Subscription() = default;
  Subscription(Subscription&&) noexcept;
  Subscription& operator=(Subscription&&) noexcept;
  ~Subscription();

 private:
  friend class Engine;
  explicit Subscription(std::shared_ptr<core::SubscriptionState> state) noexcept;
  std::shared_ptr<core::SubscriptionState> state_;
};

/// What arrives from Engine::accept(): everything needed to write to the other side once.
struct Offer {
  PeerId peer{};
  RemoteRegion region{};
  CounterKey key{};
};

/// One-sided writes with counts. As many engines per process as wanted; usually one, shared by all
/// workloads.
///
/// Threads: every function from any thread, unless it says otherwise. submit() takes no lock.
/// Fork: in a child every call fails with kClosed and destructors touch nothing (P21).
class FABRIC_EXPORT Engine {
 public:
  /// A null runtime means threads: a worker and a callback thread of this engine's own.
  ///
  /// Fails with kInvalidArgument (the field or FABRIC_ variable is named), kUnsupported when a
  /// required network is not available, kExhausted.
  static Result<Engine> open(const Config& config = {}, std::shared_ptr<Runtime> runtime = nullptr);
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();  ///< close(Config::drain_timeout)
  /// Cancels, drains, reports everything, then stops: what it cuts short ends with kClosed. Every
  /// accepted operation has been reported on return. Handles that outlive the engine are inert:
  /// kClosed. Not from a callback (kWouldDeadlock).
  Result<void> close(Timeout timeout = {});

  // Peers
  std::vector<std::byte> address() const;  ///< plain bytes to pass over any channel (P14)
  std::string address_text() const;        ///< the same as text; connect() takes either
  /// Returns at once; the peer is kConnecting and what is submitted to it waits. Idempotent while
  /// the session lives. The own address is served by a copy. A peer that never answers is lost with
  /// kUnreachable after Config::lost_timeout, one with another job key with kWrongJob at once.
  ///
  /// Fails with kBadFormat, kVersion, kUnreachable (no network in common), kExhausted.
  Result<PeerId> connect(std::span<const std::byte> address, const ConnectOptions& options = {});
  Result<PeerId> connect(std::string_view address_text, const ConnectOptions& options = {});
  /// Ends the session on both sides. What is in flight ends with kPeerLost.
  Result<void> disconnect(PeerId peer);
  Result<PeerInfo> peer_info(PeerId peer) const;
  std::vector<PeerId> peers() const;  ///< the live sessions, those that others opened included
  Result<PeerGroup> make_group(std::span<const PeerId> peers);
  /// Address, descriptor and key in one line of text, for the simplest program.
  Result<std::string> offer(const MemoryRegion& region, CounterKey key) const;
  Result<Offer> accept(std::string_view offer);

  // Memory
  Result<MemoryRegion> register_memory(const Memory& memory);
  /// Fails with kUnsupported (kind), kTooLarge, kExhausted (memory, regions_max).
  Result<MemoryRegion> allocate(const AllocateOptions& options);
  /// Idempotent: the same descriptor gives the same handle. Ends with the peer, or when its owner
  /// deregisters.
  ///
  /// Fails with kBadFormat, kVersion, kPeerLost (of another life of the owner), kPermission
  /// (granted to another peer), kNotFound (revoked, or `owner` is not a peer).
  Result<RemoteRegion> import_region(PeerId owner, std::span<const std::byte> desc);

  // Notification
  Result<Inbox> make_inbox(uint32_t depth);
  Result<Batch> make_batch();
  Result<Counter> make_counter();  ///< its key travels in a message of the user's own
  /// Agreed beforehand; made by whichever side comes first. kBusy while another handle holds it.
  Result<Counter> named_counter(uint64_t name);
  /// Blocking form of Resolve.
  Result<void> resolve(PeerId peer, std::span<const uint64_t> names, std::span<CounterKey> out,
                       Timeout timeout = {});
  Result<CounterGroup> make_counter_group();
  Result<Watcher> make_watcher(Notify notify, const WatcherOptions& options = {});
  Result<Flag> make_flag(MemoryKind kind = MemoryKind::kHost, int32_t gpu = -1);
  /// Messages of one channel, one listener each (kBusy).
  Result<Subscription> listen(uint16_t channel, Notify notify);
  /// Peers, rails, room, failures nobody else asked for. Starts with the state of every live peer.
  Result<Subscription> subscribe(Notify notify);

  // Operations: accepted ones complete exactly once. kExhausted: nothing was taken; make progress
  // or wait for kRoom, then try again.
  Result<OpId> submit(const Write& request);
  Result<OpId> submit(const PagedWrite& request);
  Result<OpId> submit(const Scatter& request);
  Result<OpId> submit(const Signal& request);
  Result<OpId> submit(const Send& request);
  Result<OpId> submit(const Timer& request);
  Result<OpId> submit(const Resolve& request);
  Result<OpId> submit(const Fence& request);
  Result<OpId> submit(const Deregister& request);
  /// Takes a prefix and returns its length, at least 1, or the error of the first request when that
  /// one was not taken. The writes of one call are posted with as few doorbells as possible.
  Result<uint32_t> submit(std::span<const Write> requests);
  /// Asks. The operation still reports once: kCancelled, or what happened first (P4). kNotFound
  /// when it has ended already.
  Result<void> cancel(OpId op);
  Result<void> cancel(BatchId batch);  ///< all pending ones, and refuses new ones until reset()

  // Waiting: blocks; not from callbacks (kWouldDeadlock); drives progress when inline.
  /// Until nothing of the batch is pending; the first failure, if there was one.
  Result<void> wait(BatchId batch, Timeout timeout = {});

  Nanos now() const noexcept;    ///< the engine's clock
  uint32_t progress() noexcept;  ///< inline only: one bounded turn, then due callbacks

  // Looking in
  EngineStats stats() const;
  std::vector<RailStats> rail_stats() const;
  std::vector<PeerStats> peer_stats() const;
  std::string dump() const;       ///< what is in flight, on whom it waits, for how long
  std::string dump_json() const;  ///< the same, for programs

 private:
  friend class sim::World;
  explicit Engine(std::shared_ptr<core::EngineCore> core) noexcept;
  std::shared_ptr<core::EngineCore> core_;
};

/// The library's version, "major.minor.patch".
FABRIC_EXPORT const char* version() noexcept;

/// What Network::provider may be in this build, in the order of preference. Whether it works on
/// this machine is found out by opening it.
FABRIC_EXPORT std::vector<std::string> providers();

}  // namespace fabric

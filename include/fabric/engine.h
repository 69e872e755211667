#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fabric/config.h>
#include <fabric/counter.h>
#include <fabric/export.h>
#include <fabric/lists.h>
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

/// Where an engine gets time, wake-ups and threads. The library has three: threads (the default),
/// InlineRuntime and sim::World. Applications do not implement it.
class FABRIC_EXPORT Runtime {
 public:
  virtual ~Runtime() = default;

 private:
  friend class Engine;
  virtual Driver& driver() noexcept = 0;
};

/// Runs its engines on the calling thread, without threads of their own: a wait on any of them
/// drives all of them.
///
/// Lifetime: its engines share ownership of it.
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

/// Delivers events until it is destroyed: no event arrives after the destructor returns. Destroyed
/// inside its own callback, it lets that callback finish.
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

/// The result of Engine::accept(): what it takes to write to the engine that made the offer.
struct Offer {
  PeerId peer{};
  RemoteRegion region{};
  CounterKey key{};
};

/// One-sided writes into the memory of peers, each counted at the target. A process may open any
/// number of engines; usually all workloads share one.
///
/// Right. The target makes an offer and waits for the count; the source accepts it and writes:
///
///     // target
///     auto engine = Engine::open();
///     auto pages = engine->allocate({.size_bytes = 1 << 20});
///     auto counter = engine->make_counter();
///     send_to_source(*engine->offer(*pages, counter->key()));  // one line of text, any channel
///     if (!counter->wait(1, 30s)) return 1;
///     read(pages->bytes());                                    // all bytes are in place (P6)
///
///     // source
///     auto engine = Engine::open();
///     auto pages = engine->allocate({.size_bytes = 1 << 20});
///     fill(pages->bytes());
///     auto offer = engine->accept(receive_from_target());
///     auto batch = engine->make_batch();
///     auto op = engine->submit(Write{.source = pages->at(0), .target = offer->region.at(0),
///                                    .size_bytes = 1 << 20, .imm = offer->key, .batch = *batch});
///     if (!op || !engine->wait(*batch, 30s)) return 1;
///
/// Wrong. submit() only queues the write, and an operation without batch or notify reports its
/// failure to subscribers only:
///
///     engine->submit(Write{.source = pages->at(0), .target = offer->region.at(0),
///                          .size_bytes = 1 << 20, .imm = offer->key});  // result dropped
///     fill(pages->bytes());  // the NIC may still read the source: wait for the completion first
///
/// Threads: every function from any thread, unless it says otherwise. submit() takes no lock.
/// Fork: in a child every call fails with kClosed and destructors touch nothing (contracts.md P21).
class FABRIC_EXPORT Engine {
 public:
  /// A null runtime means threads: a worker thread and a callback thread of this engine's own.
  ///
  /// Fails with kInvalidArgument (Error::what names the field or FABRICLIB_ variable), kUnsupported
  /// when a required network is not available, kExhausted.
  static Result<Engine> open(const Config& config = {}, std::shared_ptr<Runtime> runtime = nullptr);
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) noexcept;
  ~Engine();  ///< close(Config::drain_timeout)
  /// Cancels, drains, reports every operation, then stops; what it interrupts completes with
  /// kClosed. On return every accepted operation has been reported. Handles may outlive the engine:
  /// their calls then fail with kClosed. Not from a callback (kWouldDeadlock).
  Result<void> close(Timeout timeout = {});

  // Peers
  std::vector<std::byte> address() const;  ///< plain bytes to pass over any channel (P14)
  std::string address_text() const;        ///< the same as text; connect() takes either
  /// Returns at once; while the peer is kConnecting, operations to it wait. Idempotent while the
  /// session is open. The engine's own address works too: its writes are copies. A peer that never
  /// answers is lost with kUnreachable after Config::lost_timeout, one with another job key at
  /// once, with kWrongJob.
  ///
  /// Fails with kBadFormat, kVersion, kUnreachable (no network in common), kExhausted.
  Result<PeerId> connect(std::span<const std::byte> address, const ConnectOptions& options = {});
  Result<PeerId> connect(std::string_view address_text, const ConnectOptions& options = {});
  /// Closes the session on both sides. Operations in flight complete with kPeerLost.
  Result<void> disconnect(PeerId peer);
  Result<PeerInfo> peer_info(PeerId peer) const;
  /// Open sessions, including those that peers opened; or lost ones, see PeerFilter.
  ///
  /// Threads: any. The list is of the moment of the call.
  /// Cost: the state lock, and a pass over all sessions that are not forgotten. Allocates.
  /// Empty after close(); never fails.
  std::vector<PeerId> peers(PeerFilter filter = PeerFilter::kOpen) const;
  Result<PeerGroup> make_group(std::span<const PeerId> peers);
  /// Address, descriptor and counter key in one line of text, for the simplest programs.
  Result<std::string> offer(const MemoryRegion& region, CounterKey key) const;
  Result<Offer> accept(std::string_view offer);

  // Memory
  Result<MemoryRegion> register_memory(const Memory& memory);
  /// Fails with kUnsupported (kind), kTooLarge, kExhausted (memory, regions_max).
  Result<MemoryRegion> allocate(const AllocateOptions& options);
  /// Idempotent: the same descriptor gives the same handle. Valid until the session closes or the
  /// owner deregisters the region.
  ///
  /// Fails with kBadFormat, kVersion, kPeerLost (made by another incarnation of the owner),
  /// kPermission (granted to another peer), kNotFound (revoked, or `owner` is not a peer).
  Result<RemoteRegion> import_region(PeerId owner, std::span<const std::byte> desc);

  // Prepared lists
  /// The pages that `Pages::list` names, in this order; a page may occur more than once.
  ///
  /// Cost: allocates and copies: 4 bytes a page for indices, 8 bytes a range for ranges.
  /// Fails with kInvalidArgument (empty, a range without pages or past page 2^32 - 1), kTooLarge
  /// (more than 2^32 - 1 pages), kExhausted (memory, 65,536 lists of an engine).
  Result<PageList> make_page_list(std::span<const uint32_t> indices);
  Result<PageList> make_page_list(std::span<const PageRange> ranges);
  /// The writes that ListedWrites submits by ranges, in this order.
  ///
  /// Cost: allocates and copies 32 bytes a write.
  /// Fails with kInvalidArgument (empty, an offset plus its size past 2^64 - 1), kTooLarge (more
  /// than 2^32 - 1 writes), kExhausted (memory, 65,536 lists of an engine).
  Result<WriteList> make_write_list(std::span<const ListedWrite> writes);

  // Notification
  Result<Inbox> make_inbox(uint32_t depth);
  Result<Batch> make_batch();
  Result<Counter> make_counter();  ///< the application sends its counter key to the writers
  /// A counter under a name that both sides know: resolve() at the sender gives its counter key,
  /// whichever side asks first. kBusy while another handle holds the name.
  Result<Counter> named_counter(uint64_t name);
  /// Blocking form of Resolve.
  Result<void> resolve(PeerId peer, std::span<const uint64_t> names, std::span<CounterKey> out,
                       Timeout timeout = {});
  Result<CounterGroup> make_counter_group();
  Result<Watcher> make_watcher(Notify notify, const WatcherOptions& options = {});
  Result<Flag> make_flag(MemoryKind kind = MemoryKind::kHost, int32_t gpu = -1);
  /// Messages of one channel; a channel has one listener (kBusy).
  Result<Subscription> listen(uint16_t channel, Notify notify);
  /// Changes of peers and rails, kRoom, and failures without batch or notify (kUnhandled). Starts
  /// with the state of every open session.
  Result<Subscription> subscribe(Notify notify);

  // Operations: accepted ones complete exactly once. kExhausted: not accepted; make progress or
  // wait for kRoom, then try again.
  Result<OpId> submit(const Write& request);
  Result<OpId> submit(const PagedWrite& request);
  Result<OpId> submit(const ListedWrites& request);
  Result<OpId> submit(const Scatter& request);
  Result<OpId> submit(const Signal& request);
  Result<OpId> submit(const Send& request);
  Result<OpId> submit(const Timer& request);
  Result<OpId> submit(const Resolve& request);
  Result<OpId> submit(const Fence& request);
  Result<OpId> submit(const Drop& request);  ///< takes the state lock
  Result<OpId> submit(const Revoke& request);
  Result<OpId> submit(const Deregister& request);
  /// Accepts a prefix and returns its length, at least 1, or the error of the first request when
  /// that one was refused. The writes of one call are posted with as few doorbells as possible.
  Result<uint32_t> submit(std::span<const Write> requests);
  /// A request: the operation still completes once, with kCancelled or with what happened first
  /// (P4). kNotFound when it has completed already.
  Result<void> cancel(OpId op);
  Result<void> cancel(BatchId batch);  ///< all pending ones, and refuses new ones until reset()

  // Waiting: blocks; not from callbacks (kWouldDeadlock); drives progress when inline.
  /// Returns when no operation of the batch is pending, with the first failure, if there was one.
  Result<void> wait(BatchId batch, Timeout timeout = {});

  Nanos now() const noexcept;    ///< the engine's clock
  uint32_t progress() noexcept;  ///< inline only: one bounded turn, then due callbacks

  // Introspection
  EngineStats stats() const;
  std::vector<RailStats> rail_stats() const;
  std::vector<PeerStats> peer_stats() const;
  std::string dump() const;       ///< what is in flight, which peer it waits for, for how long
  std::string dump_json() const;  ///< the same, for programs

 private:
  friend class sim::World;
  explicit Engine(std::shared_ptr<core::EngineCore> core) noexcept;
  std::shared_ptr<core::EngineCore> core_;
};

/// The library's version, "major.minor.patch".
FABRIC_EXPORT const char* version() noexcept;

/// The values of Network::provider that this build knows, in the order of preference. Only opening
/// one shows whether it works on this machine.
FABRIC_EXPORT std::vector<std::string> providers();

}  // namespace fabric

#pragma once

#include <memory>

#include <fabric/export.h>
#include <fabric/result.h>
#include <fabric/types.h>

namespace fabric {

enum class PeerState : uint8_t;
class Engine;
class Flag;
class Inbox;
namespace core {
struct NotifyAccess;
struct InboxState;
struct BatchState;
struct FlagState;
}  // namespace core

enum class EventKind : uint8_t {
  kDone,         ///< an operation completed: code, remote, parts; value = bytes or count delivered
  kMessage,      ///< data, size_bytes, peer; value = channel
  kWatch,        ///< a watched word changed: previous, value
  kPeer,         ///< a peer changed: value = PeerState, previous_state
  kRail,         ///< a rail went down or came back: rail, code
  kRoom,         ///< after a kExhausted: a quarter of the queue is free again
  kFenceProved,  ///< the proof for a fence or deregistration that completed without it: op, peer
  kUnhandled,    ///< subscribers only: an operation without batch and notify failed
};

/// The report of anything asynchronous, however it is delivered. One cache line.
struct Event {
  EventKind kind = EventKind::kDone;
  Errc code = Errc::kOk;
  Remote remote = Remote::kDelivered;  ///< the worst of all parts
  uint8_t rail = 0xff;                 ///< kRail: which one; 0xff = none
  uint32_t parts_failed = 0;           ///< pages or targets that were not delivered for certain
  uint64_t tag = 0;                    ///< what the caller put into Notify
  OpId op{};
  PeerId peer{};               ///< the sender, or the first peer that failed
  uint64_t value = 0;          ///< kDone: bytes delivered (a count for expectations)
  union {                      // one of them, by kind
    uint64_t previous = 0;     ///< kWatch: the value that was reported before
    uint64_t parts_unknown;    ///< kDone, kUnhandled: how many of parts_failed have an unknown fate
    PeerState previous_state;  ///< kPeer: the state before
    uint64_t name;             ///< kUnhandled without an op: a name that expired, `value` its count
  };
  const std::byte* data = nullptr;  ///< valid until the next poll() of the inbox; in the callback
  uint32_t size_bytes = 0;
  uint32_t first_failed = 0;  ///< index of the first page or target that failed
  std::span<const std::byte> bytes() const noexcept { return {data, size_bytes}; }
};
static_assert(sizeof(Event) == 64);

FABRIC_EXPORT const char* to_string(EventKind kind) noexcept;
FABRIC_EXPORT const char* to_string(Remote remote) noexcept;
FABRIC_EXPORT const char* to_string(Priority priority) noexcept;

using Callback = void (*)(void* context, const Event& event);

/// Where the completion of an operation is reported. Plain data, no allocation, 32 bytes.
///
/// A default Notify does not report success. Failures are never lost (contracts.md P1): the
/// operation's batch keeps them, or without a batch they go to Engine::subscribe() as kUnhandled.
/// submit() reserves the slot for the report, or fails with kExhausted when the inbox is full:
/// every accepted operation can be reported (P18).
class Notify {
 public:
  Notify() = default;

  /// Threads: the callback runs on the engine's callback thread, or inside progress() when inline;
  /// never inside submit(). Wrong: a callback that waits for another operation. A blocking call in
  /// a callback fails with kWouldDeadlock; submit that operation with a Notify instead.
  static Notify call(Callback fn, void* context, uint64_t tag = 0) noexcept {
    return Notify(Kind::kCall, context, fn, tag, 0);
  }
  template <auto Member, class T>
  static Notify call(T* object, uint64_t tag = 0) noexcept {
    return call([](void* o, const Event& e) { (static_cast<T*>(o)->*Member)(e); }, object, tag);
  }
  /// The Inbox may be moved afterwards. When it is destroyed, its events go to the subscribers.
  FABRIC_EXPORT static Notify inbox(Inbox& inbox, uint64_t tag = 0) noexcept;
  /// Stored only on success; failure goes to the batch or the subscribers.
  FABRIC_EXPORT static Notify flag(Flag& flag, uint32_t value = 1) noexcept;

 private:
  friend struct core::NotifyAccess;
  enum class Kind : uint32_t { kNone, kCall, kInbox, kFlag };
  Notify(Kind kind, void* target, Callback fn, uint64_t tag, uint32_t value)
      : target_(target), fn_(fn), tag_(tag), kind_(kind), value_(value) {}
  void* target_ = nullptr;  ///< the callback's context, or the engine that the handle belongs to
  union {
    Callback fn_ = nullptr;
    uint64_t handle_;  ///< slot and generation of an inbox or a flag
  };
  uint64_t tag_ = 0;
  Kind kind_ = Kind::kNone;
  uint32_t value_ = 0;
};
static_assert(sizeof(Notify) == 32);

/// One part (page, target, write) of a batch that did not succeed.
struct Failure {
  OpId op{};
  PeerId peer{};
  uint32_t part = 0;
  Errc code = Errc::kOk;
  Remote remote = Remote::kNotDelivered;
};

/// Operations that are waited for, and cancelled, together. Also the way to wait for a single one.
/// Independent of Notify: an operation of a batch may report its completion to a Notify as well.
///
/// Lifetime: the destructor cancels what is pending and does not block. What completes later is
///   reported to subscribe(). The memory is protected by the regions, not by the batch.
/// Threads: every function from any thread.
class FABRIC_EXPORT Batch {
 public:
  static constexpr uint32_t kFailuresMax = 64;  ///< failures that a batch keeps; it counts all

  Batch(Batch&&) noexcept;
  Batch& operator=(Batch&&) noexcept;
  ~Batch();
  BatchId id() const noexcept;
  operator BatchId() const noexcept { return id(); }

  uint64_t pending() const noexcept;  ///< operations; one acquire load
  uint64_t failed() const noexcept;   ///< parts that were not delivered for certain
  /// Writes, pages and targets that are proved to have landed: the number to send to the receiver
  /// after a cancel.
  uint64_t delivered() const noexcept;
  /// Parts with Remote::kUnknown. Not zero: the receiver has to fence.
  uint64_t unknown() const noexcept;
  /// The first failures, up to out.size(). Returns how many.
  uint32_t failures(std::span<Failure> out) const noexcept;
  /// Reports to `notify` once, when nothing is pending. Later submits are refused with kCancelled
  /// until reset(). Fails with kExhausted when the notify's inbox is full, kBusy when sealed
  /// already.
  Result<void> seal(Notify notify) noexcept;
  /// Makes the batch empty, for reuse. Fails with kBusy while something is pending.
  Result<void> reset() noexcept;

 private:
  friend class Engine;
  explicit Batch(std::shared_ptr<core::BatchState> state) noexcept;
  std::shared_ptr<core::BatchState> state_;
};

/// A bounded queue of events that one thread reads. The recommended delivery for programs with an
/// event loop.
///
/// Lifetime: the destructor does not wait: operations that report here still complete, and their
///   events go to subscribe().
/// Threads: poll() and wait() from one thread at a time; any thread may deliver.
class FABRIC_EXPORT Inbox {
 public:
  Inbox(Inbox&&) noexcept;
  Inbox& operator=(Inbox&&) noexcept;
  ~Inbox();
  /// Moves up to out.size() events into `out`. Frees the message buffers of the previous poll.
  uint32_t poll(std::span<Event> out) noexcept;
  /// Blocks until there is an event. Drives progress when the engine is inline.
  Result<void> wait(Timeout timeout = {}) noexcept;
  /// Readable while the queue is not empty, for epoll and asyncio. Made on the first call; from
  /// then on a wake-up costs a system call. Fails with kExhausted when the process has no
  /// descriptor left.
  Result<int> fd();

 private:
  friend class Engine;
  friend class Notify;
  explicit Inbox(std::shared_ptr<core::InboxState> state) noexcept;
  std::shared_ptr<core::InboxState> state_;
};

/// A 32-bit word that the engine sets and a CPU thread, or later a GPU kernel, polls.
///
/// Lifetime: operations that name the flag keep its word alive.
/// Threads: every function from any thread.
class FABRIC_EXPORT Flag {
 public:
  Flag(Flag&&) noexcept;
  Flag& operator=(Flag&&) noexcept;
  ~Flag();
  uint32_t load() const noexcept;         ///< acquire
  void store(uint32_t value) noexcept;    ///< release
  uint64_t gpu_address() const noexcept;  ///< 0 for host flags

 private:
  friend class Engine;
  friend class Notify;
  explicit Flag(std::shared_ptr<core::FlagState> state) noexcept;
  std::shared_ptr<core::FlagState> state_;
};

}  // namespace fabric

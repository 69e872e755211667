#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include <fabric/engine.h>
#include <fabric/notify.h>

#include "base/event_count.h"
#include "base/spsc.h"
#include "core/op.h"
#include "core/slot_table.h"

// Where things end: batches, inboxes, flags, subscriptions and the callback queue. Everything is
// reported by the worker, under the state lock; only the reader's side of an inbox and the running
// of callbacks happen elsewhere.

namespace fabric::core {

class EngineCore;

/// Opens Notify to the core: the public type shows its users nothing.
struct NotifyAccess {
  using Kind = Notify::Kind;
  static Kind kind(const Notify& n) noexcept { return n.kind_; }
  static void* target(const Notify& n) noexcept { return n.target_; }
  static Callback fn(const Notify& n) noexcept { return n.fn_; }
  static uint32_t slot(const Notify& n) noexcept { return static_cast<uint32_t>(n.handle_); }
  static uint32_t generation(const Notify& n) noexcept {
    return static_cast<uint32_t>(n.handle_ >> 32);
  }
  static uint64_t tag(const Notify& n) noexcept { return n.tag_; }
  static uint32_t value(const Notify& n) noexcept { return n.value_; }
};

/// An arrived message on its way to a listener.
struct MessageBuffer {
  std::vector<std::byte> bytes{};
  std::shared_ptr<std::atomic<uint32_t>> held{};  ///< its listener's count of unread messages
};

/// What has to happen once the reader is done with an event: the message buffer is given back, the
/// watcher may queue its next step.
struct EventExtra {
  MessageBuffer* message = nullptr;
  uint32_t watcher_slot = 0, watcher_generation = 0;
};

struct InboxEntry {
  Event event{};
  EventExtra extra{};
};

struct InboxSlot : SlotHead {
  std::unique_ptr<SpscRing<InboxEntry>> ring{};
  /// Promised to operations, or queued; the generation above it, so that a submitter who found the
  /// inbox just before it went cannot take a place in the next one. It only bounds: the ring orders
  /// the events themselves.
  std::atomic<uint64_t> reserved{0};
  std::atomic<uint32_t> depth{0};  ///< relaxed: published by the release of `reserved`
  /// An event that had no reservation waits for room. The worker sets it and tries once more, the
  /// reader lowers `reserved` and then looks: sequentially consistent, so one sees the other.
  std::atomic<bool> starved{false};
  /// Made by the reader, written to by the worker: release pairs with the acquire in push_inbox().
  std::atomic<int> fd{-1};
  EventCount event_count{};
};

/// The reader's side of an inbox.
struct InboxState {
  std::shared_ptr<EngineCore> core{};
  InboxSlot* slot = nullptr;
  uint32_t index = 0, generation = 0;
  std::vector<EventExtra> taken{};  ///< of the previous poll
};

/// The low half of a batch's word; the high half is its generation.
struct BatchWord {
  static constexpr uint64_t kRefuses = 1ull << 31;    ///< no new members: sealed or cancelled
  static constexpr uint64_t kCancelled = 1ull << 30;  ///< members not yet taken end at once
  static constexpr uint64_t kAbandoned = 1ull << 29;  ///< its handle is gone
  static constexpr uint64_t kSealed = 1ull << 28;     ///< reports when nothing is pending
  static constexpr uint64_t kPending = kSealed - 1;
};

struct BatchSlot : SlotHead {
  /// One word, so that "may I join?" and "I have joined" are one step. Every change is an acquire
  /// and release read-modify-write: who finds nothing pending has acquired all that members
  /// recorded.
  std::atomic<uint64_t> word{0};
  std::atomic<uint64_t> delivered{0}, failed{0}, unknown{0};  ///< relaxed: published by the word
  std::atomic<uint32_t> failure_count{0};  ///< release: the entry before it is complete
  std::unique_ptr<Failure[]> failures{};   ///< made with the first failure, under the state lock
  Notify on_empty{};
  EventCount event_count{};
};

struct BatchState {
  std::shared_ptr<EngineCore> core{};
  BatchSlot* slot = nullptr;
  BatchId id{};
};

struct FlagSlot : SlotHead {
  /// The worker's release pairs with the acquire of the thread that polls it: bytes before flag.
  std::atomic<uint32_t> word{0};
};

struct FlagState {
  std::shared_ptr<EngineCore> core{};
  FlagSlot* slot = nullptr;
  uint32_t index = 0, generation = 0;
};

struct WatcherSlot : SlotHead {
  alignas(8) uint64_t word = 0;  ///< the user's or a kernel's to store to
  /// An event is queued and not yet taken. The reader's release pairs with the acquire of the
  /// worker, which alone sets it; polled, so being late costs a turn and loses nothing.
  std::atomic<bool> outstanding{false};
  std::atomic<bool> armed{false};  ///< state lock
  bool polled = true;
  uint64_t reported = 0;  ///< the last value that was queued
  Notify notify{};
  std::recursive_mutex running{};  ///< held while its callback runs
};

struct WatcherState {
  std::shared_ptr<EngineCore> core{};
  WatcherSlot* slot = nullptr;
  uint32_t index = 0, generation = 0;
};

/// A listener of one channel, or a subscriber of the engine's own events.
struct SubscriptionState {
  std::shared_ptr<EngineCore> core{};
  Notify notify{};
  bool is_listener = false;
  uint16_t channel = 0;
  struct Waiting {
    Event event{};
    MessageBuffer* message = nullptr;
  };
  std::deque<Waiting> waiting{};  ///< queued and not yet handed over; state lock
  /// Messages queued or handed over and not yet read.
  std::shared_ptr<std::atomic<uint32_t>> held = std::make_shared<std::atomic<uint32_t>>(0);
  std::atomic<uint32_t> queued{0};  ///< callbacks in the queue: keeps a retired one in memory
  std::recursive_mutex running{};   ///< held while its callback runs
  bool alive = true;                ///< under `running`
};

/// One callback that is due.
struct CallbackItem {
  Event event{};
  EventExtra extra{};
  Callback fn = nullptr;
  void* context = nullptr;
  uint32_t op = UINT32_MAX;                   ///< its slot is given back afterwards
  SubscriptionState* subscription = nullptr;  ///< kept alive while `queued` is not zero
};

class Reporter {
 public:
  explicit Reporter(EngineCore& core);
  ~Reporter();

  // Any thread, no lock.
  /// Promises room for one report. Fails with kExhausted, kNotFound (inbox or flag is gone),
  /// kInvalidArgument (of another engine); `what` is "notify".
  Result<void> reserve(const Notify& notify) noexcept {
    if (NotifyAccess::kind(notify) == NotifyAccess::Kind::kNone) return {};
    return reserve_room(notify);
  }
  void unreserve(const Notify& notify) noexcept;
  /// Fails with kNotFound or kCancelled; `what` is "batch".
  Result<void> enter_batch(BatchId batch, uint32_t members = 1) noexcept;
  bool batch_cancelled(BatchId batch) const noexcept;

  // Worker, state lock held.
  struct PartCompletion {
    uint32_t part = 0;
    PeerId peer{};
    Errc code = Errc::kOk;
    Remote remote = Remote::kDelivered;
  };
  void report_part(const Op& op, const PartCompletion& completion);
  /// Of an operation that all went well and whose end is only counted: the batches and the table
  /// are told of several together, by flush_deferred().
  void defer_parts(const Op& op, uint32_t n) {
    if (!op.batch) return;
    if (deferred_.batch != op.batch) defer_for_batch(op.batch);
    deferred_.delivered += n;
  }
  void defer_op(Op& op) {
    if (op.batch) {
      if (deferred_.batch != op.batch) defer_for_batch(op.batch);
      ++deferred_.completed;
    }
    if (op.quota_peer != deferred_.quota_peer) defer_for_peer(op.quota_peer);
    if (op.quota_peer != UINT32_MAX) ++deferred_.charged;
    defer_slot(op);
  }
  /// The same for several writes of one batch to one peer, whose slots were told by defer_slot().
  void defer_writes(BatchId batch, uint32_t peer, uint32_t n) {
    if (batch) {
      if (deferred_.batch != batch) defer_for_batch(batch);
      deferred_.delivered += n;
      deferred_.completed += n;
    }
    if (peer != deferred_.quota_peer) defer_for_peer(peer);
    deferred_.charged += n;
  }
  void defer_slot(Op& op) {
    OpTable::reset(op);
    deferred_.slots[deferred_.slot_count++] = op.self;
    if (deferred_.slot_count == deferred_.slots.size()) report_deferred();
  }
  void flush_deferred() {
    if (deferred_.slot_count != 0 || deferred_.charged != 0 || deferred_.batch) report_deferred();
  }
  static bool is_silent(const Notify& notify) noexcept {
    return NotifyAccess::kind(notify) == NotifyAccess::Kind::kNone;
  }
  /// Reports the operation, gives its slot back unless a callback still has to run.
  void report_op(Op& op, const Event& event);
  /// To every subscriber.
  void publish(const Event& event);
  enum class Listener : uint8_t { kMissing, kFull, kReady };
  Listener listener(uint16_t channel) const noexcept;
  /// Only when listener() says kReady.
  void deliver_message(uint16_t channel, const Event& event,
                       std::unique_ptr<MessageBuffer> message);
  uint32_t poll_watchers();  ///< queues what moved; how many
  bool has_watchers() const noexcept { return !armed_watchers_.empty() || !final_values_.empty(); }
  bool has_waiting() const noexcept { return has_waiting_; }
  bool has_polled_watchers() const noexcept { return polled_armed_ > 0; }
  uint32_t flush();  ///< hands over what waited for room; how many
  void leave_batch(BatchId batch, uint32_t members = 1);
  void wake_readers() noexcept;  ///< the engine closes: whoever waits at an inbox looks again

  // The callback thread, or the inline application.
  uint32_t run_callbacks() noexcept;
  bool callbacks_idle() const noexcept {
    return callbacks_queued_.load(std::memory_order_acquire) == 0;
  }
  uint32_t callbacks_held() const noexcept {
    return callbacks_queued_.load(std::memory_order_relaxed);  // a gauge
  }
  /// Nothing waits any more for room in the callback queue. State lock held.
  bool handed_over() const noexcept;

  // Set-up, state lock held.
  InboxSlot* make_inbox(uint32_t depth, uint32_t& index);
  BatchSlot* make_batch(uint32_t& index);
  FlagSlot* make_flag(uint32_t& index);
  WatcherSlot* make_watcher(const Notify& notify, bool polled, uint32_t& index);
  void drop_inbox(uint32_t index);
  void drop_batch(BatchId batch);
  void drop_flag(uint32_t index);
  void drop_watcher(uint32_t index);
  void arm_watcher(uint32_t index, bool armed);
  Result<void> seal_batch(BatchId batch, const Notify& notify);
  Result<void> reset_batch(BatchId batch);
  void cancel_batch(BatchId batch);
  Result<std::shared_ptr<SubscriptionState>> subscribe(std::shared_ptr<SubscriptionState> state);
  void unsubscribe(SubscriptionState& state);

  /// The reader is done with an event.
  void release_extra(const EventExtra& extra) noexcept;

  SlotTable<InboxSlot> inboxes;
  SlotTable<BatchSlot> batches;
  SlotTable<FlagSlot> flags;
  SlotTable<WatcherSlot> watchers;

 private:
  void deliver(const Notify& notify, Event event, const EventExtra& extra, Op* op);
  Result<void> reserve_room(const Notify& notify) noexcept;
  bool push_inbox(InboxSlot& inbox, const Event& event, const EventExtra& extra);
  bool reserve_or_starve(const Notify& notify, InboxSlot& inbox) noexcept;
  bool queue_callback(const CallbackItem& item);
  bool hand_over(SubscriptionState& state, const SubscriptionState::Waiting& waiting);
  void report_unhandled(const Event& event);
  bool queue_watch(uint32_t index, WatcherSlot& watcher, uint64_t value);
  void report_batch(BatchSlot& slot, const Notify& notify);
  void run_one(CallbackItem& item) noexcept;

  void defer_for_batch(BatchId batch);
  void defer_for_peer(uint32_t peer);
  void report_deferred();

  EngineCore& core_;
  /// What flush_deferred() is going to tell: of one batch, and the slots of operations that have ended.
  struct Deferred {
    BatchId batch{};
    uint32_t delivered = 0, completed = 0;
    uint32_t quota_peer = UINT32_MAX, charged = 0;  ///< slots of one peer
    uint32_t slot_count = 0;
    std::array<uint32_t, 64> slots{};
  };
  Deferred deferred_{};
  SpscRing<CallbackItem> callbacks_;
  std::atomic<uint32_t> callbacks_queued_{0};   ///< lowered when one has run; see the next
  std::atomic<bool> callbacks_starved_{false};  ///< something waits for room; as InboxSlot::starved
  std::vector<std::shared_ptr<SubscriptionState>> subscribers_;
  std::vector<std::shared_ptr<SubscriptionState>> listeners_;
  std::vector<std::shared_ptr<SubscriptionState>> unsubscribed_;  ///< ended, with callbacks still queued
  /// Sealed batches whose callback found no room in the queue; at most one per batch.
  struct PendingSeal {
    Event event{};
    Notify notify{};
  };
  std::deque<PendingSeal> pending_seals_;
  std::vector<uint32_t> armed_watchers_;
  std::vector<uint32_t> final_values_;  ///< disarmed watchers whose last value found no room
  uint32_t polled_armed_ = 0;
  bool has_waiting_ = false;  ///< something waits for room: for flush()
};

/// True on a thread that is inside a callback of any engine: blocking calls are refused there.
bool in_callback() noexcept;

}  // namespace fabric::core

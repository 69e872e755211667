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
#include "core/state_mutex.h"

// Delivery of completions and events: batches, inboxes, flags, watchers, subscriptions and the
// callback queue.

namespace fabric::core {

class EngineCore;

/// Gives the core access to the private members of Notify.
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

/// What to release once the reader is done with an event: a message buffer, or a watcher, which may
/// then queue its next value.
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
  /// Low half: events reserved by operations, or queued. High half: the generation, so that a
  /// submitter that found the inbox just before it was destroyed cannot reserve room in its
  /// successor. It only bounds: the ring orders the events themselves.
  std::atomic<uint64_t> reserved{0};
  std::atomic<uint32_t> depth{0};  ///< relaxed: published by the release of `reserved`
  /// An event without a reservation waits for room. The worker sets it and then tries once more;
  /// the reader lowers `reserved` and then reads it. Sequentially consistent: one sees the other.
  std::atomic<bool> starved{false};
  /// Created by the reader, signalled by the worker: release pairs with acquire in push_inbox().
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

/// The low half of the word of a batch; the high half is its generation.
struct BatchWord {
  static constexpr uint64_t kRefuses = 1ull << 31;    ///< no new members: sealed or cancelled
  static constexpr uint64_t kCancelled = 1ull << 30;  ///< begin() completes members at once
  static constexpr uint64_t kAbandoned = 1ull << 29;  ///< its handle was destroyed
  static constexpr uint64_t kSealed = 1ull << 28;     ///< `on_empty` is due when none is pending
  static constexpr uint64_t kPending = kSealed - 1;
};

struct BatchSlot : SlotHead {
  /// One word, so that checking the flags and joining are one atomic step. Every change is an
  /// acquire-release read-modify-write: a thread that finds nothing pending has acquired everything
  /// that members recorded.
  std::atomic<uint64_t> word{0};
  std::atomic<uint64_t> delivered{0}, failed{0}, unknown{0};  ///< relaxed: published by the word
  std::atomic<uint32_t> failure_count{0};  ///< release: the entries below it are complete
  std::unique_ptr<Failure[]> failures{};   ///< allocated for the first failure; state lock
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
  alignas(8) uint64_t word = 0;  ///< stored to by the user or by a GPU kernel
  /// An event is queued and not yet read. The reader's release pairs with the acquire of the
  /// worker, which alone sets it. It is polled: a late read costs one turn and loses nothing.
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
  std::deque<Waiting> waiting{};  ///< for room in the inbox or callback queue; state lock
  /// Messages that are waiting or delivered, and not yet read.
  std::shared_ptr<std::atomic<uint32_t>> held = std::make_shared<std::atomic<uint32_t>>(0);
  std::atomic<uint32_t> queued{0};  ///< callbacks in the queue: this must outlive them
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
  SubscriptionState* subscription = nullptr;  ///< alive while its `queued` is not zero
};

/// Delivers completions and events to where the user wants them: batches, inboxes, flags, callbacks
/// and subscriptions. The last step of every operation: report_op() or one of the deferred variants
/// is called exactly once for each, after it has completed.
///
/// Owner: EngineCore. The worker reports, under the state lock. Three things happen on other
/// threads and without the lock: submitters reserve room, readers take events out of their inbox,
/// and the callback thread runs callbacks.
///
/// A report cannot fail. Room for it is reserved when the operation is submitted: an entry of the
/// inbox, membership in the batch; the callback queue has one entry per operation slot. Events
/// without an operation (messages, watchers, peer states) have no reservation, and wait at their
/// source until flush() finds room.
///
/// Invariant: every accepted operation is reported exactly once (contracts.md P1), and its report
/// never waits for room.
///
/// Deferred reports: an operation that succeeded and has no Notify only changes counts. Several of
/// them are summed up in `deferred_` and applied together by flush_deferred(), at the end of the
/// turn at the latest: one atomic operation on the batch instead of one for each. The operation
/// slots are given back before the batch changes, so that a thread that sees its batch empty can
/// submit.
class Reporter {
 public:
  explicit Reporter(EngineCore& core);
  ~Reporter();

  // Any thread, no lock.
  /// Reserves room for one report. Fails with kExhausted, kNotFound (inbox or flag destroyed),
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
  void report_part(const Op& op, const PartCompletion& completion) FABRIC_REQUIRES(state_lock);
  // The deferred reports of operations that succeeded and have no Notify. Hot.
  /// `n` parts of the operation were delivered.
  void defer_parts(const Op& op, uint32_t n) FABRIC_REQUIRES(state_lock) {
    if (!op.batch) return;
    if (deferred_.batch != op.batch) defer_for_batch(op.batch);
    deferred_.delivered += n;
  }
  void defer_op(Op& op) FABRIC_REQUIRES(state_lock) {
    if (op.batch) {
      if (deferred_.batch != op.batch) defer_for_batch(op.batch);
      ++deferred_.completed;
    }
    if (op.quota_peer != deferred_.quota_peer) defer_for_peer(op.quota_peer);
    if (op.quota_peer != UINT32_MAX) ++deferred_.charged;
    defer_slot(op);
  }
  /// defer_parts() and defer_op() for `n` writes of one batch to one peer, except for their slots,
  /// which go through defer_slot().
  void defer_writes(BatchId batch, uint32_t peer, uint32_t n) FABRIC_REQUIRES(state_lock) {
    if (batch) {
      if (deferred_.batch != batch) defer_for_batch(batch);
      deferred_.delivered += n;
      deferred_.completed += n;
    }
    if (peer != deferred_.quota_peer) defer_for_peer(peer);
    deferred_.charged += n;
  }
  void defer_slot(Op& op) FABRIC_REQUIRES(state_lock) {
    OpTable::reset(op);
    deferred_.slots[deferred_.slot_count++] = op.slot;
    if (deferred_.slot_count == deferred_.slots.size()) report_deferred();
  }
  void flush_deferred() FABRIC_REQUIRES(state_lock) {
    if (deferred_.slot_count != 0 || deferred_.charged != 0 || deferred_.batch) report_deferred();
  }
  static bool is_silent(const Notify& notify) noexcept {
    return NotifyAccess::kind(notify) == NotifyAccess::Kind::kNone;
  }
  /// Reports the operation and gives its slot back, unless a callback still has to run.
  void report_op(Op& op, const Event& event) FABRIC_REQUIRES(state_lock);
  /// Delivers the event to every subscriber.
  void publish(const Event& event) FABRIC_REQUIRES(state_lock);
  enum class Listener : uint8_t { kMissing, kFull, kReady };
  Listener listener(uint16_t channel) const noexcept FABRIC_REQUIRES(state_lock);
  /// Only when listener() says kReady.
  void deliver_message(uint16_t channel, const Event& event, std::unique_ptr<MessageBuffer> message)
      FABRIC_REQUIRES(state_lock);
  uint32_t poll_watchers() FABRIC_REQUIRES(state_lock);  ///< queues what moved; how many
  bool has_watchers() const noexcept FABRIC_REQUIRES(state_lock) {
    return !armed_watchers_.empty() || !final_values_.empty();
  }
  bool has_waiting() const noexcept FABRIC_REQUIRES(state_lock) { return has_waiting_; }
  bool has_polled_watchers() const noexcept FABRIC_REQUIRES(state_lock) {
    return polled_armed_ > 0;
  }
  uint32_t flush() FABRIC_REQUIRES(state_lock);  ///< delivers what waited; returns how many
  void leave_batch(BatchId batch, uint32_t members = 1) FABRIC_REQUIRES(state_lock);
  void wake_readers() noexcept FABRIC_REQUIRES(
      state_lock);  ///< the engine closes: threads that wait at an inbox check again

  // The callback thread, or the inline application.
  uint32_t run_callbacks() noexcept;
  bool callbacks_idle() const noexcept {
    return callbacks_queued_.load(std::memory_order_acquire) == 0;
  }
  uint32_t callbacks_held() const noexcept {
    return callbacks_queued_.load(std::memory_order_relaxed);  // a gauge
  }
  /// Nothing waits for room in the callback queue. State lock held.
  bool handed_over() const noexcept FABRIC_REQUIRES(state_lock);

  // Set-up, state lock held.
  InboxSlot* make_inbox(uint32_t depth, uint32_t& index) FABRIC_REQUIRES(state_lock);
  BatchSlot* make_batch(uint32_t& index) FABRIC_REQUIRES(state_lock);
  FlagSlot* make_flag(uint32_t& index) FABRIC_REQUIRES(state_lock);
  WatcherSlot* make_watcher(const Notify& notify, bool polled, uint32_t& index)
      FABRIC_REQUIRES(state_lock);
  void drop_inbox(uint32_t index) FABRIC_REQUIRES(state_lock);
  void drop_batch(BatchId batch) FABRIC_REQUIRES(state_lock);
  void drop_flag(uint32_t index) FABRIC_REQUIRES(state_lock);
  void drop_watcher(uint32_t index) FABRIC_REQUIRES(state_lock);
  void arm_watcher(uint32_t index, bool armed) FABRIC_REQUIRES(state_lock);
  Result<void> seal_batch(BatchId batch, const Notify& notify) FABRIC_REQUIRES(state_lock);
  Result<void> reset_batch(BatchId batch) FABRIC_REQUIRES(state_lock);
  void cancel_batch(BatchId batch) FABRIC_REQUIRES(state_lock);
  Result<std::shared_ptr<SubscriptionState>> subscribe(std::shared_ptr<SubscriptionState> state)
      FABRIC_REQUIRES(state_lock);
  void unsubscribe(SubscriptionState& state) FABRIC_REQUIRES(state_lock);

  /// The reader is done with an event.
  void release_extra(const EventExtra& extra) noexcept;

  SlotTable<InboxSlot> inboxes;
  SlotTable<BatchSlot> batches;
  SlotTable<FlagSlot> flags;
  SlotTable<WatcherSlot> watchers;

 private:
  void deliver(const Notify& notify, Event event, const EventExtra& extra, Op* op)
      FABRIC_REQUIRES(state_lock);
  Result<void> reserve_room(const Notify& notify) noexcept;
  bool push_inbox(InboxSlot& inbox, const Event& event, const EventExtra& extra)
      FABRIC_REQUIRES(state_lock);
  bool reserve_or_starve(const Notify& notify, InboxSlot& inbox) noexcept
      FABRIC_REQUIRES(state_lock);
  bool queue_callback(const CallbackItem& item) FABRIC_REQUIRES(state_lock);
  bool hand_over(SubscriptionState& state, const SubscriptionState::Waiting& waiting)
      FABRIC_REQUIRES(state_lock);
  void report_unhandled(const Event& event) FABRIC_REQUIRES(state_lock);
  bool queue_watch(uint32_t index, WatcherSlot& watcher, uint64_t value)
      FABRIC_REQUIRES(state_lock);
  void report_batch(BatchSlot& slot, const Notify& notify) FABRIC_REQUIRES(state_lock);
  void run_one(CallbackItem& item) noexcept;

  void defer_for_batch(BatchId batch) FABRIC_REQUIRES(state_lock);
  void defer_for_peer(uint32_t peer) FABRIC_REQUIRES(state_lock);
  void report_deferred() FABRIC_REQUIRES(state_lock);

  EngineCore& core_;
  /// What flush_deferred() applies: counts of one batch and of one peer's quota, and free slots.
  struct Deferred {
    BatchId batch{};
    uint32_t delivered = 0;  ///< parts
    uint32_t completed = 0;  ///< operations
    uint32_t quota_peer = UINT32_MAX, charged = 0;
    uint32_t slot_count = 0;
    std::array<uint32_t, 64> slots{};
  };
  Deferred deferred_ FABRIC_GUARDED_BY(state_lock){};
  SpscRing<CallbackItem> callbacks_;
  std::atomic<uint32_t> callbacks_queued_{0};   ///< lowered when one has run; see the next
  std::atomic<bool> callbacks_starved_{false};  ///< something waits for room; as InboxSlot::starved
  std::vector<std::shared_ptr<SubscriptionState>> subscribers_ FABRIC_GUARDED_BY(state_lock);
  std::vector<std::shared_ptr<SubscriptionState>> listeners_ FABRIC_GUARDED_BY(state_lock);
  /// With callbacks still queued.
  std::vector<std::shared_ptr<SubscriptionState>> unsubscribed_ FABRIC_GUARDED_BY(state_lock);
  /// Sealed batches whose callback found no room in the queue; at most one per batch.
  struct PendingSeal {
    Event event{};
    Notify notify{};
  };
  std::deque<PendingSeal> pending_seals_ FABRIC_GUARDED_BY(state_lock);
  std::vector<uint32_t> armed_watchers_ FABRIC_GUARDED_BY(state_lock);
  /// Disarmed watchers whose last value found no room.
  std::vector<uint32_t> final_values_ FABRIC_GUARDED_BY(state_lock);
  uint32_t polled_armed_ FABRIC_GUARDED_BY(state_lock) = 0;
  bool has_waiting_ FABRIC_GUARDED_BY(state_lock) = false;  ///< flush() has work
};

/// True on a thread that is inside a callback of any engine: blocking calls are refused there.
bool in_callback() noexcept;

}  // namespace fabric::core

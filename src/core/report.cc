#include "core/report.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "core/core.h"

// State lock held, on the worker or in a set-up call, with these exceptions: reserve() and
// unreserve() run on submitting threads, release_extra() on reading threads, run_callbacks() and
// run_one() on the callback thread. None of these needs the lock.

namespace fabric::core {

namespace {

constexpr uint32_t kInboxesMax = 65536;
constexpr uint32_t kFlagsMax = 1u << 20;
constexpr uint32_t kWatchersMax = 65536;

// Room in the callback queue for messages, watchers and peer events, in addition to one entry per
// operation. What does not fit waits at its source.
constexpr uint32_t kCallbacksExtra = 1024;

// How many of the engine's own events wait for a subscriber that does not read. Beyond that the
// oldest are dropped, with a log line.
constexpr size_t kWaitingEventsMax = 65536;

// Callbacks per call of run_callbacks(): bounds how long an inline application's loop is blocked.
constexpr uint32_t kCallbacksPerRun = 256;

thread_local uint32_t t_callback_depth = 0;

}  // namespace

bool in_callback() noexcept { return t_callback_depth > 0; }

Reporter::Reporter(EngineCore& core)
    : inboxes(kInboxesMax),
      batches(core.config.batches_max),
      flags(kFlagsMax),
      watchers(kWatchersMax),
      core_(core),
      callbacks_(core.config.ops_max + kCallbacksExtra) {}

Reporter::~Reporter() {
  CallbackItem item;
  while (callbacks_.pop(item)) delete item.extra.message;
  for (uint32_t i = 0; i < inboxes.made(); ++i) {
    InboxSlot* inbox = inboxes.at(i);
    InboxEntry entry;
    while (inbox->ring != nullptr && inbox->ring->pop(entry)) delete entry.extra.message;
    if (const int fd = inbox->fd.load(std::memory_order_relaxed); fd >= 0) ::close(fd);
  }
  for (auto* list : {&subscribers_, &listeners_, &unsubscribed_}) {
    for (auto& state : *list) {
      for (auto& waiting : state->waiting) delete waiting.message;
    }
  }
}

Result<void> Reporter::reserve_room(const Notify& notify) noexcept {
  using Kind = NotifyAccess::Kind;
  const Kind kind = NotifyAccess::kind(notify);
  if (kind == Kind::kCall) {
    if (NotifyAccess::fn(notify) == nullptr) return fail(Errc::kInvalidArgument, "notify");
    return {};
  }
  if (NotifyAccess::target(notify) != &core_) return fail(Errc::kInvalidArgument, "notify");
  const uint32_t slot = NotifyAccess::slot(notify), generation = NotifyAccess::generation(notify);
  if (kind == Kind::kFlag) {
    if (flags.find(slot, generation) == nullptr) return fail(Errc::kNotFound, "notify");
    return {};
  }
  InboxSlot* inbox = inboxes.find(slot, generation);
  if (inbox == nullptr) return fail(Errc::kNotFound, "notify");
  // Sequentially consistent because of reserve_or_starve(). The count only bounds; the ring orders
  // the events themselves.
  uint64_t seen = inbox->reserved.load(std::memory_order_seq_cst);
  do {
    if (seen >> 32 != generation) return fail(Errc::kNotFound, "notify");
    const auto taken = static_cast<uint32_t>(seen);
    if (taken >= inbox->depth.load(std::memory_order_relaxed)) {
      return fail(Errc::kExhausted, "notify");
    }
  } while (!inbox->reserved.compare_exchange_weak(seen, seen + 1, std::memory_order_seq_cst));
  return {};
}

/// For an event without a reservation. False: there is no room, and the reader will kick the worker
/// once it makes some. Sets `starved` first and then tries again; the reader makes room first and
/// then reads `starved`.
bool Reporter::reserve_or_starve(const Notify& notify, InboxSlot& inbox) noexcept {
  if (reserve(notify)) return true;
  inbox.starved.store(true, std::memory_order_seq_cst);  // pairs with Inbox::poll()
  return reserve(notify).has_value();
}

void Reporter::unreserve(const Notify& notify) noexcept {
  if (NotifyAccess::kind(notify) != NotifyAccess::Kind::kInbox) return;
  const uint32_t generation = NotifyAccess::generation(notify);
  InboxSlot* inbox = inboxes.find(NotifyAccess::slot(notify), generation);
  if (inbox == nullptr) return;
  uint64_t seen = inbox->reserved.load(std::memory_order_relaxed);  // confirmed below
  do {
    if (seen >> 32 != generation) return;  // destroyed, and its reservations with it
  } while (!inbox->reserved.compare_exchange_weak(seen, seen - 1, std::memory_order_relaxed));
}

void Reporter::report_part(const Op& op, const PartCompletion& completion) {
  if (!op.batch) return;
  BatchSlot* batch = batches.find(op.batch.slot, op.batch.generation);
  if (batch == nullptr) return;
  if (completion.remote == Remote::kDelivered) {
    batch->delivered.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  batch->failed.fetch_add(1, std::memory_order_relaxed);
  if (completion.remote == Remote::kUnknown) batch->unknown.fetch_add(1, std::memory_order_relaxed);
  const uint32_t n = batch->failure_count.load(std::memory_order_relaxed);
  if (n >= Batch::kFailuresMax) return;
  if (batch->failures == nullptr)
    batch->failures = std::make_unique<Failure[]>(Batch::kFailuresMax);
  batch->failures[n] = {op.id(), completion.peer, completion.part, completion.code,
                        completion.remote};
  batch->failure_count.store(n + 1, std::memory_order_release);  // pairs with Batch::failures()
}

void Reporter::defer_for_batch(BatchId batch) {
  if (deferred_.delivered != 0 || deferred_.completed != 0) flush_deferred();
  deferred_.batch = batch;
}

void Reporter::defer_for_peer(uint32_t peer) {
  if (deferred_.charged != 0) core_.ops.uncharge(deferred_.quota_peer, deferred_.charged);
  deferred_.quota_peer = peer;
  deferred_.charged = 0;
}

/// Slots first: a thread that waits for the batch may submit as soon as it sees it empty.
void Reporter::report_deferred() {
  if (deferred_.slot_count != 0 || deferred_.charged != 0) {
    if (deferred_.charged != 0) core_.ops.uncharge(deferred_.quota_peer, deferred_.charged);
    deferred_.charged = 0;
    core_.ops.give_back(std::span(deferred_.slots).first(deferred_.slot_count));
    deferred_.slot_count = 0;
    core_.room_made();
  }
  if (!deferred_.batch) return;
  const BatchId batch = std::exchange(deferred_.batch, {});
  const uint32_t left = std::exchange(deferred_.completed, 0);
  const uint32_t delivered = std::exchange(deferred_.delivered, 0);
  BatchSlot* const slot = batches.find(batch.slot, batch.generation);
  if (slot == nullptr) return;
  slot->delivered.fetch_add(delivered, std::memory_order_relaxed);
  if (left != 0) leave_batch(batch, left);
}

void Reporter::report_op(Op& op, const Event& event) {
  core_.state_mutex.assert_held();
  const Notify notify = op.notify;
  const BatchId batch = op.batch;
  const bool has_call = NotifyAccess::kind(notify) == NotifyAccess::Kind::kCall;
  const bool silent = NotifyAccess::kind(notify) == NotifyAccess::Kind::kNone;
  // A failure that neither a batch nor a Notify can carry goes to the subscribers
  // (contracts.md P1).
  const bool flagged = NotifyAccess::kind(notify) == NotifyAccess::Kind::kFlag;
  const BatchSlot* joined = batch ? batches.find(batch.slot, batch.generation) : nullptr;
  const bool abandoned =
      joined != nullptr && (joined->word.load(std::memory_order_relaxed) & BatchWord::kAbandoned);
  if (event.code != Errc::kOk && (silent || flagged) && (joined == nullptr || abandoned)) {
    report_unhandled(event);
  }
  // Before the event is visible: its reader may rely on the free slot and on the batch counts.
  if (batch) flush_deferred();
  if (!has_call) core_.ops.give_back(op);
  if (!silent) deliver(notify, event, {}, has_call ? &op : nullptr);
  if (batch) leave_batch(batch);
}

void Reporter::deliver(const Notify& notify, Event event, const EventExtra& extra, Op* op) {
  using Kind = NotifyAccess::Kind;
  event.tag = NotifyAccess::tag(notify);
  switch (NotifyAccess::kind(notify)) {
    case Kind::kNone:
      return;
    case Kind::kFlag: {
      FlagSlot* flag = flags.find(NotifyAccess::slot(notify), NotifyAccess::generation(notify));
      // Release pairs with Flag::load(): data before flag.
      if (flag != nullptr && event.code == Errc::kOk) {
        flag->word.store(NotifyAccess::value(notify), std::memory_order_release);
      }
      return;
    }
    case Kind::kInbox: {
      InboxSlot* inbox = inboxes.find(NotifyAccess::slot(notify), NotifyAccess::generation(notify));
      if (inbox == nullptr) {
        publish(event);
      } else {
        push_inbox(*inbox, event, extra);
      }
      return;
    }
    case Kind::kCall: {
      CallbackItem item{.event = event,
                        .extra = extra,
                        .fn = NotifyAccess::fn(notify),
                        .context = NotifyAccess::target(notify)};
      if (op != nullptr) {
        item.op = op->slot;
        op->state.store(OpState::kReporting, std::memory_order_relaxed);
      }
      // There is always room: one entry per slot, and the slot is given back after the callback.
      queue_callback(item);
      return;
    }
  }
}

bool Reporter::push_inbox(InboxSlot& inbox, const Event& event, const EventExtra& extra) {
  FABRIC_CHECK(inbox.ring->push({event, extra}), "inbox overflow despite its reservation");
  // Acquire pairs with the release in Inbox::fd().
  if (const int fd = inbox.fd.load(std::memory_order_acquire); fd >= 0) {
    const uint64_t one = 1;
    // Can only fail by overflow of the counter, which leaves the descriptor readable.
    [[maybe_unused]] const auto n = ::write(fd, &one, sizeof one);
  }
  inbox.event_count.wake();
  return true;
}

bool Reporter::queue_callback(const CallbackItem& item) {
  // The rest of the ring is reserved for operations. Sets `starved` first and then checks again, as
  // in reserve_or_starve(); pairs with run_callbacks().
  const auto full = [this] {
    return callbacks_queued_.load(std::memory_order_seq_cst) >= kCallbacksExtra;
  };
  if (item.op == UINT32_MAX && full()) {
    callbacks_starved_.store(true, std::memory_order_seq_cst);
    if (full()) return false;
  }
  // Before the push, so that the count never drops below zero.
  callbacks_queued_.fetch_add(1, std::memory_order_relaxed);
  // One entry per operation and kCallbacksExtra for the others: it cannot be full.
  FABRIC_CHECK(callbacks_.push(item), "callback queue overflow");
  core_.driver->wake_callbacks(core_);
  return true;
}

void Reporter::report_unhandled(const Event& event) {
  Event copy = event;
  copy.kind = EventKind::kUnhandled;
  publish(copy);
}

void Reporter::publish(const Event& event) {
  for (auto& state : subscribers_) {
    if (state->waiting.size() >= kWaitingEventsMax) {
      state->waiting.pop_front();
      FABRIC_LOG(core_.log, kWarning, "core",
                 "a subscriber does not read: dropping its oldest event",
                 {"waiting", state->waiting.size()});
    }
    state->waiting.push_back({event, nullptr});
    has_waiting_ = true;
  }
  flush();
}

Reporter::Listener Reporter::listener(uint16_t channel) const noexcept {
  for (const auto& state : listeners_) {
    if (state->channel != channel) continue;
    // Acquire pairs with release_extra().
    const uint32_t held = state->held->load(std::memory_order_acquire);
    return held < core_.config.message_buffers ? Listener::kReady : Listener::kFull;
  }
  return Listener::kMissing;
}

void Reporter::deliver_message(uint16_t channel, const Event& event,
                               std::unique_ptr<MessageBuffer> message) {
  for (auto& state : listeners_) {
    if (state->channel != channel) continue;
    message->held = state->held;
    message->held->fetch_add(1, std::memory_order_relaxed);
    state->waiting.push_back({event, message.release()});
    has_waiting_ = true;
    flush();
    return;
  }
}

bool Reporter::hand_over(SubscriptionState& state, const SubscriptionState::Waiting& waiting) {
  using Kind = NotifyAccess::Kind;
  Event event = waiting.event;
  event.tag = NotifyAccess::tag(state.notify);
  if (waiting.message != nullptr) {
    event.data = waiting.message->bytes.data();
    event.size_bytes = static_cast<uint32_t>(waiting.message->bytes.size());
  }
  const EventExtra extra{.message = waiting.message};
  if (NotifyAccess::kind(state.notify) == Kind::kCall) {
    state.queued.fetch_add(1, std::memory_order_relaxed);
    const bool queued = queue_callback({.event = event,
                                        .extra = extra,
                                        .fn = NotifyAccess::fn(state.notify),
                                        .context = NotifyAccess::target(state.notify),
                                        .subscription = &state});
    if (!queued) state.queued.fetch_sub(1, std::memory_order_relaxed);
    return queued;
  }
  InboxSlot* inbox =
      inboxes.find(NotifyAccess::slot(state.notify), NotifyAccess::generation(state.notify));
  if (inbox == nullptr) {  // destroyed: no reader is left
    release_extra(extra);
    return true;
  }
  if (!reserve_or_starve(state.notify, *inbox)) return false;
  return push_inbox(*inbox, event, extra);
}

uint32_t Reporter::flush() {
  uint32_t done = 0;
  for (auto* list : {&subscribers_, &listeners_}) {
    for (auto& state : *list) {
      while (!state->waiting.empty() && hand_over(*state, state->waiting.front())) {
        state->waiting.pop_front();
        ++done;
      }
    }
  }
  while (!pending_seals_.empty()) {
    const PendingSeal& seal = pending_seals_.front();
    Event event = seal.event;
    event.tag = NotifyAccess::tag(seal.notify);
    if (!queue_callback({.event = event,
                         .fn = NotifyAccess::fn(seal.notify),
                         .context = NotifyAccess::target(seal.notify)})) {
      break;
    }
    pending_seals_.pop_front();
    ++done;
  }
  // Acquire pairs with the release in run_one(): no callback uses it any more.
  std::erase_if(unsubscribed_, [](const auto& state) {
    return state->queued.load(std::memory_order_acquire) == 0;
  });
  const auto waits = [](const auto& state) { return !state->waiting.empty(); };
  has_waiting_ = !pending_seals_.empty() || !unsubscribed_.empty() ||
                 std::any_of(subscribers_.begin(), subscribers_.end(), waits) ||
                 std::any_of(listeners_.begin(), listeners_.end(), waits);
  return done;
}

Result<std::shared_ptr<SubscriptionState>> Reporter::subscribe(
    std::shared_ptr<SubscriptionState> state) {
  using Kind = NotifyAccess::Kind;
  const Kind kind = NotifyAccess::kind(state->notify);
  if (kind != Kind::kCall && kind != Kind::kInbox) return fail(Errc::kInvalidArgument, "notify");
  // Only checks that it exists and belongs to this engine: room is reserved event by event.
  if (auto ok = reserve(state->notify); !ok && ok.error().code != Errc::kExhausted) {
    return ok.error();
  } else if (ok) {
    unreserve(state->notify);
  }
  if (state->is_listener) {
    if (listener(state->channel) != Listener::kMissing) return fail(Errc::kBusy, "channel");
    listeners_.push_back(state);
  } else {
    subscribers_.push_back(state);
  }
  return state;
}

void Reporter::unsubscribe(SubscriptionState& state) {
  auto& list = state.is_listener ? listeners_ : subscribers_;
  const auto it =
      std::find_if(list.begin(), list.end(), [&](const auto& s) { return s.get() == &state; });
  if (it == list.end()) return;
  for (auto& waiting : state.waiting) release_extra({.message = waiting.message});
  state.waiting.clear();
  if (state.queued.load(std::memory_order_acquire) > 0) {
    unsubscribed_.push_back(*it);
    has_waiting_ = true;
  }
  list.erase(it);
}

void Reporter::release_extra(const EventExtra& extra) noexcept {
  if (extra.message != nullptr) {
    extra.message->held->fetch_sub(1, std::memory_order_release);  // pairs with listener()
    delete extra.message;
    core_.kick();  // there may be room for a held message now
  }
  if (extra.watcher_generation != 0) {
    WatcherSlot* watcher = watchers.find(extra.watcher_slot, extra.watcher_generation);
    if (watcher == nullptr) return;
    watcher->outstanding.store(false, std::memory_order_release);  // pairs with poll_watchers()
    core_.kick();  // its word may have changed while the event was unread
  }
}

uint32_t Reporter::run_callbacks() noexcept {
  uint32_t done = 0;
  CallbackItem item;
  while (done < kCallbacksPerRun && callbacks_.pop(item)) {
    run_one(item);
    ++done;
  }
  // After the count went down: pairs with queue_callback().
  if (done > 0 && callbacks_starved_.exchange(false, std::memory_order_seq_cst)) core_.kick();
  return done;
}

bool Reporter::handed_over() const noexcept {
  const auto served = [](const auto& state) {
    // An inbox that is never read must not block close().
    return state->waiting.empty() || NotifyAccess::kind(state->notify) != NotifyAccess::Kind::kCall;
  };
  return pending_seals_.empty() && std::all_of(subscribers_.begin(), subscribers_.end(), served);
}

void Reporter::run_one(CallbackItem& item) noexcept {
  ++t_callback_depth;
  if (item.subscription != nullptr) {
    std::lock_guard running(item.subscription->running);
    if (item.subscription->alive) item.fn(item.context, item.event);
  } else if (item.extra.watcher_generation != 0) {
    WatcherSlot* watcher = watchers.at(item.extra.watcher_slot);
    std::lock_guard running(watcher->running);
    if (watchers.find(item.extra.watcher_slot, item.extra.watcher_generation) != nullptr) {
      item.fn(item.context, item.event);
    }
  } else {
    item.fn(item.context, item.event);
  }
  --t_callback_depth;
  if (item.subscription != nullptr) {
    item.subscription->queued.fetch_sub(1, std::memory_order_release);  // pairs with flush()
  }
  release_extra(item.extra);
  core_.callbacks_run.fetch_add(1, std::memory_order_relaxed);
  if (item.op != UINT32_MAX) {
    core_.ops.give_back(core_.ops.at(item.op));
    core_.room_made();
  }
  callbacks_queued_.fetch_sub(1, std::memory_order_seq_cst);  // pairs with callbacks_idle()
}

uint32_t Reporter::poll_watchers() {
  uint32_t done = 0;
  std::erase_if(final_values_, [&](uint32_t index) FABRIC_REQUIRES(state_lock) {
    WatcherSlot* watcher = watchers.at(index);
    const uint64_t value = __atomic_load_n(&watcher->word, __ATOMIC_ACQUIRE);  // as below
    if (value != watcher->reported && !queue_watch(index, *watcher, value)) return false;
    ++done;
    return true;
  });
  for (const uint32_t index : armed_watchers_) {
    WatcherSlot* watcher = watchers.at(index);
    // Acquire pairs with release_extra(): the reader is done with the previous value.
    if (watcher->outstanding.load(std::memory_order_acquire)) continue;
    // Acquire pairs with Watcher::store() or a foreign release store.
    const uint64_t value = __atomic_load_n(&watcher->word, __ATOMIC_ACQUIRE);
    if (value == watcher->reported) continue;
    if (queue_watch(index, *watcher, value)) ++done;
  }
  return done;
}

bool Reporter::queue_watch(uint32_t index, WatcherSlot& watcher, uint64_t value) {
  const uint32_t generation = watcher.generation.load(std::memory_order_relaxed);
  Event event{.kind = EventKind::kWatch, .value = value, .previous = watcher.reported};
  event.tag = NotifyAccess::tag(watcher.notify);
  const EventExtra extra{.watcher_slot = index, .watcher_generation = generation};
  watcher.outstanding.store(true, std::memory_order_relaxed);
  bool queued = true;
  if (NotifyAccess::kind(watcher.notify) == NotifyAccess::Kind::kCall) {
    queued = queue_callback({.event = event,
                             .extra = extra,
                             .fn = NotifyAccess::fn(watcher.notify),
                             .context = NotifyAccess::target(watcher.notify)});
  } else {
    InboxSlot* inbox =
        inboxes.find(NotifyAccess::slot(watcher.notify), NotifyAccess::generation(watcher.notify));
    queued = inbox != nullptr && reserve_or_starve(watcher.notify, *inbox) &&
             push_inbox(*inbox, event, extra);
  }
  if (queued) {
    watcher.reported = value;
  } else {
    watcher.outstanding.store(false, std::memory_order_relaxed);
  }
  return queued;
}

InboxSlot* Reporter::make_inbox(uint32_t depth, uint32_t& index) {
  InboxSlot* inbox = inboxes.acquire(index);
  if (inbox == nullptr) return nullptr;
  inbox->ring = std::make_unique<SpscRing<InboxEntry>>(depth);
  inbox->depth.store(depth, std::memory_order_relaxed);
  inbox->starved.store(false, std::memory_order_relaxed);
  // Release: a thread that sees the new generation sees its depth.
  const uint64_t generation = SlotTable<InboxSlot>::next_generation(*inbox);
  inbox->reserved.store(generation << 32, std::memory_order_release);
  inboxes.publish(index);
  return inbox;
}

void Reporter::drop_inbox(uint32_t index) {
  InboxSlot* inbox = inboxes.at(index);
  inboxes.hide(index);
  // Operations that report here later do not find it, and publish to the subscribers instead; so do
  // completions that were queued and never read.
  InboxEntry entry;
  while (inbox->ring->pop(entry)) {
    if (entry.event.kind == EventKind::kDone) publish(entry.event);
    release_extra(entry.extra);
  }
  if (const int fd = inbox->fd.exchange(-1, std::memory_order_acq_rel); fd >= 0) ::close(fd);
  inbox->ring.reset();  // the slot may stay unused for long
  inboxes.recycle(index);
}

void Reporter::wake_readers() noexcept {
  for (uint32_t i = 0; i < inboxes.made(); ++i) inboxes.at(i)->event_count.wake();
}

FlagSlot* Reporter::make_flag(uint32_t& index) {
  FlagSlot* flag = flags.acquire(index);
  if (flag == nullptr) return nullptr;
  flag->word.store(0, std::memory_order_relaxed);
  flags.publish(index);
  return flag;
}

void Reporter::drop_flag(uint32_t index) { flags.recycle(index); }

WatcherSlot* Reporter::make_watcher(const Notify& notify, bool polled, uint32_t& index) {
  WatcherSlot* watcher = watchers.acquire(index);
  if (watcher == nullptr) return nullptr;
  watcher->notify = notify;
  watcher->polled = polled;
  watcher->reported = 0;
  watcher->outstanding.store(false, std::memory_order_relaxed);
  watcher->armed.store(false, std::memory_order_relaxed);
  __atomic_store_n(&watcher->word, 0, __ATOMIC_RELAXED);
  watchers.publish(index);
  return watcher;
}

void Reporter::arm_watcher(uint32_t index, bool armed) {
  WatcherSlot* watcher = watchers.at(index);
  if (watcher->armed.load(std::memory_order_relaxed) == armed) return;
  watcher->armed.store(armed, std::memory_order_relaxed);
  if (armed) {
    armed_watchers_.push_back(index);
  } else {
    // The last value is queued before disarm() returns, even if the previous one is still unread.
    const uint64_t value = __atomic_load_n(&watcher->word, __ATOMIC_ACQUIRE);
    if (value != watcher->reported && !queue_watch(index, *watcher, value)) {
      final_values_.push_back(index);  // no room: poll_watchers() tries again
    }
    std::erase(armed_watchers_, index);
  }
  polled_armed_ = 0;
  for (const uint32_t i : armed_watchers_) polled_armed_ += watchers.at(i)->polled ? 1 : 0;
}

void Reporter::drop_watcher(uint32_t index) {
  watchers.hide(index);
  std::erase(final_values_, index);
  watchers.recycle(index);
}

}  // namespace fabric::core

#include <fabric/notify.h>

#include "core/core.h"
#include "core/report.h"

// Batches: the atomic word that counts their members, and the public handle. enter_batch()
// and batch_cancelled() run on any thread without a lock; the other functions of Reporter here run
// under the state lock. The handle may be used from any thread, and takes the lock where it changes
// more than the word.

namespace fabric::core {

namespace {
constexpr uint64_t batch_word(uint32_t generation, uint64_t rest) {
  return static_cast<uint64_t>(generation) << 32 | rest;
}
bool is_generation(uint64_t word, BatchId batch) { return word >> 32 == batch.generation; }
}  // namespace

Result<void> Reporter::enter_batch(BatchId batch, uint32_t members) noexcept {
  if (!batch) return {};
  BatchSlot* slot = batches.find(batch.slot, batch.generation);
  if (slot == nullptr) return fail(Errc::kNotFound, "batch");
  uint64_t word = slot->word.load(std::memory_order_relaxed);
  do {
    if (!is_generation(word, batch)) return fail(Errc::kNotFound, "batch");
    if (word & BatchWord::kRefuses) return fail(Errc::kCancelled, "batch");
    // Acquire-release: part of the same release sequence as leave_batch().
  } while (!slot->word.compare_exchange_weak(word, word + members, std::memory_order_acq_rel,
                                             std::memory_order_relaxed));
  return {};
}

bool Reporter::batch_cancelled(BatchId batch) const noexcept {
  if (!batch) return false;
  const BatchSlot* slot = batches.find(batch.slot, batch.generation);
  if (slot == nullptr) return false;
  const uint64_t word = slot->word.load(std::memory_order_acquire);
  return is_generation(word, batch) && (word & BatchWord::kCancelled);
}

void Reporter::leave_batch(BatchId batch, uint32_t members) {
  BatchSlot* slot = batches.find(batch.slot, batch.generation);
  if (slot == nullptr) return;
  // Release: a thread that sees the count at zero sees everything that was recorded before.
  const uint64_t before = slot->word.fetch_sub(members, std::memory_order_acq_rel);
  if ((before & BatchWord::kPending) != members) return;
  slot->event_count.wake();
  if (before & BatchWord::kSealed) {
    const Notify notify = slot->on_empty;
    slot->word.fetch_and(~BatchWord::kSealed, std::memory_order_acq_rel);
    report_batch(*slot, notify);
  }
  // After the report, which a sealed batch still owes when its handle is destroyed.
  if (before & BatchWord::kAbandoned) batches.recycle(batch.slot);
}

void Reporter::report_batch(BatchSlot& slot, const Notify& notify) {
  Event event{.kind = EventKind::kDone};
  event.value = slot.delivered.load(std::memory_order_relaxed);
  event.parts_unknown = slot.unknown.load(std::memory_order_relaxed);
  event.parts_failed = static_cast<uint32_t>(slot.failed.load(std::memory_order_relaxed));
  if (slot.failure_count.load(std::memory_order_relaxed) > 0) {
    event.code = slot.failures[0].code;
    event.peer = slot.failures[0].peer;
    event.op = slot.failures[0].op;
    event.first_failed = slot.failures[0].part;
    event.remote =
        event.parts_unknown > 0 || event.value > 0 ? Remote::kUnknown : Remote::kNotDelivered;
  }
  if (NotifyAccess::kind(notify) == NotifyAccess::Kind::kCall) {
    pending_seals_.push_back({event, notify});
    flush();
  } else {
    deliver(notify, event, {}, nullptr);
  }
}

BatchSlot* Reporter::make_batch(uint32_t& index) {
  BatchSlot* slot = batches.acquire(index);
  if (slot == nullptr) return nullptr;
  slot->delivered.store(0, std::memory_order_relaxed);
  slot->failed.store(0, std::memory_order_relaxed);
  slot->unknown.store(0, std::memory_order_relaxed);
  slot->failure_count.store(0, std::memory_order_relaxed);
  const uint32_t generation = SlotTable<BatchSlot>::next_generation(*slot);
  slot->word.store(batch_word(generation, 0), std::memory_order_relaxed);
  batches.publish(index);
  return slot;
}

void Reporter::drop_batch(BatchId batch) {
  BatchSlot* slot = batches.find(batch.slot, batch.generation);
  if (slot == nullptr) return;
  const uint64_t before =
      slot->word.fetch_or(BatchWord::kAbandoned | BatchWord::kRefuses | BatchWord::kCancelled,
                          std::memory_order_acq_rel);
  if ((before & BatchWord::kPending) == 0) batches.recycle(batch.slot);
}

Result<void> Reporter::seal_batch(BatchId batch, const Notify& notify) {
  BatchSlot* slot = batches.find(batch.slot, batch.generation);
  if (slot == nullptr) return fail(Errc::kNotFound, "batch");
  if (slot->word.load(std::memory_order_relaxed) & BatchWord::kSealed) {
    return fail(Errc::kBusy, "batch");
  }
  if (auto ok = reserve(notify); !ok) return ok.error();
  slot->on_empty = notify;
  const uint64_t before =
      slot->word.fetch_or(BatchWord::kSealed | BatchWord::kRefuses, std::memory_order_acq_rel);
  if ((before & BatchWord::kPending) == 0) {
    slot->word.fetch_and(~BatchWord::kSealed, std::memory_order_acq_rel);
    report_batch(*slot, notify);
  }
  return {};
}

Result<void> Reporter::reset_batch(BatchId batch) {
  BatchSlot* slot = batches.find(batch.slot, batch.generation);
  if (slot == nullptr) return fail(Errc::kNotFound, "batch");
  uint64_t word = slot->word.load(std::memory_order_acquire);
  if ((word & BatchWord::kPending) != 0) return fail(Errc::kBusy, "batch");
  const uint64_t clean = batch_word(batch.generation, 0);
  if (!slot->word.compare_exchange_strong(word, clean, std::memory_order_acq_rel,
                                          std::memory_order_relaxed)) {
    return fail(Errc::kBusy, "batch");  // an operation has just joined: the results stay
  }
  // What joins from here on cannot be reported before this: that takes the state lock.
  slot->delivered.store(0, std::memory_order_relaxed);
  slot->failed.store(0, std::memory_order_relaxed);
  slot->unknown.store(0, std::memory_order_relaxed);
  slot->failure_count.store(0, std::memory_order_relaxed);
  return {};
}

void Reporter::cancel_batch(BatchId batch) {
  BatchSlot* slot = batches.find(batch.slot, batch.generation);
  if (slot == nullptr) return;
  slot->word.fetch_or(BatchWord::kRefuses | BatchWord::kCancelled, std::memory_order_acq_rel);
}

}  // namespace fabric::core

namespace fabric {

Batch::Batch(std::shared_ptr<core::BatchState> state) noexcept : state_(std::move(state)) {}
Batch::Batch(Batch&&) noexcept = default;
Batch& Batch::operator=(Batch&& other) noexcept {
  Batch dying(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

Batch::~Batch() {
  if (state_ == nullptr) return;
  if (core::EngineCore::leak_if_forked(state_)) return;
  state_->core->abandon_batch(state_->id);
}

BatchId Batch::id() const noexcept { return state_ == nullptr ? BatchId{} : state_->id; }

uint64_t Batch::pending() const noexcept {
  if (state_ == nullptr) return 0;
  // Acquire pairs with leave_batch(): zero means that all results below are final.
  return state_->slot->word.load(std::memory_order_acquire) & core::BatchWord::kPending;
}
uint64_t Batch::failed() const noexcept {
  return state_ == nullptr ? 0 : state_->slot->failed.load(std::memory_order_relaxed);
}
uint64_t Batch::delivered() const noexcept {
  return state_ == nullptr ? 0 : state_->slot->delivered.load(std::memory_order_relaxed);
}
uint64_t Batch::unknown() const noexcept {
  return state_ == nullptr ? 0 : state_->slot->unknown.load(std::memory_order_relaxed);
}

uint32_t Batch::failures(std::span<Failure> out) const noexcept {
  if (state_ == nullptr || state_->core->forked()) return 0;
  const core::StateGuard lock(state_->core->state_mutex);
  const uint32_t n = std::min<uint32_t>(state_->slot->failure_count.load(std::memory_order_acquire),
                                        static_cast<uint32_t>(out.size()));
  for (uint32_t i = 0; i < n; ++i) out[i] = state_->slot->failures[i];
  return n;
}

Result<void> Batch::seal(Notify notify) noexcept {
  if (state_ == nullptr) return fail(Errc::kNotFound, "batch");
  core::EngineCore& core = *state_->core;
  const core::OpenStateGuard lock(core);
  if (!lock) return fail(Errc::kClosed, "engine");
  return core.reporter.seal_batch(state_->id, notify);
}

Result<void> Batch::reset() noexcept {
  if (state_ == nullptr) return fail(Errc::kNotFound, "batch");
  core::EngineCore& core = *state_->core;
  const core::OpenStateGuard lock(core);
  if (!lock) return fail(Errc::kClosed, "engine");
  return core.reporter.reset_batch(state_->id);
}

}  // namespace fabric

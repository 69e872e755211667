#include <algorithm>

#include "core/core.h"

// Cancelling and waiting, on any thread of the application. cancel() takes the state lock; a wait
// spins and sleeps without it, and takes it only to read the failures of a batch.

namespace fabric::core {

namespace {
// Every change is followed by a wake-up; this only bounds the delay if the waking thread is
// stopped.
constexpr int64_t kSleepMaxNs = 50'000'000;

void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}
}  // namespace

Result<void> EngineCore::cancel(OpId id) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  if (!id) return fail(Errc::kInvalidArgument, "op");
  const OpenStateGuard lock(*this);
  if (!lock) return fail(Errc::kClosed, "engine");
  Op* op = ops.find(id);
  if (op == nullptr) return fail(Errc::kNotFound, "op");
  // Acquire pairs with admit(). The callback thread gives slots back without the lock, and the next
  // submitter may be filling this one already: so the generation is checked again.
  const OpState state = op->state.load(std::memory_order_acquire);
  if (ops.find(id) == nullptr) return fail(Errc::kNotFound, "op");
  switch (state) {
    case OpState::kFree:
    case OpState::kReporting:
      return fail(Errc::kNotFound, "op");
    case OpState::kQueued:
      op->cancel_requested.store(true, std::memory_order_relaxed);
      break;
    case OpState::kRunning:
      advance_clock(driver->now_ns());
      stop(*op, Errc::kCancelled);
      kick();
      break;
    case OpState::kDraining:
      break;
  }
  return {};
}

Result<void> EngineCore::cancel(BatchId id) {
  const OpenStateGuard lock(*this);
  if (!lock) return fail(Errc::kClosed, "engine");
  if (reporter.batches.find(id.slot, id.generation) == nullptr) {
    return fail(Errc::kNotFound, "batch");
  }
  reporter.cancel_batch(id);  // begin() completes members that are still in the ring
  stop_batch(id, Errc::kCancelled);
  return {};
}

void EngineCore::stop_batch(BatchId id, Errc code) {
  advance_clock(driver->now_ns());
  stop_where([&](const Op& op) { return op.batch == id; }, code);
  kick();
}

void EngineCore::abandon_batch(BatchId id) {
  const StateGuard lock(state_mutex);
  // Abandoned first: failures of what is stopped below then go to the subscribers
  // (contracts.md P1).
  reporter.drop_batch(id);
  if (!closed.load(std::memory_order_relaxed)) stop_batch(id, Errc::kCancelled);
}

Result<void> EngineCore::block(EventCount& event_count, const std::function<bool()>& done,
                               Timeout timeout) {
  if (in_callback()) return fail(Errc::kWouldDeadlock, "a blocking call in a callback");
  auto until = deadline(timeout, true);
  if (!until) return until.error();
  if (!driver->threaded()) {
    // A simulated process may be killed while it waits.
    const auto done_or_gone = [&] { return done() || closed.load(std::memory_order_acquire); };
    if (!driver->drive(done_or_gone, *until)) return fail(Errc::kTimeout, "wait");
    if (!done()) return fail(Errc::kClosed, "engine");
    return {};
  }
  const int64_t spin_until = std::min(*until, driver->now_ns() + config.spin.count());
  for (uint32_t i = 0; !done(); ++i) {
    relax();
    // Reading the clock costs as much as many checks of the condition.
    if (i % 64 == 63 && driver->now_ns() >= spin_until) break;
  }
  while (!done()) {
    const int64_t left = *until - driver->now_ns();
    if (left <= 0) return fail(Errc::kTimeout, "wait");
    const auto ticket = event_count.prepare();
    if (done()) break;
    event_count.sleep(ticket, std::min(left, kSleepMaxNs));
  }
  return {};
}

Result<void> EngineCore::wait(BatchId id, Timeout timeout) {
  if (forked() || closed.load(std::memory_order_acquire)) return fail(Errc::kClosed, "engine");
  BatchSlot* batch = reporter.batches.find(id.slot, id.generation);
  if (batch == nullptr) return fail(Errc::kNotFound, "batch");
  const auto empty = [&] {
    // Acquire pairs with leave_batch(): the results below are final. Another generation: the batch
    // was destroyed during the wait, and its slot is in use again.
    const uint64_t word = batch->word.load(std::memory_order_acquire);
    return word >> 32 != id.generation || (word & BatchWord::kPending) == 0;
  };
  if (auto ok = block(batch->event_count, empty, timeout); !ok) return ok;
  if (batch->failure_count.load(std::memory_order_acquire) == 0) return {};
  const StateGuard lock(state_mutex);
  if (reporter.batches.find(id.slot, id.generation) == nullptr) {
    return fail(Errc::kNotFound, "batch");
  }
  if (batch->failure_count.load(std::memory_order_relaxed) == 0) return {};
  return fail(batch->failures[0].code, "an operation of the batch failed");
}

Result<void> EngineCore::may_wait(Timeout timeout) const {
  if (refuses()) return fail(Errc::kClosed, "engine");
  if (in_callback()) return fail(Errc::kWouldDeadlock, "a blocking call in a callback");
  if (auto ok = deadline(timeout, true); !ok) return ok.error();
  return {};
}

Result<void> EngineCore::wait_count(CounterKey key, uint64_t n, Timeout timeout) {
  if (auto ok = may_wait(timeout); !ok) return ok;
  CounterTable::Waiter waiter;
  auto armed = counters.table.expect(key, n, waiter);
  if (!armed) return armed.error();
  return armed->met ? Result<void>{} : await(armed->expectation, waiter, timeout);
}

Result<void> EngineCore::wait_group(CounterGroupState& group, uint64_t n, Timeout timeout) {
  if (auto ok = may_wait(timeout); !ok) return ok;
  CounterTable::Waiter waiter;
  CounterTable::Armed armed{.met = true};
  {
    // Armed under the lock: mask() may replace the parent.
    const OpenStateGuard lock(*this);
    if (!lock) return fail(Errc::kClosed, "engine");
    if (auto ok = group.begin_expectation(n); !ok) return ok;
    if (group.owed != 0) {
      auto at_parent = counters.table.expect(group.parent, group.owed, waiter);
      if (!at_parent) return at_parent.error();
      armed = *at_parent;
    }
    group.expectation_armed(armed);
  }
  return armed.met ? Result<void>{} : await(armed.expectation, waiter, timeout);
}

namespace {
/// A thread in await(), in EngineCore::waiters. More threads than this counts do not exist.
constexpr uint32_t kWaiterBits = 24;
constexpr uint64_t waiter_word(CounterKey key) noexcept {
  return uint64_t{key.wire()} << kWaiterBits | 1;
}
}  // namespace

uint32_t EngineCore::arrivals_needed() {
  // A running expectation may be met by any arrival. One that is not running yet is in the
  // submission ring, or will wake the worker when it is put there.
  if (waiting_ops.load(std::memory_order_relaxed) == 0) {
    sleeps_through_arrivals.store(true, std::memory_order_seq_cst);  // pairs with await()
    const uint64_t all = waiters.load(std::memory_order_seq_cst);
    const auto key = CounterKey::from_wire(static_cast<uint32_t>(all >> kWaiterBits));
    // Another word than this: there are none, or several.
    const uint64_t missing = all == waiter_word(key) ? counters.arrivals_missing(key) : 0;
    if (missing > 1) return static_cast<uint32_t>(std::min<uint64_t>(missing, UINT32_MAX));
  }
  sleeps_through_arrivals.store(false, std::memory_order_relaxed);
  return 1;
}

Result<void> EngineCore::await(const CounterTable::Expectation& mine,
                               const CounterTable::Waiter& waiter, Timeout timeout) {
  waiters.fetch_add(waiter_word(mine.key), std::memory_order_seq_cst);
  // Sequentially consistent, as arrivals_needed(): the worker sees this waiter, or is woken.
  if (sleeps_through_arrivals.load(std::memory_order_seq_cst)) driver->wake(*this);
  const auto ended_or_closing = [&] {
    return waiter.end().done || closing.load(std::memory_order_acquire);
  };
  auto waited = block(counters.table.event_count(mine.key), ended_or_closing, timeout);
  if (!waiter.end().done) {
    // Not met in time. If another thread completes it at this moment, that result wins.
    const Errc why = waited ? Errc::kClosed : waited.error().code;
    counters.table.cancel(mine, why);
    while (!waiter.end().done) relax();
  }
  // Relaxed: a worker that still counts this waiter finds that nothing is missing.
  waiters.fetch_sub(waiter_word(mine.key), std::memory_order_relaxed);
  const Errc code = waiter.end().code;
  if (code == Errc::kOk) return {};
  return fail(code, "expectation");
}

}  // namespace fabric::core

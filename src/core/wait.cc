#include <algorithm>

#include "core/core.h"

// Cancelling and waiting.

namespace fabric::core {

namespace {
// Every wake-up is announced; this only bounds the harm of a stopped announcer.
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
  const auto lock = lock_if_open();
  if (!lock) return fail(Errc::kClosed, "engine");
  Op* op = ops.find(id);
  if (op == nullptr) return fail(Errc::kNotFound, "op");
  // Acquire pairs with admit(). The callback thread gives slots back without the lock, and the next
  // submitter may be in this one already: then the generation tells.
  const OpState state = op->state.load(std::memory_order_acquire);
  if (ops.find(id) == nullptr) return fail(Errc::kNotFound, "op");
  switch (state) {
    case OpState::kFree:
    case OpState::kReporting:
      return fail(Errc::kNotFound, "op");
    case OpState::kQueued:
      op->cancel_asked.store(true, std::memory_order_relaxed);
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
  const auto lock = lock_if_open();
  if (!lock) return fail(Errc::kClosed, "engine");
  if (reporter.batches.find(id.slot, id.generation) == nullptr) {
    return fail(Errc::kNotFound, "batch");
  }
  reporter.cancel_batch(id);  // those still in the ring end when they are taken
  stop_batch(id, Errc::kCancelled);
  return {};
}

void EngineCore::stop_batch(BatchId id, Errc code) {
  advance_clock(driver->now_ns());
  stop_where([&](const Op& op) { return op.batch == id; }, code);
  kick();
}

void EngineCore::abandon_batch(BatchId id) {
  std::lock_guard lock(state_mutex);
  // Abandoned first: what ends in the line below has nobody but the subscribers to tell (P1).
  reporter.drop_batch(id);
  if (!closed.load(std::memory_order_relaxed)) stop_batch(id, Errc::kCancelled);
}

Result<void> EngineCore::block(EventCount& event_count, const std::function<bool()>& done,
                               Timeout timeout) {
  if (in_callback()) return fail(Errc::kWouldDeadlock, "a blocking call in a callback");
  auto until = deadline(timeout, true);
  if (!until) return until.error();
  if (!driver->threaded()) {
    // A simulated process may die under its own wait.
    const auto done_or_gone = [&] { return done() || closed.load(std::memory_order_acquire); };
    if (!driver->drive(done_or_gone, *until)) return fail(Errc::kTimeout, "wait");
    if (!done()) return fail(Errc::kClosed, "engine");
    return {};
  }
  const int64_t spin_until = std::min(*until, driver->now_ns() + config.spin.count());
  for (uint32_t i = 0; !done(); ++i) {
    relax();
    // A look at the clock costs as much as many looks at the condition.
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
    // Acquire pairs with leave_batch(): the results below are final. Of another life: the batch was
    // destroyed under the wait, and its slot is in use again.
    const uint64_t word = batch->word.load(std::memory_order_acquire);
    return word >> 32 != id.generation || (word & BatchWord::kPending) == 0;
  };
  if (auto ok = block(batch->event_count, empty, timeout); !ok) return ok;
  if (batch->failure_count.load(std::memory_order_acquire) == 0) return {};
  std::lock_guard lock(state_mutex);
  if (reporter.batches.find(id.slot, id.generation) == nullptr) {
    return fail(Errc::kNotFound, "batch");
  }
  if (batch->failure_count.load(std::memory_order_relaxed) == 0) return {};
  return fail(batch->failures[0].code, "an operation of the batch failed");
}

Result<void> EngineCore::wait_count(CounterKey key, uint64_t n, Timeout timeout,
                                    CounterTable::Armed* armed_out) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  if (in_callback()) return fail(Errc::kWouldDeadlock, "a blocking call in a callback");
  if (auto ok = deadline(timeout, true); !ok) return ok.error();
  auto armed = counters.table.expect(key, n, CounterTable::kWaiter);
  if (!armed) return armed.error();
  if (armed_out != nullptr) *armed_out = *armed;
  if (armed->met) return {};
  const CounterTable::Expectation mine = armed->expectation;
  const auto ended_or_closing = [&] {
    return counters.table.peek(mine).done || closing.load(std::memory_order_acquire);
  };
  auto waited = block(counters.table.event_count(key), ended_or_closing, timeout);
  if (!counters.table.peek(mine).done) {
    // Not met in time. If it is met at this very moment, that end wins.
    const Errc why = waited ? Errc::kClosed : waited.error().code;
    counters.table.cancel(mine, why);
    while (!counters.table.peek(mine).done) relax();
  }
  const Errc code = counters.table.result(mine).code;
  if (code == Errc::kOk) return {};
  return fail(code, "expectation");
}

}  // namespace fabric::core

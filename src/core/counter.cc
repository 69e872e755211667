#include <fabric/counter.h>

#include <algorithm>

#include "core/core.h"

// The public handle Counter, on any thread of the application. Counts and expectations go to the
// lock-free CounterTable; what changes names, bindings or counter keys takes the state lock for a
// moment.

namespace fabric {

using core::EngineCore;

Counter::Counter(std::shared_ptr<core::CounterState> state) noexcept : state_(std::move(state)) {}
Counter::Counter(Counter&&) noexcept = default;
Counter& Counter::operator=(Counter&& other) noexcept {
  Counter dying(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

Counter::~Counter() {
  if (state_ == nullptr) return;
  if (EngineCore::leak_if_forked(state_)) return;
  release();
}

CounterKey Counter::key() const noexcept { return state_ == nullptr ? CounterKey{} : state_->key; }

uint64_t Counter::count() const noexcept {
  if (state_ == nullptr || state_->core->forked()) return 0;
  state_->core->take_in_arrivals();
  return state_->core->counters.table.count(state_->key);
}

bool Counter::try_take(uint64_t n) noexcept {
  if (state_ == nullptr || state_->core->refuses()) return false;
  state_->core->take_in_arrivals();
  return state_->core->counters.table.try_take(state_->key, n);
}

Result<OpId> Counter::expect(uint64_t n, Notify notify, Timeout timeout) {
  if (state_ == nullptr) return fail(Errc::kReleased, "counter");
  if (state_->grouped.load(std::memory_order_relaxed)) return fail(Errc::kBusy, "counter");
  if (n == 0) return fail(Errc::kInvalidArgument, "n");
  return state_->core->expect({.key = state_->key, .n = n, .value = n}, notify, timeout);
}

Result<void> Counter::wait(uint64_t n, Timeout timeout) {
  if (state_ == nullptr) return fail(Errc::kReleased, "counter");
  if (state_->grouped.load(std::memory_order_relaxed)) return fail(Errc::kBusy, "counter");
  return state_->core->wait_count(state_->key, n, timeout);
}

void Counter::disarm() noexcept {
  if (state_ == nullptr || state_->core->forked()) return;
  state_->core->counters.table.disarm(state_->key);
}

Result<void> Counter::bind(PeerId id) {
  if (state_ == nullptr) return fail(Errc::kReleased, "counter");
  EngineCore& core = *state_->core;
  const core::OpenStateGuard lock(core);
  if (!lock) return fail(Errc::kClosed, "engine");
  core::Peer* peer = core.peers.find(id);
  if (peer == nullptr) return fail(Errc::kNotFound, "peer");
  if (!core.counters.table.live(state_->key)) return fail(Errc::kReleased, "counter");
  if (peer->state.load(std::memory_order_relaxed) >= PeerState::kLost) {
    core.counters.abort(state_->key, Errc::kPeerLost, id);
    return fail(Errc::kPeerLost, "peer");
  }
  core.counters.bind(state_->key, *peer);
  return {};
}

void Counter::release() noexcept {
  if (state_ == nullptr || state_->core->forked()) return;
  EngineCore& core = *state_->core;
  const core::StateGuard lock(core.state_mutex);
  core.counters.release({.key = state_->key, .named = state_->named, .name = state_->name},
                        core.driver->now_ns());
  core.kick();
}

Result<Quiescence> Counter::close(Timeout timeout) {
  if (state_ == nullptr) return fail(Errc::kReleased, "counter");
  EngineCore& core = *state_->core;
  if (core.refuses()) return fail(Errc::kClosed, "engine");
  if (core::in_callback()) return fail(Errc::kWouldDeadlock, "a blocking call in a callback");
  if (auto ok = core.deadline(timeout, false); !ok) return ok.error();
  {
    const core::StateGuard lock(core.state_mutex);
    if (!core.counters.table.live(state_->key)) return fail(Errc::kReleased, "counter");
    core.advance_clock(core.driver->now_ns());
    core.counters.release(
        {.key = state_->key, .named = state_->named, .name = state_->name, .awaits_drain = true},
        core.now_ns);
    core.kick();
  }
  // All senders are known only for a named counter key. The application passed an unnamed one on by
  // itself: its value is quarantined before it is reused.
  if (!state_->named) return Quiescence::kQuarantined;
  const auto confirmed = [&] {
    const core::StateGuard lock(core.state_mutex);
    return core.counters.revocation_state(state_->key).awaited == 0;
  };
  const bool in_time = core.block(core.counters.confirmations, confirmed, timeout).has_value();
  const core::StateGuard lock(core.state_mutex);
  const bool proved = in_time && !core.counters.revocation_state(state_->key).unproved;
  core.counters.forget(state_->key);
  return proved ? Quiescence::kProved : Quiescence::kQuarantined;
}

}  // namespace fabric

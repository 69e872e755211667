#include <fabric/counter.h>

#include <algorithm>

#include "core/core.h"

// The public handles Counter and CounterGroup, on any thread of the application. Counts and
// expectations go to the lock-free CounterTable; what changes names, bindings, groups or counter
// keys takes the state lock for a moment.

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
  return state_->core->counters.table.count(state_->key);
}

bool Counter::try_take(uint64_t n) noexcept {
  if (state_ == nullptr || state_->core->refuses()) return false;
  return state_->core->counters.table.try_take(state_->key, n);
}

Result<OpId> Counter::expect(uint64_t n, Notify notify, Timeout timeout) {
  if (state_ == nullptr) return fail(Errc::kReleased, "counter");
  if (state_->grouped.load(std::memory_order_relaxed)) return fail(Errc::kBusy, "counter");
  return state_->core->expect(state_->key, n, notify, timeout);
}

Result<void> Counter::wait(uint64_t n, Timeout timeout) {
  if (state_ == nullptr) return fail(Errc::kReleased, "counter");
  if (state_->grouped.load(std::memory_order_relaxed)) return fail(Errc::kBusy, "counter");
  return state_->core->wait_count(state_->key, n, timeout);
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

// Groups

CounterGroup::CounterGroup(std::shared_ptr<core::CounterGroupState> state) noexcept
    : state_(std::move(state)) {}
CounterGroup::CounterGroup(CounterGroup&&) noexcept = default;
CounterGroup& CounterGroup::operator=(CounterGroup&& other) noexcept {
  CounterGroup dying(std::move(*this));
  state_ = std::move(other.state_);
  return *this;
}

CounterGroup::~CounterGroup() {
  if (state_ == nullptr) return;
  if (EngineCore::leak_if_forked(state_)) return;
  EngineCore& core = *state_->core;
  const core::StateGuard lock(core.state_mutex);
  for (size_t i = 0; i < state_->members.size(); ++i) {
    core.counters.table.set_parent(state_->members[i].key, CounterKey{});
    if (auto member = state_->handles[i].lock()) {
      member->grouped.store(false, std::memory_order_relaxed);
    }
  }
  core.counters.release({.key = state_->parent}, core.driver->now_ns());
}

Result<void> CounterGroup::add(Counter& member, PeerId id, uint64_t share) {
  if (state_ == nullptr || member.state_ == nullptr) return fail(Errc::kReleased, "member");
  EngineCore& core = *state_->core;
  if (share == 0) return fail(Errc::kInvalidArgument, "share");
  if (member.state_->core != state_->core) return fail(Errc::kInvalidArgument, "member");
  const core::OpenStateGuard lock(core);
  if (!lock) return fail(Errc::kClosed, "engine");
  core::Peer* peer = core.peers.find(id);
  if (peer == nullptr) return fail(Errc::kNotFound, "peer");
  if (peer->state.load(std::memory_order_relaxed) >= PeerState::kLost) {
    return fail(Errc::kPeerLost, "peer");
  }
  if (!core.counters.table.live(member.state_->key)) return fail(Errc::kReleased, "member");
  if (member.state_->grouped.exchange(true, std::memory_order_relaxed)) {
    return fail(Errc::kBusy, "member");
  }
  state_->members.push_back({.key = member.state_->key, .peer = id, .share = share});
  state_->handles.push_back(member.state_);
  core.counters.table.set_parent(member.state_->key, state_->parent);
  // The group is waited on: losing the peer of any member aborts it at once, naming the peer.
  core.counters.bind(state_->parent, *peer);
  return {};
}

Result<OpId> CounterGroup::expect(uint64_t n, Notify notify, Timeout timeout) {
  if (state_ == nullptr) return fail(Errc::kReleased, "group");
  core::GroupExpectation expectation(*state_);
  auto op = state_->core->expect(state_->parent, n, notify, timeout, &expectation.armed);
  if (op) expectation.record();
  return op;
}

Result<void> CounterGroup::wait(uint64_t n, Timeout timeout) {
  if (state_ == nullptr) return fail(Errc::kReleased, "group");
  core::GroupExpectation expectation(*state_);
  auto ok = state_->core->wait_count(state_->parent, n, timeout, &expectation.armed);
  if (ok || expectation.armed.expectation.seq != 0) expectation.record();
  return ok;
}

uint64_t CounterGroup::count() const noexcept {
  if (state_ == nullptr || state_->core->forked()) return 0;
  return state_->core->counters.table.count(state_->parent);
}

std::vector<PeerId> CounterGroup::missing() const {
  std::vector<PeerId> out;
  if (state_ == nullptr || state_->core->forked()) return out;
  EngineCore& core = *state_->core;
  const core::StateGuard lock(core.state_mutex);
  core::take_member_shares(*state_);
  const core::CounterTable& table = core.counters.table;
  for (const core::GroupMember& member : state_->members) {
    if (member.masked) continue;
    // The count of a poisoned counter key may be half of one write and half of another.
    if (table.poisoned(member.key) || table.count(member.key) < member.share) {
      out.push_back(member.peer);
    }
  }
  return out;
}

Result<void> CounterGroup::mask(PeerId id) {
  if (state_ == nullptr) return fail(Errc::kReleased, "group");
  EngineCore& core = *state_->core;
  const core::OpenStateGuard lock(core);
  if (!lock) return fail(Errc::kClosed, "engine");
  core::take_member_shares(*state_);
  const bool found =
      std::any_of(state_->members.begin(), state_->members.end(),
                  [&](const core::GroupMember& m) { return m.peer == id && !m.masked; });
  if (!found) return fail(Errc::kNotFound, "peer");
  const bool renewed = core.counters.table.poisoned(state_->parent);
  if (renewed) {
    if (auto ok = core::renew_group(*state_, id); !ok) return ok;
  }
  for (size_t i = 0; i < state_->members.size(); ++i) {
    core::GroupMember& member = state_->members[i];
    if (member.peer != id || std::exchange(member.masked, true)) continue;
    uint64_t had = 0;
    // A destroyed handle has released its counter key and its name itself.
    const auto handle = state_->handles[i].lock();
    core.counters.release({.key = member.key,
                           .named = handle != nullptr && handle->named,
                           .name = handle != nullptr ? handle->name : 0,
                           .untaken = &had},
                          core.driver->now_ns());
    // Credits only what is missing: the parent has got the counts that arrived, unless it was
    // replaced.
    const uint64_t counted = renewed ? 0 : std::min(had, member.share);
    core.counters.table.add(state_->parent, member.share - counted);
    state_->masked_credit += member.share;
  }
  if (core::Peer* peer = core.peers.find(id); peer != nullptr) {
    std::erase(peer->bound, state_->parent);
  }
  core.kick();
  return {};
}

}  // namespace fabric

namespace fabric::core {

void take_member_shares(CounterGroupState& group) {
  CounterTable& table = group.core->counters.table;
  if (!group.expectation_pending) return;
  if (!group.expectation.met) {
    const auto status = table.peek(group.expectation.expectation);
    if (!status.done) return;
    if (status.code != Errc::kOk) {
      group.expectation_pending = false;  // counts that arrived stay for the next expectation
      return;
    }
  }
  group.expectation_pending = false;
  group.masked_credit = 0;
  for (const GroupMember& member : group.members) {
    if (!member.masked) table.try_take(member.key, member.share);
  }
}

/// Members keep their counts and are linked to a new parent counter key; another member that is
/// lost or poisoned aborts the new parent as well.
Result<void> renew_group(CounterGroupState& group, PeerId without) {
  Counters& counters = group.core->counters;
  const int64_t now = group.core->driver->now_ns();
  const auto fresh = counters.make(now);
  if (!fresh) return fresh.error();
  const CounterKey old = group.parent.exchange(*fresh);
  counters.table.add(*fresh, group.masked_credit);
  for (const GroupMember& member : group.members) {
    if (member.masked || member.peer == without) continue;
    counters.table.set_parent(member.key, *fresh);
    Peer* peer = group.core->peers.find(member.peer);
    if (peer == nullptr || peer->state.load(std::memory_order_relaxed) >= PeerState::kLost) {
      counters.abort(*fresh, Errc::kPeerLost, member.peer);
    } else if (counters.table.poisoned(member.key)) {
      counters.abort(*fresh, Errc::kAborted, counters.poisoned_by(member.key));
    } else {
      counters.bind(*fresh, *peer);
    }
  }
  counters.release({.key = old}, now);
  return {};
}

GroupExpectation::GroupExpectation(CounterGroupState& group) : group_(group) {
  if (group.core->refuses()) return;
  const StateGuard lock(group.core->state_mutex);
  take_member_shares(group);
}

void GroupExpectation::record() {
  const StateGuard lock(group_.core->state_mutex);
  group_.expectation_pending = true;
  group_.expectation = armed;
}

}  // namespace fabric::core

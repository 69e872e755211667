#include <algorithm>
#include <limits>

#include <fabric/counter.h>

#include "core/core.h"

// Groups of counters: rounds, masks, and the public handle CounterGroup. Why a group cannot be met
// by the counts of another member: docs/design/0003-counters.md.

namespace fabric::core {

namespace {
bool is_lost(const EngineCore& core, PeerId id) FABRIC_REQUIRES(state_lock) {
  const Peer* peer = core.peers.find(id);
  return peer == nullptr || peer->state.load(std::memory_order_relaxed) >= PeerState::kLost;
}

void add_once(std::vector<PeerId>& to, PeerId peer) {
  if (std::find(to.begin(), to.end(), peer) == to.end()) to.push_back(peer);
}

/// Error::native has 31 bits.
int32_t as_native(uint64_t n) {
  return static_cast<int32_t>(std::min<uint64_t>(n, std::numeric_limits<int32_t>::max()));
}
}  // namespace

Result<void> CounterGroupState::add(const std::shared_ptr<CounterState>& member, Peer& peer,
                                    uint64_t share) {
  reap_expectation();
  // A round that no expectation waits for is replaced by that of the next one, with the new member.
  if (round_open && !armed) {
    if (auto ok = renew(PeerId{}); !ok) return ok;
  }
  CounterTable& table = core->counters.table;
  const Errc linked = table.link(member->key, parent, share);
  if (linked == Errc::kInvalidArgument) return fail(linked, "share");
  if (linked != Errc::kOk) return fail(linked, "member");
  // Hints for an early kBusy; the table decides.
  member->grouped.store(true, std::memory_order_relaxed);
  members.push_back({.key = member->key, .peer = peer.id(), .share = share, .handle = member});
  shares.push_back(table.share_of(member->key, share));
  shares_sum += share;
  // The group is waited on: losing the peer of any member aborts it at once, naming the peer.
  core->counters.bind(parent, peer);
  return {};
}

void CounterGroupState::reap_expectation() {
  if (!armed) return;
  const auto status = core->counters.table.peek(expectation);
  if (!status.done) return;
  armed = false;
  // After a failure the round stays open: its counts are of the next expectation.
  if (status.code == Errc::kOk) round_open = false;
}

Result<void> CounterGroupState::begin_expectation(uint64_t n) {
  reap_expectation();
  if (armed) return fail(Errc::kBusy, "group");
  if (n != 0 && n != shares_sum) {
    return fail(Errc::kInvalidArgument, "n: not the sum of the shares (native)",
                as_native(shares_sum));
  }
  CounterTable& table = core->counters.table;
  const CounterKey at = parent;
  if (const Errc why = table.poison_of(at); why != Errc::kOk) return fail(why, "group");
  if (round_open) return {};
  owed = table.take_shares(shares);
  round_members = members.size();
  round_open = true;
  return {};
}

void CounterGroupState::expectation_armed(const CounterTable::Armed& at_parent) {
  if (at_parent.met) {
    round_open = false;
    return;
  }
  armed = true;
  expectation = at_parent.expectation;
}

void CounterGroupState::disarm() noexcept {
  // Under the lock, since mask() may replace the parent. Its record is in use by expectations only:
  // a parent is not linked.
  if (armed) core->counters.table.disarm(parent.load(std::memory_order_relaxed));
  reap_expectation();
}

bool CounterGroupState::has_member_of(PeerId peer) const noexcept {
  return std::any_of(members.begin(), members.end(),
                     [&](const GroupMember& member) { return member.peer == peer; });
}

void CounterGroupState::erase_member(size_t index) {
  shares_sum -= members[index].share;
  members.erase(members.begin() + static_cast<ptrdiff_t>(index));
  shares.erase(shares.begin() + static_cast<ptrdiff_t>(index));
  if (index < round_members) --round_members;
}

Result<void> CounterGroupState::mask(PeerId id) {
  reap_expectation();
  Counters& counters = core->counters;
  if (counters.table.poisoned(parent)) {
    if (auto ok = renew(id); !ok) return ok;
  }
  for (size_t i = 0; i < members.size();) {
    if (members[i].peer != id) {
      ++i;
      continue;
    }
    const GroupMember member = members[i];
    // One change of its word decides whether the member has paid: its last arrival adds to the
    // parent, or this does in its place, never both.
    const bool owes = counters.table.unlink(member.key, in_round(i));
    if (in_round(i) && owes) counters.table.add(parent, 1);
    erase_member(i);
    // A destroyed handle has released its key and its name itself.
    const auto handle = member.handle.lock();
    if (handle != nullptr) handle->grouped.store(false, std::memory_order_relaxed);
    counters.release({.key = member.key,
                      .named = handle != nullptr && handle->named,
                      .name = handle != nullptr ? handle->name : 0},
                     core->driver->now_ns());
  }
  if (Peer* peer = core->peers.find(id); peer != nullptr) {
    std::erase(peer->bound, parent.load(std::memory_order_relaxed));
  }
  core->kick();
  return {};
}

/// The members keep all their counts and are linked to a new parent; one that is lost, poisoned or
/// released aborts it as well. Members of the peer `without` are left unlinked: they are about to
/// be masked.
Result<void> CounterGroupState::renew(PeerId without) {
  Counters& counters = core->counters;
  const int64_t now = core->driver->now_ns();
  const auto fresh = counters.make(now);
  if (!fresh) return fresh.error();
  const CounterKey old = parent.exchange(*fresh);
  for (size_t i = 0; i < members.size(); ++i) {
    const GroupMember& member = members[i];
    counters.table.unlink(member.key, in_round(i));
    Peer* peer = core->peers.find(member.peer);
    if (peer != nullptr) std::erase(peer->bound, old);
    if (member.peer == without) continue;
    const Errc linked = counters.table.link(member.key, *fresh, member.share);
    if (linked != Errc::kOk) {
      counters.abort(*fresh, linked, counters.poisoned_by(member.key));
    } else if (is_lost(*core, member.peer)) {
      counters.abort(*fresh, Errc::kPeerLost, member.peer);
    } else {
      counters.bind(*fresh, *peer);
    }
  }
  round_open = false;
  counters.release({.key = old}, now);
  return {};
}

uint64_t CounterGroupState::count() noexcept {
  reap_expectation();
  const CounterTable& table = core->counters.table;
  uint64_t sum = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    // The share of a member that has paid is taken from its count; of one that owes it is not.
    const bool paid = in_round(i) && !table.owes(members[i].key);
    sum += table.count(members[i].key) + (paid ? members[i].share : 0);
  }
  return sum;
}

std::vector<PeerId> CounterGroupState::missing() {
  reap_expectation();
  const CounterTable& table = core->counters.table;
  std::vector<PeerId> out;
  for (size_t i = 0; i < members.size(); ++i) {
    const GroupMember& member = members[i];
    // The count of a poisoned key may be half of one write and half of another.
    const bool here =
        table.live(member.key) && !table.poisoned(member.key) &&
        (in_round(i) ? !table.owes(member.key) : table.count(member.key) >= member.share);
    if (!here) add_once(out, member.peer);
  }
  return out;
}

std::vector<PeerId> CounterGroupState::lost() const {
  const CounterTable& table = core->counters.table;
  std::vector<PeerId> out;
  for (const GroupMember& member : members) {
    const bool sound = table.live(member.key) && !table.poisoned(member.key);
    if (sound && !is_lost(*core, member.peer)) continue;
    add_once(out, member.peer);
  }
  return out;
}

uint64_t CounterGroupState::arrivals_missing() const noexcept {
  const CounterTable& table = core->counters.table;
  const uint64_t owing = table.missing(parent);
  uint64_t found = 0, sum = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    const uint64_t missing = in_round(i) ? table.missing(members[i].key) : 0;
    found += missing != 0;
    sum += missing;
  }
  // Not those that the parent waits for: then it needs one of each at least.
  return found == owing ? sum : owing;
}

void CounterGroupState::disband() {
  reap_expectation();
  Counters& counters = core->counters;
  for (size_t i = 0; i < members.size(); ++i) {
    counters.table.unlink(members[i].key, in_round(i));
    if (auto handle = members[i].handle.lock()) {
      handle->grouped.store(false, std::memory_order_relaxed);
    }
  }
  counters.remove_group(*this);
  counters.release({.key = parent}, core->driver->now_ns());
}

}  // namespace fabric::core

namespace fabric {

using core::EngineCore;

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
  const core::StateGuard lock(state_->core->state_mutex);
  state_->disband();
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
  return state_->add(member.state_, *peer, share);
}

Result<OpId> CounterGroup::expect(Notify notify, Timeout timeout) {
  if (state_ == nullptr) return fail(Errc::kReleased, "group");
  return state_->core->expect_group(*state_, 0, notify, timeout);
}

Result<OpId> CounterGroup::expect(uint64_t n, Notify notify, Timeout timeout) {
  if (state_ == nullptr) return fail(Errc::kReleased, "group");
  if (n == 0) return fail(Errc::kInvalidArgument, "n");
  return state_->core->expect_group(*state_, n, notify, timeout);
}

Result<void> CounterGroup::wait(Timeout timeout) {
  if (state_ == nullptr) return fail(Errc::kReleased, "group");
  return state_->core->wait_group(*state_, 0, timeout);
}

Result<void> CounterGroup::wait(uint64_t n, Timeout timeout) {
  if (state_ == nullptr) return fail(Errc::kReleased, "group");
  if (n == 0) return fail(Errc::kInvalidArgument, "n");
  return state_->core->wait_group(*state_, n, timeout);
}

void CounterGroup::disarm() noexcept {
  if (state_ == nullptr || state_->core->forked()) return;
  const core::StateGuard lock(state_->core->state_mutex);
  state_->disarm();
}

uint64_t CounterGroup::count() const noexcept {
  if (state_ == nullptr || state_->core->forked()) return 0;
  state_->core->take_in_arrivals();
  const core::StateGuard lock(state_->core->state_mutex);
  return state_->count();
}

std::vector<PeerId> CounterGroup::missing() const {
  if (state_ == nullptr || state_->core->forked()) return {};
  state_->core->take_in_arrivals();
  const core::StateGuard lock(state_->core->state_mutex);
  return state_->missing();
}

std::vector<PeerId> CounterGroup::lost() const {
  if (state_ == nullptr || state_->core->forked()) return {};
  const core::StateGuard lock(state_->core->state_mutex);
  return state_->lost();
}

Result<void> CounterGroup::mask(PeerId id) {
  if (state_ == nullptr) return fail(Errc::kReleased, "group");
  const core::OpenStateGuard lock(*state_->core);
  if (!lock) return fail(Errc::kClosed, "engine");
  if (!state_->has_member_of(id)) return fail(Errc::kNotFound, "peer");
  return state_->mask(id);
}

}  // namespace fabric

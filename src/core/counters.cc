#include "core/counters.h"

#include <algorithm>

#include "core/core.h"

// Names, revocations, bindings and poison. State lock held throughout, on the worker or in a set-up
// call; only fired() runs without it, on the thread that ended the expectation.

namespace fabric::core {

namespace {
constexpr int64_t kPeerTimeMaxNs = 604'800'000'000'000;  // a week, whatever a peer announces

void fired(void* context, uint32_t cookie, Errc code) {
  auto& core = *static_cast<EngineCore*>(context);
  if (code == Errc::kAborted || code == Errc::kPeerLost) {
    // By abort(), which needs the lock. Now, because mask() may release the key of a group before
    // the worker reports this.
    core.state_mutex.assert_held();
    Op& op = core.ops.at(cookie);
    op.failed_peer = core.counters.poisoned_by(op.expectation.key);
  }
  // The ring has room for every operation, each once.
  core.completed_expectations.push({cookie, code});
  core.driver->wake(core);
}
}  // namespace

Counters::Counters(EngineCore& core, uint64_t seed)
    : table({.live_max = core.config.counters_max, .seed = seed, .fired = fired, .context = &core}),
      core_(core) {}

int64_t Counters::quarantine_ns() const noexcept {
  // The deadline of a write and its drain, at this engine or at a peer.
  int64_t longest = core_.config.timeout_max.count() + core_.config.drain_timeout.count();
  for (const Peer* peer : core_.peers.all()) {
    // Announced by the peer, hence capped: centuries must not exhaust our counter keys.
    const int64_t timeout = std::clamp<int64_t>(peer->hello.timeout_max_ns, 0, kPeerTimeMaxNs);
    const int64_t drain = std::clamp<int64_t>(peer->hello.drain_ns, 0, kPeerTimeMaxNs);
    longest = std::max(longest, timeout + drain);
  }
  // Strictly longer by either clock: the half-wrap rule does not hold with equality. A clock that
  // counts ticks is little more than a millisecond off (base/clock.cc).
  constexpr int64_t kClocksApartNs = 2'000'000;
  return longest + kClocksApartNs;
}

Result<CounterKey> Counters::make(int64_t now_ns) {
  for (;;) {
    auto key = table.acquire(now_ns, quarantine_ns());
    if (!key || !refused_keys_.contains(key->wire())) return key;
    // A session that refuses the value would refuse its next generation too. Tries the next value:
    // there are far fewer refused ones than values.
    table.release(*key, now_ns);
  }
}

Result<CounterKey> Counters::claim_name(uint64_t name, int64_t now_ns) {
  auto it = names_.find(name);
  if (it == names_.end()) {
    auto key = make(now_ns);
    if (!key) return key.error();
    it = names_.emplace(name, Name{.key = *key}).first;
  }
  if (it->second.claimed) return fail(Errc::kBusy, "name");
  it->second.claimed = true;
  it->second.expires_ns = kNeverNs;
  if (Peer* maker = core_.peers.find(it->second.made_by); maker != nullptr) {
    --maker->names_pending;
  }
  return it->second.key;
}

Result<std::vector<uint32_t>> Counters::resolve(Peer& peer, std::span<const uint64_t> names,
                                                int64_t now_ns) {
  std::vector<uint32_t> keys;
  keys.reserve(names.size());
  for (const uint64_t name : names) {
    auto it = names_.find(name);
    if (it == names_.end()) {
      if (peer.names_pending >= core_.config.names_per_peer_max) {
        return fail(Errc::kExhausted, "names_per_peer_max");
      }
      auto key = make(now_ns);
      if (!key) return key.error();
      it = names_.emplace(name, Name{.key = *key, .made_by = peer.id()}).first;
      ++peer.names_pending;
    }
    it->second.expires_ns = kNeverNs;
    auto& resolvers = it->second.resolvers;
    if (std::find(resolvers.begin(), resolvers.end(), peer.id()) == resolvers.end()) {
      resolvers.push_back(peer.id());
    }
    keys.push_back(it->second.key.wire());
  }
  return keys;
}

uint64_t Counters::arrivals_missing(CounterKey key) const noexcept {
  for (const CounterGroupState* group : groups_) {
    if (group->parent.load(std::memory_order_relaxed) == key) return group->arrivals_missing();
  }
  return table.missing(key);
}

void Counters::release(const KeyRelease& request, int64_t now_ns) {
  const CounterKey key = request.key;
  CounterKey group{};
  if (!table.release(key, now_ns, nullptr, &group)) return;
  poisoned_.erase(key.wire());
  // A member that was not masked: its group could wait for it for ever.
  if (group) abort(group, Errc::kReleased, PeerId{});
  for (Peer* peer : core_.peers.all()) std::erase(peer->bound, key);
  const auto it = request.named ? names_.find(request.name) : names_.end();
  if (it == names_.end() || it->second.key != key) return;
  // Asks every peer that resolved the name to confirm that its writes under the counter key
  // drained.
  const uint64_t sent_max = uint64_t{kRevokedKeysPerName} * core_.config.names_per_peer_max;
  for (const PeerId id : it->second.resolvers) {
    Peer* peer = core_.peers.find(id);
    // Lost without a drain report, or it has so many revocations that it would not remember this
    // one.
    if (peer == nullptr || !peer->usable() || peer->revocations_sent >= sent_max) {
      unproved_.push_back(key);
      continue;
    }
    ++peer->revocations_sent;
    refused_keys_.emplace(key.wire(), id);
    const uint32_t ref = peer->next_ref++;
    revocations_.push_back({.key = key, .peer = id, .ref = ref});
    core_.peers.send(*peer, control::MessageType::kRevokeKey,
                     control::encode(control::RevokeKey{.ref = ref, .key = key.wire()}));
  }
  if (it->second.sender_lost) unproved_.push_back(key);
  names_.erase(it);
  if (!request.awaits_drain) forget(key);
}

void Counters::on_key_revoked(Peer& peer, uint32_t ref, bool proved) {
  confirmed_this_turn_.push_back({peer.id(), ref, proved});
}

/// Called after the polls of a turn. `polls_exhausted`: each was repeated until it was empty.
/// Counts that the sender reports as delivered may still be queued at a rail here when its report
/// arrives, so the report counts from the first such turn after the one in which it arrived.
void Counters::apply_confirmations(bool polls_exhausted) {
  if (polls_exhausted) {
    for (const Confirmation& report : std::exchange(confirmed_earlier_, {})) {
      const auto matches = [&](const KeyRevocation& r) {
        return r.peer == report.peer && r.ref == report.ref;
      };
      for (const KeyRevocation& r : revocations_) {
        if (!report.proved && matches(r)) unproved_.push_back(r.key);
      }
      std::erase_if(revocations_, matches);
    }
    confirmations.wake();
  }
  confirmed_earlier_.insert(confirmed_earlier_.end(), confirmed_this_turn_.begin(),
                            confirmed_this_turn_.end());
  confirmed_this_turn_.clear();
}

Counters::RevocationState Counters::revocation_state(CounterKey key) const noexcept {
  RevocationState state;
  state.awaited = static_cast<uint32_t>(std::count_if(revocations_.begin(), revocations_.end(),
                                                      [&](const auto& r) { return r.key == key; }));
  state.unproved = std::find(unproved_.begin(), unproved_.end(), key) != unproved_.end();
  return state;
}

void Counters::forget(CounterKey key) {
  std::erase(unproved_, key);
  std::erase_if(revocations_, [&](const KeyRevocation& r) { return r.key == key; });
}

void Counters::bind(CounterKey key, Peer& peer) {
  if (std::find(peer.bound.begin(), peer.bound.end(), key) == peer.bound.end()) {
    peer.bound.push_back(key);
  }
}

void Counters::peer_lost(Peer& peer) {
  const PeerId id = peer.id();
  const auto bound = std::exchange(peer.bound, {});
  for (const CounterKey key : bound) abort(key, Errc::kPeerLost, id);
  for (const KeyRevocation& r : revocations_) {
    if (r.peer == id) unproved_.push_back(r.key);
  }
  std::erase_if(revocations_, [&](const KeyRevocation& r) { return r.peer == id; });
  confirmations.wake();
  std::erase_if(refused_keys_, [&](const auto& refused) { return refused.second == id; });
  for (auto it = names_.begin(); it != names_.end();) {
    Name& name = it->second;
    const bool resolved = std::erase(name.resolvers, id) > 0;
    name.sender_lost |= resolved;
    // Not claimed, and its last sender was lost. Counts that arrived are kept for a while
    // (contracts.md P9); a name without counts is dropped at once.
    if (resolved && !name.claimed && name.resolvers.empty()) {
      if (table.count(name.key) == 0) {
        table.release(name.key, core_.now_ns);
        it = names_.erase(it);
        continue;
      }
      name.expires_ns = core_.now_ns + core_.config.lost_timeout.count();
      next_expiry_ns_ = std::min(next_expiry_ns_, name.expires_ns);
    }
    ++it;
  }
}

void Counters::expire_names(int64_t now_ns) {
  if (now_ns < next_expiry_ns_) return;
  next_expiry_ns_ = kNeverNs;
  for (auto it = names_.begin(); it != names_.end();) {
    const Name& name = it->second;
    if (name.expires_ns > now_ns) {
      next_expiry_ns_ = std::min(next_expiry_ns_, name.expires_ns);
      ++it;
      continue;
    }
    // Counts are never dropped without an event, which has the name and the count.
    Event event{.kind = EventKind::kUnhandled, .code = Errc::kPeerLost};
    event.value = table.count(name.key);
    event.name = it->first;
    FABRIC_LOG(core_.log, kInfo, "core", "a name that was never claimed was dropped",
               {"name", it->first}, {"count", event.value});
    table.release(name.key, now_ns);
    it = names_.erase(it);
    core_.reporter.publish(event);
  }
}

void Counters::abort(CounterKey key, Errc code, PeerId by) {
  core_.state_mutex.assert_held();
  if (!table.live(key)) return;
  poisoned_[key.wire()] = by;
  const CounterKey group = table.abort(key, code);
  // The group can never get the counts of this member.
  if (group) abort(group, code, by);
}

Result<void> Counters::mask_everywhere(PeerId peer) {
  for (CounterGroupState* group : groups_) {
    if (!group->has_member_of(peer)) continue;
    if (auto ok = group->mask(peer); !ok) return ok;
  }
  return {};
}

PeerId Counters::poisoned_by(CounterKey key) const noexcept {
  const auto it = poisoned_.find(key.wire());
  return it == poisoned_.end() ? PeerId{} : it->second;
}

}  // namespace fabric::core

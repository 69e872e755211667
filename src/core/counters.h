#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <fabric/counter.h>

#include "core/counter_table.h"
#include "core/peer.h"
#include "core/state_mutex.h"

// Names, bindings and groups around the counter table.

namespace fabric::core {

class EngineCore;

/// State of the public Counter handle.
struct CounterState {
  std::shared_ptr<EngineCore> core{};
  CounterKey key{};
  bool named = false;
  uint64_t name = 0;
  /// Member of a group, which is waited on instead. Changes under the state lock; read without it
  /// for an early kBusy.
  std::atomic<bool> grouped{false};
};

struct GroupMember {
  CounterKey key{};
  PeerId peer{};
  uint64_t share = 1;
  bool masked = false;
};

/// State of the public CounterGroup handle. Members forward their counts to `parent`, on which the
/// group is waited. Guarded by the state lock, except for `parent`, which changes under it when a
/// poisoned parent is replaced and is read without it.
struct CounterGroupState {
  std::shared_ptr<EngineCore> core{};
  std::atomic<CounterKey> parent{};
  std::vector<GroupMember> members FABRIC_GUARDED_BY(state_lock){};
  /// Parallel to members.
  std::vector<std::weak_ptr<CounterState>> handles FABRIC_GUARDED_BY(state_lock){};
  /// Added to the parent for masked members since the last met one.
  uint64_t masked_credit FABRIC_GUARDED_BY(state_lock) = 0;
  /// `expectation` was begun, shares of members not yet taken.
  bool expectation_pending FABRIC_GUARDED_BY(state_lock) = false;
  /// The latest one of the parent.
  CounterTable::Armed expectation FABRIC_GUARDED_BY(state_lock){};
};

/// If the latest expectation was met, takes each member's share of it, so that a member's count
/// shows its part of the next expectation only. State lock held.
void take_member_shares(CounterGroupState& group) FABRIC_REQUIRES(state_lock);
/// Replaces the poisoned parent of a group that goes on without the members of `without`. Fails
/// with kExhausted. State lock held.
Result<void> renew_group(CounterGroupState& group, PeerId without) FABRIC_REQUIRES(state_lock);

/// Brackets one expectation of a group: the constructor takes the members' shares of the previous
/// one, record() stores the new one after it was armed or met. Takes the state lock itself.
class GroupExpectation {
 public:
  explicit GroupExpectation(CounterGroupState& group);
  void record();
  CounterTable::Armed armed{};

 private:
  CounterGroupState& group_;
};

/// The cold side of counting: names, revocation of released counter keys, binding to peers, poison.
///
/// Owns the table, whose functions may be called from any thread without a lock. Everything else
/// here is guarded by the state lock.
///
/// How the parts relate: `names_` maps a name to the counter key that local claims and remote
/// resolves share. Releasing a named counter key sends a revocation to every peer that resolved it;
/// `revocations_` are those without a confirmed reply. A reply counts from the first later turn
/// that polled every rail until it was empty, since counts that were sent before the reply may
/// still be queued at a rail. A counter key in `refused_keys_` is not handed out while a session
/// refuses writes under it.
class Counters {
 public:
  Counters(EngineCore& core, uint64_t seed);

  CounterTable table;

  Result<CounterKey> make(int64_t now_ns) FABRIC_REQUIRES(state_lock);
  Result<CounterKey> claim_name(uint64_t name, int64_t now_ns) FABRIC_REQUIRES(state_lock);
  /// A peer asks for the counter keys of names. All or nothing.
  Result<std::vector<uint32_t>> resolve(Peer& peer, std::span<const uint64_t> names, int64_t now_ns)
      FABRIC_REQUIRES(state_lock);
  struct KeyRelease {
    CounterKey key{};
    bool named = false;
    uint64_t name = 0;
    bool awaits_drain = false;    ///< the caller will query revocation_state(), then forget()
    uint64_t* untaken = nullptr;  ///< gets the whole counts that were not taken
  };
  void release(const KeyRelease& request, int64_t now_ns) FABRIC_REQUIRES(state_lock);
  /// The peer's writes under the counter key have drained. Not proved: some may still land.
  void on_key_revoked(Peer& peer, uint32_t ref, bool proved) FABRIC_REQUIRES(state_lock);
  bool has_confirmations() const noexcept FABRIC_REQUIRES(state_lock) {
    return !confirmed_earlier_.empty() || !confirmed_this_turn_.empty();
  }
  void apply_confirmations(bool polls_exhausted) FABRIC_REQUIRES(state_lock);
  /// The senders of a released named counter key.
  struct RevocationState {
    uint32_t awaited = 0;   ///< have not confirmed yet that their writes drained
    bool unproved = false;  ///< one was lost before it confirmed, or could not prove it
  };
  RevocationState revocation_state(CounterKey key) const noexcept FABRIC_REQUIRES(state_lock);
  void forget(CounterKey key)
      FABRIC_REQUIRES(state_lock);  ///< drops the revocation state of a released counter key
  void bind(CounterKey key, Peer& peer) FABRIC_REQUIRES(state_lock);
  void peer_lost(Peer& peer) FABRIC_REQUIRES(state_lock);
  /// Drops names that were not claimed in time after their last sender was lost.
  void expire_names(int64_t now_ns) FABRIC_REQUIRES(state_lock);
  int64_t next_expiry_ns() const noexcept FABRIC_REQUIRES(state_lock) { return next_expiry_ns_; }
  /// Poisons the counter key, and the group that it is a member of.
  void abort(CounterKey key, Errc code, PeerId by) FABRIC_REQUIRES(state_lock);
  PeerId poisoned_by(CounterKey key) const noexcept FABRIC_REQUIRES(state_lock);
  /// The longest time that a write may outlive the release of its counter key.
  int64_t quarantine_ns() const noexcept FABRIC_REQUIRES(state_lock);

  EventCount confirmations{};  ///< woken when a confirmation arrives

 private:
  struct Name {
    CounterKey key{};
    bool claimed = false;
    PeerId made_by{};  ///< counts against the quota of this peer until claimed
    std::vector<PeerId> resolvers{};
    int64_t expires_ns = kNeverNs;  ///< set if it is not claimed when its last sender is lost
    bool sender_lost = false;       ///< a peer that resolved it was lost without a drain
  };
  struct Revocation {
    CounterKey key{};
    PeerId peer{};
    uint32_t ref = 0;
  };

  EngineCore& core_;
  std::map<uint64_t, Name> names_ FABRIC_GUARDED_BY(state_lock);
  std::vector<Revocation> revocations_ FABRIC_GUARDED_BY(state_lock);
  /// A sender's report that its writes under a counter key have drained.
  struct Confirmation {
    PeerId peer{};
    uint32_t ref = 0;
    bool proved = false;
  };
  std::vector<Confirmation> confirmed_this_turn_ FABRIC_GUARDED_BY(state_lock);
  std::vector<Confirmation> confirmed_earlier_ FABRIC_GUARDED_BY(state_lock);
  /// Released counter keys with an unproved sender, until forget().
  std::vector<CounterKey> unproved_ FABRIC_GUARDED_BY(state_lock);
  /// Released counter keys, by their wire value, with each session that refuses writes under them.
  /// Such a value is not handed out again.
  std::multimap<uint32_t, PeerId> refused_keys_ FABRIC_GUARDED_BY(state_lock);
  int64_t next_expiry_ns_ FABRIC_GUARDED_BY(state_lock) = kNeverNs;
  /// Live counter keys by their wire value, with the cause.
  std::map<uint32_t, PeerId> poisoned_ FABRIC_GUARDED_BY(state_lock);
};

}  // namespace fabric::core

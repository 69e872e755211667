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
  std::weak_ptr<CounterState> handle{};
};

/// State of the public CounterGroup handle (counter_group.cc).
///
/// A *round* is what one met expectation takes: the share of every member. It is open from when the
/// shares were taken (CounterTable::take_shares()) until an expectation is met; it stays open after
/// an expectation that failed, and the next one continues it. `parent` gets one count from each
/// member that owed some of its share when the round was opened, so an expectation of the group is
/// one of `owed` counts at the parent.
///
/// Guarded by the state lock, except for `parent`, which changes under it when a poisoned parent is
/// replaced and is read without it.
struct CounterGroupState {
  std::shared_ptr<EngineCore> core{};
  std::atomic<CounterKey> parent{};
  std::vector<GroupMember> members FABRIC_GUARDED_BY(state_lock){};
  /// Of the members, in their order.
  std::vector<CounterTable::Share> shares FABRIC_GUARDED_BY(state_lock){};
  uint64_t shares_sum FABRIC_GUARDED_BY(state_lock) = 0;
  bool round_open FABRIC_GUARDED_BY(state_lock) = false;
  /// The first so many members are part of the open round; the others were added later.
  size_t round_members FABRIC_GUARDED_BY(state_lock) = 0;
  uint32_t owed FABRIC_GUARDED_BY(state_lock) = 0;
  /// The expectation at the parent that was armed last and is not known to have ended.
  bool armed FABRIC_GUARDED_BY(state_lock) = false;
  CounterTable::Expectation expectation FABRIC_GUARDED_BY(state_lock){};

  Result<void> add(const std::shared_ptr<CounterState>& member, Peer& peer, uint64_t share)
      FABRIC_REQUIRES(state_lock);
  /// Checks n (0: any) and opens a round unless one is open. `owed` then says what to expect at the
  /// parent; 0: the expectation is met at once.
  Result<void> begin_expectation(uint64_t n) FABRIC_REQUIRES(state_lock);
  /// The expectation at the parent was armed, or met at once.
  void expectation_armed(const CounterTable::Armed& at_parent) FABRIC_REQUIRES(state_lock);
  void disarm() noexcept FABRIC_REQUIRES(state_lock);
  Result<void> mask(PeerId peer) FABRIC_REQUIRES(state_lock);
  bool has_member_of(PeerId peer) const noexcept FABRIC_REQUIRES(state_lock);
  uint64_t count() noexcept FABRIC_REQUIRES(state_lock);
  std::vector<PeerId> missing() FABRIC_REQUIRES(state_lock);
  std::vector<PeerId> lost() const FABRIC_REQUIRES(state_lock);
  /// The least number of immediates after which the open round is complete.
  uint64_t arrivals_missing() const noexcept FABRIC_REQUIRES(state_lock);
  /// Before the handle is destroyed: the members are free, the parent is released.
  void disband() FABRIC_REQUIRES(state_lock);

 private:
  /// Takes notice that the armed expectation has ended: once met it closes its round; a failed one
  /// leaves the round open for the next.
  void reap_expectation() FABRIC_REQUIRES(state_lock);
  /// Replaces the parent. Ends an open round: every member gets its share back.
  Result<void> renew(PeerId without) FABRIC_REQUIRES(state_lock);
  void erase_member(size_t index) FABRIC_REQUIRES(state_lock);
  bool in_round(size_t index) const noexcept FABRIC_REQUIRES(state_lock) {
    return round_open && index < round_members;
  }
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
    bool awaits_drain = false;  ///< the caller will query revocation_state(), then forget()
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
  /// Groups that exist, for Drop.
  void add_group(CounterGroupState& group) FABRIC_REQUIRES(state_lock) {
    groups_.push_back(&group);
  }
  void remove_group(const CounterGroupState& group) FABRIC_REQUIRES(state_lock) {
    std::erase(groups_, &group);
  }
  /// Masks the peer in every group that has a member of it. Stops at the first failure.
  Result<void> mask_everywhere(PeerId peer) FABRIC_REQUIRES(state_lock);
  /// As CounterTable::missing(), also for the parent of a group: what its members miss together.
  uint64_t arrivals_missing(CounterKey key) const noexcept FABRIC_REQUIRES(state_lock);
  /// Poisons the key, and the group that it is a member of.
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
  struct KeyRevocation {
    CounterKey key{};
    PeerId peer{};
    uint32_t ref = 0;
  };

  EngineCore& core_;
  std::vector<CounterGroupState*> groups_ FABRIC_GUARDED_BY(state_lock);
  std::map<uint64_t, Name> names_ FABRIC_GUARDED_BY(state_lock);
  std::vector<KeyRevocation> revocations_ FABRIC_GUARDED_BY(state_lock);
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

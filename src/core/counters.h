#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <fabric/counter.h>

#include "core/counter_table.h"
#include "core/peer.h"

// Names, bindings and groups around the counter table.

namespace fabric::core {

class EngineCore;

struct CounterState {
  std::shared_ptr<EngineCore> core{};
  CounterKey key{};
  bool named = false;
  uint64_t name = 0;
  std::atomic<bool> grouped{false};  ///< its group waits in its place; state lock, gauge elsewhere
};

struct GroupMember {
  CounterKey key{};
  PeerId peer{};
  uint64_t share = 1;
  bool masked = false;
};

struct CounterGroupState {
  std::shared_ptr<EngineCore> core{};
  std::atomic<CounterKey> parent{};  ///< changes under the state lock, when a poisoned one is replaced
  std::vector<GroupMember> members{};                  ///< state lock
  std::vector<std::weak_ptr<CounterState>> handles{};  ///< beside members
  uint64_t masked_credit = 0;           ///< for masked members, towards the step that is not yet met
  bool expectation_pending = false;        ///< an expectation was record and its members not yet settled
  CounterTable::Armed expectation{};  ///< that one
};

void take_member_shares(CounterGroupState& group);
/// A poisoned group goes on without the members of `without`. Fails with kExhausted.
Result<void> renew_group(CounterGroupState& group, PeerId without);

/// The beginning of one expectation of a group: settles the step before.
class GroupExpectation {
 public:
  explicit GroupExpectation(CounterGroupState& group);
  void record();
  CounterTable::Armed armed{};

 private:
  CounterGroupState& group_;
};

class Counters {
 public:
  Counters(EngineCore& core, uint64_t seed);

  CounterTable table;

  // State lock held.
  Result<CounterKey> make(int64_t now_ns);
  Result<CounterKey> claim_name(uint64_t name, int64_t now_ns);
  /// A peer asks for the keys of names. All or nothing.
  Result<std::vector<uint32_t>> resolve(Peer& peer, std::span<const uint64_t> names,
                                        int64_t now_ns);
  struct KeyRelease {
    CounterKey key{};
    bool named = false;
    uint64_t name = 0;
    bool awaits_drain = false;      ///< somebody will ask revocation_state()
    uint64_t* untaken = nullptr;  ///< gets what was there and not taken
  };
  void release(const KeyRelease& request, int64_t now_ns);
  /// The peer is quiet under the key. Not proved: writes of it may still land, it cannot tell.
  void on_key_revoked(Peer& peer, uint32_t ref, bool proved);
  bool has_confirmations() const noexcept { return !confirmed_earlier_.empty() || !confirmed_this_turn_.empty(); }
  void apply_confirmations(bool drained);
  /// What is known of the senders of a released named key.
  struct RevocationState {
    uint32_t awaited = 0;   ///< asked, and not yet confirmed that they have drained
    bool unproved = false;  ///< one is gone without having confirmed
  };
  RevocationState revocation_state(CounterKey key) const noexcept;
  void forget(CounterKey key);  ///< nobody waits for the confirmations any more
  void bind(CounterKey key, Peer& peer);
  void peer_lost(Peer& peer);
  /// Drops names that nobody claimed in time after their last sender had gone.
  void expire_names(int64_t now_ns);
  int64_t next_expiry_ns() const noexcept { return next_expiry_ns_; }
  void abort(CounterKey key, Errc code, PeerId by);
  PeerId poisoned_by(CounterKey key) const noexcept;
  int64_t quarantine_ns() const noexcept;

  EventCount confirmations{};  ///< woken when a confirmation arrives

 private:
  struct Name {
    CounterKey key{};
    bool claimed = false;
    PeerId made_by{};  ///< whose quota it counts against while unclaimed
    std::vector<PeerId> resolvers{};
    int64_t expires_ns = kNeverNs;  ///< unclaimed, and its last sender is gone
    bool sender_lost = false;       ///< one that resolved it left without saying that it is quiet
  };
  struct Revocation {
    CounterKey key{};
    PeerId peer{};
    uint32_t ref = 0;
  };

  EngineCore& core_;
  std::map<uint64_t, Name> names_;
  std::vector<Revocation> revocations_;
  /// A sender's word that its writes under a key have drained.
  struct Confirmation {
    PeerId peer{};
    uint32_t ref = 0;
    bool proved = false;
  };
  std::vector<Confirmation> confirmed_this_turn_;      ///< in this turn
  std::vector<Confirmation> confirmed_earlier_;  ///< in earlier ones
  std::vector<CounterKey> unproved_;         ///< released keys with a sender that is gone, until forget()
  /// Released keys, by their bits, with each session that refuses them: a value that is in here is
  /// not handed out.
  std::multimap<uint32_t, PeerId> refused_keys_;
  int64_t next_expiry_ns_ = kNeverNs;
  std::map<uint32_t, PeerId> poisoned_;  ///< by key bits, while the key lives
};

}  // namespace fabric::core

#pragma once

#include <memory>
#include <vector>

#include <fabric/export.h>
#include <fabric/notify.h>
#include <fabric/result.h>
#include <fabric/types.h>

namespace fabric {

namespace core {
struct CounterState;
struct CounterGroupState;
}  // namespace core

/// Why no more writes can arrive under the counter key of a closed counter.
enum class Quiescence : uint8_t {
  kProved,       ///< every sender that knew the counter key has stopped, or was lost and fenced
  kQuarantined,  ///< no proof: the counter key is not reused while any write may still land
};

FABRIC_EXPORT const char* to_string(Quiescence quiescence) noexcept;

/// Counts the writes that arrived with its counter key, over all NICs and networks of the engine.
///
/// An expectation of n proves that n writes arrived when no more than n were issued
/// (contracts.md P6). A count below the number issued is only a gauge (P8): the stripes of two
/// writes can add up to one. Wrong:
///
///     for (auto& w : four_large_writes) sender.submit(w);  // all under counter.key()
///     if (counter.count() >= 1) read(first_buffer);        // may be half of two buffers
///
/// Right: expect(4), or a counter for each buffer, or Write::unsplit.
///
/// Lifetime: the destructor releases the counter key; later arrivals are dropped as stale (P11).
/// Threads: every function from any thread; one armed expectation at a time, else kBusy.
class FABRIC_EXPORT Counter {
 public:
  Counter(Counter&&) noexcept;
  Counter& operator=(Counter&&) noexcept;
  ~Counter();
  CounterKey key() const noexcept;
  uint64_t count() const noexcept;     ///< gauge: one acquire load
  bool try_take(uint64_t n) noexcept;  ///< polling: takes n counts if there are as many
  /// Completes once: ok, kTimeout, kPeerLost, kAborted (a write to this counter failed: its counter
  /// key is poisoned), kReleased, kCancelled, kOverrun. Fails with kBusy while another one is
  /// armed.
  Result<OpId> expect(uint64_t n, Notify notify, Timeout timeout = {});
  /// Spins, then sleeps; drives progress when inline. The same codes as expect().
  Result<void> wait(uint64_t n, Timeout timeout = {});
  /// Ends the armed expectation, if there is one. When it returns, the expectation takes no more
  /// counts: it completes with kCancelled, or with what came first (met, timeout, a lost peer).
  /// That completion has been reported, or its report is on the way: it is delivered exactly once,
  /// as always. A wait() of another thread returns likewise, when it next runs. A new expect() or
  /// wait() is never refused with kBusy because of it, however many blocked threads were ended and
  /// have not run yet. An expectation that another thread arms during the call may
  /// or may not be ended.
  ///
  /// Cost: a few compare-exchanges; no lock, and no wait for a report.
  void disarm() noexcept;
  Result<void> bind(PeerId peer);  ///< when the peer is lost, the expectation fails at once
  void release() noexcept;         ///< at once; later arrivals are stale
  /// Releases, and waits until no sender can use the counter key any more: by proof, or by
  /// quarantine.
  Result<Quiescence> close(Timeout timeout = {});

 private:
  friend class Engine;
  friend class CounterGroup;
  explicit Counter(std::shared_ptr<core::CounterState> state) noexcept;
  std::shared_ptr<core::CounterState> state_;
};

/// Counters that are waited for together, each with the peer that feeds it, so that missing() and
/// lost() can name peers.
///
/// An expectation is met when every member has received its own share (MoE: one write per peer and
/// step). Counts beyond a share stay for the next expectation, and never stand in for another
/// member. The group knows what it waits for: after a mask() or a Drop it is the shares of the
/// members that are left, without any arithmetic of the caller. Right:
///
///     for (auto met = group.wait(1s); !met; met = group.wait(1s)) {
///       const bool late = met.error().code == Errc::kTimeout;
///       for (PeerId peer : late ? group.missing() : group.lost()) {
///         engine.submit(Drop{.peer = peer, .batch = drops});
///       }
///     }
///     read(buffers_of_the_members_left);
///
/// A counter is a member of one group at most and has no expectations of its own while it is.
/// Wrong:
///
///     a.wait(1);      // kBusy: `a` is a member
///     group.wait(1);  // kInvalidArgument: two members owe 2. Error::native is 2
///
/// Lifetime: the members must outlive the group, or be masked first. An expectation fails with
///   kReleased while a member is released and not masked.
/// Threads: every function from any thread; one armed expectation at a time, else kBusy.
class FABRIC_EXPORT CounterGroup {
 public:
  CounterGroup(CounterGroup&&) noexcept;
  CounterGroup& operator=(CounterGroup&&) noexcept;
  ~CounterGroup();
  /// Every expectation that is armed from now on needs `share` counts of the member. Counts that it
  /// has already are kept.
  ///
  /// Fails with kBusy (member of a group, or it has an armed expectation), kReleased, kAborted and
  /// kPeerLost (the key is poisoned, or the peer is lost), kNotFound (peer), kInvalidArgument.
  Result<void> add(Counter& member, PeerId peer, uint64_t share = 1);
  /// The share of every member that is not masked. At once if there is none. Completes as
  /// Counter::expect() does; Event::value is the sum of the shares. After a failure the next one
  /// continues with what has arrived.
  ///
  /// Cost: a pass over the members, and the state lock. wait() also spins, then sleeps, and drives
  ///   progress when inline.
  /// Fails with kBusy (another expectation is armed), kInvalidArgument (timeout), kExhausted,
  /// kClosed; with kPeerLost, kAborted or kReleased while lost() names a peer. wait() also returns
  /// what expect() completes with.
  Result<OpId> expect(Notify notify, Timeout timeout = {});
  Result<void> wait(Timeout timeout = {});
  /// The same for callers that count themselves: any n but the sum of the shares of the members
  /// that are not masked is refused with kInvalidArgument, and Error::native is that sum.
  Result<OpId> expect(uint64_t n, Notify notify, Timeout timeout = {});
  Result<void> wait(uint64_t n, Timeout timeout = {});
  /// Ends the armed expectation, if there is one, as Counter::disarm() does: when it returns, the
  /// expectation has ended, with kCancelled or with what came first, and the next one is never
  /// refused with kBusy because of it. After kCancelled the next one continues with what has
  /// arrived, as after any failure.
  ///
  /// Cost: the state lock; no wait for a report.
  void disarm() noexcept;
  /// Over all members: what no met expectation has taken. A gauge.
  uint64_t count() const noexcept;
  std::vector<PeerId> missing() const;  ///< peers whose share of the expectation is not here
  /// Peers that are lost, or whose member is poisoned or released: because of them expectations
  /// fail with kPeerLost, kAborted or kReleased until they are masked. Never fails; empty when
  /// there are none.
  ///
  /// Cost: a pass over the members, and the state lock. Allocates.
  std::vector<PeerId> lost() const;
  /// Continues without the peer, in this group: its members are released, and an armed expectation
  /// is met when the others have delivered. Its bytes need a fence of their own (P13); Drop does
  /// both, for all groups. The peer can rejoin only with new counters. An expectation that failed
  /// because of the peer may be armed again: the counts of the other members are kept.
  ///
  /// Fails with kNotFound (no member of that peer), kExhausted (no counter key for the group).
  Result<void> mask(PeerId peer);

 private:
  friend class Engine;
  explicit CounterGroup(std::shared_ptr<core::CounterGroupState> state) noexcept;
  std::shared_ptr<core::CounterGroupState> state_;
};

}  // namespace fabric

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

/// Counters that are waited for together, each with the peer that feeds it, so that missing() can
/// name the peers that have not delivered.
///
/// Every expectation needs `share` counts of each member (MoE: one write per peer and step). A
/// counter is a member of one group at most and has no expectations of its own while it is. Wrong:
///
///     group.add(a, peer_a);
///     group.add(b, peer_b);
///     if (group.wait(1)) read(buffer_of_a);  // the one count may be peer_b's
///     a.wait(1);                             // kBusy: `a` is a member
///
/// Right: group.wait(2), the sum of the shares, then read both buffers.
///
/// Lifetime: the members must outlive the group, or be masked first.
/// Threads: every function from any thread.
class FABRIC_EXPORT CounterGroup {
 public:
  CounterGroup(CounterGroup&&) noexcept;
  CounterGroup& operator=(CounterGroup&&) noexcept;
  ~CounterGroup();
  Result<void> add(Counter& member, PeerId peer, uint64_t share = 1);
  /// n counts over all members. The same codes as Counter::expect().
  Result<OpId> expect(uint64_t n, Notify notify, Timeout timeout = {});
  Result<void> wait(uint64_t n, Timeout timeout = {});
  uint64_t count() const noexcept;      ///< over all members, not yet taken
  std::vector<PeerId> missing() const;  ///< peers whose share of the expectation is not here
  /// Continues without the peer: its members are released and their shares count as delivered. Its
  /// bytes need a fence of their own (P13); it can rejoin only with new counters. An expectation
  /// that failed because of the peer (kPeerLost, kAborted) may be armed again: the counts of the
  /// other members are kept.
  Result<void> mask(PeerId peer);

 private:
  friend class Engine;
  explicit CounterGroup(std::shared_ptr<core::CounterGroupState> state) noexcept;
  std::shared_ptr<core::CounterGroupState> state_;
};

}  // namespace fabric

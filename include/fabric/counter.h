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

/// How it is known that a closed key can bring nothing more.
enum class Quiescence : uint8_t {
  kProved,  ///< every sender that knew the key confirmed that it is quiet, or was lost and fenced
  kQuarantined,  ///< no proof could be had; the key rests longer than any write can live before reuse
};

FABRIC_EXPORT const char* to_string(Quiescence rest) noexcept;

/// Counts whole writes that carried its key. Engine-wide: whatever NIC or network took them.
///
/// A count below what was issued is a gauge (P8). An expectation of n is proof when no more than n
/// were issued (P6). Wrong: sending four cut writes under one key and reading the first buffer when
/// count() says 1; the halves of two writes also make one. Give each its own key, or mark them
/// `whole`.
///
/// Lifetime: the destructor releases; late arrivals are stale and counted as such (P11).
/// Threads: everything from any thread; one armed expectation at a time, else kBusy.
class FABRIC_EXPORT Counter {
 public:
  Counter(Counter&&) noexcept;
  Counter& operator=(Counter&&) noexcept;
  ~Counter();
  CounterKey key() const noexcept;
  uint64_t count() const noexcept;     ///< gauge: one acquire load
  bool try_take(uint64_t n) noexcept;  ///< polling: takes n if they are there
  /// Ends once: ok, kTimeout, kPeerLost, kAborted (a contributor failed: the key is spoiled),
  /// kReleased, kCancelled, kOverrun. Fails with kBusy while another one is armed.
  Result<OpId> expect(uint64_t n, Notify notify, Timeout timeout = {});
  /// Spins, then sleeps; drives progress when inline. The same ends as expect().
  Result<void> wait(uint64_t n, Timeout timeout = {});
  Result<void> bind(PeerId peer);  ///< losing the peer ends the expectation at once, by name
  void release() noexcept;         ///< at once; late traffic becomes stale
  /// Releases, and waits until no sender can use the key any more: by proof, or by rest.
  Result<Quiescence> close(Timeout timeout = {});

 private:
  friend class Engine;
  friend class CounterGroup;
  explicit Counter(std::shared_ptr<core::CounterState> state) noexcept;
  std::shared_ptr<core::CounterState> state_;
};

/// Counters joined into one wait, each with the peer it depends on: knows who is missing.
///
/// Each member owes its `share` of every expectation (one write a step in MoE). A member belongs to
/// one group and takes no expectation of its own while it does.
///
/// Lifetime: the members must outlive the group, or be masked first.
/// Threads: everything from any thread.
class FABRIC_EXPORT CounterGroup {
 public:
  CounterGroup(CounterGroup&&) noexcept;
  CounterGroup& operator=(CounterGroup&&) noexcept;
  ~CounterGroup();
  Result<void> add(Counter& member, PeerId peer, uint64_t share = 1);
  /// n whole counts over all members. The same ends as Counter::expect().
  Result<OpId> expect(uint64_t n, Notify notify, Timeout timeout = {});
  Result<void> wait(uint64_t n, Timeout timeout = {});
  uint64_t count() const noexcept;      ///< whole counts over all members that were not yet taken
  std::vector<PeerId> missing() const;  ///< whose share of the present expectation is not here
  /// Goes on without the peer: its members are released and what they owe is taken as paid. Its
  /// bytes need a fence of their own (P13); it comes back only with new keys. A step that the peer
  /// has ended (kPeerLost, kAborted) may be asked for again: what the others had sent still counts.
  Result<void> mask(PeerId peer);

 private:
  friend class Engine;
  explicit CounterGroup(std::shared_ptr<core::CounterGroupState> state) noexcept;
  std::shared_ptr<core::CounterGroupState> state_;
};

}  // namespace fabric

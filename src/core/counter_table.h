#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include <fabric/result.h>
#include <fabric/types.h>

#include "base/event_count.h"
#include "base/sync.h"
#include "core/counter_word.h"

// The receiver's side of counting: counter keys, counter words, expectations (contracts.md P6,
// P8-P11). What a count proves and why a wake-up cannot be lost: docs/design/0003-counters.md.

namespace fabric::core {

/// All counters of an engine: a dense array of 64-bit counter words (counter_word.h) that arrivals
/// add to, and for each word a cold record of its one armed expectation, its parent and its reuse.
///
/// Owns both arrays and the ring of free slots. Threads: every function may be called from any
/// thread. acquire(), release(), link(), unlink() and abort() take `mutex_`, because generations
/// and links change only under it; arrivals are lock-free. No lock is held while Fired is called.
///
/// Invariants: every change of a word is one compare-exchange that checks the tag (generation and
/// live bit), so a late arrival never counts in a later generation. The balance is negative exactly
/// while an armed expectation is not met, so the one change that makes it non-negative, poisons or
/// frees the word owns the end of that expectation, and fire() runs exactly once. In a linked word
/// the balance is negative exactly while the member owes its share, so one change pays the share,
/// and its thread adds one count to the parent. The record is written only by the thread that
/// claimed it. A slot is reused only when its record is free and no arrival is adding to a parent,
/// and a key value only after its quarantine (half-wrap rule).
class CounterTable {
 public:
  /// Called exactly once when an armed expectation ends, on the thread that ended it. The record is
  /// free by then and no lock is held: the callback may call any function here, expect() included.
  using Fired = void (*)(void* context, uint32_t cookie, Errc code);

  struct Options {
    uint32_t live_max = 32768;  ///< rounded up to a power of two, at most 2^20; twice as many slots
    uint64_t seed = 0;          ///< first generations
    Fired fired = nullptr;
    void* context = nullptr;
    uint32_t key_bits = CounterKey::kBits;  ///< fewer in tests, to see counter key values come back
  };
  explicit CounterTable(const Options& options);
  ~CounterTable();
  CounterTable(const CounterTable&) = delete;
  CounterTable& operator=(const CounterTable&) = delete;

  /// A new counter key. `quarantine_ns`: how long its value stays unused before it is handed out
  /// again without a proof that its writes drained (the longest time a write may take). Fails with
  /// kExhausted: too many live counter keys, or the half-wrap rule, by which a slot may step
  /// through half of its generations no faster than in that time.
  Result<CounterKey> acquire(int64_t now_ns, int64_t quarantine_ns);
  /// Ends the generation of the key: late arrivals are stale, an armed expectation ends with
  /// kReleased. `untaken` (optional) gets the whole counts that were not taken. False: was not
  /// live. `parent` (optional) gets the parent that the key was linked to, which can never be met:
  /// for the caller to abort.
  bool release(CounterKey key, int64_t now_ns, uint64_t* untaken = nullptr,
               CounterKey* parent = nullptr);
  bool live(CounterKey key) const noexcept;
  uint32_t live_count() const noexcept;

  /// Counts a polled batch of immediates. Returns how many were stale and dropped.
  uint32_t arrive(std::span<const uint32_t> imms) noexcept;
  /// Counts the same immediate `n` times.
  uint32_t arrive(uint32_t imm, uint32_t n) noexcept;
  /// Adds whole counts directly (one to a parent, in place of a member that leaves its group).
  void add(CounterKey key, uint64_t n) noexcept;

  /// Whole counts not taken; 0 when not live. Of a linked key: without a share that was taken and
  /// paid.
  uint64_t count(CounterKey key) const noexcept;
  /// Takes `n` whole counts if so many have arrived. Any thread; lock-free.
  bool try_take(CounterKey key, uint64_t n) noexcept;

  /// Identifies one expectation, so that a late cancel cannot hit the next one.
  struct Expectation {
    CounterKey key{};
    uint32_t seq = 0;
  };
  struct Armed {
    Expectation expectation{};
    bool met = false;  ///< met at once: counts taken, nothing armed, Fired is not called
  };
  /// Whether and how an expectation ended.
  struct ExpectationStatus {
    bool done = false;
    Errc code = Errc::kOk;
  };
  /// A blocked thread's own end of its expectation: the result is written here, not to the record,
  /// which is free at once, however late the thread runs.
  ///
  /// Lifetime: once armed, until end() is done. Threads: end() from the waiting thread.
  class Waiter {
   public:
    /// Done: the bytes of all arrivals are visible, and nothing touches the waiter any more.
    ExpectationStatus end() const noexcept;

   private:
    friend class CounterTable;
    Atomic<uint32_t> end_{0};
  };
  /// Fails with kBusy (one is armed, or the key is linked), kReleased (not live), kAborted /
  /// kPeerLost / kOverrun (poisoned), kInvalidArgument (n = 0 or beyond what the word can hold).
  Result<Armed> expect(CounterKey key, uint64_t n, uint32_t cookie);
  /// The same for a thread that blocks: in place of Fired, the waiter gets the end, then
  /// event_count() is woken. One expectation for each waiter.
  Result<Armed> expect(CounterKey key, uint64_t n, Waiter& waiter);
  /// Ends the expectation with `why` if it is still armed. True: it was, and Fired was called.
  bool cancel(const Expectation& expectation, Errc why) noexcept;
  /// Ends the armed expectation, if there is one, with kCancelled. When it returns, the expectation
  /// that was armed before the call has ended, and the record is free: the next expect() is not
  /// refused because of it. Fired was called for it, or another thread that ended it is about to.
  void disarm(CounterKey key) noexcept;
  /// Once the counter is armed again, an earlier expectation shows only that it ended (kNotFound).
  ExpectationStatus peek(const Expectation& expectation) const noexcept;
  EventCount& event_count(CounterKey key) noexcept;

  /// Poisons the counter key: a write that counts here failed, or a bound peer is lost. An armed
  /// expectation ends with `why`, later ones are refused with it; the first reason stays. count()
  /// and release() still report the counts at that time, unless an expectation was armed for them.
  /// Returns the parent that the counter key was linked to, for the caller to abort.
  CounterKey abort(CounterKey key, Errc why) noexcept;
  bool poisoned(CounterKey key) const noexcept;  ///< a gauge
  /// Why expectations of the key are refused: the reason of the poison, kReleased, kOk. A gauge.
  Errc poison_of(CounterKey key) const noexcept;

  /// Makes `member` a member of the group that is waited for at `parent`. From now on take_shares()
  /// takes `share` counts of it at a time, and when the last of them arrives, one count is added to
  /// the parent. By one level only: a parent is not linked. Fails like expect(), and so does
  /// expect() of a linked key, with kBusy.
  Errc link(CounterKey member, CounterKey parent, uint64_t share) noexcept;
  /// Undoes link(). When it returns, the parent has got all it ever will. `share_taken`: the share
  /// was taken by take_shares() and is given back. True: some of it was still owed, so the parent
  /// did not get its count.
  bool unlink(CounterKey member, bool share_taken) noexcept;
  /// The share of a member, as take_shares() needs it.
  struct Share {
    Atomic<uint64_t>* word = nullptr;
    uint64_t minus_units = 0;  ///< what is added to the word
  };
  Share share_of(CounterKey member, uint64_t share) noexcept;
  /// Takes the share of every member. Returns how many owe some of it: the parent gets one count
  /// for each of these, and may have got it already. No other take_shares() of these members
  /// before they all have paid, and none of a member that is not linked: the caller's lock keeps
  /// them linked, so that this needs no check of the generation.
  uint32_t take_shares(std::span<const Share> shares) noexcept;
  bool owes(CounterKey member) const noexcept;  ///< a gauge
  /// The least number of immediates after which the armed expectation is met, or the share of a
  /// linked key is paid; 0: nothing is waited for. A lower bound: shards need more.
  uint64_t missing(CounterKey key) const noexcept;

 private:
  struct Slot;  // cold record
  struct Change;
  struct Added;
  enum class Links : uint8_t { kLeave, kFollow };

  uint32_t index_of(CounterKey key) const noexcept { return key.wire() & slot_mask_; }
  uint64_t tag_of(CounterKey key) const noexcept;
  template <class Next>
  Change change(CounterKey key, Next next) noexcept;
  Added add_units(CounterKey key, int64_t units, Links links) noexcept;
  Added overrun(CounterKey parent) noexcept;
  bool deliver(CounterKey key, int64_t units) noexcept;
  bool deliver_any(uint32_t imm) noexcept;
  bool deliver_unlinked(CounterKey key, int64_t units) noexcept;
  bool deliver_and_forward(CounterKey key, int64_t units) noexcept;
  uint32_t repair_shares(std::span<const Share> shares) noexcept;
  Result<Armed> arm(CounterKey key, uint64_t n, uint32_t cookie, Waiter* waiter);
  void fire(Slot& slot, Errc code, uint64_t pin = 0) noexcept;
  Errc claim_record(CounterKey key, uint32_t* seq) noexcept;
  void push_free(uint32_t index) noexcept;
  uint32_t pop_free() noexcept;

  const Fired fired_;
  void* const context_;
  const uint32_t live_limit_;
  const uint32_t slot_bits_;
  const uint32_t slot_mask_;
  const uint32_t generation_mask_;

  std::unique_ptr<Atomic<uint64_t>[]> words_;
  std::unique_ptr<Slot[]> slots_;

  Mutex mutex_;  // guards the free ring; generations begin, end and are linked under it
  std::unique_ptr<uint32_t[]> free_ring_;  // free slots, freed longest ago first
  uint32_t free_head_ = 0;
  uint32_t free_size_ = 0;
  Atomic<uint32_t> live_{0};
};

}  // namespace fabric::core

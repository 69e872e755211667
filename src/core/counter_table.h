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

// The receiver's half of counting: keys, the counter word, expectations (P6, P8-P11). What a count
// proves and why this word cannot lose a wake-up: docs/design/0003-counters.md.

namespace fabric::core {

/// All counters of an engine: a dense array of 64-bit words that workers add to, and a cold record
/// beside each for the one armed expectation.
///
/// Threads: everything from any thread. acquire(), release() and set_parent() take a lock, arrivals
/// never do.
class CounterTable {
 public:
  /// Called when an armed expectation ends, on whatever thread ended it, exactly once. The record
  /// is free by then and no lock is held: it may call anything here, expect() included.
  using Fired = void (*)(void* context, uint32_t cookie, Errc code);

  struct Options {
    uint32_t live_max = 32768;  ///< rounded up to a power of two, at most 2^20; twice as many slots
    uint64_t seed = 0;          ///< first generations
    Fired fired = nullptr;
    void* context = nullptr;
    uint32_t key_bits = CounterKey::kBits;  ///< fewer in tests, to see key values come back
  };
  explicit CounterTable(const Options& options);
  ~CounterTable();
  CounterTable(const CounterTable&) = delete;
  CounterTable& operator=(const CounterTable&) = delete;

  /// A new key. `quarantine_ns`: how long a key must rest before its value comes back without proof (the
  /// longest life of a write). Fails with kExhausted: too many live, or the half-wrap rule.
  Result<CounterKey> acquire(int64_t now_ns, int64_t quarantine_ns);
  /// Ends the life of the key: late arrivals are stale, an armed expectation ends with kReleased.
  /// `untaken` (optional) gets the whole counts that were there and not taken. False: was not live.
  bool release(CounterKey key, int64_t now_ns, uint64_t* untaken = nullptr);
  bool live(CounterKey key) const noexcept;
  uint32_t live_count() const noexcept;

  /// Takes a polled batch of immediates. Returns how many were stale and dropped.
  uint32_t arrive(std::span<const uint32_t> imms) noexcept;
  /// The same one, `n` times.
  uint32_t arrive(uint32_t imm, uint32_t n) noexcept;
  /// Adds whole counts directly (a masked member's debt).
  void add(CounterKey key, uint64_t n) noexcept;

  uint64_t count(CounterKey key) const noexcept;  ///< whole counts here and not taken; 0 when not live
  bool try_take(CounterKey key, uint64_t n) noexcept;

  /// One expectation, so that a late cancel cannot hit the next one.
  struct Expectation {
    CounterKey key{};
    uint32_t seq = 0;
  };
  struct Armed {
    Expectation expectation{};
    bool met = false;  ///< it was there already: taken, nothing is armed, Fired is not called
  };
  static constexpr uint32_t kWaiter = UINT32_MAX;  ///< a cookie: nobody is called, result() and
                                                   ///< parking() tell a blocked thread
  /// Fails with kBusy (one is armed), kReleased (not live), kAborted / kPeerLost / kOverrun
  /// (poisoned), kInvalidArgument (n = 0 or beyond what the word can hold).
  Result<Armed> expect(CounterKey key, uint64_t n, uint32_t cookie);
  /// Ends the expectation with `why` if it is still armed. True: it did, and Fired was called.
  bool cancel(const Expectation& expectation, Errc why) noexcept;
  /// How an expectation ended; not done while it is armed. Once the counter has been armed anew it
  /// only tells that it did (kNotFound).
  struct ExpectationStatus {
    bool done = false;
    Errc code = Errc::kOk;
  };
  ExpectationStatus peek(const Expectation& expectation) const noexcept;
  /// The same for the thread that waits (kWaiter). The counter is not armed anew before it has
  /// read its end here, so that end is never lost.
  ExpectationStatus result(const Expectation& expectation) noexcept;
  EventCount& event_count(CounterKey key) noexcept;

  /// A write that counts here failed, or a peer it is bound to is lost: the key is poisoned. An
  /// armed expectation ends with `why`, later ones are refused with it; the first reason stays.
  /// count() and release() go on telling what was there, unless an expectation was armed for it.
  /// Returns the parent that it was linked to: the caller decides what becomes of that one.
  CounterKey abort(CounterKey key, Errc why) noexcept;
  bool poisoned(CounterKey key) const noexcept;  ///< a gauge

  /// From now on every whole count that `member` gains is added to `parent` too, and so are, once,
  /// those already there that no armed expectation has claimed. CounterKey{} unlinks: when it returns, the
  /// old parent has got all it ever will. Counts passed on travel one level only.
  void set_parent(CounterKey member, CounterKey parent) noexcept;

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
  bool deliver(CounterKey key, int64_t units) noexcept;
  bool deliver_any(uint32_t imm) noexcept;
  bool deliver_and_forward(CounterKey key, int64_t units) noexcept;
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

  Mutex mutex_;  // lives begin, end and are linked under it; guards the free ring
  std::unique_ptr<uint32_t[]> free_ring_;  // slots that rest, longest first
  uint32_t free_head_ = 0;
  uint32_t free_size_ = 0;
  Atomic<uint32_t> live_{0};
};

}  // namespace fabric::core

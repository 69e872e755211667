#include "core/counter_table.h"

#include <algorithm>
#include <bit>
#include <mutex>

#include "base/rng.h"

// Any thread, without the state lock. Arrivals and expectations are lock-free; `mutex_` guards
// generations, links and the ring of free slots (counter_table.h).

namespace fabric::core {

namespace {

// The claim word of a record: [63:32] seq, [15:8] code of that expectation, [1] pinned, [0] armed.
// The code is in the same word as the armed bit, so that one change both frees the record and
// publishes the code. The word of a waiter is [15:8] code, [0] ended.
constexpr uint64_t kArmed = 1;
constexpr uint64_t kPinned = 2;
constexpr uint32_t kEnded = 1;
constexpr uint32_t kCodeShift = 8;
constexpr uint32_t kSeqShift = 32;

constexpr uint64_t armed_claim(uint32_t seq) { return uint64_t{seq} << kSeqShift | kArmed; }
constexpr uint32_t seq_of(uint64_t claim) { return static_cast<uint32_t>(claim >> kSeqShift); }
constexpr bool in_use(uint64_t claim) { return (claim & (kArmed | kPinned)) != 0; }
constexpr uint32_t code_bits(Errc code) {
  return uint32_t{static_cast<uint8_t>(code)} << kCodeShift;
}
constexpr Errc code_of(uint64_t bits) { return static_cast<Errc>(bits >> kCodeShift & 0xff); }

constexpr uint32_t kLiveLimitMax = 1u << 20;
constexpr int64_t kNeverWrapped = INT64_MIN;
constexpr uint32_t kKeyMask = (1u << CounterKey::kBits) - 1;

// Words that are prefetched at once: about the outstanding misses of a core, and few enough to be
// still in the L1 cache when the adds reach them.
constexpr size_t kPrefetch = 64;

// A record in use without an unmet expectation is being handed over: its holder is a few
// instructions from releasing it, or was preempted there. A yield lets it run; this many yields
// take less than a millisecond on an idle machine.
constexpr uint32_t kHandOverYields = 1024;

constexpr uint64_t kLeave = word::kNoTag;  // not a valid word: poisoned, but not live

constexpr int64_t units_of_whole(uint64_t n) {
  // Beyond every balance: overflows the word even when the largest expectation is armed.
  constexpr int64_t kTooMany = 2 * word::kBalanceMax + 1;
  return n > word::kCountMax ? kTooMany : static_cast<int64_t>(n) * kUnitsPerWrite;
}

/// Why a word was left as it is.
constexpr Errc refusal(uint64_t seen, uint64_t tag) {
  if (!word::has_tag(seen, tag)) return Errc::kReleased;
  return word::poisoned(seen) ? word::reason(seen) : Errc::kBusy;  // else it is linked
}

/// The fast path of an arrival: a live word that is not poisoned, and the sign of the balance does
/// not change (no expectation is met, no share is paid). False: any other case, and nothing was
/// done. `free_word` is the free word of the generation in the immediate.
[[gnu::always_inline]] inline bool try_add_fast(Atomic<uint64_t>& cell, uint64_t free_word,
                                                int64_t units) noexcept {
  uint64_t seen = cell.load(std::memory_order_relaxed);  // a guess, as in change()
  const uint64_t next = seen + static_cast<uint64_t>(units);
  // Above balance and link the words differ in the live bit only, and the sign of the balance
  // stays.
  constexpr uint32_t kAboveLink = word::kBalanceBits + 1;
  constexpr uint64_t kOnlyLive = word::kLive >> kAboveLink;
  const uint64_t other = (seen ^ free_word) >> kAboveLink ^ kOnlyLive;
  const uint64_t crossed = (seen ^ next) >> (word::kBalanceBits - 1);
  if ((other | crossed) != 0) return false;
  // Release pairs with the acquire in change() and count(). No acquire: it completes nothing.
  return cell.compare_exchange_strong(seen, next, std::memory_order_release,
                                      std::memory_order_relaxed);
}

/// Adds to a linked word; `paid`: its share was owed, and is not any more. False: another word than
/// `linked_word` with a balance, or an overrun, and nothing was done.
[[gnu::always_inline]] inline bool try_add_linked(Atomic<uint64_t>& cell, uint64_t linked_word,
                                                  int64_t units, bool& paid) noexcept {
  uint64_t seen = cell.load(std::memory_order_relaxed);  // a guess, as in change()
  for (;;) {
    const uint64_t next = seen + static_cast<uint64_t>(units);
    // Above the balance nothing differs, and nothing is carried into it.
    if ((((seen ^ linked_word) | (seen ^ next)) >> word::kBalanceBits) != 0) return false;
    // As in change().
    if (cell.compare_exchange_weak(seen, next, std::memory_order_acq_rel,
                                   std::memory_order_relaxed)) [[likely]] {
      paid = ((seen ^ next) >> (word::kBalanceBits - 1)) != 0;
      return true;
    }
  }
}

uint32_t slot_bits_for(uint32_t live_limit, uint32_t key_bits) {
  const uint32_t needed = static_cast<uint32_t>(std::countr_zero(live_limit)) + 1;
  // Bits of the counter key beyond those of a generation become slot bits: then every bit delays
  // the reuse of a value.
  const uint32_t left = key_bits > word::kGenerationBits ? key_bits - word::kGenerationBits : 0;
  return std::max(needed, left);
}

uint32_t generation_mask_for(uint32_t slot_bits, uint32_t key_bits) {
  const uint32_t bits = key_bits > slot_bits ? key_bits - slot_bits : 1;
  return (1u << std::min(bits, word::kGenerationBits)) - 1;
}

}  // namespace

/// The cold record of a slot: expectation, link and reuse. Shared by all generations of the slot:
/// the seq keeps counting, so that two expectations of a slot are never confused.
struct CounterTable::Slot {
  Atomic<uint64_t> claim{0};
  Atomic<uint64_t> n{0};                 // of the armed expectation; the share of a linked key
  int64_t half_wrap_ns = kNeverWrapped;  // when the generation last became 0 or half; mutex_
  Atomic<uint32_t> forwarding{0};        // arrivals that may be about to add to the parent
  Plain<CounterKey> parent{};  // written while unlinked and `forwarding` is 0, read by forwarders
  Plain<uint32_t> cookie{0};   // written by the claimer of the record, read by fire()
  Plain<Waiter*> waiter{nullptr};  // likewise; null: Fired is called
  EventCount waiters;
};

/// One attempt to change a word; `after` only when it was made.
struct CounterTable::Change {
  bool made = false;
  uint64_t before = 0;
  uint64_t after = 0;
};

/// What an arrival changed, and what its thread still has to do.
struct CounterTable::Added {
  enum What : uint8_t { kStale, kTaken, kLinked } what = kTaken;
  bool ends = false;  // the armed expectation is this thread's to end, with `code`
  bool paid = false;  // the share of a linked word: the parent gets one count, or kOverrun
  Errc code = Errc::kOk;
};

CounterTable::CounterTable(const Options& options)
    : fired_(options.fired),
      context_(options.context),
      live_limit_(std::bit_ceil(std::clamp(options.live_max, 1u, kLiveLimitMax))),
      slot_bits_(slot_bits_for(live_limit_, std::min(options.key_bits, CounterKey::kBits))),
      slot_mask_((1u << slot_bits_) - 1),
      generation_mask_(
          generation_mask_for(slot_bits_, std::min(options.key_bits, CounterKey::kBits))),
      words_(std::make_unique<Atomic<uint64_t>[]>(slot_mask_ + 1)),
      slots_(std::make_unique<Slot[]>(slot_mask_ + 1)),
      free_ring_(std::make_unique<uint32_t[]>(slot_mask_ + 1)) {
  const auto first = static_cast<uint32_t>(Rng(options.seed).next()) & generation_mask_;
  for (uint32_t i = 0; i <= slot_mask_; ++i) {
    // Relaxed: the table is not shared yet.
    words_[i].store(word::free_word(first), std::memory_order_relaxed);
    if (i != 0) push_free(i);  // a counter key of slot 0 and generation 0 would mean "no immediate"
  }
}

CounterTable::~CounterTable() = default;

uint64_t CounterTable::tag_of(CounterKey key) const noexcept {
  const uint32_t generation = key.wire() >> slot_bits_;
  return generation <= generation_mask_ ? word::live_tag(generation) : word::kNoTag;
}

/// Changes the word of `key` to next(word), unless that is kLeave or the word has another tag. The
/// check of the tag and the change are one compare-exchange: a late arrival can never count in the
/// next generation.
template <class Next>
CounterTable::Change CounterTable::change(CounterKey key, Next next) noexcept {
  Atomic<uint64_t>& cell = words_[index_of(key)];
  const uint64_t tag = tag_of(key);
  // Only a guess for the compare-exchange, hence relaxed; likewise when that fails.
  uint64_t seen = cell.load(std::memory_order_relaxed);
  for (;;) {
    if (!word::has_tag(seen, tag)) [[unlikely]] {
      return {false, seen, 0};
    }
    const uint64_t wanted = next(seen);
    if (wanted == kLeave) [[unlikely]] {
      return {false, seen, 0};
    }
    // Every change is a read-modify-write, so each synchronizes with all before it: the thread that
    // ends an expectation has acquired its record and the bytes of every arrival, whichever thread
    // counted them.
    if (cell.compare_exchange_weak(seen, wanted, std::memory_order_acq_rel,
                                   std::memory_order_relaxed)) {
      return {true, seen, wanted};
    }
  }
}

// --- counter keys -------------------------------------------------------------------------------

void CounterTable::push_free(uint32_t index) noexcept {
  free_ring_[(free_head_ + free_size_++) & slot_mask_] = index;
}

uint32_t CounterTable::pop_free() noexcept {
  --free_size_;
  return free_ring_[free_head_++ & slot_mask_];
}

Result<CounterKey> CounterTable::acquire(int64_t now_ns, int64_t quarantine_ns) {
  const std::lock_guard lock(mutex_);
  if (live_.load(std::memory_order_relaxed) == live_limit_) {  // changes under mutex_ only
    return fail(Errc::kExhausted, "live counters");
  }
  for (uint32_t tries = free_size_; tries > 0; --tries) {
    const uint32_t index = free_ring_[free_head_ & slot_mask_];
    Slot& slot = slots_[index];
    // A thread of the previous generation was preempted while it held the record or forwarded
    // counts. The slot goes to the back of the ring. Acquire pairs with the release of the claim in
    // fire(), cancel() and arm(), and of `forwarding` in deliver_and_forward().
    if (in_use(slot.claim.load(std::memory_order_acquire)) ||
        slot.forwarding.load(std::memory_order_acquire) != 0) [[unlikely]] {
      push_free(pop_free());
      continue;
    }
    // The word of a free slot does not change, hence relaxed.
    const uint64_t free_word = words_[index].load(std::memory_order_relaxed);
    const uint32_t generation = (word::generation(free_word) + 1) & generation_mask_;
    // The half-wrap rule. Generations advance by one, so the previous landmark (0 or half) was the
    // other one. Slots further down the ring were freed later: they are no better.
    if ((generation & generation_mask_ >> 1) == 0) {
      if (slot.half_wrap_ns != kNeverWrapped && now_ns - slot.half_wrap_ns <= quarantine_ns) {
        return fail(Errc::kExhausted, "keys in quarantine");
      }
      slot.half_wrap_ns = now_ns;
    }
    pop_free();
    live_.fetch_add(1, std::memory_order_relaxed);  // a gauge; pairs with nothing
    // Pairs with the acquire of every change() in this generation.
    words_[index].exchange(word::live_word(generation), std::memory_order_acq_rel);
    return CounterKey::from_wire(generation << slot_bits_ | index);
  }
  return fail(Errc::kExhausted, "free counters");
}

bool CounterTable::release(CounterKey key, int64_t /*now_ns*/, uint64_t* untaken,
                           CounterKey* parent) {
  Change ended;
  {
    const std::lock_guard lock(mutex_);
    ended = change(key, [](uint64_t seen) { return word::free_word(word::generation(seen)); });
    if (!ended.made) return false;
    // Links change under mutex_ only, and a poisoned word has none.
    if (parent != nullptr && word::linked(ended.before)) *parent = slots_[index_of(key)].parent;
    push_free(index_of(key));
    live_.fetch_sub(1, std::memory_order_relaxed);  // a gauge; pairs with nothing
  }
  if (!word::waiting(ended.before)) {
    if (untaken != nullptr) *untaken = word::untaken(ended.before);
    return true;
  }
  // This thread ends the expectation. Until then the claim keeps acquire() from reusing the slot,
  // and `n` valid. A linked key has no expectation: its `n` may be of the next link, but only if
  // another thread is as fast, and `untaken` is a gauge then.
  Slot& slot = slots_[index_of(key)];
  if (untaken != nullptr) {
    // Written before the word turned negative, which change() has acquired.
    const uint64_t n = slot.n.load(std::memory_order_relaxed);
    *untaken =
        static_cast<uint64_t>(word::whole_counts(word::balance(ended.before) + units_of_whole(n)));
  }
  if (!word::linked(ended.before)) fire(slot, Errc::kReleased);
  return true;
}

bool CounterTable::live(CounterKey key) const noexcept {
  // A gauge; acquire pairs with change(), so that reads after it see what happened before.
  return word::has_tag(words_[index_of(key)].load(std::memory_order_acquire), tag_of(key));
}

uint32_t CounterTable::live_count() const noexcept {
  return live_.load(std::memory_order_relaxed);  // a gauge; pairs with nothing
}

// --- arrivals -----------------------------------------------------------------------------------

uint32_t CounterTable::arrive(std::span<const uint32_t> imms) noexcept {
  // In locals, because the compiler reloads members after each compare-exchange.
  Atomic<uint64_t>* const words = words_.get();
  const uint32_t slot_mask = slot_mask_;
  const uint64_t generations = uint64_t{generation_mask_} << slot_bits_;
  const uint64_t to_word = uint64_t{1} << (word::kGenerationShift - slot_bits_);
  // Bits that are zero in every counter key of this table.
  const auto foreign =
      static_cast<uint32_t>(kImmReserved | (kKeyMask & ~(generations | slot_mask)));
  uint32_t stale = 0;
  const uint32_t* at = imms.data();
  for (const uint32_t* const end = at + imms.size(); at != end;) {
    const uint32_t* const group = at + std::min<ptrdiff_t>(end - at, kPrefetch);
    uint32_t all = 0;
    for (const uint32_t* i = at; i != group; ++i) {
      const uint32_t imm = *i;
      all |= imm;
      __builtin_prefetch(&words[imm & slot_mask], 1);
    }
    if ((all & foreign) != 0) [[unlikely]] {
      for (; at != group; ++at) stale += !deliver_any(*at);
      continue;
    }
    while (at != group) {
      const uint32_t imm = *at++;
      int64_t units = units_of_imm(imm);
      // Paged writes arrive as bursts of one counter key: one compare-exchange counts them all.
      for (; at != group && *at == imm; ++at) units += units_of_imm(imm);
      if (!try_add_fast(words[imm & slot_mask], (imm & generations) * to_word, units) &&
          !deliver(CounterKey::from_wire(imm & kKeyMask), units)) [[unlikely]] {
        stale += static_cast<uint32_t>(units / units_of_imm(imm));
      }
    }
  }
  return stale;
}

uint32_t CounterTable::arrive(uint32_t imm, uint32_t n) noexcept {
  const uint64_t generations = uint64_t{generation_mask_} << slot_bits_;
  const uint64_t to_word = uint64_t{1} << (word::kGenerationShift - slot_bits_);
  if ((imm & (kImmReserved | (kKeyMask & ~(generations | slot_mask_)))) != 0) [[unlikely]] {
    uint32_t stale = 0;
    for (uint32_t i = 0; i < n; ++i) stale += !deliver_any(imm);
    return stale;
  }
  const int64_t units = units_of_imm(imm) * int64_t{n};
  const bool counted =
      try_add_fast(words_[imm & slot_mask_], (imm & generations) * to_word, units) ||
      deliver(CounterKey::from_wire(imm & kKeyMask), units);
  return counted ? 0 : n;
}

/// An immediate that may be reserved, or of another table. False: stale.
[[gnu::noinline]] bool CounterTable::deliver_any(uint32_t imm) noexcept {
  return (imm & kImmReserved) == 0 &&
         deliver(CounterKey::from_wire(imm & kKeyMask), units_of(imm_shards(imm)));
}

void CounterTable::add(CounterKey key, uint64_t n) noexcept {
  if (n != 0) deliver(key, units_of_whole(n));
}

/// Adds to one word. Links::kLeave does not change a linked word and returns kLinked: a forwarder
/// must increment `forwarding` first.
CounterTable::Added CounterTable::add_units(CounterKey key, int64_t units, Links links) noexcept {
  const Change done = change(key, [units, links](uint64_t seen) {
    if (word::poisoned(seen) || (word::linked(seen) && links == Links::kLeave)) return kLeave;
    return word::plus(seen, units);
  });
  if (!done.made) {
    if (!word::has_tag(done.before, tag_of(key))) return {.what = Added::kStale};
    return {.what = word::poisoned(done.before) ? Added::kTaken : Added::kLinked};
  }
  const bool met = word::waiting(done.before) && !word::waiting(done.after);
  const bool linked = word::linked(done.before);
  Added added;
  const bool overrun = word::poisoned(done.after);
  added.ends = met && !linked;
  added.paid = linked && (met || overrun);
  added.code = overrun ? Errc::kOverrun : Errc::kOk;
  return added;
}

/// False: stale.
bool CounterTable::deliver(CounterKey key, int64_t units) noexcept {
  // A hint, hence relaxed: each of the two looks again, and calls the other if it was wrong.
  if (word::linked(words_[index_of(key)].load(std::memory_order_relaxed))) {
    return deliver_and_forward(key, units);
  }
  return deliver_unlinked(key, units);
}

[[gnu::noinline]] bool CounterTable::deliver_unlinked(CounterKey key, int64_t units) noexcept {
  const Added added = add_units(key, units, Links::kLeave);
  if (added.what == Added::kLinked) [[unlikely]] {
    return deliver_and_forward(key, units);
  }
  if (added.ends) fire(slots_[index_of(key)], added.code);
  return added.what != Added::kStale;
}

[[gnu::noinline]] bool CounterTable::deliver_and_forward(CounterKey key, int64_t units) noexcept {
  const uint32_t index = index_of(key);
  Slot& slot = slots_[index];
  // Incremented before the word is changed. Relaxed: an unlink or release after that change
  // acquires the word, and with it this increment.
  slot.forwarding.fetch_add(1, std::memory_order_relaxed);
  Added own, above;
  if (!try_add_linked(words_[index], tag_of(key) | word::kLinked, units, own.paid)) [[unlikely]] {
    own = add_units(key, units, Links::kFollow);
  }
  CounterKey parent{};
  if (own.paid) {
    parent = slot.parent;
    const uint64_t free_word = word::free_word(parent.wire() >> slot_bits_);
    if (own.code != Errc::kOk) [[unlikely]] {
      above = overrun(parent);
    } else if (!try_add_fast(words_[index_of(parent)], free_word, kUnitsPerWrite)) {
      above = add_units(parent, kUnitsPerWrite, Links::kFollow);
    }
  }
  // Release pairs with the acquire loads in unlink() and acquire(). Before fire(), because its
  // callback may call unlink(), which waits for this.
  slot.forwarding.fetch_sub(1, std::memory_order_release);
  if (own.ends) fire(slot, own.code);
  if (above.ends) fire(slots_[index_of(parent)], above.code);
  return own.what != Added::kStale;
}

/// Poisons the parent of a member that can count no more.
CounterTable::Added CounterTable::overrun(CounterKey parent) noexcept {
  const Change done = change(parent, [](uint64_t seen) {
    return word::poisoned(seen) ? kLeave : word::poison(seen, Errc::kOverrun);
  });
  Added added;
  added.ends = done.made && word::waiting(done.before);
  added.code = Errc::kOverrun;
  return added;
}

// --- groups -------------------------------------------------------------------------------------

Errc CounterTable::link(CounterKey member, CounterKey parent, uint64_t share) noexcept {
  if (share == 0 || share > word::kCountMax || member == parent) return Errc::kInvalidArgument;
  uint32_t seq = 0;
  // An armed expectation and an owed share are both negative balances: the claim keeps them apart.
  if (const Errc why = claim_record(member, &seq); why != Errc::kOk) return why;
  Slot& slot = slots_[index_of(member)];
  Errc code = Errc::kOk;
  {
    const std::lock_guard lock(mutex_);
    // Generations and links change under mutex_ only, hence relaxed.
    const uint64_t seen = words_[index_of(member)].load(std::memory_order_relaxed);
    if (word::has_tag(seen, tag_of(member)) && word::linked(seen)) {
      code = Errc::kBusy;
    } else {
      // No arrival needs the last parent any more: unlink() and acquire() have waited for them.
      slot.parent = parent;
      slot.n.store(share, std::memory_order_relaxed);  // readers acquire the word
      const Change linked = change(
          member, [](uint64_t old) { return word::poisoned(old) ? kLeave : old | word::kLinked; });
      if (!linked.made) code = refusal(linked.before, tag_of(member));
    }
  }
  slot.claim.fetch_and(~kArmed, std::memory_order_release);  // pairs with claim_record()
  return code;
}

bool CounterTable::unlink(CounterKey member, bool share_taken) noexcept {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[index_of(member)];
  // Relaxed: `n` changes under mutex_ while the key is linked.
  const int64_t units = share_taken ? units_of_whole(slot.n.load(std::memory_order_relaxed)) : 0;
  const Change done = change(member, [units](uint64_t old) {
    if (word::poisoned(old) || !word::linked(old)) return kLeave;
    return word::plus(old, units) & ~word::kLinked;
  });
  // Threads that changed the word while it was linked still need the parent. They are a few
  // instructions from done, and there are no new ones. Pairs with deliver_and_forward().
  while (slot.forwarding.load(std::memory_order_acquire) != 0) yield_thread();
  return done.made && word::waiting(done.before);
}

CounterTable::Share CounterTable::share_of(CounterKey member, uint64_t share) noexcept {
  return {.word = &words_[index_of(member)],
          .minus_units = uint64_t{0} - static_cast<uint64_t>(units_of_whole(share))};
}

uint32_t CounterTable::take_shares(std::span<const Share> shares) noexcept {
  uint64_t signs = 0, seen_any = 0;
  for (const Share& share : shares) {
    // Acquire: when no member owes anything, the caller reads the bytes of what was counted. The
    // thread that pays acquires the change that linked the word, which this carries on.
    const uint64_t seen = share.word->fetch_add(share.minus_units, std::memory_order_acquire);
    seen_any |= seen;
    // With the bias the bit is set if the balance is not negative. A sum of bits has room: there
    // are less than 2^20 counters.
    signs += (seen + share.minus_units) & static_cast<uint64_t>(word::kBias);
  }
  if (word::poisoned(seen_any)) [[unlikely]] {
    return repair_shares(shares);
  }
  return static_cast<uint32_t>(shares.size() - (signs >> (word::kBalanceBits - 1)));
}

/// A member was poisoned by an overrun, without the caller's lock: its word has no balance, and
/// what was subtracted is put back. Its group is poisoned too, so what it owes does not matter.
[[gnu::noinline]] uint32_t CounterTable::repair_shares(std::span<const Share> shares) noexcept {
  uint32_t owing = 0;
  for (const Share& share : shares) {
    const uint64_t seen = share.word->load(std::memory_order_acquire);  // pairs with change()
    if (word::poisoned(seen)) share.word->fetch_sub(share.minus_units, std::memory_order_acq_rel);
    owing += word::poisoned(seen) || word::waiting(seen);
  }
  return owing;
}

uint64_t CounterTable::missing(CounterKey key) const noexcept {
  // Relaxed: an arrival that it misses only makes the number smaller.
  const uint64_t seen = words_[index_of(key)].load(std::memory_order_relaxed);
  if (!word::has_tag(seen, tag_of(key)) || !word::waiting(seen)) return 0;
  // An immediate adds one whole count at most.
  return static_cast<uint64_t>((-word::balance(seen) + kUnitsPerWrite - 1) / kUnitsPerWrite);
}

bool CounterTable::owes(CounterKey member) const noexcept {
  // A gauge; acquire pairs with change(), as in live().
  const uint64_t seen = words_[index_of(member)].load(std::memory_order_acquire);
  return word::has_tag(seen, tag_of(member)) && word::linked(seen) && word::waiting(seen);
}

// --- taking -------------------------------------------------------------------------------------

uint64_t CounterTable::count(CounterKey key) const noexcept {
  const uint32_t index = index_of(key);
  const Slot& slot = slots_[index];
  for (;;) {
    // Acquire pairs with claim_record(): a word read after it is no older than this expectation.
    const uint64_t claim = slot.claim.load(std::memory_order_acquire);
    // Acquire pairs with change(): `n` read after it is no older than this word.
    const uint64_t seen = words_[index].load(std::memory_order_acquire);
    if (!word::has_tag(seen, tag_of(key))) return 0;
    if (!word::waiting(seen)) return word::untaken(seen);
    // Acquire pairs with the release in arm(): if this were of a later expectation, the claim
    // below would be too.
    const uint64_t n = slot.n.load(std::memory_order_acquire);
    if (word::linked(seen)) {
      // Its share is constant while it is linked. Relaxed: a gauge.
      if (((words_[index].load(std::memory_order_relaxed) ^ seen) >> word::kBalanceBits) != 0) {
        continue;
      }
      return static_cast<uint64_t>(word::whole_counts(word::balance(seen) + units_of_whole(n)));
    }
    const uint64_t again = slot.claim.load(std::memory_order_relaxed);
    // The same claim, armed, on both sides: word and n belong to the same expectation.
    if ((claim & kArmed) != 0 && (again & ~kPinned) == (claim & ~kPinned)) {
      return static_cast<uint64_t>(word::whole_counts(word::balance(seen) + units_of_whole(n)));
    }
  }
}

bool CounterTable::try_take(CounterKey key, uint64_t n) noexcept {
  const int64_t units = units_of_whole(n);
  return change(key,
                [units](uint64_t seen) {
                  if (word::poisoned(seen) || word::balance(seen) < units) return kLeave;
                  return word::with_balance(seen, word::balance(seen) - units);
                })
      .made;
}

/// Claims the record for this thread: kOk, or why not.
Errc CounterTable::claim_record(CounterKey key, uint32_t* seq) noexcept {
  Slot& slot = slots_[index_of(key)];
  const uint64_t tag = tag_of(key);
  for (uint32_t tries = 0; tries < kHandOverYields; ++tries) {
    // Only a guess that the compare-exchange confirms, hence relaxed.
    uint64_t claim = slot.claim.load(std::memory_order_relaxed);
    // change() would refuse it later; checking here saves the claim. Relaxed: an early answer is as
    // valid as a late one.
    const uint64_t seen = words_[index_of(key)].load(std::memory_order_relaxed);
    if (!word::has_tag(seen, tag) || word::poisoned(seen)) return refusal(seen, tag);
    if (!in_use(claim)) {
      *seq = seq_of(claim) + 1;
      // Acquire pairs with the release of the claim by its last holder, release with the first
      // load in count().
      if (slot.claim.compare_exchange_strong(claim, armed_claim(*seq), std::memory_order_acq_rel,
                                             std::memory_order_relaxed)) {
        return Errc::kOk;
      }
    } else if (word::waiting(seen)) {
      return Errc::kBusy;
    }
    if (tries != 0) yield_thread();
  }
  return Errc::kBusy;
}

Result<CounterTable::Armed> CounterTable::expect(CounterKey key, uint64_t n, uint32_t cookie) {
  return arm(key, n, cookie, nullptr);
}

Result<CounterTable::Armed> CounterTable::expect(CounterKey key, uint64_t n, Waiter& waiter) {
  return arm(key, n, 0, &waiter);
}

Result<CounterTable::Armed> CounterTable::arm(CounterKey key, uint64_t n, uint32_t cookie,
                                              Waiter* waiter) {
  if (n == 0 || n > word::kCountMax) return fail(Errc::kInvalidArgument, "n");
  Expectation expectation{key, 0};
  if (const Errc why = claim_record(key, &expectation.seq); why != Errc::kOk) {
    return fail(why, "expect");
  }
  Slot& slot = slots_[index_of(key)];
  slot.cookie = cookie;
  slot.waiter = waiter;
  // Pairs with the acquire in count(); all other readers acquire the word.
  slot.n.store(n, std::memory_order_release);
  const int64_t units = units_of_whole(n);
  const Change asked = change(key, [units](uint64_t seen) {
    if (word::poisoned(seen) || word::linked(seen)) return kLeave;
    return word::with_balance(seen, word::balance(seen) - units);
  });
  // Whether to wait is decided here and whether to wake in add_units(), on the same word: there is
  // no second variable that could be stale, hence no lost wake-up.
  if (asked.made && word::waiting(asked.after)) return Armed{expectation, false};
  // Pairs with the acquire in claim_record().
  slot.claim.fetch_and(~kArmed, std::memory_order_release);
  if (!asked.made) return fail(refusal(asked.before, tag_of(key)), "expect");
  return Armed{expectation, true};
}

/// Ends the armed expectation. Called only by the thread whose change made the word stop waiting.
void CounterTable::fire(Slot& slot, Errc code, uint64_t pin) noexcept {
  const uint32_t cookie = slot.cookie;
  Waiter* const waiter = slot.waiter;
  // The last access to the record, which may be armed again from here on. Release pairs with peek()
  // and claim_record(): it publishes the bytes of all arrivals, which this thread acquired by its
  // change of the word. It needs no acquire for the same reason.
  slot.claim.fetch_xor(kArmed | pin | code_bits(code), std::memory_order_release);
  if (waiter != nullptr) {
    // The last access to the waiter, whose thread may return now. Release pairs with end().
    waiter->end_.store(kEnded | code_bits(code), std::memory_order_release);
    // May wake a waiter of a later expectation spuriously.
    slot.waiters.wake();
  } else if (fired_ != nullptr) {
    fired_(context_, cookie, code);
  }
}

CounterTable::ExpectationStatus CounterTable::Waiter::end() const noexcept {
  // Pairs with the release in fire(): a thread that sees the end sees the bytes.
  const uint32_t end = end_.load(std::memory_order_acquire);
  return {(end & kEnded) != 0, code_of(end)};
}

bool CounterTable::cancel(const Expectation& expectation, Errc why) noexcept {
  Slot& slot = slots_[index_of(expectation.key)];
  // The pin keeps the record from being armed again while its `n` is added back to the word.
  // Without it a cancel that was preempted here would add the n of this expectation to the next
  // one. Acquire pairs with claim_record(), release with the loads that see the pin.
  uint64_t claim = armed_claim(expectation.seq);
  if (!slot.claim.compare_exchange_strong(claim, claim | kPinned, std::memory_order_acq_rel,
                                          std::memory_order_relaxed)) {
    return false;
  }
  const Change undone = change(expectation.key, [&slot](uint64_t seen) {
    if (!word::waiting(seen)) return kLeave;
    // Constant under the pin; was written before the word became negative.
    const int64_t units = units_of_whole(slot.n.load(std::memory_order_relaxed));
    return word::with_balance(seen, word::balance(seen) + units);
  });
  if (undone.made) {
    fire(slot, why, kPinned);
  } else {
    // Pairs with the acquire in claim_record().
    slot.claim.fetch_and(~kPinned, std::memory_order_release);
  }
  return undone.made;
}

CounterKey CounterTable::abort(CounterKey key, Errc why) noexcept {
  Slot& slot = slots_[index_of(key)];
  Change made;
  CounterKey parent{};
  {
    const std::lock_guard lock(mutex_);  // links change under it only
    made = change(key, [why](uint64_t seen) {
      return word::poisoned(seen) ? kLeave : word::poison(seen, why);
    });
    if (made.made && word::linked(made.before)) parent = slot.parent;
  }
  if (made.made && word::waiting(made.before) && !parent) fire(slot, why);
  return parent;
}

bool CounterTable::poisoned(CounterKey key) const noexcept {
  // A gauge; acquire pairs with change(), as in live().
  const uint64_t seen = words_[index_of(key)].load(std::memory_order_acquire);
  return word::has_tag(seen, tag_of(key)) && word::poisoned(seen);
}

void CounterTable::disarm(CounterKey key) noexcept {
  const uint32_t index = index_of(key);
  Slot& slot = slots_[index];
  // Relaxed, as in claim_record(): what follows confirms it, or asks again.
  const uint32_t first = seq_of(slot.claim.load(std::memory_order_relaxed));
  for (;;) {
    const uint64_t claim = slot.claim.load(std::memory_order_relaxed);
    // One that was armed after the call had begun is not meant.
    if (seq_of(claim) != first || !in_use(claim)) return;
    // Released: release() ends the expectation, and no other can be armed under this key.
    if (!word::has_tag(words_[index].load(std::memory_order_relaxed), tag_of(key))) return;
    if ((claim & kArmed) != 0 && cancel({key, first}, Errc::kCancelled)) return;
    // Another thread is arming, ending or cancelling it, and is a few instructions from done. It
    // calls no user code before that, so the thread that disarm() waits for cannot be its own
    // caller.
    yield_thread();
  }
}

Errc CounterTable::poison_of(CounterKey key) const noexcept {
  const uint64_t seen = words_[index_of(key)].load(std::memory_order_acquire);  // as above
  if (!word::has_tag(seen, tag_of(key))) return Errc::kReleased;
  return word::poisoned(seen) ? word::reason(seen) : Errc::kOk;
}

CounterTable::ExpectationStatus CounterTable::peek(const Expectation& expectation) const noexcept {
  // Pairs with the release in fire().
  const uint64_t claim = slots_[index_of(expectation.key)].claim.load(std::memory_order_acquire);
  if (seq_of(claim) != expectation.seq) return {true, Errc::kNotFound};
  if ((claim & kArmed) != 0) return {};
  return {true, code_of(claim)};
}

EventCount& CounterTable::event_count(CounterKey key) noexcept {
  return slots_[index_of(key)].waiters;
}

}  // namespace fabric::core

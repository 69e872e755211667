#pragma once

#include <cstdint>

#include <fabric/result.h>
#include <fabric/types.h>

// The arithmetic of counting, free of atomics: the encoding of an immediate, and of a whole counter
// in one 64-bit word. Why it is one word: docs/design/0003-counters.md.

namespace fabric::core {

/// Units of one whole write: divisible by 1..8, so that shards add up to exactly one.
inline constexpr int64_t kUnitsPerWrite = 840;

/// The 32-bit immediate on the wire: bit 31 zero, cut - 1 in 30..28, counter key below.
constexpr uint32_t make_imm(CounterKey key, uint32_t cut) noexcept {
  return (cut - 1) << CounterKey::kBits | key.wire();
}
constexpr uint32_t imm_shards(uint32_t imm) noexcept { return (imm >> CounterKey::kBits & 7) + 1; }

/// Set in internal immediates and in those of later versions: they name no counter.
inline constexpr uint32_t kImmReserved = 1u << 31;

/// Units that an immediate adds: the share of one shard of a write cut into imm_shards(), nothing
/// if it is reserved. A table, because a division per arrival is measurable; at namespace scope,
/// because GCC would build a function-local one on the stack for each call.
inline constexpr int64_t kUnitsOfCut[2 * kRailsMax] = {840, 420, 280, 210, 168, 140, 120, 105};
constexpr int64_t units_of(uint32_t cut) noexcept { return kUnitsOfCut[cut - 1]; }
constexpr int64_t units_of_imm(uint32_t imm) noexcept {
  return kUnitsOfCut[imm >> CounterKey::kBits];
}

namespace word {

// [63:47] generation  [46] live  [45] poisoned  [44] linked  [43:0] balance
//
// The balance is signed and in units. It is negative exactly while an armed expectation is not met,
// or, in a linked word, while the member owes its share to its group. A poisoned word no longer
// counts; in place of the balance it has [43:36] the reason and [35:0] the whole counts at that
// time. The linked bit is next to the balance, so that the fast path shifts it out: an arrival that
// leaves the sign as it is does the same with or without a group. The balance is stored with kBias
// added, so that its sign changes without a borrow from the bits above: a share is taken by one
// subtraction from the whole word.
inline constexpr uint32_t kBalanceBits = 44;
inline constexpr uint64_t kBalanceMask = (uint64_t{1} << kBalanceBits) - 1;
inline constexpr int64_t kBias = int64_t{1} << (kBalanceBits - 1);
inline constexpr int64_t kBalanceMax = kBias - 1;
inline constexpr uint64_t kLinked = uint64_t{1} << 44;
inline constexpr uint64_t kPoisoned = uint64_t{1} << 45;
inline constexpr uint64_t kLive = uint64_t{1} << 46;
inline constexpr uint32_t kGenerationShift = 47;
inline constexpr uint32_t kGenerationBits = 64 - kGenerationShift;
inline constexpr uint32_t kReasonShift = 36;
inline constexpr uint64_t kKeptMask = (uint64_t{1} << kReasonShift) - 1;

/// The most whole counts that a balance can hold, or an expectation ask for.
inline constexpr uint64_t kCountMax = static_cast<uint64_t>(kBalanceMax / kUnitsPerWrite);
static_assert(kCountMax <= kKeptMask);

// The tag of a word is its generation and live bit: words with equal tags belong to the same
// generation of a counter key.
inline constexpr uint64_t kTagMask = ~uint64_t{0} << kGenerationShift | kLive;
/// No word has this tag, since kPoisoned is not part of the mask.
inline constexpr uint64_t kNoTag = kPoisoned;

constexpr uint64_t free_word(uint32_t generation) noexcept {
  return uint64_t{generation} << kGenerationShift;
}
constexpr uint64_t live_tag(uint32_t generation) noexcept { return free_word(generation) | kLive; }
constexpr uint32_t generation(uint64_t word) noexcept {
  return static_cast<uint32_t>(word >> kGenerationShift);
}
constexpr bool has_tag(uint64_t word, uint64_t tag) noexcept { return (word & kTagMask) == tag; }
constexpr bool poisoned(uint64_t word) noexcept { return (word & kPoisoned) != 0; }
constexpr bool linked(uint64_t word) noexcept { return (word & kLinked) != 0; }

constexpr int64_t balance(uint64_t word) noexcept {
  return static_cast<int64_t>(word & kBalanceMask) - kBias;
}
constexpr uint64_t with_balance(uint64_t word, int64_t balance) noexcept {
  return (word & ~kBalanceMask) | (static_cast<uint64_t>(balance + kBias) & kBalanceMask);
}
/// The first word of a generation: live, nothing counted.
constexpr uint64_t live_word(uint32_t generation) noexcept {
  return with_balance(live_tag(generation), 0);
}
/// An armed expectation is not met, or a share is owed.
constexpr bool waiting(uint64_t word) noexcept { return !poisoned(word) && balance(word) < 0; }

/// Rounds toward minus infinity: the result then grows by exactly one with every completed write,
/// however far takes have moved the balance by whole writes.
constexpr int64_t whole_counts(int64_t balance) noexcept {
  return (balance >= 0 ? balance : balance - (kUnitsPerWrite - 1)) / kUnitsPerWrite;
}

/// Counts claimed by an armed expectation are lost, because the word does not have the number that
/// it asked for. All other counts stay readable: a parent may already have got them.
constexpr uint64_t poison(uint64_t word, Errc why) noexcept {
  const int64_t kept = balance(word) >= 0 ? whole_counts(balance(word)) : 0;
  return (word & kTagMask) | kPoisoned | uint64_t{static_cast<uint8_t>(why)} << kReasonShift |
         static_cast<uint64_t>(kept);
}
constexpr Errc reason(uint64_t word) noexcept {
  return static_cast<Errc>(word >> kReasonShift & 0xff);
}

/// Whole counts of a word without an unmet expectation.
constexpr uint64_t untaken(uint64_t word) noexcept {
  return poisoned(word) ? word & kKeptMask : static_cast<uint64_t>(whole_counts(balance(word)));
}

/// An arrival. Poisons the word instead of wrapping, so that an overrun never shows a wrong count.
constexpr uint64_t plus(uint64_t word, int64_t units) noexcept {
  const int64_t sum = balance(word) + units;
  return sum > kBalanceMax ? poison(word, Errc::kOverrun) : with_balance(word, sum);
}

}  // namespace word
}  // namespace fabric::core

#include "core/counter_word.h"

#include <array>
#include <vector>

#include <gtest/gtest.h>

namespace fabric::core::counter_word_test {
namespace {

constexpr uint32_t kLastGeneration = (1u << word::kGenerationBits) - 1;
constexpr std::array<uint32_t, 5> kGenerations = {0, 1, kLastGeneration / 2, kLastGeneration - 1,
                                                  kLastGeneration};

std::vector<int64_t> balances_at_the_edges() {
  std::vector<int64_t> balances;
  for (const int64_t middle :
       {int64_t{0}, kUnitsPerWrite, -kUnitsPerWrite, 7 * kUnitsPerWrite,
        word::kBalanceMax - 2 * kUnitsPerWrite, -word::kBalanceMax + 2 * kUnitsPerWrite}) {
    for (int64_t off = -2 * kUnitsPerWrite; off <= 2 * kUnitsPerWrite; ++off) {
      balances.push_back(middle + off);
    }
  }
  return balances;
}

TEST(CounterImm, KeepsKeyAndCutApart) {
  for (const uint32_t bits : {1u, 0x0fff'ffffu, 0x0800'0000u, 0x0123'4567u}) {
    for (uint32_t cut = 1; cut <= kRailsMax; ++cut) {
      const uint32_t imm = make_imm(CounterKey::from_wire(bits), cut);
      EXPECT_EQ(imm & kImmReserved, 0u);
      EXPECT_EQ(imm_shards(imm), cut);
      EXPECT_EQ(CounterKey::from_wire(imm).wire(), bits);
    }
  }
}

TEST(CounterImm, AllShardsOfEveryCutAddUpToExactlyOneWrite) {
  for (uint32_t cut = 1; cut <= kRailsMax; ++cut) {
    EXPECT_EQ(units_of(cut) * cut, kUnitsPerWrite) << cut;
  }
}

TEST(CounterWord, KeepsEveryBalanceAndNothingElseMoves) {
  for (const uint32_t generation : kGenerations) {
    for (const uint64_t link : {uint64_t{0}, word::kLinked}) {
      const uint64_t start = word::live_tag(generation) | link;
      for (const int64_t balance : balances_at_the_edges()) {
        const uint64_t w = word::with_balance(start, balance);
        ASSERT_EQ(word::balance(w), balance);
        ASSERT_EQ(word::generation(w), generation);
        ASSERT_TRUE(word::has_tag(w, word::live_tag(generation)));
        ASSERT_EQ(word::linked(w), link != 0);
        ASSERT_FALSE(word::poisoned(w));
        ASSERT_EQ(word::waiting(w), balance < 0);
      }
    }
  }
}

TEST(CounterWord, TellsGenerationsApart) {
  for (const uint32_t mine : kGenerations) {
    for (const uint32_t other : kGenerations) {
      EXPECT_EQ(word::has_tag(word::live_tag(mine), word::live_tag(other)), mine == other);
    }
    EXPECT_FALSE(word::has_tag(word::free_word(mine), word::live_tag(mine)));
    EXPECT_FALSE(word::has_tag(word::free_word(mine), word::kNoTag));
    EXPECT_FALSE(word::has_tag(word::live_tag(mine), word::kNoTag));
  }
}

TEST(CounterWord, WholeCountsRoundDownOnBothSidesOfZero) {
  int64_t expected = -3;
  for (int64_t balance = -3 * kUnitsPerWrite; balance < 3 * kUnitsPerWrite; ++balance) {
    if (balance != -3 * kUnitsPerWrite && balance % kUnitsPerWrite == 0) ++expected;
    ASSERT_EQ(word::whole_counts(balance), expected) << balance;
  }
}

TEST(CounterWord, PlusIsExactUpToTheLastUnitAndPoisonsBeyond) {
  for (const int64_t balance : balances_at_the_edges()) {
    const uint64_t w = word::with_balance(word::live_tag(3), balance);
    for (const int64_t units : {int64_t{105}, int64_t{840}, word::kBalanceMax - balance,
                                word::kBalanceMax - balance + 1, word::kBalanceMax + 1}) {
      if (units <= 0) continue;
      const uint64_t sum = word::plus(w, units);
      ASSERT_TRUE(word::has_tag(sum, word::live_tag(3)));
      if (balance + units <= word::kBalanceMax) {
        ASSERT_FALSE(word::poisoned(sum));
        ASSERT_EQ(word::balance(sum), balance + units);
      } else {
        ASSERT_TRUE(word::poisoned(sum));
        ASSERT_EQ(word::reason(sum), Errc::kOverrun);
        ASSERT_FALSE(word::waiting(sum));
      }
    }
  }
}

TEST(CounterWord, PoisonedKeepsTheReasonAndCountsNotClaimed) {
  for (const Errc why : {Errc::kAborted, Errc::kPeerLost, Errc::kOverrun, Errc::kRailLost}) {
    for (const int64_t balance : balances_at_the_edges()) {
      const uint64_t w = word::poison(
          word::with_balance(word::live_tag(kLastGeneration) | word::kLinked, balance), why);
      ASSERT_TRUE(word::poisoned(w));
      ASSERT_TRUE(word::has_tag(w, word::live_tag(kLastGeneration)));
      ASSERT_FALSE(word::linked(w)) << "a poisoned member must not forward counts";
      ASSERT_FALSE(word::waiting(w));
      ASSERT_EQ(word::reason(w), why);
      ASSERT_EQ(word::untaken(w), static_cast<uint64_t>(balance < 0 ? 0 : balance / 840));
    }
  }
}

// whole <= count <= begun, and equality of all three for a closed batch: every multiset of up to
// three writes, every cut, every partial state.
struct Enumeration {
  std::array<uint32_t, 3> cut{};
  std::array<uint32_t, 3> landed{};
  uint32_t writes = 0;
  uint32_t misleading = 0;  // states in which the count exceeds the whole writes
  uint32_t states = 0;

  void check() {
    int64_t balance = 0;
    uint32_t whole = 0, begun = 0;
    for (uint32_t i = 0; i < writes; ++i) {
      balance += units_of(cut[i]) * landed[i];
      whole += landed[i] == cut[i];
      begun += landed[i] != 0;
    }
    const auto count = static_cast<uint32_t>(word::whole_counts(balance));
    ASSERT_LE(whole, count);
    ASSERT_LE(count, begun);
    if (count >= writes) {
      ASSERT_EQ(whole, writes) << "a closed batch must prove that all writes landed";
    }
    misleading += count > whole;
    ++states;
  }
  void land(uint32_t i) {
    if (i == writes) return check();
    for (landed[i] = 0; landed[i] <= cut[i]; ++landed[i]) land(i + 1);
  }
  void choose(uint32_t i, uint32_t least) {
    if (i == writes) return land(0);
    for (cut[i] = least; cut[i] <= kRailsMax; ++cut[i]) choose(i + 1, cut[i]);
  }
};

TEST(CounterWord, CountLiesBetweenWholeAndBegunInEveryPartialState) {
  Enumeration all;
  for (all.writes = 1; all.writes <= 3; ++all.writes) all.choose(0, 1);
  EXPECT_EQ(all.states, 22'274u);
  EXPECT_GT(all.misleading, 0u)
      << "no misleading count: the rule about closed batches would be needless";
}

}  // namespace
}  // namespace fabric::core::counter_word_test

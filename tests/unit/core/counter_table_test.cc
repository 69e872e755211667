#include "core/counter_table.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"

namespace fabric::core::counter_table_test {
namespace {

using Armed = CounterTable::Armed;

constexpr int64_t kSecondNs = 1'000'000'000;
constexpr int64_t kRestNs = 10 * kSecondNs;

class CounterTableTest : public testing::Test {
 protected:
  struct Ended {
    uint32_t cookie;
    Errc code;
    bool operator==(const Ended&) const = default;
  };
  static void note(void* self, uint32_t cookie, Errc code) {
    static_cast<CounterTableTest*>(self)->ended.push_back({cookie, code});
  }
  CounterTable::Options options(uint32_t live_max = 64, uint32_t key_bits = CounterKey::kBits) {
    return {.live_max = live_max, .seed = 7, .fired = note, .context = this, .key_bits = key_bits};
  }
  CounterKey fresh() { return *table.acquire(now_ns, kRestNs); }
  uint32_t arrive(CounterKey key, uint32_t cut = 1, uint32_t shards = 1) {
    const std::vector<uint32_t> imms(shards, make_imm(key, cut));
    return table.arrive(imms);
  }
  Armed expect(CounterKey key, uint64_t n, uint32_t cookie) {
    return *table.expect(key, n, cookie);
  }
  Armed expect(CounterKey key, uint64_t n, CounterTable::Waiter& waiter) {
    return *table.expect(key, n, waiter);
  }

  std::vector<Ended> ended;
  int64_t now_ns = kSecondNs;
  CounterTable table{options()};
};

// --- counting -----------------------------------------------------------------------------------

TEST_F(CounterTableTest, EveryCutCountsOneWhenItsLastShardArrives) {
  const CounterKey key = fresh();
  for (uint32_t cut = 1; cut <= kRailsMax; ++cut) {
    EXPECT_EQ(arrive(key, cut, cut - 1), 0u);
    EXPECT_EQ(table.count(key), cut - 1) << "cut " << cut;
    arrive(key, cut);
    EXPECT_EQ(table.count(key), cut) << "cut " << cut;
  }
}

TEST_F(CounterTableTest, TwoHalfArrivedWritesDoNotMeetAnExpectationOfBoth) {
  const CounterKey key = fresh();
  ASSERT_FALSE(expect(key, 2, 1).met);
  arrive(key, 2, 2);
  EXPECT_EQ(table.count(key), 1u)
      << "two halves of different writes count as one: the count is only a gauge";
  EXPECT_TRUE(ended.empty());
  arrive(key, 2, 1);
  EXPECT_TRUE(ended.empty());
  arrive(key, 2, 1);
  EXPECT_EQ(ended, (std::vector<Ended>{{1, Errc::kOk}}));
  EXPECT_EQ(table.count(key), 0u);
}

TEST_F(CounterTableTest, CountStaysBetweenWholeAndBegunInRandomOrders) {
  Rng rng(11);
  for (uint32_t round = 0; round < 300; ++round) {
    const CounterKey key = fresh();
    struct Write {
      uint32_t cut, landed = 0;
    };
    std::vector<Write> writes;
    std::vector<size_t> shards;
    for (uint64_t i = rng.between(1, 6); i > 0; --i) {
      writes.push_back({static_cast<uint32_t>(rng.between(1, kRailsMax))});
      shards.insert(shards.end(), writes.back().cut, writes.size() - 1);
    }
    ASSERT_FALSE(expect(key, writes.size(), round).met);
    ended.clear();
    while (!shards.empty()) {
      ASSERT_TRUE(ended.empty());
      std::swap(shards[rng.below(shards.size())], shards.back());
      Write& write = writes[shards.back()];
      shards.pop_back();
      ++write.landed;
      arrive(key, write.cut);
      uint32_t whole = 0, begun = 0;
      for (const Write& w : writes) {
        whole += w.landed == w.cut;
        begun += w.landed != 0;
      }
      if (shards.empty()) break;
      ASSERT_LE(whole, table.count(key));
      ASSERT_LE(table.count(key), begun);
    }
    ASSERT_EQ(ended, (std::vector<Ended>{{round, Errc::kOk}}));
    uint64_t untaken = 99;
    ASSERT_TRUE(table.release(key, now_ns, &untaken));
    ASSERT_EQ(untaken, 0u);
  }
}

TEST_F(CounterTableTest, EarlyArrivalsMeetTheExpectationAtOnce) {
  const CounterKey key = fresh();
  arrive(key, 1, 3);
  EXPECT_TRUE(expect(key, 2, 5).met);
  EXPECT_EQ(table.count(key), 1u);
  EXPECT_TRUE(ended.empty());
}

TEST_F(CounterTableTest, BatchMergesRunsOfAKeyAndKeepsKeysApart) {
  const CounterKey a = fresh();
  const CounterKey b = fresh();
  std::vector<uint32_t> imms;
  Rng rng(3);
  std::map<CounterKey, uint64_t> sent;
  for (uint32_t i = 0; i < 500; ++i) {
    const CounterKey key = rng.chance(0.7) ? a : b;
    const auto cut = static_cast<uint32_t>(rng.between(1, kRailsMax));
    // Runs of one counter key with changing cuts, across the borders of the prefetched batches.
    imms.insert(imms.end(), cut, make_imm(key, cut));
    ++sent[key];
  }
  EXPECT_EQ(table.arrive(imms), 0u);
  EXPECT_EQ(table.count(a), sent[a]);
  EXPECT_EQ(table.count(b), sent[b]);
}

TEST_F(CounterTableTest, TryTakeTakesAllOrNothing) {
  const CounterKey key = fresh();
  arrive(key, 1, 2);
  arrive(key, 2);
  EXPECT_FALSE(table.try_take(key, 3));
  EXPECT_EQ(table.count(key), 2u);
  EXPECT_TRUE(table.try_take(key, 2));
  EXPECT_FALSE(table.try_take(key, 1));
  arrive(key, 2);
  EXPECT_TRUE(table.try_take(key, 1)) << "the earlier half was lost";
  EXPECT_FALSE(table.try_take(key, UINT64_MAX));
}

TEST_F(CounterTableTest, CountShowsWhatIsThereWhileAnExpectationIsArmed) {
  const CounterKey key = fresh();
  arrive(key, 1, 2);
  ASSERT_FALSE(expect(key, 5, 1).met);
  EXPECT_EQ(table.count(key), 2u);
  arrive(key, 3, 2);
  EXPECT_EQ(table.count(key), 2u);
  arrive(key, 3);
  EXPECT_EQ(table.count(key), 3u);
  EXPECT_FALSE(table.try_take(key, 1)) << "the counts are claimed by the expectation";
}

// --- stale --------------------------------------------------------------------------------------

TEST_F(CounterTableTest, DropsWhatIsNotForALiveKeyAndCountsIt) {
  const CounterKey key = fresh();
  const CounterKey never = CounterKey::from_wire(key.wire() + 1);
  const CounterKey slot0 = CounterKey::from_wire(key.wire() & ~2047u);
  const CounterKey other_generation = CounterKey::from_wire(key.wire() ^ 1u << 27);
  for (const CounterKey wrong : {never, slot0, other_generation, CounterKey{}}) {
    EXPECT_EQ(arrive(wrong, 1, 3), 3u) << wrong.wire();
  }
  const std::vector<uint32_t> reserved(2, make_imm(key, 1) | kImmReserved);
  EXPECT_EQ(table.arrive(reserved), 2u);
  EXPECT_EQ(table.count(key), 0u);
  EXPECT_EQ(arrive(key), 0u);
}

TEST_F(CounterTableTest, LateArrivalsOfAReleasedKeyDoNotCountInTheNextGeneration) {
  CounterTable one(options(1, 8));  // one slot: the next counter key is its next generation
  const CounterKey old = *one.acquire(now_ns, 0);
  ASSERT_TRUE(one.release(old, now_ns));
  const std::vector<uint32_t> late(1, make_imm(old, 1));
  EXPECT_EQ(one.arrive(late), 1u);
  const CounterKey next = *one.acquire(now_ns, 0);
  EXPECT_EQ(one.arrive(late), 1u);
  one.add(old, 1);
  EXPECT_EQ(one.count(next), 0u);
  EXPECT_EQ(one.count(old), 0u);
  EXPECT_FALSE(one.try_take(old, 1));
  EXPECT_FALSE(one.release(old, now_ns));
  one.abort(old, Errc::kAborted);
  EXPECT_EQ(one.link(old, next, 1), Errc::kReleased);
  EXPECT_EQ(one.expect(old, 1, 1).error().code, Errc::kReleased);
  EXPECT_TRUE(one.live(next));
  EXPECT_TRUE(one.expect(next, 1, 1).has_value());
}

TEST_F(CounterTableTest, BitsAboveTheGenerationAreNotIgnored) {
  CounterTable small(options(1, 8));
  const CounterKey key = *small.acquire(now_ns, 0);
  for (uint32_t bit = 8; bit < CounterKey::kBits; ++bit) {
    const std::vector<uint32_t> imm(1, make_imm(CounterKey::from_wire(key.wire() | 1u << bit), 1));
    EXPECT_EQ(small.arrive(imm), 1u) << bit;
  }
  EXPECT_EQ(small.count(key), 0u);
}

// --- counter keys -------------------------------------------------------------------------------

TEST_F(CounterTableTest, HandsOutAsManyAsWereAskedForRoundedUp) {
  CounterTable five(options(5));
  std::set<CounterKey> keys;
  for (uint32_t i = 0; i < 8; ++i) keys.insert(*five.acquire(now_ns, kRestNs));
  EXPECT_EQ(keys.size(), 8u);
  EXPECT_EQ(five.live_count(), 8u);
  EXPECT_EQ(five.acquire(now_ns, kRestNs).error().code, Errc::kExhausted);
  ASSERT_TRUE(five.release(*keys.begin(), now_ns));
  EXPECT_EQ(five.live_count(), 7u);
  EXPECT_TRUE(five.acquire(now_ns, kRestNs).has_value());
}

TEST_F(CounterTableTest, FirstGenerationsDependOnTheSeed) {
  std::set<uint32_t> first;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    CounterTable t({.live_max = 1, .seed = seed});
    first.insert((*t.acquire(0, 0)).wire());
  }
  EXPECT_GT(first.size(), 60u);
}

TEST_F(CounterTableTest, ReusesTheSlotFreedLongestAgo) {
  CounterTable small(options(4, 8));  // 7 slots
  std::vector<CounterKey> held;
  for (uint32_t i = 0; i < 4; ++i) held.push_back(*small.acquire(now_ns, 0));
  const std::vector<size_t> order = {2, 0, 3, 1};
  for (const size_t i : order) small.release(held[i], now_ns);
  for (uint32_t i = 0; i < 3; ++i) {  // those never used come first
    const CounterKey key = *small.acquire(now_ns, 0);
    EXPECT_EQ(std::count_if(held.begin(), held.end(),
                            [&](CounterKey k) { return k.wire() % 8 == key.wire() % 8; }),
              0);
  }
  EXPECT_EQ((*small.acquire(now_ns, 0)).wire() % 8, held[order[0]].wire() % 8);
}

// Four slot bits and three generation bits: 15 slots, 8 generations each. Every value must come up
// once before any comes back, and none may be 0.
TEST_F(CounterTableTest, EveryKeyValueComesUpBeforeAnyComesBack) {
  CounterTable small(options(8, 7));
  std::set<uint32_t> turn;
  for (uint32_t round = 0; round < 3; ++round) {
    turn.clear();
    for (uint32_t i = 0; i < 15 * 8; ++i) {
      now_ns += kSecondNs;
      const CounterKey key = *small.acquire(now_ns, 0);
      EXPECT_TRUE(key);
      EXPECT_TRUE(turn.insert(key.wire()).second) << "came back after " << i;
      EXPECT_LT(key.wire(), 1u << 7);
      small.release(key, now_ns);
    }
  }
}

TEST_F(CounterTableTest, HalfWrapRuleRefusesAKeyInQuarantineAndHandsItOutAfterwards) {
  CounterTable one(options(1, 4));  // one slot, 8 generations
  const auto generation = [](CounterKey key) { return key.wire() >> 1; };
  // Advances to the first landmark, which nothing forbids.
  CounterKey key = *one.acquire(now_ns, kRestNs);
  while (generation(key) % 4 != 0) {
    one.release(key, now_ns);
    key = *one.acquire(now_ns, kRestNs);
  }
  for (uint32_t half_turn = 0; half_turn < 4; ++half_turn) {
    const int64_t stepped_ns = now_ns;
    const uint32_t landmark = generation(key);
    for (uint32_t i = 1; i < 4; ++i) {
      one.release(key, now_ns);
      key = *one.acquire(now_ns, kRestNs);
      EXPECT_EQ(generation(key), landmark + i);
    }
    one.release(key, now_ns);
    for (const int64_t too_early : {stepped_ns, stepped_ns + 1, stepped_ns + kRestNs}) {
      EXPECT_EQ(one.acquire(too_early, kRestNs).error().code, Errc::kExhausted);
    }
    EXPECT_EQ(one.live_count(), 0u);
    now_ns = stepped_ns + kRestNs + 1;
    const auto next = one.acquire(now_ns, kRestNs);
    ASSERT_TRUE(next.has_value()) << "just more than the quarantine has passed";
    key = *next;
    EXPECT_EQ(generation(key), (landmark + 4) % 8);
  }
}

// The promise of the rule: however fast counter keys are released and acquired, no value returns
// before its quarantine ends.
TEST_F(CounterTableTest, NoKeyValueComesBackBeforeItsQuarantineEnds) {
  CounterTable small(options(2, 6));  // 3 slots, 16 generations
  Rng rng(5);
  std::map<CounterKey, int64_t> released_ns;
  std::vector<CounterKey> held;
  uint32_t refused = 0, returned = 0;
  for (uint32_t i = 0; i < 20'000; ++i) {
    now_ns += static_cast<int64_t>(rng.below(kRestNs / 64));
    if (!held.empty() && (held.size() == 2 || rng.chance(0.5))) {
      std::swap(held[rng.below(held.size())], held.back());
      small.release(held.back(), now_ns);
      released_ns[held.back()] = now_ns;
      held.pop_back();
      continue;
    }
    const auto key = small.acquire(now_ns, kRestNs);
    if (!key) {
      ++refused;
      continue;
    }
    if (const auto before = released_ns.find(*key); before != released_ns.end()) {
      ++returned;
      ASSERT_GT(now_ns - before->second, kRestNs);
    }
    held.push_back(*key);
  }
  EXPECT_GT(refused, 100u);
  EXPECT_GT(returned, 100u);
}

// --- expectations -------------------------------------------------------------------------------

TEST_F(CounterTableTest, ExpectRefusesWhatItCannotHold) {
  const CounterKey key = fresh();
  EXPECT_EQ(table.expect(key, 0, 1).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(table.expect(key, word::kCountMax + 1, 1).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(table.expect(CounterKey{}, 1, 1).error().code, Errc::kReleased);
  EXPECT_TRUE(table.expect(key, word::kCountMax, 1).has_value());
}

TEST_F(CounterTableTest, OnlyOneExpectationIsArmedAtATime) {
  const CounterKey key = fresh();
  ASSERT_FALSE(expect(key, 1, 1).met);
  EXPECT_EQ(table.expect(key, 1, 2).error().code, Errc::kBusy);
  arrive(key);
  EXPECT_FALSE(expect(key, 1, 3).met);
  EXPECT_EQ(ended, (std::vector<Ended>{{1, Errc::kOk}}));
}

TEST_F(CounterTableTest, EndsOnceInEachOfItsWays) {
  struct ExpectationEnd {
    Errc code;
    void (*end)(CounterTable&, const Armed&);
  };
  const ExpectationEnd cases[] = {
      {Errc::kOk, [](CounterTable& t, const Armed& a) { t.add(a.expectation.key, 3); }},
      {Errc::kTimeout,
       [](CounterTable& t, const Armed& a) {
         EXPECT_TRUE(t.cancel(a.expectation, Errc::kTimeout));
       }},
      {Errc::kAborted,
       [](CounterTable& t, const Armed& a) { t.abort(a.expectation.key, Errc::kAborted); }},
      {Errc::kPeerLost,
       [](CounterTable& t, const Armed& a) { t.abort(a.expectation.key, Errc::kPeerLost); }},
      {Errc::kReleased, [](CounterTable& t, const Armed& a) { t.release(a.expectation.key, 0); }},
      {Errc::kOverrun,
       [](CounterTable& t, const Armed& a) { t.add(a.expectation.key, UINT64_MAX); }},
  };
  for (const ExpectationEnd& one : cases) {
    for (const bool called : {true, false}) {
      ended.clear();
      const CounterKey key = fresh();
      CounterTable::Waiter waiter;
      const Armed armed = called ? expect(key, 3, 17) : expect(key, 3, waiter);
      ASSERT_FALSE(armed.met);
      EXPECT_FALSE(table.peek(armed.expectation).done);
      EXPECT_FALSE(waiter.end().done);
      one.end(table, armed);
      EXPECT_EQ(ended, called ? (std::vector<Ended>{{17, one.code}}) : std::vector<Ended>{});
      EXPECT_TRUE(table.peek(armed.expectation).done);
      EXPECT_EQ(table.peek(armed.expectation).code, one.code);
      EXPECT_EQ(waiter.end().done, !called);
      // Nothing that comes later ends it again.
      EXPECT_FALSE(table.cancel(armed.expectation, Errc::kCancelled));
      table.abort(key, Errc::kAborted);
      table.release(key, now_ns);
      EXPECT_EQ(ended.size(), called ? 1u : 0u);
      if (!called) {
        EXPECT_EQ(waiter.end().code, one.code);
      }
    }
  }
}

TEST_F(CounterTableTest, SleepingWaiterIsWokenByTheEnd) {
  const CounterKey key = fresh();
  CounterTable::Waiter waiter;
  expect(key, 1, waiter);
  const auto ticket = table.event_count(key).prepare();
  arrive(key);
  // A wake since the prepare makes this return at once; a missed one makes the test time out.
  table.event_count(key).sleep(ticket, INT64_MAX);
  EXPECT_TRUE(waiter.end().done);
}

TEST_F(CounterTableTest, WaiterKeepsItsEndWhenTheSlotIsReused) {
  CounterTable one(options(1, 8));
  const CounterKey key = *one.acquire(now_ns, 0);
  CounterTable::Waiter first, second;
  const Armed waited = *one.expect(key, 1, first);
  ASSERT_TRUE(one.cancel(waited.expectation, Errc::kTimeout));
  EXPECT_EQ(one.peek(waited.expectation).code, Errc::kTimeout);
  ASSERT_TRUE(one.expect(key, 1, second).has_value()) << "the first has not run yet";
  one.release(key, now_ns);
  const auto next = one.acquire(now_ns, 0);
  ASSERT_TRUE(next.has_value());
  ASSERT_TRUE(one.expect(*next, 1, 1).has_value());
  EXPECT_TRUE(first.end().done && second.end().done);
  EXPECT_EQ(first.end().code, Errc::kTimeout);
  EXPECT_EQ(second.end().code, Errc::kReleased);
}

TEST_F(CounterTableTest, CancelGivesBackWhatWasThere) {
  const CounterKey key = fresh();
  arrive(key, 1, 2);
  arrive(key, 4, 3);
  const Armed armed = expect(key, 7, 1);
  EXPECT_TRUE(table.cancel(armed.expectation, Errc::kCancelled));
  EXPECT_EQ(table.count(key), 2u);
  arrive(key, 4);
  EXPECT_TRUE(table.try_take(key, 3));
}

TEST_F(CounterTableTest, CancelOfAnOldExpectationDoesNotHitTheNext) {
  const CounterKey key = fresh();
  const Armed first = expect(key, 1, 1);
  arrive(key);
  const Armed second = expect(key, 2, 2);
  EXPECT_FALSE(table.cancel(first.expectation, Errc::kTimeout));
  EXPECT_FALSE(table.peek(second.expectation).done);
  EXPECT_EQ(table.peek(first.expectation).code, Errc::kNotFound);
  EXPECT_TRUE(table.peek(first.expectation).done);
  arrive(key, 1, 2);
  EXPECT_EQ(ended, (std::vector<Ended>{{1, Errc::kOk}, {2, Errc::kOk}}));
}

TEST_F(CounterTableTest, CancelOfAReleasedKeyDoesNotHitTheNextGeneration) {
  CounterTable one(options(1, 8));
  const CounterKey old = *one.acquire(now_ns, 0);
  const Armed first = *one.expect(old, 1, 1);
  one.release(old, now_ns);
  const CounterKey next = *one.acquire(now_ns, 0);
  const Armed second = *one.expect(next, 1, 2);
  EXPECT_FALSE(one.cancel(first.expectation, Errc::kTimeout));
  EXPECT_FALSE(one.peek(second.expectation).done);
}

struct Rearm {
  CounterTable* table = nullptr;
  CounterKey key{};
  uint32_t ends = 0;
  static void again(void* self, uint32_t cookie, Errc) {
    auto* r = static_cast<Rearm*>(self);
    if (++r->ends == 10) return;
    EXPECT_TRUE(r->table->expect(r->key, 1, cookie + 1).has_value());
  }
};

TEST_F(CounterTableTest, FiredMayArmTheNext) {
  Rearm rearm;
  CounterTable t({.live_max = 1, .fired = Rearm::again, .context = &rearm});
  rearm.table = &t;
  rearm.key = *t.acquire(0, 0);
  ASSERT_TRUE(t.expect(rearm.key, 1, 0).has_value());
  for (uint32_t i = 0; i < 10; ++i) t.add(rearm.key, 1);
  EXPECT_EQ(rearm.ends, 10u);
}

TEST_F(CounterTableTest, ReleaseReportsUntakenCounts) {
  struct Case {
    uint32_t halves;
    uint64_t expected;
    uint64_t untaken;
  };
  for (const Case c : {Case{0, 0, 0}, Case{1, 0, 0}, Case{5, 0, 2}, Case{5, 4, 2}, Case{7, 4, 3},
                       Case{0, 1, 0}, Case{5, 2, 0}}) {
    const CounterKey key = fresh();
    arrive(key, 2, c.halves);
    if (c.expected != 0) expect(key, c.expected, 1);
    uint64_t untaken = 99;
    EXPECT_TRUE(table.release(key, now_ns, &untaken));
    EXPECT_EQ(untaken, c.untaken) << c.halves << " halves, expecting " << c.expected;
    EXPECT_FALSE(table.live(key));
  }
}

// --- poisoned ------------------------------------------------------------------------------------

TEST_F(CounterTableTest, PoisonedKeyRefusesWithItsFirstReason) {
  for (const Errc why : {Errc::kAborted, Errc::kPeerLost}) {
    const CounterKey key = fresh();
    arrive(key, 1, 3);
    table.abort(key, why);
    table.abort(key, Errc::kOverrun);
    EXPECT_EQ(table.expect(key, 1, 1).error().code, why);
    EXPECT_FALSE(table.try_take(key, 1));
    EXPECT_EQ(arrive(key), 0u) << "the counter key is live, so the arrival is not stale";
    EXPECT_EQ(table.count(key), 3u) << "the count must be that before the abort";
    EXPECT_TRUE(table.live(key));
    uint64_t untaken = 0;
    EXPECT_TRUE(table.release(key, now_ns, &untaken));
    EXPECT_EQ(untaken, 3u);
    EXPECT_TRUE(ended.empty());
  }
}

TEST_F(CounterTableTest, TheNextGenerationOfAPoisonedSlotIsClean) {
  CounterTable one(options(1, 8));
  const CounterKey old = *one.acquire(now_ns, 0);
  one.abort(old, Errc::kPeerLost);
  one.release(old, now_ns);
  const CounterKey next = *one.acquire(now_ns, 0);
  one.add(next, 1);
  EXPECT_TRUE((*one.expect(next, 1, 1)).met);
}

TEST_F(CounterTableTest, OverrunPoisonsInsteadOfWrapping) {
  const CounterKey key = fresh();
  table.add(key, word::kCountMax);
  EXPECT_EQ(table.count(key), word::kCountMax);
  table.add(key, 1);
  EXPECT_EQ(table.expect(key, 1, 1).error().code, Errc::kOverrun);
  EXPECT_EQ(table.count(key), word::kCountMax);
}

// --- groups -------------------------------------------------------------------------------------

class CounterGroupTable : public CounterTableTest {
 protected:
  uint32_t take(const std::vector<std::pair<CounterKey, uint64_t>>& members) {
    std::vector<CounterTable::Share> shares;
    for (const auto& [key, share] : members) shares.push_back(table.share_of(key, share));
    return table.take_shares(shares);
  }
  CounterKey linked(CounterKey parent, uint64_t share = 1) {
    const CounterKey member = fresh();
    EXPECT_EQ(table.link(member, parent, share), Errc::kOk);
    return member;
  }
};

TEST_F(CounterGroupTable, ParentGetsOneCountForEachShareThatIsPaid) {
  const CounterKey parent = fresh(), a = linked(parent, 2), b = linked(parent);
  ASSERT_EQ(take({{a, 2}, {b, 1}}), 2u);
  ASSERT_FALSE(expect(parent, 2, 1).met);
  arrive(a, 2, 3);
  EXPECT_EQ(table.count(parent), 0u) << "a has sent one and a half of two";
  EXPECT_EQ(table.count(a), 1u);
  EXPECT_TRUE(table.owes(a) && table.owes(b));
  arrive(a, 2);
  EXPECT_EQ(table.count(parent), 1u);
  EXPECT_FALSE(table.owes(a));
  EXPECT_EQ(table.count(a), 0u) << "its share was taken";
  arrive(a, 1, 7);
  EXPECT_EQ(table.count(parent), 1u) << "what a sends ahead is not b's";
  EXPECT_TRUE(ended.empty());
  arrive(b);
  EXPECT_EQ(ended, (std::vector<Ended>{{1, Errc::kOk}}));
  EXPECT_EQ(table.count(parent), 0u);
  EXPECT_EQ(table.count(a), 7u);
  EXPECT_EQ(take({{a, 2}, {b, 1}}), 1u) << "a has sent its next shares already";
  EXPECT_EQ(table.count(a), 5u);
}

TEST_F(CounterGroupTable, CountsFromBeforeTheLinkArePartOfTheFirstShare) {
  const CounterKey parent = fresh(), member = fresh();
  arrive(member, 2, 5);
  ASSERT_EQ(table.link(member, parent, 3), Errc::kOk);
  EXPECT_EQ(table.link(member, parent, 3), Errc::kBusy);
  ASSERT_EQ(take({{member, 3}}), 1u);
  arrive(member, 2);
  EXPECT_EQ(table.count(parent), 1u) << "the half from before the link counts";
}

TEST_F(CounterGroupTable, LinkedKeyHasNoExpectationsAndAnArmedOneNoLink) {
  const CounterKey parent = fresh(), member = linked(parent);
  EXPECT_EQ(table.expect(member, 1, 1).error().code, Errc::kBusy);
  ASSERT_EQ(take({{member, 1}}), 1u);
  EXPECT_EQ(table.expect(member, 1, 1).error().code, Errc::kBusy);
  EXPECT_FALSE(table.try_take(member, 1));
  table.unlink(member, true);
  const Armed armed = expect(member, 1, 1);
  EXPECT_FALSE(armed.met);
  EXPECT_EQ(table.link(member, parent, 1), Errc::kBusy);
  arrive(member);
  EXPECT_EQ(ended, (std::vector<Ended>{{1, Errc::kOk}}));
  EXPECT_EQ(table.count(parent), 0u);
  table.abort(member, Errc::kAborted);
  EXPECT_EQ(table.link(member, parent, 1), Errc::kAborted);
  EXPECT_EQ(table.link(parent, parent, 1), Errc::kInvalidArgument);
  EXPECT_EQ(table.link(fresh(), parent, 0), Errc::kInvalidArgument);
}

TEST_F(CounterGroupTable, UnlinkedMemberGetsItsShareBackAndMayMove) {
  const CounterKey p = fresh(), q = fresh(), member = linked(p, 2);
  ASSERT_EQ(take({{member, 2}}), 1u);
  arrive(member);
  EXPECT_TRUE(table.unlink(member, true)) << "one of two is owed";
  EXPECT_EQ(table.count(member), 1u);
  arrive(member);
  EXPECT_EQ(table.count(p), 0u);
  EXPECT_EQ(table.count(member), 2u);
  ASSERT_EQ(table.link(member, q, 1), Errc::kOk);
  ASSERT_EQ(take({{member, 1}}), 0u);
  EXPECT_FALSE(table.unlink(member, true));
  EXPECT_EQ(table.count(member), 2u);
  EXPECT_FALSE(table.unlink(member, false)) << "not linked any more";
  EXPECT_EQ(table.count(q), 0u);
}

TEST_F(CounterGroupTable, LeavingPaysExactlyWhatTheMemberDidNot) {
  for (const uint32_t halves : {0u, 1u, 2u, 3u, 4u, 6u}) {
    SCOPED_TRACE(halves);
    ended.clear();
    const CounterKey parent = fresh(), steady = linked(parent, 2), leaves = linked(parent, 2);
    ASSERT_EQ(take({{steady, 2}, {leaves, 2}}), 2u);
    ASSERT_FALSE(expect(parent, 2, 1).met);
    arrive(leaves, 2, halves);
    const bool owes = table.unlink(leaves, true);
    EXPECT_EQ(owes, halves < 4);
    if (owes) table.add(parent, 1);
    ASSERT_TRUE(table.release(leaves, now_ns));
    EXPECT_EQ(arrive(leaves, 1, 1), 1u) << "late traffic is stale";
    EXPECT_EQ(table.count(parent), 1u);
    arrive(steady, 1, 2);
    EXPECT_EQ(ended, (std::vector<Ended>{{1, Errc::kOk}}));
    table.release(steady, now_ns);
    table.release(parent, now_ns);
  }
}

TEST_F(CounterGroupTable, PoisonedAndReleasedMembersNameTheirParent) {
  const CounterKey parent = fresh(), a = linked(parent), b = linked(parent), c = linked(parent);
  ASSERT_EQ(take({{a, 1}, {b, 1}, {c, 1}}), 3u);
  ASSERT_FALSE(expect(parent, 3, 1).met);
  EXPECT_EQ(table.abort(a, Errc::kAborted), parent);
  CounterKey of_b{};
  uint64_t untaken = 9;
  EXPECT_TRUE(table.release(b, now_ns, &untaken, &of_b));
  EXPECT_EQ(of_b, parent);
  EXPECT_EQ(untaken, 0u);
  EXPECT_TRUE(ended.empty()) << "a member has no expectation that could end";
  table.add(c, word::kCountMax);
  table.add(c, word::kCountMax);
  EXPECT_EQ(ended, (std::vector<Ended>{{1, Errc::kOverrun}})) << "c can count no more";
  EXPECT_EQ(table.poison_of(parent), Errc::kOverrun);
  EXPECT_EQ(table.poison_of(a), Errc::kAborted);
  EXPECT_EQ(table.poison_of(b), Errc::kReleased);
  EXPECT_EQ(table.poison_of(fresh()), Errc::kOk);
}

// The table cannot know that a member overran before the caller has looked at its group.
TEST_F(CounterGroupTable, TakingFromAnOverrunMemberLeavesItsCountsAndItsReason) {
  const CounterKey parent = fresh(), sound = linked(parent), overrun = linked(parent, 3);
  arrive(sound);
  table.add(overrun, word::kCountMax);
  table.add(overrun, 1);
  ASSERT_EQ(table.poison_of(overrun), Errc::kOverrun);
  EXPECT_EQ(take({{sound, 1}, {overrun, 3}}), 1u);
  EXPECT_EQ(table.poison_of(overrun), Errc::kOverrun);
  EXPECT_EQ(table.count(overrun), word::kCountMax);
  EXPECT_EQ(table.count(sound), 0u);
}

struct Unlink {
  CounterTable* table = nullptr;
  CounterKey member{};
  static void now(void* self, uint32_t, Errc) {
    auto* u = static_cast<Unlink*>(self);
    u->table->unlink(u->member, true);
  }
};

// Were the arrival still announced when it calls, the unlink would wait for it for ever.
TEST_F(CounterTableTest, FiredMayUnlinkTheMemberWhoseCountEndedIt) {
  Unlink unlink;
  CounterTable t({.live_max = 2, .fired = Unlink::now, .context = &unlink});
  const CounterKey parent = *t.acquire(0, 0);
  unlink = {&t, *t.acquire(0, 0)};
  ASSERT_EQ(t.link(unlink.member, parent, 1), Errc::kOk);
  const auto share = t.share_of(unlink.member, 1);
  ASSERT_EQ(t.take_shares({&share, 1}), 1u);
  ASSERT_TRUE(t.expect(parent, 1, 1).has_value());
  t.add(unlink.member, 1);
  EXPECT_EQ(t.count(parent), 0u);
  EXPECT_EQ(t.count(unlink.member), 1u) << "given back";
}

TEST_F(CounterTableTest, ReleasedParentGetsNothing) {
  CounterTable two(options(2, 8));
  const CounterKey parent = *two.acquire(now_ns, 0), member = *two.acquire(now_ns, 0);
  ASSERT_EQ(two.link(member, parent, 2), Errc::kOk);
  const auto share = two.share_of(member, 2);
  ASSERT_EQ(two.take_shares({&share, 1}), 1u);
  two.release(parent, now_ns);
  const CounterKey other = *two.acquire(now_ns, 0);
  two.release(other, now_ns);
  const CounterKey reborn = *two.acquire(now_ns, 0);
  ASSERT_EQ(reborn.wire() % 4, parent.wire() % 4) << "the parent's slot, one generation later";
  two.add(member, 2);
  EXPECT_EQ(two.count(reborn), 0u);
}

TEST_F(CounterTableTest, SlotIsReusedWithoutItsLink) {
  CounterTable two(options(2, 8));  // 3 slots
  const CounterKey parent = *two.acquire(now_ns, 0), member = *two.acquire(now_ns, 0);
  ASSERT_EQ(two.link(member, parent, 1), Errc::kOk);
  two.release(member, now_ns);
  two.release(*two.acquire(now_ns, 0), now_ns);
  const CounterKey reborn = *two.acquire(now_ns, 0);
  ASSERT_EQ(reborn.wire() % 4, member.wire() % 4);
  two.add(reborn, 1);
  EXPECT_EQ(two.count(reborn), 1u);
  EXPECT_EQ(two.count(parent), 0u);
}

// --- disarm -------------------------------------------------------------------------------------

TEST_F(CounterTableTest, DisarmEndsTheArmedExpectationAndKeepsTheCounts) {
  const CounterKey key = fresh();
  table.disarm(key);  // nothing is armed
  arrive(key, 1, 2);
  expect(key, 3, 1);
  table.disarm(key);
  EXPECT_EQ(ended, (std::vector<Ended>{{1, Errc::kCancelled}}));
  EXPECT_EQ(table.count(key), 2u);
  EXPECT_TRUE(expect(key, 2, 2).met);
  table.disarm(key);
  EXPECT_EQ(ended.size(), 1u) << "met at once, and never armed";
}

// Blocked threads that were ended in a row, and none of them has run yet.
TEST_F(CounterTableTest, DisarmFreesTheRecordHoweverManyWaitersHaveNotRun) {
  const CounterKey key = fresh();
  std::array<CounterTable::Waiter, 5> waiters;
  for (CounterTable::Waiter& waiter : waiters) {
    const auto one = table.expect(key, 2, waiter);
    ASSERT_TRUE(one.has_value()) << "after " << (&waiter - waiters.data()) << " waiters";
    if (&waiter == &waiters.front()) arrive(key, 1, 2);
    table.disarm(key);
  }
  const Armed next = expect(key, 7, 3);
  EXPECT_FALSE(next.met);
  for (const CounterTable::Waiter& waiter : waiters) {
    EXPECT_TRUE(waiter.end().done);
    EXPECT_EQ(waiter.end().code, &waiter == &waiters.front() ? Errc::kOk : Errc::kCancelled);
  }
  EXPECT_EQ(table.count(key), 0u) << "the first took what arrived";
  EXPECT_TRUE(table.cancel(next.expectation, Errc::kTimeout));
}

TEST_F(CounterTableTest, DisarmOfAReleasedKeyLeavesTheNextGenerationAlone) {
  CounterTable one(options(1, 8));
  const CounterKey old = *one.acquire(now_ns, 0);
  one.release(old, now_ns);
  const CounterKey next = *one.acquire(now_ns, 0);
  const Armed armed = *one.expect(next, 1, 1);
  one.disarm(old);
  EXPECT_FALSE(one.peek(armed.expectation).done);
}

}  // namespace
}  // namespace fabric::core::counter_table_test

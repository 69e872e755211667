#include <algorithm>
#include <array>
#include <chrono>
#include <optional>

#include <gtest/gtest.h>

#include "core/counter_table.h"

// Every place at which one operation can be overtaken by another, tried one by one. The processor
// traps after each instruction of the victim; at the chosen one the trap's handler runs the
// intruder to its end, exactly as another thread would that came just then. What takes a stress
// test luck is certain here, also on a machine with one core. Orders of memory are not its subject:
// the thread sanitizer watches those in tests/threads/counter_stress_test.cc.
//
// The intruder must not wait for the victim, nor take a lock that the victim may hold.

#if defined(__x86_64__)

#include <ucontext.h>
#include <x86intrin.h>
#include <csignal>

namespace fabric::core {
namespace {

constexpr unsigned long long kTrapFlag = 0x100;
// Enough for every instruction of an optimised build; others are sampled evenly.
constexpr uint64_t kPlacesMax = 600;

struct Overtaking {
  uint64_t steps = 0;
  uint64_t at = 0;
  void (*intruder)(void*) = nullptr;
  void* context = nullptr;
};
Overtaking overtaking;

void on_trap(int, siginfo_t*, void* raw) {
  if (++overtaking.steps != overtaking.at) return;
  // The rest of the victim runs at full speed.
  auto* interrupted = static_cast<ucontext_t*>(raw);
  interrupted->uc_mcontext.gregs[REG_EFL] &= ~static_cast<greg_t>(kTrapFlag);
  overtaking.intruder(overtaking.context);
}

/// Runs the victim and, after `at` of its instructions, the intruder. Returns how many instructions
/// were counted: fewer than `at` means that the intruder did not run.
template <class Victim, class Intruder>
uint64_t overtake(uint64_t at, Victim&& victim, Intruder&& intruder) {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_sigaction = on_trap;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGTRAP, &action, &before);
  overtaking = {0, at, [](void* self) { (*static_cast<Intruder*>(self))(); }, &intruder};
  __writeeflags(__readeflags() | kTrapFlag);
  victim();
  __writeeflags(__readeflags() & ~kTrapFlag);
  sigaction(SIGTRAP, &before, nullptr);
  return overtaking.steps;
}

/// Plays a fresh `Scene` for every place of its victim.
template <class Scene>
void at_every_place() {
  uint64_t length = 0;
  {
    Scene scene;
    length = overtake(
        UINT64_MAX, [&] { scene.victim(); }, [] {});
  }
  ASSERT_GT(length, 20u);
  const uint64_t stride = std::max<uint64_t>(1, length / kPlacesMax);
  for (uint64_t at = 1; at < length && !testing::Test::HasFailure(); at += stride) {
    SCOPED_TRACE(testing::Message() << "overtaken after " << at << " of " << length);
    Scene scene;
    bool overtaken = false;
    overtake(
        at, [&] { scene.victim(); },
        [&] {
          scene.intruder();
          overtaken = true;
        });
    // The lengths differ a little from run to run: branches on addresses, the first lazy binding.
    if (!overtaken) scene.intruder();
    scene.check();
  }
}

/// A table with room for some keys, and what its expectations came to.
struct Stage {
  struct End {
    uint32_t cookie;
    Errc code;
  };
  // A fixed array: the intruder must not allocate.
  std::array<End, 8> ends{};
  uint32_t ended = 0;
  CounterTable table;

  explicit Stage(uint32_t live_max = 1, uint32_t key_bits = 12)
      : table({.live_max = live_max, .fired = note, .context = this, .key_bits = key_bits}) {}
  static void note(void* self, uint32_t cookie, Errc code) {
    auto* stage = static_cast<Stage*>(self);
    stage->ends[stage->ended++ % 8] = {cookie, code};
  }
  Key fresh() { return *table.acquire(++clock_ns, 0); }
  void arrive(Key key, uint32_t cut = 1, uint32_t shards = 1) {
    const uint32_t imm = make_imm(key, cut);
    for (; shards > 0; --shards) table.arrive({&imm, 1});
  }
  int64_t clock_ns = 0;
};

struct CancelMeetsTheNextExpectation : Stage {
  static constexpr uint64_t kNext = 50;
  Key key = fresh();
  CounterTable::Armed first = *table.expect(key, 1, 1);
  std::optional<CounterTable::Armed> second{};
  bool cancelled = false;

  void victim() { cancelled = table.cancel(first.expectation, Errc::kCancelled); }
  void intruder() {
    arrive(key);
    if (const auto next = table.expect(key, kNext, 2)) second = *next;
  }
  void check() {
    // kBusy: the victim was overtaken while it held the record.
    if (!second) second = *table.expect(key, kNext, 2);
    ASSERT_EQ(ended, 1u);
    ASSERT_EQ(ends[0].cookie, 1u);
    ASSERT_EQ(ends[0].code, cancelled ? Errc::kCancelled : Errc::kOk);
    ASSERT_FALSE(table.result(second->expectation).done);
    // What was sent and not taken by the first is there for the second, no more and no less.
    ASSERT_EQ(table.count(key), cancelled ? 1u : 0u);
    arrive(key, 1, cancelled ? kNext - 2 : kNext - 1);
    ASSERT_EQ(ended, 1u);
    arrive(key);
    ASSERT_EQ(ended, 2u);
    ASSERT_EQ(ends[1].cookie, 2u);
    ASSERT_EQ(table.count(key), 0u);
  }
};
TEST(CounterInterleaving, CancelNeverHitsTheNextExpectation) {
  at_every_place<CancelMeetsTheNextExpectation>();
}

struct ArrivalMeetsTheNextLife : Stage {
  Key old = fresh();
  Key next{};
  void victim() { arrive(old); }
  void intruder() {
    table.release(old, 0);
    if (const auto key = table.acquire(++clock_ns, 0)) next = *key;
  }
  void check() {
    ASSERT_TRUE(next);
    ASSERT_EQ(table.count(next), 0u);
    arrive(next, 8, 7);
    ASSERT_EQ(table.count(next), 0u) << "not even a fraction";
  }
};
TEST(CounterInterleaving, LateArrivalNeverCountsInTheNextLife) {
  at_every_place<ArrivalMeetsTheNextLife>();
}

struct ReleaseMeetsTheLastArrival : Stage {
  Key key = fresh();
  CounterTable::Armed armed = *table.expect(key, 2, 1);
  uint64_t owed = 99;
  ReleaseMeetsTheLastArrival() { arrive(key, 2, 3); }
  void victim() { table.release(key, 0, &owed); }
  void intruder() { arrive(key, 2); }
  void check() {
    ASSERT_EQ(ended, 1u);
    ASSERT_EQ(owed, ends[0].code == Errc::kOk ? 0u : 1u);
    ASSERT_TRUE(ends[0].code == Errc::kOk || ends[0].code == Errc::kReleased);
    ASSERT_TRUE(table.acquire(++clock_ns, 0).has_value());
  }
};
TEST(CounterInterleaving, ReleaseAndLastArrivalEndTheExpectationOnce) {
  at_every_place<ReleaseMeetsTheLastArrival>();
}

struct ExpectMeetsTheArrival : Stage {
  Key key = fresh();
  CounterTable::Armed armed{};
  void victim() { armed = *table.expect(key, 1, CounterTable::kWaiter); }
  void intruder() { arrive(key); }
  void check() {
    ASSERT_TRUE(armed.met || table.result(armed.expectation).done) << "waits for what is there";
    ASSERT_EQ(table.count(key), 0u);
  }
};
TEST(CounterInterleaving, ExpectNeverWaitsForWhatHasArrived) {
  at_every_place<ExpectMeetsTheArrival>();
}

template <class Ending>
struct ExpectMeetsTheEnd : Stage {
  Key key = fresh();
  Errc refused = Errc::kOk;
  void victim() {
    if (const auto armed = table.expect(key, 1, 1); !armed) refused = armed.error().code;
  }
  void intruder() { Ending::come(table, key); }
  void check() {
    if (refused == Errc::kOk) {
      ASSERT_EQ(ended, 1u) << "armed on a life that has ended";
      refused = ends[0].code;
    } else {
      ASSERT_EQ(ended, 0u);
    }
    ASSERT_EQ(refused, Ending::kCode);
    table.release(key, 0);
    const Key next = fresh();
    ASSERT_TRUE(table.expect(next, 1, 2).has_value());
  }
};
struct Lost {
  static constexpr Errc kCode = Errc::kPeerLost;
  static void come(CounterTable& table, Key key) { table.abort(key, kCode); }
};
struct Released {
  static constexpr Errc kCode = Errc::kReleased;
  static void come(CounterTable& table, Key key) { table.release(key, 0); }
};
TEST(CounterInterleaving, ExpectNeverOutlivesAnAbort) { at_every_place<ExpectMeetsTheEnd<Lost>>(); }
TEST(CounterInterleaving, ExpectNeverOutlivesARelease) {
  at_every_place<ExpectMeetsTheEnd<Released>>();
}

struct LastArrivalMeetsTheNextExpectation : Stage {
  Key key = fresh();
  CounterTable::Armed first = *table.expect(key, 1, 1);
  bool armed_again = false;
  void victim() { arrive(key); }
  void intruder() { armed_again = table.expect(key, 3, 2).has_value(); }
  void check() {
    ASSERT_EQ(ended, 1u);
    ASSERT_EQ(ends[0].cookie, 1u) << "told the wrong one";
    ASSERT_TRUE(armed_again || table.expect(key, 3, 2).has_value());
    arrive(key, 1, 2);
    ASSERT_EQ(ended, 1u);
    arrive(key);
    ASSERT_EQ(ended, 2u);
    ASSERT_EQ(ends[1].cookie, 2u);
  }
};
TEST(CounterInterleaving, NextExpectationIsNeverTakenForTheLast) {
  at_every_place<LastArrivalMeetsTheNextExpectation>();
}

struct LastArrivalMeetsTheSleeper : Stage {
  Key key = fresh();
  CounterTable::Armed armed = *table.expect(key, 1, CounterTable::kWaiter);
  std::optional<ParkingSpot::Ticket> ticket{};
  void victim() { arrive(key); }
  void intruder() {
    const auto announced = table.parking(key).prepare();
    if (!table.result(armed.expectation).done) ticket = announced;
  }
  void check() {
    if (!ticket) return;
    constexpr int64_t kLimitNs = 2'000'000'000;
    const auto start = std::chrono::steady_clock::now();
    table.parking(key).sleep(*ticket, kLimitNs);
    ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::nanoseconds(kLimitNs))
        << "the wake-up was lost";
    ASSERT_TRUE(table.result(armed.expectation).done);
  }
};
TEST(CounterInterleaving, WhoGoesToSleepDuringTheEndIsWoken) {
  at_every_place<LastArrivalMeetsTheSleeper>();
}

struct CountMeetsTheNextExpectation : Stage {
  Key key = fresh();
  uint64_t seen = 0;
  CountMeetsTheNextExpectation() {
    arrive(key, 1, 5);
    static_cast<void>(table.expect(key, 6, 1));
  }
  void victim() { seen = table.count(key); }
  void intruder() {
    arrive(key, 1, 3);
    static_cast<void>(table.expect(key, 40, 2));
  }
  void check() { ASSERT_TRUE(seen == 5 || seen == 2) << seen; }
};
TEST(CounterInterleaving, CountNeverMixesTwoExpectations) {
  at_every_place<CountMeetsTheNextExpectation>();
}

struct LinkMeetsAnArrival : Stage {
  Key parent, member;
  LinkMeetsAnArrival() : Stage(2), parent(fresh()), member(fresh()) { arrive(member, 2, 5); }
  void victim() { table.set_parent(member, parent); }
  void intruder() { arrive(member, 2, 3); }
  void check() {
    ASSERT_EQ(table.count(member), 4u);
    ASSERT_EQ(table.count(parent), 4u);
  }
};
TEST(CounterInterleaving, LinkPassesOnEveryCountExactlyOnce) {
  at_every_place<LinkMeetsAnArrival>();
}

struct UnlinkMeetsAnArrival : Stage {
  Key parent, member;
  UnlinkMeetsAnArrival() : Stage(2), parent(fresh()), member(fresh()) {
    table.set_parent(member, parent);
    arrive(member, 2);
  }
  uint64_t before_return = 99;
  void victim() {
    table.set_parent(member, Key{});
    before_return = table.count(parent);
  }
  void intruder() { arrive(member, 2); }
  void check() {
    ASSERT_EQ(table.count(member), 1u);
    ASSERT_LE(table.count(parent), 1u);
    ASSERT_LE(before_return, table.count(parent));
  }
};
TEST(CounterInterleaving, UnlinkLosesNoCountOfTheMember) { at_every_place<UnlinkMeetsAnArrival>(); }

// The group goes on without a member whose last half is just being counted: paid by one, not both.
struct ArrivalMeetsTheMask : Stage {
  Key parent, member;
  ArrivalMeetsTheMask() : Stage(2), parent(fresh()), member(fresh()) {
    table.set_parent(member, parent);
    static_cast<void>(table.expect(parent, 1, 1));
    arrive(member, 2);
  }
  void victim() { arrive(member, 2); }
  void intruder() {
    uint64_t paid = 0;
    table.release(member, 0, &paid);
    table.add(parent, 1 - paid);
  }
  void check() {
    ASSERT_EQ(ended, 1u);
    ASSERT_EQ(table.count(parent), 0u);
  }
};
TEST(CounterInterleaving, MaskingPaysWhatTheMemberDidNot) { at_every_place<ArrivalMeetsTheMask>(); }

// The slot of the member comes back while an arrival of its last life still passes its count on.
struct ArrivalMeetsTheNextLink : Stage {
  Key parent, other, member, next{};
  ArrivalMeetsTheNextLink() : Stage(4), parent(fresh()), other(fresh()), member(fresh()) {
    table.set_parent(member, parent);
  }
  bool counted = false;
  void victim() { arrive(member); }
  void intruder() {
    uint64_t owed = 0;
    table.release(member, 0, &owed);
    counted = owed != 0;
    for (uint32_t i = 0; i < 8 && !next; ++i) {  // round the ring, up to the same slot
      const auto key = table.acquire(++clock_ns, 0);
      if (!key) return;
      if (key->wire() % 8 == member.wire() % 8) {
        next = *key;
      } else {
        table.release(*key, 0);
      }
    }
    if (next) table.set_parent(next, other);
  }
  void check() {
    ASSERT_EQ(table.count(parent), counted ? 1u : 0u);
    ASSERT_EQ(table.count(other), 0u) << "passed on to the parent of another life";
  }
};
TEST(CounterInterleaving, CountsArePassedOnToTheParentOfTheirLife) {
  at_every_place<ArrivalMeetsTheNextLink>();
}

}  // namespace
}  // namespace fabric::core

#endif  // __x86_64__

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

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

namespace fabric::core::counter_interleaving_test {
namespace {

constexpr unsigned long long kTrapFlag = 0x100;

// A trap costs microseconds, and every place needs all the traps before it. This many pay for
// nearly every instruction of an optimised build. In others the places before locked instructions
// are all tried, since only there can the victim's view become stale, and the others are sampled
// evenly.
constexpr uint64_t kTrapsMax = 8'000;

struct Call {
  void (*run)(void*) = nullptr;
  void* self = nullptr;
};
template <class F>
Call call(F& f) {
  return {[](void* self) { (*static_cast<F*>(self))(); }, &f};
}

struct Overtaking {
  uint64_t steps = 0;
  uint64_t at = 0;
  Call intruder{};
  std::array<uint64_t, 64> locked{};  // how many steps came before each locked instruction
  size_t locked_count = 0;
};
Overtaking overtaking;

void on_trap(int, siginfo_t*, void* raw) {
  auto& registers = static_cast<ucontext_t*>(raw)->uc_mcontext.gregs;
  ++overtaking.steps;
  // A lock prefix comes first; xchg with memory locks without one.
  const auto opcode = *reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
  const bool locks = opcode == 0xf0 || opcode == 0x87;
  if (locks && overtaking.locked_count < overtaking.locked.size()) {
    overtaking.locked[overtaking.locked_count++] = overtaking.steps;
  }
  if (overtaking.steps != overtaking.at) return;
  // The rest of the victim runs at full speed.
  registers[REG_EFL] &= ~static_cast<greg_t>(kTrapFlag);
  overtaking.intruder.run(overtaking.intruder.self);
}

/// Runs the victim and, after `at` of its instructions, the intruder. Out of line and between
/// barriers, because the compiler cannot know that a change of the flags calls a handler.
[[gnu::noinline]] void overtake(uint64_t at, Call victim, Call intruder) {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_sigaction = on_trap;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGTRAP, &action, &before);
  overtaking = {.at = at, .intruder = intruder};
  asm volatile("" ::: "memory");
  __writeeflags(__readeflags() | kTrapFlag);
  victim.run(victim.self);
  __writeeflags(__readeflags() & ~kTrapFlag);
  asm volatile("" ::: "memory");
  sigaction(SIGTRAP, &before, nullptr);
}

/// Plays one fresh scene. False: the victim was done before the intruder's turn came.
template <class Scene>
bool play(uint64_t at) {
  Scene scene;
  bool overtaken = false;
  auto victim = [&scene] { scene.victim(); };
  auto intruder = [&scene, &overtaken] {
    scene.intruder();
    overtaken = true;
  };
  overtake(at, call(victim), call(intruder));
  if (!overtaken) scene.intruder();
  scene.check();
  return overtaken;
}

template <class Scene>
void at_every_place() {
  ASSERT_FALSE(play<Scene>(UINT64_MAX));  // binds symbols, so that the next one is as the others
  ASSERT_FALSE(play<Scene>(UINT64_MAX));
  const uint64_t length = overtaking.steps;
  ASSERT_GT(length, 20u);
  const auto locked = overtaking.locked;
  std::vector<uint64_t> places(locked.begin(), locked.begin() + overtaking.locked_count);
  const uint64_t stride = std::max<uint64_t>(1, length * length / 2 / kTrapsMax);
  for (uint64_t at = 1; at < length; at += stride) places.push_back(at);
  uint32_t overtaken = 0;
  for (const uint64_t at : places) {
    SCOPED_TRACE(testing::Message() << "overtaken after " << at << " of " << length);
    overtaken += play<Scene>(at);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(overtaken, places.size() / 2);
}

/// A table with room for some counter keys, and what its expectations came to.
struct TableFixture {
  struct End {
    uint32_t cookie;
    Errc code;
  };
  // A fixed array: the intruder must not allocate.
  std::array<End, 8> ends{};
  uint32_t ended = 0;
  CounterTable table;

  explicit TableFixture(uint32_t live_max = 1, uint32_t key_bits = 12)
      : table({.live_max = live_max, .fired = note, .context = this, .key_bits = key_bits}) {}
  static void note(void* self, uint32_t cookie, Errc code) {
    auto* fixture = static_cast<TableFixture*>(self);
    fixture->ends[fixture->ended++ % 8] = {cookie, code};
  }
  CounterKey fresh() { return *table.acquire(++clock_ns, 0); }
  void arrive(CounterKey key, uint32_t cut = 1, uint32_t shards = 1) {
    const uint32_t imm = make_imm(key, cut);
    for (; shards > 0; --shards) table.arrive({&imm, 1});
  }
  int64_t clock_ns = 0;
};

struct CancelMeetsTheNextExpectation : TableFixture {
  static constexpr uint64_t kNext = 50;
  CounterKey key = fresh();
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
    ASSERT_FALSE(table.peek(second->expectation).done);
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

struct ArrivalMeetsTheNextGeneration : TableFixture {
  CounterKey old = fresh();
  CounterKey next{};
  void victim() { arrive(old); }
  void intruder() {
    table.release(old, 0);
    if (const auto key = table.acquire(++clock_ns, 0)) next = *key;
  }
  void check() {
    ASSERT_TRUE(next);
    ASSERT_EQ(table.count(next), 0u);
    arrive(next, 8, 7);
    ASSERT_EQ(table.count(next), 0u) << "a fraction of an earlier generation is left";
  }
};
TEST(CounterInterleaving, LateArrivalNeverCountsInTheNextGeneration) {
  at_every_place<ArrivalMeetsTheNextGeneration>();
}

struct ReleaseMeetsTheLastArrival : TableFixture {
  CounterKey key = fresh();
  CounterTable::Armed armed = *table.expect(key, 2, 1);
  uint64_t untaken = 99;
  ReleaseMeetsTheLastArrival() { arrive(key, 2, 3); }
  void victim() { table.release(key, 0, &untaken); }
  void intruder() { arrive(key, 2); }
  void check() {
    ASSERT_EQ(ended, 1u);
    ASSERT_EQ(untaken, ends[0].code == Errc::kOk ? 0u : 1u);
    ASSERT_TRUE(ends[0].code == Errc::kOk || ends[0].code == Errc::kReleased);
    ASSERT_TRUE(table.acquire(++clock_ns, 0).has_value());
  }
};
TEST(CounterInterleaving, ReleaseAndLastArrivalEndTheExpectationOnce) {
  at_every_place<ReleaseMeetsTheLastArrival>();
}

struct ExpectMeetsTheArrival : TableFixture {
  CounterKey key = fresh();
  CounterTable::Waiter waiter;
  CounterTable::Armed armed{};
  void victim() { armed = *table.expect(key, 1, waiter); }
  void intruder() { arrive(key); }
  void check() {
    ASSERT_TRUE(armed.met || waiter.end().done) << "waits although the count has arrived";
    ASSERT_EQ(table.count(key), 0u);
  }
};
TEST(CounterInterleaving, ExpectNeverWaitsForWhatHasArrived) {
  at_every_place<ExpectMeetsTheArrival>();
}

template <class Ending>
struct ExpectMeetsTheEnd : TableFixture {
  CounterKey key = fresh();
  Errc refused = Errc::kOk;
  void victim() {
    if (const auto armed = table.expect(key, 1, 1); !armed) refused = armed.error().code;
  }
  void intruder() { Ending::come(table, key); }
  void check() {
    if (refused == Errc::kOk) {
      ASSERT_EQ(ended, 1u) << "armed on a generation that has ended";
      refused = ends[0].code;
    } else {
      ASSERT_EQ(ended, 0u);
    }
    ASSERT_EQ(refused, Ending::kCode);
    table.release(key, 0);
    const CounterKey next = fresh();
    ASSERT_TRUE(table.expect(next, 1, 2).has_value());
  }
};
struct Lost {
  static constexpr Errc kCode = Errc::kPeerLost;
  static void come(CounterTable& table, CounterKey key) { table.abort(key, kCode); }
};
struct Released {
  static constexpr Errc kCode = Errc::kReleased;
  static void come(CounterTable& table, CounterKey key) { table.release(key, 0); }
};
TEST(CounterInterleaving, ExpectNeverOutlivesAnAbort) { at_every_place<ExpectMeetsTheEnd<Lost>>(); }
TEST(CounterInterleaving, ExpectNeverOutlivesARelease) {
  at_every_place<ExpectMeetsTheEnd<Released>>();
}

struct LastArrivalMeetsTheNextExpectation : TableFixture {
  CounterKey key = fresh();
  CounterTable::Armed first = *table.expect(key, 1, 1);
  bool armed_again = false;
  void victim() { arrive(key); }
  void intruder() { armed_again = table.expect(key, 3, 2).has_value(); }
  void check() {
    ASSERT_EQ(ended, 1u);
    ASSERT_EQ(ends[0].cookie, 1u) << "completed the wrong expectation";
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

struct LastArrivalMeetsTheSleeper : TableFixture {
  CounterKey key = fresh();
  CounterTable::Waiter waiter;
  std::optional<EventCount::Ticket> ticket{};
  LastArrivalMeetsTheSleeper() { static_cast<void>(table.expect(key, 1, waiter)); }
  void victim() { arrive(key); }
  void intruder() {
    const auto announced = table.event_count(key).prepare();
    if (!waiter.end().done) ticket = announced;
  }
  void check() {
    if (!ticket) return;
    constexpr int64_t kLimitNs = 2'000'000'000;
    const auto start = std::chrono::steady_clock::now();
    table.event_count(key).sleep(*ticket, kLimitNs);
    ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::nanoseconds(kLimitNs))
        << "the wake-up was lost";
    ASSERT_TRUE(waiter.end().done);
  }
};
TEST(CounterInterleaving, WaiterThatGoesToSleepDuringTheEndIsWoken) {
  at_every_place<LastArrivalMeetsTheSleeper>();
}

struct CountMeetsTheNextExpectation : TableFixture {
  CounterKey key = fresh();
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

/// A member that owes `share`, and the expectation that it pays.
struct GroupFixture : TableFixture {
  CounterKey parent, member;
  explicit GroupFixture(uint64_t share = 1, uint32_t live_max = 2)
      : TableFixture(live_max), parent(fresh()), member(fresh()) {
    EXPECT_EQ(table.link(member, parent, share), Errc::kOk);
  }
  uint32_t take(uint64_t share = 1) {
    const auto one = table.share_of(member, share);
    return table.take_shares({&one, 1});
  }
};

// The share is here when it is taken, or its last arrival pays it: one of them, not both.
struct TakeMeetsAnArrival : GroupFixture {
  uint32_t owed = 9;
  TakeMeetsAnArrival() { arrive(member, 2); }
  void victim() { owed = take(); }
  void intruder() { arrive(member, 2); }
  void check() {
    ASSERT_EQ(table.count(parent), owed);
    ASSERT_EQ(table.count(member), 0u);
  }
};
TEST(CounterInterleaving, ShareIsThereOrPaidExactlyOnce) { at_every_place<TakeMeetsAnArrival>(); }

struct ArrivalMeetsATake : TakeMeetsAnArrival {
  void victim() { arrive(member, 2); }
  void intruder() { owed = take(); }
};
TEST(CounterInterleaving, ArrivalPaysTheShareOrFindsItNotTaken) {
  at_every_place<ArrivalMeetsATake>();
}

struct UnlinkMeetsAnArrival : GroupFixture {
  bool owes = false;
  uint64_t before_return = 99;
  UnlinkMeetsAnArrival() {
    take();
    arrive(member, 2);
  }
  void victim() {
    owes = table.unlink(member, true);
    before_return = table.count(parent);
  }
  void intruder() { arrive(member, 2); }
  void check() {
    ASSERT_EQ(table.count(member), 1u);
    ASSERT_EQ(table.count(parent), owes ? 0u : 1u);
    ASSERT_EQ(before_return, table.count(parent)) << "paid after the unlink had returned";
  }
};
TEST(CounterInterleaving, UnlinkLosesNoCountOfTheMember) { at_every_place<UnlinkMeetsAnArrival>(); }

// The group goes on without a member whose last half is just being counted: paid by one, not both.
struct ArrivalMeetsTheMask : GroupFixture {
  ArrivalMeetsTheMask() {
    take();
    static_cast<void>(table.expect(parent, 1, 1));
    arrive(member, 2);
  }
  void victim() { arrive(member, 2); }
  void intruder() {
    // Waits for an arrival that is announced; this one is stopped, so only its word is looked at.
    if (table.owes(member)) {
      uint64_t untaken = 0;
      CounterKey group{};
      masked = table.release(member, 0, &untaken, &group) && group == parent;
      if (masked) table.add(parent, 1);
    }
  }
  bool masked = false;
  void check() {
    ASSERT_EQ(ended, 1u);
    ASSERT_EQ(table.count(parent), 0u);
  }
};
TEST(CounterInterleaving, MaskingAddsWhatTheMemberDidNot) { at_every_place<ArrivalMeetsTheMask>(); }

// The slot of the member is reused while an arrival of its last generation still pays.
struct ArrivalMeetsTheNextLink : TableFixture {
  CounterKey parent, other, member, next{};
  ArrivalMeetsTheNextLink() : TableFixture(4), parent(fresh()), other(fresh()), member(fresh()) {
    EXPECT_EQ(table.link(member, parent, 1), Errc::kOk);
    const auto one = table.share_of(member, 1);
    table.take_shares({&one, 1});
  }
  bool paid = false;
  void victim() { arrive(member); }
  void intruder() {
    paid = !table.owes(member);
    table.release(member, 0);
    for (uint32_t i = 0; i < 8 && !next; ++i) {  // round the ring, up to the same slot
      const auto key = table.acquire(++clock_ns, 0);
      if (!key) return;
      if (key->wire() % 8 == member.wire() % 8) {
        next = *key;
      } else {
        table.release(*key, 0);
      }
    }
    if (next) static_cast<void>(table.link(next, other, 1));
  }
  void check() {
    ASSERT_EQ(table.count(parent), paid ? 1u : 0u);
    ASSERT_EQ(table.count(other), 0u) << "paid to the parent of another generation";
  }
};
TEST(CounterInterleaving, SharesArePaidToTheParentOfTheirGeneration) {
  at_every_place<ArrivalMeetsTheNextLink>();
}

// The end of an expectation and a disarm: reported once, and the record is free.
struct DisarmMeetsTheArrival : TableFixture {
  CounterKey key = fresh();
  DisarmMeetsTheArrival() { static_cast<void>(table.expect(key, 1, 1)); }
  void victim() { table.disarm(key); }
  void intruder() { arrive(key); }
  void check() {
    ASSERT_EQ(ended, 1u);
    ASSERT_TRUE(table.expect(key, 5, 2).has_value()) << "a disarmed counter is busy";
  }
};
TEST(CounterInterleaving, DisarmedOrMetExactlyOnce) { at_every_place<DisarmMeetsTheArrival>(); }

// A thread is ended, and the counter armed again, while the thread that ends it is preempted.
struct EndMeetsTheNextWaiter : TableFixture {
  CounterKey key = fresh();
  CounterTable::Waiter first, second;
  bool armed_again = false;
  EndMeetsTheNextWaiter() { static_cast<void>(table.expect(key, 1, first)); }
  void victim() { arrive(key); }
  void intruder() { armed_again = table.expect(key, 9, second).has_value(); }
  void check() {
    ASSERT_TRUE(first.end().done);
    ASSERT_EQ(first.end().code, Errc::kOk);
    ASSERT_TRUE(armed_again || table.expect(key, 9, second).has_value());
    ASSERT_FALSE(second.end().done) << "the end of the first went to the second";
    table.disarm(key);
    ASSERT_TRUE(second.end().done);
    ASSERT_EQ(second.end().code, Errc::kCancelled);
  }
};
TEST(CounterInterleaving, EndGoesToTheWaiterThatItBelongsTo) {
  at_every_place<EndMeetsTheNextWaiter>();
}

// The end of a waiter and a late cancel that lets go of its pin: the record is free after both.
struct EndMeetsALateCancel : TableFixture {
  CounterKey key = fresh();
  CounterTable::Waiter waiter;
  CounterTable::Armed armed = *table.expect(key, 1, waiter);
  void victim() { table.cancel(armed.expectation, Errc::kCancelled); }
  void intruder() { arrive(key); }
  void check() {
    ASSERT_TRUE(waiter.end().done);
    ASSERT_TRUE(waiter.end().code == Errc::kOk || waiter.end().code == Errc::kCancelled);
    ASSERT_TRUE(table.expect(key, 2, 1).has_value());
  }
};
TEST(CounterInterleaving, EndAndALateCancelFreeTheRecord) { at_every_place<EndMeetsALateCancel>(); }

// Moving the member waits for an arrival that still needs the old parent, so it comes from a thread
// of its own; the arrival pauses until the move is done or is plainly waiting.
struct ArrivalMeetsAMove : TableFixture {
  CounterKey before, after, member;
  std::atomic<bool> go{false}, moved{false};
  uint64_t at_unlink = 99;
  uint32_t owed = 9;
  std::thread mover;

  ArrivalMeetsAMove() : TableFixture(4), before(fresh()), after(fresh()), member(fresh()) {
    const auto one = table.share_of(member, 1);
    EXPECT_EQ(table.link(member, before, 1), Errc::kOk);
    EXPECT_EQ(table.take_shares({&one, 1}), 1u);
    mover = std::thread([this, one] {
      while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
      table.unlink(member, true);
      at_unlink = table.count(before);
      EXPECT_EQ(table.link(member, after, 1), Errc::kOk);
      owed = table.take_shares({&one, 1});
      moved.store(true, std::memory_order_release);
    });
  }
  void victim() { arrive(member); }
  void intruder() {
    go.store(true, std::memory_order_release);
    const auto plainly_waiting = std::chrono::steady_clock::now() + std::chrono::milliseconds(5);
    while (!moved.load(std::memory_order_acquire) &&
           std::chrono::steady_clock::now() < plainly_waiting) {
      std::this_thread::yield();
    }
  }
  void check() {
    mover.join();
    ASSERT_EQ(table.count(member), 0u) << "its share was taken";
    ASSERT_EQ(table.count(after), owed) << "paid twice, or not at all";
    ASSERT_EQ(table.count(before), at_unlink) << "paid after the unlink had returned";
  }
};
TEST(CounterInterleaving, MoveWaitsForWhatTheOldParentIsDue) {
  at_every_place<ArrivalMeetsAMove>();
}

}  // namespace
}  // namespace fabric::core::counter_interleaving_test

#endif  // __x86_64__

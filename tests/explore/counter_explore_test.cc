#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/driver.h"
#include "base/sync.h"
#include "core/counter_table.h"
#include "explore/sweep.h"

// The counter's protocol in all orders: who arms, who arrives, who cancels, who releases. Data that
// only a count guards is plain, so a thread that sees a completion too early is caught in a data
// race.

namespace fabric::core {
namespace {

using interleave::expect_mutants_found;
using interleave::expect_sound;
using interleave::NamedProgram;
using interleave::Program;
using interleave::program;
using interleave::require;
using interleave::Survivor;

constexpr uint32_t kFirst = 1, kSecond = 2;  // cookies

struct Counting : Program {
  struct End {
    uint32_t cookie = 0;
    Errc code = Errc::kOk;
  };
  std::array<End, 4> ends{};
  uint32_t ended = 0;
  std::array<Plain<int>, 2> data;  // written before the arrival with the same number
  CounterTable table;
  CounterKey key;
  int64_t clock_ns = 0;

  explicit Counting(uint32_t live_max = 1)
      : table({.live_max = live_max, .fired = note, .context = this, .key_bits = 12}),
        key(fresh()) {}
  CounterKey fresh() { return *table.acquire(++clock_ns, 0); }

  static void note(void* self, uint32_t cookie, Errc code) {
    auto& program = *static_cast<Counting*>(self);
    require(program.ended < 4, "too many completions");
    program.ends[program.ended++] = {cookie, code};
    if (cookie == kFirst && code == Errc::kOk) program.on_met();
  }
  /// The first expectation was met: this thread sees what must be there by then.
  virtual void on_met() {}

  void arrive(CounterKey at, uint32_t cut = 1) {
    const uint32_t imm = make_imm(at, cut);
    table.arrive({&imm, 1});
  }
  void write(int index, uint32_t cut = 1) {
    data[index] = 1;
    arrive(key, cut);
  }
  void see(int index) { require(data[index] == 1, "counted before its bytes landed"); }
  /// As Counter::wait() does.
  Errc wait(const CounterTable::Waiter& waiter) {
    for (;;) {
      if (const auto end = waiter.end(); end.done) return end.code;
      const EventCount::Ticket ticket = table.event_count(key).prepare();
      if (const auto end = waiter.end(); end.done) return end.code;
      table.event_count(key).sleep(ticket, kNeverNs);
    }
  }
  bool ended_once(uint32_t cookie, Errc code) const {
    return ended == 1 && ends[0].cookie == cookie && ends[0].code == code;
  }
  /// Nothing of the past is left: the next generation counts only its own arrivals.
  void next_generation_is_clean() {
    table.release(key, 0);
    const auto next = table.acquire(++clock_ns, 0);
    require(next.has_value(), "the slot is held for ever");
    if (!next) return;
    require(table.live_count() == 1, "the number of live counter keys is wrong");
    require(table.count(*next) == 0, "counts of another generation");
    const uint32_t before = ended;
    require(table.expect(*next, 1, kSecond).has_value(), "the record is held for ever");
    require(ended == before, "met by counts of another generation");
    arrive(*next);
    require(ended == before + 1, "lost in the next generation");
  }
};

struct ArmMeetsTheArrival : Counting {
  bool met = false;
  int threads() const override { return 2; }
  void thread(int index) override {
    if (index == 0) return write(0);
    met = table.expect(key, 1, kFirst)->met;
    if (met) see(0);
  }
  void on_met() override { see(0); }
  void check() override {
    require(ended + met == 1, "not reported exactly once");
    require(table.count(key) == 0, "a count is left");
    next_generation_is_clean();
  }
};

// Two arm at once, for what is there already or for nothing yet: one record, one holder.
template <bool kThere>
struct TwoArm : Counting {
  std::array<bool, 2> armed{}, met{};
  TwoArm() {
    if (kThere) arrive(key);
  }
  int threads() const override { return 2; }
  void thread(int index) override {
    const auto one = table.expect(key, 1, static_cast<uint32_t>(index) + kSecond);
    armed[index] = one.has_value() && !one->met;
    met[index] = one.has_value() && one->met;
  }
  void check() override {
    require(met[0] + met[1] == kThere, "the present count was not taken exactly once");
    require(armed[0] + armed[1] == (kThere ? armed[0] || armed[1] : 1),
            "two expectations hold the record");
    arrive(key);
    if (armed[0] || armed[1]) {
      require(ended_once(armed[0] ? kSecond : kSecond + 1, Errc::kOk),
              "the wrong expectation was reported");
    }
    next_generation_is_clean();
  }
};

struct WaiterMeetsTheArrival : Counting {
  CounterTable::Waiter waiter;
  int threads() const override { return 2; }
  void thread(int index) override {
    if (index == 0) return write(0);
    const auto armed = table.expect(key, 1, waiter);
    if (!armed->met) require(wait(waiter) == Errc::kOk, "unexpected completion");
    see(0);
    require(!table.cancel(armed->expectation, Errc::kCancelled),
            "cancelled after it had completed");
  }
  void check() override { next_generation_is_clean(); }
};

struct TwoArrivalsOneWaiter : Counting {
  CounterTable::Waiter waiter;
  int threads() const override { return 3; }
  void thread(int index) override {
    if (index < 2) return write(index, 2);
    const auto armed = table.expect(key, 1, waiter);
    if (!armed->met) require(wait(waiter) == Errc::kOk, "unexpected completion");
    see(0);
    see(1);
  }
  void check() override { require(table.count(key) == 0, "a count is left"); }
};

struct TwoArrivalsOneCallback : Counting {
  TwoArrivalsOneCallback() { static_cast<void>(table.expect(key, 2, kFirst)); }
  int threads() const override { return 2; }
  void thread(int index) override { write(index); }
  void on_met() override {
    see(0);
    see(1);
  }
  void check() override { require(ended_once(kFirst, Errc::kOk), "not reported exactly once"); }
};

// Polling: a thread that sees the count may read the bytes.
struct TakerMeetsTheArrivals : Counting {
  int threads() const override { return 3; }
  void thread(int index) override {
    if (index < 2) return write(index);
    if (table.count(key) == 2) {
      see(0);
      see(1);
    }
    if (!table.try_take(key, 2)) return;
    see(0);
    see(1);
  }
  void check() override {}
};

// A cancel that is overtaken by the end of its expectation and by the next one.
struct CancelMeetsTheNextExpectation : Counting {
  CounterTable::Armed first = *table.expect(key, 1, kFirst);
  bool cancelled = false, armed_again = false;
  int threads() const override { return 2; }
  void thread(int index) override {
    if (index == 0) {
      write(0);
      armed_again = table.expect(key, 3, kSecond).has_value();
    } else {
      cancelled = table.cancel(first.expectation, Errc::kCancelled);
    }
  }
  void on_met() override { see(0); }
  void check() override {
    require(ended_once(kFirst, cancelled ? Errc::kCancelled : Errc::kOk),
            "not reported exactly once");
    if (!armed_again) armed_again = table.expect(key, 3, kSecond).has_value();
    require(armed_again, "the record is held for ever");
    // What the first did not take is there for the second, no more and no less.
    require(table.count(key) == (cancelled ? 1u : 0u), "counts were invented or lost");
    for (uint32_t i = cancelled ? 1 : 0; i < 2; ++i) arrive(key);
    require(ended == 1, "met too early");
    arrive(key);
    require(ended == 2 && ends[1].cookie == kSecond, "never met");
  }
};

// A cancel that comes too late lets go of its pin.
struct EndMeetsALateCancel : Counting {
  CounterTable::Waiter waiter;
  CounterTable::Armed first = *table.expect(key, 1, waiter);
  bool cancelled = false;
  int threads() const override { return 2; }
  void thread(int index) override {
    if (index == 0) return write(0);
    cancelled = table.cancel(first.expectation, Errc::kCancelled);
  }
  void check() override {
    const auto end = waiter.end();
    require(end.done && end.code == (cancelled ? Errc::kCancelled : Errc::kOk),
            "the result is not the expected one");
    next_generation_is_clean();
  }
};

struct WaiterCancelAndArrival : Counting {
  CounterTable::Waiter waiter;
  CounterTable::Armed first = *table.expect(key, 1, waiter);
  bool cancelled = false;
  int threads() const override { return 3; }
  void thread(int index) override {
    if (index == 0) return write(0);
    if (index == 1) {
      cancelled = table.cancel(first.expectation, Errc::kCancelled);
      return;
    }
    const Errc code = wait(waiter);
    require(code == Errc::kOk || code == Errc::kCancelled, "unexpected completion");
    if (code == Errc::kOk) see(0);
  }
  void check() override {
    require(table.count(key) == (cancelled ? 1u : 0u), "counts were invented or lost");
    require(table.expect(key, 2, kSecond).has_value(), "the record is held for ever");
  }
};

struct CancelMeetsTheRelease : Counting {
  CounterTable::Armed first = *table.expect(key, 1, kFirst);
  bool cancelled = false;
  int threads() const override { return 2; }
  void thread(int index) override {
    if (index == 0) {
      cancelled = table.cancel(first.expectation, Errc::kCancelled);
    } else {
      require(table.release(key, 0), "was not live");
    }
  }
  void check() override {
    require(ended_once(kFirst, cancelled ? Errc::kCancelled : Errc::kReleased),
            "not reported exactly once");
    next_generation_is_clean();
  }
};

// A late arrival, the release, and the next owner of the slot, who arms at once.
struct ArrivalMeetsTheNextGeneration : Counting {
  CounterTable::Armed first = *table.expect(key, 1, kFirst);
  std::optional<CounterKey> next{};
  uint64_t untaken = 0;
  int threads() const override { return 2; }
  void thread(int index) override {
    if (index == 0) return write(0);
    table.release(key, 0, &untaken);
    const auto again = table.acquire(++clock_ns, 0);
    if (!again) return;  // the arrival holds the record still
    next = *again;
    require(table.expect(*next, 1, kSecond).has_value(), "the record of a fresh counter is taken");
  }
  void on_met() override { see(0); }
  void check() override {
    require(ended == 1 && ends[0].cookie == kFirst, "reported twice, or the wrong expectation");
    require(untaken == 0, "reports counts as untaken that were taken");
    if (!next) return next_generation_is_clean();
    require(table.count(*next) == 0, "counted in another generation");
    require(table.live_count() == 1, "the number of live counter keys is wrong");
    arrive(*next);
    require(ended == 2 && ends[1].cookie == kSecond, "lost in the next generation");
  }
};

// The completion of one expectation is reported while the next is armed over it.
struct LastArrivalMeetsTheNextExpectation : Counting {
  CounterTable::Armed first = *table.expect(key, 1, kFirst);
  bool armed_again = false;
  int threads() const override { return 2; }
  void thread(int index) override {
    if (index == 0) return write(0);
    armed_again = table.expect(key, 2, kSecond).has_value();
  }
  void check() override {
    require(ended_once(kFirst, Errc::kOk), "the wrong expectation was reported");
    require(armed_again || table.expect(key, 2, kSecond).has_value(), "the record is held");
    arrive(key);
    require(ended == 1, "met too early");
    arrive(key);
    require(ended == 2 && ends[1].cookie == kSecond, "never met");
  }
};

struct AbortMeetsTheArrivalAndTheArm : Counting {
  bool met = false, refused = false;
  int threads() const override { return 3; }
  void thread(int index) override {
    if (index == 0) return write(0);
    if (index == 1) {
      table.abort(key, Errc::kPeerLost);
      return;
    }
    const auto armed = table.expect(key, 1, kFirst);
    refused = !armed;
    if (!armed) return;
    met = armed->met;
    if (met) see(0);
  }
  void on_met() override { see(0); }
  void check() override {
    require(ended + met + refused == 1, "not reported exactly once");
    next_generation_is_clean();
  }
};

struct CountMeetsTheNextExpectation : Counting {
  uint64_t seen = 0;
  CountMeetsTheNextExpectation() { static_cast<void>(table.expect(key, 1, kFirst)); }
  int threads() const override { return 2; }
  void thread(int index) override {
    if (index == 0) {
      arrive(key);
      static_cast<void>(table.expect(key, 9, kSecond));
    } else {
      seen = table.count(key);
    }
  }
  void check() override { require(seen == 0, "mixes two expectations"); }
};

// --- links --------------------------------------------------------------------------------------

struct Linked : Counting {
  CounterKey parent = fresh();
  explicit Linked(uint32_t live_max = 2) : Counting(live_max) {
    require(table.link(key, parent, 1) == Errc::kOk, "not linked");
  }
  uint32_t take() {
    const CounterTable::Share one = table.share_of(key, 1);
    return table.take_shares({&one, 1});
  }
  /// The member's data are plain: who sees the group met must see them.
  void on_met() override { see(0); }
};

// A share is here when it is taken, or its arrival pays it. Either way the bytes are visible.
struct TakeMeetsTheArrival : Linked {
  uint32_t owed = 9;
  bool met = false;
  int threads() const override { return 2; }
  void thread(int index) override {
    if (index == 0) return write(0);
    owed = take();
    if (owed == 0) {
      see(0);
    } else {
      met = table.expect(parent, owed, kFirst)->met;
      if (met) see(0);
    }
  }
  void check() override {
    require(owed <= 1 && ended + met == owed, "not met exactly once");
    require(table.count(key) == 0 && table.count(parent) == 0, "paid twice, or not at all");
  }
};

// Two halves of a share: one of the two threads pays, and has seen the other's bytes.
struct TwoArrivalsPayAShare : Linked {
  TwoArrivalsPayAShare() {
    take();
    static_cast<void>(table.expect(parent, 1, kFirst));
  }
  int threads() const override { return 2; }
  void thread(int index) override { write(index, 2); }
  void on_met() override {
    see(0);
    see(1);
  }
  void check() override {
    require(ended_once(kFirst, Errc::kOk), "not met exactly once");
    require(table.count(parent) == 0, "paid twice");
  }
};

// Two writes, either of which pays: both are announced at once, and withdrawn in the end.
struct TwoArrivalsAtAMember : Linked {
  TwoArrivalsAtAMember() { take(); }
  int threads() const override { return 2; }
  void thread(int) override { arrive(key); }
  void check() override {
    require(!table.unlink(key, false), "owes after it has paid");  // waits for what is announced
    require(table.count(key) == 1 && table.count(parent) == 1, "paid twice, or not at all");
  }
};

// A group goes on without a member whose write is on its way: paid by one of them.
struct LeavingMeetsTheArrival : Linked {
  LeavingMeetsTheArrival() {
    take();
    static_cast<void>(table.expect(parent, 1, kSecond));
  }
  int threads() const override { return 2; }
  void thread(int index) override {
    if (index == 0) return write(0);
    if (table.unlink(key, true)) table.add(parent, 1);
  }
  void check() override {
    require(ended_once(kSecond, Errc::kOk), "not met exactly once");
    require(table.count(parent) == 0 && table.count(key) == 1, "paid twice, or a count is lost");
  }
};

// Moves the member while a count is on its way: the old parent has got all it will when it returns.
struct MoveMeetsAnArrival : Linked {
  CounterKey other = fresh();
  uint64_t at_unlink = 0;
  uint32_t owed = 9;
  MoveMeetsAnArrival() : Linked(4) { take(); }
  int threads() const override { return 2; }
  void thread(int index) override {
    if (index == 0) return arrive(key);
    table.unlink(key, true);
    at_unlink = table.count(parent);
    require(table.link(key, other, 1) == Errc::kOk, "not linked again");
    owed = take();
  }
  void check() override {
    require(table.count(key) == 0 && table.count(other) == owed, "paid twice, or not at all");
    require(table.count(parent) == at_unlink, "paid after the unlink had returned");
    table.unlink(key, true);
    require(table.expect(key, 9, kSecond).has_value(), "the record is held for ever");
  }
};

// The slot of a member is reused while an arrival of its last generation still pays its share.
struct ArrivalMeetsTheNextLink : Linked {
  CounterKey other = fresh();
  uint64_t untaken = 0;
  ArrivalMeetsTheNextLink() : Linked(4) {
    take();
    // The other free slots rest behind the member's: it is the next to come back.
    for (int i = 0; i < 4; ++i) spare[i] = table.acquire(++clock_ns, 0);
  }
  std::array<Result<CounterKey>, 4> spare{CounterKey{}, CounterKey{}, CounterKey{}, CounterKey{}};
  int threads() const override { return 2; }
  void thread(int index) override {
    if (index == 0) return arrive(key);
    table.release(key, 0, &untaken);
    const auto again = table.acquire(++clock_ns, 0);
    if (again) static_cast<void>(table.link(*again, other, 1));
  }
  void check() override {
    require(untaken == 0, "its share was taken");
    require(table.count(parent) <= 1, "paid twice");
    require(table.count(other) == 0, "paid to the parent of another generation");
  }
};

// --- disarm -------------------------------------------------------------------------------------

// However the expectation ends, the next one is armed at once.
struct DisarmMeetsTheArrival : Counting {
  bool armed_again = false;
  DisarmMeetsTheArrival() { static_cast<void>(table.expect(key, 1, kFirst)); }
  int threads() const override { return 2; }
  void thread(int index) override {
    if (index == 0) return write(0);
    table.disarm(key);
    armed_again = table.expect(key, 9, kSecond).has_value();
  }
  void on_met() override { see(0); }
  void check() override {
    require(ended == 1 && ends[0].cookie == kFirst, "not ended exactly once");
    require(armed_again, "a disarmed counter is busy");
  }
};

// A waiting thread gets its result, although the counter is armed again before it has run.
struct DisarmMeetsTheWaiter : Counting {
  CounterTable::Waiter waiter;
  bool armed_again = false;
  Errc code = Errc::kBusy;
  DisarmMeetsTheWaiter() { static_cast<void>(table.expect(key, 1, waiter)); }
  int threads() const override { return 2; }
  void thread(int index) override {
    if (index == 0) {
      code = wait(waiter);
      return;
    }
    arrive(key);
    table.disarm(key);
    armed_again = table.expect(key, 9, kSecond).has_value();
  }
  void check() override {
    require(code == Errc::kOk, "the result is lost");
    require(armed_again, "a disarmed counter is busy");
  }
};

// Two threads disarm the same waiter: it ends once, and the record is free after either.
struct TwoDisarm : Counting {
  CounterTable::Waiter waiter;
  CounterTable::Armed armed = *table.expect(key, 1, waiter);
  int threads() const override { return 2; }
  void thread(int) override {
    table.disarm(key);
    require(table.peek(armed.expectation).done, "armed after disarm() has returned");
  }
  void check() override {
    require(table.expect(key, 9, kSecond).has_value(), "a disarmed counter is busy");
    require(waiter.end().done && waiter.end().code == Errc::kCancelled, "the result is lost");
    require(table.count(key) == 0, "counts were invented");
  }
};

// Two threads wait one after the other, and are ended before the first of them has run.
struct DisarmMeetsTwoWaiters : Counting {
  CounterTable::Waiter first, second;
  std::array<bool, 2> armed_again{};
  std::array<Errc, 2> codes{Errc::kBusy, Errc::kBusy};
  DisarmMeetsTwoWaiters() { static_cast<void>(table.expect(key, 1, first)); }
  int threads() const override { return 2; }
  void thread(int index) override {
    if (index == 0) {
      codes[0] = wait(first);
      return;
    }
    table.disarm(key);
    armed_again[0] = table.expect(key, 1, second).has_value();
    table.disarm(key);
    armed_again[1] = table.expect(key, 9, kSecond).has_value();
    codes[1] = wait(second);
  }
  void check() override {
    require(armed_again[0] && armed_again[1], "a disarmed counter is busy");
    require(codes[0] == Errc::kCancelled && codes[1] == Errc::kCancelled, "a result is lost");
    require(ended == 0, "an armed expectation ended");
  }
};

const std::vector<NamedProgram> kScenes = {
    program<ArmMeetsTheArrival>("ArmMeetsTheArrival"),
    program<TwoArm<false>>("TwoArm"),
    program<TwoArm<true>>("TwoArmForWhatIsThere"),
    program<WaiterMeetsTheArrival>("WaiterMeetsTheArrival"),
    program<EndMeetsALateCancel>("EndMeetsALateCancel"),
    program<TwoArrivalsOneCallback>("TwoArrivalsOneCallback"),
    program<CancelMeetsTheRelease>("CancelMeetsTheRelease"),
    program<CancelMeetsTheNextExpectation>("CancelMeetsTheNextExpectation"),
    program<LastArrivalMeetsTheNextExpectation>("LastArrivalMeetsTheNextExpectation"),
    program<ArrivalMeetsTheNextGeneration>("ArrivalMeetsTheNextGeneration"),
    program<CountMeetsTheNextExpectation>("CountMeetsTheNextExpectation"),
    program<TakeMeetsTheArrival>("TakeMeetsTheArrival"),
    program<TwoArrivalsPayAShare>("TwoArrivalsPayAShare"),
    program<TwoArrivalsAtAMember>("TwoArrivalsAtAMember"),
    program<LeavingMeetsTheArrival>("LeavingMeetsTheArrival"),
    program<DisarmMeetsTheArrival>("DisarmMeetsTheArrival"),
    program<DisarmMeetsTheWaiter>("DisarmMeetsTheWaiter"),
    program<TwoDisarm>("TwoDisarm"),
    program<DisarmMeetsTwoWaiters>("DisarmMeetsTwoWaiters"),
    program<MoveMeetsAnArrival>("MoveMeetsAnArrival"),
    program<ArrivalMeetsTheNextLink>("ArrivalMeetsTheNextLink"),
    program<TakerMeetsTheArrivals>("TakerMeetsTheArrivals"),
    program<AbortMeetsTheArrivalAndTheArm>("AbortMeetsTheArrivalAndTheArm"),
};
// Too long to be explored for every mutant.
const std::vector<NamedProgram> kLongScenes = {
    program<TwoArrivalsOneWaiter>("TwoArrivalsOneWaiter"),
    program<WaiterCancelAndArrival>("WaiterCancelAndArrival"),
};

TEST(ExploreCounter, EveryExpectationEndsOnceAndNeverEarly) {
  expect_sound(kScenes);
  expect_sound(kLongScenes);
}

constexpr std::string_view kLocked = "changes under the mutex only; atomic for who reads the gauge";
constexpr std::string_view kAgain =
    "the next owner acquires again, by claim_record() or link(), before it writes anything";
constexpr std::string_view kHanded =
    "who has the key or the expectation got it from the thread that made it, which orders more";
constexpr std::string_view kCarried =
    "a read-modify-write carries on the release of the last holder, and adds nothing that counts";
const std::vector<Survivor> kSurvivors = {
    {"acquire load 2 without acquire", kAgain},
    {"acquire load 3 without acquire", kAgain},
    {"acquire fetch_add torn into load and store", kLocked},
    {"release fetch_sub torn into load and store", kLocked},
    {"acquire exchange torn into load and store",
     "no other thread changes the word of a free slot"},
    {"acquire exchange without acquire", kHanded},
    {"acquire exchange without release", kHanded},
    {"cancel compare_exchange without acquire", kHanded},
    {"cancel compare_exchange without release", "who finds the pin waits, and reads nothing"},
    {"cancel fetch_and without release", "what was read under the pin is not used"},
    {"claim_record compare_exchange without release", kCarried},
    {"link fetch_and without release", "what was written under the claim is published by the word"},
    {"link fetch_and torn into load and store",
     "only a disarm changes an armed claim, and it finds no expectation here"},
    {"peek load without acquire", "a waiting thread reads Waiter::end(), which acquires"},
    {"arm fetch_and torn into load and store",
     "only a cancel changes an armed claim, and no thread can cancel before expect() has returned"},
};
TEST(ExploreCounter, EveryWeakenedOperationIsFound) { expect_mutants_found(kScenes, kSurvivors); }

}  // namespace
}  // namespace fabric::core

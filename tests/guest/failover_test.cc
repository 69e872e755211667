#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <utility>

#include <gtest/gtest.h>

#include "guest/break.h"
#include "guest/conformance/interposer.h"
#include "guest/links.h"
#include "guest/stream.h"
#include "harness/dump.h"
#include "support/log_guard.h"

// Rails that break in every way (break.h) while both hosts write to each other: every write is
// delivered and counted once, over the rail that is left or by a new path.
//
// FABRICLIB_TEST_ROUNDS=N plays N times as many breaks, FABRICLIB_TEST_BREAK=K those of kind K
// alone.

namespace fabric::test::failover_test {
namespace {

using namespace std::chrono_literals;

/// Writes with an rkey that the other host's NIC does not know, by the same paths as all others.
class Forger {
 public:
  Forger(Engine& from, Engine& to)
      : from_(from),
        batch_(*from.make_batch()),
        source_(*from.allocate({.size_bytes = kBytes})),
        target_(*to.allocate({.size_bytes = kBytes})),
        counter_(*to.make_counter()) {
    const auto peer = from.connect(to.address());
    EXPECT_TRUE(peer);
    const auto remote = from.import_region(*peer, forged(target_, with_wrong_keys));
    EXPECT_TRUE(remote);
    remote_ = *remote;
    std::ranges::fill(source_.bytes(), std::byte{0x66});
  }
  void submit() {
    ASSERT_TRUE(from_.submit(Write{.source = source_.at(0),
                                   .target = remote_.at(0),
                                   .size_bytes = kBytes,
                                   .imm = counter_.key(),
                                   .unsplit = true,
                                   .batch = batch_}));
    waiting_ = true;
  }
  /// All that was submitted, if anything was.
  void expect_refused() {
    if (!std::exchange(waiting_, false)) return;
    const auto ended = from_.wait(batch_, 30s);
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code, Errc::kRemoteAccess) << ended.error().what;
    EXPECT_EQ(batch_.unknown(), 0u);
    EXPECT_EQ(counter_.count(), 0u);
    EXPECT_EQ(std::ranges::count(target_.bytes(), std::byte{0x66}), 0);
    batch_ = *from_.make_batch();
  }

 private:
  static constexpr uint64_t kBytes = 4096;
  Engine& from_;
  Batch batch_;
  MemoryRegion source_, target_;
  RemoteRegion remote_{};
  Counter counter_;
  bool waiting_ = false;
};

class Failover : public testing::Test {
 protected:
  static constexpr uint32_t kSlots = 96;
  /// The work requests of one host that were in doubt after a break, of them those that the target
  /// had received, and those sent again; since the engine was opened.
  struct ReplayCounts {
    uint64_t in_doubt = 0, delivered = 0, repeated = 0;
  };

  void SetUp() override {
    if (!in_guest()) GTEST_SKIP() << "not in the guest of tests/guest/boot.py";
    for (const char* part : {"a path broke", "a rail went down", "a rail came back", "stalled",
                             "a path could not be opened", "refused"}) {
      expect_log(part);
    }
    std::setvbuf(stdout, nullptr, _IOLBF, 0);  // so that a hanging test has printed where
    VerbsInterposer::get();                    // before the first network is opened
    a.emplace(open_host('a'));
    b.emplace(open_host('b'));
    ab.emplace(*a, *b, test_seed(), Stream::Options{.slots = kSlots});
    ba.emplace(*b, *a, test_seed() + 1, Stream::Options{.slots = kSlots});
    ab_forger.emplace(*a, *b);
    ba_forger.emplace(*b, *a);
    expect_service(both());
  }
  uint64_t failed() const { return ab->failed() + ba->failed(); }
  std::vector<Stream*> both() { return {&*ab, &*ba}; }

  /// Waits until much is in flight each way, breaks the rail at that moment, and returns what was
  /// in flight.
  std::array<uint32_t, 2> break_under_load(const std::function<void()>& broken) {
    const bool loaded = run(both(), [&] {
      return failed() != 0 || (ab->outstanding() > kSlots / 2 && ba->outstanding() > kSlots / 2);
    });
    EXPECT_TRUE(loaded && failed() == 0)
        << "too few writes in flight in one of the directions: " << ab->describe()
        << ba->describe();
    broken();
    return {ab->outstanding(), ba->outstanding()};
  }
  void strike(RailBreak& one, Rng& rng) {
    one.strike(
        rng, [this](Nanos time) { run_for(time); },
        [this] {
          ab_forger->submit();
          ba_forger->submit();
        });
  }
  void run_for(Nanos time) {
    const auto end = std::chrono::steady_clock::now() + time;
    run(both(), [&] { return std::chrono::steady_clock::now() > end; });
  }
  static ReplayCounts replay_counts(const Engine& engine) {
    return {
        protocol_counter(engine, "write in doubt"),
        protocol_counter(engine, "write found delivered"),
        protocol_counter(engine, "write replayed") + protocol_counter(engine, "shard replayed")};
  }
  uint64_t repeated() const { return replay_counts(*a).repeated + replay_counts(*b).repeated; }
  /// Writes in flight at the break are delivered, over the other rail.
  void expect_moved_on() {
    expect_service(both(), kSlots);
    ab_forger->expect_refused();
    ba_forger->expect_refused();
  }
  void expect_exact() {
    ab->finish();
    ba->finish();
    EXPECT_EQ(failed(), 0u) << ab->first_failure() << ba->first_failure();
    for (const Engine* engine : {&*a, &*b}) {
      const ReplayCounts counts = replay_counts(*engine);
      std::printf("host %c: %lu writes in doubt, %lu of them delivered, %lu sent again\n",
                  engine == &*a ? 'A' : 'B', counts.in_doubt, counts.delivered, counts.repeated);
    }
  }

  Healed healed;
  std::optional<Engine> a, b;
  std::optional<Stream> ab, ba;  // go before their engines
  std::optional<Forger> ab_forger, ba_forger;
};

TEST_F(Failover, WhatFliesWhenARailBreaksIsDeliveredOnceOverTheOther) {
  Rng rng(test_seed());
  BreakDeck deck(rng);
  uint32_t both_ways = 0;
  const uint32_t trials = kBreaks * rounds();
  for (uint32_t trial = 0; trial < trials && !HasFailure(); ++trial) {
    // Each of them once in the way that is hardest, and then as they come.
    RailBreak one(trial < deck.size()     ? RailBreak::hard(deck[trial], rng)
                  : deck.size() < kBreaks ? RailBreak::hard(deck.next(), rng)
                                          : RailBreak::random(deck.next(), rng));
    run_for(Nanos(rng.between(1, 60) * 1'000'000));
    const auto left = break_under_load([&] { strike(one, rng); });
    EXPECT_TRUE(one.has_hit()) << one.describe();
    const auto begin = std::chrono::steady_clock::now();
    expect_moved_on();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::printf("trial %u: %s; outstanding %u and %u; went on after %.2f s\n", trial,
                one.describe().c_str(), left[0], left[1], took.count());
    both_ways += left[0] > 0 && left[1] > 0;
    one.mend();
    heal_all();
    expect_all_rails(*a, *b, both());
  }
  expect_exact();
  EXPECT_GT(both_ways, trials * 3 / 4)
      << "the breaks hit no writes in flight: the test shows little";
}

TEST_F(Failover, ASecondBreakDuringTheReplayLosesAndRepeatsNothing) {
  Rng rng(test_seed() + 7);
  BreakDeck firsts(rng), seconds(rng);
  uint64_t during = 0;
  for (uint32_t trial = 0; trial < 6 * rounds() && !HasFailure(); ++trial) {
    const Break kind = firsts.next();
    Break then = seconds.next();
    while (!RailBreak::leave_a_rail(kind, then)) then = seconds.next();
    RailBreak::BreakPlan plans[] = {RailBreak::random(kind, rng), RailBreak::random(then, rng)};
    plans[1].rail = plans[0].rail == '0' ? '1' : '0';
    RailBreak first(plans[0]), second(plans[1]);
    const uint64_t before = repeated();
    break_under_load([&] { strike(first, rng); });
    // Before, while and after it is replayed.
    run_for(Nanos(rng.between(0, first.is_sudden() ? 60 : 700) * 1'000'000));
    strike(second, rng);
    const uint32_t left[] = {ab->outstanding(), ba->outstanding()};
    const uint64_t between = repeated() - before;
    first.mend();
    expect_moved_on();
    std::printf("trial %u: %s; then %s; outstanding %u and %u, and %lu writes sent again\n", trial,
                first.describe().c_str(), second.describe().c_str(), left[0], left[1], between);
    second.mend();
    heal_all();
    expect_all_rails(*a, *b, both());
    during += between > 0;
  }
  std::printf("%lu second breaks came when writes had been sent again\n", during);
  EXPECT_GT(during, 0u) << "no break hit a replay: the test shows nothing";
  expect_exact();
}

// The target's report about a broken path (PathDrained) and the request for it (PathClose) are
// datagrams. Half of them are lost and half of the others come twice, on every port, while RoCE is
// broken in other ways.
TEST_F(Failover, LostAndRepeatedReportsResolveEachBreakOnce) {
  constexpr const char* kPorts[] = {"a0", "b0", "a1", "b1"};
  for (const char* port : kPorts) set_control_netem(port, "loss 50% duplicate 50%");
  const auto messages = [&](const std::string& what, const std::string& message) {
    return protocol_counter(*a, what + message) + protocol_counter(*b, what + message);
  };
  Rng rng(test_seed() + 9);
  BreakDeck deck(rng);
  uint32_t both_ways = 0;
  for (uint32_t trial = 0; trial < 6 * rounds() && !HasFailure(); ++trial) {
    RailBreak::BreakPlan plan = RailBreak::random(deck.next(), rng);
    plan.has_bands = true;
    RailBreak one(plan);
    const auto left = break_under_load([&] { strike(one, rng); });
    EXPECT_TRUE(one.has_hit()) << one.describe();
    expect_moved_on();
    one.mend();
    expect_all_rails(*a, *b, both());
    std::printf("trial %u: %s; outstanding %u and %u\n", trial, one.describe().c_str(), left[0],
                left[1]);
    both_ways += left[0] > 0 && left[1] > 0;
  }
  ControlTraffic all;
  for (const char* port : kPorts) {
    const ControlTraffic one = control_traffic(port);
    all.passed += one.passed;
    all.lost += one.lost;
  }
  std::printf(
      "datagrams: %lu passed, %lu lost; PathClose sent %lu times and received %lu, PathDrained "
      "sent %lu times and received %lu\n",
      all.passed, all.lost, messages("sent ", "PathClose"), messages("received ", "PathClose"),
      messages("sent ", "PathDrained"), messages("received ", "PathDrained"));
  EXPECT_GT(all.lost, 0u);
  EXPECT_GT(both_ways, 0u);
  expect_exact();
}

// A write whose deadline expires while the NIC holds it takes down its path, on a rail that works:
// the sender closes it with everything in flight, and the target could still receive more.
TEST_F(Failover, ADeadlineEndsAGoodPathAndWhatElseWasOnItIsDeliveredOnce) {
  expect_log("does not drain");
  expect_log("memory is leaked");  // no proof within so short a drain, as designed
  const auto impatient = [](char host) {
    Config config = guest_config(host);
    config.drain_timeout = 20ms;
    auto engine = Engine::open(config);
    EXPECT_TRUE(engine) << engine.error().what;
    return *std::move(engine);
  };
  Engine here = impatient('a'), there = impatient('b');
  Stream out(here, there, test_seed()), back(there, here, test_seed() + 1);
  expect_service({&out, &back});
  // Slow but working, so that the NIC still holds a write when its deadline expires.
  for (const char* port : {"a0", "b0", "a1", "b1"}) set_netem(port, "delay 60ms");
  const ReplayCounts before = replay_counts(here);
  uint64_t late = 0;
  for (uint32_t trial = 0; trial < 10 * rounds() && !HasFailure(); ++trial) {
    Stream doomed(here, there, test_seed() + 2 + trial, {.slots = 8, .timeout = 20ms});
    EXPECT_TRUE(run({&out, &back, &doomed}, [&] { return doomed.failed() != 0; }));
    doomed.finish();
    late += doomed.failed();
    expect_service({&out, &back}, 16);
  }
  const uint64_t in_doubt = replay_counts(here).in_doubt - before.in_doubt;
  std::printf("%lu writes missed their deadline, %lu were in doubt\n", late, in_doubt);
  EXPECT_GT(in_doubt, 0u) << "no path went down with a write in flight";
  out.finish();
  back.finish();
  EXPECT_EQ(out.failed() + back.failed(), 0u) << out.first_failure() << back.first_failure();
}

TEST_F(Failover, LossAndReorderingDelayAndBreakNothing) {
  for (const char* impairment : {"loss 1%", "loss 5%", "delay 2ms 1ms reorder 25% 50%"}) {
    for (const char* port : {"a0", "b0", "a1", "b1"}) set_netem(port, impairment);
    const auto begin = std::chrono::steady_clock::now();
    expect_service(both(), 40);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::printf("%s: 40 writes each way in %.2f s\n", impairment, took.count());
    for (const char* port : {"a0", "b0", "a1", "b1"}) clear_netem(port);
  }
  expect_exact();
}

}  // namespace
}  // namespace fabric::test::failover_test

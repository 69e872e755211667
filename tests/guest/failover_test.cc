#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <thread>

#include <gtest/gtest.h>

#include "guest/links.h"
#include "guest/stream.h"
#include "support/log_guard.h"

// Rails that break in every way that a link can, while both hosts write to each other: every write
// is delivered and counted once, over the rail that is left.
//
// FABRIC_TEST_ROUNDS=N plays N times as many breaks.

namespace fabric::test {
namespace {

using namespace std::chrono_literals;

enum class Break : uint8_t { kOwnLink, kOtherLink, kDataLost, kOtherDataLost, kMangled };
constexpr uint32_t kBreaks = 5;

const char* words(Break kind) {
  switch (kind) {
    case Break::kOwnLink:
      return "link of A down";
    case Break::kOtherLink:
      return "link of B down";
    case Break::kDataLost:
      return "all lost that A sends";  // its acknowledgements too
    case Break::kOtherDataLost:
      return "all lost that B sends";
    case Break::kMangled:
      return "delayed, out of order, twice, then B's link down";
  }
  return "?";
}

class Failover : public testing::Test {
 protected:
  void SetUp() override {
    if (!in_guest()) GTEST_SKIP() << "not in the guest of tests/guest/boot.py";
    for (const char* part : {"a path broke", "a rail went down", "a rail came back", "stalled",
                             "a path could not be opened"}) {
      expect_log(part);
    }
    a.emplace(open_host('a'));
    b.emplace(open_host('b'));
    ab.emplace(*a, *b, test_seed());
    ba.emplace(*b, *a, test_seed() + 1);
    expect_service(both());
  }
  std::vector<Stream*> both() { return {&*ab, &*ba}; }

  /// Both go on writing until it is broken; what is in flight then, each way.
  std::array<uint32_t, 2> break_under_load(const std::function<void()>& broken) {
    std::atomic<bool> done = false;
    std::thread elsewhere([&] {
      broken();
      done = true;
    });
    run(both(), [&] { return done.load(); });
    elsewhere.join();
    return {ab->outstanding(), ba->outstanding()};
  }
  static void break_rail(Break kind, char rail) {
    const std::string here{'a', rail}, there{'b', rail};
    switch (kind) {
      case Break::kOwnLink:
        return set_link(here, false);
      case Break::kOtherLink:
        return set_link(there, false);
      case Break::kDataLost:
        return set_netem(here, "loss 100%");
      case Break::kOtherDataLost:
        return set_netem(there, "loss 100%");
      case Break::kMangled:
        set_netem(here, "delay 5ms 4ms reorder 50% duplicate 10%");
        set_netem(there, "delay 5ms 4ms reorder 50% duplicate 10%");
        std::this_thread::sleep_for(200ms);
        return set_link(there, false);
    }
  }
  void run_for(Nanos time) {
    const auto end = std::chrono::steady_clock::now() + time;
    run(both(), [&] { return std::chrono::steady_clock::now() > end; });
  }
  /// What was in flight when it broke was delivered, over the rail that is left.
  void expect_moved_on() { expect_service(both(), 48); }
  void expect_exact() {
    ab->finish();
    ba->finish();
    EXPECT_EQ(ab->failed() + ba->failed(), 0u) << ab->first_failure() << ba->first_failure();
  }

  Healed healed;
  std::optional<Engine> a, b;
  std::optional<Stream> ab, ba;  // go before their engines
};

TEST_F(Failover, WhatFliesWhenARailBreaksIsDeliveredOnceOverTheOther) {
  Rng rng(test_seed());
  uint32_t with_outstanding = 0;
  const uint32_t trials = 10 * rounds();
  for (uint32_t trial = 0; trial < trials && !HasFailure(); ++trial) {
    const auto kind = static_cast<Break>(trial < kBreaks ? trial : rng.below(kBreaks));
    const char rail = rng.chance(0.5) ? '0' : '1';
    run_for(Nanos(rng.between(1, 60) * 1'000'000));
    const auto left = break_under_load([&] { break_rail(kind, rail); });
    const auto begin = std::chrono::steady_clock::now();
    expect_moved_on();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::printf("trial %u: rail %c, %s; outstanding %u and %u; went on after %.2f s\n", trial, rail,
                words(kind), left[0], left[1], took.count());
    with_outstanding += left[0] + left[1] > 0;
    heal_all();
    expect_all_rails(*a, *b, both());
  }
  expect_exact();
  EXPECT_GT(with_outstanding, trials / 2) << "breaks without writes in flight show nothing";
}

TEST_F(Failover, ASecondBreakDuringTheReplayLosesAndRepeatsNothing) {
  Rng rng(test_seed() + 7);
  for (uint32_t trial = 0; trial < rounds() && !HasFailure(); ++trial) {
    const char first = rng.chance(0.5) ? '0' : '1', second = first == '0' ? '1' : '0';
    const Break kind = rng.chance(0.5) ? Break::kDataLost : Break::kOtherDataLost;
    break_under_load([&] { break_rail(kind, first); });
    run_for(Nanos(rng.between(20, 700) * 1'000'000));  // before, while and after it is replayed
    const std::string port{rng.chance(0.5) ? 'a' : 'b', second};
    const auto left = break_under_load([&] { set_netem(port, "loss 100%"); });
    clear_netem({'a', first});
    clear_netem({'b', first});
    expect_moved_on();
    std::printf("trial %u: rail %c, then %c; outstanding %u and %u at the second\n", trial, first,
                second, left[0], left[1]);
    heal_all();
    expect_all_rails(*a, *b, both());
  }
  expect_exact();
}

TEST_F(Failover, LossAndReorderingDelayAndBreakNothing) {
  for (const char* trouble : {"loss 1%", "loss 5%", "delay 2ms 1ms reorder 25% 50%"}) {
    for (const char* port : {"a0", "b0", "a1", "b1"}) set_netem(port, trouble);
    const auto begin = std::chrono::steady_clock::now();
    expect_service(both(), 40);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::printf("%s: 40 writes each way in %.2f s\n", trouble, took.count());
    for (const char* port : {"a0", "b0", "a1", "b1"}) clear_netem(port);
  }
  expect_exact();
}

}  // namespace
}  // namespace fabric::test

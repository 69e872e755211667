#include "fake_verbs/fake_nic_setup.h"

// Teardown of a path, step by step, with everything that a NIC may still do at each step. Every
// write is counted once in all cases (docs/design/0013-verbs.md).

namespace fabric::test::teardown_test {
namespace {

using End = FakeNics::End;

/// On NICs that delete the completions of a queue pair with it, and on those that keep them.
class VerbsTeardown : public testing::TestWithParam<bool> {
 protected:
  static constexpr uint32_t kWrites = 12;

  VerbsTeardown() { setup.expect_fault_logs(); }

  /// Both paths are connected, and have carried a few writes.
  void warm_up() {
    CheckedWrites first(setup[0], setup[1], {.count = 8, .bytes = 64});
    first.submit();
    ASSERT_TRUE(setup.until([&] { return first.ended(); }));
    first.expect_delivered();
    setup.turn(50);
  }
  /// They are in flight, and none has landed.
  void launch(CheckedWrites& writes) {
    setup.nics().hold_packets(1, FakeNics::kAny, true);
    writes.submit();
    for (uint32_t turns = 0; turns < 1000 && in_flight() < kWrites; ++turns) setup.turn(1);
    ASSERT_EQ(in_flight(), kWrites);
    ASSERT_EQ(writes.landed(), 0u);
  }
  uint32_t in_flight() { return setup.nics().in_flight(0, 0); }
  void expect_once(CheckedWrites& writes) {
    EXPECT_TRUE(setup.until([&] { return writes.ended(); })) << setup[0].dump();
    setup.turn(500);
    writes.expect_delivered();
    setup.expect_service();
  }

  FakeNicSetup setup{{.threads = false, .nics = {.keeps_completions = GetParam()}}};
};

INSTANTIATE_TEST_SUITE_P(FakeNics, VerbsTeardown, testing::Bool(),
                         [](const auto& nic) { return nic.param ? "keep" : "delete"; });

// The packets land while the target requests the error state: after its decision, before the NIC
// has stopped. A count that is reported before all receives have completed misses them.
TEST_P(VerbsTeardown, WhatLandsWithTheErrorStateIsCountedOnce) {
  warm_up();
  CheckedWrites writes(setup[0], setup[1], {.count = kWrites, .bytes = 1000});
  launch(writes);
  setup.nics().land_before_error_state(1, 0, true);
  ASSERT_EQ(setup.nics().raise_qp_events(1, 0, End::kTarget, IBV_EVENT_QP_FATAL), 1u);
  for (uint32_t turns = 0; turns < 1000 && in_flight() != 0; ++turns) setup.turn(1);
  ASSERT_EQ(in_flight(), 0u) << "the error state was never requested";
  setup.nics().hold_packets(1, FakeNics::kAny, false);
  expect_once(writes);
}

// The error state is reached and the completion queue is empty; only now the packets land, and the
// flushes follow. Until a receive is flushed, nothing proves that no more packets land.
TEST_P(VerbsTeardown, WhatLandsAfterTheErrorStateIsCountedOnce) {
  warm_up();
  CheckedWrites writes(setup[0], setup[1], {.count = kWrites, .bytes = 1000});
  launch(writes);
  setup.nics().hold_flushes(1, 0, true);
  const uint64_t asked = setup.nics().calls(FakeNics::Call::kToError, 1);
  ASSERT_EQ(setup.nics().raise_qp_events(1, 0, End::kTarget, IBV_EVENT_QP_FATAL), 1u);
  const auto stopped = [&] { return setup.nics().calls(FakeNics::Call::kToError, 1) > asked; };
  for (uint32_t turns = 0; turns < 1000 && !stopped(); ++turns) setup.turn(1);
  ASSERT_TRUE(stopped());
  setup.turn(20);  // its job has returned: the error state is reached
  EXPECT_EQ(setup.nics().deliver(0, 0, kWrites), kWrites);
  EXPECT_EQ(setup.nics().landed_late(), kWrites);
  setup.turn(20);
  setup.nics().hold_flushes(1, 0, false);
  setup.nics().hold_packets(1, FakeNics::kAny, false);
  expect_once(writes);
}

// Half of them land before the error state, half after it.
TEST_P(VerbsTeardown, WhatLandsOnBothSidesOfTheErrorStateIsCountedOnce) {
  warm_up();
  CheckedWrites writes(setup[0], setup[1], {.count = kWrites, .bytes = 1000});
  launch(writes);
  setup.nics().hold_flushes(1, 0, true);
  EXPECT_EQ(setup.nics().deliver(0, 0, kWrites / 2), kWrites / 2);
  ASSERT_EQ(setup.nics().break_path(0, 1, 0, End::kTarget), 1u);
  ASSERT_EQ(setup.nics().raise_qp_events(1, 0, End::kTarget, IBV_EVENT_QP_FATAL), 0u)
      << "the path is already broken";
  setup.turn(20);
  EXPECT_EQ(setup.nics().deliver(0, 0, kWrites), kWrites / 2);
  EXPECT_EQ(setup.nics().landed_late(), kWrites / 2);
  setup.nics().hold_flushes(1, 0, false);
  setup.nics().hold_packets(1, FakeNics::kAny, false);
  expect_once(writes);
}

// A NIC without completions for unsignalled requests, even when they fail. The first error that
// completes is then not the first request that was lost.
TEST_P(VerbsTeardown, AnErrorDoesNotCoverRequestsBeforeIt) {
  warm_up();
  CheckedWrites writes(setup[0], setup[1], {.count = kWrites, .bytes = 1000});
  setup.nics().set_silent_when_unsignalled(true);
  launch(writes);
  setup.nics().lose(0, 1, FakeNics::kData, true);
  setup.nics().hold_packets(1, FakeNics::kAny, false);
  setup.turn(1);
  ASSERT_EQ(in_flight(), 0u);
  ASSERT_EQ(setup.nics().break_path(0, 1, 0, End::kSender), 1u);
  setup.turn(5);
  setup.nics().lose(0, 1, FakeNics::kData, false);
  expect_once(writes);
}

// Everything landed, and the acknowledgements are lost: only the target knows.
TEST_P(VerbsTeardown, WhatWasDeliveredWithoutAnAckIsNotSentAgain) {
  warm_up();
  CheckedWrites writes(setup[0], setup[1], {.count = kWrites, .bytes = 1000});
  launch(writes);
  setup.nics().lose(1, 0, FakeNics::kAcks, true);
  EXPECT_EQ(setup.nics().deliver(0, 0, kWrites), kWrites);
  setup.turn(5);
  const uint64_t landed = setup.nics().landed(1);
  ASSERT_EQ(setup.nics().break_path(0, 1, 0, End::kSender), 1u);
  setup.nics().hold_packets(1, FakeNics::kAny, false);
  EXPECT_TRUE(setup.until([&] { return writes.ended(); }));
  EXPECT_EQ(setup.nics().landed(1), landed) << "a delivered write was sent again";
  setup.nics().lose(1, 0, FakeNics::kAcks, false);
  expect_once(writes);
}

// The flushes never come: the drain is abandoned, the target cannot report a count, and writes in
// flight complete as unknown.
TEST_P(VerbsTeardown, ADrainThatDoesNotEndIsAbandoned) {
  warm_up();
  setup.nics().allow_undrained();
  CheckedWrites writes(setup[0], setup[1], {.count = kWrites, .bytes = 1000});
  launch(writes);
  setup.nics().hold_flushes(1, 0, true);
  EXPECT_EQ(setup.nics().deliver(0, 0, kWrites / 2), kWrites / 2);
  setup.nics().lose(1, 0, FakeNics::kAcks, true);
  ASSERT_EQ(setup.nics().raise_qp_events(1, 0, End::kTarget, IBV_EVENT_QP_FATAL), 1u);
  EXPECT_TRUE(setup.until([&] { return setup.fact(1, 0, "drains abandoned") == "1"; }));
  setup.nics().hold_packets(1, FakeNics::kAny, false);
  EXPECT_TRUE(setup.until([&] { return writes.ended(); })) << setup[0].dump();
  writes.expect_true();
  EXPECT_EQ(writes.landed(), kWrites / 2) << "only polled immediates count";
  setup.nics().lose(1, 0, FakeNics::kAcks, false);
  setup.nics().hold_flushes(1, 0, false);
  setup.expect_service();
}

// No receive is left when the path breaks: all completed, none with an error. One more has to fail.
TEST(VerbsDrain, ASumWithoutAnErrorProvesNothing) {
  constexpr uint32_t kReceives = 4;
  FakeNicSetup setup({.threads = false, .network = {.receive_depth = kReceives}});
  setup.expect_fault_logs();
  CheckedWrites first(setup[0], setup[1], {.count = 1});
  first.submit();
  ASSERT_TRUE(setup.until([&] { return first.ended(); }));
  setup.turn(50);
  // The target gets no turn, so that its receives are used up and not filled again.
  setup.nics().hold_packets(1, 0, true);
  CheckedWrites writes(setup[0], setup[1], {.count = 2 * kReceives, .bytes = 1000});
  writes.submit();
  for (uint32_t turns = 0; turns < 1000 && setup.nics().in_flight(0, 0) < 2 * kReceives;) {
    setup.turn(1);
    ++turns;
  }
  setup.nics().fail({.call = FakeNics::Call::kPostReceive, .host = 1, .times = 1});
  setup.nics().hold_flushes(1, 0, true);
  EXPECT_EQ(setup.nics().deliver(0, 0, kReceives + 1), kReceives + 1);
  setup.nics().break_path(0, 1, 0, End::kTarget);
  setup.turn(30);
  EXPECT_GE(setup.nics().calls(FakeNics::Call::kToError, 1), 2u)
      << "the error state was requested only once";
  setup.nics().hold_flushes(1, 0, false);
  setup.nics().hold_packets(1, 0, false);
  EXPECT_TRUE(setup.until([&] { return writes.ended(); })) << setup[0].dump();
  writes.expect_delivered();
  EXPECT_EQ(setup.fact(1, 0, "drains abandoned"), "0");
  setup.expect_service();
}

}  // namespace
}  // namespace fabric::test::teardown_test

#include "fake_verbs/fake_nic_setup.h"

// Asynchronous events: ports, completion queues that overran, dead devices.

namespace fabric::test::events_test {
namespace {

using Call = FakeNics::Call;
using End = FakeNics::End;

/// Puts writes on the way, and something happens in the middle of them.
class VerbsEvent : public testing::Test {
 protected:
  void expect_once(FakeNicSetup& setup, const std::function<void()>& happens,
                   const std::function<void()>& over = {}) {
    setup.expect_fault_logs();
    CheckedWrites there(setup[0], setup[1], {.count = 200, .bytes = 6000});
    CheckedWrites back(setup[1], setup[0], {.count = 200, .bytes = 6000});
    there.submit(0, 100);
    back.submit(0, 100);
    happens();
    there.submit(100, 100);
    back.submit(100, 100);
    if (over) over();
    EXPECT_TRUE(setup.until([&] { return there.ended() && back.ended(); })) << setup[0].dump();
    there.expect_delivered();
    back.expect_delivered();
    setup.expect_service();
  }
};

// It is the only port: writes that were not posted fail at once, and none is left in doubt.
TEST_F(VerbsEvent, APortThatGoesDownAndComesBack) {
  FakeNicSetup setup;
  setup.expect_fault_logs();
  CheckedWrites there(setup[0], setup[1], {.count = 200, .bytes = 6000});
  CheckedWrites back(setup[1], setup[0], {.count = 200, .bytes = 6000});
  there.submit(0, 100);
  back.submit();
  setup.nics().port(0, 0, false);
  there.submit(100, 100);
  EXPECT_TRUE(setup.until([&] { return !setup.rail_up(0, 0); }));
  setup.nics().port(0, 0, true);
  EXPECT_TRUE(setup.until([&] { return there.ended() && back.ended(); })) << setup[0].dump();
  there.expect_true();
  EXPECT_EQ(there.unknown(), 0u);
  EXPECT_EQ(there.not_delivered(), there.with(Errc::kRailLost));
  back.expect_delivered();
  EXPECT_TRUE(setup.until([&] { return setup.rail_up(0, 0); }));
  setup.expect_service();
}

TEST_F(VerbsEvent, APortThatGoesDownForGoodHasAnotherBesideIt) {
  FakeNicSetup setup({.rails = 2});
  expect_once(setup, [&] { setup.nics().port(1, 0, false); });
  EXPECT_TRUE(setup.until([&] { return !setup.rail_up(1, 0); }));
  EXPECT_TRUE(setup.rail_up(0, 0)) << "the other host's port must stay up";
}

// There is no event: the sender's NIC notices when its retries are used up.
TEST_F(VerbsEvent, APortThatIsSilentlyDead) {
  FakeNicSetup setup({.rails = 2, .network = {.timeout_code = 10, .retry_count = 3}});
  expect_once(
      setup, [&] { setup.nics().port(1, 0, false, false); },
      [&] {
        EXPECT_TRUE(setup.until([&] { return setup.nics().flushed() != 0; }));
        setup.nics().port(1, 0, true, false);
      });
}

TEST_F(VerbsEvent, APortThatIsDownAtTheBeginning) {
  FakeNicSetup setup({.hosts = 3, .rails = 2});
  setup.expect_fault_logs();
  setup.close(2);
  setup.nics().port(2, 0, false);
  auto late = setup.open(2);
  ASSERT_TRUE(late) << late.error().what;
  EXPECT_TRUE(setup.until([&] { return !late->rail_stats()[0].up; }));
  CheckedWrites writes(setup[0], *late);
  writes.submit();
  EXPECT_TRUE(setup.until([&] { return writes.ended(); }));
  writes.expect_delivered();
  setup.nics().port(2, 0, true);
  EXPECT_TRUE(setup.until([&] { return late->rail_stats()[0].up; }));
}

// Repeated events, and events that concern no path.
TEST_F(VerbsEvent, EventsThatChangeNothing) {
  FakeNicSetup setup;
  CheckedWrites first(setup[0], setup[1]);
  first.submit();
  ASSERT_TRUE(setup.until([&] { return first.ended(); }));
  for (const ibv_event_type type :
       {IBV_EVENT_GID_CHANGE, IBV_EVENT_LID_CHANGE, IBV_EVENT_PKEY_CHANGE, IBV_EVENT_SM_CHANGE,
        IBV_EVENT_CLIENT_REREGISTER, IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ACTIVE}) {
    setup.nics().raise_event(0, 0, type);
    setup.nics().raise_event(1, 0, type);
  }
  for (const End end : {End::kSender, End::kTarget}) {
    setup.nics().raise_qp_events(0, 0, end, IBV_EVENT_COMM_EST);
    setup.nics().raise_qp_events(1, 0, end, IBV_EVENT_SQ_DRAINED);
  }
  setup.expect_service();
  EXPECT_EQ(setup.nics().calls(Call::kToError), 0u) << "a path was closed without a reason";
}

TEST_F(VerbsEvent, QueuePairsReportedAsBroken) {
  for (const ibv_event_type type :
       {IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR}) {
    FakeNicSetup setup;
    expect_once(setup, [&] {
      setup.nics().raise_qp_events(0, 0, End::kSender, type);
      setup.nics().raise_qp_events(1, 0, End::kTarget, type);
    });
  }
}

// More events than one poll reads: the rest are read later.
TEST_F(VerbsEvent, ManyEventsAtOnce) {
  FakeNicSetup setup;
  setup.expect_fault_logs();
  for (uint32_t i = 0; i < 300; ++i) setup.nics().raise_event(0, 0, IBV_EVENT_SM_CHANGE);
  setup.nics().port(0, 0, false);
  EXPECT_TRUE(setup.until([&] { return !setup.rail_up(0, 0); }));
  setup.nics().port(0, 0, true);
  EXPECT_TRUE(setup.until([&] { return setup.rail_up(0, 0); }));
  setup.expect_service();
}

// Completions are lost, so writes in flight complete as unknown; the rest uses a queue that works.
void overruns(uint32_t host) {
  FakeNicSetup setup;
  setup.expect_fault_logs();
  {
    CheckedWrites first(setup[0], setup[1]);
    first.submit();
    ASSERT_TRUE(setup.until([&] { return first.ended(); }));
    CheckedWrites there(setup[0], setup[1], {.count = 200, .bytes = 6000});
    // Acknowledgements are lost: a write that was acknowledged must not lose its completion here,
    // because then neither side would know that it was delivered.
    setup.nics().lose(1, 0, FakeNics::kAcks, true);
    there.submit(0, 100);
    setup.nics().overrun(host, 0);
    setup.nics().lose(1, 0, FakeNics::kAcks, false);
    there.submit(100, 100);
    EXPECT_TRUE(setup.until([&] { return there.ended(); })) << setup[0].dump();
    there.expect_true();
    EXPECT_EQ(there.not_delivered(), 0u);
    if (host == 0) {
      EXPECT_EQ(there.unknown(), 0u) << "the target's drain report covers all of them";
    }
  }
  setup.expect_service();
  setup.expect_service();
}

TEST_F(VerbsEvent, ACompletionQueueOfTheTargetThatOverran) { overruns(1); }
TEST_F(VerbsEvent, ACompletionQueueOfTheSenderThatOverran) { overruns(0); }

// A dead device moves nothing, and every call fails except those that release objects.
TEST_F(VerbsEvent, ADeadDeviceHasAnotherBesideIt) {
  for (const uint32_t host : {0, 1}) {
    FakeNicSetup setup({.rails = 2});
    setup.expect_fault_logs();
    CheckedWrites first(setup[0], setup[1], {.count = 64});
    first.submit();
    ASSERT_TRUE(setup.until([&] { return first.ended(); }));
    CheckedWrites there(setup[0], setup[1], {.count = 200, .bytes = 6000});
    CheckedWrites later(setup[0], setup[1]), back(setup[1], setup[0]);
    setup.nics().lose(1, 0, FakeNics::kAcks, true);  // as above
    there.submit(0, 100);
    setup.nics().fatal(host, 0);
    setup.nics().lose(1, 0, FakeNics::kAcks, false);
    there.submit(100, 100);
    EXPECT_TRUE(setup.until([&] { return there.ended(); })) << setup[0].dump();
    there.expect_true();
    EXPECT_EQ(there.not_delivered(), 0u);
    EXPECT_TRUE(setup.until([&] { return !setup.rail_up(host, 0); }));
    // It stays down, whatever events follow.
    setup.nics().raise_event(host, 0, IBV_EVENT_PORT_ACTIVE);
    later.submit();
    back.submit();
    EXPECT_TRUE(setup.until([&] { return later.ended() && back.ended(); })) << setup[0].dump();
    later.expect_delivered();
    back.expect_delivered();
    EXPECT_FALSE(setup.rail_up(host, 0));
    setup.expect_service();  // with memory registered now, on the other device
  }
}

// It was the only one: everything completes by its deadline, and so does close().
TEST_F(VerbsEvent, ADeadDeviceThatWasTheOnlyOne) {
  FakeNicSetup setup({.config = {.drain_timeout = 1s}});
  setup.expect_fault_logs();
  CheckedWrites there(setup[0], setup[1], {.count = 100, .bytes = 6000, .timeout = 1s});
  setup.nics().lose(1, 0, FakeNics::kAcks, true);  // as above
  there.submit();
  setup.nics().fatal(1, 0);
  EXPECT_TRUE(setup.until([&] { return there.ended(); })) << setup[0].dump();
  there.expect_true();
  for (const uint32_t host : {0, 1}) EXPECT_TRUE(setup[host].close());
}

}  // namespace
}  // namespace fabric::test::events_test

#include <algorithm>

#include "fake_verbs/fake_nic_setup.h"

// Ports that change while they are open, and neighbours that the kernel cannot resolve.

namespace fabric::test::ports_test {
namespace {

using Call = FakeNics::Call;
using End = FakeNics::End;

void warm_up(FakeNicSetup& setup, uint32_t to) {
  CheckedWrites first(setup[0], setup[to], {.count = 64, .bytes = 64});
  first.submit();
  ASSERT_TRUE(setup.until([&] { return first.ended(); }));
  first.expect_delivered();
}

// The administrator removed the address and added it again. Open paths go on; the next one uses the
// new index, because the old entry is empty.
TEST(VerbsPort, AnAddressThatMovesIsUsedWhereItIsNow) {
  FakeNicSetup setup;
  setup.expect_fault_logs();
  warm_up(setup, 1);
  for (const uint32_t host : {0, 1}) setup.nics().move_gid(host, 0, 5);
  setup.expect_service();
  for (const uint32_t host : {0, 1}) {
    EXPECT_TRUE(setup.until([&] { return setup.fact(host, 0, "gid").starts_with("5: "); }))
        << setup.fact(host, 0, "gid");
  }
  EXPECT_EQ(setup.nics().break_path(0, 1, 0, End::kSender), 1u);
  setup.expect_service();
  const auto routes = setup.nics().qp_settings(0, 0);
  EXPECT_TRUE(std::ranges::any_of(routes, [](const auto& r) { return r.gid_index == 5; }));
}

// The kernel takes long to resolve a neighbour. At the same time a path to another host breaks on
// the same rail: it is drained at once, and its writes are delivered by the other rail.
TEST(VerbsNeighbour, AnUnresolvedOneDelaysNoTeardownOfAnotherPath) {
  FakeNicSetup setup({.hosts = 3, .rails = 2});
  setup.expect_fault_logs();
  warm_up(setup, 1);
  warm_up(setup, 2);
  setup.nics().hide_neighbour(2, 0, true);
  EXPECT_EQ(setup.nics().break_path(0, 2, 0, End::kTarget), 1u);
  EXPECT_TRUE(setup.until([&] { return setup.nics().neighbour_searches() > 0; }))
      << setup[0].dump();
  CheckedWrites writes(setup[0], setup[1], {.count = 200, .bytes = 6000});
  writes.submit(0, 100);
  EXPECT_EQ(setup.nics().break_path(0, 1, 0, End::kSender), 1u);
  writes.submit(100, 100);
  EXPECT_TRUE(setup.until([&] { return writes.ended(); })) << setup[0].dump();
  EXPECT_GT(setup.nics().neighbour_searches(), 0u)
      << "the address was resolved before the fault: the test shows nothing";
  writes.expect_delivered();
  setup.nics().hide_neighbour(2, 0, false);
  setup.expect_service(0, 2);
}

// An address that did not resolve has a queue of its own: a path to another host is connected.
TEST(VerbsNeighbour, AnUnresolvedOneDelaysNoOtherConnection) {
  FakeNicSetup setup({.hosts = 3, .rails = 2});
  setup.expect_fault_logs();
  warm_up(setup, 1);
  warm_up(setup, 2);
  const auto searched = [&] { return setup.nics().neighbour_searches() > 0; };
  setup.nics().hide_neighbour(2, 0, true);
  EXPECT_EQ(setup.nics().break_path(0, 2, 0, End::kTarget), 1u);
  EXPECT_TRUE(setup.until(searched)) << setup[0].dump();
  setup.nics().time_out_neighbour_searches();
  EXPECT_TRUE(setup.until(searched)) << setup[0].dump();
  const uint64_t connected = setup.nics().calls(Call::kToSend, 0);
  EXPECT_EQ(setup.nics().break_path(0, 1, 0, End::kTarget), 1u);
  CheckedWrites writes(setup[0], setup[1]);
  writes.submit();
  EXPECT_TRUE(setup.until([&] { return setup.nics().calls(Call::kToSend, 0) > connected; }))
      << setup[0].dump();
  EXPECT_TRUE(searched()) << "the address was resolved before the fault: the test shows nothing";
  EXPECT_TRUE(setup.until([&] { return writes.ended(); }));
  writes.expect_delivered();
  setup.nics().hide_neighbour(2, 0, false);
  setup.expect_service(0, 2);
}

// The first connection to one host blocks, and the first to another waits for it: that one is soon
// abandoned, and the other rail takes over.
TEST(VerbsNeighbour, AnUnresolvedOneDelaysAFirstConnectionOnlyBriefly) {
  FakeNicSetup setup({.hosts = 3, .rails = 2});
  setup.expect_fault_logs();
  setup.nics().hide_neighbour(2, 0, true);
  CheckedWrites lost(setup[0], setup[2], {.count = 4, .bytes = 100});
  lost.submit();
  EXPECT_TRUE(setup.until([&] { return setup.nics().neighbour_searches() > 0; }));
  CheckedWrites good(setup[0], setup[1], {.count = 32, .bytes = 1000});
  good.submit();
  EXPECT_TRUE(setup.until([&] { return good.ended(); })) << setup[0].dump();
  EXPECT_GT(setup.nics().neighbour_searches(), 0u)
      << "the address was resolved before the fault: the test shows nothing";
  good.expect_delivered();
  setup.nics().hide_neighbour(2, 0, false);
  EXPECT_TRUE(setup.until([&] { return lost.ended(); })) << setup[0].dump();
  lost.expect_delivered();
}

// A path is torn down while the kernel resolves its far end: the teardown waits for that, because
// no other call may use a queue pair that is being connected.
TEST(VerbsNeighbour, ATeardownDuringAConnectWaitsForIt) {
  FakeNicSetup setup({.hosts = 2, .rails = 2});
  setup.expect_fault_logs();
  warm_up(setup, 1);
  setup.nics().hide_neighbour(1, 0, true);
  EXPECT_EQ(setup.nics().break_path(0, 1, 0, End::kTarget), 1u);
  EXPECT_TRUE(setup.until([&] { return setup.nics().neighbour_searches() > 0; }))
      << setup[0].dump();
  setup.nics().port(0, 0, false);  // the core closes the paths of the rail
  EXPECT_TRUE(setup.until([&] { return !setup.rail_up(0, 0); }));
  setup.expect_service();
  setup.nics().hide_neighbour(1, 0, false);
  setup.nics().port(0, 0, true);
  EXPECT_TRUE(setup.until([&] { return setup.rail_up(0, 0); }));
  setup.expect_service();
}

}  // namespace
}  // namespace fabric::test::ports_test

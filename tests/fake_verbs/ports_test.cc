#include <algorithm>

#include "card/stage.h"

// Ports that change while they are open, and neighbours whom the kernel does not find.

namespace fabric::test {
namespace {

using Call = SoftCards::Call;
using End = SoftCards::End;

void warm_up(Stage& stage, uint32_t to) {
  Writes first(stage[0], stage[to], {.count = 64, .bytes = 64});
  first.submit();
  ASSERT_TRUE(stage.until([&] { return first.ended(); }));
  first.expect_delivered();
}

// The administrator has taken the address away and given it back. Paths that stand go on; the next
// one is made with the new place, because nothing is at the old one.
TEST(CardPort, AnAddressThatMovesIsUsedWhereItIsNow) {
  Stage stage;
  stage.expect_trouble();
  warm_up(stage, 1);
  for (const uint32_t host : {0, 1}) stage.cards().move_gid(host, 0, 5);
  stage.expect_service();
  for (const uint32_t host : {0, 1}) {
    EXPECT_TRUE(stage.until([&] { return stage.fact(host, 0, "gid").starts_with("5: "); }))
        << stage.fact(host, 0, "gid");
  }
  EXPECT_EQ(stage.cards().break_path(0, 1, 0, End::kSender), 1u);
  stage.expect_service();
  const auto routes = stage.cards().routes(0, 0);
  EXPECT_TRUE(std::ranges::any_of(routes, [](const auto& r) { return r.gid_index == 5; }));
}

// To look for a neighbour takes the kernel long. Meanwhile a path to somebody else breaks on the
// same rail: it is drained, what was on it arrives by the other rail, and nobody waits.
TEST(CardNeighbour, WhoIsGoneHoldsUpNoEndOfAnotherPath) {
  Stage stage({.hosts = 3, .rails = 2});
  stage.expect_trouble();
  warm_up(stage, 1);
  warm_up(stage, 2);
  stage.cards().hide(2, 0, true);
  EXPECT_EQ(stage.cards().break_path(0, 2, 0, End::kTarget), 1u);
  EXPECT_TRUE(stage.until([&] { return stage.cards().searches() > 0; })) << stage[0].dump();
  Writes writes(stage[0], stage[1], {.count = 200, .bytes = 6000});
  writes.submit(0, 100);
  EXPECT_EQ(stage.cards().break_path(0, 1, 0, End::kSender), 1u);
  writes.submit(100, 100);
  EXPECT_TRUE(stage.until([&] { return writes.ended(); })) << stage[0].dump();
  EXPECT_GT(stage.cards().searches(), 0u) << "it is over, and shows nothing";
  writes.expect_delivered();
  stage.cards().hide(2, 0, false);
  stage.expect_service(0, 2);
}

// Whom the last attempt did not find is looked for apart: a path to somebody else is connected.
TEST(CardNeighbour, WhoWasNotFoundHoldsUpNoOtherConnection) {
  Stage stage({.hosts = 3, .rails = 2});
  stage.expect_trouble();
  warm_up(stage, 1);
  warm_up(stage, 2);
  const auto searched = [&] { return stage.cards().searches() > 0; };
  stage.cards().hide(2, 0, true);
  EXPECT_EQ(stage.cards().break_path(0, 2, 0, End::kTarget), 1u);
  EXPECT_TRUE(stage.until(searched)) << stage[0].dump();
  stage.cards().hide(2, 0, false);  // there is none
  EXPECT_TRUE(stage.until([&] { return !searched(); }));
  stage.cards().hide(2, 0, true);
  EXPECT_TRUE(stage.until(searched)) << stage[0].dump();
  const uint64_t connected = stage.cards().calls(Call::kToSend, 0);
  EXPECT_EQ(stage.cards().break_path(0, 1, 0, End::kTarget), 1u);
  Writes writes(stage[0], stage[1]);
  writes.submit();
  EXPECT_TRUE(stage.until([&] { return stage.cards().calls(Call::kToSend, 0) > connected; }))
      << stage[0].dump();
  EXPECT_TRUE(searched()) << "it is over, and shows nothing";
  EXPECT_TRUE(stage.until([&] { return writes.ended(); }));
  writes.expect_delivered();
  stage.cards().hide(2, 0, false);
  stage.expect_service(0, 2);
}

// The first connection of all to one host is looked for, and the first to another waits for that:
// it is given up soon, and the other rail serves.
TEST(CardNeighbour, WhoIsGoneHoldsUpNoFirstContactForLong) {
  Stage stage({.hosts = 3, .rails = 2});
  stage.expect_trouble();
  stage.cards().hide(2, 0, true);
  Writes lost(stage[0], stage[2], {.count = 4, .bytes = 100});
  lost.submit();
  EXPECT_TRUE(stage.until([&] { return stage.cards().searches() > 0; }));
  Writes good(stage[0], stage[1], {.count = 32, .bytes = 1000});
  good.submit();
  EXPECT_TRUE(stage.until([&] { return good.ended(); })) << stage[0].dump();
  EXPECT_GT(stage.cards().searches(), 0u) << "it is over, and shows nothing";
  good.expect_delivered();
  stage.cards().hide(2, 0, false);
  EXPECT_TRUE(stage.until([&] { return lost.ended(); })) << stage[0].dump();
  lost.expect_delivered();
}

// A path that ends while the kernel looks for its far end ends behind that, and not before: no
// other call may touch a queue pair that is being connected.
TEST(CardNeighbour, APathThatEndsWhileItIsConnectedEndsBehindThat) {
  Stage stage({.hosts = 2, .rails = 2});
  stage.expect_trouble();
  warm_up(stage, 1);
  stage.cards().hide(1, 0, true);
  EXPECT_EQ(stage.cards().break_path(0, 1, 0, End::kTarget), 1u);
  EXPECT_TRUE(stage.until([&] { return stage.cards().searches() > 0; })) << stage[0].dump();
  stage.cards().port(0, 0, false);  // the core closes the paths of the rail
  EXPECT_TRUE(stage.until([&] { return !stage.rail_up(0, 0); }));
  stage.expect_service();
  stage.cards().hide(1, 0, false);
  stage.cards().port(0, 0, true);
  EXPECT_TRUE(stage.until([&] { return stage.rail_up(0, 0); }));
  stage.expect_service();
}

}  // namespace
}  // namespace fabric::test

#include <gtest/gtest.h>

#include <fabric/fabric.h>
#include <fabric/sim.h>

#include "harness/host.h"
#include "scenario/pairs.h"

// Grants that an engine did not make: it revokes nothing by their ids, and proves nothing.

namespace fabric::test::grant_input_test {
namespace {

// Both have made their first grant, so nothing but the engine tells their ids apart.
TEST(GrantInput, ThatIsNoneOrOfAnotherEngine) {
  ConnectedPair pair(test_config(), 4096);
  Engine &a = pair.a.engine, &b = pair.b.engine;
  EXPECT_EQ(a.submit(Revoke{}).error().code, Errc::kInvalidArgument);
  EXPECT_STREQ(a.submit(Revoke{}).error().what, "grant");
  const auto code_of = [](Engine& engine, GrantId grant) {
    const Batch ends = *engine.make_batch();
    EXPECT_TRUE(engine.submit(Revoke{.grant = grant, .batch = ends}));
    const auto result = engine.wait(ends, 5s);
    return result ? Errc::kOk : result.error().code;
  };
  const GrantId of_a = pair.a.memory.grant(pair.remote.peer)->id;
  const GrantId of_b = pair.b.memory.grant(b.peers().at(0))->id;
  EXPECT_EQ(code_of(b, of_a), Errc::kNotFound) << "live, of another engine";
  EXPECT_EQ(code_of(a, of_b), Errc::kNotFound) << "live, of another engine";
  EXPECT_EQ(code_of(a, of_a), Errc::kOk);
  EXPECT_EQ(code_of(a, of_a), Errc::kOk) << "it has ended";
  EXPECT_EQ(code_of(b, of_b), Errc::kOk);
  EXPECT_EQ(code_of(b, of_a), Errc::kNotFound) << "ended, of another engine";
  EXPECT_EQ(code_of(a, GrantId(of_a.slot, of_a.generation + 1)), Errc::kNotFound) << "not yet made";
  EXPECT_EQ(code_of(a, GrantId(of_a.slot + 1, of_a.generation)), Errc::kNotFound);
  EXPECT_EQ(code_of(a, GrantId(of_a.slot, 1)), Errc::kNotFound);
  EXPECT_EQ(code_of(a, GrantId(UINT32_MAX, 1)), Errc::kNotFound);
}

}  // namespace
}  // namespace fabric::test::grant_input_test

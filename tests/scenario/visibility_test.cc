#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "harness/host.h"
#include "support/log_guard.h"

// P6: only a write's own count proves that its bytes are visible at the target. Neither the
// sender's completion does, nor a message that the sender sends after it.

namespace fabric::test::visibility_test {
namespace {

constexpr uint64_t kSize = 64 << 10;

class Visibility : public testing::TestWithParam<bool> {
 protected:
  sim::NicModel model() const { return GetParam() ? rc_model() : srd_model(); }
  /// Returns when the write is acknowledged; its bytes become visible 5 ms later.
  void write_with_late_bytes() {
    fill(from.bytes(), 7);
    ASSERT_TRUE(world.at(world.now(), sim::Fault::late_bytes(1, 5ms)));
    Batch batch = *from.engine.make_batch();
    ASSERT_TRUE(from.engine.submit(Write{.source = from.memory.at(0),
                                         .target = remote.at(0),
                                         .size_bytes = kSize,
                                         .imm = counter.key(),
                                         .batch = batch}));
    ASSERT_TRUE(from.engine.wait(batch, 1s));
    EXPECT_EQ(batch.delivered(), 1u);
  }
  /// The memory is used for something else.
  void expect_nothing_lands() {
    std::ranges::fill(to.bytes(), std::byte{1});
    const std::vector<std::byte> own(to.bytes().begin(), to.bytes().end());
    world.run_for(1s);
    EXPECT_TRUE(std::ranges::equal(own, to.bytes())) << "a byte landed after the proof";
  }

  sim::World world{sim::WorldOptions{.seed = test_seed()}};
  Host from = open_host(world, world.add_node(2, model()), kSize);
  Host to = open_host(world, world.add_node(2, model()), kSize);
  RemoteHost remote = connect(from, to);
  Counter counter = *to.engine.make_counter();
};

INSTANTIATE_TEST_SUITE_P(Orders, Visibility, testing::Bool(),
                         [](const auto& param) { return param.param ? "Ordered" : "Unordered"; });

TEST_P(Visibility, IsProvedByTheCountAndByNothingElse) {
  EventRecorder received, met;
  const Subscription listener = *to.engine.listen(1, received.notify());
  bool whole_at_the_count = false, whole_at_the_message = false;
  met.then = [&](const Event&) { whole_at_the_count = holds(to.bytes(), 7); };
  received.then = [&](const Event&) { whole_at_the_message = holds(to.bytes(), 7); };
  ASSERT_TRUE(counter.expect(1, met.notify()));

  ASSERT_NO_FATAL_FAILURE(write_with_late_bytes());
  EXPECT_FALSE(holds(to.bytes(), 7)) << "acknowledged, and not visible yet";
  ASSERT_TRUE(from.engine.submit(Send{.peer = remote.peer, .channel = 1}));
  ASSERT_TRUE(world.run_until([&] { return received.count() == 1; }, 1s));
  EXPECT_EQ(met.count(), 0u) << "the message came first, which is what this test needs";
  EXPECT_FALSE(whole_at_the_message);

  ASSERT_TRUE(world.run_until([&] { return met.count() == 1; }, 1s));
  EXPECT_EQ(met.events[0].code, Errc::kOk);
  EXPECT_TRUE(whole_at_the_count);
}

// Proof that nothing lands any more includes what the NIC has acknowledged and not stored.
TEST_P(Visibility, OfLateBytesIsDecidedWhenTheRegionIsDeregistered) {
  ASSERT_NO_FATAL_FAILURE(write_with_late_bytes());
  EventRecorder gone;
  ASSERT_TRUE(to.engine.submit(Deregister{.region = to.memory.id(), .notify = gone.notify()}));
  ASSERT_TRUE(world.run_until([&] { return gone.count() == 1; }, 1s));
  EXPECT_EQ(gone.events[0].code, Errc::kOk);
  expect_nothing_lands();
  EXPECT_EQ(counter.count(), 1u);
}

// The peer confirms that its writes have completed, which does not say that they are visible here.
TEST_P(Visibility, OfLateBytesIsDecidedWhenThePeerIsFenced) {
  const RemoteHost back = connect(to, from);
  await_connected(world, to, back.peer);
  ASSERT_NO_FATAL_FAILURE(write_with_late_bytes());
  EventRecorder fenced;
  ASSERT_TRUE(to.engine.submit(Fence{.peer = back.peer, .notify = fenced.notify()}));
  ASSERT_TRUE(world.run_until([&] { return fenced.count() == 1; }, 1s));
  EXPECT_EQ(fenced.events[0].code, Errc::kOk);
  EXPECT_TRUE(holds(to.bytes(), 7)) << "what was delivered is there";
  expect_nothing_lands();
}

}  // namespace
}  // namespace fabric::test::visibility_test

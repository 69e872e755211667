#include "harness/write_auditor.h"
#include "support/log_guard.h"

// What a break leaves behind waits for the word of its target, and only for that one's.

namespace fabric::test {
namespace {

using sim::Fault;

constexpr uint64_t kSize = 1 << 20;

/// One sender and two receivers. Whoever is stopped still answers by its second NIC.
struct Three {
  Three() {
    expect_trouble();
    await_connected(world, a, to_b.peer);
    await_connected(world, a, to_c.peer);
    world.run_for(5ms);
    fill(a.bytes(), 7);
  }
  void happens(const Fault& fault) { ASSERT_TRUE(world.at(world.now(), fault)); }
  void write(const Way& way, CounterKey key, uint64_t tag) {
    ASSERT_TRUE(a.engine.submit(Write{.source = a.memory.at(0),
                                      .target = way.at(0),
                                      .size_bytes = kSize,
                                      .imm = key,
                                      .timeout = 20s,
                                      .notify = seen.notify(tag)}));
  }

  Host open() { return open_host(world, world.add_node(2, slow_rc()), kSize, hasty_config()); }

  Witness seen;
  sim::World world{sim::WorldOptions{.seed = test_seed()}};
  Host a = open(), b = open(), c = open();
  Way to_b = connect(a, b, {.warm = true}), to_c = connect(a, c, {.warm = true});
};

TEST(Settling, TheLossOfAPeerEndsWhatWaitedForItsWordAndNothingElse) {
  Three story;
  Counter at_b = *story.b.engine.make_counter(), at_c = *story.c.engine.make_counter();
  story.happens(Fault::stop(1));
  story.happens(Fault::stop(2));
  story.write(story.to_b, at_b.key(), 1);
  story.write(story.to_c, at_c.key(), 2);
  story.world.run_for(300us);
  story.happens(Fault::break_sender(0, 1, 0));
  story.happens(Fault::break_sender(0, 2, 0));
  story.world.run_for(100ms);
  ASSERT_EQ(story.seen.count(), 0u) << "nobody has said yet what it took";

  story.happens(Fault::crash(1));
  const Nanos died = story.world.now();
  ASSERT_TRUE(story.world.run_until([&] { return story.seen.count() > 0; }, 10s));
  EXPECT_EQ(story.seen.events[0].tag, 1u);
  EXPECT_EQ(story.seen.events[0].code, Errc::kPeerLost);
  EXPECT_LE(story.world.now(), died + hasty_config().lost_timeout + 1ms);
  EXPECT_EQ(story.seen.count(), 1u) << "the other is still asked";

  story.happens(Fault::resume(2));
  ASSERT_TRUE(story.world.run_until([&] { return story.seen.count() > 1; }, 1s));
  EXPECT_EQ(story.seen.find(2)->code, Errc::kOk);
  EXPECT_EQ(at_c.count(), 1u);
  EXPECT_TRUE(holds(story.c.bytes(), 7));
}

// The target's word may be the last thing that is missing: nothing else happens afterwards that
// would make the sender look once more.
TEST(Settling, AClosedNameIsProvedAsSoonAsTheTargetHasSpoken) {
  constexpr Nanos kLate = 100ms;
  Three story;
  const uint64_t name = 5;
  Counter counter = *story.b.engine.named_counter(name);
  CounterKey key;
  ASSERT_TRUE(story.a.engine.resolve(story.to_b.peer, {&name, 1}, {&key, 1}));
  story.happens(Fault::late_proof(1, kLate));
  story.write(story.to_b, key, 1);
  story.world.run_for(300us);
  story.happens(Fault::break_sender(0, 1, 0));
  story.world.run_for(10ms);
  ASSERT_EQ(story.seen.count(), 0u) << "the target is still closing its end";
  const Nanos asked = story.world.now();
  const auto rest = counter.close();
  ASSERT_TRUE(rest);
  EXPECT_EQ(*rest, Quiescence::kProved);
  EXPECT_LE(story.world.now(), asked + kLate);
}

}  // namespace
}  // namespace fabric::test

#include "harness/write_auditor.h"
#include "scenario/scripted_peer.h"
#include "support/log_guard.h"

// What engines tell each other of themselves, and how one says that it has no room (P16).

namespace fabric::test {
namespace {

using control::MessageType;

constexpr uint64_t kSize = 256 << 10;

TEST(Introduction, SaysWhatTheOtherSideHasToReckonWith) {
  Config config = story_config();
  config.message_bytes_max = 777;
  config.message_credits = 11;
  config.timeout_max = 33s;
  config.default_timeout = 5s;
  config.drain_timeout = 44ms;
  config.lost_timeout = 9s;
  config.app_info = "rank 3";
  PuppetTheatre theatre;
  Engine engine = theatre.open(config);
  Puppet puppet(theatre, engine.address());
  ASSERT_TRUE(engine.connect(puppet.encoded_address()));
  theatre.run_for(1ms);
  const auto letters = puppet.take(MessageType::kHello);
  ASSERT_FALSE(letters.empty());
  const auto hello = control::decode_hello(letters[0].body);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->to_incarnation, puppet.address.incarnation);
  EXPECT_EQ(hello->message_bytes_max, config.message_bytes_max);
  EXPECT_EQ(hello->message_credits, config.message_credits);
  EXPECT_EQ(hello->timeout_max_ns, config.timeout_max.count());
  EXPECT_EQ(hello->drain_ns, config.drain_timeout.count());
  EXPECT_EQ(hello->lost_ns, config.lost_timeout.count());
  EXPECT_EQ(hello->app_info, config.app_info);
}

TEST(Introduction, OfOnePeerTooManyIsRefusedUntilThereIsRoom) {
  Config small = hasty_config();
  small.peers_max = 1;
  Witness seen, ended;
  sim::World world({.seed = test_seed()});
  Host a = open_host(world, world.add_node(), kSize, hasty_config());
  Host b = open_host(world, world.add_node(), kSize, small);
  Host c = open_host(world, world.add_node(), kSize, hasty_config());
  const Subscription subscription = *c.engine.subscribe(seen.notify());
  const Way first = connect(a, b);
  await_connected(world, a, first.peer);

  const Way second = connect(c, b);
  ASSERT_TRUE(c.engine.submit(Write{.source = c.memory.at(0),
                                    .target = second.at(0),
                                    .size_bytes = kSize,
                                    .notify = ended.notify(1)}));
  ASSERT_TRUE(world.run_until([&] { return ended.count() > 0; }, 1ms)) << "it is told at once";
  EXPECT_EQ(ended.events[0].code, Errc::kExhausted);
  EXPECT_EQ(ended.events[0].remote, Remote::kNotDelivered);
  EXPECT_EQ(seen.events.back().code, Errc::kExhausted);
  EXPECT_EQ(c.engine.peer_info(second.peer)->state, PeerState::kLost);
  EXPECT_TRUE(delivers(world, a, b, 5)) << "who was there first notices nothing";

  ASSERT_TRUE(a.engine.disconnect(first.peer));
  world.run_for(500ms);
  EXPECT_TRUE(delivers(world, c, b, 6));
}

/// A session with a puppet that is up.
struct Acquainted {
  Acquainted() {
    theatre.run_for(1ms);
    puppet.read();
    puppet.welcome();
    theatre.run_for(1ms);
    EXPECT_EQ(state(), PeerState::kConnected);
  }
  PeerState state() const { return engine.peer_info(peer)->state; }

  Witness ended;
  PuppetTheatre theatre;
  Engine engine = theatre.open();
  Puppet puppet{theatre, engine.address()};
  PeerId peer = *engine.connect(puppet.encoded_address());
};

TEST(Introduction, ARefusalThatComesAfterTheWelcomeEndsNothing) {
  Acquainted story;
  story.puppet.send(MessageType::kReject,
                    control::encode(control::Reject{.code = Errc::kExhausted}));
  story.theatre.run_for(1ms);
  EXPECT_EQ(story.state(), PeerState::kConnected);
}

TEST(Introduction, AnswersToWhatNobodyAskedAreIgnored) {
  Acquainted story;
  for (const uint32_t ref : {0u, 7u, UINT32_MAX}) {
    story.puppet.send(MessageType::kResolved,
                      control::encode(control::ResolvedNames{.ref = ref, .keys = {1}}));
    story.puppet.send(MessageType::kMessageDone, control::encode(control::Done{.ref = ref}));
  }
  story.theatre.run_for(1ms);
  EXPECT_EQ(story.state(), PeerState::kConnected);

  // The same answer twice: the second one belongs to nothing any more.
  const uint64_t name = 3;
  CounterKey key;
  ASSERT_TRUE(story.engine.submit(Resolve{
      .peer = story.peer, .names = {&name, 1}, .out = {&key, 1}, .notify = story.ended.notify(1)}));
  story.theatre.run_for(1ms);
  const auto questions = story.puppet.take(MessageType::kResolve);
  ASSERT_EQ(questions.size(), 1u);
  const auto asked = control::decode_resolve(questions[0].body);
  ASSERT_TRUE(asked);
  for (const uint32_t wire : {5u, 6u}) {
    story.puppet.send(MessageType::kResolved,
                      control::encode(control::ResolvedNames{.ref = asked->ref, .keys = {wire}}));
  }
  story.theatre.run_for(1ms);
  ASSERT_EQ(story.ended.count(), 1u);
  EXPECT_EQ(story.ended.events[0].code, Errc::kOk);
  EXPECT_EQ(key.wire(), 5u);
  EXPECT_EQ(story.state(), PeerState::kConnected);
}

}  // namespace
}  // namespace fabric::test

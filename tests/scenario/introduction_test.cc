#include "harness/write_auditor.h"
#include "scenario/scripted_peer.h"
#include "support/log_guard.h"

// What engines tell each other of themselves, and how one says that it has no room (P16).

namespace fabric::test {
namespace {

using control::MessageType;

constexpr uint64_t kLimitBytes = 256 << 10;

TEST(Handshake, HelloCarriesTheLimitsOfItsSender) {
  Config config = test_config();
  config.message_bytes_max = 777;
  config.message_credits = 11;
  config.timeout_max = 33s;
  config.default_timeout = 5s;
  config.drain_timeout = 44ms;
  config.lost_timeout = 9s;
  config.app_info = "rank 3";
  ScriptedWorld world;
  Engine engine = world.open(config);
  ScriptedPeer scripted(world, engine.address());
  ASSERT_TRUE(engine.connect(scripted.encoded_address()));
  world.run_for(1ms);
  const auto frames = scripted.take(MessageType::kHello);
  ASSERT_FALSE(frames.empty());
  const auto hello = control::decode_hello(frames[0].body);
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->to_incarnation, scripted.address.incarnation);
  EXPECT_EQ(hello->message_bytes_max, config.message_bytes_max);
  EXPECT_EQ(hello->message_credits, config.message_credits);
  EXPECT_EQ(hello->timeout_max_ns, config.timeout_max.count());
  EXPECT_EQ(hello->drain_ns, config.drain_timeout.count());
  EXPECT_EQ(hello->lost_ns, config.lost_timeout.count());
  EXPECT_EQ(hello->app_info, config.app_info);
}

TEST(Handshake, OfOnePeerTooManyIsRefusedUntilThereIsRoom) {
  Config small = short_timeouts_config();
  small.peers_max = 1;
  EventRecorder seen, ended;
  sim::World world({.seed = test_seed()});
  Host a = open_host(world, world.add_node(), kLimitBytes, short_timeouts_config());
  Host b = open_host(world, world.add_node(), kLimitBytes, small);
  Host c = open_host(world, world.add_node(), kLimitBytes, short_timeouts_config());
  const Subscription subscription = *c.engine.subscribe(seen.notify());
  const RemoteHost first = connect(a, b);
  await_connected(world, a, first.peer);

  const RemoteHost second = connect(c, b);
  ASSERT_TRUE(c.engine.submit(Write{.source = c.memory.at(0),
                                    .target = second.at(0),
                                    .size_bytes = kLimitBytes,
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

/// A session with a scripted that is up.
struct ConnectedScriptedPeer {
  ConnectedScriptedPeer() {
    world.run_for(1ms);
    scripted.read();
    scripted.send_welcome();
    world.run_for(1ms);
    EXPECT_EQ(state(), PeerState::kConnected);
  }
  PeerState state() const { return engine.peer_info(peer)->state; }

  EventRecorder ended;
  ScriptedWorld world;
  Engine engine = world.open();
  ScriptedPeer scripted{world, engine.address()};
  PeerId peer = *engine.connect(scripted.encoded_address());
};

TEST(Handshake, ARejectAfterTheWelcomeEndsNothing) {
  ConnectedScriptedPeer setup;
  setup.scripted.send(MessageType::kReject,
                    control::encode(control::Reject{.code = Errc::kExhausted}));
  setup.world.run_for(1ms);
  EXPECT_EQ(setup.state(), PeerState::kConnected);
}

TEST(Handshake, UnsolicitedAnswersAreIgnored) {
  ConnectedScriptedPeer setup;
  for (const uint32_t ref : {0u, 7u, UINT32_MAX}) {
    setup.scripted.send(MessageType::kResolved,
                      control::encode(control::ResolvedNames{.ref = ref, .keys = {1}}));
    setup.scripted.send(MessageType::kMessageDone, control::encode(control::Done{.ref = ref}));
  }
  setup.world.run_for(1ms);
  EXPECT_EQ(setup.state(), PeerState::kConnected);

  // The same answer twice: the second one belongs to nothing any more.
  const uint64_t name = 3;
  CounterKey key;
  ASSERT_TRUE(setup.engine.submit(Resolve{
      .peer = setup.peer, .names = {&name, 1}, .out = {&key, 1}, .notify = setup.ended.notify(1)}));
  setup.world.run_for(1ms);
  const auto questions = setup.scripted.take(MessageType::kResolve);
  ASSERT_EQ(questions.size(), 1u);
  const auto asked = control::decode_resolve(questions[0].body);
  ASSERT_TRUE(asked);
  for (const uint32_t wire : {5u, 6u}) {
    setup.scripted.send(MessageType::kResolved,
                      control::encode(control::ResolvedNames{.ref = asked->ref, .keys = {wire}}));
  }
  setup.world.run_for(1ms);
  ASSERT_EQ(setup.ended.count(), 1u);
  EXPECT_EQ(setup.ended.events[0].code, Errc::kOk);
  EXPECT_EQ(key.wire(), 5u);
  EXPECT_EQ(setup.state(), PeerState::kConnected);
}

}  // namespace
}  // namespace fabric::test

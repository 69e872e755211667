#include <algorithm>

#include "core/core.h"
#include "scenario/scripted_peer.h"
#include "support/log_guard.h"

// What an engine asks a silent peer, what it makes of the answers, and when it may write (P16).

namespace fabric::test {
namespace {

using control::MessageType;

using Change = std::pair<PeerState, Errc>;

std::vector<Change> changes(const EventRecorder& recorder) {
  std::vector<Change> out;
  for (const Event& event : recorder.events) {
    if (event.kind == EventKind::kPeer) {
      out.emplace_back(static_cast<PeerState>(event.value), event.code);
    }
  }
  return out;
}

class Heartbeat : public testing::Test {
 protected:
  static Config config(Nanos peer_timeout, Nanos lost_timeout) {
    Config config = test_config();
    config.peer_timeout = peer_timeout;
    config.lost_timeout = lost_timeout;
    return config;
  }
  void meet() {
    peer = *engine.connect(scripted.encoded_address());
    world.run_for(1ms);
    scripted.read();
    scripted.send_welcome();
    world.run_for(1ms);
    ASSERT_EQ(state(), PeerState::kConnected);
  }
  PeerState state() const { return engine.peer_info(peer)->state; }
  /// Lets time pass during which the scripted speaks, but answers no ping.
  void chat_for(Nanos time) {
    for (Nanos passed{}; passed < time; passed += 10ms) {
      scripted.read();
      scripted.send(MessageType::kAck);
      world.run_for(10ms);
    }
    scripted.read();
  }

  ScriptedWorld world;
  Engine engine = world.open(config(1s, 4s));
  ScriptedPeer scripted{world, engine.address()};
  EventRecorder seen{&engine};
  Subscription subscription = *engine.subscribe(seen.notify());
  PeerId peer{};
};

TEST_F(Heartbeat, ASilentPeerIsAskedStallsResumesAndIsLost) {
  ASSERT_NO_FATAL_FAILURE(meet());
  const Nanos met = seen.times.back();
  world.run_for(3s);
  EXPECT_EQ(state(), PeerState::kStalled);
  EXPECT_EQ(engine.peer_stats().at(0).silent_for, engine.now() - met);
  EXPECT_NE(engine.dump().find("Stalled for 2000 ms"), std::string::npos) << engine.dump();
  const auto stamps = scripted.stamps();
  ASSERT_EQ(stamps.size(), 12u);
  for (size_t i = 0; i < stamps.size(); ++i) {
    EXPECT_EQ(Nanos(stamps[i]), met + 250ms * (i + 1)) << "a quarter of peer_timeout";
  }

  scripted.send(MessageType::kAck);
  world.run_for(1ms);
  EXPECT_EQ(state(), PeerState::kConnected);
  const Nanos resumed = seen.times.back();
  world.run_for(5s);
  EXPECT_EQ(state(), PeerState::kLost);
  EXPECT_FALSE(scripted.take(MessageType::kBye).empty());
  const std::vector<Change> expected{
      {PeerState::kConnecting, Errc::kOk},   {PeerState::kConnected, Errc::kOk},
      {PeerState::kStalled, Errc::kTimeout}, {PeerState::kConnected, Errc::kOk},
      {PeerState::kStalled, Errc::kTimeout}, {PeerState::kLost, Errc::kPeerLost}};
  ASSERT_EQ(changes(seen), expected);
  EXPECT_EQ(seen.times[2], met + 1s);
  EXPECT_EQ(seen.times[4], resumed + 1s);
  EXPECT_EQ(seen.times[5], resumed + 4s);
  EXPECT_NE(engine.dump().find("Lost for 1000 ms"), std::string::npos) << engine.dump();
}

TEST_F(Heartbeat, APingIsAnsweredAtOnceWithItsStamp) {
  ASSERT_NO_FATAL_FAILURE(meet());
  scripted.send(MessageType::kPing, control::encode(control::Ping{12345}));
  world.run_for(5us);
  const auto pongs = scripted.take(MessageType::kPong);
  ASSERT_EQ(pongs.size(), 1u);
  EXPECT_EQ(control::decode_ping(pongs[0].body)->stamp, 12345u);
  EXPECT_EQ(pongs[0].header.to_session, scripted.session);
}

TEST_F(Heartbeat, APeerThatSpeaksIsAskedHalfAsOften) {
  ASSERT_NO_FATAL_FAILURE(meet());
  const Nanos began = engine.now();
  chat_for(4s);
  const auto stamps = scripted.stamps();
  ASSERT_GE(stamps.size(), 7u) << "the lease needs answers, whatever else is heard";
  EXPECT_LE(stamps.size(), 9u);
  EXPECT_EQ(state(), PeerState::kConnected);
  EXPECT_LE(Nanos(stamps.at(0)), began + 500ms);
}

TEST_F(Heartbeat, AWaitThatNamesItsPeerEndsWhenSilenceLosesIt) {
  ASSERT_NO_FATAL_FAILURE(meet());
  Counter counter = *engine.make_counter();
  ASSERT_TRUE(counter.bind(peer));
  const Nanos met = seen.times.back();
  EXPECT_EQ(counter.wait(1, 60s).error().code, Errc::kPeerLost);
  EXPECT_EQ(engine.now(), met + 4s);
}

TEST_F(Heartbeat, AnInlineEngineThatComputesIsNotStalledButLostInTheEnd) {
  scripted.hello.is_inline = true;
  ASSERT_NO_FATAL_FAILURE(meet());
  world.run_for(3900ms);
  EXPECT_EQ(state(), PeerState::kConnected);
  EXPECT_EQ(changes(seen).size(), 2u);
  world.run_for(200ms);
  EXPECT_EQ(state(), PeerState::kLost) << "a death must not go unnoticed";
}

// ---- Lease --------------------------------------------------------------------------------------

class Lease : public Heartbeat {
 protected:
  /// The scripted gives up after a second, so that is how long each of its answers lets us write.
  void SetUp() override {
    scripted.hello.lost_ns = 1'000'000'000;
    ASSERT_NO_FATAL_FAILURE(meet());
    target = *engine.import_region(peer, scripted.desc());
    fill(source.bytes(), 1);
    write(0);
    chat_for(50ms);
    ASSERT_TRUE(landed(0)) << "the first write goes under the lease of the handshake";
  }
  void write(uint64_t block) {
    ASSERT_TRUE(engine.submit(Write{.source = source.at(0),
                                    .target = target.at(block * kBlock),
                                    .size_bytes = kBlock,
                                    .batch = batch}));
  }
  bool landed(uint64_t block) const {
    return holds(scripted.memory().subspan(block * kBlock, kBlock), 1);
  }
  static constexpr uint64_t kBlock = 64;

  MemoryRegion source = *engine.allocate({.size_bytes = kBlock});
  Batch batch = *engine.make_batch();
  RemoteRegion target{};
};

TEST_F(Lease, NothingIsPostedOnceItHasExpiredUntilANewPingIsAnswered) {
  chat_for(1500ms);
  const auto before = scripted.stamps();
  ASSERT_FALSE(before.empty());
  write(1);
  chat_for(100ms);
  EXPECT_EQ(state(), PeerState::kConnected) << "it is heard all the time";
  EXPECT_FALSE(landed(1)) << "the other side may have given us up";
  const auto asked = scripted.stamps();
  ASSERT_GE(asked.size(), 4u) << "something waits: it asks at once, and again soon";

  scripted.send_pong(before.front());  // lay in a buffer while we were stopped
  chat_for(10ms);
  EXPECT_FALSE(landed(1)) << "an old answer renews nothing";
  scripted.send_pong(asked.back());
  world.run_for(1ms);
  EXPECT_TRUE(landed(1));
  EXPECT_TRUE(engine.wait(batch));
}

TEST_F(Lease, EndsASecondAfterThePingThatWasAnsweredAndNotAfterTheAnswer) {
  chat_for(500ms);
  const auto asked = scripted.stamps();
  ASSERT_FALSE(asked.empty());
  const uint64_t stamp = asked.back();
  chat_for(400ms);
  scripted.send_pong(stamp);
  chat_for(10ms);
  const Nanos over = Nanos(stamp) + 1s;
  ASSERT_LT(engine.now(), over - 20ms);
  world.run_for(over - 20ms - engine.now());
  write(1);
  chat_for(10ms);
  EXPECT_TRUE(landed(1)) << "just before";
  world.run_for(over - engine.now());
  write(2);
  chat_for(50ms);
  EXPECT_FALSE(landed(2)) << "at that very moment";
}

TEST_F(Lease, AnAnswerToAPingThatWasNeverSentIsRefused) {
  expect_log("does not parse");
  const uint64_t bad = engine.stats().control_bad;
  scripted.send_pong(static_cast<uint64_t>((engine.now() + 100s).count()));
  scripted.send_pong(UINT64_MAX);
  world.run_for(1ms);
  EXPECT_EQ(engine.stats().control_bad, bad + 2);
  chat_for(1500ms);
  write(1);
  chat_for(100ms);
  EXPECT_FALSE(landed(1));
}

TEST_F(Lease, ALostPeerEndsWhatWaitedForIt) {
  chat_for(1500ms);
  write(1);
  world.run_for(5s);
  EXPECT_EQ(state(), PeerState::kStalled) << "its NIC answers";
  EXPECT_FALSE(landed(1));
  scripted.send(MessageType::kBye, control::encode(control::Bye{.code = Errc::kPeerLost}));
  world.run_for(1ms);
  EXPECT_EQ(state(), PeerState::kLost);
  EXPECT_EQ(engine.wait(batch).error().code, Errc::kPeerLost);
  EXPECT_EQ(batch.unknown(), 0u) << "it was never posted";
  EXPECT_FALSE(landed(1));
}

// ---- Evidence -----------------------------------------------------------------------------------

/// What the network says reaches the session from below, so these stories look at the core.
class Evidence : public testing::Test {
 protected:
  void SetUp() override {
    Config config = test_config();
    config.peer_timeout = 1s;
    config.lost_timeout = 4s;
    core = *core::EngineCore::open(world.placed(config), world.sim_world.impl,
                                   &world.sim_world.impl->world_driver);
    scripted = std::make_unique<ScriptedPeer>(world, control::encode(core->peers.own_address(false)));
    id = *core->peers.connect(scripted->address, {});
    core->kick();
    world.run_for(1ms);
    scripted->read();
    scripted->send_welcome();
    world.run_for(1ms);
    ASSERT_EQ(state(), PeerState::kConnected);
    heard_ns = peer().last_received_ns;
  }
  void TearDown() override { EXPECT_TRUE(core->close({})); }
  core::Peer& peer() const { return *core->peers.find(id); }
  PeerState state() const { return peer().state.load(); }
  /// To so long after the scripted was heard.
  void run_to(Nanos silence) {
    world.run_for(Nanos(heard_ns) + silence - Nanos(world.sim_world.now()));
    core->now_ns = world.sim_world.now();
  }

  EventRecorder seen;
  ScriptedWorld world;
  std::shared_ptr<core::EngineCore> core;
  std::unique_ptr<ScriptedPeer> scripted;
  PeerId id{};
  int64_t heard_ns = 0;
};

TEST_F(Evidence, SilenceOfAnUnreachablePeerIsLossAfterTheShorterTime) {
  run_to(500ms);
  core->peers.on_unreachable(peer());
  run_to(999ms);
  EXPECT_EQ(state(), PeerState::kConnected) << "another network may still bring a word";
  run_to(1001ms);
  EXPECT_EQ(state(), PeerState::kLost);
  EXPECT_EQ(peer().lost_code, Errc::kPeerLost);
}

TEST_F(Evidence, AFrameRevokesThatThePeerIsUnreachable) {
  run_to(500ms);
  core->peers.on_unreachable(peer());
  scripted->send(MessageType::kAck);
  run_to(600ms);
  heard_ns = peer().last_received_ns;
  run_to(1001ms);
  EXPECT_EQ(state(), PeerState::kStalled);
}

TEST_F(Evidence, AStalledPeerThatIsUnreachableIsLostInTheSameTurn) {
  run_to(2s);
  ASSERT_EQ(state(), PeerState::kStalled);
  core->peers.on_unreachable(peer());
  core->kick();
  world.run_for(1ns);
  EXPECT_EQ(state(), PeerState::kLost);
}

TEST_F(Evidence, AHostThatAnswersKeepsItsPeerStalled) {
  for (Nanos silence = 500ms; silence < 20s; silence += 500ms) {
    run_to(silence);
    core->peers.on_host_alive(peer(), core->now_ns);
  }
  run_to(23'400ms);
  EXPECT_EQ(state(), PeerState::kStalled) << "a stopped process, and a NIC that goes on";
  run_to(23'501ms);
  EXPECT_EQ(state(), PeerState::kLost) << "lost_timeout after the host has answered last";
}

TEST_F(Evidence, AnAnswerOfTheHostRevokesThatThePeerIsUnreachable) {
  run_to(500ms);
  core->peers.on_unreachable(peer());
  core->peers.on_host_alive(peer(), core->now_ns);
  run_to(1001ms);
  EXPECT_EQ(state(), PeerState::kStalled);
}

TEST_F(Evidence, ADeadProcessIsLostAtOnceAndItsWaitsEnd) {
  const CounterKey key = *core->counters.make(core->now_ns);
  core->counters.bind(key, peer());
  ASSERT_TRUE(core->expect(key, 1, seen.notify(), Timeout::forever()));
  run_to(10ms);
  core->peers.on_peer_dead(peer());
  EXPECT_EQ(state(), PeerState::kLost);
  core->peers.on_peer_dead(peer());
  core->kick();
  world.run_for(1ns);
  ASSERT_EQ(seen.count(), 1u);
  EXPECT_EQ(seen.events[0].code, Errc::kPeerLost);
  EXPECT_EQ(seen.events[0].peer, id);
}

TEST_F(Evidence, TheNetworkIsAskedWhenItHasReportedNothingLately) {
  run_to(499ms);
  EXPECT_FALSE(core->peers.probe_due(peer()));
  run_to(500ms);
  EXPECT_TRUE(core->peers.probe_due(peer()));
  core->peers.on_host_alive(peer(), core->now_ns);
  EXPECT_FALSE(core->peers.probe_due(peer()));
  run_to(999ms);
  EXPECT_FALSE(core->peers.probe_due(peer()));
  run_to(1000ms);
  EXPECT_TRUE(core->peers.probe_due(peer()));
  core->peers.on_unreachable(peer());
  EXPECT_FALSE(core->peers.probe_due(peer()));
}

}  // namespace
}  // namespace fabric::test

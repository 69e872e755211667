#include <algorithm>

#include <gtest/gtest.h>

#include "core/core.h"
#include "harness/host.h"
#include "scenario/pairs.h"
#include "scenario/scripted_peer.h"
#include "support/log_guard.h"

// Peers that fall silent, are stopped, die, come back, and writers that were away for too long
// (P16). Every engine is a real one; the faults are the world's.

namespace fabric::test::liveness_test {
namespace {

constexpr uint64_t kSize = 64 << 10;

using Change = std::pair<PeerState, Errc>;

/// What was reported to subscribers about one peer.
std::vector<Change> changes(const EventRecorder& recorder, PeerId peer) {
  std::vector<Change> out;
  for (const Event& event : recorder.events) {
    if (event.kind != EventKind::kPeer || event.peer != peer) continue;
    out.emplace_back(static_cast<PeerState>(event.value), event.code);
  }
  return out;
}

const std::vector<Change> kMet{{PeerState::kConnecting, Errc::kOk},
                               {PeerState::kConnected, Errc::kOk}};
std::vector<Change> met_and(std::vector<Change> then) {
  then.insert(then.begin(), kMet.begin(), kMet.end());
  return then;
}

/// Two hosts that have met and exchanged something, in both directions.
class Liveness : public testing::Test {
 protected:
  static Config quick() {
    Config config = test_config();
    config.peer_timeout = 1s;
    config.lost_timeout = 4s;
    return config;
  }
  Liveness() : Liveness({}, quick()) {}
  Liveness(const sim::NicModel& model, const Config& config_b)
      : node_a(world.add_node(1, model)),
        node_b(world.add_node(1, model)),
        a(open_host(world, node_a, kSize, quick())),
        b(open_host(world, node_b, kSize, config_b)) {}
  void SetUp() override {
    to_b = connect(a, b);
    to_a = connect(b, a);
    ASSERT_TRUE(deliver(a, b, to_b, 1));
    ASSERT_TRUE(deliver(b, a, to_a, 2));
  }
  void happens(const sim::Fault& fault) { ASSERT_TRUE(world.at(world.now(), fault)); }
  static PeerState state(const Host& host, PeerId peer) {
    return host.engine.peer_info(peer)->state;
  }
  /// A counted write of the whole memory; true when it arrived.
  static bool deliver(Host& from, Host& to, const RemoteHost& remote, uint64_t content) {
    Counter counter = *to.engine.make_counter();
    fill(from.bytes(), content);
    const auto submitted = from.engine.submit(Write{.source = from.memory.at(0),
                                                    .target = remote.at(0),
                                                    .size_bytes = kSize,
                                                    .imm = counter.key()});
    return submitted && counter.wait(1, 2s) && holds(to.bytes(), content);
  }

  EventRecorder seen_a, seen_b, received;
  sim::World world;
  uint32_t node_a, node_b;
  Host a, b;
  Subscription sub_a = *a.engine.subscribe(seen_a.notify());
  Subscription sub_b = *b.engine.subscribe(seen_b.notify());
  RemoteHost to_b, to_a;
};

TEST_F(Liveness, AQuietPairStaysTogether) {
  const uint64_t turns = a.engine.stats().turns;
  world.run_for(600s);
  EXPECT_EQ(changes(seen_a, to_b.peer), kMet);
  EXPECT_EQ(changes(seen_b, to_a.peer), kMet);
  EXPECT_LE(a.engine.peer_stats().at(0).silent_for, 500ms);
  EXPECT_LE(a.engine.stats().turns - turns, 600u * 40) << "an idle session costs too many turns";
  EXPECT_TRUE(deliver(a, b, to_b, 3)) << "the lease was renewed all the time";
}

TEST_F(Liveness, AStoppedProcessStallsAndEverythingResumesWithIt) {
  Batch batch = *a.engine.make_batch();
  happens(sim::Fault::stop(node_b));
  world.run_for(1500ms);
  EXPECT_EQ(state(a, to_b.peer), PeerState::kStalled);
  // Asked of the process, not of the NIC.
  Subscription listener = *b.engine.listen(3, received.notify());
  ASSERT_TRUE(
      a.engine.submit(Send{.peer = to_b.peer, .channel = 3, .timeout = 60s, .batch = batch}));
  world.run_for(500ms);
  EXPECT_EQ(batch.pending(), 1u) << "the operation must wait until its deadline";
  happens(sim::Fault::resume(node_b));
  EXPECT_TRUE(a.engine.wait(batch));
  EXPECT_EQ(changes(seen_a, to_b.peer),
            met_and({{PeerState::kStalled, Errc::kTimeout}, {PeerState::kConnected, Errc::kOk}}));
  EXPECT_EQ(changes(seen_b, to_a.peer), kMet)
      << "the stopped engine took its own pause for silence of the peer";
  EXPECT_TRUE(deliver(a, b, to_b, 3));
  EXPECT_TRUE(deliver(b, a, to_a, 4));
}

TEST_F(Liveness, OurOwnSleepIsNotAPeersSilence) {
  // Nothing lies in its buffer when it goes on: all that it knows is that time has passed.
  happens(sim::Fault::stop(node_a));
  happens(sim::Fault::control_cut(node_a, node_b));
  world.run_for(2500ms);
  happens(sim::Fault::control_heal(node_a, node_b));
  happens(sim::Fault::resume(node_a));
  world.run_for(2s);
  EXPECT_EQ(changes(seen_a, to_b.peer), kMet);
  EXPECT_EQ(changes(seen_b, to_a.peer),
            met_and({{PeerState::kStalled, Errc::kTimeout}, {PeerState::kConnected, Errc::kOk}}));
}

TEST_F(Liveness, APartitionLosesBothSidesAndTheyMeetAgainAsNewSessions) {
  expect_log("a path broke");
  Counter bound = *a.engine.make_counter();
  ASSERT_TRUE(bound.bind(to_b.peer));
  const auto old_desc = *b.memory.desc();
  happens(sim::Fault::cut(node_a, node_b));
  EXPECT_EQ(bound.wait(1, 60s).error().code, Errc::kPeerLost)
      << "a wait that names the lost peer must fail";
  world.run_for(1s);
  EXPECT_EQ(state(a, to_b.peer), PeerState::kLost);
  EXPECT_EQ(state(b, to_a.peer), PeerState::kLost);
  EXPECT_EQ(changes(seen_a, to_b.peer),
            met_and({{PeerState::kStalled, Errc::kTimeout}, {PeerState::kLost, Errc::kPeerLost}}));
  happens(sim::Fault::heal(node_a, node_b));
  world.run_for(1s);
  EXPECT_TRUE(a.engine.peers().empty()) << "no caller asked for a new session";

  const RemoteHost again = connect(a, b);
  EXPECT_NE(again.peer, to_b.peer);
  EXPECT_TRUE(deliver(a, b, again, 3));
  const Write stale{.source = a.memory.at(0), .target = to_b.at(0), .size_bytes = 8};
  EXPECT_EQ(a.engine.submit(stale).error().code, Errc::kPeerLost);
  EXPECT_EQ(a.engine.import_region(to_b.peer, old_desc).error().code, Errc::kPeerLost);
  EXPECT_EQ(a.engine.submit(Send{.peer = to_b.peer}).error().code, Errc::kPeerLost);
}

TEST_F(Liveness, ADeadProcessIsReplacedUnderItsNameWithoutRestartingOthers) {
  expect_log("a path broke");
  happens(sim::Fault::crash(node_b));
  ASSERT_TRUE(world.run_until([&] { return state(a, to_b.peer) == PeerState::kLost; }, 10s));
  EXPECT_EQ(changes(seen_a, to_b.peer).back(), Change(PeerState::kLost, Errc::kPeerLost));
  Host next = open_host(world, node_b, kSize, quick());
  const RemoteHost again = connect(a, next);
  EXPECT_TRUE(deliver(a, next, again, 3));
}

// ---- The zombie ---------------------------------------------------------------------------------

/// A network that cannot shut one sender out: only the sender's own lease keeps it from writing.
/// The target has long timeouts, so that only the lease stops the sender.
class Zombie : public Liveness {
 protected:
  static sim::NicModel open_to_all() {
    sim::NicModel model = srd_model();
    model.fence = FenceKind::kNone;
    return model;
  }
  static Config patient() {
    Config config = quick();
    config.peer_timeout = config.lost_timeout = 1000s;
    return config;
  }
  Zombie() : Liveness(open_to_all(), patient()) {}
  bool post() {
    fill(a.bytes(), 7);
    std::ranges::fill(b.bytes(), std::byte{0});
    return a.engine
        .submit(Write{.source = a.memory.at(0),
                      .target = to_b.at(0),
                      .size_bytes = kSize,
                      .timeout = 100s,
                      .batch = batch})
        .has_value();
  }
  Batch batch = *a.engine.make_batch();
};

TEST_F(Zombie, WritesAgainOnlyAfterAFreshAnswer) {
  happens(sim::Fault::stop(node_a));
  world.run_for(3500ms);
  // From here on its pings and their answers get lost; old ones lie in its buffer.
  happens(sim::Fault::control_cut(node_a, node_b));
  world.run_for(2s);
  ASSERT_TRUE(post());
  happens(sim::Fault::resume(node_a));
  world.run_for(300ms);
  EXPECT_EQ(state(a, to_b.peer), PeerState::kConnected);
  EXPECT_TRUE(untouched(b.bytes())) << "written after the lease had expired";
  EXPECT_EQ(batch.pending(), 1u);
  happens(sim::Fault::control_heal(node_a, node_b));
  EXPECT_TRUE(a.engine.wait(batch)) << a.engine.dump();
  EXPECT_TRUE(holds(b.bytes(), 7));
}

TEST_F(Zombie, ThatWasGivenUpLearnsItAndWritesNothing) {
  happens(sim::Fault::stop(node_a));
  world.run_for(1s);
  ASSERT_TRUE(b.engine.disconnect(to_a.peer));
  happens(sim::Fault::control_cut(node_a, node_b));  // the goodbyes are lost
  world.run_for(10s);
  ASSERT_TRUE(post());
  happens(sim::Fault::resume(node_a));
  happens(sim::Fault::control_heal(node_a, node_b));
  EXPECT_EQ(a.engine.wait(batch).error().code, Errc::kPeerLost);
  EXPECT_EQ(state(a, to_b.peer), PeerState::kLost) << "its ping must be answered with a goodbye";
  world.run_for(1s);
  EXPECT_TRUE(untouched(b.bytes()));
  EXPECT_EQ(batch.unknown(), 0u);
}

// ---- Stopped, and one rail lost -----------------------------------------------------------------

using sim::Fault;

// docs/failures.md: "a stopped process: its NIC acknowledges: stalled, never lost".
TEST(StoppedPeer, IsNotLostBecauseOneOfItsTwoRailsIsCut) {
  FaultyPair pair(slow_rc(), 2, 2);
  pair.happens(Fault::stop(1));
  pair.world.run_for(8s);
  ASSERT_EQ(pair.a->engine.peer_info(pair.remote.peer)->state, PeerState::kStalled);
  pair.happens(Fault::cut(0, 1, 0));
  for (uint32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(pair.a->engine.submit(Write{.source = pair.a->memory.at(i * 4096),
                                            .target = pair.remote.at(i * 4096),
                                            .size_bytes = 4096,
                                            .notify = pair.ended.notify(i)}));
  }
  pair.world.run_for(10s);
  EXPECT_EQ(pair.a->engine.peer_info(pair.remote.peer)->state, PeerState::kStalled)
      << "its other NIC answers";
  pair.happens(Fault::resume(1));
  pair.world.run_for(1s);
}

TEST(StoppedPeer, IsNotLostBecauseOneOfItsNicsGoesDown) {
  FaultyPair pair(slow_rc(), 2, 2);
  pair.happens(Fault::stop(1));
  pair.world.run_for(8s);
  ASSERT_EQ(pair.a->engine.peer_info(pair.remote.peer)->state, PeerState::kStalled);
  pair.happens(Fault::nic_down(1, 0));
  pair.world.run_for(10s);
  EXPECT_EQ(pair.a->engine.peer_info(pair.remote.peer)->state, PeerState::kStalled)
      << "its other NIC answers";
  pair.happens(Fault::resume(1));
  pair.world.run_for(1s);
}

// ---- Heartbeats ---------------------------------------------------------------------------------

// Pings to a silent peer, what follows from the answers, and when an engine may write (P16).

using control::MessageType;

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
  /// Lets time pass while the scripted peer sends frames, but answers no ping.
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
  ASSERT_GE(stamps.size(), 7u) << "the lease needs answers, whatever else is received";
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
  EXPECT_EQ(state(), PeerState::kLost) << "the death of the peer was not detected";
}

// ---- Lease --------------------------------------------------------------------------------------

class Lease : public Heartbeat {
 protected:
  /// The scripted peer's lost timeout is one second: so long may the engine write after each
  /// answer.
  void SetUp() override {
    scripted.hello.lost_ns = 1'000'000'000;
    ASSERT_NO_FATAL_FAILURE(meet());
    target = *engine.import_region(peer, scripted.desc());
    fill(source.bytes(), 1);
    write(0);
    chat_for(50ms);
    ASSERT_TRUE(landed(0)) << "the lease of the handshake must cover the first write";
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
  EXPECT_EQ(state(), PeerState::kConnected) << "frames keep arriving";
  EXPECT_FALSE(landed(1)) << "the peer may have closed its session";
  const auto asked = scripted.stamps();
  ASSERT_GE(asked.size(), 4u) << "a waiting write must trigger pings at once";

  scripted.send_pong(before.front());  // lay in a buffer while we were stopped
  chat_for(10ms);
  EXPECT_FALSE(landed(1)) << "a stale answer renewed the lease";
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
  EXPECT_TRUE(landed(1)) << "the lease had not expired yet";
  world.run_for(over - engine.now());
  write(2);
  chat_for(50ms);
  EXPECT_FALSE(landed(2)) << "the lease had just expired";
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
  EXPECT_EQ(batch.unknown(), 0u) << "the write was never posted";
  EXPECT_FALSE(landed(1));
}

// ---- Evidence -----------------------------------------------------------------------------------

/// Reports of the network reach the session from below, so these tests use the core directly.
class Evidence : public testing::Test {
 protected:
  void SetUp() override {
    Config config = test_config();
    config.peer_timeout = 1s;
    config.lost_timeout = 4s;
    core = *core::EngineCore::open(world.placed(config), world.sim_world.impl,
                                   &world.sim_world.impl->world_driver);
    core->state_mutex.lock();
    const auto address = control::encode(core->peers.own_address(false));
    core->state_mutex.unlock();
    scripted = std::make_unique<ScriptedPeer>(world, address);
    core->state_mutex.lock();
    id = *core->peers.connect(scripted->address, {});
    core->state_mutex.unlock();
    core->kick();
    world.run_for(1ms);
    scripted->read();
    scripted->send_welcome();
    world.run_for(1ms);
    ASSERT_EQ(state(), PeerState::kConnected);
    received_ns = last_received_ns();
  }
  void TearDown() override { EXPECT_TRUE(core->close({})); }
  core::Peer& peer() const {
    const core::StateGuard lock(core->state_mutex);
    return *core->peers.find(id);
  }
  void on_unreachable() {
    const core::StateGuard lock(core->state_mutex);
    core->peers.on_unreachable(*core->peers.find(id));
  }
  void on_host_alive() {
    const core::StateGuard lock(core->state_mutex);
    core->peers.on_host_alive(*core->peers.find(id), core->now_ns);
  }
  void on_peer_dead() {
    const core::StateGuard lock(core->state_mutex);
    core->peers.on_peer_dead(*core->peers.find(id));
  }
  bool probe_due() const {
    const core::StateGuard lock(core->state_mutex);
    return core->peers.probe_due(*core->peers.find(id));
  }
  PeerState state() const { return peer().state.load(); }
  Errc lost_code() const {
    const core::StateGuard lock(core->state_mutex);
    return core->peers.find(id)->lost_code;
  }
  int64_t last_received_ns() const {
    const core::StateGuard lock(core->state_mutex);
    return core->peers.find(id)->last_received_ns;
  }
  /// Runs until `silence` after the last frame of the scripted peer.
  void run_to(Nanos silence) {
    world.run_for(Nanos(received_ns) + silence - Nanos(world.sim_world.now()));
    const core::StateGuard lock(core->state_mutex);
    core->now_ns = world.sim_world.now();
  }

  EventRecorder seen;
  ScriptedWorld world;
  std::shared_ptr<core::EngineCore> core;
  std::unique_ptr<ScriptedPeer> scripted;
  PeerId id{};
  int64_t received_ns = 0;
};

TEST_F(Evidence, SilenceOfAnUnreachablePeerIsLossAfterTheShorterTime) {
  run_to(500ms);
  on_unreachable();
  run_to(999ms);
  EXPECT_EQ(state(), PeerState::kConnected) << "another network may still bring a frame";
  run_to(1001ms);
  EXPECT_EQ(state(), PeerState::kLost);
  EXPECT_EQ(lost_code(), Errc::kPeerLost);
}

TEST_F(Evidence, AFrameRevokesThatThePeerIsUnreachable) {
  run_to(500ms);
  on_unreachable();
  scripted->send(MessageType::kAck);
  run_to(600ms);
  received_ns = last_received_ns();
  run_to(1001ms);
  EXPECT_EQ(state(), PeerState::kStalled);
}

TEST_F(Evidence, AStalledPeerThatIsUnreachableIsLostInTheSameTurn) {
  run_to(2s);
  ASSERT_EQ(state(), PeerState::kStalled);
  on_unreachable();
  core->kick();
  world.run_for(1ns);
  EXPECT_EQ(state(), PeerState::kLost);
}

TEST_F(Evidence, AHostThatAnswersKeepsItsPeerStalled) {
  for (Nanos silence = 500ms; silence < 20s; silence += 500ms) {
    run_to(silence);
    on_host_alive();
  }
  run_to(23'400ms);
  EXPECT_EQ(state(), PeerState::kStalled) << "the host answers: the peer must not be lost yet";
  run_to(23'501ms);
  EXPECT_EQ(state(), PeerState::kLost) << "lost_timeout after the host has answered last";
}

TEST_F(Evidence, AnAnswerOfTheHostRevokesThatThePeerIsUnreachable) {
  run_to(500ms);
  on_unreachable();
  on_host_alive();
  run_to(1001ms);
  EXPECT_EQ(state(), PeerState::kStalled);
}

TEST_F(Evidence, ADeadProcessIsLostAtOnceAndItsWaitsEnd) {
  CounterKey key;
  {
    const core::StateGuard lock(core->state_mutex);
    key = *core->counters.make(core->now_ns);
    core->counters.bind(key, *core->peers.find(id));
  }
  ASSERT_TRUE(core->expect({.key = key, .n = 1, .value = 1}, seen.notify(), Timeout::forever()));
  run_to(10ms);
  on_peer_dead();
  EXPECT_EQ(state(), PeerState::kLost);
  on_peer_dead();
  core->kick();
  world.run_for(1ns);
  ASSERT_EQ(seen.count(), 1u);
  EXPECT_EQ(seen.events[0].code, Errc::kPeerLost);
  EXPECT_EQ(seen.events[0].peer, id);
}

TEST_F(Evidence, TheNetworkIsAskedWhenItHasReportedNothingLately) {
  run_to(499ms);
  EXPECT_FALSE(probe_due());
  run_to(500ms);
  EXPECT_TRUE(probe_due());
  on_host_alive();
  EXPECT_FALSE(probe_due());
  run_to(999ms);
  EXPECT_FALSE(probe_due());
  run_to(1000ms);
  EXPECT_TRUE(probe_due());
  on_unreachable();
  EXPECT_FALSE(probe_due());
}

}  // namespace
}  // namespace fabric::test::liveness_test

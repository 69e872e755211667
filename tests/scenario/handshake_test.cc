#include <algorithm>

#include <gtest/gtest.h>

#include "harness/write_auditor.h"
#include "scenario/scripted_peer.h"
#include "support/log_guard.h"

// Connecting, and what may prevent it: another job, another version, a peer that never answers or
// closes in the middle, an earlier incarnation (P15, P16).

namespace fabric::test::handshake_test {
namespace {

using control::MessageType;

constexpr uint64_t kSize = 64 << 10;

PeerState state_of(const Host& host, PeerId peer) { return host.engine.peer_info(peer)->state; }

std::function<bool()> is_lost(const Host& host, PeerId peer) {
  return [&host, peer] { return state_of(host, peer) == PeerState::kLost; };
}

/// The last change of a peer that was reported.
Event last_change(const EventRecorder& recorder) {
  Event last;
  for (const Event& event : recorder.events) {
    if (event.kind == EventKind::kPeer) last = event;
  }
  return last;
}

/// Sends a pattern and waits for its count at the other side.
void expect_usable(Host& from, Host& to, const RemoteHost& remote, uint64_t content) {
  Counter counter = *to.engine.make_counter();
  fill(from.bytes(), content);
  ASSERT_TRUE(from.engine.submit(Write{.source = from.memory.at(0),
                                       .target = remote.at(0),
                                       .size_bytes = kSize,
                                       .imm = counter.key()}));
  ASSERT_TRUE(counter.wait(1)) << from.engine.dump();
  EXPECT_TRUE(holds(to.bytes(), content));
}

// ---- Another job, another version ---------------------------------------------------------------

Config of_job(const std::string& key) {
  Config config = test_config();
  config.job_key = key;
  return config;
}

TEST(WrongJob, IsReportedAtOnceAndEndsWhatWasSubmitted) {
  using JobKeys = std::pair<const char*, const char*>;
  for (const auto& [here, there] :
       {JobKeys{"blue", "red"}, JobKeys{"", "red"}, JobKeys{"blue", ""}}) {
    SCOPED_TRACE(testing::Message() << "'" << here << "' to '" << there << "'");
    EventRecorder seen, ended;
    sim::World world;
    Host a = open_host(world, world.add_node(), kSize, of_job(here));
    Host b = open_host(world, world.add_node(), kSize, of_job(there));
    const Subscription subscription = *a.engine.subscribe(seen.notify());
    const RemoteHost remote = connect(a, b);
    ASSERT_TRUE(a.engine.submit(Write{.source = a.memory.at(0),
                                      .target = remote.at(0),
                                      .size_bytes = kSize,
                                      .notify = ended.notify()}));
    ASSERT_TRUE(world.run_until(is_lost(a, remote.peer), 1ms)) << a.engine.dump();
    world.run_for(1ms);
    EXPECT_EQ(last_change(seen).code, Errc::kWrongJob);
    ASSERT_EQ(ended.count(), 1u);
    EXPECT_EQ(ended.events[0].code, Errc::kWrongJob);
    EXPECT_EQ(ended.events[0].remote, Remote::kNotDelivered);
    EXPECT_EQ(b.engine.stats().control_bad, 1u);
    EXPECT_TRUE(b.engine.peers().empty()) << "nothing is kept for a peer of another job";
    EXPECT_TRUE(untouched(b.bytes()));
  }
}

class ScriptedHandshake : public testing::Test {
 protected:
  explicit ScriptedHandshake(const Config& config = test_config()) : engine(world.open(config)) {}
  void connect() {
    peer = *engine.connect(scripted.encoded_address());
    world.run_for(1ms);
    scripted.read();
  }
  void send_welcome() {
    scripted.send_welcome();
    world.run_for(1ms);
    ASSERT_EQ(state(), PeerState::kConnected);
  }
  PeerState state() const { return engine.peer_info(peer)->state; }
  /// A frame of a peer without our job key.
  void forge(MessageType type, uint64_t to_session, std::span<const std::byte> body) {
    const control::Header header{.type = type, .to_session = to_session};
    scripted.post(control::encode_frame(header, body, "another job"));
    world.run_for(1ms);
  }

  EventRecorder ended;  // outlives the engine that reports to it
  ScriptedWorld world;
  Engine engine;
  ScriptedPeer scripted{world, engine.address()};
  EventRecorder seen{&engine};
  Subscription subscription = *engine.subscribe(seen.notify());
  PeerId peer{};
};

TEST_F(ScriptedHandshake, ARejectOfAnotherJobIsBelievedOnlyByTheSessionThatItNames) {
  const auto wrong_job = control::encode(control::Reject{.code = Errc::kWrongJob});
  connect();
  const uint64_t session = scripted.engine_session;
  forge(MessageType::kReject, session + 1, wrong_job);
  forge(MessageType::kReject, 0, wrong_job);
  EXPECT_EQ(state(), PeerState::kConnecting) << "the session of another peer";
  forge(MessageType::kReject, session, control::encode(control::Reject{.code = Errc::kExhausted}));
  forge(MessageType::kBye, session, control::encode(control::Bye{.code = Errc::kPeerLost}));
  forge(MessageType::kWelcome, session, control::encode(scripted.hello));
  EXPECT_EQ(state(), PeerState::kConnecting) << "nothing else is accepted without the job key";
  EXPECT_EQ(engine.stats().control_bad, 5u);
  forge(MessageType::kReject, session, wrong_job);
  EXPECT_EQ(state(), PeerState::kLost);
  EXPECT_EQ(last_change(seen).code, Errc::kWrongJob);
}

TEST_F(ScriptedHandshake, ARejectOfAnotherJobDoesNotEndASessionThatIsUp) {
  connect();
  ASSERT_NO_FATAL_FAILURE(send_welcome());
  forge(MessageType::kReject, scripted.engine_session,
        control::encode(control::Reject{.code = Errc::kWrongJob}));
  EXPECT_EQ(state(), PeerState::kConnected);
  EXPECT_EQ(engine.stats().control_bad, 1u);
}

TEST_F(ScriptedHandshake, OnlyAPeerThatKnowsThisIncarnationLearnsThatItsJobIsWrong) {
  const auto hello = [&](uint64_t incarnation) {
    control::Hello forged = scripted.hello;
    forged.to_incarnation = incarnation;
    const control::Header header{.type = MessageType::kHello, .from_session = scripted.session};
    scripted.post(control::encode_frame(header, control::encode(forged), "another job"));
    world.run_for(1ms);
    scripted.read();
  };
  hello(scripted.hello.to_incarnation + 1);
  EXPECT_TRUE(scripted.frames.empty()) << "answered a hello for another incarnation";
  hello(scripted.hello.to_incarnation);
  const auto rejects = scripted.take(MessageType::kReject);
  ASSERT_EQ(rejects.size(), 1u);
  EXPECT_EQ(rejects[0].header.to_session, scripted.session);
  EXPECT_EQ(control::decode_reject(rejects[0].body)->code, Errc::kWrongJob);
  EXPECT_TRUE(engine.peers().empty());
}

TEST_F(ScriptedHandshake, FramesOfAnotherMajorAreCountedAndDisturbNothing) {
  connect();
  ASSERT_NO_FATAL_FAILURE(send_welcome());
  constexpr size_t kMajorAt = 4;
  for (const MessageType type : {MessageType::kHello, MessageType::kBye, MessageType::kReject}) {
    auto frame = control::encode_frame(scripted.header(type), control::encode(scripted.hello), "");
    frame[kMajorAt] = std::byte{2};
    scripted.post(frame);
  }
  world.run_for(1ms);
  EXPECT_EQ(engine.stats().control_bad, 3u);
  EXPECT_EQ(state(), PeerState::kConnected);
  EXPECT_EQ(engine.peers().size(), 1u);
}

// ---- Peers that never answer or close in the middle ---------------------------------------------

TEST_F(ScriptedHandshake, APeerThatNeverAnswersIsGivenUpWithEverythingThatWaited) {
  connect();
  Batch batch = *engine.make_batch();
  std::vector<CounterKey> keys(1);
  const uint64_t name = 5;
  ASSERT_TRUE(engine.submit(
      Send{.peer = peer, .channel = 1, .timeout = 100s, .batch = batch, .notify = ended.notify()}));
  ASSERT_TRUE(engine.submit(Resolve{.peer = peer,
                                    .names = {&name, 1},
                                    .out = keys,
                                    .timeout = 100s,
                                    .batch = batch,
                                    .notify = ended.notify()}));
  world.run_for(28s);
  EXPECT_EQ(state(), PeerState::kConnecting);
  EXPECT_GE(scripted.take(MessageType::kHello).size(), 25u) << "the hello was not repeated";
  world.run_for(2s);
  EXPECT_EQ(state(), PeerState::kLost);
  EXPECT_EQ(last_change(seen).code, Errc::kUnreachable);
  ASSERT_EQ(ended.count(), 2u);
  for (const Event& event : ended.events) {
    EXPECT_EQ(event.code, Errc::kUnreachable);
    EXPECT_EQ(event.remote, Remote::kNotDelivered);
  }
  // And it may be tried again.
  const PeerId again = *engine.connect(scripted.encoded_address());
  EXPECT_NE(again, peer);
  world.run_for(1ms);
  scripted.read();
  scripted.send_welcome();
  world.run_for(1ms);
  EXPECT_EQ(engine.peer_info(again)->state, PeerState::kConnected);
}

TEST_F(ScriptedHandshake, AGoodbyeThatOvertookItsWelcomeEndsTheSession) {
  connect();
  scripted.send(MessageType::kBye, control::encode(control::Bye{.code = Errc::kPeerLost}));
  scripted.send_welcome();
  world.run_for(1ms);
  EXPECT_EQ(state(), PeerState::kLost);
  EXPECT_EQ(last_change(seen).code, Errc::kPeerLost);
  for (const ControlFrame& bye : scripted.take(MessageType::kBye)) {
    EXPECT_EQ(bye.header.to_session, scripted.session);
  }
}

TEST_F(ScriptedHandshake, AWelcomeThatComesTooLateIsAnsweredSo) {
  connect();
  ASSERT_TRUE(engine.disconnect(peer));
  world.run_for(1s);
  scripted.take(MessageType::kBye);
  scripted.send_welcome();
  world.run_for(1ms);
  const auto byes = scripted.take(MessageType::kBye);
  ASSERT_FALSE(byes.empty());
  EXPECT_EQ(byes.back().header.to_session, scripted.session) << "the goodbye must name the session";
  EXPECT_TRUE(engine.peers().empty());
}

TEST_F(ScriptedHandshake, ALateHelloOpensNothingAndIsAnsweredThatTheSessionIsClosed) {
  scripted.send_hello();
  world.run_for(1ms);
  scripted.read();
  scripted.send(MessageType::kReady);
  world.run_for(1ms);
  ASSERT_EQ(engine.peers().size(), 1u);
  scripted.send(MessageType::kBye, control::encode(control::Bye{.code = Errc::kPeerLost}));
  world.run_for(1s);
  ASSERT_TRUE(engine.peers().empty());
  scripted.read();
  scripted.frames.clear();

  scripted.send_hello();
  world.run_for(1ms);
  EXPECT_TRUE(engine.peers().empty());
  const auto byes = scripted.take(MessageType::kBye);
  ASSERT_EQ(byes.size(), 1u);
  EXPECT_EQ(byes[0].header.to_session, scripted.session);
  // A hello of an earlier incarnation gets no answer.
  scripted.session += uint64_t{5} << 32;
  --scripted.hello.address.incarnation;
  scripted.send_hello();
  world.run_for(1ms);
  scripted.read();
  EXPECT_TRUE(engine.peers().empty());
  EXPECT_TRUE(scripted.frames.empty());
  // The next session is accepted.
  ++scripted.hello.address.incarnation;
  scripted.send_hello();
  world.run_for(1ms);
  EXPECT_EQ(scripted.take(MessageType::kWelcome).size(), 1u);
  EXPECT_EQ(engine.peers().size(), 1u);
}

TEST_F(ScriptedHandshake, APeerThatBeganAndNeverWentOnIsForgotten) {
  scripted.send_hello();
  world.run_for(29s);
  EXPECT_EQ(engine.peers().size(), 1u);
  EXPECT_GE(scripted.take(MessageType::kWelcome).size(), 25u);
  world.run_for(2s);
  EXPECT_TRUE(engine.peers().empty());
  EXPECT_EQ(seen.count(EventKind::kPeer), 0u) << "no caller on this side asked for the session";
  EXPECT_FALSE(scripted.take(MessageType::kBye).empty());
}

TEST_F(ScriptedHandshake, APeerThatBeganIsReportedOnceWeConnectToo) {
  scripted.send_hello();
  world.run_for(1ms);
  peer = *engine.connect(scripted.encoded_address());
  world.run_for(31s);
  ASSERT_EQ(seen.count(EventKind::kPeer), 2u);
  EXPECT_EQ(seen.events[0].value, static_cast<uint64_t>(PeerState::kConnecting));
  EXPECT_EQ(seen.events[1].value, static_cast<uint64_t>(PeerState::kLost));
  EXPECT_EQ(seen.events[1].code, Errc::kUnreachable);
}

/// One side connects and writes, the other closes at any moment of it.
TEST(DisconnectInTheMiddle, EndsEverythingOneWayOrTheOther) {
  uint64_t delivered = 0, failed = 0;
  for (uint64_t after = 0; after < 40; ++after) {
    SCOPED_TRACE(testing::Message() << "closed after " << after * 500 << " ns");
    EventRecorder seen, ended;
    sim::World world({.seed = test_seed() + after, .drop_control = after % 2 * 0.2});
    Host a = open_host(world, world.add_node(2), kSize);
    Host b = open_host(world, world.add_node(2), kSize);
    const Subscription subscription = *a.engine.subscribe(seen.notify());
    const RemoteHost remote = connect(a, b);
    ASSERT_TRUE(a.engine.submit(Write{.source = a.memory.at(0),
                                      .target = remote.at(0),
                                      .size_bytes = kSize,
                                      .timeout = 100s,
                                      .notify = ended.notify()}));
    world.run_for(Nanos(after * 500));
    ASSERT_TRUE(b.engine.close());
    ASSERT_TRUE(world.run_until(is_lost(a, remote.peer), 35s)) << a.engine.dump();
    ASSERT_TRUE(world.run_until([&] { return ended.count() == 1; }, 1ms)) << a.engine.dump();
    const Errc why = last_change(seen).code;
    EXPECT_TRUE(why == Errc::kPeerLost || why == Errc::kUnreachable) << to_string(why);
    (ended.events[0].code == Errc::kOk ? delivered : failed) += 1;
    if (ended.events[0].code == Errc::kOk) continue;
    EXPECT_EQ(ended.events[0].code, why);
  }
  EXPECT_GT(failed, 0u);
  EXPECT_GT(delivered, 0u) << "no write was delivered: the test shows nothing";
}

TEST(SimultaneousOpens, UnderHeavyLossMeetInOneSession) {
  for (const uint64_t seed : seeds(60)) {
    SCOPED_TRACE(replay(seed));
    sim::World world(
        {.seed = seed, .drop_control = 0.3, .duplicate_control = 0.3, .reorder_control = 0.5});
    Host a = open_host(world, world.add_node(), kSize);
    Host b = open_host(world, world.add_node(), kSize);
    const RemoteHost to_b = connect(a, b);
    world.run_for(Nanos(seed % 5 * 1000));
    const RemoteHost to_a = connect(b, a);
    ASSERT_NO_FATAL_FAILURE(expect_usable(a, b, to_b, seed));
    ASSERT_NO_FATAL_FAILURE(expect_usable(b, a, to_a, seed + 1));
    world.run_for(1s);
    EXPECT_EQ(a.engine.peers(), std::vector<PeerId>{to_b.peer});
    EXPECT_EQ(b.engine.peers(), std::vector<PeerId>{to_a.peer});
  }
}

// ---- Networks that were asked for ---------------------------------------------------------------

class OtherSideFirst : public testing::Test {
 protected:
  static std::vector<sim::NodeNetwork> networks() { return {{.name = "fast"}, {.name = "slow"}}; }
  void SetUp() override {
    const RemoteHost theirs = connect(b, a);
    await_connected(world, b, theirs.peer);
    world.run_for(1ms);
    ASSERT_EQ(a.engine.peers().size(), 1u);
  }
  std::string route(PeerId peer) const { return a.engine.peer_info(peer)->routes.at(0).network; }
  sim::World world;
  Host a = open_host(world, world.add_node(networks()), kSize);
  Host b = open_host(world, world.add_node(networks()), kSize);
};

TEST_F(OtherSideFirst, TheNetworksThatWeAskForAreTaken) {
  const RemoteHost remote = connect(a, b, {.networks = {"slow"}});
  EXPECT_EQ(a.engine.peers(), std::vector<PeerId>{remote.peer})
      << "the existing session must be used";
  EXPECT_EQ(route(remote.peer), "slow");
  ASSERT_NO_FATAL_FAILURE(expect_usable(a, b, remote, 1));
  world.run_for(1ms);
  for (const RailStats& rail : a.engine.rail_stats()) {
    EXPECT_EQ(rail.tx.bytes, rail.network == "slow" ? kSize : 0u) << rail.network;
  }
}

TEST_F(OtherSideFirst, ARouteInUseStaysAsItIs) {
  const RemoteHost remote = connect(a, b);
  ASSERT_NO_FATAL_FAILURE(expect_usable(a, b, remote, 1));
  EXPECT_EQ(*a.engine.connect(b.engine.address(), {.networks = {"slow"}}), remote.peer);
  EXPECT_EQ(route(remote.peer), "fast") << "the route changed without an event";
}

// ---- The next incarnation under the same name ---------------------------------------------------

Config named(uint64_t engine_id) {
  Config config = test_config();
  config.engine_id = engine_id;
  return config;
}

TEST(Restart, UnderTheSameNameGivesTheOldIncarnationUpAtOnce) {
  EventRecorder seen;
  sim::World world;
  const uint32_t node = world.add_node();
  Host a = open_host(world, world.add_node(), kSize);
  const Subscription subscription = *a.engine.subscribe(seen.notify());
  auto first = std::make_unique<Host>(open_host(world, node, kSize, named(42)));
  const RemoteHost old = connect(a, *first);
  const auto old_desc = *first->memory.desc();
  ASSERT_NO_FATAL_FAILURE(expect_usable(a, *first, old, 1));
  EXPECT_EQ(a.engine.peer_info(old.peer)->engine_id, 42u);

  // The first engine is still open and silent: the new incarnation alone has to end the session.
  Host second = open_host(world, node, kSize, named(42));
  Counter bound = *a.engine.make_counter();
  ASSERT_TRUE(bound.bind(old.peer));
  ASSERT_TRUE(second.engine.connect(a.engine.address()));
  EXPECT_EQ(bound.wait(1, 1s).error().code, Errc::kPeerLost);
  EXPECT_EQ(state_of(a, old.peer), PeerState::kLost);
  world.run_for(1ms);

  const RemoteHost now = connect(a, second);
  EXPECT_NE(now.peer, old.peer);
  EXPECT_EQ(a.engine.peers(), std::vector<PeerId>{now.peer});
  ASSERT_NO_FATAL_FAILURE(expect_usable(a, second, now, 2));
  EXPECT_EQ(a.engine.import_region(now.peer, old_desc).error().code, Errc::kPeerLost);
  const Write stale{.source = a.memory.at(0), .target = old.at(0), .size_bytes = 8};
  EXPECT_EQ(a.engine.submit(stale).error().code, Errc::kPeerLost) << "before posting";
  EXPECT_EQ(a.engine.connect(first->engine.address()).error().code, Errc::kPeerLost);
  EXPECT_TRUE(world.run_until([&] { return first->engine.peers().empty(); }, 20s))
      << "the old engine gets a goodbye when it pings";
}

TEST(Restart, UnderAnotherNameLeavesTheOldDescriptorsToTheirLostOwner) {
  sim::World world;
  const uint32_t node = world.add_node();
  Host a = open_host(world, world.add_node(), kSize);
  Host c = open_host(world, world.add_node(), kSize);
  const PeerId other = connect(a, c).peer;
  std::vector<std::byte> old_desc, unknown_desc;
  {
    Host b = open_host(world, node, kSize);
    Host d = open_host(world, node, kSize);
    old_desc = *b.memory.desc();
    unknown_desc = *d.memory.desc();
    const RemoteHost remote = connect(a, b);
    await_connected(world, a, remote.peer);
    EXPECT_EQ(a.engine.import_region(other, old_desc).error().code, Errc::kInvalidArgument);
  }
  world.run_for(1ms);
  EXPECT_EQ(a.engine.import_region(other, old_desc).error().code, Errc::kPeerLost);
  EXPECT_EQ(a.engine.import_region(other, unknown_desc).error().code, Errc::kInvalidArgument);
}

// ---- Limits -------------------------------------------------------------------------------------

// The limits that engines announce, and a peer table that is full (P16).

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
  ASSERT_TRUE(world.run_until([&] { return ended.count() > 0; }, 1ms)) << "refused at once";
  EXPECT_EQ(ended.events[0].code, Errc::kExhausted);
  EXPECT_EQ(ended.events[0].remote, Remote::kNotDelivered);
  EXPECT_EQ(seen.events.back().code, Errc::kExhausted);
  EXPECT_EQ(c.engine.peer_info(second.peer)->state, PeerState::kLost);
  EXPECT_TRUE(delivers(world, a, b, 5)) << "the first peer is not disturbed";

  ASSERT_TRUE(a.engine.disconnect(first.peer));
  world.run_for(500ms);
  EXPECT_TRUE(delivers(world, c, b, 6));
}

/// An engine with a session to a scripted peer.
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
}  // namespace fabric::test::handshake_test

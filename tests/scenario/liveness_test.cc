#include <algorithm>

#include "harness/host.h"
#include "support/log_guard.h"

// Peers that fall silent, are stopped, die, come back, and writers that were away for too long
// (P16). Every engine is a real one; the faults are the world's.

namespace fabric::test {
namespace {

constexpr uint64_t kSize = 64 << 10;

using Change = std::pair<PeerState, Errc>;

/// What subscribers were told of one peer.
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
  EXPECT_LE(a.engine.stats().turns - turns, 600u * 40) << "a few datagrams a second";
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
  EXPECT_EQ(batch.pending(), 1u) << "operations go on until their deadlines";
  happens(sim::Fault::resume(node_b));
  EXPECT_TRUE(a.engine.wait(batch));
  EXPECT_EQ(changes(seen_a, to_b.peer),
            met_and({{PeerState::kStalled, Errc::kTimeout}, {PeerState::kConnected, Errc::kOk}}));
  EXPECT_EQ(changes(seen_b, to_a.peer), kMet) << "its own sleep is nobody's silence";
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
  EXPECT_EQ(bound.wait(1, 60s).error().code, Errc::kPeerLost) << "a wait that names its peer";
  world.run_for(1s);
  EXPECT_EQ(state(a, to_b.peer), PeerState::kLost);
  EXPECT_EQ(state(b, to_a.peer), PeerState::kLost);
  EXPECT_EQ(changes(seen_a, to_b.peer),
            met_and({{PeerState::kStalled, Errc::kTimeout}, {PeerState::kLost, Errc::kPeerLost}}));
  happens(sim::Fault::heal(node_a, node_b));
  world.run_for(1s);
  EXPECT_TRUE(a.engine.peers().empty()) << "nobody has asked for a new one";

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
/// The target is patient, so that nothing but the lease stands in the way.
class Zombie : public Liveness {
 protected:
  static sim::NicModel open_to_all() {
    sim::NicModel model = sim::NicModel::efa_200g();
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
  EXPECT_TRUE(untouched(b.bytes())) << "it was away for longer than its lease";
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
  EXPECT_EQ(state(a, to_b.peer), PeerState::kLost) << "its ping earned a goodbye";
  world.run_for(1s);
  EXPECT_TRUE(untouched(b.bytes()));
  EXPECT_EQ(batch.unknown(), 0u);
}

}  // namespace
}  // namespace fabric::test

#include <algorithm>
#include <optional>
#include <set>

#include "harness/host.h"
#include "support/log_guard.h"

// Counts that cannot be trusted any more (P9 to P11): keys that a write of unknown fate has
// spoiled, groups that lose a member, names whose senders do not answer, and immediates that arrive
// in the next life of their key.

namespace fabric::test {
namespace {

using sim::Fault;

constexpr uint64_t kSize = 64 << 10, kPage = 4096;
constexpr uint32_t kReceiver = 0;  // the node; senders come after it

Config quick() {
  Config config = story_config();
  config.peer_timeout = 1s;
  config.lost_timeout = 4s;
  config.drain_timeout = 1s;
  return config;
}

struct Sender {
  Host host;
  Way way;
  PeerId there;  ///< how the receiver knows it
  uint32_t node;
};

/// A receiver and some senders, on a network without exact replay.
class Stage {
 public:
  explicit Stage(uint32_t senders, const Config& receiver_config = quick(),
                 const sim::NicModel& model = sim::NicModel::efa_200g())
      : world({.seed = test_seed()}) {
    receiver.emplace(open_host(world, world.add_node(1, model), kSize, receiver_config));
    for (uint32_t i = 0; i < senders; ++i) {
      Config config = quick();
      config.engine_id = 100 + i;
      const uint32_t node = world.add_node(1, model);
      Host host = open_host(world, node, kSize, config);
      const Way way = connect(host, *receiver);
      all.push_back({std::move(host), way, {}, node});
      fill(all.back().host.bytes(), i);
      write(i, {});  // the path is open
      world.run_for(1ms);
      for (const PeerId peer : receiver->engine.peers()) {
        if (receiver->engine.peer_info(peer)->engine_id == 100 + i) all[i].there = peer;
      }
    }
  }
  void write(uint32_t sender, CounterKey key, uint32_t times = 1) {
    Sender& from = all[sender];
    for (uint32_t i = 0; i < times; ++i) {
      ASSERT_TRUE(from.host.engine.submit(Write{.source = from.host.memory.at(0),
                                                .target = from.way.at(sender * kPage),
                                                .size_bytes = kPage,
                                                .imm = key,
                                                .notify = ended.notify(sender)}));
    }
  }
  CounterKey resolve(uint32_t sender, uint64_t name) {
    CounterKey key;
    EXPECT_TRUE(all[sender].host.engine.resolve(all[sender].way.peer, {&name, 1}, {&key, 1}));
    return key;
  }
  void happens(const Fault& fault) { ASSERT_TRUE(world.at(world.now(), fault)); }
  /// The next end of a write.
  Event next_end() {
    const size_t before = ended.events.size();
    EXPECT_TRUE(world.run_until([&] { return ended.events.size() > before; }, 10s));
    return ended.events.back();
  }
  Event await(uint64_t tag, Nanos limit = 10s) {
    const bool came = world.run_until([&] { return waited.find(tag) != nullptr; }, limit);
    EXPECT_TRUE(came) << receiver->engine.dump();
    return came ? *waited.find(tag) : Event{};
  }
  /// One write of the sender under the key lands, and its sender never hears of it.
  void write_of_unknown_fate(uint32_t sender, CounterKey key) {
    happens(Fault::lose_acks(all[sender].node, kReceiver));
    write(sender, key);
    const Event event = next_end();
    EXPECT_EQ(event.code, Errc::kRailLost);
    EXPECT_EQ(event.remote, Remote::kUnknown);
    happens(Fault::keep_acks(all[sender].node, kReceiver));
    world.run_for(1ms);
  }

  Witness ended, waited;
  sim::World world;
  std::optional<Host> receiver;
  std::vector<Sender> all;
};

// ---- Spoiled keys -------------------------------------------------------------------------------

TEST(SpoiledKey, EndsWhoeverWaitsAndNamesThePeer) {
  Stage stage(2);
  Engine& engine = stage.receiver->engine;
  Counter bad = *engine.make_counter(), good = *engine.make_counter();
  ASSERT_TRUE(bad.expect(2, stage.waited.notify(1)));
  ASSERT_TRUE(good.expect(2, stage.waited.notify(2)));
  stage.write_of_unknown_fate(0, bad.key());
  const Event event = stage.await(1);
  EXPECT_EQ(event.code, Errc::kAborted);
  EXPECT_EQ(event.peer, stage.all[0].there);
  // It stays so, for everybody who asks, whatever else arrives.
  stage.write(1, bad.key());
  EXPECT_EQ(stage.next_end().code, Errc::kOk) << "to its sender it is an ordinary key";
  EXPECT_EQ(bad.wait(1, 1s).error().code, Errc::kAborted);
  EXPECT_EQ(bad.expect(1, {}).error().code, Errc::kAborted);
  EXPECT_FALSE(bad.try_take(1));
  // Replaced, it works; others were never touched.
  const CounterKey old = bad.key();
  bad = *engine.make_counter();
  EXPECT_NE(bad.key(), old);
  stage.write(0, bad.key(), 2);
  EXPECT_TRUE(bad.wait(2, 5s));
  EXPECT_EQ(stage.waited.find(2), nullptr);
  stage.write(0, good.key());
  stage.write(1, good.key());
  EXPECT_EQ(stage.await(2).code, Errc::kOk);
}

TEST(SpoiledKey, EndsAWaitThatIsAlreadyThere) {
  Stage stage(1);
  Counter counter = *stage.receiver->engine.make_counter();
  stage.happens(Fault::lose_acks(stage.all[0].node, kReceiver));
  stage.write(0, counter.key());
  const Nanos began = stage.world.now();
  EXPECT_EQ(counter.wait(2, 10s).error().code, Errc::kAborted);
  EXPECT_LE(stage.world.now() - began, Nanos(1s)) << "as soon as the sender's NIC gives up";
}

TEST(SpoiledKey, IsNotMadeByAWriteThatCountsNothing) {
  Stage stage(1);
  Counter counter = *stage.receiver->engine.make_counter();
  ASSERT_TRUE(counter.expect(1, stage.waited.notify(1)));
  stage.write_of_unknown_fate(0, {});
  stage.world.run_for(1s);
  EXPECT_EQ(stage.waited.count(), 0u);
  stage.write(0, counter.key());
  EXPECT_EQ(stage.await(1).code, Errc::kOk);
}

TEST(SpoiledKey, OfManyPartsEndsTheKeyOfThePartOnly) {
  Stage stage(2);
  Counter first = *stage.receiver->engine.make_counter();
  Counter second = *stage.receiver->engine.make_counter();
  Host& from = stage.all[0].host;
  ASSERT_TRUE(first.expect(2, stage.waited.notify(1)));
  const std::vector<ScatterTarget> targets{
      {stage.all[0].way.at(0), 0, kPage, first.key()},
      {stage.all[0].way.at(kPage), kPage, kPage, CounterKey{}},
  };
  stage.happens(Fault::lose_acks(stage.all[0].node, kReceiver));
  ASSERT_TRUE(from.engine.submit(
      Scatter{.source = from.memory.id(), .targets = targets, .notify = stage.ended.notify()}));
  EXPECT_EQ(stage.next_end().previous, 2u) << "both of unknown fate";
  stage.happens(Fault::keep_acks(stage.all[0].node, kReceiver));
  EXPECT_EQ(stage.await(1).code, Errc::kAborted);
  stage.write(0, second.key());
  EXPECT_TRUE(second.wait(1, 5s));
}

// ---- Groups -------------------------------------------------------------------------------------

/// A group with one member for each sender.
struct Group {
  explicit Group(Stage& stage) : group(*stage.receiver->engine.make_counter_group()) {
    for (Sender& sender : stage.all) {
      members.push_back(*stage.receiver->engine.make_counter());
      EXPECT_TRUE(group.add(members.back(), sender.there));
    }
  }
  CounterKey key(uint32_t i) const { return members[i].key(); }
  std::vector<Counter> members;
  CounterGroup group;
};

/// Whoever `trouble` has hit is named, masked, and the step that failed and all later ones are
/// complete without it.
void goes_on_without(uint32_t victim, Errc code,
                     const std::function<void(Stage&, Group&)>& trouble) {
  expect_log("a path broke");
  Stage stage(3);
  Group group(stage);
  for (uint32_t i = 0; i < 3; ++i) stage.write(i, group.key(i));
  ASSERT_TRUE(group.group.wait(3, 5s)) << "a step as it should be";

  ASSERT_TRUE(group.group.expect(3, stage.waited.notify(1), 60s));
  for (uint32_t i = 0; i < 3; ++i) {
    if (i != victim) stage.write(i, group.key(i));
  }
  stage.world.run_for(1ms);
  trouble(stage, group);
  const Event event = stage.await(1, 30s);
  const PeerId peer = stage.all[victim].there;
  EXPECT_EQ(event.code, code);
  EXPECT_EQ(event.peer, peer);
  EXPECT_EQ(group.group.missing(), std::vector<PeerId>{peer});
  EXPECT_EQ(group.group.wait(3, 1s).error().code, code) << "not before it is masked";

  ASSERT_TRUE(group.group.mask(peer));
  EXPECT_TRUE(group.group.missing().empty());
  EXPECT_TRUE(group.group.wait(3, 1s)) << "what the others had sent is still there";
  const uint64_t stale = stage.receiver->engine.stats().stale_imms;
  stage.happens(Fault::resume(stage.all[victim].node));
  for (uint32_t step = 0; step < 3; ++step) {
    ASSERT_TRUE(group.group.expect(2, stage.waited.notify(10 + step)));
    for (uint32_t i = 0; i < 3; ++i) {
      const bool same_session =
          stage.all[i].host.engine.peer_info(stage.all[i].way.peer)->state < PeerState::kLost;
      if (i == victim && same_session) stage.write(i, group.key(i));
    }
    stage.world.run_for(10ms);
    EXPECT_EQ(group.group.count(), 0u) << "a masked one counts";
    for (uint32_t i = 0; i < 3; ++i) {
      if (i != victim) stage.write(i, group.key(i));
    }
    EXPECT_EQ(stage.await(10 + step).code, Errc::kOk);
  }
  const uint64_t late = code == Errc::kAborted ? 3 : 0;
  EXPECT_EQ(stage.receiver->engine.stats().stale_imms, stale + late);
}

TEST(LostMember, OfAGroupIsNamedMaskedAndDoneWithout) {
  goes_on_without(1, Errc::kPeerLost, [](Stage& stage, Group&) {
    stage.happens(Fault::stop(stage.all[1].node));
    stage.happens(Fault::control_cut(stage.all[1].node, kReceiver));
    stage.happens(Fault::cut(stage.all[1].node, kReceiver));
  });
}

TEST(LostMember, ThatDiedIsNamedMaskedAndDoneWithout) {
  expect_log("a path broke");
  Stage stage(2);
  Group group(stage);
  stage.write(0, group.key(0));
  stage.happens(Fault::crash(stage.all[1].node));
  EXPECT_EQ(group.group.wait(2, 60s).error().code, Errc::kPeerLost);
  ASSERT_TRUE(group.group.mask(stage.all[1].there));
  EXPECT_TRUE(group.group.wait(2, 1s));
  stage.write(0, group.key(0));
  EXPECT_TRUE(group.group.wait(1, 1s));
}

TEST(SpoiledMember, OfAGroupIsNamedMaskedAndDoneWithout) {
  goes_on_without(2, Errc::kAborted, [](Stage& stage, Group& group) {
    stage.happens(Fault::cut(stage.all[2].node, kReceiver));
    stage.write(2, group.key(2));
    EXPECT_EQ(stage.next_end().remote, Remote::kUnknown);
    stage.happens(Fault::heal(stage.all[2].node, kReceiver));
  });
}

TEST(LostMember, MaskingOneOfTwoLeavesTheOtherToBeNamed) {
  expect_log("a path broke");
  Stage stage(3);
  Group group(stage);
  stage.write(0, group.key(0));
  stage.happens(Fault::crash(stage.all[1].node));
  EXPECT_EQ(group.group.wait(3, 60s).error().code, Errc::kPeerLost);
  stage.write_of_unknown_fate(2, group.key(2));
  ASSERT_TRUE(group.group.mask(stage.all[1].there));
  EXPECT_EQ(group.group.missing(), std::vector<PeerId>{stage.all[2].there});
  EXPECT_EQ(group.group.wait(3, 1s).error().code, Errc::kAborted);
  ASSERT_TRUE(group.group.mask(stage.all[2].there));
  EXPECT_TRUE(group.group.wait(3, 1s));
}

TEST(LostMember, AfterAnotherWasMaskedEndsTheWaitAsWell) {
  expect_log("a path broke");
  Stage stage(3);
  Group group(stage);
  stage.happens(Fault::crash(stage.all[1].node));
  EXPECT_EQ(group.group.wait(3, 60s).error().code, Errc::kPeerLost);
  ASSERT_TRUE(group.group.mask(stage.all[1].there));
  stage.write(0, group.key(0));
  stage.happens(Fault::crash(stage.all[2].node));
  EXPECT_EQ(group.group.wait(3, 60s).error().code, Errc::kPeerLost);
  EXPECT_EQ(group.group.missing(), std::vector<PeerId>{stage.all[2].there});
  ASSERT_TRUE(group.group.mask(stage.all[2].there));
  EXPECT_TRUE(group.group.wait(3, 1s)) << "what had arrived is still there";
}

// ---- Names --------------------------------------------------------------------------------------

TEST(ClosedName, IsProvedOnlyByTheWordOfEverySender) {
  using Trouble = std::function<void(Stage&, CounterKey)>;
  Nanos took{};
  const auto close_after = [&](const Trouble& trouble) {
    Stage stage(2);
    Counter counter = *stage.receiver->engine.named_counter(5);
    for (uint32_t i = 0; i < 2; ++i) stage.write(i, stage.resolve(i, 5));
    EXPECT_TRUE(counter.wait(2, 5s));
    trouble(stage, counter.key());
    const Nanos began = stage.world.now();
    const Quiescence rest = *counter.close(2s);
    took = stage.world.now() - began;
    EXPECT_LE(took, Nanos(2s));
    Counter again = *stage.receiver->engine.named_counter(5);
    EXPECT_NE(again.key(), counter.key());
    for (uint32_t i = 0; i < 2; ++i) stage.happens(Fault::resume(stage.all[i].node));
    return rest;
  };
  expect_log("a path broke");
  const uint32_t kNode = 2;  // of the second sender
  EXPECT_EQ(close_after([](Stage&, CounterKey) {}), Quiescence::kProved);
  EXPECT_EQ(close_after([](Stage& stage, CounterKey key) { stage.write(1, key, 10); }), Quiescence::kProved)
      << "what is posted drains, what is queued ends";
  EXPECT_EQ(close_after([](Stage& stage, CounterKey) { stage.happens(Fault::stop(kNode)); }),
            Quiescence::kQuarantined);
  EXPECT_EQ(close_after([](Stage& stage, CounterKey) {
              stage.happens(Fault::stop(kNode));
              stage.world.run_for(1500ms);  // stalled
            }),
            Quiescence::kQuarantined);
  EXPECT_EQ(close_after([](Stage& stage, CounterKey) {
              stage.happens(Fault::crash(kNode));
              stage.world.run_for(10s);  // lost
            }),
            Quiescence::kQuarantined);
  EXPECT_EQ(close_after([](Stage& stage, CounterKey key) { stage.write_of_unknown_fate(1, key); }),
            Quiescence::kQuarantined)
      << "it may still land, and its sender cannot say";
  EXPECT_LE(took, Nanos(10ms)) << "but it can say that";
  EXPECT_EQ(close_after([](Stage& stage, CounterKey) {
              stage.happens(Fault::stop(kNode));
              ASSERT_TRUE(stage.world.at(stage.world.now() + 1s, Fault::resume(kNode)));
            }),
            Quiescence::kProved)
      << "late, but in time";
}

TEST(ClosedName, EndsWhatASenderHasQueuedAndNothingElse) {
  sim::NicModel model = sim::NicModel::efa_200g();
  model.path_depth = 4;
  Stage stage(1, quick(), model);
  Counter closing = *stage.receiver->engine.named_counter(1);
  Counter staying = *stage.receiver->engine.named_counter(2);
  const CounterKey one = stage.resolve(0, 1), two = stage.resolve(0, 2);
  stage.ended.events.clear();
  for (uint32_t i = 0; i < 20; ++i) {
    stage.write(0, one);
    stage.write(0, two);
  }
  stage.world.run_for(10us);
  EXPECT_EQ(*closing.close(5s), Quiescence::kProved);
  const uint64_t stale = stage.receiver->engine.stats().stale_imms;
  EXPECT_TRUE(staying.wait(20, 5s));
  stage.world.run_for(10ms);
  EXPECT_EQ(stage.receiver->engine.stats().stale_imms, stale) << "it had said that it is quiet";
  ASSERT_EQ(stage.ended.count(), 40u);
  const auto released = std::ranges::count(stage.ended.events, Errc::kReleased, &Event::code);
  EXPECT_GT(released, 5);
  EXPECT_EQ(std::ranges::count(stage.ended.events, Errc::kOk, &Event::code) + released, 40);
}

// ---- Old traffic --------------------------------------------------------------------------------

TEST(LateCount, OfAReleasedKeyNeverCountsInItsNextLife) {
  Config config = quick();
  config.counters_max = 1;  // the same slot comes back at once
  for (const bool by_network : {true, false}) {
    SCOPED_TRACE(by_network ? "late packets" : "late completions");
    Stage stage(1, config);
    Engine& engine = stage.receiver->engine;
    std::set<CounterKey> keys;
    uint64_t late = 0;
    for (uint32_t life = 0; life < 20; ++life) {
      const Counter counter = *engine.make_counter();  // released at the end of its life
      EXPECT_TRUE(keys.insert(counter.key()).second);
      stage.happens(by_network ? Fault::delay(stage.all[0].node, 5ms)
                               : Fault::late_counts(kReceiver, 5ms));
      stage.world.run_for(1us);
      stage.write(0, counter.key(), 3);
      for (uint32_t i = 0; i < 10; ++i) {
        stage.world.run_for(100us);
        ASSERT_EQ(counter.count(), 0u) << "its own are late, and the others are not its own";
      }
      late += 3;
    }
    stage.world.run_for(20ms);
    EXPECT_EQ(engine.stats().stale_imms, late);
  }
}

TEST(Names, OfOnePeerAreBoundedAndNobodyElsePays) {
  expect_log("a path broke");
  Config config = quick();
  config.names_per_peer_max = 8;
  Stage stage(2, config);
  Engine& greedy = stage.all[0].host.engine;
  std::vector<CounterKey> out(1);
  Errc refused = Errc::kOk;
  for (uint64_t name = 0; name < 1000 && refused == Errc::kOk; ++name) {
    refused = greedy.resolve(stage.all[0].way.peer, {&name, 1}, out).error().code;
  }
  EXPECT_EQ(refused, Errc::kExhausted);
  EXPECT_EQ(stage.receiver->engine.stats().counters, 8u);
  const CounterKey key = stage.resolve(1, 500);
  stage.write(1, key);
  Counter counter = *stage.receiver->engine.named_counter(500);
  EXPECT_TRUE(counter.wait(1, 5s));
  // A claim gives room; so does the end of the peer.
  Counter claimed = *stage.receiver->engine.named_counter(3);
  EXPECT_EQ(claimed.key(), stage.resolve(0, 3));
  stage.resolve(0, 100);
  stage.happens(Fault::crash(stage.all[0].node));
  stage.world.run_for(20s);
  EXPECT_EQ(stage.receiver->engine.stats().counters, 2u) << "its names went with it";
}

}  // namespace
}  // namespace fabric::test

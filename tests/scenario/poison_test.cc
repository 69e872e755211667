#include <algorithm>
#include <optional>
#include <set>

#include <gtest/gtest.h>

#include "harness/host.h"
#include "scenario/pairs.h"
#include "support/log_guard.h"

// Counts that cannot be trusted any more (P9 to P11): counter keys that a write of unknown fate has
// poisoned, groups that lose a member, names whose senders do not answer, and immediates that
// arrive in the next generation of their counter key.

namespace fabric::test::poison_test {
namespace {

using sim::Fault;

constexpr uint64_t kSize = 64 << 10, kPage = 4096;
constexpr uint32_t kReceiver = 0;  // the node; senders come after it

Config poison_config() {
  Config config = test_config();
  config.peer_timeout = 1s;
  config.lost_timeout = 4s;
  config.drain_timeout = 1s;
  return config;
}

struct Sender {
  Host host;
  RemoteHost remote;
  PeerId there;  ///< how the receiver knows it
  uint32_t node;
};

/// A receiver and some senders, on a network without exact replay.
class PoisonSetup {
 public:
  explicit PoisonSetup(uint32_t senders, const Config& receiver_config = poison_config(),
                       const sim::NicModel& model = srd_model())
      : world({.seed = test_seed()}) {
    receiver.emplace(open_host(world, world.add_node(1, model), kSize, receiver_config));
    for (uint32_t i = 0; i < senders; ++i) {
      Config config = poison_config();
      config.engine_id = 100 + i;
      const uint32_t node = world.add_node(1, model);
      Host host = open_host(world, node, kSize, config);
      const RemoteHost remote = connect(host, *receiver);
      all.push_back({std::move(host), remote, {}, node});
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
                                                .target = from.remote.at(sender * kPage),
                                                .size_bytes = kPage,
                                                .imm = key,
                                                .notify = ended.notify(sender)}));
    }
  }
  CounterKey resolve(uint32_t sender, uint64_t name) {
    CounterKey key;
    EXPECT_TRUE(all[sender].host.engine.resolve(all[sender].remote.peer, {&name, 1}, {&key, 1}));
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
  /// One write of the sender under the counter key lands, and its sender gets no acknowledgement.
  void write_of_unknown_fate(uint32_t sender, CounterKey key) {
    happens(Fault::lose_acks(all[sender].node, kReceiver));
    write(sender, key);
    const Event event = next_end();
    EXPECT_EQ(event.code, Errc::kRailLost);
    EXPECT_EQ(event.remote, Remote::kUnknown);
    happens(Fault::keep_acks(all[sender].node, kReceiver));
    world.run_for(1ms);
  }

  EventRecorder ended, waited;
  sim::World world;
  std::optional<Host> receiver;
  std::vector<Sender> all;
};

// ---- Poisoned counter keys ----------------------------------------------------------------------

TEST(PoisonedKey, EndsEveryWaitAndNamesThePeer) {
  PoisonSetup setup(2);
  Engine& engine = setup.receiver->engine;
  Counter bad = *engine.make_counter(), good = *engine.make_counter();
  ASSERT_TRUE(bad.expect(2, setup.waited.notify(1)));
  ASSERT_TRUE(good.expect(2, setup.waited.notify(2)));
  setup.write_of_unknown_fate(0, bad.key());
  const Event event = setup.await(1);
  EXPECT_EQ(event.code, Errc::kAborted);
  EXPECT_EQ(event.peer, setup.all[0].there);
  // It stays poisoned for every wait, whatever else arrives.
  setup.write(1, bad.key());
  EXPECT_EQ(setup.next_end().code, Errc::kOk) << "the sender must not notice";
  EXPECT_EQ(bad.wait(1, 1s).error().code, Errc::kAborted);
  EXPECT_EQ(bad.expect(1, {}).error().code, Errc::kAborted);
  EXPECT_FALSE(bad.try_take(1));
  // Replaced, it works; others were never touched.
  const CounterKey old = bad.key();
  bad = *engine.make_counter();
  EXPECT_NE(bad.key(), old);
  setup.write(0, bad.key(), 2);
  EXPECT_TRUE(bad.wait(2, 5s));
  EXPECT_EQ(setup.waited.find(2), nullptr);
  setup.write(0, good.key());
  setup.write(1, good.key());
  EXPECT_EQ(setup.await(2).code, Errc::kOk);
}

TEST(PoisonedKey, EndsAWaitThatIsAlreadyThere) {
  PoisonSetup setup(1);
  Counter counter = *setup.receiver->engine.make_counter();
  setup.happens(Fault::lose_acks(setup.all[0].node, kReceiver));
  setup.write(0, counter.key());
  const Nanos began = setup.world.now();
  EXPECT_EQ(counter.wait(2, 10s).error().code, Errc::kAborted);
  EXPECT_LE(setup.world.now() - began, Nanos(1s))
      << "the wait must end when the sender's NIC gives up";
}

TEST(PoisonedKey, IsNotMadeByAWriteThatCountsNothing) {
  PoisonSetup setup(1);
  Counter counter = *setup.receiver->engine.make_counter();
  ASSERT_TRUE(counter.expect(1, setup.waited.notify(1)));
  setup.write_of_unknown_fate(0, {});
  setup.world.run_for(1s);
  EXPECT_EQ(setup.waited.count(), 0u);
  setup.write(0, counter.key());
  EXPECT_EQ(setup.await(1).code, Errc::kOk);
}

TEST(PoisonedKey, OfManyPartsEndsTheKeyOfThePartOnly) {
  PoisonSetup setup(2);
  Counter first = *setup.receiver->engine.make_counter();
  Counter second = *setup.receiver->engine.make_counter();
  Host& from = setup.all[0].host;
  ASSERT_TRUE(first.expect(2, setup.waited.notify(1)));
  const std::vector<ScatterTarget> targets{
      {setup.all[0].remote.at(0), 0, kPage, first.key()},
      {setup.all[0].remote.at(kPage), kPage, kPage, CounterKey{}},
  };
  setup.happens(Fault::lose_acks(setup.all[0].node, kReceiver));
  ASSERT_TRUE(from.engine.submit(
      Scatter{.source = from.memory.id(), .targets = targets, .notify = setup.ended.notify()}));
  EXPECT_EQ(setup.next_end().parts_unknown, 2u) << "both parts must be of unknown fate";
  setup.happens(Fault::keep_acks(setup.all[0].node, kReceiver));
  EXPECT_EQ(setup.await(1).code, Errc::kAborted);
  setup.write(0, second.key());
  EXPECT_TRUE(second.wait(1, 5s));
}

// ---- Groups -------------------------------------------------------------------------------------

/// A group with one member for each sender.
struct Group {
  explicit Group(PoisonSetup& setup) : group(*setup.receiver->engine.make_counter_group()) {
    for (Sender& sender : setup.all) {
      members.push_back(*setup.receiver->engine.make_counter());
      EXPECT_TRUE(group.add(members.back(), sender.there));
    }
  }
  CounterKey key(uint32_t i) const { return members[i].key(); }
  std::vector<Counter> members;
  CounterGroup group;
};

/// The member that `inject` hits is named and masked; the step that failed and all later ones are
/// complete without it.
void goes_on_without(uint32_t victim, Errc code,
                     const std::function<void(PoisonSetup&, Group&)>& inject) {
  expect_log("a path broke");
  PoisonSetup setup(3);
  Group group(setup);
  for (uint32_t i = 0; i < 3; ++i) setup.write(i, group.key(i));
  ASSERT_TRUE(group.group.wait(3, 5s)) << "an undisturbed step must complete";

  ASSERT_TRUE(group.group.expect(3, setup.waited.notify(1), 60s));
  for (uint32_t i = 0; i < 3; ++i) {
    if (i != victim) setup.write(i, group.key(i));
  }
  setup.world.run_for(1ms);
  inject(setup, group);
  const Event event = setup.await(1, 30s);
  const PeerId peer = setup.all[victim].there;
  EXPECT_EQ(event.code, code);
  EXPECT_EQ(event.peer, peer);
  EXPECT_EQ(group.group.missing(), std::vector<PeerId>{peer});
  EXPECT_EQ(group.group.lost(), std::vector<PeerId>{peer});
  EXPECT_EQ(group.group.wait(1s).error().code, code) << "not before it is masked";

  ASSERT_TRUE(group.group.mask(peer));
  EXPECT_TRUE(group.group.missing().empty());
  EXPECT_TRUE(group.group.lost().empty());
  EXPECT_TRUE(group.group.wait(2, 1s)) << "what the others had sent is still there";
  const uint64_t stale = setup.receiver->engine.stats().stale_imms;
  setup.happens(Fault::resume(setup.all[victim].node));
  for (uint32_t step = 0; step < 3; ++step) {
    ASSERT_TRUE(group.group.expect(2, setup.waited.notify(10 + step)));
    for (uint32_t i = 0; i < 3; ++i) {
      const bool same_session =
          setup.all[i].host.engine.peer_info(setup.all[i].remote.peer)->state < PeerState::kLost;
      if (i == victim && same_session) setup.write(i, group.key(i));
    }
    setup.world.run_for(10ms);
    EXPECT_EQ(group.group.count(), 0u) << "a masked member counted";
    for (uint32_t i = 0; i < 3; ++i) {
      if (i != victim) setup.write(i, group.key(i));
    }
    EXPECT_EQ(setup.await(10 + step).code, Errc::kOk);
  }
  const uint64_t late = code == Errc::kAborted ? 3 : 0;
  EXPECT_EQ(setup.receiver->engine.stats().stale_imms, stale + late);
}

TEST(LostMember, OfAGroupIsNamedMaskedAndDoneWithout) {
  goes_on_without(1, Errc::kPeerLost, [](PoisonSetup& setup, Group&) {
    setup.happens(Fault::stop(setup.all[1].node));
    setup.happens(Fault::control_cut(setup.all[1].node, kReceiver));
    setup.happens(Fault::cut(setup.all[1].node, kReceiver));
  });
}

TEST(LostMember, ThatDiedIsNamedMaskedAndDoneWithout) {
  expect_log("a path broke");
  PoisonSetup setup(2);
  Group group(setup);
  setup.write(0, group.key(0));
  setup.happens(Fault::crash(setup.all[1].node));
  EXPECT_EQ(group.group.wait(60s).error().code, Errc::kPeerLost);
  ASSERT_TRUE(group.group.mask(setup.all[1].there));
  EXPECT_TRUE(group.group.wait(1s));
  EXPECT_EQ(group.group.wait(10ms).error().code, Errc::kTimeout) << "it was taken";
  setup.write(0, group.key(0));
  EXPECT_TRUE(group.group.wait(1, 1s));
}

TEST(PoisonedMember, OfAGroupIsNamedMaskedAndDoneWithout) {
  goes_on_without(2, Errc::kAborted, [](PoisonSetup& setup, Group& group) {
    setup.happens(Fault::cut(setup.all[2].node, kReceiver));
    setup.write(2, group.key(2));
    EXPECT_EQ(setup.next_end().remote, Remote::kUnknown);
    setup.happens(Fault::heal(setup.all[2].node, kReceiver));
  });
}

TEST(LostMember, MaskingOneOfTwoLeavesTheOtherToBeNamed) {
  expect_log("a path broke");
  PoisonSetup setup(3);
  Group group(setup);
  setup.write(0, group.key(0));
  setup.happens(Fault::crash(setup.all[1].node));
  EXPECT_EQ(group.group.wait(60s).error().code, Errc::kPeerLost);
  setup.write_of_unknown_fate(2, group.key(2));
  ASSERT_TRUE(group.group.mask(setup.all[1].there));
  EXPECT_EQ(group.group.missing(), std::vector<PeerId>{setup.all[2].there});
  EXPECT_EQ(group.group.lost(), std::vector<PeerId>{setup.all[2].there});
  EXPECT_EQ(group.group.wait(1s).error().code, Errc::kAborted);
  ASSERT_TRUE(group.group.mask(setup.all[2].there));
  EXPECT_TRUE(group.group.wait(1s));
}

TEST(LostMember, AfterAnotherWasMaskedEndsTheWaitAsWell) {
  expect_log("a path broke");
  PoisonSetup setup(3);
  Group group(setup);
  setup.happens(Fault::crash(setup.all[1].node));
  EXPECT_EQ(group.group.wait(3, 60s).error().code, Errc::kPeerLost);
  ASSERT_TRUE(group.group.mask(setup.all[1].there));
  setup.write(0, group.key(0));
  setup.happens(Fault::crash(setup.all[2].node));
  EXPECT_EQ(group.group.wait(2, 60s).error().code, Errc::kPeerLost);
  EXPECT_EQ(group.group.missing(), std::vector<PeerId>{setup.all[2].there});
  ASSERT_TRUE(group.group.mask(setup.all[2].there));
  EXPECT_TRUE(group.group.wait(1s)) << "what had arrived is still there";
}

// ---- Names --------------------------------------------------------------------------------------

TEST(ClosedName, IsProvedOnlyByTheReplyOfEverySender) {
  using FaultAction = std::function<void(PoisonSetup&, CounterKey)>;
  Nanos took{};
  const auto close_after = [&](const FaultAction& inject) {
    PoisonSetup setup(2);
    Counter counter = *setup.receiver->engine.named_counter(5);
    for (uint32_t i = 0; i < 2; ++i) setup.write(i, setup.resolve(i, 5));
    EXPECT_TRUE(counter.wait(2, 5s));
    inject(setup, counter.key());
    const Nanos began = setup.world.now();
    const Quiescence quiescence = *counter.close(2s);
    took = setup.world.now() - began;
    EXPECT_LE(took, Nanos(2s));
    Counter again = *setup.receiver->engine.named_counter(5);
    EXPECT_NE(again.key(), counter.key());
    for (uint32_t i = 0; i < 2; ++i) setup.happens(Fault::resume(setup.all[i].node));
    return quiescence;
  };
  expect_log("a path broke");
  const uint32_t kNode = 2;  // of the second sender
  EXPECT_EQ(close_after([](PoisonSetup&, CounterKey) {}), Quiescence::kProved);
  EXPECT_EQ(close_after([](PoisonSetup& setup, CounterKey key) { setup.write(1, key, 10); }),
            Quiescence::kProved)
      << "posted writes drain, queued ones are refused";
  EXPECT_EQ(close_after([](PoisonSetup& setup, CounterKey) { setup.happens(Fault::stop(kNode)); }),
            Quiescence::kQuarantined);
  EXPECT_EQ(close_after([](PoisonSetup& setup, CounterKey) {
              setup.happens(Fault::stop(kNode));
              setup.world.run_for(1500ms);  // stalled
            }),
            Quiescence::kQuarantined);
  EXPECT_EQ(close_after([](PoisonSetup& setup, CounterKey) {
              setup.happens(Fault::crash(kNode));
              setup.world.run_for(10s);  // lost
            }),
            Quiescence::kQuarantined);
  EXPECT_EQ(
      close_after([](PoisonSetup& setup, CounterKey key) { setup.write_of_unknown_fate(1, key); }),
      Quiescence::kQuarantined)
      << "the write may still land: its sender cannot prove otherwise";
  EXPECT_LE(took, Nanos(10ms)) << "the sender must answer at once";
  EXPECT_EQ(close_after([](PoisonSetup& setup, CounterKey) {
              setup.happens(Fault::stop(kNode));
              ASSERT_TRUE(setup.world.at(setup.world.now() + 1s, Fault::resume(kNode)));
            }),
            Quiescence::kProved)
      << "the reply came late, but in time";
}

TEST(ClosedName, EndsWhatASenderHasQueuedAndNothingElse) {
  sim::NicModel model = srd_model();
  model.path_depth = 4;
  PoisonSetup setup(1, poison_config(), model);
  Counter closing = *setup.receiver->engine.named_counter(1);
  Counter staying = *setup.receiver->engine.named_counter(2);
  const CounterKey one = setup.resolve(0, 1), two = setup.resolve(0, 2);
  setup.ended.events.clear();
  for (uint32_t i = 0; i < 20; ++i) {
    setup.write(0, one);
    setup.write(0, two);
  }
  setup.world.run_for(10us);
  EXPECT_EQ(*closing.close(5s), Quiescence::kProved);
  const uint64_t stale = setup.receiver->engine.stats().stale_imms;
  EXPECT_TRUE(staying.wait(20, 5s));
  setup.world.run_for(10ms);
  EXPECT_EQ(setup.receiver->engine.stats().stale_imms, stale) << "the close was proved";
  ASSERT_EQ(setup.ended.count(), 40u);
  const auto released = std::ranges::count(setup.ended.events, Errc::kReleased, &Event::code);
  EXPECT_GT(released, 5);
  EXPECT_EQ(std::ranges::count(setup.ended.events, Errc::kOk, &Event::code) + released, 40);
}

// ---- Old traffic --------------------------------------------------------------------------------

TEST(LateCount, OfAReleasedKeyNeverCountsInItsNextGeneration) {
  Config config = poison_config();
  config.counters_max = 1;  // the same slot comes back at once
  for (const bool by_network : {true, false}) {
    SCOPED_TRACE(by_network ? "late packets" : "late completions");
    PoisonSetup setup(1, config);
    Engine& engine = setup.receiver->engine;
    std::set<CounterKey> keys;
    uint64_t late = 0;
    for (uint32_t round = 0; round < 20; ++round) {
      const Counter counter = *engine.make_counter();  // released at the end of the round
      EXPECT_TRUE(keys.insert(counter.key()).second);
      setup.happens(by_network ? Fault::delay(setup.all[0].node, 5ms)
                               : Fault::late_counts(kReceiver, 5ms));
      setup.world.run_for(1us);
      setup.write(0, counter.key(), 3);
      for (uint32_t i = 0; i < 10; ++i) {
        setup.world.run_for(100us);
        ASSERT_EQ(counter.count(), 0u) << "a late or stale write was counted";
      }
      late += 3;
    }
    setup.world.run_for(20ms);
    EXPECT_EQ(engine.stats().stale_imms, late);
  }
}

TEST(Names, OfOnePeerAreBoundedAndNoOtherPeerPays) {
  expect_log("a path broke");
  Config config = poison_config();
  config.names_per_peer_max = 8;
  PoisonSetup setup(2, config);
  Engine& greedy = setup.all[0].host.engine;
  std::vector<CounterKey> out(1);
  Errc refused = Errc::kOk;
  for (uint64_t name = 0; name < 1000 && refused == Errc::kOk; ++name) {
    refused = greedy.resolve(setup.all[0].remote.peer, {&name, 1}, out).error().code;
  }
  EXPECT_EQ(refused, Errc::kExhausted);
  EXPECT_EQ(setup.receiver->engine.stats().counters, 8u);
  const CounterKey key = setup.resolve(1, 500);
  setup.write(1, key);
  Counter counter = *setup.receiver->engine.named_counter(500);
  EXPECT_TRUE(counter.wait(1, 5s));
  // A claim gives room; so does the end of the peer.
  Counter claimed = *setup.receiver->engine.named_counter(3);
  EXPECT_EQ(claimed.key(), setup.resolve(0, 3));
  setup.resolve(0, 100);
  setup.happens(Fault::crash(setup.all[0].node));
  setup.world.run_for(20s);
  EXPECT_EQ(setup.receiver->engine.stats().counters, 2u)
      << "the names of the lost peer were not released";
}

// ---- Members ------------------------------------------------------------------------------------

// P16: a wait that names a peer does not begin when the peer is disconnected already.
TEST(CounterGroups, RefuseADisconnectedPeer) {
  ConnectedPair p;
  ASSERT_TRUE(p.a.engine.disconnect(p.remote.peer));
  auto counter = p.a.engine.make_counter();
  auto group = p.a.engine.make_counter_group();
  EXPECT_EQ(group->add(*counter, p.remote.peer).error().code, Errc::kPeerLost);
}

/// Three senders, each with a member in the group.
struct ThreeMembers {
  explicit ThreeMembers(uint64_t share = 1) {
    for (uint32_t i = 0; i < 3; ++i) {
      members.push_back(*setup.receiver->engine.make_counter());
      EXPECT_TRUE(group.add(members.back(), peer(i), share));
    }
  }
  PeerId peer(uint32_t i) const { return setup.all[i].there; }
  void write(uint32_t i) {
    setup.write(i, members[i].key());
    setup.world.run_for(1ms);
  }
  bool met() { return group.wait(1ms).has_value(); }
  PoisonSetup setup{3};
  std::vector<Counter> members{};
  CounterGroup group = *setup.receiver->engine.make_counter_group();
};

// The mistake that every user of mask() made: an idle group got a share of the masked peer once, so
// every later wait for the living was met one write too early.
TEST(CounterGroups, AfterAMaskEveryStepNeedsTheShareOfEachLiveMember) {
  for (const bool armed : {false, true}) {
    SCOPED_TRACE(armed ? "armed" : "idle");
    ThreeMembers three;
    EventRecorder& recorder = three.setup.waited;
    if (armed) {
      ASSERT_TRUE(three.group.expect(recorder.notify(1), 1s));
    }
    ASSERT_TRUE(three.group.mask(three.peer(2)));
    for (uint32_t step = 0; step < 3; ++step) {
      three.write(0);
      EXPECT_EQ(three.group.missing(), std::vector<PeerId>{three.peer(1)});
      if (step > 0 || !armed) {
        EXPECT_FALSE(three.met()) << "without the write of a live member";
      }
      EXPECT_EQ(recorder.count(), step > 0 && armed ? 1u : 0u);
      three.write(1);
      if (step > 0 || !armed) {
        EXPECT_TRUE(three.met());
      }
      EXPECT_EQ(three.group.count(), 0u);
    }
  }
}

TEST(CounterGroups, CountsOfOneMemberNeverStandInForAnother) {
  ThreeMembers three;
  for (uint32_t i = 0; i < 4; ++i) three.write(0);
  three.write(1);
  EXPECT_EQ(three.group.count(), 5u);
  EXPECT_FALSE(three.met()) << "five counts, and none of the third member";
  EXPECT_EQ(three.group.missing(), std::vector<PeerId>{three.peer(2)});
  three.write(2);
  EXPECT_TRUE(three.met());
  EXPECT_EQ(three.group.count(), 3u) << "what the first one has sent ahead";
  three.write(1);
  three.write(2);
  EXPECT_TRUE(three.met());
}

TEST(CounterGroups, RefuseAnNThatCannotBeRightAndSayWhichOneIs) {
  ThreeMembers three(2);
  const auto refused = [&](uint64_t n, int32_t right) {
    for (const Error& error :
         {three.group.wait(n, 1ms).error(), three.group.expect(n, {}, 1ms).error()}) {
      EXPECT_EQ(error.code, Errc::kInvalidArgument);
      EXPECT_EQ(error.native, right);
      EXPECT_EQ(std::string_view(error.what).substr(0, 2), "n:");
    }
  };
  refused(3, 6);
  refused(7, 6);
  ASSERT_TRUE(three.group.mask(three.peer(1)));
  refused(6, 4);
  for (uint32_t i = 0; i < 2; ++i) {
    three.write(0);
    three.write(2);
  }
  EXPECT_TRUE(three.group.wait(4, 1ms));
  EXPECT_EQ(three.group.wait(0, 1ms).error().code, Errc::kInvalidArgument);
  for (const uint32_t i : {0u, 2u}) ASSERT_TRUE(three.group.mask(three.peer(i)));
  EXPECT_TRUE(three.group.wait(1ms)) << "no member is left, and none is waited for";
}

TEST(CounterGroups, MaskingAMemberThatHasPaidAddsNothing) {
  ThreeMembers three(2);
  EventRecorder& recorder = three.setup.waited;
  ASSERT_TRUE(three.group.expect(recorder.notify(1), 1s));
  for (uint32_t i = 0; i < 3; ++i) three.write(0);
  three.write(1);
  EXPECT_EQ(three.group.count(), 4u);
  ASSERT_TRUE(three.group.mask(three.peer(0)));
  three.setup.world.run_for(1ms);
  EXPECT_EQ(recorder.count(), 0u);
  ASSERT_TRUE(three.group.mask(three.peer(1)));
  three.setup.world.run_for(1ms);
  EXPECT_EQ(recorder.count(), 0u) << "the third one owes both of its counts";
  three.write(2);
  EXPECT_EQ(recorder.count(), 0u);
  three.write(2);
  ASSERT_EQ(recorder.count(), 1u);
  EXPECT_EQ(recorder.events[0].code, Errc::kOk);
  EXPECT_EQ(recorder.events[0].value, 6u) << "the shares when it was armed";
}

TEST(CounterGroups, AnExpectationThatTimedOutIsContinuedAlsoWithANewMember) {
  ThreeMembers three;
  three.write(0);
  EXPECT_FALSE(three.met());
  three.write(0);
  three.write(1);
  Counter more = *three.setup.receiver->engine.make_counter();
  ASSERT_TRUE(three.group.add(more, three.peer(2), 2));
  three.write(2);
  EXPECT_FALSE(three.met()) << "the new member owes as well";
  EXPECT_EQ(three.group.missing(), std::vector<PeerId>{three.peer(2)});
  for (uint32_t i = 0; i < 2; ++i) three.setup.write(2, more.key());
  three.setup.world.run_for(1ms);
  EXPECT_TRUE(three.met());
  EXPECT_EQ(three.group.count(), 1u);
}

TEST(CounterGroups, FailWhileAMemberIsReleasedAndNotMasked) {
  ThreeMembers three;
  EventRecorder& recorder = three.setup.waited;
  ASSERT_TRUE(three.group.expect(recorder.notify(1), 1s));
  three.write(0);
  three.members[1].release();
  three.setup.world.run_for(1ms);
  ASSERT_EQ(recorder.count(), 1u);
  EXPECT_EQ(recorder.events[0].code, Errc::kReleased);
  EXPECT_EQ(three.group.wait(1ms).error().code, Errc::kReleased);
  EXPECT_EQ(three.group.lost(), std::vector<PeerId>{three.peer(1)});
  ASSERT_TRUE(three.group.mask(three.peer(1)));
  three.write(2);
  EXPECT_TRUE(three.met());
}

TEST(CounterGroups, TakeNoMemberThatIsBusyOrPoisoned) {
  ThreeMembers three;
  Counter busy = *three.setup.receiver->engine.make_counter();
  ASSERT_TRUE(busy.expect(1, {}, 1s));
  EXPECT_EQ(three.group.add(busy, three.peer(0)).error().code, Errc::kBusy);
  busy.disarm();
  ASSERT_TRUE(three.group.add(busy, three.peer(0)));
  EXPECT_EQ(busy.expect(1, {}, 1s).error().code, Errc::kBusy);
}

// ---- Disarm -------------------------------------------------------------------------------------

TEST(Disarm, EndsAnExpectationOnceAndTheNextIsArmedAtOnce) {
  PoisonSetup setup(2);
  EventRecorder& recorder = setup.waited;
  Counter counter = *setup.receiver->engine.make_counter();
  counter.disarm();
  setup.write(0, counter.key());
  setup.world.run_for(1ms);
  for (uint64_t i = 0; i < 50; ++i) {
    ASSERT_TRUE(counter.expect(2, recorder.notify(i), 1s)) << i;
    counter.disarm();
  }
  ASSERT_TRUE(counter.expect(2, recorder.notify(50), 1s));
  setup.write(0, counter.key());
  setup.world.run_for(1ms);
  counter.disarm();
  for (uint64_t i = 0; i < 50; ++i) {
    ASSERT_EQ(recorder.count(i), 1u);
    EXPECT_EQ(recorder.find(i)->code, Errc::kCancelled);
  }
  EXPECT_EQ(recorder.find(50)->code, Errc::kOk) << "met before it was disarmed";
  EXPECT_EQ(counter.count(), 0u);
}

TEST(Disarm, OfAGroupEndsItsExpectationAndTheNextContinues) {
  ThreeMembers three;
  EventRecorder& recorder = three.setup.waited;
  three.group.disarm();  // nothing is armed
  for (uint64_t i = 0; i < 20; ++i) {
    if (i == 5 || i == 15) three.write(static_cast<uint32_t>(i / 10));
    ASSERT_TRUE(three.group.expect(recorder.notify(i), 1s)) << i;
    three.group.disarm();
  }
  EXPECT_EQ(three.group.missing(), std::vector<PeerId>{three.peer(2)});
  ASSERT_TRUE(three.group.expect(recorder.notify(20), 1s));
  three.write(2);
  three.group.disarm();
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_EQ(recorder.count(i), 1u);
    EXPECT_EQ(recorder.find(i)->code, Errc::kCancelled);
  }
  ASSERT_EQ(recorder.count(20), 1u);
  EXPECT_EQ(recorder.find(20)->code, Errc::kOk) << "met before it was disarmed";
  EXPECT_EQ(three.group.count(), 0u);
  EXPECT_FALSE(three.met()) << "the next one needs a share of every member";
}

// A masked member, and then a disarm: what the others owe is as before.
TEST(Disarm, OfAGroupKeepsWhatAMaskHasPaid) {
  ThreeMembers three;
  EventRecorder& recorder = three.setup.waited;
  ASSERT_TRUE(three.group.expect(recorder.notify(1), 1s));
  three.write(0);
  ASSERT_TRUE(three.group.mask(three.peer(1)));
  three.group.disarm();
  ASSERT_TRUE(three.group.expect(recorder.notify(2), 1s));
  three.setup.world.run_for(1ms);
  EXPECT_EQ(recorder.count(2), 0u);
  three.write(2);
  ASSERT_EQ(recorder.count(2), 1u);
  EXPECT_EQ(recorder.find(2)->code, Errc::kOk);
}

// A callback ends the wait of the frame below it, and waits for something else.
TEST(Disarm, InACallbackEndsTheWaitThatRunsIt) {
  PoisonSetup setup(2);
  struct Other {
    Counter& counter;
    Errc rearmed = Errc::kBusy;
    void expire(const Event&) {
      counter.disarm();
      rearmed = counter.expect(3, {}, 1s).error().code;
    }
  };
  Counter counter = *setup.receiver->engine.make_counter();
  Other other{counter};
  ASSERT_TRUE(setup.receiver->engine.submit(
      Timer{.after = 1ms, .notify = Notify::call<&Other::expire>(&other)}));
  EXPECT_EQ(counter.wait(1, 10s).error().code, Errc::kCancelled);
  EXPECT_EQ(other.rearmed, Errc::kOk);
}

TEST(Disarm, OfAGroupInACallbackEndsTheWaitThatRunsIt) {
  ThreeMembers three;
  struct Other {
    CounterGroup& group;
    Errc rearmed = Errc::kBusy;
    void expire(const Event&) {
      group.disarm();
      rearmed = group.expect({}, 1s).error().code;
    }
  };
  Other other{three.group};
  ASSERT_TRUE(three.setup.receiver->engine.submit(
      Timer{.after = 1ms, .notify = Notify::call<&Other::expire>(&other)}));
  EXPECT_EQ(three.group.wait(10s).error().code, Errc::kCancelled);
  EXPECT_EQ(other.rearmed, Errc::kOk);
}

}  // namespace
}  // namespace fabric::test::poison_test

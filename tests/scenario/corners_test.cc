#include "harness/host.h"

// Corners that a reader of the promises found open once, most of them with a probe.

namespace fabric::test {
namespace {

constexpr uint64_t kPairBytes = 1 << 16;

struct ConnectedPair {
  explicit ConnectedPair(const Config& config = test_config(), uint64_t bytes = kPairBytes)
      : a(open_host(world, world.add_node(), bytes, config)),
        b(open_host(world, world.add_node(), bytes, config)),
        remote(connect(a, b)) {
    await_connected(world, a, remote.peer);
  }
  sim::World world;
  Host a, b;
  RemoteHost remote;
};

// P9: what was counted under a name waits for whoever claims it, also when its sender has left.
TEST(Names, ACountUnderANameOutlivesItsSender) {
  ConnectedPair p;
  const uint64_t name = 5;
  CounterKey key;
  ASSERT_TRUE(p.a.engine.resolve(p.remote.peer, {&name, 1}, {&key, 1}, 1s));
  auto batch = p.a.engine.make_batch();
  ASSERT_TRUE(p.a.engine.submit(Write{.source = p.a.memory.at(0),
                                      .target = p.remote.at(0),
                                      .size_bytes = 8,
                                      .imm = key,
                                      .batch = *batch}));
  ASSERT_TRUE(p.a.engine.wait(*batch, 1s));
  ASSERT_TRUE(p.a.engine.close());
  p.world.run_for(10ms);
  auto counter = p.b.engine.named_counter(name);
  ASSERT_TRUE(counter);
  EXPECT_EQ(counter->count(), 1u);
}

// ... but not for ever, and not in silence.
TEST(Names, ANameThatIsNeverClaimedIsDroppedWithAnEvent) {
  ConnectedPair p;
  EventRecorder recorder;
  auto subscription = p.b.engine.subscribe(recorder.notify());
  const uint64_t name = 7;
  CounterKey key;
  ASSERT_TRUE(p.a.engine.resolve(p.remote.peer, {&name, 1}, {&key, 1}, 1s));
  ASSERT_TRUE(p.a.engine.submit(
      Write{.source = p.a.memory.at(0), .target = p.remote.at(0), .size_bytes = 8, .imm = key}));
  p.world.run_for(1ms);
  ASSERT_TRUE(p.a.engine.close());
  p.world.run_for(40s);
  ASSERT_EQ(recorder.count(EventKind::kUnhandled), 1u);
  const Event& event = recorder.events.back();
  EXPECT_EQ(event.previous, name);
  EXPECT_EQ(event.value, 1u);
  EXPECT_EQ(p.b.engine.stats().counters, 0u);
}

// P16: a wait that names a peer does not begin when the peer is gone already.
TEST(CounterGroups, RefuseADisconnectedPeer) {
  ConnectedPair p;
  ASSERT_TRUE(p.a.engine.disconnect(p.remote.peer));
  auto counter = p.a.engine.make_counter();
  auto group = p.a.engine.make_counter_group();
  EXPECT_EQ(group->add(*counter, p.remote.peer).error().code, Errc::kPeerLost);
}

// P18: expectations without a limit may hold most slots; the one that comes free is still told of.
TEST(FullQueue, RoomIsReportedWhileMostSlotsWait) {
  Config config = test_config();
  config.ops_max = 8;
  ConnectedPair p(config);
  EventRecorder recorder;
  auto subscription = p.a.engine.subscribe(recorder.notify());
  std::vector<Counter> counters;
  for (int i = 0; i < 7; ++i) {
    counters.push_back(*p.a.engine.make_counter());
    ASSERT_TRUE(counters.back().expect(1, Notify{}, Timeout::forever()));
  }
  ASSERT_TRUE(p.a.engine.submit(Timer{.after = 1ms}));
  EXPECT_EQ(p.a.engine.submit(Timer{.after = 1ms}).error().code, Errc::kExhausted);
  p.world.run_for(1s);
  EXPECT_EQ(recorder.count(EventKind::kRoom), 1u);
}

// P18: an inbox that nobody reads has no room, whatever else is free.
TEST(FullQueue, AFullInboxHasRoomOnlyOnceItIsRead) {
  ConnectedPair p;
  EventRecorder recorder;
  auto subscription = p.a.engine.subscribe(recorder.notify());
  auto inbox = p.a.engine.make_inbox(1);
  ASSERT_TRUE(p.a.engine.submit(Timer{.notify = Notify::inbox(*inbox)}));
  p.world.run_for(1ms);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(p.a.engine.submit(Timer{.notify = Notify::inbox(*inbox)}).error().code,
              Errc::kExhausted);
    p.world.run_for(1ms);
  }
  EXPECT_EQ(recorder.count(EventKind::kRoom), 0u);
  Event event;
  ASSERT_EQ(inbox->poll({&event, 1}), 1u);
  p.world.run_for(1ms);
  EXPECT_EQ(recorder.count(EventKind::kRoom), 1u);
  EXPECT_TRUE(p.a.engine.submit(Timer{.notify = Notify::inbox(*inbox)}));
}

// A masked member gives its name back: the peer comes back with a new key under the same name.
TEST(Names, AMaskedNameCanBeClaimedAgain) {
  ConnectedPair p;
  const uint64_t name = 9;
  auto group = p.b.engine.make_counter_group();
  const PeerId sender = p.b.engine.peers().at(0);
  CounterKey old_key;
  {
    auto counter = p.b.engine.named_counter(name);
    ASSERT_TRUE(p.a.engine.resolve(p.remote.peer, {&name, 1}, {&old_key, 1}, 1s));
    ASSERT_TRUE(group->add(*counter, sender));
    ASSERT_TRUE(group->mask(sender));
  }
  auto again = p.b.engine.named_counter(name);
  ASSERT_TRUE(again) << to_string(again.error().code);
  CounterKey key;
  ASSERT_TRUE(p.a.engine.resolve(p.remote.peer, {&name, 1}, {&key, 1}, 1s));
  EXPECT_NE(key, old_key);
  EXPECT_EQ(key, again->key());
}

// Masking pays what the peer still owes, and not what it has brought already.
TEST(CounterGroups, MaskingAMemberAddsOnlyTheCountsThatItStillOwes) {
  ConnectedPair p;
  auto group = p.b.engine.make_counter_group();
  const PeerId sender = p.b.engine.peers().at(0);
  auto counter = p.b.engine.make_counter();
  ASSERT_TRUE(group->add(*counter, sender, 3));
  ASSERT_TRUE(p.a.engine.submit(Write{
      .source = p.a.memory.at(0), .target = p.remote.at(0), .size_bytes = 8, .imm = counter->key()}));
  ASSERT_TRUE(p.world.run_until([&] { return group->count() == 1; }, 1s));
  ASSERT_TRUE(group->mask(sender));
  EXPECT_EQ(group->count(), 3u);
}

// P10: only a shard that was counted spoils a key. The slices before it carry no immediate.
TEST(Slices, CancelBeforeTheLastSlicePoisonsNothing) {
  constexpr uint64_t kLarge = 64u << 20;
  ConnectedPair p(test_config(), kLarge);
  auto counter = p.b.engine.make_counter();
  EventRecorder recorder;
  auto op = p.a.engine.submit(Write{.source = p.a.memory.at(0),
                                    .target = p.remote.at(0),
                                    .size_bytes = kLarge,
                                    .imm = counter->key(),
                                    .priority = Priority::kBulk,
                                    .notify = recorder.notify(1)});
  ASSERT_TRUE(op);
  p.world.run_for(200us);
  ASSERT_TRUE(p.a.engine.cancel(*op));
  ASSERT_TRUE(p.world.run_until([&] { return recorder.count() == 1; }, 10s));
  EXPECT_EQ(recorder.events[0].code, Errc::kCancelled);
  EXPECT_EQ(recorder.events[0].remote, Remote::kNotDelivered);
  ASSERT_TRUE(p.a.engine.submit(Write{
      .source = p.a.memory.at(0), .target = p.remote.at(0), .size_bytes = 8, .imm = counter->key()}));
  EXPECT_TRUE(counter->wait(1, 1s));
}

// A watcher's last value is never lost, also when it is disarmed behind a full inbox.
TEST(FullQueue, TheLastWatchedValueFollowsWhenTheInboxHasRoomAgain) {
  ConnectedPair p;
  auto inbox = p.a.engine.make_inbox(1);
  auto watcher = p.a.engine.make_watcher(Notify::inbox(*inbox), {.polled = false});
  watcher->arm();
  watcher->store(1);
  p.world.run_for(1ms);
  watcher->store(7);
  watcher->disarm();
  uint64_t last = 0;
  for (int i = 0; i < 3; ++i) {
    Event event;
    while (inbox->poll({&event, 1}) == 1) last = event.value;
    p.world.run_for(1ms);
  }
  EXPECT_EQ(last, 7u);
}

// A granted registration ends with its peer.
TEST(Grant, EndsWithItsPeer) {
  ConnectedPair p;
  const PeerId sender = p.b.engine.peers().at(0);
  auto granted = p.b.memory.grant(sender);
  ASSERT_TRUE(granted);
  auto region = p.a.engine.import_region(p.remote.peer, *granted);
  ASSERT_TRUE(region);
  ASSERT_TRUE(p.b.engine.disconnect(sender));
  p.world.run_for(10ms);
  auto back = p.b.engine.connect(p.a.engine.address());
  ASSERT_TRUE(back);
  EXPECT_EQ(p.b.memory.grant(sender).error().code, Errc::kPeerLost);
  auto anew = p.b.memory.grant(*back);
  ASSERT_TRUE(anew);
  EXPECT_NE(*anew, *granted);
}

}  // namespace
}  // namespace fabric::test

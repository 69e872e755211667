#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "harness/host.h"
#include "support/log_guard.h"

// Two engines connect whatever the control channel does to their messages, and reconnect after a
// loss (P15, P16).

namespace fabric::test::sessions_test {
namespace {

constexpr uint64_t kSize = 256 << 10;

sim::WorldOptions lossy(uint64_t seed) {
  return {.seed = seed, .drop_control = 0.2, .duplicate_control = 0.2, .reorder_control = 0.5};
}

/// Sends a pattern and waits for its count at the other side.
void expect_usable(Host& from, Host& to, const RemoteHost& remote, uint64_t content) {
  Counter counter = *to.engine.make_counter();
  fill(from.bytes(0, kSize / 2), content);
  Batch batch = *from.engine.make_batch();
  ASSERT_TRUE(from.engine.submit(Write{.source = from.memory.at(0),
                                       .target = remote.at(kSize / 2),
                                       .size_bytes = kSize / 2,
                                       .imm = counter.key(),
                                       .batch = batch}));
  ASSERT_TRUE(counter.wait(1)) << from.engine.dump();
  EXPECT_TRUE(holds(to.bytes(kSize / 2, kSize / 2), content));
  ASSERT_TRUE(from.engine.wait(batch));
}

uint64_t times_connected(const EventRecorder& recorder) {
  return static_cast<uint64_t>(std::ranges::count_if(recorder.events, [](const Event& e) {
    return e.kind == EventKind::kPeer && e.value == static_cast<uint64_t>(PeerState::kConnected);
  }));
}

/// Both connect at the same instant; afterwards there is one session a side, and it works.
void run_simultaneous_connect(const sim::WorldOptions& options, Nanos second_after) {
  EventRecorder seen_a, seen_b;
  sim::World world(options);
  Host a = open_host(world, world.add_node(2), kSize);
  Host b = open_host(world, world.add_node(3), kSize);
  const Subscription sa = *a.engine.subscribe(seen_a.notify());
  const Subscription sb = *b.engine.subscribe(seen_b.notify());

  const RemoteHost to_b = connect(a, b);
  world.run_for(second_after);
  const RemoteHost to_a = connect(b, a);
  await_connected(world, a, to_b.peer);
  await_connected(world, b, to_a.peer);
  ASSERT_NO_FATAL_FAILURE(expect_usable(a, b, to_b, 1));
  ASSERT_NO_FATAL_FAILURE(expect_usable(b, a, to_a, 2));
  world.run_for(100ms);  // late repeats must not open another one

  EXPECT_EQ(a.engine.peers(), std::vector<PeerId>{to_b.peer});
  EXPECT_EQ(b.engine.peers(), std::vector<PeerId>{to_a.peer});
  EXPECT_EQ(times_connected(seen_a), 1u);
  EXPECT_EQ(times_connected(seen_b), 1u);
  EXPECT_EQ(a.engine.stats().peers, 1u);
  EXPECT_EQ(b.engine.stats().peers, 1u);
  EXPECT_EQ(*a.engine.connect(b.engine.address()), to_b.peer) << "connecting is idempotent";
}

TEST(SimultaneousConnect, GivesOneSessionOnEachSide) { run_simultaneous_connect({}, 0ns); }

TEST(SimultaneousConnect, GivesOneSessionWhenTheMessagesCrossInAnyWay) {
  using Times = std::initializer_list<Nanos>;
  for (const Nanos later : Times{1ns, 1us, 1999ns, 2us, 2001ns, 3us, 4us, 5us, 6us, 1ms}) {
    SCOPED_TRACE(testing::Message() << "the second after " << later.count() << " ns");
    ASSERT_NO_FATAL_FAILURE(run_simultaneous_connect({}, later));
  }
}

TEST(SimultaneousConnect, GivesOneSessionOverALossyChannel) {
  for (const uint64_t seed : seeds(40)) {
    SCOPED_TRACE(replay(seed));
    const Nanos later = seed % 2 == 0 ? Nanos(0) : Nanos(seed % 7 * 1000);
    ASSERT_NO_FATAL_FAILURE(run_simultaneous_connect(lossy(seed), later));
  }
}

TEST(SimultaneousConnect, OfManyGivesAFullMesh) {
  constexpr uint32_t kHosts = 5;
  sim::World world(lossy(test_seed()));
  std::vector<Host> hosts;
  for (uint32_t i = 0; i < kHosts; ++i) hosts.push_back(open_host(world, world.add_node(1), kSize));
  std::vector<std::vector<RemoteHost>> remotes(kHosts, std::vector<RemoteHost>(kHosts));
  for (uint32_t i = 0; i < kHosts; ++i) {
    for (uint32_t j = 0; j < kHosts; ++j) {
      if (i != j) remotes[i][j] = connect(hosts[i], hosts[j]);
    }
  }
  for (uint32_t i = 0; i < kHosts; ++i) {
    for (uint32_t j = 0; j < kHosts; ++j) {
      if (i == j) continue;
      SCOPED_TRACE(testing::Message() << i << " to " << j);
      ASSERT_NO_FATAL_FAILURE(expect_usable(hosts[i], hosts[j], remotes[i][j], i * 10 + j));
    }
    EXPECT_EQ(hosts[i].engine.peers().size(), kHosts - 1);
  }
}

// ---- Lossy control channel ----------------------------------------------------------------------

class LossyControl : public testing::Test {
 protected:
  struct Pair {
    explicit Pair(uint64_t seed)
        : world(lossy(seed)),
          a(open_host(world, world.add_node(2), kSize)),
          b(open_host(world, world.add_node(2), kSize)),
          remote(connect(a, b)),
          batch(*a.engine.make_batch()) {}
    sim::World world;
    Host a, b;
    RemoteHost remote;
    Batch batch;
  };
};

TEST_F(LossyControl, MessagesAreDeliveredOnceEach) {
  constexpr uint32_t kMessages = 60;
  for (const uint64_t seed : seeds(15)) {
    SCOPED_TRACE(replay(seed));
    EventRecorder received;
    Pair pair(seed);
    const Subscription listener = *pair.b.engine.listen(9, received.notify());
    for (uint32_t i = 0; i < kMessages; ++i) {
      std::vector<std::byte> text(1 + i * 37 % 3000);
      fill(text, i);
      // The length tells the messages apart, and 37 and 3000 have no factor in common.
      ASSERT_TRUE(pair.a.engine.submit(
          Send{.peer = pair.remote.peer, .channel = 9, .bytes = text, .batch = pair.batch}));
    }
    ASSERT_TRUE(pair.a.engine.wait(pair.batch)) << pair.a.engine.dump();
    EXPECT_EQ(pair.batch.delivered(), kMessages);
    pair.world.run_for(100ms);
    ASSERT_EQ(received.messages.size(), kMessages);
    std::set<uint64_t> sizes;
    for (const auto& text : received.messages) {
      EXPECT_TRUE(sizes.insert(text.size()).second) << "delivered twice: " << text.size();
      bool found = false;
      for (uint32_t i = 0; i < kMessages; ++i) {
        found = found || (text.size() == 1 + i * 37 % 3000 && holds(text, i));
      }
      EXPECT_TRUE(found) << "a message that was never sent";
    }
    EXPECT_GT(pair.a.engine.stats().tx.retried, 0u)
        << "no message was lost: the test shows nothing";
  }
}

TEST_F(LossyControl, NamesAreResolvedToTheSameKeysByAllPeers) {
  for (const uint64_t seed : seeds(15)) {
    SCOPED_TRACE(replay(seed));
    Pair pair(seed);
    std::vector<uint64_t> names;
    for (uint64_t i = 0; i < 20; ++i) names.push_back(i * i * 1000003);
    std::vector<CounterKey> keys(names.size()), again(names.size());
    Counter claimed_before = *pair.b.engine.named_counter(names[3]);
    ASSERT_TRUE(pair.a.engine.resolve(pair.remote.peer, names, keys));
    ASSERT_TRUE(pair.a.engine.resolve(pair.remote.peer, names, again));
    EXPECT_EQ(keys, again);
    EXPECT_EQ(std::set<CounterKey>(keys.begin(), keys.end()).size(), keys.size());
    EXPECT_EQ(keys[3], claimed_before.key());
    // Counted before the name is claimed: nothing is lost (P9).
    ASSERT_TRUE(pair.a.engine.submit(Write{.source = pair.a.memory.at(0),
                                           .target = pair.remote.at(0),
                                           .size_bytes = 100,
                                           .imm = keys[5],
                                           .batch = pair.batch}));
    ASSERT_TRUE(pair.a.engine.wait(pair.batch));
    Counter late = *pair.b.engine.named_counter(names[5]);
    EXPECT_EQ(late.key(), keys[5]);
    EXPECT_TRUE(late.wait(1));
  }
}

TEST_F(LossyControl, ADeregisteredRegionTakesNothingMore) {
  for (const uint64_t seed : seeds(15)) {
    SCOPED_TRACE(replay(seed));
    Pair pair(seed);
    await_connected(pair.world, pair.a, pair.remote.peer);
    std::vector<std::byte> lent(64 << 10);
    MemoryRegion region =
        *pair.b.engine.register_memory({.address = lent.data(), .size_bytes = lent.size()});
    const RemoteRegion target = *pair.a.engine.import_region(pair.remote.peer, *region.desc());
    fill(pair.a.bytes(), 1);
    const Write request{.source = pair.a.memory.at(0),
                        .target = target.at(0),
                        .size_bytes = lent.size(),
                        .batch = pair.batch};
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(pair.a.engine.submit(request));
    pair.world.run_for(30us);
    Batch ending = *pair.b.engine.make_batch();
    ASSERT_TRUE(pair.b.engine.submit(Deregister{.region = region.id(), .batch = ending}));
    ASSERT_TRUE(pair.b.engine.wait(ending)) << pair.b.engine.dump();
    std::ranges::fill(lent, std::byte{0x11});
    pair.world.run_for(100ms);
    EXPECT_TRUE(untouched(lent, std::byte{0x11})) << "written to after the proof";
    const auto waited = pair.a.engine.wait(pair.batch);
    EXPECT_EQ(pair.batch.pending(), 0u);
    if (!waited) {
      EXPECT_EQ(waited.error().code, Errc::kNotFound);
    }
    EXPECT_EQ(pair.a.engine.submit(request).error().code, Errc::kNotFound);
    // Only the region is revoked, not the peer.
    ASSERT_NO_FATAL_FAILURE(expect_usable(pair.a, pair.b, pair.remote, seed));
  }
}

TEST_F(LossyControl, AFencedPeerWritesNoMore) {
  uint64_t cut_short = 0;
  for (const uint64_t seed : seeds(15)) {
    SCOPED_TRACE(replay(seed));
    Pair pair(seed);
    await_connected(pair.world, pair.a, pair.remote.peer);
    fill(pair.a.bytes(), 1);
    const Write request{.source = pair.a.memory.at(0),
                        .target = pair.remote.at(0),
                        .size_bytes = kSize,
                        .batch = pair.batch};
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(pair.a.engine.submit(request));
    pair.world.run_for(30us);
    const PeerId peer = pair.b.engine.peers().at(0);
    Batch fence = *pair.b.engine.make_batch();
    ASSERT_TRUE(pair.b.engine.submit(Fence{.peer = peer, .batch = fence}));
    ASSERT_TRUE(pair.b.engine.wait(fence)) << pair.b.engine.dump();
    EXPECT_EQ(pair.b.engine.peer_info(peer)->state, PeerState::kFenced);
    std::ranges::fill(pair.b.bytes(), std::byte{0x22});
    pair.world.run_for(100ms);
    EXPECT_TRUE(untouched(pair.b.bytes(), std::byte{0x22})) << "written to after the fence";
    // Whatever was posted in time was delivered, and nothing is in doubt.
    const Errc ended = pair.a.engine.wait(pair.batch).error().code;
    EXPECT_TRUE(ended == Errc::kOk || ended == Errc::kPeerLost) << to_string(ended);
    EXPECT_EQ(pair.batch.delivered() + pair.batch.failed(), 20u);
    EXPECT_EQ(pair.batch.unknown(), 0u);
    cut_short += ended == Errc::kOk ? 0 : 1;
    EXPECT_EQ(pair.a.engine.submit(request).error().code, Errc::kPeerLost);
    // A new session is a new beginning.
    const RemoteHost again = connect(pair.a, pair.b);
    EXPECT_NE(again.peer, pair.remote.peer);
    ASSERT_NO_FATAL_FAILURE(expect_usable(pair.a, pair.b, again, seed));
  }
  EXPECT_GT(cut_short, 0u) << "the test needs fences that come while writes are queued";
}

// ---- Coming back --------------------------------------------------------------------------------

TEST(PeerComesBack, AsANewIncarnationAndTheOldHandlesReportPeerLost) {
  for (const uint64_t seed : seeds(5)) {
    SCOPED_TRACE(replay(seed));
    EventRecorder seen;
    sim::World world(lossy(seed));
    const uint32_t node = world.add_node(2);
    Host a = open_host(world, world.add_node(2), kSize);
    const Subscription subscription = *a.engine.subscribe(seen.notify());
    RemoteHost old;
    PeerInfo first;
    std::vector<std::byte> old_desc;
    {
      Host b = open_host(world, node, kSize);
      old = connect(a, b);
      old_desc = *b.memory.desc();
      ASSERT_NO_FATAL_FAILURE(expect_usable(a, b, old, 1));
      first = *a.engine.peer_info(old.peer);
      ASSERT_TRUE(b.engine.close());
    }
    const auto lost = [&] { return a.engine.peer_info(old.peer)->state == PeerState::kLost; };
    ASSERT_TRUE(world.run_until(lost, 1s)) << "a goodbye must end the session at once";
    EXPECT_TRUE(a.engine.peers().empty());

    Host b = open_host(world, node, kSize);
    const RemoteHost back = connect(a, b);
    EXPECT_NE(back.peer, old.peer);
    ASSERT_NO_FATAL_FAILURE(expect_usable(a, b, back, 2));
    EXPECT_GT(a.engine.peer_info(back.peer)->incarnation, first.incarnation);

    const Write stale{.source = a.memory.at(0), .target = old.at(0), .size_bytes = 8};
    EXPECT_EQ(a.engine.submit(stale).error().code, Errc::kPeerLost);
    EXPECT_EQ(a.engine.submit(Send{.peer = old.peer}).error().code, Errc::kPeerLost);
    EXPECT_EQ(a.engine.import_region(old.peer, old_desc).error().code, Errc::kPeerLost);
    EXPECT_FALSE(a.engine.import_region(back.peer, old_desc));
    EXPECT_EQ(times_connected(seen), 2u);
  }
}

TEST(PeerComesBack, AfterADisconnectWithANewSessionOfTheSameIncarnation) {
  EventRecorder seen_a, seen_b;
  sim::World world;
  Host a = open_host(world, world.add_node(2), kSize);
  Host b = open_host(world, world.add_node(2), kSize);
  const Subscription sa = *a.engine.subscribe(seen_a.notify());
  const Subscription sb = *b.engine.subscribe(seen_b.notify());
  RemoteHost remote = connect(a, b);
  const uint64_t id = [&] {
    await_connected(world, a, remote.peer);
    return a.engine.peer_info(remote.peer)->engine_id;
  }();
  for (uint32_t round = 0; round < 3; ++round) {
    ASSERT_NO_FATAL_FAILURE(expect_usable(a, b, remote, round));
    ASSERT_TRUE(a.engine.disconnect(remote.peer));
    ASSERT_TRUE(world.run_until([&] { return b.engine.peers().empty(); }, 1s))
        << "the session ends on both sides";
    const Write stale{.source = a.memory.at(0), .target = remote.at(0), .size_bytes = 8};
    EXPECT_EQ(a.engine.submit(stale).error().code, Errc::kPeerLost);
    EXPECT_EQ(a.engine.disconnect(remote.peer).error().code, Errc::kPeerLost);
    const RemoteHost next = connect(a, b);
    EXPECT_NE(next.peer, remote.peer);
    EXPECT_NE(next.region, remote.region);
    remote = next;
    await_connected(world, a, remote.peer);
    EXPECT_EQ(a.engine.peer_info(remote.peer)->engine_id, id) << "the same engine";
  }
  world.run_for(1ms);
  EXPECT_EQ(times_connected(seen_a), 4u);
  EXPECT_EQ(times_connected(seen_b), 4u);
}

}  // namespace
}  // namespace fabric::test::sessions_test

#include <cstring>
#include <optional>

#include "harness/write_auditor.h"
#include "support/log_guard.h"

// Where two rules of the failure model meet: honest engines and a network that fails.

namespace fabric::test {
namespace {

using sim::Fault;

constexpr uint64_t kTwoFaultStride = 149;  // events of the network from one run to the next

struct FaultyPair {
  explicit FaultyPair(const sim::NicModel& model, uint32_t rails_a = 2, uint32_t rails_b = 2,
                uint64_t size = 4 << 20, Config config = short_timeouts_config())
      : world({.seed = test_seed()}) {
    expect_fault_logs();
    a.emplace(open_host(world, world.add_node(rails_a, model), size, config));
    b.emplace(open_host(world, world.add_node(rails_b, model), size, config));
    remote = connect(*a, *b, {.warm = true});
    await_connected(world, *a, remote.peer);
    world.run_for(5ms);
    there = b->engine.peers().at(0);
    fill(a->bytes(), 7);
  }
  void happens(const Fault& fault) { ASSERT_TRUE(world.at(world.now(), fault)); }
  EventRecorder ended, fenced;
  sim::World world;
  std::optional<Host> a, b;
  RemoteHost remote;
  PeerId there;
};

// A fence(peer) that says ok; then a piece that was held back goes by another rail and lands.
void fence_then_lands(const sim::NicModel& model) {
  FaultyPair pair(model);
  pair.happens(Fault::refuse_posts(0, 0));
  for (uint32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(pair.a->engine.submit(Write{.source = pair.a->memory.at(i * 4096),
                                            .target = pair.remote.at(i * 4096),
                                            .size_bytes = 4096,
                                            .notify = pair.ended.notify(i)}));
  }
  pair.world.run_for(1ms);
  std::vector<std::byte> before;
  pair.fenced.then = [&](const Event& event) {
    if (event.code != Errc::kOk) return;
    fill(pair.b->bytes(), 99);
    before.assign(pair.b->bytes().begin(), pair.b->bytes().end());
  };
  ASSERT_TRUE(pair.b->engine.submit(
      Fence{.peer = pair.there, .timeout = 2s, .notify = pair.fenced.notify(1)}));
  pair.world.run_for(100ms);
  EXPECT_EQ(pair.fenced.count(), 0u) << "something is held back at the sender";
  pair.happens(Fault::nic_down(0, 0));
  pair.world.run_for(1s);
  ASSERT_EQ(pair.fenced.count(), 1u);
  EXPECT_EQ(pair.fenced.events[0].code, Errc::kOk);
  for (uint32_t i = 0; i < 4; ++i) {
    ASSERT_NE(pair.ended.find(i), nullptr) << i;
  }
  ASSERT_FALSE(before.empty());
  EXPECT_EQ(std::memcmp(before.data(), pair.b->bytes().data(), before.size()), 0)
      << "bytes landed after the fence had said ok";
}
TEST(FencedPeer, LandsNoHeldBackWriteAfterOkUnordered) { fence_then_lands(slow_srd()); }
TEST(FencedPeer, LandsNoHeldBackWriteAfterOkOrdered) { fence_then_lands(slow_rc()); }

// Ordered, slice-safe, no exact replay: the count of a shard must not come by another path than
// its bytes.
void slices(bool whole, const Fault& fault, uint64_t at) {
  sim::NicModel model = slow_rc();
  model.exact_replay = false;
  Config config = short_timeouts_config();
  config.bulk_slice_bytes = 128 << 10;
  FaultyPair pair(model, 2, 2, 4 << 20, config);
  Counter counter = *pair.b->engine.make_counter();
  bool met = false, right = true;
  EventRecorder counted;
  counted.then = [&](const Event& event) {
    met = event.code == Errc::kOk;
    right = holds(pair.b->bytes(0, 2 << 20), 7);
  };
  ASSERT_TRUE(counter.expect(1, counted.notify(1)));
  fill(pair.a->bytes(0, 2 << 20), 7);
  ASSERT_TRUE(pair.world.at(pair.world.now() + Nanos(at), fault));
  ASSERT_TRUE(pair.a->engine.submit(Write{.source = pair.a->memory.at(0),
                                          .target = pair.remote.at(0),
                                          .size_bytes = 2 << 20,
                                          .imm = counter.key(),
                                          .priority = Priority::kBulk,
                                          .unsplit = whole,
                                          .notify = pair.ended.notify(1)}));
  pair.world.run_for(5s);
  const Event* e = pair.ended.find(1);
  ASSERT_NE(e, nullptr);
  EXPECT_FALSE(met && !right) << "counted as whole, and bytes are missing; sender says "
                              << to_string(e->code) << " " << to_string(e->remote) << " at " << at;
}
TEST(Slices, CountComesByThePathOfItsBytes) {
  for (uint64_t at = 100'000; at < 1'600'000; at += 170'000) {
    for (const uint32_t rail : {0u, 1u}) {
      slices(true, Fault::break_sender(0, 1, rail), at);
      slices(false, Fault::break_sender(0, 1, rail), at);
      slices(true, Fault::break_target(0, 1, rail), at);
      slices(true, Fault::cut(0, 1, rail), at);
    }
  }
}

// A counted write that was delivered, under a name that nobody has claimed yet; its sender leaves.
void name_count(Nanos late) {
  FaultyPair pair(slow_rc(), 1, 1);
  const uint64_t name = 42;
  CounterKey key;
  ASSERT_TRUE(pair.a->engine.resolve(pair.remote.peer, {&name, 1}, {&key, 1}));
  if (late.count() > 0) pair.happens(Fault::late_counts(1, late));
  Batch batch = *pair.a->engine.make_batch();
  ASSERT_TRUE(pair.a->engine.submit(Write{.source = pair.a->memory.at(0),
                                          .target = pair.remote.at(0),
                                          .size_bytes = 64,
                                          .imm = key,
                                          .batch = batch}));
  if (late.count() == 0) pair.happens(Fault::slow(1, 20ms));
  ASSERT_TRUE(pair.a->engine.wait(batch));
  ASSERT_EQ(batch.delivered(), 1u) << "the sender was told: delivered, the count is certain";
  EXPECT_TRUE(pair.a->engine.close());
  pair.world.run_for(100ms);
  Counter counter = *pair.b->engine.named_counter(name);
  EXPECT_EQ(counter.count(), 1u) << "asking late loses nothing (P9)";
}
TEST(Names, KeepALateCountOfASenderThatClosed) { name_count(10ms); }
TEST(Names, KeepACountThatIsTakenAfterTheGoodbye) { name_count(0ms); }

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

// The sender finishes, hears "delivered", and leaves: the wait of the receiver that names it.
TEST(BoundCounter, IsMetByACertainCountAfterItsPeerClosed) {
  FaultyPair pair(slow_rc(), 1, 1);
  Counter counter = *pair.b->engine.make_counter();
  ASSERT_TRUE(counter.bind(pair.there));
  EventRecorder waited;
  ASSERT_TRUE(counter.expect(1, waited.notify(1)));
  Batch batch = *pair.a->engine.make_batch();
  ASSERT_TRUE(pair.a->engine.submit(Write{.source = pair.a->memory.at(0),
                                          .target = pair.remote.at(0),
                                          .size_bytes = 64,
                                          .imm = counter.key(),
                                          .batch = batch}));
  pair.happens(Fault::slow(1, 20ms));
  ASSERT_TRUE(pair.a->engine.wait(batch));
  ASSERT_EQ(batch.delivered(), 1u);
  EXPECT_TRUE(pair.a->engine.close());
  pair.world.run_for(100ms);
  ASSERT_NE(waited.find(1), nullptr);
  EXPECT_EQ(waited.find(1)->code, Errc::kOk) << to_string(waited.find(1)->code);
}

// Held pieces and a revoked region or a closed name: the same question as for the fence.
TEST(RevokedKey, IsQuietOnceItsCloseReturns) {
  FaultyPair pair(slow_srd());
  const uint64_t name = 5;
  Counter counter = *pair.b->engine.named_counter(name);
  CounterKey key;
  ASSERT_TRUE(pair.a->engine.resolve(pair.remote.peer, {&name, 1}, {&key, 1}));
  pair.happens(Fault::refuse_posts(0, 0));
  for (uint32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(pair.a->engine.submit(Write{.source = pair.a->memory.at(i * 4096),
                                            .target = pair.remote.at(i * 4096),
                                            .size_bytes = 4096,
                                            .imm = key,
                                            .notify = pair.ended.notify(i)}));
  }
  pair.world.run_for(1ms);
  ASSERT_TRUE(pair.world.at(pair.world.now() + Nanos(50ms), Fault::nic_down(0, 0)));
  (void)counter.close(2s);
  const uint64_t stale = pair.b->engine.stats().stale_imms;
  pair.world.run_for(1s);
  EXPECT_EQ(pair.b->engine.stats().stale_imms, stale);
}

// Two faults at every step, three hosts, asymmetric rails.
void enumerate(const sim::NicModel& model, uint32_t ra, uint32_t rb, const Fault& first,
               const Fault& second, uint64_t apart, bool bulk, const Fault& undo) {
  for (uint64_t at = 5; at < 200; at += kTwoFaultStride) {
    SCOPED_TRACE("at " + std::to_string(at) + " rails " + std::to_string(ra) + std::to_string(rb) +
                 " " + to_string(first.kind) + " " + to_string(second.kind));
    Config config = short_timeouts_config();
    config.bulk_slice_bytes = 64 << 10;
    FaultyPair pair(model, ra, rb, 4 << 20, config);
    expect_log("");
    WriteAuditor auditor(*pair.a, 7);
    const WriteAuditor::Target to{&*pair.b, pair.remote};
    const uint64_t base = pair.world.events();
    ASSERT_TRUE(pair.world.at_event(base + at, first));
    ASSERT_TRUE(pair.world.at_event(base + at + apart, second));
    const WriteAuditor::Options options{.timeout = 500ms,
                                  .priority = bulk ? Priority::kBulk : Priority::kNormal};
    for (int i = 0; i < 3; ++i) auditor.write(to, 300 << 10, options);
    auditor.pages(to, 16, 4096, options);
    ASSERT_TRUE(pair.world.at(pair.world.now() + Nanos(50ms), undo));
    run_until_complete(pair.world, auditor);
    auditor.check();
    if (testing::Test::HasFailure()) return;
  }
}
TEST(Failover, TwoFaultsAtAnyStep) {
  for (const bool bulk : {false, true}) {
    for (const auto& [ra, rb] : {std::pair{1u, 4u}, {4u, 1u}, {2u, 3u}}) {
      enumerate(slow_rc(), ra, rb, Fault::break_sender(0, 1, 0), Fault::nic_down(1, 0), 7, bulk,
                Fault::nic_up(1, 0));
      enumerate(slow_rc(), ra, rb, Fault::lose_acks(0, 1, 0), Fault::break_target(0, 1, 0), 11,
                bulk, Fault::keep_acks(0, 1));
      enumerate(slow_rc(), ra, rb, Fault::refuse_posts(0, 0), Fault::break_sender(0, 1, 0), 5, bulk,
                Fault::take_posts(0));
      enumerate(slow_rc(), ra, rb, Fault::receiver_not_ready(1, 0), Fault::nic_down(0, 0), 40, bulk,
                Fault::receiver_ready(1));
      enumerate(slow_rc(), ra, rb, Fault::control_cut(0, 1), Fault::break_target(0, 1, 0), 3, bulk,
                Fault::control_heal(0, 1));
      enumerate(slow_srd(), ra, rb, Fault::refuse_posts(0, 0), Fault::nic_down(0, 0), 5, bulk,
                Fault::nic_up(0, 0));
      enumerate(slow_srd(), ra, rb, Fault::lose_acks(0, 1, 0), Fault::nic_down(1, 0), 20, bulk,
                Fault::nic_up(1, 0));
    }
  }
}

TEST(Nic, OneHereReachesTheLastOfFourThere) {
  FaultyPair pair(slow_rc(), 1, 4);
  for (const uint32_t rail : {0, 1, 2}) pair.happens(Fault::nic_down(1, rail));
  pair.world.run_for(10ms);
  ASSERT_TRUE(pair.a->engine.submit(Write{.source = pair.a->memory.at(0),
                                          .target = pair.remote.at(0),
                                          .size_bytes = 4096,
                                          .timeout = 2s,
                                          .notify = pair.ended.notify(1)}));
  pair.world.run_for(4s);
  ASSERT_NE(pair.ended.find(1), nullptr);
  EXPECT_EQ(pair.ended.find(1)->code, Errc::kOk) << "a NIC of the peer is up";
  EXPECT_TRUE(std::ranges::equal(pair.a->bytes(0, 4096), pair.b->bytes(0, 4096)));
}

}  // namespace
}  // namespace fabric::test

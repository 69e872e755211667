#include <algorithm>
#include <cstring>
#include <optional>

#include <gtest/gtest.h>

#include "harness/host.h"
#include "scenario/pairs.h"
#include "support/log_guard.h"

// Fences (P13): a writer that is stopped with writes in flight, the owner of the memory, which
// fences the writer and reuses the memory, and an innocent third peer. After the fence completes
// with kOk not one byte of the writer lands, whatever its NIC still holds.

namespace fabric::test::fence_test {
namespace {

using sim::Fault;

constexpr uint64_t kHalf = 32 << 10;  // of the owner's memory: the writer's, then the innocent's
constexpr uint64_t kPage = 1024;
constexpr uint32_t kWriter = 0, kOwner = 1, kInnocent = 2;  // nodes
constexpr uint64_t kStride = 41;  // run the test at every n-th network event
constexpr uint32_t kWrites = 200, kInnocentWrites = 100;

enum class Access { kOpen, kGrant };

sim::NicModel model_of(FenceKind kind) {
  const bool connected = kind == FenceKind::kLocal || kind == FenceKind::kHost;
  sim::NicModel model = connected ? rc_model() : srd_model();
  model.gbit_per_s = 4;
  model.path_depth = 24;  // the rest is queued
  model.fence = kind;
  return model;
}

Config named(uint32_t node) {
  Config config = test_config();
  config.engine_id = 100 + node;
  config.peer_timeout = 1s;
  config.lost_timeout = 4s;
  config.drain_timeout = 2s;
  return config;
}

PeerId session_with(const Host& host, uint32_t node) {
  for (const PeerId peer : host.engine.peers()) {
    if (host.engine.peer_info(peer)->engine_id == 100 + node) return peer;
  }
  return {};
}

class FenceSetup {
 public:
  FenceSetup(FenceKind kind, Access access)
      : world({.seed = test_seed()}),
        writer(open(kind, kWriter)),
        owner(open(kind, kOwner)),
        innocent(open(kind, kInnocent)) {
    for (const char* part : {"a path broke", "a path could not be opened"}) expect_log(part);
    remote = reach(writer, kWriter, access);
    innocent_way = reach(innocent, kInnocent, access);
    peer = session_with(owner, kWriter);
    fill(writer.bytes(), 7);
    fill(innocent.bytes(), 8);
    counted.emplace(*owner.engine.make_counter());
    batch.emplace(*writer.engine.make_batch());
    innocent_batch.emplace(*innocent.engine.make_batch());
    sub.emplace(*owner.engine.subscribe(seen.notify()));
  }

  /// Imports the owner's memory, by a descriptor for all peers or for this one only.
  RemoteHost reach(Host& from, uint32_t node, Access access) {
    const PeerId to = *from.engine.connect(owner.engine.address());
    await_connected(world, from, to);
    EXPECT_TRUE(world.run_until([&] { return bool(session_with(owner, node)); }, 1s));
    const auto desc = access == Access::kOpen ? *owner.memory.desc()
                                              : owner.memory.grant(session_with(owner, node))->desc;
    return {to, *from.engine.import_region(to, desc)};
  }

  /// Both write, each into its own half.
  void load() {
    for (uint32_t i = 0; i < kWrites; ++i) {
      const uint64_t at = i % (kHalf / kPage) * kPage;
      ASSERT_TRUE(writer.engine.submit(Write{.source = writer.memory.at(at),
                                             .target = remote.at(at),
                                             .size_bytes = kPage,
                                             .batch = *batch,
                                             .notify = ended.notify()}));
    }
    for (uint32_t i = 0; i < kInnocentWrites; ++i) {
      const uint64_t at = i % (kHalf / kPage) * kPage;
      ASSERT_TRUE(innocent.engine.submit(Write{.source = innocent.memory.at(at),
                                               .target = innocent_way.at(kHalf + at),
                                               .size_bytes = kPage,
                                               .imm = counted->key(),
                                               .batch = *innocent_batch}));
    }
  }
  void happens(const Fault& fault) { ASSERT_TRUE(world.at(world.now(), fault)); }
  /// Stops the writer with packets on the wire that arrive long after any fence.
  void stop_writer() {
    ASSERT_TRUE(world.run_until([&] { return ended.count() >= 40; }, 1s));
    happens(Fault::delay(kWriter, 3s));
    world.run_for(100us);
    happens(Fault::stop(kWriter));
    happens(Fault::delay(kWriter, 0s));
    world.run_for(1us);
    const Traffic tx = writer.engine.peer_stats().at(0).tx;
    ASSERT_GT(tx.posted, 10u) << "the test needs writes in flight";
    ASSERT_GT(tx.queued, 50u) << "the test needs writes that are not posted yet";
  }
  void resume_writer() { happens(Fault::resume(kWriter)); }

  OpId fence(uint64_t tag, Timeout timeout = 5s) {
    return *owner.engine.submit(
        Fence{.peer = peer, .timeout = timeout, .notify = fenced.notify(tag)});
  }
  Event await_fence(uint64_t tag) {
    const bool came = world.run_until([&] { return fenced.find(tag) != nullptr; }, 60s);
    EXPECT_TRUE(came) << owner.engine.dump();
    return came ? *fenced.find(tag) : Event{};
  }
  /// The owner reuses the writer's half as soon as a fence completes with kOk. A write that lands
  /// there afterwards is found in the same step.
  void guard() {
    fenced.then = [this](const Event& event) {
      if (event.code == Errc::kOk) reuse();
    };
  }
  void reuse() {
    fill(owner.bytes(0, kHalf), 99);
    expected.assign(owner.bytes().begin(), owner.bytes().begin() + kHalf);
    reused = true;
  }
  bool intact() const { return std::memcmp(owner.bytes().data(), expected.data(), kHalf) == 0; }

  void innocents_arrived() {
    EXPECT_TRUE(innocent.engine.wait(*innocent_batch)) << innocent.engine.dump();
    EXPECT_EQ(innocent_batch->failed(), 0u);
    EXPECT_TRUE(counted->wait(kInnocentWrites, 5s));
    EXPECT_TRUE(std::ranges::equal(owner.bytes(kHalf, kHalf), innocent.bytes()));
  }
  void writer_ended() {
    EXPECT_TRUE(world.run_until([&] { return batch->pending() == 0; }, 40s))
        << writer.engine.dump();
    EXPECT_EQ(ended.count(), kWrites) << "each write must complete once";
    for (const Event& event : ended.events) {
      EXPECT_TRUE(event.code == Errc::kOk || event.code == Errc::kPeerLost)
          << to_string(event.code);
    }
  }
  /// The writer gets access again by a new session only; handles of the old one stay refused.
  void meets_again(Access access) {
    const Write stale{.source = writer.memory.at(0), .target = remote.at(0), .size_bytes = 8};
    EXPECT_EQ(writer.engine.submit(stale).error().code, Errc::kPeerLost);
    const RemoteHost again = reach(writer, kWriter, access);
    EXPECT_NE(again.peer, remote.peer);
    EXPECT_NE(session_with(owner, kWriter), peer);
    EXPECT_EQ(writer.engine.submit(stale).error().code, Errc::kPeerLost);
    Counter counter = *owner.engine.make_counter();
    fill(writer.bytes(), 12);
    ASSERT_TRUE(writer.engine.submit(Write{.source = writer.memory.at(0),
                                           .target = again.at(0),
                                           .size_bytes = kHalf,
                                           .imm = counter.key()}));
    EXPECT_TRUE(counter.wait(1, 5s)) << writer.engine.dump();
    EXPECT_TRUE(holds(owner.bytes(0, kHalf), 12));
  }

  EventRecorder seen, fenced, ended;
  sim::World world;
  Host writer, owner, innocent;
  RemoteHost remote, innocent_way;
  PeerId peer;  ///< the writer, as the owner knows it
  std::optional<Counter> counted;
  std::optional<Batch> batch, innocent_batch;
  std::optional<Subscription> sub;
  bool reused = false;
  std::vector<std::byte> expected;  ///< in the writer's half, once it is used again

 private:
  Host open(FenceKind kind, uint32_t node) {
    EXPECT_EQ(world.add_node(1, model_of(kind)), node);
    return open_host(world, node, node == kOwner ? 2 * kHalf : kHalf, named(node));
  }
};

/// Fails in the step in which a byte lands that must not.
sim::Hook watch(FenceSetup& setup) {
  return setup.world.each_step([&setup, failed = false]() mutable {
    if (!setup.reused || failed || setup.intact()) return;
    failed = true;
    ADD_FAILURE() << "a write landed after the fence, at " << setup.world.now().count() << " ns";
  });
}

// ---- The zombie ---------------------------------------------------------------------------------

void zombie_is_shut_out(FenceKind kind, Access access) {
  FenceSetup setup(kind, access);
  setup.guard();
  const sim::Hook check = watch(setup);
  setup.load();
  setup.stop_writer();
  setup.fence(1);
  const Event event = setup.await_fence(1);
  EXPECT_EQ(event.code, Errc::kOk);
  EXPECT_EQ(event.remote, Remote::kDelivered);
  EXPECT_EQ(event.peer, setup.peer);
  EXPECT_LE(setup.world.now(), Nanos(2s)) << "the fence waited beyond the grace period";
  EXPECT_EQ(setup.owner.engine.peer_info(setup.peer)->state, PeerState::kFenced);
  setup.world.run_for(4s);  // what was on the wire arrives
  setup.resume_writer();
  setup.writer_ended();
  setup.world.run_for(2s);
  EXPECT_TRUE(setup.intact());
  setup.innocents_arrived();
  EXPECT_EQ(setup.seen.count(EventKind::kFenceProved), 0u) << "the proof was reported twice";
  setup.reused = false;
  setup.meets_again(access);
}

TEST(FencedZombie, ByItsConnection) { zombie_is_shut_out(FenceKind::kLocal, Access::kOpen); }
TEST(FencedZombie, ByItsHost) { zombie_is_shut_out(FenceKind::kHost, Access::kOpen); }
TEST(FencedZombie, ByTheKeysThatOnlyItHad) {
  zombie_is_shut_out(FenceKind::kRekey, Access::kGrant);
}

TEST(FencedZombie, WithAnOpenDescriptorOnlyTheEndOfTheRegionIsProof) {
  FenceSetup setup(FenceKind::kRekey, Access::kOpen);
  const sim::Hook check = watch(setup);
  setup.load();
  setup.stop_writer();
  const Nanos began = setup.world.now();
  const OpId fence = setup.fence(1, 3s);
  const Event event = setup.await_fence(1);
  EXPECT_EQ(event.code, Errc::kTimeout);
  EXPECT_EQ(event.remote, Remote::kUnknown);
  EXPECT_GE(setup.world.now() - began, Nanos(3s));
  setup.innocents_arrived();
  EXPECT_EQ(setup.seen.count(EventKind::kFenceProved), 0u);

  ASSERT_TRUE(setup.owner.engine.submit(Deregister{
      .region = setup.owner.memory.id(), .timeout = 5s, .notify = setup.fenced.notify(2)}));
  EXPECT_EQ(setup.await_fence(2).code, Errc::kOk);
  setup.reuse();
  ASSERT_TRUE(
      setup.world.run_until([&] { return setup.seen.count(EventKind::kFenceProved) == 1; }, 1s));
  const auto proved = std::ranges::find(setup.seen.events, EventKind::kFenceProved, &Event::kind);
  EXPECT_EQ(proved->op, fence);
  EXPECT_EQ(proved->peer, setup.peer);
  setup.resume_writer();
  setup.writer_ended();
  setup.world.run_for(2s);
  EXPECT_TRUE(setup.intact());
  EXPECT_EQ(setup.seen.count(EventKind::kFenceProved), 1u);
}

TEST(FencedZombie, WithoutAnyFenceOnlyItsOwnAnswerIsProof) {
  for (const bool answers : {true, false}) {
    SCOPED_TRACE(answers);
    FenceSetup setup(FenceKind::kNone, Access::kGrant);
    setup.guard();
    const sim::Hook check = watch(setup);
    setup.load();
    if (answers) {
      setup.world.run_for(100us);
    } else {
      setup.stop_writer();
    }
    setup.fence(1, 3s);
    const Event event = setup.await_fence(1);
    EXPECT_EQ(event.code, answers ? Errc::kOk : Errc::kTimeout);
    EXPECT_EQ(event.remote, answers ? Remote::kDelivered : Remote::kUnknown);
    setup.resume_writer();
    setup.writer_ended();
    setup.innocents_arrived();
    setup.world.run_for(5s);
    EXPECT_EQ(setup.seen.count(EventKind::kFenceProved), 0u);
    EXPECT_EQ(setup.reused, answers);
    setup.reused = false;
    setup.meets_again(Access::kGrant);
  }
}

// ---- Those who answer ---------------------------------------------------------------------------

/// At every event of the load: what was posted drains, no other peer is disturbed.
void cooperates_at_any_step(FenceKind kind, Access access) {
  uint64_t begin = 0, end = 0;
  {
    FenceSetup setup(kind, access);
    begin = setup.world.events();
    setup.load();
    setup.innocents_arrived();
    setup.writer_ended();
    end = setup.world.events();
  }
  ASSERT_GT(end - begin, 500u);
  for (uint64_t at = begin; at < end; at += kStride) {
    SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
    FenceSetup setup(kind, access);
    setup.guard();
    const sim::Hook check = watch(setup);
    setup.load();
    setup.world.run_until([&] { return setup.world.events() >= at; }, 1s);
    const Nanos began = setup.world.now();
    setup.fence(1);
    EXPECT_EQ(setup.await_fence(1).code, Errc::kOk);
    EXPECT_LE(setup.world.now() - began, Nanos(10ms))
        << "the peer answers: there must be no wait for a timeout";
    setup.writer_ended();
    EXPECT_EQ(setup.batch->unknown(), 0u) << "what was posted has drained";
    setup.innocents_arrived();
    setup.world.run_for(10ms);
    EXPECT_TRUE(setup.intact());
    if (testing::Test::HasFailure()) return;
  }
}

TEST(FencedPeer, DrainsItsConnectionAtAnyStep) {
  cooperates_at_any_step(FenceKind::kLocal, Access::kOpen);
}
TEST(FencedPeer, DrainsWithItsOwnKeysAtAnyStep) {
  cooperates_at_any_step(FenceKind::kRekey, Access::kGrant);
}
TEST(FencedPeer, DrainsWithAnOpenDescriptorAtAnyStep) {
  cooperates_at_any_step(FenceKind::kRekey, Access::kOpen);
}

TEST(FencedPeer, StoppedAtAnyStepOfTheFence) {
  expect_log("a path broke");
  for (const FenceKind kind : {FenceKind::kLocal, FenceKind::kRekey}) {
    for (uint64_t after = 0; after < 400; after += kStride) {
      SCOPED_TRACE(std::string(to_string(kind)) + ", stopped " + std::to_string(after) +
                   " events after the fence began, " + replay(test_seed()));
      const Access access = kind == FenceKind::kRekey ? Access::kGrant : Access::kOpen;
      FenceSetup setup(kind, access);
      setup.guard();
      const sim::Hook check = watch(setup);
      setup.load();
      setup.world.run_for(50us);
      ASSERT_TRUE(setup.world.at_event(setup.world.events() + after, Fault::stop(kWriter)));
      setup.fence(1);
      EXPECT_EQ(setup.await_fence(1).code, Errc::kOk);
      // With few events it stops after the fence, which must not matter, but not while it closes.
      const auto stopped = [&] { return setup.world.faults(Fault::Kind::kStop) > 0; };
      ASSERT_TRUE(setup.world.run_until(stopped, 600s));
      setup.world.run_for(1s);
      setup.resume_writer();
      setup.writer_ended();
      setup.innocents_arrived();
      setup.world.run_for(100ms);
      EXPECT_TRUE(setup.intact());
      if (testing::Test::HasFailure()) return;
    }
  }
}

// ---- Peers that are lost or not connected yet ---------------------------------------------------

TEST(FencedPeer, ThatIsLostNeedsNoAnswer) {
  for (const FenceKind kind : {FenceKind::kLocal, FenceKind::kRekey}) {
    SCOPED_TRACE(to_string(kind));
    FenceSetup setup(kind, kind == FenceKind::kRekey ? Access::kGrant : Access::kOpen);
    setup.guard();
    const sim::Hook check = watch(setup);
    setup.load();
    setup.stop_writer();
    const auto lost = [&] {
      return setup.owner.engine.peer_info(setup.peer)->state == PeerState::kLost;
    };
    setup.happens(Fault::control_cut(kWriter, kOwner));
    ASSERT_TRUE(setup.world.run_until(lost, 60s));
    const Nanos began = setup.world.now();
    setup.fence(1);
    EXPECT_EQ(setup.await_fence(1).code, Errc::kOk);
    EXPECT_LE(setup.world.now() - began, Nanos(1ms));
    setup.happens(Fault::control_heal(kWriter, kOwner));
    setup.resume_writer();
    setup.writer_ended();
    setup.world.run_for(1s);
    EXPECT_TRUE(setup.intact());
    setup.innocents_arrived();
  }
}

TEST(FencedPeer, ThatHasNeverAnsweredIsOutAtOnce) {
  FenceSetup setup(FenceKind::kLocal, Access::kOpen);
  const uint32_t node = setup.world.add_node(1, model_of(FenceKind::kLocal));
  Host silent = open_host(setup.world, node, kPage, named(node));
  setup.happens(Fault::stop(node));
  const PeerId peer = *setup.owner.engine.connect(silent.engine.address());
  Batch batch = *setup.owner.engine.make_batch();
  ASSERT_TRUE(setup.owner.engine.submit(Send{.peer = peer, .batch = batch}));
  setup.world.run_for(1ms);
  ASSERT_EQ(setup.owner.engine.peer_info(peer)->state, PeerState::kConnecting);
  ASSERT_TRUE(setup.owner.engine.submit(Fence{.peer = peer, .notify = setup.fenced.notify(1)}));
  EXPECT_EQ(setup.await_fence(1).code, Errc::kOk);
  EXPECT_EQ(setup.owner.engine.peer_info(peer)->state, PeerState::kFenced);
  EXPECT_EQ(setup.owner.engine.wait(batch).error().code, Errc::kPeerLost);
  EXPECT_EQ(batch.unknown(), 0u);
  setup.happens(Fault::resume(node));
  setup.world.run_for(1s);
  EXPECT_TRUE(silent.engine.peers().empty()) << "a late hello has opened it again";
}

TEST(FencedPeer, TwiceAtOnceIsBusyAndTheFirstGoesOn) {
  FenceSetup setup(FenceKind::kLocal, Access::kOpen);
  setup.guard();
  const sim::Hook check = watch(setup);
  setup.load();
  setup.stop_writer();
  setup.fence(1);
  setup.fence(2);
  EXPECT_EQ(setup.await_fence(2).code, Errc::kBusy);
  EXPECT_EQ(setup.fenced.find(1), nullptr);
  EXPECT_EQ(setup.await_fence(1).code, Errc::kOk);
  setup.fence(3);
  EXPECT_EQ(setup.await_fence(3).code, Errc::kOk) << "a fenced peer must stay fenced";
  setup.resume_writer();
  setup.writer_ended();
  setup.world.run_for(1s);
  EXPECT_TRUE(setup.intact());
  setup.innocents_arrived();
}

// ---- Proof that takes its time ------------------------------------------------------------------

TEST(LateProof, ComesAsAnEventAfterAFenceThatHadNoTimeForIt) {
  for (const FenceKind kind : {FenceKind::kLocal, FenceKind::kRekey}) {
    SCOPED_TRACE(to_string(kind));
    const Access access = kind == FenceKind::kRekey ? Access::kGrant : Access::kOpen;
    FenceSetup setup(kind, access);
    setup.load();
    setup.stop_writer();
    setup.happens(Fault::late_proof(kOwner, 2s));
    const Nanos began = setup.world.now();
    const OpId fence = setup.fence(1, 500ms);
    const Event event = setup.await_fence(1);
    EXPECT_EQ(event.code, Errc::kTimeout);
    EXPECT_EQ(event.remote, Remote::kUnknown);
    EXPECT_LE(setup.world.now() - began, Nanos(501ms));
    EXPECT_EQ(setup.seen.count(EventKind::kFenceProved), 0u);
    const auto proved = [&] { return setup.seen.count(EventKind::kFenceProved) > 0; };
    ASSERT_TRUE(setup.world.run_until(proved, 10s));
    EXPECT_GE(setup.world.now() - began, Nanos(2s)) << "the proof came too early";
    const auto proof = std::ranges::find(setup.seen.events, EventKind::kFenceProved, &Event::kind);
    EXPECT_EQ(proof->op, fence);
    EXPECT_EQ(proof->peer, setup.peer);
    setup.reuse();
    const sim::Hook check = watch(setup);
    setup.resume_writer();
    setup.writer_ended();
    setup.world.run_for(3s);
    EXPECT_TRUE(setup.intact());
    EXPECT_EQ(setup.seen.count(EventKind::kFenceProved), 1u);
    setup.innocents_arrived();
    setup.happens(Fault::late_proof(kOwner, 0s));
    setup.reused = false;
    setup.meets_again(access);
  }
}

TEST(LateProof, IsWaitedForByAFenceThatHasTheTime) {
  for (const FenceKind kind : {FenceKind::kLocal, FenceKind::kRekey}) {
    SCOPED_TRACE(to_string(kind));
    FenceSetup setup(kind, kind == FenceKind::kRekey ? Access::kGrant : Access::kOpen);
    setup.load();
    setup.stop_writer();
    setup.happens(Fault::late_proof(kOwner, 2s));
    const Nanos began = setup.world.now();
    setup.fence(1, 20s);
    EXPECT_EQ(setup.await_fence(1).code, Errc::kOk);
    EXPECT_GE(setup.world.now() - began, Nanos(2s)) << "ok without proof";
    setup.happens(Fault::late_proof(kOwner, 0s));
    setup.resume_writer();
    setup.innocents_arrived();
  }
}

TEST(LateProof, OfAKeyThatEndsWithItsRegionIsWaitedForAsWell) {
  FenceSetup setup(FenceKind::kRekey, Access::kGrant);
  setup.load();
  setup.innocents_arrived();
  setup.writer_ended();
  setup.happens(Fault::late_proof(kOwner, 5s));
  ASSERT_TRUE(setup.owner.engine.submit(
      Deregister{.region = setup.owner.memory.id(), .notify = setup.fenced.notify(1)}));
  setup.world.run_for(10ms);  // the importers have answered: the rails are at it
  setup.happens(Fault::late_proof(kOwner, 0s));
  setup.happens(Fault::stop(kWriter));
  setup.fence(2, 20s);
  EXPECT_EQ(setup.await_fence(2).code, Errc::kOk);
  ASSERT_NE(setup.fenced.find(1), nullptr) << "the writer's rkey was not proved to be invalid";
  EXPECT_EQ(setup.fenced.find(1)->code, Errc::kOk);
  setup.happens(Fault::resume(kWriter));
}

TEST(LateProof, OfAKeyThatWasNeverUsedIsWaitedForAsWell) {
  FenceSetup setup(FenceKind::kRekey, Access::kGrant);  // and no path is open
  setup.happens(Fault::late_proof(kOwner, 2s));
  setup.happens(Fault::stop(kWriter));
  const Nanos began = setup.world.now();
  setup.fence(1, 20s);
  EXPECT_EQ(setup.await_fence(1).code, Errc::kOk);
  EXPECT_GE(setup.world.now() - began, Nanos(3s))
      << "proved before the grace period and the rail's proof";
  setup.happens(Fault::late_proof(kOwner, 0s));
  setup.happens(Fault::resume(kWriter));
}

TEST(LateProof, OfAFirstFenceIsReportedAlthoughASecondOneHasIt) {
  FenceSetup setup(FenceKind::kLocal, Access::kOpen);
  setup.load();
  setup.stop_writer();
  setup.happens(Fault::late_proof(kOwner, 2s));
  const OpId first = setup.fence(1, 100ms);
  EXPECT_EQ(setup.await_fence(1).code, Errc::kTimeout);
  setup.fence(2, 20s);
  EXPECT_EQ(setup.await_fence(2).code, Errc::kOk);
  setup.world.run_for(1ms);
  ASSERT_EQ(setup.seen.count(EventKind::kFenceProved), 1u);
  const auto proof = std::ranges::find(setup.seen.events, EventKind::kFenceProved, &Event::kind);
  EXPECT_EQ(proof->op, first);
  setup.happens(Fault::late_proof(kOwner, 0s));
  setup.resume_writer();
  setup.innocents_arrived();
}

// ---- Held back ----------------------------------------------------------------------------------

// A fence that completes with kOk; then a write that was held back must not go by another rail.
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
  EXPECT_EQ(pair.fenced.count(), 0u) << "proved while the sender still holds writes back";
  pair.happens(Fault::nic_down(0, 0));
  pair.world.run_for(1s);
  ASSERT_EQ(pair.fenced.count(), 1u);
  EXPECT_EQ(pair.fenced.events[0].code, Errc::kOk);
  for (uint32_t i = 0; i < 4; ++i) {
    ASSERT_NE(pair.ended.find(i), nullptr) << i;
  }
  ASSERT_FALSE(before.empty());
  EXPECT_EQ(std::memcmp(before.data(), pair.b->bytes().data(), before.size()), 0)
      << "bytes landed after the fence had completed";
}
TEST(FencedPeer, LandsNoHeldBackWriteAfterOkUnordered) { fence_then_lands(slow_srd()); }
TEST(FencedPeer, LandsNoHeldBackWriteAfterOkOrdered) { fence_then_lands(slow_rc()); }

}  // namespace
}  // namespace fabric::test::fence_test

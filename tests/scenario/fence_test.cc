#include <algorithm>
#include <cstring>
#include <optional>

#include "harness/host.h"
#include "support/log_guard.h"

// Fences (P13): a writer that is stopped with writes on their way, the owner of the memory who
// shuts it out and uses the memory again, and somebody who has nothing to do with it. After the
// fence said ok not one byte of the writer lands, whatever its NIC still holds.

namespace fabric::test {
namespace {

using sim::Fault;

constexpr uint64_t kHalf = 32 << 10;  // of the owner's memory: the writer's, then the innocent's
constexpr uint64_t kPage = 1024;
constexpr uint32_t kWriter = 0, kOwner = 1, kInnocent = 2;  // nodes
constexpr uint64_t kStride = 41;                            // of stories told at every event
constexpr uint32_t kWrites = 200, kInnocentWrites = 100;

enum class Means { kOpen, kGrant };

sim::NicModel model_of(FenceKind kind) {
  const bool connected = kind == FenceKind::kLocal || kind == FenceKind::kHost;
  sim::NicModel model = connected ? sim::NicModel::connectx7() : sim::NicModel::efa_200g();
  model.gbit_per_s = 4;
  model.path_depth = 24;  // the rest is queued
  model.fence = kind;
  return model;
}

Config named(uint32_t node) {
  Config config = story_config();
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

class Stage {
 public:
  Stage(FenceKind kind, Means means)
      : world({.seed = test_seed()}),
        writer(open(kind, kWriter)),
        owner(open(kind, kOwner)),
        innocent(open(kind, kInnocent)) {
    for (const char* part : {"a path broke", "a path could not be opened"}) expect_log(part);
    way = reach(writer, kWriter, means);
    innocent_way = reach(innocent, kInnocent, means);
    peer = session_with(owner, kWriter);
    fill(writer.bytes(), 7);
    fill(innocent.bytes(), 8);
    counted.emplace(*owner.engine.make_counter());
    batch.emplace(*writer.engine.make_batch());
    innocent_batch.emplace(*innocent.engine.make_batch());
    sub.emplace(*owner.engine.subscribe(seen.notify()));
  }

  /// The way to the owner's memory, by a descriptor that is good for anybody or for this one only.
  Way reach(Host& from, uint32_t node, Means means) {
    const PeerId to = *from.engine.connect(owner.engine.address());
    await_connected(world, from, to);
    EXPECT_TRUE(world.run_until([&] { return bool(session_with(owner, node)); }, 1s));
    const auto desc =
        means == Means::kOpen ? owner.memory.desc() : owner.memory.grant(session_with(owner, node));
    return {to, *from.engine.import_region(to, *desc)};
  }

  /// Both write, each into its own half.
  void load() {
    for (uint32_t i = 0; i < kWrites; ++i) {
      const uint64_t at = i % (kHalf / kPage) * kPage;
      ASSERT_TRUE(writer.engine.submit(Write{.source = writer.memory.at(at),
                                             .target = way.at(at),
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
    ASSERT_GT(tx.posted, 10u) << "the story needs writes that are on their way,";
    ASSERT_GT(tx.queued, 50u) << "and some that are not";
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
  /// The owner uses the writer's half again, from the moment at which a fence says ok. What lands
  /// there afterwards is seen in the very step.
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
    EXPECT_EQ(ended.count(), kWrites) << "each once";
    for (const Event& event : ended.events) {
      EXPECT_TRUE(event.code == Errc::kOk || event.code == Errc::kPeerLost)
          << to_string(event.code);
    }
  }
  /// The way back in is a new session; nothing of the old one opens it.
  void meets_again(Means means) {
    const Write stale{.source = writer.memory.at(0), .target = way.at(0), .size_bytes = 8};
    EXPECT_EQ(writer.engine.submit(stale).error().code, Errc::kPeerLost);
    const Way again = reach(writer, kWriter, means);
    EXPECT_NE(again.peer, way.peer);
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

  Witness seen, fenced, ended;
  sim::World world;
  Host writer, owner, innocent;
  Way way, innocent_way;
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
EachStep watch(Stage& stage) {
  return EachStep(stage.world, [&stage, failed = false]() mutable {
    if (!stage.reused || failed || stage.intact()) return;
    failed = true;
    ADD_FAILURE() << "a write landed after the fence, at " << stage.world.now().count() << " ns";
  });
}

// ---- The zombie ---------------------------------------------------------------------------------

void zombie_is_shut_out(FenceKind kind, Means means) {
  Stage stage(kind, means);
  stage.guard();
  const EachStep check = watch(stage);
  stage.load();
  stage.stop_writer();
  stage.fence(1);
  const Event event = stage.await_fence(1);
  EXPECT_EQ(event.code, Errc::kOk);
  EXPECT_EQ(event.remote, Remote::kDelivered);
  EXPECT_EQ(event.peer, stage.peer);
  EXPECT_LE(stage.world.now(), Nanos(2s)) << "a grace for the peer, then no more waiting";
  EXPECT_EQ(stage.owner.engine.peer_info(stage.peer)->state, PeerState::kFenced);
  stage.world.run_for(4s);  // what was on the wire arrives
  stage.resume_writer();
  stage.writer_ended();
  stage.world.run_for(2s);
  EXPECT_TRUE(stage.intact());
  stage.innocents_arrived();
  EXPECT_EQ(stage.seen.count(EventKind::kFenceProved), 0u) << "the proof was there already";
  stage.reused = false;
  stage.meets_again(means);
}

TEST(FencedZombie, ByItsConnection) { zombie_is_shut_out(FenceKind::kLocal, Means::kOpen); }
TEST(FencedZombie, ByItsHost) { zombie_is_shut_out(FenceKind::kHost, Means::kOpen); }
TEST(FencedZombie, ByTheKeysThatOnlyItHad) { zombie_is_shut_out(FenceKind::kRekey, Means::kGrant); }

TEST(FencedZombie, WithAnOpenDescriptorOnlyTheEndOfTheRegionIsProof) {
  Stage stage(FenceKind::kRekey, Means::kOpen);
  const EachStep check = watch(stage);
  stage.load();
  stage.stop_writer();
  const Nanos began = stage.world.now();
  const OpId fence = stage.fence(1, 3s);
  const Event event = stage.await_fence(1);
  EXPECT_EQ(event.code, Errc::kTimeout);
  EXPECT_EQ(event.remote, Remote::kUnknown);
  EXPECT_GE(stage.world.now() - began, Nanos(3s));
  stage.innocents_arrived();
  EXPECT_EQ(stage.seen.count(EventKind::kFenceProved), 0u);

  ASSERT_TRUE(stage.owner.engine.submit(Deregister{
      .region = stage.owner.memory.id(), .timeout = 5s, .notify = stage.fenced.notify(2)}));
  EXPECT_EQ(stage.await_fence(2).code, Errc::kOk);
  stage.reuse();
  ASSERT_TRUE(
      stage.world.run_until([&] { return stage.seen.count(EventKind::kFenceProved) == 1; }, 1s));
  const auto proved = std::ranges::find(stage.seen.events, EventKind::kFenceProved, &Event::kind);
  EXPECT_EQ(proved->op, fence);
  EXPECT_EQ(proved->peer, stage.peer);
  stage.resume_writer();
  stage.writer_ended();
  stage.world.run_for(2s);
  EXPECT_TRUE(stage.intact());
  EXPECT_EQ(stage.seen.count(EventKind::kFenceProved), 1u);
}

TEST(FencedZombie, WithoutAnyFenceOnlyItsOwnAnswerIsProof) {
  for (const bool answers : {true, false}) {
    SCOPED_TRACE(answers);
    Stage stage(FenceKind::kNone, Means::kGrant);
    stage.guard();
    const EachStep check = watch(stage);
    stage.load();
    if (answers) {
      stage.world.run_for(100us);
    } else {
      stage.stop_writer();
    }
    stage.fence(1, 3s);
    const Event event = stage.await_fence(1);
    EXPECT_EQ(event.code, answers ? Errc::kOk : Errc::kTimeout);
    EXPECT_EQ(event.remote, answers ? Remote::kDelivered : Remote::kUnknown);
    stage.resume_writer();
    stage.writer_ended();
    stage.innocents_arrived();
    stage.world.run_for(5s);
    EXPECT_EQ(stage.seen.count(EventKind::kFenceProved), 0u);
    EXPECT_EQ(stage.reused, answers);
    stage.reused = false;
    stage.meets_again(Means::kGrant);
  }
}

// ---- Those who answer ---------------------------------------------------------------------------

/// Told at every event of the load: what was posted drains, nobody else notices.
void cooperates_at_any_step(FenceKind kind, Means means) {
  uint64_t begin = 0, end = 0;
  {
    Stage stage(kind, means);
    begin = stage.world.events();
    stage.load();
    stage.innocents_arrived();
    stage.writer_ended();
    end = stage.world.events();
  }
  ASSERT_GT(end - begin, 500u);
  for (uint64_t at = begin; at < end; at += kStride) {
    SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
    Stage stage(kind, means);
    stage.guard();
    const EachStep check = watch(stage);
    stage.load();
    stage.world.run_until([&] { return stage.world.events() >= at; }, 1s);
    const Nanos began = stage.world.now();
    stage.fence(1);
    EXPECT_EQ(stage.await_fence(1).code, Errc::kOk);
    EXPECT_LE(stage.world.now() - began, Nanos(10ms)) << "it answers, nobody waits for a bound";
    stage.writer_ended();
    EXPECT_EQ(stage.batch->unknown(), 0u) << "what was posted has drained";
    stage.innocents_arrived();
    stage.world.run_for(10ms);
    EXPECT_TRUE(stage.intact());
    if (testing::Test::HasFailure()) return;
  }
}

TEST(FencedPeer, DrainsItsConnectionAtAnyStep) {
  cooperates_at_any_step(FenceKind::kLocal, Means::kOpen);
}
TEST(FencedPeer, DrainsWithItsOwnKeysAtAnyStep) {
  cooperates_at_any_step(FenceKind::kRekey, Means::kGrant);
}
TEST(FencedPeer, DrainsWithAnOpenDescriptorAtAnyStep) {
  cooperates_at_any_step(FenceKind::kRekey, Means::kOpen);
}

TEST(FencedPeer, StoppedAtAnyStepOfTheFence) {
  expect_log("a path broke");
  for (const FenceKind kind : {FenceKind::kLocal, FenceKind::kRekey}) {
    for (uint64_t after = 0; after < 400; after += kStride) {
      SCOPED_TRACE(std::string(to_string(kind)) + ", stopped " + std::to_string(after) +
                   " events after the fence began, " + replay(test_seed()));
      const Means means = kind == FenceKind::kRekey ? Means::kGrant : Means::kOpen;
      Stage stage(kind, means);
      stage.guard();
      const EachStep check = watch(stage);
      stage.load();
      stage.world.run_for(50us);
      ASSERT_TRUE(stage.world.at_event(stage.world.events() + after, Fault::stop(kWriter)));
      stage.fence(1);
      EXPECT_EQ(stage.await_fence(1).code, Errc::kOk);
      // With few events it stops after the fence, which must not matter, but not while it closes.
      const auto stopped = [&] { return stage.world.faults(Fault::Kind::kStop) > 0; };
      ASSERT_TRUE(stage.world.run_until(stopped, 600s));
      stage.world.run_for(1s);
      stage.resume_writer();
      stage.writer_ended();
      stage.innocents_arrived();
      stage.world.run_for(100ms);
      EXPECT_TRUE(stage.intact());
      if (testing::Test::HasFailure()) return;
    }
  }
}

// ---- Those who are gone or not yet there --------------------------------------------------------

TEST(FencedPeer, ThatIsLostNeedsNoAnswer) {
  for (const FenceKind kind : {FenceKind::kLocal, FenceKind::kRekey}) {
    SCOPED_TRACE(to_string(kind));
    Stage stage(kind, kind == FenceKind::kRekey ? Means::kGrant : Means::kOpen);
    stage.guard();
    const EachStep check = watch(stage);
    stage.load();
    stage.stop_writer();
    const auto lost = [&] {
      return stage.owner.engine.peer_info(stage.peer)->state == PeerState::kLost;
    };
    stage.happens(Fault::control_cut(kWriter, kOwner));
    ASSERT_TRUE(stage.world.run_until(lost, 60s));
    const Nanos began = stage.world.now();
    stage.fence(1);
    EXPECT_EQ(stage.await_fence(1).code, Errc::kOk);
    EXPECT_LE(stage.world.now() - began, Nanos(1ms));
    stage.happens(Fault::control_heal(kWriter, kOwner));
    stage.resume_writer();
    stage.writer_ended();
    stage.world.run_for(1s);
    EXPECT_TRUE(stage.intact());
    stage.innocents_arrived();
  }
}

TEST(FencedPeer, ThatHasNeverAnsweredIsOutAtOnce) {
  Stage stage(FenceKind::kLocal, Means::kOpen);
  const uint32_t node = stage.world.add_node(1, model_of(FenceKind::kLocal));
  Host silent = open_host(stage.world, node, kPage, named(node));
  stage.happens(Fault::stop(node));
  const PeerId peer = *stage.owner.engine.connect(silent.engine.address());
  Batch batch = *stage.owner.engine.make_batch();
  ASSERT_TRUE(stage.owner.engine.submit(Send{.peer = peer, .batch = batch}));
  stage.world.run_for(1ms);
  ASSERT_EQ(stage.owner.engine.peer_info(peer)->state, PeerState::kConnecting);
  ASSERT_TRUE(stage.owner.engine.submit(Fence{.peer = peer, .notify = stage.fenced.notify(1)}));
  EXPECT_EQ(stage.await_fence(1).code, Errc::kOk);
  EXPECT_EQ(stage.owner.engine.peer_info(peer)->state, PeerState::kFenced);
  EXPECT_EQ(stage.owner.engine.wait(batch).error().code, Errc::kPeerLost);
  EXPECT_EQ(batch.unknown(), 0u);
  stage.happens(Fault::resume(node));
  stage.world.run_for(1s);
  EXPECT_TRUE(silent.engine.peers().empty()) << "a late hello has opened it again";
}

TEST(FencedPeer, TwiceAtOnceIsBusyAndTheFirstGoesOn) {
  Stage stage(FenceKind::kLocal, Means::kOpen);
  stage.guard();
  const EachStep check = watch(stage);
  stage.load();
  stage.stop_writer();
  stage.fence(1);
  stage.fence(2);
  EXPECT_EQ(stage.await_fence(2).code, Errc::kBusy);
  EXPECT_EQ(stage.fenced.find(1), nullptr);
  EXPECT_EQ(stage.await_fence(1).code, Errc::kOk);
  stage.fence(3);
  EXPECT_EQ(stage.await_fence(3).code, Errc::kOk) << "it is out, and stays out";
  stage.resume_writer();
  stage.writer_ended();
  stage.world.run_for(1s);
  EXPECT_TRUE(stage.intact());
  stage.innocents_arrived();
}

// ---- Proof that takes its time ------------------------------------------------------------------

TEST(LateProof, ComesAsAnEventAfterAFenceThatHadNoTimeForIt) {
  for (const FenceKind kind : {FenceKind::kLocal, FenceKind::kRekey}) {
    SCOPED_TRACE(to_string(kind));
    const Means means = kind == FenceKind::kRekey ? Means::kGrant : Means::kOpen;
    Stage stage(kind, means);
    stage.load();
    stage.stop_writer();
    stage.happens(Fault::late_proof(kOwner, 2s));
    const Nanos began = stage.world.now();
    const OpId fence = stage.fence(1, 500ms);
    const Event event = stage.await_fence(1);
    EXPECT_EQ(event.code, Errc::kTimeout);
    EXPECT_EQ(event.remote, Remote::kUnknown);
    EXPECT_LE(stage.world.now() - began, Nanos(501ms));
    EXPECT_EQ(stage.seen.count(EventKind::kFenceProved), 0u);
    const auto proved = [&] { return stage.seen.count(EventKind::kFenceProved) > 0; };
    ASSERT_TRUE(stage.world.run_until(proved, 10s));
    EXPECT_GE(stage.world.now() - began, Nanos(2s)) << "nobody has said so before";
    const auto proof = std::ranges::find(stage.seen.events, EventKind::kFenceProved, &Event::kind);
    EXPECT_EQ(proof->op, fence);
    EXPECT_EQ(proof->peer, stage.peer);
    stage.reuse();
    const EachStep check = watch(stage);
    stage.resume_writer();
    stage.writer_ended();
    stage.world.run_for(3s);
    EXPECT_TRUE(stage.intact());
    EXPECT_EQ(stage.seen.count(EventKind::kFenceProved), 1u);
    stage.innocents_arrived();
    stage.happens(Fault::late_proof(kOwner, 0s));
    stage.reused = false;
    stage.meets_again(means);
  }
}

TEST(LateProof, IsWaitedForByAFenceThatHasTheTime) {
  for (const FenceKind kind : {FenceKind::kLocal, FenceKind::kRekey}) {
    SCOPED_TRACE(to_string(kind));
    Stage stage(kind, kind == FenceKind::kRekey ? Means::kGrant : Means::kOpen);
    stage.load();
    stage.stop_writer();
    stage.happens(Fault::late_proof(kOwner, 2s));
    const Nanos began = stage.world.now();
    stage.fence(1, 20s);
    EXPECT_EQ(stage.await_fence(1).code, Errc::kOk);
    EXPECT_GE(stage.world.now() - began, Nanos(2s)) << "ok without proof";
    stage.happens(Fault::late_proof(kOwner, 0s));
    stage.resume_writer();
    stage.innocents_arrived();
  }
}

TEST(LateProof, OfAKeyThatEndsWithItsRegionIsWaitedForAsWell) {
  Stage stage(FenceKind::kRekey, Means::kGrant);
  stage.load();
  stage.innocents_arrived();
  stage.writer_ended();
  stage.happens(Fault::late_proof(kOwner, 5s));
  ASSERT_TRUE(stage.owner.engine.submit(
      Deregister{.region = stage.owner.memory.id(), .notify = stage.fenced.notify(1)}));
  stage.world.run_for(10ms);  // the importers have answered: the rails are at it
  stage.happens(Fault::late_proof(kOwner, 0s));
  stage.happens(Fault::stop(kWriter));
  stage.fence(2, 20s);
  EXPECT_EQ(stage.await_fence(2).code, Errc::kOk);
  ASSERT_NE(stage.fenced.find(1), nullptr) << "the writer's key was not proved to be gone";
  EXPECT_EQ(stage.fenced.find(1)->code, Errc::kOk);
  stage.happens(Fault::resume(kWriter));
}

TEST(LateProof, OfAKeyThatWasNeverUsedIsWaitedForAsWell) {
  Stage stage(FenceKind::kRekey, Means::kGrant);  // and nobody has opened a path
  stage.happens(Fault::late_proof(kOwner, 2s));
  stage.happens(Fault::stop(kWriter));
  const Nanos began = stage.world.now();
  stage.fence(1, 20s);
  EXPECT_EQ(stage.await_fence(1).code, Errc::kOk);
  EXPECT_GE(stage.world.now() - began, Nanos(3s)) << "its grace, then the rail's word";
  stage.happens(Fault::late_proof(kOwner, 0s));
  stage.happens(Fault::resume(kWriter));
}

TEST(LateProof, OfAFirstFenceIsToldAlthoughASecondOneHasIt) {
  Stage stage(FenceKind::kLocal, Means::kOpen);
  stage.load();
  stage.stop_writer();
  stage.happens(Fault::late_proof(kOwner, 2s));
  const OpId first = stage.fence(1, 100ms);
  EXPECT_EQ(stage.await_fence(1).code, Errc::kTimeout);
  stage.fence(2, 20s);
  EXPECT_EQ(stage.await_fence(2).code, Errc::kOk);
  stage.world.run_for(1ms);
  ASSERT_EQ(stage.seen.count(EventKind::kFenceProved), 1u);
  const auto proof = std::ranges::find(stage.seen.events, EventKind::kFenceProved, &Event::kind);
  EXPECT_EQ(proof->op, first);
  stage.happens(Fault::late_proof(kOwner, 0s));
  stage.resume_writer();
  stage.innocents_arrived();
}

}  // namespace
}  // namespace fabric::test

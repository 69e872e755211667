#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "harness/host.h"
#include "support/log_guard.h"

// Revoke under load (P13): it completes only when the writes under the grant have drained, breaks
// no connection, and takes nothing from the other grants of the same peer.

namespace fabric::test::revoke_grants_test {
namespace {

constexpr uint64_t kSize = 32 << 10, kHalf = kSize / 2, kPage = 1024;
constexpr uint32_t kPages = 8, kWrites = 100;
constexpr uint64_t kStride = 149;  // steps between two revocations that are tried

sim::NicModel slow_nic() {
  sim::NicModel model = rc_model();
  model.gbit_per_s = 4;
  model.path_depth = 32;
  return model;
}

/// A peer that writes under two grants of the same region, each to its half of it.
struct TwoGrants {
  TwoGrants()
      : world({.seed = test_seed()}),
        owner(open_host(world, world.add_node(1, slow_nic()), kSize, test_config())),
        writer(open_host(world, world.add_node(1, slow_nic()), kSize, test_config())),
        to(*writer.engine.connect(owner.engine.address())) {
    await_connected(world, writer, to);
    world.run_for(1ms);
    from = owner.engine.peers().at(0);
    for (uint32_t i = 0; i < 2; ++i) {
      grants.push_back(*owner.memory.grant(from));
      regions.push_back(*writer.engine.import_region(to, grants[i].desc));
      batches.push_back(*writer.engine.make_batch());
    }
    counter.emplace(*owner.engine.make_counter());
    fill(writer.bytes(), 3);
  }
  void load() {
    for (uint32_t i = 0; i < kWrites; ++i) {
      const uint64_t at = i % kPages * kPage;
      ASSERT_TRUE(writer.engine.submit(Write{.source = writer.memory.at(at),
                                             .target = regions[0].at(at),
                                             .size_bytes = kPage,
                                             .batch = batches[0],
                                             .notify = ended.notify()}));
      ASSERT_TRUE(writer.engine.submit(Write{.source = writer.memory.at(at),
                                             .target = regions[1].at(kHalf + at),
                                             .size_bytes = kPage,
                                             .imm = counter->key(),
                                             .batch = batches[1]}));
    }
  }
  /// The first grant. With the proof its half is used for something else.
  void revoke() {
    revoked.then = [this](const Event& event) {
      if (event.code != Errc::kOk) return;
      fill(owner.bytes(0, kHalf), 99);
      reused.emplace(owner.bytes(0, kHalf).begin(), owner.bytes(0, kHalf).end());
    };
    ASSERT_TRUE(owner.engine.submit(
        Revoke{.grant = grants[0].id, .timeout = 5s, .notify = revoked.notify()}));
  }
  bool intact() { return !reused || std::ranges::equal(*reused, owner.bytes(0, kHalf)); }
  /// All writes under the second grant have arrived, each once.
  void expect_other_grant_works() {
    EXPECT_TRUE(writer.engine.wait(batches[1], 20s)) << writer.engine.dump();
    EXPECT_EQ(batches[1].failed(), 0u);
    EXPECT_TRUE(counter->wait(kWrites, 5s));
    EXPECT_EQ(counter->count(), 0u);
    EXPECT_TRUE(
        std::ranges::equal(owner.bytes(kHalf, kPages * kPage), writer.bytes(0, kPages * kPage)));
  }

  EventRecorder ended, revoked;
  sim::World world;
  Host owner, writer;
  PeerId to, from;
  std::vector<Grant> grants;
  std::vector<RemoteRegion> regions;
  std::vector<Batch> batches;
  std::optional<Counter> counter;
  std::optional<std::vector<std::byte>> reused;
};

void revoke_at(uint64_t step) {
  TwoGrants two;
  bool late = false;
  const sim::Hook check = two.world.each_step([&] { late |= !two.intact(); });
  two.load();
  two.world.run_until([&] { return two.world.events() >= step; }, 1s);
  const Nanos began = two.world.now();
  two.revoke();
  ASSERT_TRUE(two.world.run_until([&] { return two.revoked.count() == 1; }, 10s));
  EXPECT_EQ(two.revoked.events[0].code, Errc::kOk);
  EXPECT_LE(two.world.now() - began, Nanos(10ms)) << "the peer answers: no wait for a timeout";
  const Write again{
      .source = two.writer.memory.at(0), .target = two.regions[0].at(0), .size_bytes = 8};
  EXPECT_EQ(two.writer.engine.submit(again).error().code, Errc::kNotFound);
  two.expect_other_grant_works();
  ASSERT_TRUE(two.world.run_until([&] { return two.batches[0].pending() == 0; }, 10s));
  two.world.run_for(10ms);
  EXPECT_FALSE(late) << "a write landed after the proof";
  EXPECT_EQ(two.ended.count(), kWrites);
  for (const Event& event : two.ended.events) {
    EXPECT_TRUE(event.code == Errc::kOk || event.code == Errc::kNotFound) << to_string(event.code);
  }
  EXPECT_EQ(two.batches[0].unknown(), 0u);
  EXPECT_EQ(two.owner.engine.peer_info(two.from)->state, PeerState::kConnected);
}

TEST(RevokedGrant, UnderLoadAtAnyStepIsProvedAndLeavesTheOther) {
  uint64_t begin = 0, end = 0;
  {
    TwoGrants two;
    begin = two.world.events();
    two.load();
    two.expect_other_grant_works();
    end = two.world.events();
  }
  ASSERT_GT(end - begin, 300u);
  for (uint64_t step = begin; step < end && !testing::Test::HasFailure(); step += kStride) {
    SCOPED_TRACE("after event " + std::to_string(step) + ", " + replay(test_seed()));
    revoke_at(step);
  }
}

// An id of another engine in the process proves nothing and ends nothing, whether its grant is live
// or has ended.
TEST(RevokedGrant, OfAnotherEngineIsUnknownAndEndsNothing) {
  TwoGrants two;
  const auto code_of = [](Engine& engine, GrantId grant) {
    const Batch ends = *engine.make_batch();
    EXPECT_TRUE(engine.submit(Revoke{.grant = grant, .batch = ends}));
    const auto result = engine.wait(ends, 1s);
    return result ? Errc::kOk : result.error().code;
  };
  const GrantId foreign = two.writer.memory.grant(two.to)->id;
  EXPECT_EQ(code_of(two.owner.engine, foreign), Errc::kNotFound);
  EXPECT_EQ(code_of(two.writer.engine, foreign), Errc::kOk);
  EXPECT_EQ(code_of(two.owner.engine, foreign), Errc::kNotFound);
  two.load();
  two.expect_other_grant_works();
  EXPECT_TRUE(two.writer.engine.wait(two.batches[0], 5s)) << "the first grant must be live";
  EXPECT_EQ(code_of(two.owner.engine, two.grants[0].id), Errc::kOk);
  EXPECT_EQ(code_of(two.owner.engine, foreign), Errc::kNotFound);
}

}  // namespace
}  // namespace fabric::test::revoke_grants_test

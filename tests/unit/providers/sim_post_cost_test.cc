#include <algorithm>
#include <map>

#include "unit/providers/sim_harness.h"

// NicModel::per_post: the engine's CPU posts one work request after another, on all of its rails.

namespace fabric::sim::sim_post_cost_test {
namespace {

/// An engine of which only the address is used.
class Fake final : public Progress {
 public:
  TurnResult turn(int64_t) noexcept override { return {}; }
  uint32_t run_callbacks() noexcept override { return 0; }
  bool arm() noexcept override { return true; }
  void wait_fds(std::vector<int>&) const override {}
};

/// Only posts and the wire take time.
NicModel posting_model(int64_t per_post_ns) {
  NicModel model;
  model.per_op = Nanos(0);
  model.per_post = Nanos(per_post_ns);
  model.latency = Nanos(2'000);
  return model;
}

WriteOp signal(const Path& path, uint32_t imm) {
  WriteOp op;
  op.path = path.out;
  op.has_imm = 1;
  op.imm = imm;
  return op;
}

/// When each immediate arrives at one of the rails, until there are `count` of them.
std::map<uint32_t, int64_t> arrivals(TestWorld& world, const std::vector<OpenNetwork*>& targets,
                                     size_t count) {
  std::map<uint32_t, int64_t> when;
  EXPECT_TRUE(world.run_until([&] {
    for (OpenNetwork* target : targets) {
      for (uint32_t rail = 0; rail < target->rail_count(); ++rail) {
        for (const RailEvent& event : drain(target->rail(rail))) when[event.imm] = world.now();
      }
    }
    return when.size() == count;
  }));
  return when;
}

TEST(SimPostCost, PostsOnAllRailsOfAnEngineAreSerial) {
  TestWorld world;
  auto a = world.open_new(2, posting_model(1'000)), b = world.open_new(2, posting_model(1'000));
  const Path one(*a, *b, 0, 0), two(*a, *b, 1, 1);
  for (uint32_t i = 0; i < 8; ++i) (i % 2 == 0 ? one : two).post(signal(i % 2 == 0 ? one : two, i));
  const auto when = arrivals(world, {b.get()}, 8);
  for (uint32_t i = 0; i < 8; ++i) EXPECT_EQ(when.at(i), (i + 1) * 1'000 + 2'000) << i;
}

TEST(SimPostCost, AnIdleCpuSavesNothingUp) {
  TestWorld world;
  auto a = world.open_new(1, posting_model(1'000)), b = world.open_new(1, posting_model(1'000));
  const Path path(*a, *b);
  path.post(signal(path, 0));
  world.run_for(50'000);
  EXPECT_EQ(drain(b->rail(0)).size(), 1u);
  path.post(signal(path, 1));
  path.post(signal(path, 2));
  const auto when = arrivals(world, {b.get()}, 2);
  EXPECT_EQ(when.at(1), 50'000 + 1'000 + 2'000);
  EXPECT_EQ(when.at(2), 50'000 + 2'000 + 2'000);
}

TEST(SimPostCost, EnginesOfOneNodePostAtTheSameTime) {
  TestWorld world;
  const uint32_t node = world.add_node(1, posting_model(1'000));
  auto a = world.open(node), other = world.open(node);
  auto b = world.open_new(1, posting_model(1'000));
  const Path one(*a, *b), two(*other, *b);
  for (uint32_t i = 0; i < 3; ++i) {
    one.post(signal(one, i));
    two.post(signal(two, 10 + i));
  }
  const auto when = arrivals(world, {b.get()}, 6);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(when.at(i), (i + 1) * 1'000 + 2'000);
    EXPECT_EQ(when.at(10 + i), (i + 1) * 1'000 + 2'000);
  }
}

TEST(SimPostCost, NetworksOfOneEngineShareItsCpu) {
  TestWorld world;
  const auto add = [&] {
    return world.impl->wire.add_node({{.name = "dear", .model = posting_model(1'000)},
                                      {.name = "cheap", .model = posting_model(100)}});
  };
  const uint32_t from = add(), to = add();
  Fake sender, receiver;
  auto dear_a = world.open(from, "dear", &sender), cheap_a = world.open(from, "cheap", &sender);
  auto dear_b = world.open(to, "dear", &receiver), cheap_b = world.open(to, "cheap", &receiver);
  const Path dear(*dear_a, *dear_b), cheap(*cheap_a, *cheap_b);
  dear.post(signal(dear, 0));
  cheap.post(signal(cheap, 1));
  dear.post(signal(dear, 2));
  const auto when = arrivals(world, {dear_b.get(), cheap_b.get()}, 3);
  EXPECT_EQ(when.at(0), 1'000 + 2'000);
  EXPECT_EQ(when.at(1), 1'100 + 2'000);
  EXPECT_EQ(when.at(2), 2'100 + 2'000);
}

// They are accepted at once, and the NIC has not seen the later ones.
TEST(SimPostCost, APathThatClosesFirstDeliversOnlyWhatWasPosted) {
  TestWorld world;
  auto a = world.open_new(1, posting_model(1'000)), b = world.open_new(1, posting_model(1'000));
  const Path path(*a, *b);
  const std::vector<WriteOp> ops(10, signal(path, 7));
  ASSERT_EQ(a->rail(0).post(ops), 10u);
  world.run_for(4'500);
  a->rail(0).close_path(path.out, false);  // takes a microsecond
  world.run_for(1'000'000);
  const auto sent = drain(a->rail(0));
  EXPECT_EQ(count_of(sent, RailEvent::Kind::kCompletion), 10u);
  uint32_t untouched = 0;
  for (const RailEvent& event : sent) {
    untouched +=
        event.kind == RailEvent::Kind::kCompletion && event.remote == Remote::kNotDelivered;
  }
  EXPECT_EQ(untouched, 6u);
  EXPECT_EQ(count_of(drain(b->rail(0)), RailEvent::Kind::kImm), 4u);
  EXPECT_EQ(world.impl->wire.in_flight(), 0u);
}

// ---- The presets --------------------------------------------------------------------------------

/// When the last of 56 posts, one to each peer, has reached its NIC.
int64_t posts_to_56_peers(const NicModel& preset) {
  NicModel model = preset;
  model.jitter = Nanos(0);
  TestWorld world;
  auto a = world.open_new(2, model), b = world.open_new(2, model);
  std::vector<Path> paths;
  for (uint32_t i = 0; i < 56; ++i) paths.emplace_back(*a, *b, i % 2, i % 2);
  for (uint32_t i = 0; i < 56; ++i) paths[i].post(signal(paths[i], i));
  const auto when = arrivals(world, {b.get()}, 56);
  int64_t last = 0;
  for (const auto& [imm, time] : when) last = std::max(last, time);
  return last - model.latency.count() - model.per_op.count();
}

// docs/simulator.md has the sources.
TEST(SimPresets, PostAsFastAsThePublishedSystems) {
  EXPECT_NEAR(static_cast<double>(posts_to_56_peers(NicModel::connectx7())), 8'500, 85);
  EXPECT_NEAR(static_cast<double>(posts_to_56_peers(NicModel::efa_200g())), 27'900, 279);
}

TEST(SimPresets, CarryLargeWritesAtThePublishedRate) {
  const auto gbit_per_s = [](const NicModel& preset) {
    NicModel model = preset;
    model.jitter = Nanos(0);
    constexpr uint64_t kBytes = 32 << 20;
    TestWorld world;
    auto a = world.open_new(1, model), b = world.open_new(1, model);
    const Path path(*a, *b);
    const Block source(a->rail(0), kBytes), target(b->rail(0), kBytes);
    path.post(path.counted(source, target, kBytes, 0, 0));
    const int64_t when = arrivals(world, {b.get()}, 1).at(0);
    return static_cast<double>(kBytes) * 8 / static_cast<double>(when - model.latency.count());
  };
  EXPECT_NEAR(gbit_per_s(NicModel::connectx7()), 378, 1);
  EXPECT_NEAR(gbit_per_s(NicModel::efa_200g()), 336 / 2, 1);
  EXPECT_NEAR(gbit_per_s(NicModel::nvlink()), 360 * 8, 10);
}

}  // namespace
}  // namespace fabric::sim::sim_post_cost_test

#include <algorithm>
#include <set>

#include "unit/providers/sim_harness.h"

namespace fabric::sim::sim_connect_test {
namespace {

using Kind = RailEvent::Kind;

class SimPaths : public testing::TestWithParam<bool> {
 protected:
  NicModel model() const { return GetParam() ? jittery_ordered_model() : wild_model(); }
  TestWorld world{{.seed = 11}};
};

INSTANTIATE_TEST_SUITE_P(Models, SimPaths, testing::Bool(), [](const auto& param) {
  return std::string(param.param ? "Ordered" : "Unordered");
});

/// What became of writes 0..n-1, each of 64 bytes of its own, after the sender's path ended.
struct Completions {
  explicit Completions(const std::vector<RailEvent>& events) {
    for (const RailEvent& event : events) {
      if (event.kind != Kind::kCompletion) continue;
      EXPECT_TRUE(reported.insert(event.cookie).second) << "reported twice: " << event.cookie;
      (event.remote == Remote::kDelivered      ? delivered
       : event.remote == Remote::kNotDelivered ? not_delivered
                                               : unknown)
          .insert(event.cookie);
    }
  }
  std::set<uint32_t> reported, delivered, not_delivered, unknown;
};

class Burst {
 public:
  Burst(TestWorld& world, const NicModel& model)
      : a(world.open_new(1, model)),
        b(world.open_new(1, model)),
        path(*a, *b),
        source(a->rail(0), kWrites * kSize, 3),
        target(b->rail(0), kWrites * kSize) {
    for (uint32_t i = 0; i < kWrites; ++i) {
      WriteOp op = path.counted(source, target, kSize, i, i);
      op.source += i * kSize;
      op.target = i * kSize;
      path.post(op);
    }
  }
  bool landed(uint32_t i) const {
    return std::memcmp(&source.bytes[i * kSize], &target.bytes[i * kSize], kSize) == 0;
  }

  static constexpr uint32_t kWrites = 150;
  static constexpr size_t kSize = 6'000;
  std::unique_ptr<OpenNetwork> a, b;
  Path path;
  Block source, target;
};

// P1, P3: whenever the path is closed, each write completes once, and kNotDelivered is true.
TEST_P(SimPaths, ClosingTheSendersEndCompletesEveryWriteExactlyOnce) {
  bool some_unknown = false, some_not_delivered = false;
  for (int64_t when = 0; when < 60'000; when += 3'700) {
    Burst burst(world, model());
    world.run_for(when);
    burst.a->rail(0).close_path(burst.path.out, false);
    burst.a->rail(0).close_path(burst.path.out, false);  // again: no second kPathDown
    world.run_for(2 * kTeardownNs);
    const auto events = drain(burst.a->rail(0));
    const Completions completions(events);
    EXPECT_EQ(completions.reported.size(), Burst::kWrites);
    EXPECT_EQ(events.back().kind, Kind::kPathDown);
    EXPECT_EQ(count_of(events, Kind::kPathDown), 1u);
    std::set<uint32_t> counted;
    world.run_for(10'000'000);
    for (const RailEvent& event : drain(burst.b->rail(0))) counted.insert(event.imm);
    for (const uint32_t i : completions.delivered)
      EXPECT_TRUE(counted.contains(i) && burst.landed(i));
    for (const uint32_t i : completions.not_delivered) {
      EXPECT_FALSE(counted.contains(i));
      EXPECT_EQ(burst.target.bytes[i * Burst::kSize], std::byte{0});
    }
    some_unknown |= !completions.unknown.empty();
    some_not_delivered |= !completions.not_delivered.empty();
    EXPECT_TRUE(drain(burst.a->rail(0)).empty());
  }
  EXPECT_TRUE(some_unknown && some_not_delivered)
      << "no close hit writes in flight: the test shows nothing";
  EXPECT_EQ(world.impl->wire.in_flight(), 0u);
}

TEST(SimOrdered, ClosingTheTargetsEndStopsLandingAndCountsWhatWasTaken) {
  TestWorld world;
  Burst burst(world, jittery_ordered_model());
  size_t seen = 0;
  ASSERT_TRUE(world.run_until([&] { return (seen += drain(burst.b->rail(0)).size()) >= 40; }));
  burst.b->rail(0).close_path(burst.path.in, true);
  const auto before = burst.target.bytes;
  world.run_for(10'000'000);
  EXPECT_EQ(burst.target.bytes, before) << "landed after the queue pair was destroyed";
  const auto taken = drain(burst.b->rail(0));
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken.back().kind, Kind::kPathDown);
  EXPECT_EQ(taken.back().inbound, 1);
  EXPECT_EQ(taken.back().value, seen);
  EXPECT_LT(seen, Burst::kWrites);
  // The sender receives nothing more and gives up.
  auto sent = drain(burst.a->rail(0));
  EXPECT_LT(sent.size(), Burst::kWrites);
  world.run_for(2 * kRetryNs);
  const auto rest = drain(burst.a->rail(0));
  sent.insert(sent.end(), rest.begin(), rest.end());
  const Completions completions(sent);
  EXPECT_EQ(completions.reported.size(), Burst::kWrites);
  EXPECT_EQ(sent.back().kind, Kind::kPathDown);
  EXPECT_LE(completions.delivered.size(), taken.back().value);
  EXPECT_FALSE(completions.unknown.empty());
}

TEST(SimUnordered, ClosingTheTargetsEndFencesNothing) {
  TestWorld world;
  Burst burst(world, wild_model());
  world.run_for(15'000);
  burst.b->rail(0).close_path(burst.path.in, true);
  world.run_for(10'000'000);
  const auto events = drain(burst.b->rail(0));
  EXPECT_EQ(count_of(events, Kind::kPathDown), 1u);
  EXPECT_EQ(count_of(events, Kind::kImm), Burst::kWrites);
}

TEST_P(SimPaths, PeerThatClosedIsFoundOutByTime) {
  Burst burst(world, model());
  world.run_for(35'000);
  const auto stale = burst.b->address();
  burst.b.reset();
  const auto before = burst.target.bytes;
  world.run_for(kRetryNs / 2);
  auto sent = drain(burst.a->rail(0));
  EXPECT_LT(sent.size(), Burst::kWrites);
  world.run_for(kRetryNs);
  const auto rest = drain(burst.a->rail(0));
  sent.insert(sent.end(), rest.begin(), rest.end());
  const Completions completions(sent);
  EXPECT_EQ(completions.reported.size(), Burst::kWrites);
  EXPECT_FALSE(completions.unknown.empty());
  EXPECT_EQ(count_of(sent, Kind::kPathDown), GetParam() ? 1u : 0u);
  EXPECT_EQ(burst.target.bytes, before);
  EXPECT_EQ(world.impl->wire.in_flight(), 0u);
  EXPECT_TRUE(burst.a->open_link(stale)) << "open_link() cannot know whether the port is open";
}

// Packets that were sent land although their engine is closed; the rest is never read.
TEST_P(SimPaths, WritesOutliveTheEngineThatPostedThem) {
  auto burst = std::make_unique<Burst>(world, model());
  world.run_for(3'000);
  burst->a.reset();
  std::fill(burst->source.bytes.begin(), burst->source.bytes.end(), std::byte{0});
  world.run_for(kRetryNs);
  const size_t counted = drain(burst->b->rail(0)).size();
  EXPECT_GT(counted, 0u);
  EXPECT_LT(counted, Burst::kWrites);
  EXPECT_EQ(world.impl->wire.in_flight(), 0u);
}

TEST_P(SimPaths, PostOnAPathThatIsNotUpCompletesThroughPoll) {
  auto a = world.open_new(1, model());
  auto b = world.open_new(1, model());
  std::vector<std::byte> hello;
  const auto opened = a->rail(0).open_path(b->address(), 0, hello);
  ASSERT_TRUE(opened);
  const Path closed(*a, *b);
  a->rail(0).close_path(closed.out, false);
  world.run_for(2 * kTeardownNs);
  EXPECT_EQ(drain(a->rail(0)).at(0).kind, Kind::kPathDown);

  const Block source(a->rail(0), 8, 1), target(b->rail(0), 8);
  const uint32_t paths[] = {*opened, closed.out, 1234, 0};
  for (uint32_t i = 0; i < 4; ++i) {
    WriteOp op = closed.write(source, target, 8, i);
    op.path = paths[i];
    closed.post(op);
  }
  world.run_for(1'000'000);
  const auto events = drain(a->rail(0));
  const Completions completions(events);
  EXPECT_EQ(completions.not_delivered, (std::set<uint32_t>{0, 1, 2, 3}));
  for (const RailEvent& event : events) EXPECT_EQ(event.code, Errc::kRailLost);
}

TEST(SimPath, AcceptingAHelloAgainGivesTheSameAnswer) {
  TestWorld world;
  auto a = world.open_new(2), b = world.open_new(2);
  std::vector<std::byte> hello, answer, again, other_hello, other_answer;
  const auto out = a->rail(0).open_path(b->address(), 1, hello);
  const auto first = b->rail(1).accept_path(hello, answer);
  const auto second = b->rail(1).accept_path(hello, again);
  ASSERT_TRUE(out && first && second);
  EXPECT_EQ(*first, *second);
  EXPECT_EQ(answer, again);
  const auto other = a->rail(0).open_path(b->address(), 1, other_hello);
  const auto third = b->rail(1).accept_path(other_hello, other_answer);
  EXPECT_NE(*third, *first);
  EXPECT_TRUE(a->rail(0).start_path(*out, answer));
  EXPECT_TRUE(a->rail(0).start_path(*out, answer)) << "a repeated answer changes nothing";
  EXPECT_EQ(a->rail(0).start_path(*out, other_answer).error().code, Errc::kBadFormat);
  EXPECT_EQ(a->rail(0).start_path(99, answer).error().code, Errc::kNotFound);
  EXPECT_EQ(b->rail(0).accept_path(hello, again).error().code, Errc::kBadFormat)
      << "the hello is for the other rail";
  a->rail(0).close_path(*other, false);
  EXPECT_EQ(a->rail(0).start_path(*other, other_answer).error().code, Errc::kClosed);
}

TEST(SimPath, HostileBytesAreBadFormat) {
  TestWorld world;
  auto a = world.open_new(), b = world.open_new();
  std::vector<std::byte> hello, answer, out;
  const auto path = a->rail(0).open_path(b->address(), 0, hello);
  ASSERT_TRUE(path && b->rail(0).accept_path(hello, answer));
  for (size_t cut = 0; cut < hello.size(); ++cut) {
    EXPECT_EQ(b->rail(0).accept_path(std::span(hello).first(cut), out).error().code,
              Errc::kBadFormat);
  }
  for (size_t cut = 0; cut < answer.size(); ++cut) {
    EXPECT_EQ(a->rail(0).start_path(*path, std::span(answer).first(cut)).error().code,
              Errc::kBadFormat);
  }
  const auto address = b->address();
  EXPECT_LE(address.size(), OpenNetwork::kAddressBytesMax);
  for (size_t cut = 0; cut < address.size(); ++cut) {
    EXPECT_EQ(a->open_link(std::span(address).first(cut)).error().code, Errc::kBadFormat);
  }
  EXPECT_EQ(a->rail(0).open_path(address, 1, out).error().code, Errc::kInvalidArgument)
      << "the peer has one rail";
}

TEST(SimPath, OtherNetworksAndOtherWorldsAreUnreachable) {
  TestWorld world, elsewhere;
  auto a = world.open_new();
  auto other_name = world.open(world.add_node(1, {}, "storage"), "storage");
  auto other_world = elsewhere.open_new();
  EXPECT_EQ(a->open_link(other_name->address()).error().code, Errc::kUnreachable);
  EXPECT_EQ(a->open_link(other_world->address()).error().code, Errc::kUnreachable);
  EXPECT_TRUE(a->open_link(a->address()));
}

TEST(SimOpen, NamesWhatIsWrong) {
  TestWorld world;
  const uint32_t node = world.add_node();
  EXPECT_EQ(world.try_open(node, "missing").error().code, Errc::kUnsupported);
  EXPECT_EQ(world.try_open(node + 1).error().code, Errc::kInvalidArgument);
  OpenContext context;
  context.driver = &world.impl->world_driver;
  Network spec;
  spec.provider = "sim";
  for (const char* token :
       {"", "mlx5_0", "world:", "world:1", "world:1/node:", "world:x/node:0", "world:1/node:0 "}) {
    spec.devices = {token};
    EXPECT_EQ(fabric::sim::open(spec, context).error().code, Errc::kInvalidArgument) << token;
  }
  spec.devices = {"world:999999/node:0"};
  EXPECT_EQ(fabric::sim::open(spec, context).error().code, Errc::kClosed);
  spec.devices = {world_token(*world.impl, node)};
  TestWorld elsewhere;
  context.driver = &elsewhere.impl->world_driver;
  EXPECT_EQ(fabric::sim::open(spec, context).error().code, Errc::kInvalidArgument)
      << "a driver with another clock";
}

TEST(SimOpen, CapsAreTheModels) {
  TestWorld world;
  auto rc = world.open_new(3, NicModel::connectx7());
  EXPECT_EQ(rc->rail_count(), 3u);
  EXPECT_TRUE(rc->rail(2).caps().ordered && rc->rail(2).caps().slice_safe);
  EXPECT_TRUE(rc->rail(2).caps().exact_replay && rc->rail(2).caps().checks_access);
  EXPECT_EQ(rc->rail(2).caps().fence, FenceKind::kLocal);
  EXPECT_EQ(rc->rail(2).caps().queue_depth, 1024u);
  EXPECT_EQ(rc->rail(2).caps().path_depth, 256u);
  EXPECT_EQ(rc->rail(2).caps().memory_kinds, kind_bit(MemoryKind::kHost));
  EXPECT_NE(rc->rail(1).device(), rc->rail(2).device());
  auto srd = world.open_new(1, NicModel::efa_200g());
  EXPECT_FALSE(srd->rail(0).caps().ordered || srd->rail(0).caps().slice_safe ||
               srd->rail(0).caps().exact_replay);
  EXPECT_EQ(srd->rail(0).caps().fence, FenceKind::kRekey);
  auto link = world.open_new(1, NicModel::nvlink());
  EXPECT_TRUE(link->rail(0).caps().ordered && link->rail(0).caps().exact_replay);
  EXPECT_TRUE(rc->rail(0).caps().count_is_final && link->rail(0).caps().count_is_final);
  EXPECT_FALSE(srd->rail(0).caps().count_is_final);
}

}  // namespace
}  // namespace fabric::sim::sim_connect_test

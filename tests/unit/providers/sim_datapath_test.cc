#include <algorithm>
#include <map>
#include <set>

#include "unit/providers/sim_harness.h"

namespace fabric::sim::sim_datapath_test {
namespace {

using Kind = RailEvent::Kind;

class SimDatapath : public testing::TestWithParam<bool> {
 protected:
  NicModel model() const { return GetParam() ? jittery_ordered_model() : wild_model(); }
  TestWorld world{{.seed = 7}};
};

INSTANTIATE_TEST_SUITE_P(Models, SimDatapath, testing::Bool(), [](const auto& param) {
  return std::string(param.param ? "Ordered" : "Unordered");
});

// The promise that everything above is built on: once the immediate is visible, so are the bytes.
TEST_P(SimDatapath, ImmediateComesOnlyAfterEveryByteOfItsWrite) {
  auto a = world.open_new(1, model());
  auto b = world.open_new(1, model());
  const Path path(*a, *b);
  constexpr size_t kSlot = 200'000;
  constexpr uint32_t kWrites = 24;
  const Block source(a->rail(0), kSlot * kWrites, 99);
  const Block target(b->rail(0), kSlot * kWrites);
  std::vector<uint64_t> sizes;
  for (uint32_t i = 0; i < kWrites; ++i) {
    sizes.push_back(i % 4 == 0 ? i : 4096 * i + i);
    WriteOp op = path.counted(source, target, sizes[i], i, i);
    op.source += i * kSlot;
    op.target = i * kSlot;
    path.post(op);
  }
  std::set<uint32_t> seen;
  EXPECT_TRUE(world.run_until([&] {
    for (const RailEvent& event : drain(b->rail(0))) {
      EXPECT_EQ(event.kind, Kind::kImm);
      EXPECT_TRUE(seen.insert(event.imm).second) << "counted twice";
      const size_t at = event.imm * kSlot;
      EXPECT_EQ(0, std::memcmp(&source.bytes[at], &target.bytes[at], sizes[event.imm]));
    }
    return seen.size() == kWrites;
  }));
  world.run_for(1'000'000);
  const auto written = drain(a->rail(0));
  EXPECT_EQ(written.size(), kWrites);
  for (const RailEvent& event : written) EXPECT_EQ(event.code, Errc::kOk);
  EXPECT_EQ(world.impl->wire.in_flight(), 0u);
}

TEST(SimOrdered, WritesCountAndCompleteInPostingOrder) {
  TestWorld world;
  auto a = world.open_new(1, jittery_ordered_model());
  auto b = world.open_new(1, jittery_ordered_model());
  const Path path(*a, *b);
  const Block source(a->rail(0), 100'000, 1);
  const Block target(b->rail(0), 100'000);
  for (uint32_t i = 0; i < 200; ++i) {
    path.post(path.counted(source, target, i % 3 == 0 ? 50'000 : 8, i, i));
  }
  world.run_for(10'000'000);
  const auto arrived = drain(b->rail(0));
  const auto written = drain(a->rail(0));
  ASSERT_EQ(arrived.size(), 200u);
  ASSERT_EQ(written.size(), 200u);
  for (uint32_t i = 0; i < 200; ++i) {
    EXPECT_EQ(arrived[i].imm, i);
    EXPECT_EQ(written[i].cookie, i);
  }
}

// The last bit of a large packet from a slow NIC would come after that of a small one sent later.
TEST(SimOrdered, SlowSenderKeepsItsOrderAtAFastReceiver) {
  TestWorld world;
  NicModel slow = jittery_ordered_model();
  slow.gbit_per_s = 10;
  auto a = world.open_new(1, slow);
  auto b = world.open_new(1, test::rc_model());
  const Path path(*a, *b);
  const Block source(a->rail(0), 50'000, 1);
  const Block target(b->rail(0), 50'000);
  for (uint32_t i = 0; i < 100; ++i) {
    path.post(path.counted(source, target, i % 2 == 0 ? 50'000 : 8, i, i));
  }
  world.run_for(100'000'000);
  const auto arrived = drain(b->rail(0));
  ASSERT_EQ(arrived.size(), 100u);
  for (uint32_t i = 0; i < 100; ++i) EXPECT_EQ(arrived[i].imm, i);
}

TEST(SimUnordered, WritesOvertakeEachOtherAndNoneIsLost) {
  TestWorld world;
  auto a = world.open_new(1, test::srd_model());
  auto b = world.open_new(1, test::srd_model());
  const Path path(*a, *b);
  const Block source(a->rail(0), 8, 1);
  const Block target(b->rail(0), 8);
  for (uint32_t i = 0; i < 200; ++i) path.post(path.counted(source, target, 8, i, i));
  world.run_for(10'000'000);
  uint32_t overtaken = 0, highest = 0;
  std::set<uint32_t> seen;
  for (const RailEvent& event : drain(b->rail(0))) {
    overtaken += event.imm < highest;
    highest = std::max(highest, event.imm);
    seen.insert(event.imm);
  }
  EXPECT_EQ(seen.size(), 200u);
  EXPECT_GT(overtaken, 20u);
}

// Code that reads on a partial count must fail here, so a write is seen half done.
TEST_P(SimDatapath, WriteLandsInPartsOverTime) {
  auto a = world.open_new(1, model());
  auto b = world.open_new(1, model());
  const Path path(*a, *b);
  const Block source(a->rail(0), 16384, 5);
  const Block target(b->rail(0), 16384);
  path.post(path.counted(source, target, 16384, 0, 1));
  std::set<size_t> stages;
  EXPECT_TRUE(world.run_until([&] {
    size_t landed = 0;
    for (size_t at = 0; at < 16384; at += 4096) {
      landed += std::memcmp(&source.bytes[at], &target.bytes[at], 4096) == 0;
    }
    stages.insert(landed);
    return !drain(b->rail(0)).empty();
  }));
  EXPECT_EQ(stages, (std::set<size_t>{0, 1, 2, 3, 4}));
}

TEST(SimOrdered, WritesOfTwoPathsInterleave) {
  TestWorld world;
  auto a = world.open_new();
  auto b = world.open_new();
  const Path one(*a, *b), two(*a, *b);
  const Block source(a->rail(0), 1 << 20, 5);
  const Block first(b->rail(0), 1 << 20), second(b->rail(0), 1 << 20);
  one.post(one.write(source, first, 1 << 20, 0));
  two.post(two.write(source, second, 1 << 20, 1));
  // Both have bytes in place before either is complete.
  EXPECT_TRUE(world.run_until(
      [&] { return first.bytes[0] == source.bytes[0] && second.bytes[0] == source.bytes[0]; }));
  EXPECT_NE(first.bytes, source.bytes);
  EXPECT_NE(second.bytes, source.bytes);
}

TEST(SimOrdered, SourceIsReadWhenAPacketLeavesAndNeverAfterCompletion) {
  TestWorld world;
  auto a = world.open_new();
  auto b = world.open_new();
  const Path path(*a, *b);
  Block source(a->rail(0), 1 << 20, 5);
  const Block target(b->rail(0), 1 << 20);
  path.post(path.write(source, target, 1 << 20, 0));
  const auto before = source.bytes;
  world.run_for(5'000);  // some packets are out, most are not
  std::fill(source.bytes.begin(), source.bytes.end(), std::byte{0});
  world.run_for(1'000'000);
  ASSERT_EQ(drain(a->rail(0)).size(), 1u);
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 65536, target.bytes.begin()));
  EXPECT_EQ(target.bytes.back(), std::byte{0});
}

// ---- Access -------------------------------------------------------------------------------------

struct Refusal {
  const char* name;
  void (*invalidate)(WriteOp& op);
};

class SimRefusal : public testing::TestWithParam<std::tuple<bool, Refusal>> {};

INSTANTIATE_TEST_SUITE_P(
    Models, SimRefusal,
    testing::Combine(
        testing::Bool(),
        testing::Values(Refusal{"WrongCookie", [](WriteOp& op) { op.rkey ^= 1ull << 40; }},
                        Refusal{"NoSuchRegion", [](WriteOp& op) { op.rkey += 77; }},
                        Refusal{"NoKey", [](WriteOp& op) { op.rkey = 0; }},
                        Refusal{"PastTheEnd", [](WriteOp& op) { op.target = 1; }},
                        Refusal{"Wrapping", [](WriteOp& op) { op.target = UINT64_MAX - 3; }})),
    [](const auto& param) {
      return std::string(std::get<0>(param.param) ? "Ordered" : "Unordered") +
             std::get<1>(param.param).name;
    });

TEST_P(SimRefusal, TargetStaysUntouchedAndTheSenderGetsTheError) {
  const auto [ordered, refusal] = GetParam();
  TestWorld world;
  const NicModel model = ordered ? test::rc_model() : test::srd_model();
  auto a = world.open_new(1, model);
  auto b = world.open_new(1, model);
  const Path path(*a, *b);
  const Block source(a->rail(0), 20'000, 5);
  const Block target(b->rail(0), 20'000);
  WriteOp op = path.counted(source, target, 20'000, 42, 1);
  refusal.invalidate(op);
  path.post(op);
  world.run_for(1'000'000);
  const auto events = drain(a->rail(0));
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events[0].kind, Kind::kCompletion);
  EXPECT_EQ(events[0].cookie, 42u);
  EXPECT_EQ(events[0].code, Errc::kRemoteAccess);
  EXPECT_EQ(events[0].remote, Remote::kNotDelivered);
  EXPECT_EQ(count_of(events, Kind::kPathDown), ordered ? 1u : 0u);
  EXPECT_EQ(count_of(drain(b->rail(0)), Kind::kImm), 0u);
  EXPECT_EQ(target.bytes, std::vector<std::byte>(20'000));
}

TEST(SimOrdered, RefusalBreaksBothEndsAndNothingAfterItLands) {
  TestWorld world;
  auto a = world.open_new(1, jittery_ordered_model());
  auto b = world.open_new(1, jittery_ordered_model());
  const Path path(*a, *b);
  const Block source(a->rail(0), 64, 5);
  const Block target(b->rail(0), 64 * 64);
  for (uint32_t i = 0; i < 64; ++i) {
    WriteOp op = path.counted(source, target, 64, i, i);
    op.target = i * 64;
    if (i == 20) op.rkey ^= 1ull << 50;
    path.post(op);
  }
  world.run_for(1'000'000);
  const auto sent = drain(a->rail(0));
  ASSERT_EQ(sent.size(), 65u);
  for (uint32_t i = 0; i < 64; ++i) {
    EXPECT_EQ(sent[i].cookie, i);
    const Errc expected = i < 20 ? Errc::kOk : (i == 20 ? Errc::kRemoteAccess : Errc::kRailLost);
    EXPECT_EQ(sent[i].code, expected) << i;
    EXPECT_EQ(sent[i].remote, i < 20 ? Remote::kDelivered : Remote::kNotDelivered) << i;
  }
  EXPECT_EQ(sent[64].kind, Kind::kPathDown);
  EXPECT_EQ(sent[64].inbound, 0);
  EXPECT_EQ(sent[64].path, path.out);
  const auto taken = drain(b->rail(0));
  ASSERT_EQ(taken.size(), 21u);
  EXPECT_EQ(taken[20].kind, Kind::kPathDown);
  EXPECT_EQ(taken[20].inbound, 1);
  EXPECT_EQ(taken[20].path, path.in);
  EXPECT_EQ(taken[20].value, 20u);
  EXPECT_TRUE(std::all_of(target.bytes.begin() + 20 * 64, target.bytes.end(),
                          [](std::byte x) { return x == std::byte{0}; }));
  world.run_for(2 * kRetryNs);
  EXPECT_TRUE(drain(a->rail(0)).empty()) << "something was reported twice";
  EXPECT_EQ(world.impl->wire.in_flight(), 0u);
}

TEST(SimUnordered, RefusalLeavesThePathAlone) {
  TestWorld world;
  auto a = world.open_new(1, wild_model());
  auto b = world.open_new(1, wild_model());
  const Path path(*a, *b);
  const Block source(a->rail(0), 64, 5);
  const Block target(b->rail(0), 64);
  WriteOp bad = path.write(source, target, 64, 0);
  bad.target = 1;
  path.post(bad);
  path.post(path.counted(source, target, 64, 1, 9));
  world.run_for(1'000'000);
  std::map<uint32_t, Errc> ends;
  for (const RailEvent& event : drain(a->rail(0))) ends[event.cookie] = event.code;
  EXPECT_EQ(ends, (std::map<uint32_t, Errc>{{0, Errc::kRemoteAccess}, {1, Errc::kOk}}));
  EXPECT_EQ(drain(b->rail(0)).size(), 1u);
}

TEST(SimMemory, SourceOnlyRegionCannotBeWritten) {
  TestWorld world;
  auto a = world.open_new();
  auto b = world.open_new();
  const Path path(*a, *b);
  const Block source(a->rail(0), 64, 5);
  const Block target(b->rail(0), 64, 0, false);
  path.post(path.write(source, target, 64, 0));
  world.run_for(1'000'000);
  EXPECT_EQ(drain(a->rail(0))[0].code, Errc::kRemoteAccess);
}

TEST(SimMemory, BareImmediateNeedsNoKey) {
  TestWorld world;
  auto a = world.open_new();
  auto b = world.open_new();
  const Path path(*a, *b);
  WriteOp op;
  op.path = path.out;
  op.has_imm = 1;
  op.imm = 5;
  path.post(op);
  world.run_for(1'000'000);
  EXPECT_EQ(drain(b->rail(0)).at(0).imm, 5u);
  EXPECT_EQ(drain(a->rail(0)).at(0).code, Errc::kOk);
}

// The fence (P13): after kFenced not one byte changes, although packets are still on their way.
TEST_P(SimDatapath, NothingLandsAfterDeregistration) {
  auto a = world.open_new(1, model());
  auto b = world.open_new(1, model());
  const Path path(*a, *b);
  const Block source(a->rail(0), 4 << 20, 5);
  Block target(b->rail(0), 4 << 20);
  path.post(path.counted(source, target, 4 << 20, 3, 1));
  ASSERT_TRUE(world.run_until([&] {
    return std::any_of(target.bytes.begin(), target.bytes.begin() + 262'144,
                       [](std::byte x) { return x != std::byte{0}; });
  }));
  b->rail(0).deregister_memory(target.key, 77);
  std::vector<RailEvent> events;
  ASSERT_TRUE(world.run_until([&] {
    events = drain(b->rail(0));
    return count_of(events, Kind::kFenced) == 1;
  }));
  const auto fenced = std::find_if(events.begin(), events.end(),
                                   [](const RailEvent& e) { return e.kind == Kind::kFenced; });
  EXPECT_EQ(fenced->cookie, 77u);
  // The place is taken by a new region at once, and the old rkey does not open it.
  const Block next(b->rail(0), 4 << 20);
  std::fill(target.bytes.begin(), target.bytes.end(), std::byte{0});
  world.run_for(10'000'000);
  EXPECT_EQ(target.bytes, std::vector<std::byte>(4 << 20));
  EXPECT_EQ(next.bytes, std::vector<std::byte>(4 << 20));
  const auto sent = drain(a->rail(0));
  EXPECT_EQ(sent.at(0).code, Errc::kRemoteAccess);
  EXPECT_EQ(sent.at(0).remote, Remote::kNotDelivered);
  EXPECT_EQ(count_of(drain(b->rail(0)), Kind::kImm), 0u);
}

TEST_P(SimDatapath, DeregisteredSourceIsNotReadAgain) {
  auto a = world.open_new(1, model());
  auto b = world.open_new(1, model());
  const Path path(*a, *b);
  const Block target(b->rail(0), 4 << 20);
  {
    const Block source(a->rail(0), 4 << 20, 5);
    path.post(path.counted(source, target, 4 << 20, 3, 1));
    a->rail(0).deregister_memory(source.key, 1);
  }  // freed: a sanitizer would see a read
  world.run_for(10'000'000);
  const auto events = drain(a->rail(0));
  const auto written = std::find_if(events.begin(), events.end(),
                                    [](const RailEvent& e) { return e.kind == Kind::kCompletion; });
  ASSERT_NE(written, events.end());
  EXPECT_EQ(written->code, Errc::kNotFound);
  EXPECT_EQ(count_of(drain(b->rail(0)), Kind::kImm), 0u);
}

TEST(SimMemory, HostileKeysAndWrongMemoryAreRefused) {
  TestWorld world;
  auto a = world.open_new();
  Block block(a->rail(0), 64);
  EXPECT_LE(block.wire_rkey.size(), Rail::kWireRkeyBytesMax);
  for (size_t size = 0; size < block.wire_rkey.size(); ++size) {
    const auto cut = a->rail(0).import_rkey(std::span(block.wire_rkey).first(size));
    EXPECT_EQ(cut.error().code, Errc::kBadFormat) << size;
  }
  auto longer = block.wire_rkey;
  longer.push_back(std::byte{0});
  EXPECT_EQ(a->rail(0).import_rkey(longer).error().code, Errc::kBadFormat);
  Memory memory;
  std::vector<std::byte> key;
  EXPECT_EQ(a->rail(0).register_memory(memory, key).error().code, Errc::kInvalidArgument);
  memory.address = block.bytes.data();
  memory.size_bytes = 64;
  memory.kind = MemoryKind::kCuda;
  EXPECT_EQ(a->rail(0).register_memory(memory, key).error().code, Errc::kUnsupported);
}

// ---- Bounds -------------------------------------------------------------------------------------

TEST(SimBackPressure, PostTakesAPrefixAndPollingFreesIt) {
  TestWorld world;
  NicModel model;
  model.depth = 50;
  model.path_depth = 30;
  auto a = world.open_new(1, model);
  auto b = world.open_new(1, model);
  const Path one(*a, *b), two(*a, *b);
  const Block source(a->rail(0), 8, 5);
  const Block target(b->rail(0), 8);
  const std::vector<WriteOp> to_one(100, one.write(source, target, 8, 1));
  const std::vector<WriteOp> to_two(100, two.write(source, target, 8, 2));
  EXPECT_EQ(a->rail(0).post(to_one), 30u);
  EXPECT_EQ(a->rail(0).post(to_one), 0u);
  EXPECT_EQ(a->rail(0).post(to_two), 20u);
  world.run_for(1'000'000);
  EXPECT_EQ(a->rail(0).post(to_two), 0u) << "completed, but not polled";
  RailEvent one_event;
  ASSERT_EQ(a->rail(0).poll({&one_event, 1}), 1u);
  EXPECT_EQ(a->rail(0).post(to_two), 1u);
  EXPECT_EQ(drain(a->rail(0)).size(), 49u);
  EXPECT_EQ(a->rail(0).post(to_two), 29u);
}

TEST_P(SimDatapath, ReceiverWithoutRoomHoldsTheSenderAndLosesNothing) {
  NicModel deep = model();
  deep.depth = deep.path_depth = kImmediatesMax + 2'000;
  deep.jitter = Nanos(100);
  auto a = world.open_new(1, deep);
  auto b = world.open_new(1, deep);
  const Path path(*a, *b);
  const Block source(a->rail(0), 8, 5);
  const Block target(b->rail(0), 8);
  constexpr uint32_t kWrites = kImmediatesMax + 1'000;
  for (uint32_t i = 0; i < kWrites; ++i) path.post(path.counted(source, target, 8, i, i));
  world.run_for(100'000'000);
  EXPECT_EQ(drain(a->rail(0)).size(), kImmediatesMax);
  std::vector<uint32_t> seen;
  RailEvent event;
  for (uint32_t i = 0; i < 500 && b->rail(0).poll({&event, 1}) == 1; ++i) seen.push_back(event.imm);
  world.run_for(1'000'000);
  EXPECT_EQ(drain(a->rail(0)).size(), 500u);
  // They have just been offered in vain. There is room before they are offered again, and a new
  // one, which comes sooner, must not overtake them.
  world.impl->wire.run_to(world.impl->wire.next_due_ns());
  for (const RailEvent& e : drain(b->rail(0))) seen.push_back(e.imm);
  path.post(path.counted(source, target, 8, kWrites, kWrites));
  world.run_for(1'000'000);
  for (const RailEvent& e : drain(b->rail(0))) seen.push_back(e.imm);
  EXPECT_EQ(seen.size(), kWrites + 1);
  EXPECT_EQ(drain(a->rail(0)).size(), 501u);
  if (GetParam()) {
    EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
}

TEST_P(SimDatapath, ReceiverThatClosesWithoutRoomLeavesNothingBehind) {
  NicModel deep = model();
  deep.depth = deep.path_depth = kImmediatesMax + 10;
  auto a = world.open_new(1, deep);
  auto b = world.open_new(1, deep);
  const Path path(*a, *b);
  const Block source(a->rail(0), 8, 5);
  const Block target(b->rail(0), 8);
  const WriteOp op = path.counted(source, target, 8, 0, 0);
  EXPECT_EQ(a->rail(0).post(std::vector<WriteOp>(kImmediatesMax + 10, op)), kImmediatesMax + 10);
  world.run_for(100'000'000);
  EXPECT_EQ(drain(a->rail(0)).size(), kImmediatesMax);
  b.reset();
  world.run_for(2 * kRetryNs);
  const auto rest = drain(a->rail(0));
  ASSERT_EQ(count_of(rest, Kind::kCompletion), 10u);
  for (const RailEvent& event : rest) EXPECT_EQ(event.code, Errc::kRailLost);
  EXPECT_EQ(world.impl->wire.in_flight(), 0u);
}

TEST(SimBackPressure, WriteBeyondTheLimitCompletesThroughPoll) {
  TestWorld world;
  NicModel model;
  model.write_bytes_max = 1000;
  auto a = world.open_new(1, model);
  auto b = world.open_new(1, model);
  const Path path(*a, *b);
  const Block source(a->rail(0), 2000, 5), target(b->rail(0), 2000);
  path.post(path.write(source, target, 1001, 4));
  path.post(path.write(source, target, 1000, 5));
  world.run_for(1'000'000);
  const auto events = drain(a->rail(0));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].code, Errc::kTooLarge);
  EXPECT_EQ(events[1].code, Errc::kOk);
}

// ---- Time ---------------------------------------------------------------------------------------

void expect_near(int64_t actual, double expected, double tolerance) {
  EXPECT_NEAR(static_cast<double>(actual), expected, expected * tolerance);
}

TEST(SimTiming, LoneWriteTakesWhatTheModelSays) {
  for (const NicModel& preset : {test::rc_model(), test::srd_model(), NicModel::connectx7(),
                                 NicModel::efa_200g(), NicModel::nvlink()}) {
    NicModel model = preset;
    model.jitter = Nanos(0);
    for (const uint64_t size : {0ull, 8ull, 4096ull, 65536ull, 1ull << 20, 32ull << 20}) {
      TestWorld world;
      auto a = world.open_new(1, model);
      auto b = world.open_new(1, model);
      const Path path(*a, *b);
      const Block source(a->rail(0), 32 << 20), target(b->rail(0), 32 << 20);
      path.post(path.counted(source, target, size, 0, 1));
      ASSERT_TRUE(world.run_until([&] { return !drain(b->rail(0)).empty(); }));
      const double on_wire = static_cast<double>(size) * 8 / model.gbit_per_s;
      const double busy = std::max(on_wire, static_cast<double>(model.per_op.count()));
      const auto latency = static_cast<double>(model.latency.count());
      const auto posted = static_cast<double>(model.per_post.count());
      expect_near(world.now(), posted + busy + latency, 0.01);
      ASSERT_TRUE(world.run_until([&] { return !drain(a->rail(0)).empty(); }));
      expect_near(world.now(), posted + busy + 2 * latency, 0.01);
    }
  }
}

TEST(SimTiming, SmallWritesAreBoundByOperationsAndNotByBytes) {
  TestWorld world;
  NicModel model = test::rc_model();
  model.depth = model.path_depth = 10'000;
  auto a = world.open_new(1, model);
  auto b = world.open_new(1, model);
  const Path path(*a, *b);
  const Block source(a->rail(0), 1024), target(b->rail(0), 1024);
  for (uint32_t i = 0; i < 10'000; ++i) path.post(path.counted(source, target, 1024, i, i));
  uint32_t seen = 0;
  ASSERT_TRUE(world.run_until([&] {
    seen += static_cast<uint32_t>(drain(b->rail(0)).size());
    return seen == 10'000;
  }));
  expect_near(world.now() - 2'000, 10'000 * 90.0, 0.01);
}

TEST(SimTiming, IncastSharesTheReceiversNic) {
  TestWorld world;
  auto b = world.open_new();
  const Block target(b->rail(0), 4 << 20);
  std::vector<std::unique_ptr<OpenNetwork>> senders;
  std::vector<std::unique_ptr<Block>> sources;
  for (uint32_t i = 0; i < 4; ++i) {
    senders.push_back(world.open_new());
    sources.push_back(std::make_unique<Block>(senders[i]->rail(0), 4 << 20));
    const Path path(*senders[i], *b);
    path.post(path.counted(*sources[i], target, 4 << 20, 0, i));
  }
  uint32_t seen = 0;
  int64_t first = 0;
  ASSERT_TRUE(world.run_until([&] {
    seen += static_cast<uint32_t>(drain(b->rail(0)).size());
    if (seen > 0 && first == 0) first = world.now();
    return seen == 4;
  }));
  const double alone = (4 << 20) * 8 / 400.0;
  expect_near(world.now(), 4 * alone + 2'000, 0.01);
  EXPECT_GT(static_cast<double>(first), 3.5 * alone) << "the writes were served one after another";
}

TEST(SimTiming, EachRailBringsItsOwnBandwidth) {
  for (uint32_t rails = 1; rails <= kRailsMax; ++rails) {
    TestWorld world;
    auto a = world.open_new(rails);
    auto b = world.open_new(rails);
    ASSERT_EQ(a->rail_count(), rails);
    constexpr uint64_t kBytes = 8 << 20;
    std::vector<std::unique_ptr<Block>> blocks;
    for (uint32_t r = 0; r < rails; ++r) {
      const Path path(*a, *b, r, r);
      blocks.push_back(std::make_unique<Block>(a->rail(r), kBytes));
      const Block& source = *blocks.back();
      blocks.push_back(std::make_unique<Block>(b->rail(r), kBytes));
      path.post(path.counted(source, *blocks.back(), kBytes / rails, 0, r));
    }
    uint32_t seen = 0;
    ASSERT_TRUE(world.run_until([&] {
      for (uint32_t r = 0; r < rails; ++r) {
        seen += static_cast<uint32_t>(drain(b->rail(r)).size());
      }
      return seen == rails;
    }));
    expect_near(world.now(), static_cast<double>(kBytes) / rails * 8 / 400 + 2'000, 0.01);
  }
}

// Two engines on one node have one NIC between them.
TEST(SimTiming, EnginesOfANodeShareItsNic) {
  TestWorld world;
  const uint32_t node = world.add_node();
  auto a1 = world.open(node), a2 = world.open(node);
  auto b1 = world.open_new(), b2 = world.open_new();
  const Path one(*a1, *b1), two(*a2, *b2);
  constexpr uint64_t kBytes = 8 << 20;
  const Block source1(a1->rail(0), kBytes), source2(a2->rail(0), kBytes);
  const Block target1(b1->rail(0), kBytes), target2(b2->rail(0), kBytes);
  one.post(one.counted(source1, target1, kBytes, 0, 1));
  two.post(two.counted(source2, target2, kBytes, 0, 2));
  size_t seen = 0;
  ASSERT_TRUE(world.run_until([&] {
    seen += drain(b1->rail(0)).size() + drain(b2->rail(0)).size();
    return seen == 2;
  }));
  expect_near(world.now(), 2.0 * kBytes * 8 / 400 + 2'000, 0.01);
}

}  // namespace
}  // namespace fabric::sim::sim_datapath_test

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "unit/providers/sim_harness.h"

// What each fault does to the provider contract, in bytes and counts.

namespace fabric::sim::sim_faults_test {
namespace {

using Kind = RailEvent::Kind;
using FaultKind = Fault::Kind;

/// Two nodes, a path from the first to the second, and counted writes on it: write i has the cookie
/// and the immediate i and bytes of its own.
class Pair {
 public:
  Pair(TestWorld& in, const NicModel& model, uint32_t rails = 1)
      : world(in),
        from(in.add_node(rails, model)),
        to(in.add_node(rails, model)),
        a(in.open(from)),
        b(in.open(to)),
        path(*a, *b),
        source(a->rail(0), kBytes, 3),
        target(b->rail(0), kBytes) {}

  void post(uint32_t count, uint64_t size) {
    write_bytes = size;
    for (uint32_t i = 0; i < count; ++i) {
      WriteOp op = path.counted(source, target, size, posted, posted);
      op.source += posted * size;
      op.target = posted * size;
      path.post(op);
      ++posted;
    }
  }
  /// Runs, and collects what both rails report.
  void run(int64_t ns) {
    world.run_for(ns);
    collect();
  }
  void collect() {
    for (const RailEvent& event : drain(a->rail(0))) {
      sent.push_back(event);
      if (event.kind != Kind::kCompletion) continue;
      EXPECT_TRUE(ends.emplace(event.cookie, event).second) << "completed twice: " << event.cookie;
    }
    for (const RailEvent& event : drain(b->rail(0))) {
      got.push_back(event);
      if (event.kind != Kind::kImm) continue;
      EXPECT_TRUE(counted.insert(event.imm).second) << "counted twice: " << event.imm;
      EXPECT_TRUE(landed(event.imm)) << "counted before its bytes: " << event.imm;
    }
  }
  bool landed(uint32_t i) const {
    return std::memcmp(&source.bytes[i * write_bytes], &target.bytes[i * write_bytes],
                       write_bytes) == 0;
  }
  bool touched(uint32_t i) const {
    const auto first = target.bytes.begin() + static_cast<ptrdiff_t>(i * write_bytes);
    return std::any_of(first, first + static_cast<ptrdiff_t>(write_bytes),
                       [](std::byte one) { return one != std::byte{0}; });
  }
  uint32_t ended(Remote remote) const {
    uint32_t count = 0;
    for (const auto& [cookie, event] : ends) count += event.remote == remote;
    return count;
  }
  /// What was reported to the sender is true, and everything has completed.
  void check_reports() const {
    EXPECT_EQ(ends.size(), posted);
    for (const auto& [i, event] : ends) {
      if (event.remote == Remote::kDelivered) {
        EXPECT_EQ(event.code, Errc::kOk);
        EXPECT_TRUE(counted.contains(i) && landed(i)) << i;
      } else {
        EXPECT_NE(event.code, Errc::kOk);
      }
      if (event.remote == Remote::kNotDelivered) {
        EXPECT_FALSE(counted.contains(i) || touched(i)) << i;
      }
    }
  }
  void check_all_delivered() const {
    EXPECT_EQ(counted.size(), posted);
    EXPECT_EQ(ended(Remote::kDelivered), posted);
    check_reports();
  }
  /// An ordered path counts and completes in posting order, whatever happened to it.
  void check_order() const {
    std::vector<uint32_t> counts, completions;
    for (const RailEvent& event : got) {
      if (event.kind == Kind::kImm) counts.push_back(event.imm);
    }
    for (const RailEvent& event : sent) {
      if (event.kind == Kind::kCompletion) completions.push_back(event.cookie);
    }
    EXPECT_TRUE(std::is_sorted(counts.begin(), counts.end()));
    EXPECT_TRUE(std::is_sorted(completions.begin(), completions.end()));
  }
  /// R of the target's end, by closing it.
  uint64_t taken() {
    b->rail(0).close_path(path.in, true);
    run(10'000);
    EXPECT_EQ(got.back().kind, Kind::kPathDown);
    EXPECT_EQ(got.back().inbound, 1);
    return got.back().value;
  }

  static constexpr size_t kBytes = 1u << 20;
  TestWorld& world;
  uint32_t from, to;
  std::unique_ptr<OpenNetwork> a, b;
  Path path;
  Block source, target;
  uint64_t write_bytes = 0;
  uint32_t posted = 0;
  std::vector<RailEvent> sent, got;
  std::map<uint32_t, RailEvent> ends;
  std::set<uint32_t> counted;
};

class SimFaults : public testing::TestWithParam<bool> {
 protected:
  bool ordered() const { return GetParam(); }
  NicModel model() const { return ordered() ? jittery_ordered_model() : wild_model(); }
  TestWorld world{{.seed = 5}};
};

INSTANTIATE_TEST_SUITE_P(Models, SimFaults, testing::Bool(), [](const auto& param) {
  return std::string(param.param ? "Ordered" : "Unordered");
});

// ---- The way ------------------------------------------------------------------------------------

TEST_P(SimFaults, CutThatHealsInTimeLosesDoublesAndMiscountsNothing) {
  for (int64_t when = 0; when < 100'000; when += 17'100) {
    for (const int64_t lasts : {int64_t{20'000}, kRetryNs / 2, kRetryNs - 1}) {
      Pair pair(world, model());
      pair.post(150, 6'000);
      world.in(when, Fault::cut(pair.from, pair.to));
      world.in(when + lasts, Fault::heal(pair.from, pair.to));
      pair.run(when + lasts + 4 * kRetransmitNs);
      pair.check_all_delivered();
      if (ordered()) pair.check_order();
      EXPECT_EQ(count_of(pair.sent, Kind::kPathDown), 0u);
      EXPECT_EQ(pair.taken(), pair.posted);
    }
  }
  EXPECT_EQ(world.impl->wire.in_flight(), 0u);
}

/// A path holds 150 KiB on its way.
NicModel narrow_model() {
  NicModel model = test::rc_model();
  model.gbit_per_s = 40;
  return model;
}

TEST(SimOrderedFaults, CutThatLastsBreaksTheSendersEndWithCorrectResults) {
  TestWorld world;
  bool half_landed = false;
  for (int64_t when = 0; when < 100'000; when += 4'700) {
    Pair pair(world, narrow_model());
    pair.post(40, 20'000);
    world.in(when, Fault::cut(pair.from, pair.to, 0));
    pair.run(when + kRetryNs - 1);
    EXPECT_EQ(count_of(pair.sent, Kind::kPathDown), 0u) << "the NIC gave up too soon";
    pair.run(200'000);
    pair.check_reports();
    EXPECT_EQ(pair.sent.back().kind, Kind::kPathDown);
    EXPECT_EQ(pair.sent.back().code, Errc::kRailLost);
    EXPECT_GT(pair.ended(Remote::kUnknown), 0u);
    EXPECT_GT(pair.ended(Remote::kNotDelivered), 0u) << "the window held some back";
    for (uint32_t i = 0; i < pair.posted; ++i) half_landed |= pair.touched(i) && !pair.landed(i);
    // The target has received nothing; nothing comes after the heal.
    const auto before = pair.target.bytes;
    world.now(Fault::heal(pair.from, pair.to, 0));
    pair.run(2 * kRetryNs);
    EXPECT_EQ(pair.target.bytes, before);
    EXPECT_EQ(pair.taken(), pair.counted.size());
  }
  EXPECT_TRUE(half_landed) << "no cut came in the middle of a write";
  EXPECT_EQ(world.impl->wire.in_flight(), 0u);
}

TEST(SimUnorderedFaults, CutThatLastsFailsEachWriteAlone) {
  TestWorld world;
  Pair pair(world, wild_model());
  pair.post(10, 6'000);
  world.in(15'000, Fault::cut(pair.from, pair.to));
  pair.run(2 * kRetryNs);
  pair.check_reports();
  EXPECT_GT(pair.ended(Remote::kUnknown), 0u);
  EXPECT_EQ(count_of(pair.sent, Kind::kPathDown), 0u);
  world.now(Fault::heal(pair.from, pair.to));
  pair.post(1, 6'000);
  pair.run(1'000'000);
  EXPECT_EQ(pair.ends.at(10).remote, Remote::kDelivered) << "the path must work after the heal";
}

TEST_P(SimFaults, CutIsOfOneRailAndOfTheNodesThatItNames) {
  Pair pair(world, model(), 2);
  const uint32_t third_node = world.add_node(2, model());
  auto third = world.open(third_node);
  const Path second(*pair.a, *pair.b, 1, 0), elsewhere(*pair.a, *third, 0, 0);
  const Block here(pair.a->rail(1), 64, 9), there(third->rail(0), 64);
  world.now(Fault::cut(pair.to, pair.from, 0));
  pair.post(1, 64);
  second.post(second.counted(here, pair.target, 64, 70, 70));
  elsewhere.post(elsewhere.counted(pair.source, there, 64, 71, 71));
  const auto link = pair.a->open_link(pair.b->address());
  const std::byte word[] = {std::byte{42}};
  EXPECT_TRUE(pair.a->send(*link, word));
  world.run_for(1'000'000);
  EXPECT_EQ(drain(pair.a->rail(1)).at(0).remote, Remote::kDelivered);
  EXPECT_EQ(drain(pair.a->rail(0)).at(0).cookie, 71u);
  EXPECT_EQ(drain(third->rail(0)).at(0).imm, 71u);
  EXPECT_EQ(drain(pair.b->rail(0)).at(0).imm, 70u);
  std::byte out[8];
  EXPECT_EQ(pair.b->receive(out), 1u) << "datagrams do not use the rail";
}

TEST(SimControlFaults, DatagramsStopWithACutOfTheirOwnOrOfEverything) {
  TestWorld world;
  Pair pair(world, NicModel{});
  const auto link = pair.b->open_link(pair.a->address());
  const std::byte word[] = {std::byte{42}};
  std::byte out[8];
  const auto passes = [&] {
    EXPECT_TRUE(pair.b->send(*link, word));
    world.run_for(100'000);
    return pair.a->receive(out) == 1;
  };
  EXPECT_TRUE(passes());
  world.now(Fault::control_cut(pair.from, pair.to));
  EXPECT_FALSE(passes()) << "a cut must hold in both directions";
  pair.post(1, 64);
  pair.run(100'000);
  pair.check_all_delivered();
  world.now(Fault::cut(pair.from, pair.to));
  world.now(Fault::control_heal(pair.from, pair.to));
  EXPECT_FALSE(passes());
  world.now(Fault::heal(pair.to, pair.from));
  EXPECT_TRUE(passes());
  world.now(Fault::nic_down(pair.from, 0));
  EXPECT_TRUE(passes()) << "the management network is another";
}

TEST_P(SimFaults, DelayIsAddedToWhatTheNodeSends) {
  NicModel steady = model();
  steady.jitter = Nanos(0);
  Pair pair(world, steady);
  const auto round_trip = [&] {
    const int64_t start = world.now();
    pair.post(1, 64);
    EXPECT_TRUE(world.run_until([&] { return pair.collect(), pair.ends.size() == pair.posted; }));
    return world.now() - start;
  };
  const int64_t usual = round_trip();
  world.now(Fault::delay(pair.from, Nanos(300'000)));
  EXPECT_EQ(round_trip(), usual + 300'000);
  world.now(Fault::delay(pair.to, Nanos(5'000)));
  EXPECT_EQ(round_trip(), usual + 305'000);
  world.now(Fault::delay(pair.from, Nanos(0)));
  EXPECT_EQ(round_trip(), usual + 5'000);
  const auto link = pair.b->open_link(pair.a->address());
  const std::byte word[] = {std::byte{42}};
  std::byte out[8];
  EXPECT_TRUE(pair.b->send(*link, word));
  world.run_for(steady.latency.count() + 4'999);
  EXPECT_EQ(pair.a->receive(out), 0u);
  world.run_for(1);
  EXPECT_EQ(pair.a->receive(out), 1u);
}

// ---- NICs ---------------------------------------------------------------------------------------

TEST_P(SimFaults, NicThatFailsIsKnownAtItsOwnNodeOnly) {
  Pair pair(world, model());
  auto second_engine = world.open(pair.to);
  pair.post(100, 6'000);
  world.in(60'000, Fault::nic_down(pair.to, 0));
  world.in(60'000, Fault::nic_down(pair.to, 0));
  pair.run(1'000'000);
  EXPECT_EQ(pair.got.back().kind, Kind::kRailDown);
  EXPECT_EQ(pair.got.back().code, Errc::kRailLost);
  EXPECT_EQ(count_of(pair.got, Kind::kRailDown), 1u);
  EXPECT_EQ(drain(second_engine->rail(0)).at(0).kind, Kind::kRailDown);
  auto newcomer = world.open(pair.to);
  EXPECT_EQ(drain(newcomer->rail(0)).at(0).kind, Kind::kRailDown)
      << "an engine that opens later must learn it too";
  const auto before = pair.target.bytes;
  // What is local still works.
  pair.b->rail(0).deregister_memory(pair.target.key, 77);
  EXPECT_EQ(pair.taken(), pair.counted.size());
  EXPECT_EQ(pair.got[pair.got.size() - 2].kind, Kind::kFenced);
  EXPECT_EQ(count_of(pair.sent, Kind::kRailDown), 0u);
  pair.run(4 * kRetryNs);
  pair.check_reports();
  EXPECT_GT(pair.ended(Remote::kUnknown), 0u);
  EXPECT_EQ(count_of(pair.sent, Kind::kPathDown), ordered() ? 1u : 0u);
  EXPECT_EQ(pair.target.bytes, before);
}

TEST_P(SimFaults, NicThatComesBackInTimeGoesOn) {
  Pair pair(world, model());
  pair.post(100, 6'000);
  world.in(30'000, Fault::nic_down(pair.from, 0));
  pair.run(50'000'000);
  const size_t before = pair.counted.size();
  pair.post(20, 6'000);
  pair.run(50'000'000);
  EXPECT_EQ(pair.counted.size(), before) << "a NIC that is down sends nothing";
  world.now(Fault::nic_up(pair.from, 0));
  world.now(Fault::nic_up(pair.from, 0));
  pair.run(kRetryNs);
  pair.check_all_delivered();
  EXPECT_EQ(count_of(pair.sent, Kind::kRailUp), 1u);
}

TEST_P(SimFaults, NicThatRefusesPostsTakesThemLater) {
  Pair pair(world, model());
  world.now(Fault::refuse_posts(pair.from));
  world.run_for(1);
  const WriteOp op = pair.path.counted(pair.source, pair.target, 64, 0, 0);
  EXPECT_EQ(pair.a->rail(0).post({&op, 1}), 0u);
  world.run_for(kRetryNs);
  EXPECT_EQ(pair.a->rail(0).post({&op, 1}), 0u);
  world.now(Fault::take_posts(pair.from));
  world.run_for(1);
  pair.post(1, 64);
  pair.run(1'000'000);
  pair.check_all_delivered();
}

// ---- Acknowledgements and counts ----------------------------------------------------------------

TEST_P(SimFaults, LostAcknowledgementsLeaveTheResultUnknown) {
  Pair pair(world, model());
  pair.post(50, 6'000);
  world.in(40'000, Fault::lose_acks(pair.from, pair.to));
  pair.run(kRetryNs / 2);
  EXPECT_EQ(pair.counted.size(), 50u) << "everything lands and counts";
  const uint32_t acknowledged = pair.ended(Remote::kDelivered);
  EXPECT_LT(acknowledged, 50u);
  pair.run(kRetryNs);
  pair.check_reports();
  EXPECT_EQ(pair.ended(Remote::kDelivered), acknowledged);
  EXPECT_EQ(pair.ended(Remote::kUnknown), 50 - acknowledged);
  EXPECT_EQ(count_of(pair.sent, Kind::kPathDown), ordered() ? 1u : 0u);
  EXPECT_EQ(pair.taken(), 50u) << "the report must count what landed, not what was acknowledged";
}

TEST_P(SimFaults, AcknowledgementThatGetsThroughLateCountsNothingTwice) {
  Pair pair(world, model());
  pair.post(50, 6'000);
  world.in(40'000, Fault::lose_acks(pair.from, pair.to, 0));
  world.in(kRetryNs / 2, Fault::keep_acks(pair.from, pair.to, 0));
  pair.run(kRetryNs / 2);
  EXPECT_LT(pair.ended(Remote::kDelivered), 50u);
  pair.run(kRetryNs);
  pair.check_all_delivered();
  if (ordered()) pair.check_order();
  EXPECT_EQ(pair.taken(), 50u);
}

TEST(SimOrderedFaults, LaterAcknowledgementSpeaksForTheLostOnes) {
  TestWorld world;
  Pair pair(world, NicModel{});
  pair.post(1, 64);
  world.now(Fault::lose_acks(pair.from, pair.to));
  pair.run(100'000);
  EXPECT_EQ(pair.ends.size(), 0u);
  world.now(Fault::keep_acks(pair.from, pair.to));
  pair.post(1, 64);
  pair.run(10'000);  // long before anything is repeated
  pair.check_all_delivered();
  EXPECT_EQ(pair.sent.at(0).cookie, 0u);
}

// hard_parts.md, section 1: landed but not counted.
TEST_P(SimFaults, ReceiverThatIsNotReadyTakesAllButTheLastPacket) {
  NicModel steady = model();
  steady.jitter = Nanos(0);
  for (const bool in_time : {true, false}) {
    Pair pair(world, steady);
    world.now(Fault::receiver_not_ready(pair.to, 0));
    pair.post(1, 4 * 4096);
    pair.run(kRetryNs / 2);
    const auto packet = [&](size_t i) {
      return std::equal(&pair.source.bytes[i * 4096], &pair.source.bytes[i * 4096] + 4096,
                        &pair.target.bytes[i * 4096]);
    };
    EXPECT_TRUE(packet(0) && packet(1) && packet(2));
    EXPECT_EQ(pair.target.bytes[3 * 4096], std::byte{0});
    EXPECT_TRUE(pair.counted.empty() && pair.ends.empty());
    if (in_time) {
      world.now(Fault::receiver_ready(pair.to, 0));
      pair.run(1'000'000);
      pair.check_all_delivered();
      continue;
    }
    pair.run(kRetryNs);
    pair.check_reports();
    EXPECT_EQ(pair.ended(Remote::kUnknown), 1u);
    EXPECT_EQ(count_of(pair.sent, Kind::kPathDown), ordered() ? 1u : 0u);
    world.now(Fault::receiver_ready(pair.to, 0));
    pair.run(kRetryNs);
    EXPECT_EQ(pair.target.bytes[3 * 4096], std::byte{0})
        << "retransmitted after the path went down";
    EXPECT_EQ(pair.taken(), 0u);
  }
}

TEST_P(SimFaults, LateCountsComeInOrderAndBeforeTheirPathIsDown) {
  Pair pair(world, model());
  world.now(Fault::late_counts(pair.to, Nanos(400'000)));
  pair.post(30, 6'000);
  pair.run(300'000);
  EXPECT_TRUE(pair.landed(29));
  EXPECT_TRUE(pair.counted.empty());
  EXPECT_EQ(pair.ended(Remote::kDelivered), 30u) << "the NIC acknowledges without its engine";
  pair.b->rail(0).close_path(pair.path.in, true);
  world.now(Fault::late_counts(pair.to, Nanos(0)));
  pair.run(1'000'000);
  EXPECT_EQ(pair.counted.size(), 30u);
  ASSERT_EQ(pair.got.size(), 31u);
  EXPECT_EQ(pair.got.back().kind, Kind::kPathDown);
  EXPECT_EQ(pair.got.back().value, 30u);
  EXPECT_EQ(pair.got.back().remote, Remote::kDelivered) << "the path must be drained";
  if (!ordered()) return;
  for (uint32_t i = 0; i < 30; ++i) EXPECT_EQ(pair.got[i].imm, i);
}

// P6: the acknowledgement says nothing about what the owner of the memory sees.
TEST_P(SimFaults, LateBytesAreAcknowledgedAndVisibleOnlyWithTheirCount) {
  Pair pair(world, model());
  world.now(Fault::late_bytes(pair.to, Nanos(400'000)));
  pair.post(30, 6'000);
  pair.run(300'000);
  EXPECT_EQ(pair.ended(Remote::kDelivered), 30u);
  EXPECT_TRUE(pair.counted.empty());
  const std::vector<std::byte> nothing(pair.target.bytes.size());
  EXPECT_EQ(pair.target.bytes, nothing);
  world.run_for(1'000'000);
  EXPECT_EQ(pair.target.bytes, nothing) << "due, but no engine has polled it";
  RailEvent one;
  for (uint32_t i = 0; i < 30; ++i) {
    ASSERT_EQ(pair.b->rail(0).poll({&one, 1}), 1u);
    EXPECT_EQ(one.cookie, 0u);
    EXPECT_TRUE(pair.landed(one.imm)) << "counted before its bytes: " << one.imm;
    for (const RailEvent& later : pair.got) EXPECT_NE(later.imm, one.imm);
    pair.got.push_back(one);
    uint32_t visible = 0;
    for (uint32_t n = 0; n < 30; ++n) visible += pair.landed(n);
    EXPECT_EQ(visible, i + 1) << "only with its own count";
  }
  world.now(Fault::late_bytes(pair.to, Nanos(0)));
  pair.post(1, 6'000);
  world.run_for(300'000);
  EXPECT_TRUE(pair.landed(30)) << "before it is polled";
}

TEST_P(SimFaults, LateBytesLeaveWritesWithoutACountAlone) {
  Pair pair(world, model());
  world.now(Fault::late_bytes(pair.to, Nanos(400'000)));
  pair.path.post(pair.path.write(pair.source, pair.target, 6'000, 0));
  world.run_for(300'000);
  pair.write_bytes = 6'000;
  EXPECT_TRUE(pair.landed(0));
}

TEST_P(SimFaults, LateBytesThatWereCountedAreFlushedByDeregistration) {
  Pair pair(world, model());
  world.now(Fault::late_bytes(pair.to, Nanos(400'000)));
  pair.post(3, 6'000);
  pair.run(300'000);
  EXPECT_FALSE(pair.landed(0));
  pair.b->rail(0).deregister_memory(pair.target.key, 9);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(pair.landed(i)) << "not after the proof";
  const auto before = pair.target.bytes;
  std::fill(pair.target.bytes.begin(), pair.target.bytes.end(), std::byte{0});
  world.run_for(1'000'000);
  EXPECT_EQ(drain(pair.b->rail(0)).size(), 4u);
  EXPECT_EQ(pair.target.bytes, std::vector<std::byte>(before.size())) << "and not again";
}

// Its sender may be told that nothing of it can land any more.
TEST_P(SimFaults, LateBytesOfAWriteThatNeverCountsNeverShow) {
  NicModel steady = model();
  steady.jitter = Nanos(0);
  for (const bool deregister : {false, true}) {
    Pair pair(world, steady);
    const std::vector<std::byte> nothing(pair.target.bytes.size());
    world.now(Fault::late_bytes(pair.to, Nanos(1'000)));
    world.now(Fault::receiver_not_ready(pair.to, 0));
    pair.post(1, 4 * 4096);  // three of four packets are taken
    pair.run(kRetryNs / 2);
    if (deregister) pair.b->rail(0).deregister_memory(pair.target.key, 9);
    world.now(Fault::late_bytes(pair.to, Nanos(0)));
    EXPECT_EQ(pair.target.bytes, nothing);
    pair.run(2 * kRetryNs);
    EXPECT_EQ(pair.ends.size(), 1u);
    EXPECT_EQ(pair.target.bytes, nothing);
    world.now(Fault::receiver_ready(pair.to, 0));
    pair.run(kRetryNs);
    EXPECT_EQ(pair.target.bytes, nothing);
  }
  EXPECT_EQ(world.impl->wire.in_flight(), 0u);
}

TEST_P(SimFaults, LateAcknowledgementsComeBeforeTheirPathIsDown) {
  Pair pair(world, model());
  world.now(Fault::late_acks(pair.from, Nanos(400'000)));
  pair.post(30, 6'000);
  pair.run(300'000);
  EXPECT_EQ(pair.counted.size(), 30u);
  EXPECT_TRUE(pair.ends.empty());
  pair.a->rail(0).close_path(pair.path.out, false);
  world.now(Fault::late_acks(pair.from, Nanos(0)));
  pair.run(1'000'000);
  pair.check_all_delivered();
  EXPECT_EQ(pair.sent.back().kind, Kind::kPathDown);
}

TEST_P(SimFaults, SwallowedCountsAreAcknowledgedAndMissing) {
  Pair pair(world, model());
  pair.post(20, 600);
  pair.run(1'000'000);
  pair.check_all_delivered();
  world.now(Fault::swallow_counts(pair.to, 0, Nanos(1'000'000)));
  pair.post(20, 600);
  pair.run(900'000);
  EXPECT_EQ(pair.ended(Remote::kDelivered), 40u);
  EXPECT_EQ(count_of(pair.got, Kind::kRailDown), 0u);
  pair.run(200'000);
  EXPECT_EQ(pair.got.back().kind, Kind::kRailDown);
  EXPECT_EQ(pair.counted.size(), 20u);
  EXPECT_EQ(pair.taken(), 20u) << "the report must not count swallowed immediates";
}

TEST_P(SimFaults, ANicThatHasSwallowedCountsFailsBeforeItIsGoodAgain) {
  Pair pair(world, model());
  world.now(Fault::swallow_counts(pair.to, 0, Nanos(1'000'000)));
  pair.post(20, 600);
  pair.run(500'000);
  world.now(Fault::nic_up(pair.to, 0));
  pair.run(10'000);
  ASSERT_GE(pair.got.size(), 2u);
  EXPECT_EQ(pair.got[pair.got.size() - 2].kind, Kind::kRailDown);
  EXPECT_EQ(pair.got.back().kind, Kind::kRailUp);
  pair.run(2'000'000);
  EXPECT_EQ(count_of(pair.got, Kind::kRailDown), 1u);
}

TEST_P(SimFaults, WhatOneOverrunHidASecondDoesNotHideForEver) {
  Pair pair(world, model());
  const Path back(*pair.b, *pair.a);
  const Block there(pair.b->rail(0), 64, 8), here(pair.a->rail(0), 64);
  world.now(Fault::late_acks(pair.to, Nanos(1'000'000)));
  back.post(back.counted(there, here, 64, 90, 90));
  pair.run(500'000);
  world.now(Fault::overrun(pair.to, 0));  // its completion is on its way
  pair.run(10'000);
  pair.b->rail(0).close_path(back.out, false);
  pair.run(10'000);
  world.now(Fault::overrun(pair.to, 0));  // and so is the end of its path
  pair.run(5'000'000);
  EXPECT_EQ(count_of(pair.got, Kind::kCompletion), 1u);
  EXPECT_EQ(pair.got.back().kind, Kind::kPathDown);
}

TEST_P(SimFaults, OverrunLeavesNothingThatCouldBeDrained) {
  Pair pair(world, model());
  const Path back(*pair.b, *pair.a);
  const Block there(pair.b->rail(0), 64, 8), here(pair.a->rail(0), 64);
  pair.post(20, 6'000);
  pair.run(1'000'000);
  world.now(Fault::late_counts(pair.to, Nanos(1'000'000)));
  world.now(Fault::late_acks(pair.to, Nanos(1'000'000)));
  pair.post(20, 6'000);
  back.post(back.counted(there, here, 64, 90, 90));  // its completion will be late
  pair.run(500'000);
  back.post(back.counted(there, here, 64, 91, 91));  // and this one has hardly left
  world.in(100, Fault::overrun(pair.to, 0));
  pair.run(2'000'000);
  EXPECT_EQ(pair.counted.size(), 20u) << "a delayed count arrived after the overrun";
  EXPECT_EQ(pair.got.back().kind, Kind::kRailDown);
  EXPECT_EQ(count_of(pair.got, Kind::kCompletion), 0u);
  const WriteOp op = back.counted(there, here, 64, 92, 92);
  EXPECT_EQ(pair.b->rail(0).post({&op, 1}), 0u);

  world.now(Fault::late_counts(pair.to, Nanos(0)));
  world.now(Fault::late_acks(pair.to, Nanos(0)));
  EXPECT_EQ(pair.taken(), 20u) << "the report must count only what poll() returned";
  EXPECT_EQ(pair.got.back().remote, Remote::kUnknown);
  pair.b->rail(0).close_path(back.out, false);
  pair.run(10'000);
  ASSERT_EQ(count_of(pair.got, Kind::kCompletion), 2u);
  for (const RailEvent& event : pair.got) {
    if (event.kind != Kind::kCompletion) continue;
    EXPECT_EQ(event.code, Errc::kRailLost);
    EXPECT_EQ(event.remote, Remote::kUnknown);
  }
  EXPECT_EQ(pair.got.back().kind, Kind::kPathDown);

  world.now(Fault::nic_up(pair.to, 0));
  world.run_for(1);
  EXPECT_EQ(drain(pair.b->rail(0)).at(0).kind, Kind::kRailUp);
  const Path fresh(*pair.b, *pair.a);
  fresh.post(fresh.counted(there, here, 64, 93, 93));
  world.run_for(1'000'000);
  EXPECT_EQ(drain(pair.b->rail(0)).at(0).remote, Remote::kDelivered)
      << "a new path has a new queue";
}

// ---- Ends ---------------------------------------------------------------------------------------

TEST_P(SimFaults, SendersEndThatBreaksStopsNothingOnTheWay) {
  Pair pair(world, model());
  pair.post(100, 6'000);
  world.in(6'000, Fault::break_sender(pair.from, pair.to, 0));
  world.run_for(6'000);
  pair.collect();
  EXPECT_EQ(pair.sent.back().kind, Kind::kPathDown);
  const size_t before = pair.counted.size();
  pair.run(kRetryNs);
  pair.check_reports();
  EXPECT_GT(pair.counted.size(), before) << "packets in flight must land at the target";
  EXPECT_EQ(count_of(pair.got, Kind::kPathDown), 0u);
  EXPECT_GT(pair.ended(Remote::kUnknown), 0u);
  EXPECT_GT(pair.ended(Remote::kNotDelivered), 0u);
  // Two old connections alive at once: a new path beside the target's old end.
  const Path second(*pair.a, *pair.b);
  EXPECT_NE(second.in, pair.path.in);
  second.post(second.counted(pair.source, pair.target, 64, 1'000, 1'000));
  const size_t old = pair.counted.size();
  world.run_for(1'000'000);
  EXPECT_EQ(drain(pair.b->rail(0)).at(0).path, second.in);
  EXPECT_EQ(pair.taken(), old);
  EXPECT_EQ(world.impl->wire.in_flight(), 0u);
}

TEST(SimOrderedFaults, TheTwoEndsBreakAtTimesOfTheirOwn) {
  TestWorld world;
  Pair pair(world, jittery_ordered_model());
  pair.post(100, 6'000);
  world.in(50'000, Fault::break_target(pair.from, pair.to, 0));
  pair.run(1'000'000);
  EXPECT_EQ(pair.got.back().kind, Kind::kPathDown);
  EXPECT_EQ(pair.got.back().code, Errc::kRailLost);
  EXPECT_EQ(pair.got.back().value, pair.counted.size());
  EXPECT_LT(pair.counted.size(), 100u);
  EXPECT_EQ(count_of(pair.sent, Kind::kPathDown), 0u) << "the sender cannot know of the break";
  pair.run(kRetryNs);
  EXPECT_EQ(pair.sent.back().kind, Kind::kPathDown);
  pair.check_reports();
  EXPECT_EQ(pair.ended(Remote::kDelivered), pair.counted.size());
}

TEST(SimUnorderedFaults, DataLandsTwiceBeforeTheCompletionAndCountsOnce) {
  TestWorld world;
  Pair pair(world, wild_model());
  const auto wipe = [&] {
    std::fill(pair.target.bytes.begin(), pair.target.bytes.end(), std::byte{0});
  };
  world.now(Fault::twice(pair.from, pair.to));
  for (uint32_t i = 0; i < 30; ++i) {
    pair.post(1, 6'000);
    ASSERT_TRUE(world.run_until([&] { return pair.collect(), pair.counted.contains(i); }));
    EXPECT_FALSE(pair.ends.contains(i));
    wipe();
    ASSERT_TRUE(world.run_until([&] { return pair.collect(), pair.ends.contains(i); }));
    EXPECT_TRUE(pair.touched(i)) << "the data did not land a second time";
    wipe();
    pair.run(1'000'000);
    EXPECT_FALSE(pair.touched(i)) << "something landed after the completion";
  }
  EXPECT_EQ(pair.taken(), 30u);
}

TEST(SimOrderedFaults, NumbersOfPacketsHideThoseThatComeTwice) {
  TestWorld world;
  Pair pair(world, NicModel{});
  world.now(Fault::twice(pair.from, pair.to));
  pair.post(1, 6'000);
  ASSERT_TRUE(world.run_until([&] { return pair.collect(), !pair.counted.empty(); }));
  std::fill_n(pair.target.bytes.begin(), 6'000, std::byte{0});
  pair.run(kRetryNs);
  EXPECT_FALSE(pair.touched(0));
}

TEST_P(SimFaults, WrongKeyIsRefusedAndOnAnOrderedPathItTakesInnocentsAlong) {
  Pair pair(world, model());
  pair.post(5, 6'000);
  pair.run(1'000'000);
  world.now(Fault::wrong_rkey(pair.from, pair.to, 0));
  world.run_for(1);
  pair.post(5, 6'000);
  pair.run(1'000'000);
  pair.check_reports();
  EXPECT_EQ(pair.ends.at(5).code, Errc::kRemoteAccess);
  EXPECT_EQ(pair.ends.at(5).remote, Remote::kNotDelivered);
  for (uint32_t i = 6; i < 10; ++i) {
    EXPECT_EQ(pair.ends.at(i).code, ordered() ? Errc::kRailLost : Errc::kOk);
  }
  EXPECT_EQ(count_of(pair.sent, Kind::kPathDown), ordered() ? 1u : 0u);
  EXPECT_EQ(count_of(pair.got, Kind::kPathDown), ordered() ? 1u : 0u);
}

TEST_P(SimFaults, LateProofIsLateAndNothingLandsBeforeIt) {
  Pair pair(world, model());
  world.now(Fault::late_proof(pair.to, Nanos(5'000'000)));
  pair.post(50, 6'000);
  world.run_for(50'000);
  pair.b->rail(0).deregister_memory(pair.target.key, 77);
  pair.b->rail(0).close_path(pair.path.in, true);
  const auto before = pair.target.bytes;
  pair.run(4'900'000);
  EXPECT_EQ(count_of(pair.got, Kind::kFenced), 0u);
  EXPECT_EQ(count_of(pair.got, Kind::kPathDown), 0u);
  pair.run(200'000);
  EXPECT_EQ(count_of(pair.got, Kind::kFenced), 1u);
  EXPECT_EQ(count_of(pair.got, Kind::kPathDown), 1u);
  EXPECT_EQ(pair.target.bytes, before);
}

TEST_P(SimFaults, PathsThatAreOpenedAgainForEverTakeNoMoreRoom) {
  Pair pair(world, model());
  std::set<uint32_t> outs{pair.path.out}, ins{pair.path.in};
  for (uint32_t i = 0; i < 3'000; ++i) {
    const Path path(*pair.a, *pair.b);
    EXPECT_TRUE(outs.insert(path.out).second && ins.insert(path.in).second)
        << "a path number was reused";
    path.post(path.counted(pair.source, pair.target, 8, i, i));
    if (i % 2 == 0) world.run_for(200'000);
    pair.a->rail(0).close_path(path.out, false);
    pair.b->rail(0).close_path(path.in, true);
    world.run_for(200'000);
    drain(pair.a->rail(0));
    drain(pair.b->rail(0));
  }
  EXPECT_EQ(world.impl->wire.path_ends(), 2u) << "only the path of the pair is left";
  world.run_for(2 * kRetryNs);
  EXPECT_EQ(world.impl->wire.in_flight(), 0u);
  pair.post(1, 64);
  pair.run(1'000'000);
  pair.check_all_delivered();
}

}  // namespace
}  // namespace fabric::sim::sim_faults_test

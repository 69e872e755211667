#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <fabric/fabric.h>

#include "support/log_guard.h"
#include "unit/providers/sim_harness.h"

// WorldOptions::carry_bytes and packet_bytes_max: worlds that only measure time.

namespace fabric::sim::sim_no_bytes_test {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kBytes = 3 << 20;
constexpr std::byte kOld{0x11}, kNew{0x22};

/// What a run of engines looked like from outside.
struct Observed {
  std::vector<int64_t> times{};  ///< of every completion and every count
  uint64_t trace_hash = 0, events = 0, delivered = 0;
  uint64_t new_bytes = 0;  ///< in the target
  std::string message{};

  void on_message(const fabric::Event& event) {
    message.assign(reinterpret_cast<const char*>(event.bytes().data()), event.bytes().size());
  }
  bool same_times(const Observed& other) const {
    return times == other.times && trace_hash == other.trace_hash && events == other.events &&
           delivered == other.delivered && message == other.message;
  }
};

/// Writes of all sizes, cut and not, pages and a message between two engines, under faults.
Observed observe(const NicModel& model, const WorldOptions& options) {
  test::expect_log("a path broke");
  World world(options);
  const Config config{.log_sink = test::test_log_sink()};
  Engine from = *world.open(world.add_node(3, model), config);
  Engine to = *world.open(world.add_node(2, model), config);
  MemoryRegion source = *from.allocate({.size_bytes = kBytes});
  MemoryRegion target = *to.allocate({.size_bytes = kBytes});
  std::ranges::fill(source.bytes(), kNew);
  std::ranges::fill(target.bytes(), kOld);
  Counter counter = *to.make_counter();
  const PeerId peer = *from.connect(to.address());
  const RemoteRegion remote = *from.import_region(peer, *target.desc());

  Observed seen;
  const auto note = [&] { seen.times.push_back(world.now().count()); };
  const Hook arrivals = world.each_arrival([&](const Arrival&) { note(); });
  const Subscription listener = *to.listen(1, Notify::call<&Observed::on_message>(&seen));
  Batch batch = *from.make_batch();
  uint64_t writes = 0;
  for (const Fault& fault : {Fault::twice(0, 1), Fault::late_bytes(1, Nanos(50'000)),
                             Fault::delay(0, Nanos(3'000)), Fault::break_target(0, 1, 1)}) {
    EXPECT_TRUE(world.at(world.now() + 10us, fault));
    for (const uint64_t size : {0ull, 1ull, 4096ull, 65'536ull, 100'000ull, 1ull << 20}) {
      EXPECT_TRUE(from.submit(Write{.source = source.at(0),
                                    .target = remote.at(size),
                                    .size_bytes = size,
                                    .imm = counter.key(),
                                    .batch = batch}));
      ++writes;
    }
    const std::string text = "a message of " + std::string(to_string(fault.kind));
    EXPECT_TRUE(from.submit(
        Send{.peer = peer, .channel = 1, .bytes = std::as_bytes(std::span(text)), .batch = batch}));
    world.run_until([&] { return batch.pending() == 0; }, 10s);
    note();
    if (const auto undone = opposite(fault)) {
      EXPECT_TRUE(world.at(world.now(), *undone));
    }
  }
  world.run_for(10ms);
  seen.delivered = batch.delivered();
  if (model.exact_replay) {
    EXPECT_EQ(counter.count(), writes);
  }
  seen.trace_hash = world.trace_hash();
  seen.events = world.events();
  seen.new_bytes = static_cast<uint64_t>(std::ranges::count(target.bytes(), kNew));
  return seen;
}

class SimNoBytes : public testing::TestWithParam<bool> {
 protected:
  NicModel model() const {
    NicModel model = GetParam() ? NicModel::connectx7() : NicModel::efa_200g();
    if (GetParam()) model.jitter = Nanos(500);
    return model;
  }
};

INSTANTIATE_TEST_SUITE_P(Orders, SimNoBytes, testing::Bool(),
                         [](const auto& param) { return param.param ? "Ordered" : "Unordered"; });

TEST_P(SimNoBytes, TimesCountsAndEventsAreTheSame) {
  const Observed with = observe(model(), {.seed = 5});
  const Observed without = observe(model(), {.seed = 5, .carry_bytes = false});
  EXPECT_GT(with.times.size(), 24u);
  EXPECT_TRUE(with.same_times(without));
  EXPECT_EQ(with.times, without.times);
  EXPECT_EQ(with.new_bytes, 1u + 4096 + (200'000 - 65'536) + (1 << 20)) << "two of them overlap";
  EXPECT_EQ(without.new_bytes, 0u) << "a byte was copied";
  EXPECT_EQ(without.message, "a message of break target") << "messages are carried as ever";
  EXPECT_FALSE(with.same_times(observe(model(), {.seed = 6}))) << "this comparison sees nothing";
}

TEST_P(SimNoBytes, TheSameHoldsForLargerPackets) {
  const Observed with = observe(model(), {.seed = 5, .packet_bytes_max = 1 << 20});
  const Observed without =
      observe(model(), {.seed = 5, .carry_bytes = false, .packet_bytes_max = 1 << 20});
  EXPECT_TRUE(with.same_times(without));
  EXPECT_LT(with.events, observe(model(), {.seed = 5}).events) << "larger packets are fewer";
}

TEST(SimPackets, OfAnySizeTakeTheSameTimeForALoneWrite) {
  const auto when = [](uint64_t packet_bytes_max) {
    TestWorld world({.carry_bytes = false, .packet_bytes_max = packet_bytes_max});
    auto a = world.open_new(), b = world.open_new();
    const Path path(*a, *b);
    const Block source(a->rail(0), kBytes), target(b->rail(0), kBytes);
    path.post(path.counted(source, target, kBytes, 0, 0));
    EXPECT_TRUE(world.run_until([&] { return !drain(b->rail(0)).empty(); }));
    return world.now();
  };
  // Each packet's time is rounded to a nanosecond.
  const int64_t usual = when(64 << 10);
  for (const uint64_t packet : {4096ull, 1ull << 20, 1ull << 30}) {
    EXPECT_NEAR(static_cast<double>(when(packet)), static_cast<double>(usual), 800) << packet;
  }
  EXPECT_EQ(when(0), when(4096)) << "the smallest that there is";
  EXPECT_EQ(when(UINT64_MAX), when(1 << 30)) << "and the largest";
}

// What is refused with bytes is refused without.
TEST(SimNoBytesOpen, AccessIsCheckedAsEver) {
  TestWorld world({.carry_bytes = false});
  auto a = world.open_new(), b = world.open_new();
  const Path path(*a, *b);
  const Block source(a->rail(0), 4096, 1), target(b->rail(0), 2048);
  path.post(path.counted(source, target, 4096, 1, 1));
  world.run_for(1'000'000);
  const auto sent = drain(a->rail(0));
  ASSERT_FALSE(sent.empty());
  EXPECT_EQ(sent[0].code, Errc::kRemoteAccess);
  EXPECT_EQ(count_of(drain(b->rail(0)), RailEvent::Kind::kImm), 0u);
}

}  // namespace
}  // namespace fabric::sim::sim_no_bytes_test

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include <fabric/fabric.h>
#include <fabric/sim.h>

#include "base/rng.h"
#include "harness/nic_models.h"
#include "providers/sim/event_queue.h"
#include "providers/sim/path_ends.h"
#include "providers/sim/world.h"
#include "support/log_guard.h"

// What makes the simulator quick, and must not make it wrong: the queue of events, the table of
// path ends, and engines that are not woken for every packet.

namespace fabric::sim::sim_pace_test {
namespace {

using namespace std::chrono_literals;

// ---- The queue ----------------------------------------------------------------------------------

struct Numbered {
  uint32_t number = 0;
};

TEST(EventQueue, GivesTheEarliestFirstAndEqualsInTheirOrder) {
  Rng rng(7);
  EventQueue<Numbered> queue;
  struct Expected {
    int64_t time_ns = 0;
    uint32_t number = 0;
  };
  std::vector<Expected> expected;  // sorted by time; equals as they came
  uint32_t number = 0;
  for (uint32_t round = 0; round < 5'000; ++round) {
    // Grows first and shrinks then, and few different times, so that many are equal.
    const bool push = queue.empty() || rng.below(5'000) > round;
    if (push) {
      const auto time = static_cast<int64_t>(round / 8 + rng.below(16));
      const auto place =
          std::upper_bound(expected.begin(), expected.end(), time,
                           [](int64_t t, const Expected& e) { return t < e.time_ns; });
      expected.insert(place, {time, number});
      queue.push(time, {number++});
      continue;
    }
    ASSERT_EQ(queue.next_ns(), expected.front().time_ns);
    ASSERT_EQ(queue.pop().number, expected.front().number);
    expected.erase(expected.begin());
  }
  for (; !expected.empty(); expected.erase(expected.begin())) {
    ASSERT_EQ(queue.pop().number, expected.front().number);
  }
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.next_ns(), kNeverNs);
}

// ---- The ends -----------------------------------------------------------------------------------

TEST(PathEnds, KeepTheirNumbersWhateverGoes) {
  PathEnds<uint32_t> ends;
  EXPECT_EQ(ends.find(0), nullptr);
  EXPECT_EQ(ends.find(1), nullptr);
  std::vector<uint32_t> numbers;
  for (uint32_t i = 0; i < 64; ++i) {
    numbers.push_back(ends.add());
    *ends.find(numbers.back()) = numbers.back();
  }
  Rng rng(3);
  while (!numbers.empty()) {
    const size_t gone = rng.below(numbers.size());
    ends.erase(numbers[gone]);
    EXPECT_EQ(ends.find(numbers[gone]), nullptr);
    EXPECT_TRUE(ends.known(numbers[gone]));
    numbers.erase(numbers.begin() + static_cast<ptrdiff_t>(gone));
    for (const uint32_t number : numbers) ASSERT_EQ(*ends.find(number), number);
    std::vector<uint32_t> seen;
    ends.each([&](uint32_t number, uint32_t) { seen.push_back(number); });
    EXPECT_EQ(seen, numbers);
  }
  EXPECT_EQ(ends.add(), 65u) << "a number was reused";
}

// ---- Waking -------------------------------------------------------------------------------------

struct Pair {
  explicit Pair(World& world) {
    Config config;
    config.log_sink = test::test_log_sink();
    for (uint32_t i = 0; i < 2; ++i) {
      engines.push_back(*world.open(world.add_node(1, test::rc_model()), config));
      memory.push_back(*engines[i].allocate({.size_bytes = 4096}));
    }
    counter.push_back(*engines[1].make_counter());
    const PeerId peer = *engines[0].connect(engines[1].address());
    region = *engines[0].import_region(peer, *memory[1].desc());
    // The path is open and everybody idle.
    EXPECT_TRUE(engines[0].submit(request()));
    EXPECT_TRUE(counter[0].wait(1, 1s));
    world.run_for(1ms);
  }
  Write request() const {
    return {.source = memory[0].at(0), .target = region.at(0), .size_bytes = 64, .imm = key()};
  }
  CounterKey key() const { return counter[0].key(); }

  std::vector<Engine> engines;
  std::vector<MemoryRegion> memory;
  std::vector<Counter> counter;
  RemoteRegion region{};
};

TEST(Waking, OfAnIdleEngineIsImmediate) {
  World world;
  Pair pair(world);
  const Nanos before = world.now();
  ASSERT_TRUE(pair.engines[0].submit(pair.request()));
  ASSERT_TRUE(pair.counter[0].wait(1, 1s));
  const NicModel model = test::rc_model();
  EXPECT_LE(world.now() - before, model.latency + model.per_op + Nanos(10))
      << "the write took longer than the NIC model says";
}

TEST(Waking, OfABusyEngineCollectsWhatCameAndLosesNothing) {
  constexpr uint32_t kWrites = 200;  // a land every 90 ns
  World world;
  Pair pair(world);
  const uint64_t turns = pair.engines[1].stats().turns;
  const std::vector<Write> requests(kWrites, pair.request());
  ASSERT_EQ(*pair.engines[0].submit(requests), kWrites);
  const Nanos before = world.now();
  ASSERT_TRUE(pair.counter[0].wait(kWrites, 1s));
  const NicModel model = test::rc_model();
  EXPECT_LE(world.now() - before,
            model.latency + kWrites * model.per_op + Nanos(kWakeGapNs) + Nanos(1'000));
  EXPECT_LE(pair.engines[1].stats().turns - turns, kWrites / 2);
}

}  // namespace
}  // namespace fabric::sim::sim_pace_test

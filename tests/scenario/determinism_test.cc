#include <gtest/gtest.h>

#include "base/rng.h"
#include "harness/host.h"
#include "support/log_guard.h"

// The same run twice, and several engines on one inline runtime, in real time.

namespace fabric::test::determinism_test {
namespace {

/// A bit of everything over a bad control channel, with choices drawn from the seed.
uint64_t trace_of_a_busy_run(uint64_t seed) {
  EventRecorder recorder;
  sim::World world(
      {.seed = seed, .drop_control = 0.1, .duplicate_control = 0.1, .reorder_control = 0.3});
  Rng rng(7);  // the same workload for every seed: only the world differs
  std::vector<Host> hosts;
  for (uint32_t i = 0; i < 3; ++i) {
    hosts.push_back(open_host(world, world.add_node(i + 1, srd_model()), 1 << 20));
  }
  for (uint32_t round = 0; round < 30; ++round) {
    const auto from = rng.below(3);
    const auto to = (from + 1 + rng.below(2)) % 3;
    const RemoteHost remote = connect(hosts[from], hosts[to]);
    Counter counter = *hosts[to].engine.make_counter();
    const Subscription listener = *hosts[to].engine.listen(1, recorder.notify());
    Batch batch = *hosts[from].engine.make_batch();
    for (uint32_t i = 0; i < 5; ++i) {
      const uint64_t size = rng.below(200'000);
      EXPECT_TRUE(hosts[from].engine.submit(Write{.source = hosts[from].memory.at(0),
                                                  .target = remote.at(rng.below(1000)),
                                                  .size_bytes = size,
                                                  .imm = counter.key(),
                                                  .batch = batch}));
    }
    EXPECT_TRUE(hosts[from].engine.submit(Send{
        .peer = remote.peer, .channel = 1, .bytes = hosts[from].bytes(0, 100), .batch = batch}));
    EXPECT_TRUE(counter.wait(5));
    EXPECT_TRUE(hosts[from].engine.wait(batch));
  }
  hosts.clear();  // the farewells belong to the run
  return world.trace_hash();
}

TEST(Determinism, TheSameSeedGivesTheSameRunEventByEvent) {
  const uint64_t first = trace_of_a_busy_run(test_seed());
  EXPECT_EQ(trace_of_a_busy_run(test_seed()), first);
  // Memory that lies elsewhere changes nothing.
  const std::vector<std::byte> elsewhere(12'345'678);
  EXPECT_EQ(trace_of_a_busy_run(test_seed()), first);
}

TEST(Determinism, AnotherSeedGivesAnotherRun) {
  EXPECT_NE(trace_of_a_busy_run(test_seed()), trace_of_a_busy_run(test_seed() + 1));
}

// ---- Inline -------------------------------------------------------------------------------------

/// An engine that writes to its own address.
struct SelfWriter {
  explicit SelfWriter(const std::shared_ptr<InlineRuntime>& runtime)
      : engine(*Engine::open(test_config(), runtime)),
        memory(*engine.allocate({.size_bytes = 64 << 10})),
        self(*engine.connect(engine.address())),
        region(*engine.import_region(self, *memory.desc())),
        counter(*engine.make_counter()) {}

  /// The first half of the memory to the second, counted.
  void write(Notify notify = {}) {
    ASSERT_TRUE(engine.submit(Write{.source = memory.at(0),
                                    .target = region.at(32 << 10),
                                    .size_bytes = 32 << 10,
                                    .imm = counter.key(),
                                    .notify = notify}));
  }

  Engine engine;
  MemoryRegion memory;
  PeerId self;
  RemoteRegion region;
  Counter counter;
};

TEST(InlineEngines, AWaitOnOneDrivesTheOther) {
  EventRecorder recorder;
  const auto runtime = std::make_shared<InlineRuntime>();
  SelfWriter a(runtime), b(runtime);
  fill(b.memory.bytes().first(32 << 10), 9);
  // B's write is only submitted once A's has completed, and no thread waits on A.
  recorder.then = [&](const Event& event) {
    EXPECT_EQ(event.code, Errc::kOk);
    b.write();
  };
  a.write(recorder.notify());
  ASSERT_TRUE(b.counter.wait(1, 10s));
  EXPECT_EQ(recorder.count(), 1u);
  EXPECT_EQ(a.counter.count(), 1u);
  EXPECT_TRUE(holds(b.memory.bytes().subspan(32 << 10), 9));
}

TEST(InlineEngines, NothingHappensUnlessTheyAreDriven) {
  const auto runtime = std::make_shared<InlineRuntime>();
  SelfWriter a(runtime), b(runtime);
  fill(a.memory.bytes().first(32 << 10), 4);
  a.write();
  EXPECT_EQ(a.counter.count(), 0u);
  // A turn of the runtime is one of every engine.
  for (int turns = 0; turns < 1000 && a.counter.count() == 0; ++turns) runtime->turn();
  EXPECT_EQ(a.counter.count(), 1u);
  EXPECT_TRUE(holds(a.memory.bytes().subspan(32 << 10), 4));
  // And progress() is one of its own engine.
  b.write();
  const uint64_t turns_of_a = a.engine.stats().turns;
  for (int turns = 0; turns < 1000 && b.counter.count() == 0; ++turns) b.engine.progress();
  EXPECT_EQ(b.counter.count(), 1u);
  EXPECT_EQ(a.engine.stats().turns, turns_of_a);
}

TEST(InlineEngines, CloseInAnyOrderWithWorkInFlight) {
  const auto runtime = std::make_shared<InlineRuntime>();
  EventRecorder recorder;
  SelfWriter a(runtime), b(runtime);
  for (uint64_t i = 0; i < 10; ++i) {
    a.write(recorder.notify(i));
    b.write(recorder.notify(100 + i));
  }
  ASSERT_TRUE(a.engine.close());
  for (uint64_t i = 0; i < 10; ++i) EXPECT_NE(recorder.find(i), nullptr) << i;
  ASSERT_TRUE(b.engine.close());
  EXPECT_EQ(recorder.count(), 20u);
}

}  // namespace
}  // namespace fabric::test::determinism_test

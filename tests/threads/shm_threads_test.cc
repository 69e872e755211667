#include "threads/engine_harness.h"

// Engines of one process on the network of this host: threads that submit, workers that copy, and
// loops that move from thread to thread.

namespace fabric::test::shm_threads_test {
namespace {

Config shm_config(uint32_t lanes) {
  Config config = engine_config();
  config.networks = {{.provider = "shm", .options = shm::Options{.lanes = lanes}}};
  config.stripe_bytes_min = 4096;
  return config;
}

struct Pair {
  Engine writer, owner;
  PeerId peer = *writer.connect(owner.address());
};

TEST(ShmThreads, AllocatedMemoryIsTakenBackUnderTheWritesOfOthers) {
  Pair pair{*Engine::open(shm_config(2)), *Engine::open(shm_config(2))};
  constexpr uint64_t kSize = 64u << 10;
  MemoryRegion source = *pair.writer.allocate({.size_bytes = kSize});
  std::fill(source.bytes().begin(), source.bytes().end(), std::byte{0x5a});
  std::mutex mutex;
  RemoteRegion current;
  std::atomic<bool> stop{false};
  ReportAudit audit(400'000);
  ScopedThreads writers;
  for (uint32_t t = 0; t < 2; ++t) {
    writers.add([&, t] {
      while (!stop.load()) {
        RemoteRegion target;
        {
          const std::lock_guard lock(mutex);
          target = current;
        }
        if (!target) continue;
        const uint64_t tag = audit.open();
        const auto op = pair.writer.submit(Write{.source = source.at(0),
                                                 .target = target.at(0),
                                                 .size_bytes = t == 0 ? kSize : 64,
                                                 .notify = audit.call(tag)});
        if (!op) audit.refused(tag);
        if (!op) std::this_thread::sleep_for(100us);
        if (audit.opened() > 390'000) return;
      }
    });
  }
  for (uint32_t round = 0; round < 30; ++round) {
    MemoryRegion area = *pair.owner.allocate({.size_bytes = kSize});
    {
      const std::lock_guard lock(mutex);
      current = *pair.writer.import_region(pair.peer, *area.desc());
    }
    const uint64_t before = audit.ok();
    ASSERT_TRUE(eventually([&] { return audit.ok() > before + 2; }));
    Batch batch = *pair.owner.make_batch();
    ASSERT_TRUE(pair.owner.submit(Deregister{.region = area.id(), .batch = batch}));
    ASSERT_TRUE(pair.owner.wait(batch, 20s));
    std::fill(area.bytes().begin(), area.bytes().end(), std::byte{0});
    std::this_thread::sleep_for(200us);
    ASSERT_EQ(std::count(area.bytes().begin(), area.bytes().end(), std::byte{0}),
              static_cast<int64_t>(kSize));
  }
  stop.store(true);
  writers.join();
  EXPECT_TRUE(eventually([&] { return audit.complete(); }));
  audit.expect_exactly_once();
}

// Small writes of one submit() are stored in bursts. A thread that has seen n counts finds the
// bytes of n writes.
TEST(ShmThreads, EveryCountOfASpanComesAfterItsBytes) {
  Pair pair{*Engine::open(shm_config(1)), *Engine::open(shm_config(1))};
  constexpr uint32_t kSpan = 48;
  constexpr uint64_t kStride = 264;  // some long enough for the vector loop
  constexpr uint64_t kSize = kSpan * kStride;
  MemoryRegion source = *pair.writer.allocate({.size_bytes = kSize});
  MemoryRegion area = *pair.owner.allocate({.size_bytes = kSize});
  Counter counter = *pair.owner.make_counter();
  const RemoteRegion target = *pair.writer.import_region(pair.peer, *area.desc());
  for (uint32_t round = 1; round <= 100; ++round) {
    std::fill(source.bytes().begin(), source.bytes().end(), static_cast<std::byte>(round));
    std::vector<Write> writes;
    for (uint32_t i = 0; i < kSpan; ++i) {
      writes.push_back({.source = source.at(i * kStride),
                        .target = target.at(i * kStride),
                        .size_bytes = i % 3 == 0 ? kStride : 8,
                        .imm = counter.key()});
    }
    const auto taken = pair.writer.submit(writes);
    ASSERT_TRUE(taken && *taken == kSpan);
    uint32_t wrong = 0;
    ASSERT_TRUE(eventually([&] {
      const uint64_t seen = counter.count();
      for (uint64_t i = 0; i < seen; ++i) {
        const uint64_t last = i * kStride + writes[i].size_bytes - 1;
        wrong += area.bytes()[last] != static_cast<std::byte>(round);
      }
      return seen == kSpan;
    }));
    ASSERT_EQ(wrong, 0u) << "in round " << round;
    ASSERT_TRUE(counter.try_take(kSpan));
  }
}

TEST(ShmThreads, ALoopMovesFromThreadToThreadAndThreadsEnd) {
  const auto runtime = std::make_shared<InlineRuntime>();
  Pair pair{*Engine::open(shm_config(1), runtime), *Engine::open(shm_config(1))};
  constexpr uint64_t kSize = 300u << 10;  // more than one section
  MemoryRegion source = *pair.writer.allocate({.size_bytes = kSize});
  uint64_t sent = 0;
  for (uint32_t round = 0; round < 12; ++round) {
    MemoryRegion area = *pair.owner.allocate({.size_bytes = kSize});
    Counter counter = *pair.owner.make_counter();
    const RemoteRegion target = *pair.writer.import_region(pair.peer, *area.desc());
    std::fill(source.bytes().begin(), source.bytes().end(), static_cast<std::byte>(round + 1));
    // A thread of its own for every few turns: the next one goes on where it stopped.
    for (uint32_t part = 0; part < 4; ++part) {
      ScopedThreads one;
      one.add([&] {
        ASSERT_TRUE(pair.writer.submit(Write{.source = source.at(0),
                                             .target = target.at(0),
                                             .size_bytes = kSize,
                                             .imm = counter.key()}));
        for (uint32_t turn = 0; turn < 20; ++turn) runtime->turn();
      });
      one.join();
      ++sent;
    }
    ScopedThreads last;
    last.add([&] {
      ASSERT_TRUE(eventually([&] {
        runtime->turn();
        return counter.count() == 4;
      }));
    });
    last.join();
    EXPECT_EQ(area.bytes()[kSize - 1], static_cast<std::byte>(round + 1));
    Batch batch = *pair.owner.make_batch();
    ASSERT_TRUE(pair.owner.submit(Deregister{.region = area.id(), .batch = batch}));
    std::atomic<bool> done{false};
    ScopedThreads turning;
    turning.add([&] {
      while (!done.load()) runtime->turn();
    });
    EXPECT_TRUE(pair.owner.wait(batch, 20s));
    done.store(true);
  }
  EXPECT_EQ(sent, 48u);
  EXPECT_EQ(pair.owner.stats().rx.imms, 48u);
}

}  // namespace
}  // namespace fabric::test::shm_threads_test

#include <algorithm>
#include <chrono>

#include <gtest/gtest.h>

#include "guest/host_process.h"
#include "guest/links.h"
#include "guest/stream.h"
#include "support/log_guard.h"

// A process on the other host that is killed, stopped and started again.

namespace fabric::test::peers_test {
namespace {

using namespace std::chrono_literals;

class Peers : public testing::Test {
 protected:
  void SetUp() override {
    if (!in_guest()) GTEST_SKIP() << "not in the guest of tests/guest/boot.py";
    for (const char* part :
         {"a path broke", "stalled", "lost", "does not drain", "a path could not be opened"}) {
      expect_log(part);
    }
  }

  void open() {
    engine.emplace(open_host('a'));
    source.emplace(*engine->allocate({.size_bytes = HostProcess::kBytes}));
    batch.emplace(*engine->make_batch());
  }
  Offer accept(HostProcess& process) {
    const std::string text = process.open();
    const auto offer = engine->accept(text);
    EXPECT_TRUE(offer) << text;
    return *offer;
  }
  /// Counted writes of one value, side by side.
  void write(const Offer& to, uint8_t value, uint32_t writes, uint64_t size_bytes,
             Timeout timeout) {
    EXPECT_TRUE(batch->reset());
    std::ranges::fill(source->bytes(), static_cast<std::byte>(value));
    for (uint32_t i = 0; i < writes; ++i) {
      const uint64_t at = i * size_bytes % HostProcess::kBytes;
      const auto op = engine->submit(Write{.source = source->at(at),
                                           .target = to.region.at(at),
                                           .size_bytes = size_bytes,
                                           .imm = to.key,
                                           .timeout = timeout,
                                           .batch = *batch});
      ASSERT_TRUE(op) << i << ": " << op.error().what;
    }
  }
  Result<void> ended() { return engine->wait(*batch, 60s); }
  Offer stopped_after_four_writes(HostProcess& process) {
    open();
    const Offer offer = accept(process);
    write(offer, 1, 4, 4096, 20s);
    EXPECT_TRUE(ended()) << engine->dump();
    EXPECT_EQ(process.count_of(4), 4u);
    process.stop();
    return offer;
  }
  std::optional<Engine> engine;
  std::optional<MemoryRegion> source;
  std::optional<Batch> batch;
};

TEST_F(Peers, AKilledOneIsLostAndItsSuccessorIsServed) {
  constexpr uint64_t kName = 77;
  HostProcess first(kName), next(kName);
  open();
  const Offer old = accept(first);
  write(old, 1, 8, 65536, 20s);
  ASSERT_TRUE(ended()) << engine->dump();
  EXPECT_EQ(first.count_of(8), 8u);
  write(old, 2, 64, 16384, 20s);
  first.kill();
  EXPECT_FALSE(ended()) << "64 writes to a dead process were delivered";
  EXPECT_EQ(batch->pending(), 0u);
  const Offer successor = accept(next);
  EXPECT_NE(successor.peer, old.peer);
  write(successor, 3, 8, 65536, 20s);
  EXPECT_TRUE(ended()) << engine->dump();
  EXPECT_EQ(next.count_of(8), 8u);
  EXPECT_EQ(next.bytes(3), 8u * 65536);
  EXPECT_EQ(next.bytes(2), 0u) << "bytes for the killed process landed here";
}

TEST_F(Peers, WritesToAStoppedOneCompleteTruthfullyByTheirDeadline) {
  HostProcess process;
  const Offer offer = stopped_after_four_writes(process);
  // More than its NIC receives without the process, which does not refill.
  constexpr uint64_t kSize = 256;
  write(offer, 2, 3000, kSize, 3s);
  EXPECT_FALSE(ended());
  EXPECT_EQ(batch->pending(), 0u);
  const uint64_t delivered = batch->delivered(), unknown = batch->unknown();
  EXPECT_LT(delivered, 3000u);
  EXPECT_GT(delivered, 0u) << "the NIC must accept what fits into its queue";
  process.resume();
  EXPECT_GE(process.bytes(2), delivered * kSize);
  EXPECT_LE(process.bytes(2), (delivered + unknown) * kSize);
  // A counter key that writes of unknown fate carried is poisoned, and counts no more.
  EXPECT_LE(process.count(), 4 + delivered + unknown);
  std::printf("stopped: %lu delivered, %lu unknown\n", delivered, unknown);
}

TEST_F(Peers, WhatWaitsForAReceiverWithoutRoomArrivesOnceItRefills) {
  HostProcess process;
  const Offer offer = stopped_after_four_writes(process);
  write(offer, 2, 3000, 256, 30s);
  std::this_thread::sleep_for(1s);
  EXPECT_GT(batch->pending(), 0u) << "all writes completed although no receive was posted";
  process.resume();
  EXPECT_TRUE(ended()) << engine->dump();
  EXPECT_EQ(process.count_of(3004), 3004u);
}

}  // namespace
}  // namespace fabric::test::peers_test

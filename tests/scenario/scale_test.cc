#include <malloc.h>
#include <unistd.h>
#include <algorithm>
#include <fstream>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "harness/host.h"
#include "support/sanitizers.h"

// Large worlds, many peers, many counter keys. What is asserted is bytes, never time. The full
// sizes are those of the optimised build; the others run the same tests with fewer.

namespace fabric::test::scale_test {
namespace {

#if defined(NDEBUG)
constexpr bool kOptimised = true;
#else
constexpr bool kOptimised = false;
#endif
constexpr bool kSanitized = kAddressSanitizer || kThreadSanitizer;

/// Full size where it is quick.
constexpr uint32_t sized(uint32_t sanitized, uint32_t debug, uint32_t optimised) {
  return kSanitized ? sanitized : kOptimised ? optimised : debug;
}
constexpr bool kBytesCounted = !kSanitized;  // a sanitizer's allocator cannot be asked
constexpr uint32_t kNodes = sized(16, 32, 256), kPeers = sized(200, 1'000, 10'000);
constexpr uint32_t kKeys = sized(1u << 14, 1u << 17, 1u << 20);

constexpr uint64_t kGiB = 1u << 30;
constexpr uint64_t kIdlePeerBytesMax = 4096;

/// What the process has from its allocator at this moment. Handed out, touched or not: so memory
/// that would be touched only later counts as well.
uint64_t allocated_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

/// What of it, and of everything else, has ever been touched.
uint64_t resident_bytes() {
  uint64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

/// An engine that is known to one other and does little: the far sides of many sessions have to fit
/// into one process.
Config small_config() {
  Config config = test_config();
  config.ops_max = 4;
  config.batches_max = 2;
  config.peers_max = 1;
  config.regions_max = 2;
  config.counters_max = 1;
  config.message_bytes_max = 64;
  config.message_buffers = 1;
  config.message_credits = 1;
  config.index_arena_bytes = 4096;
  return config;
}

/// A write of `size` bytes under a counter key of its own, and whether every byte of it came.
void write_and_check(Host& from, Host& to, const RemoteHost& remote, uint64_t offset, uint64_t size,
                     uint64_t seed) {
  Counter counter = *to.engine.make_counter();
  fill(from.bytes(offset, size), seed);
  ASSERT_TRUE(from.engine.submit(Write{.source = from.memory.at(offset),
                                       .target = remote.at(offset),
                                       .size_bytes = size,
                                       .imm = counter.key()}));
  ASSERT_TRUE(counter.wait(1, 10s));
  EXPECT_TRUE(holds(to.bytes(offset, size), seed));
}

bool is_connected(const Host& host, PeerId peer) {
  const auto info = host.engine.peer_info(peer);
  return info && info->state == PeerState::kConnected;
}

// ---- A large world ------------------------------------------------------------------------------

TEST(LargeWorld, OfDefaultEnginesWithEightRailsFitsInto4GiBAndCarriesEveryByte) {
  constexpr uint32_t kRails = 8;
  constexpr uint64_t kBytes = 256 << 10;  // cut over the rails
  const uint64_t before = resident_bytes();
  Rng rng(testing::UnitTest::GetInstance()->random_seed() + 1u);
  sim::World world;
  std::vector<Host> hosts;
  for (uint32_t i = 0; i < kNodes; ++i) {
    hosts.push_back(open_host(world, world.add_node(kRails), kBytes));
  }
  std::vector<std::vector<RemoteHost>> remotes(kNodes, std::vector<RemoteHost>(kNodes));
  for (uint32_t from = 0; from < kNodes; ++from) {
    for (uint32_t to = 0; to < kNodes; ++to) {
      if (from != to) remotes[from][to] = connect(hosts[from], hosts[to]);
    }
  }
  world.run_for(100ms);
  for (uint32_t from = 0; from < kNodes; ++from) {
    for (uint32_t to = 0; to < kNodes; ++to) {
      ASSERT_TRUE(from == to || is_connected(hosts[from], remotes[from][to].peer));
    }
  }

  for (uint32_t i = 0; i < 2 * kNodes; ++i) {
    const auto from = static_cast<uint32_t>(rng.below(kNodes));
    const auto to = static_cast<uint32_t>((from + 1 + rng.below(kNodes - 1)) % kNodes);
    write_and_check(hosts[from], hosts[to], remotes[from][to], 0, kBytes, i);
  }
  if (kBytesCounted) {
    const uint64_t grown = resident_bytes() - before;
    EXPECT_LE(grown, 4 * kGiB * kNodes / 256) << "a node uses more than its share of 4 GiB";
    RecordProperty("resident_mib", static_cast<int>(grown >> 20));
  }
}

// ---- Many peers ---------------------------------------------------------------------------------

TEST(ManyPeers, CostFourKilobytesEachWhenTheyAreIdleAndCanAllBeWrittenTo) {
  sim::World world;
  Config config = test_config();
  config.peers_max = kPeers;
  Host hub = open_host(world, world.add_node(), 64 << 10, config);
  std::vector<Host> others;
  for (uint32_t i = 0; i < kPeers; ++i) {
    others.push_back(open_host(world, world.add_node(), 4096, small_config()));
  }
  world.run_for(10ms);

  const uint64_t before = allocated_bytes();
  std::vector<PeerId> peers(kPeers);
  for (uint32_t i = 0; i < kPeers; ++i) peers[i] = *hub.engine.connect(others[i].engine.address());
  // Long enough for heartbeats both remotes.
  world.run_for(3s);
  for (const PeerId peer : peers) ASSERT_TRUE(is_connected(hub, peer));
  if (kBytesCounted) {
    // Each end of a session knows one more peer. What the network needs for it is in here, too.
    const uint64_t each = (allocated_bytes() - before) / (2 * kPeers);
    EXPECT_LE(each, kIdlePeerBytesMax);
    RecordProperty("idle_peer_bytes", static_cast<int>(each));
  }

  for (uint32_t i = 0; i < kPeers; i += kPeers / 50) {
    write_and_check(hub, others[i], connect(hub, others[i]), 0, 4096, i);
  }
}

// ---- Many counter keys --------------------------------------------------------------------------

TEST(ManyKeys, AreAllOpenAtOnceAndEachCountsItsOwn) {
  sim::World world;
  Config config = test_config();
  config.counters_max = kKeys;
  Host from = open_host(world, world.add_node(), 4096);
  Host to = open_host(world, world.add_node(), 4096, config);
  const RemoteHost remote = connect(from, to);
  std::vector<Counter> counters;
  counters.reserve(kKeys);
  for (uint32_t i = 0; i < kKeys; ++i) {
    auto made = to.engine.make_counter();
    ASSERT_TRUE(made) << "after " << i;
    counters.push_back(*std::move(made));
  }
  EXPECT_EQ(to.engine.make_counter().error().code, Errc::kExhausted);
  EXPECT_EQ(to.engine.stats().counters, kKeys);

  constexpr uint32_t kStep = kKeys / 512 + 1;  // some of all over the table
  Batch batch = *from.engine.make_batch();
  for (uint32_t i = 0; i < kKeys; i += kStep) {
    const Write request{.source = from.memory.at(0),
                        .target = remote.at(0),
                        .size_bytes = 8,
                        .imm = counters[i].key(),
                        .batch = batch};
    ASSERT_TRUE(from.engine.submit(request));
  }
  ASSERT_TRUE(from.engine.wait(batch));
  world.run_for(1ms);
  for (uint32_t i = 0; i < kKeys; ++i) {
    ASSERT_EQ(counters[i].count(), i % kStep == 0 ? 1u : 0u) << "key " << i;
  }
}

}  // namespace
}  // namespace fabric::test::scale_test

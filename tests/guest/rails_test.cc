#include <algorithm>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>

#include "control/descriptor.h"
#include "guest/links.h"
#include "guest/stream.h"
#include "support/log_guard.h"

// Two hosts with two rails each: what is cut over them, pages while one of them comes and goes, the
// loss of both, what a NIC refuses, many peers, and peers of the same host.
//
// FABRICLIB_TEST_ROUNDS=N plays N times as many flaps, and up to 64 peers.

namespace fabric::test::rails_test {
namespace {

using namespace std::chrono_literals;

class Rails : public testing::Test {
 protected:
  void SetUp() override {
    if (!in_guest()) GTEST_SKIP() << "not in the guest of tests/guest/boot.py";
  }
  static void expect_broken_rails() {
    for (const char* part : {"a path broke", "a rail went down", "a rail came back", "stalled",
                             "a path could not be opened"}) {
      expect_log(part);
    }
  }
  static MemoryRegion block(Engine& engine, uint64_t size_bytes) {
    auto region = engine.allocate({.size_bytes = size_bytes});
    EXPECT_TRUE(region);
    return *std::move(region);
  }
  static RemoteRegion seen_by(Engine& from, Engine& to, const MemoryRegion& region) {
    const auto peer = from.connect(to.address());
    EXPECT_TRUE(peer);
    const auto remote = from.import_region(*peer, *region.desc());
    EXPECT_TRUE(remote);
    return *remote;
  }

  Healed healed;
};

TEST_F(Rails, ALargeWriteIsCutOverBoth) {
  Engine a = open_host('a'), b = open_host('b');
  const MemoryRegion source = block(a, 1 << 20), target = block(b, 1 << 20);
  std::iota(reinterpret_cast<uint32_t*>(source.bytes().data()),
            reinterpret_cast<uint32_t*>(source.bytes().data() + source.size_bytes()), 1u);
  Counter counter = *b.make_counter();
  ASSERT_TRUE(a.submit(Write{.source = source.at(0),
                             .target = seen_by(a, b, target).at(0),
                             .size_bytes = 1 << 20,
                             .imm = counter.key()}));
  ASSERT_TRUE(counter.wait(1, 30s)) << a.dump();
  EXPECT_TRUE(std::ranges::equal(source.bytes(), target.bytes()));
  for (const RailStats& rail : b.rail_stats()) {
    EXPECT_EQ(rail.rx.imms, rail.network == "verbs" ? 1u : 0u) << rail.device;
  }
}

TEST_F(Rails, PagesArriveOnceWhileARailGoesDownAndUp) {
  expect_broken_rails();
  constexpr uint64_t kPage = 8192;
  constexpr uint32_t kPages = 64;
  Engine a = open_host('a'), b = open_host('b');
  const MemoryRegion source = block(a, kPages * kPage), target = block(b, kPages * kPage);
  const RemoteRegion remote = seen_by(a, b, target);
  std::vector<uint32_t> forward(kPages);
  std::iota(forward.begin(), forward.end(), 0);
  const std::vector<uint32_t> backward(forward.rbegin(), forward.rend());
  Counter counter = *b.make_counter();
  Batch batch = *a.make_batch();
  uint32_t requests = 0, in_the_middle = 0;
  const auto write_all = [&](const std::function<void()>& during) {
    std::ranges::fill(target.bytes(), std::byte{0xEE});
    std::ranges::fill(source.bytes(), static_cast<std::byte>(++requests));
    for (uint32_t page = 0; page < kPages; ++page) source.bytes()[page * kPage] = std::byte(page);
    ASSERT_TRUE(a.submit(PagedWrite{.source = source.id(),
                                    .source_pages = {forward, kPage},
                                    .target = remote,
                                    .target_pages = {backward, kPage},
                                    .page_bytes = kPage,
                                    .imm = counter.key(),
                                    .batch = batch}));
    during();
    ASSERT_TRUE(a.wait(batch, 20s)) << a.dump();  // before its deadline: one that is stuck shows
    ASSERT_TRUE(counter.wait(kPages, 30s)) << "flap " << requests << "\n" << b.dump();
    for (uint32_t page = 0; page < kPages; ++page) {
      const auto here = source.bytes().subspan(page * kPage, kPage);
      const auto there = target.bytes().subspan((kPages - 1 - page) * kPage, kPage);
      ASSERT_TRUE(std::ranges::equal(here, there)) << "page " << page;
    }
    EXPECT_EQ(counter.count(), 0u) << "counted more than once";
  };
  write_all([] {});
  Rng rng(test_seed());
  for (uint32_t flap = 0; flap < 10 * rounds() && !HasFailure(); ++flap) {
    const std::string port{rng.chance(0.5) ? 'a' : 'b', rng.chance(0.5) ? '0' : '1'};
    const uint64_t arrived = rng.between(1, kPages / 2);
    write_all([&] {
      while (counter.count() < arrived && batch.pending() > 0) std::this_thread::yield();
      set_link(port, false);
      in_the_middle += batch.pending() > 0;
    });
    heal_all();
    write_all([] {});
  }
  std::printf("%u of %u flaps came in the middle of %u pages\n", in_the_middle, requests / 2,
              kPages);
  EXPECT_GT(in_the_middle, requests / 4);
}

TEST_F(Rails, WithBothDownEverythingEndsInTimeAndGoesOnWhenTheyAreBack) {
  expect_broken_rails();
  expect_log("lost");
  Engine a = open_host('a'), b = open_host('b');
  Stream doomed(a, b, test_seed(), {.timeout = 4s});
  expect_service({&doomed});
  set_link("a0", false);
  set_link("b1", false);
  doomed.step();  // some at least are submitted when there is no rail any more
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(run(
      {&doomed}, [&] { return doomed.outstanding() == 0; }, false))
      << a.dump();
  // The deadline, the drain, and a guest that is slow. Not one that hangs until the peer is lost.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 4s + 5s + 10s);
  doomed.step(false);  // they may all have ended since the last look
  std::printf("both down: %s; %lu not delivered, %lu unknown\n", doomed.first_failure().c_str(),
              static_cast<unsigned long>(doomed.not_delivered()),
              static_cast<unsigned long>(doomed.unknown()));
  EXPECT_GT(doomed.failed(), 0u);
  heal_all();
  doomed.finish();
  Stream again(a, b, test_seed() + 1);
  expect_service({&again});
  again.finish();
  EXPECT_EQ(again.failed(), 0u) << again.first_failure();
}

TEST_F(Rails, ANicRefusesWrongKeysAndBoundsAndOthersGoOn) {
  expect_broken_rails();
  expect_log("refused");
  Engine a = open_host('a'), b = open_host('b'), innocent = open_host('a');
  Stream others(innocent, b, test_seed());
  expect_service({&others});
  const MemoryRegion source = block(a, 65536), target = block(b, 4096);
  std::ranges::fill(source.bytes(), std::byte{0x66});
  const PeerId peer = *a.connect(b.address());
  const auto wrong_rkey = forged(target, with_wrong_keys);
  const auto too_large = forged(target, [](control::RegionDesc& desc) {
    desc.size_bytes = 65536;
    desc.region = RegionId(desc.region.slot, desc.region.generation + 1);
  });
  const std::pair<const std::vector<std::byte>&, uint64_t> cases[] = {{wrong_rkey, 4096},
                                                                      {too_large, 65536}};
  for (const auto& [desc, size_bytes] : cases) {
    const auto region = a.import_region(peer, desc);
    ASSERT_TRUE(region) << region.error().what;
    Batch batch = *a.make_batch();
    Counter counter = *b.make_counter();
    ASSERT_TRUE(a.submit(Write{.source = source.at(0),
                               .target = region->at(0),
                               .size_bytes = size_bytes,
                               .imm = counter.key(),
                               .unsplit = true,
                               .batch = batch}));
    const auto ended = a.wait(batch, 30s);
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code, Errc::kRemoteAccess) << ended.error().what;
    EXPECT_EQ(batch.unknown(), 0u);
    EXPECT_EQ(counter.count(), 0u);
    expect_service({&others});
  }
  EXPECT_EQ(std::ranges::count(target.bytes(), std::byte{0x66}), 0);
  others.finish();
  EXPECT_EQ(others.failed(), 0u) << others.first_failure();
  // The refused sender goes on too, with valid writes.
  Stream allowed(a, b, test_seed() + 1);
  expect_service({&allowed});
  allowed.finish();
  EXPECT_EQ(allowed.failed(), 0u) << allowed.first_failure();
}

TEST_F(Rails, ManyPeersWriteToOneAndItToThem) {
  const uint32_t peers = std::min(16 * rounds(), 64u);
  Engine a = open_host('a');
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<Stream*> all;
  for (uint32_t i = 0; i < peers; ++i) {
    engines.push_back(std::make_unique<Engine>(open_host('b')));
    for (const bool out : {true, false}) {
      Engine &from = out ? a : *engines.back(), &to = out ? *engines.back() : a;
      streams.push_back(std::make_unique<Stream>(from, to, test_seed() + i,
                                                 Stream::Options{.slots = 2, .bytes_max = 4096}));
      all.push_back(streams.back().get());
    }
  }
  expect_service(all, 8);
  for (Stream* stream : all) {
    stream->finish();
    EXPECT_EQ(stream->failed(), 0u) << stream->first_failure();
  }
  EXPECT_EQ(a.peers().size(), peers);
}

TEST_F(Rails, PeersOfTheSameHostAreReachedByMemoryAndOthersByNics) {
  expect_log("a path broke");  // when the peer has closed
  const auto open = [] {
    Config config = guest_config('a');
    config.networks.insert(config.networks.begin(), {.provider = "shm"});
    auto engine = Engine::open(config);
    EXPECT_TRUE(engine) << engine.error().what;
    return *std::move(engine);
  };
  // All of them have one kernel, so the other host is one without shared memory.
  Engine a = open(), neighbour = open(), b = open_host('b');
  Stream near(a, neighbour, test_seed()), far(a, b, test_seed() + 1);
  expect_service({&near, &far});
  near.finish();
  far.finish();
  EXPECT_EQ(near.failed() + far.failed(), 0u) << near.first_failure() << far.first_failure();
  EXPECT_EQ(a.peer_info(near.peer())->routes[0].network, "shm");
  EXPECT_EQ(a.peer_info(far.peer())->routes[0].network, "verbs");
}

}  // namespace
}  // namespace fabric::test::rails_test

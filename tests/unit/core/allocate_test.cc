#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>

#include <gtest/gtest.h>

#include <fabric/fabric.h>
#include <fabric/sim.h>

#include "base/shared_pages.h"
#include "support/log_guard.h"
#include "support/sanitizers.h"

// Whose pages allocate() gives, and when they go (P13).

namespace fabric::allocate_test {
namespace {

using namespace std::chrono_literals;
using test::expect_log;
using test::logged;

constexpr uint64_t kSize = 64 << 10;

bool mapped(const void* address) {
  unsigned char in = 0;
  return ::mincore(const_cast<void*>(address), 1, &in) == 0;
}

class Allocate : public testing::TestWithParam<bool> {
 protected:
  Engine open(bool maps_memory) {
    Config config;
    config.log_sink = test::test_log_sink();
    config.drain_timeout = 1s;
    config.regions_max = 2;
    sim::NicModel model;
    model.maps_memory = maps_memory;
    return *world.open(world.add_node(1, model), config);
  }

  sim::World world;
  Engine a = open(GetParam()), b = open(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Pages, Allocate, testing::Bool(),
                         [](const auto& pages) { return pages.param ? "Shared" : "Anonymous"; });

TEST_P(Allocate, GivesSharedPagesWhereARailMapsThem) {
  for (const bool huge : {false, true}) {
    for (const uint64_t size : {uint64_t{1}, kSize + 1, uint64_t{3} << 20}) {
      MemoryRegion region = *a.allocate({.size_bytes = size, .huge_pages = huge});
      ASSERT_EQ(region.bytes().size(), size);
      const auto place = SharedPages::find(region.bytes().data(), size);
      EXPECT_EQ(place.has_value(), GetParam());
      if (place) {
        EXPECT_EQ(place->offset, 0u);
      }
      region.bytes().front() = region.bytes().back() = std::byte{1};
    }
  }
}

TEST_P(Allocate, OneNetworkOfSeveralIsEnough) {
  Config config;
  config.log_sink = test::test_log_sink();
  sim::NicModel model;
  model.maps_memory = GetParam();
  Engine engine =
      *world.open(world.add_node({{.name = "far"}, {.name = "near", .model = model}}), config);
  MemoryRegion region = *engine.allocate({.size_bytes = kSize});
  EXPECT_EQ(SharedPages::find(region.bytes().data(), kSize).has_value(), GetParam());
}

TEST_P(Allocate, ItsPagesAreWrittenLikeAnyOther) {
  MemoryRegion source = *a.allocate({.size_bytes = kSize});
  MemoryRegion target = *b.allocate({.size_bytes = kSize});
  std::ranges::fill(source.bytes(), std::byte{0x5a});
  const PeerId peer = *a.connect(b.address());
  Batch batch = *a.make_batch();
  ASSERT_TRUE(a.submit(Write{.source = source.at(0),
                             .target = a.import_region(peer, *target.desc())->at(0),
                             .size_bytes = kSize,
                             .batch = batch}));
  ASSERT_TRUE(a.wait(batch, 1s));
  EXPECT_TRUE(std::ranges::equal(source.bytes(), target.bytes()));
}

TEST_P(Allocate, ItsPagesGoWithTheProof) {
  const void* address = nullptr;
  {
    MemoryRegion region = *a.allocate({.size_bytes = kSize});
    address = region.bytes().data();
    EXPECT_TRUE(mapped(address));
  }
  EXPECT_FALSE(mapped(address));
  EXPECT_FALSE(SharedPages::find(address, 1));
}

TEST_P(Allocate, WithoutAProofItsPagesAreLeakedOnPurpose) {
  expect_log("memory is leaked");
  const void* address = nullptr;
  {
    MemoryRegion region = *a.allocate({.size_bytes = kSize});
    address = region.bytes().data();
    ASSERT_TRUE(world.at(world.now(), sim::Fault::late_proof(0, 3s)));
    world.run_for(1us);
  }
  EXPECT_EQ(logged("memory is leaked"), 1u);
  EXPECT_TRUE(mapped(address));
  world.run_for(5s);
  EXPECT_TRUE(mapped(address)) << "leaked memory must stay mapped";
  EXPECT_EQ(SharedPages::find(address, kSize).has_value(), GetParam());
}

TEST_P(Allocate, InACallbackItsPagesGoWhenTheProofComes) {
  auto region = std::make_unique<MemoryRegion>(*a.allocate({.size_bytes = kSize}));
  const void* const address = region->bytes().data();
  ASSERT_TRUE(world.at(world.now(), sim::Fault::late_proof(0, 100ms)));
  world.run_for(1us);
  struct Drop {
    std::unique_ptr<MemoryRegion>& region;
    void on(const Event&) { region.reset(); }
  } drop{region};
  ASSERT_TRUE(a.submit(Timer{.after = 1us, .notify = Notify::call<&Drop::on>(&drop)}));
  world.run_for(50ms);
  EXPECT_EQ(region, nullptr);
  EXPECT_TRUE(mapped(address));
  world.run_for(100ms);
  EXPECT_FALSE(mapped(address));
  EXPECT_FALSE(SharedPages::find(address, 1));
}

TEST_P(Allocate, NothingStaysOfOneThatCouldNotBeRegistered) {
  MemoryRegion one = *a.allocate({.size_bytes = kSize});
  MemoryRegion two = *a.allocate({.size_bytes = kSize});
  const auto files = [] {
    uint32_t open = 0;
    for (int fd = 0; fd < 1024; ++fd) open += ::fcntl(fd, F_GETFD) != -1 ? 1 : 0;
    return open;
  };
  const uint32_t before = files();
  const auto three = a.allocate({.size_bytes = kSize});
  EXPECT_EQ(three.error().code, Errc::kExhausted);
  EXPECT_EQ(files(), before);
}

TEST_P(Allocate, WithoutADescriptorItGivesOrdinaryPagesAndSaysWhy) {
  if (test::kAddressSanitizer) GTEST_SKIP() << "the sanitizer needs a descriptor to check memory";
  expect_log("allocated memory cannot be mapped by peers");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  auto region = a.allocate({.size_bytes = kSize});
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(region);
  EXPECT_FALSE(SharedPages::find(region->bytes().data(), 1));
  EXPECT_EQ(logged("allocated memory cannot be mapped by peers"), GetParam() ? 1u : 0u);
  EXPECT_EQ(logged("memfd_create (24)"), GetParam() ? 1u : 0u);
}

TEST_P(Allocate, MoreThanThereIsIsRefused) {
  EXPECT_EQ(a.allocate({.size_bytes = uint64_t{1} << 46}).error().code, Errc::kExhausted);
  EXPECT_EQ(a.allocate({.size_bytes = UINT64_MAX}).error().code, Errc::kTooLarge);
}

}  // namespace
}  // namespace fabric::allocate_test

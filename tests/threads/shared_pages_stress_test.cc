#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/shared_pages.h"

namespace fabric::shared_pages_stress_test {
namespace {

// Some make and unmap blocks, others look up their addresses: what is found is a file that is open
// and has the block's size, and never that of the block which has the address next.
TEST(SharedPagesStress, APlaceIsNeverThatOfAnotherBlock) {
  constexpr uint32_t kRounds = 2000;
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  std::array<std::atomic<void*>, 2> latest{};
  std::atomic<uint32_t> running{2};
  std::vector<std::thread> makers, lookers;
  for (uint32_t t = 0; t < 2; ++t) {
    const auto make = [&, t] {
      for (uint32_t round = 0; round < kRounds; ++round) {
        auto pages = SharedPages::allocate((1 + (round + t) % 3) * page, false);
        ASSERT_TRUE(pages);
        latest[t].store(pages->address());
        const auto place = SharedPages::find(pages->address(), pages->size_bytes());
        ASSERT_TRUE(place);
        EXPECT_EQ(place->block_bytes, pages->size_bytes());
      }
    };
    makers.emplace_back([&, make] {
      make();
      running.fetch_sub(1);  // also when it has given up
    });
  }
  std::atomic<uint64_t> seen{0};
  for (uint32_t t = 0; t < 2; ++t) {
    lookers.emplace_back([&, t] {
      while (running.load() > 0) {
        const auto place = SharedPages::find(latest[t].load(), 1);
        if (!place) continue;
        struct stat file {};
        ASSERT_EQ(::fstat(place->file->get(), &file), 0);
        ASSERT_EQ(static_cast<uint64_t>(file.st_size), place->block_bytes);
        seen.fetch_add(1);
      }
    });
  }
  for (std::thread& maker : makers) maker.join();
  for (std::thread& looker : lookers) looker.join();
  RecordProperty("seen", static_cast<int>(seen.load()));
}

}  // namespace
}  // namespace fabric::shared_pages_stress_test

#include "providers/shm/ring.h"

#include <set>
#include <type_traits>

#include <gtest/gtest.h>

#include "providers/shm/shared_header.h"

// The layout that two processes share, and the words in it that make an old value tell from a new.

namespace fabric::shm {
namespace {

TEST(ShmRing, HasTheLayoutThatProcessesOfOtherBuildsExpect) {
  EXPECT_TRUE(std::is_standard_layout_v<Ring> && std::is_standard_layout_v<Front>);
  EXPECT_EQ(sizeof(Order), 64u);
  EXPECT_EQ(offsetof(Ring, counts), 64u);
  EXPECT_EQ(offsetof(Ring, orders), 64u + 8 * Ring::kCounts);
  EXPECT_EQ(offsetof(Ring, bounce) % 4096, 0u);
  EXPECT_EQ(sizeof(Ring) % 4096, 0u);
  EXPECT_EQ(sizeof(KeyEntry), 64u);
  EXPECT_EQ(offsetof(Front, sent), 64u);
  EXPECT_EQ(offsetof(Front, paths), 64u + 4 * Front::kOffloadQueues);
  EXPECT_EQ(offsetof(Front, keys), offsetof(Front, paths) + 8 * Front::kPaths);
  EXPECT_TRUE(std::atomic<uint64_t>::is_always_lock_free);
}

TEST(ShmRing, AFreshRingHasNothingInIt) {
  for (const uint32_t imm : {0u, 1u, UINT32_MAX}) EXPECT_NE(Ring::count_word(0, imm) >> 32, 0u);
  EXPECT_NE(Order::word_of(0, Order::kPublished), 0u);
}

TEST(ShmRing, AWordOfTheLapBeforeIsNotTakenForANewOne) {
  for (const uint64_t at : {uint64_t{0}, uint64_t{1}, uint64_t{Ring::kCounts - 1}}) {
    const uint64_t next = at + Ring::kCounts;
    EXPECT_EQ(at % Ring::kCounts, next % Ring::kCounts);
    EXPECT_NE(Ring::count_word(at, 7) >> 32, Ring::count_word(next, 7) >> 32);
    EXPECT_NE(Ring::count_word(at, UINT32_MAX) >> 32, Ring::count_word(next, 0) >> 32);
  }
  std::set<uint64_t> words;
  for (uint64_t lap = 0; lap < 3; ++lap) {
    for (uint32_t state = Order::kPublished; state <= Order::kWithdrawn; ++state) {
      words.insert(Order::word_of(5 + lap * Ring::kOrders, static_cast<Order::State>(state)));
    }
  }
  EXPECT_EQ(words.size(), 3u * Order::kWithdrawn);
}

TEST(ShmRing, ACountKeepsAllBitsOfItsImmediate) {
  EXPECT_EQ(static_cast<uint32_t>(Ring::count_word(123, 0xdeadbeef)), 0xdeadbeefu);
  EXPECT_EQ(Order::word_of(3, Order::kDone) >> Order::kStateBits, 3u);
  EXPECT_EQ(Order::word_of(3, Order::kDone) & 7, Order::kDone);
}

}  // namespace
}  // namespace fabric::shm

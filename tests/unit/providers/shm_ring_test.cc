#include "providers/shm/ring.h"

#include <set>
#include <type_traits>

#include <gtest/gtest.h>

#include "providers/shm/shared_header.h"

// The layout that two processes share, and the words that distinguish old values from new ones.

namespace fabric::shm::shm_ring_test {
namespace {

TEST(ShmRing, HasTheLayoutThatProcessesOfOtherBuildsExpect) {
  EXPECT_TRUE(std::is_standard_layout_v<Ring> && std::is_standard_layout_v<SharedHeader>);
  EXPECT_EQ(sizeof(PullRequest), 64u);
  EXPECT_EQ(offsetof(Ring, imms), 64u);
  EXPECT_EQ(offsetof(Ring, pulls), 64u + 8 * Ring::kImms);
  EXPECT_EQ(offsetof(Ring, bounce) % 4096, 0u);
  EXPECT_EQ(sizeof(Ring) % 4096, 0u);
  EXPECT_EQ(sizeof(RkeyEntry), 64u);
  EXPECT_EQ(offsetof(SharedHeader, frames_sent), 64u);
  EXPECT_EQ(offsetof(SharedHeader, path_epochs), 64u + 4 * SharedHeader::kConnections);
  EXPECT_EQ(offsetof(SharedHeader, rkeys),
            offsetof(SharedHeader, path_epochs) + 8 * SharedHeader::kPaths);
  EXPECT_TRUE(std::atomic<uint64_t>::is_always_lock_free);
}

TEST(ShmRing, AFreshRingHasNothingInIt) {
  for (const uint32_t imm : {0u, 1u, UINT32_MAX}) EXPECT_NE(Ring::imm_word(0, imm) >> 32, 0u);
  EXPECT_NE(PullRequest::word_of(0, PullRequest::kPublished), 0u);
}

TEST(ShmRing, AWordOfThePreviousLapIsNotTakenForANewOne) {
  for (const uint64_t at : {uint64_t{0}, uint64_t{1}, uint64_t{Ring::kImms - 1}}) {
    const uint64_t next = at + Ring::kImms;
    EXPECT_EQ(at % Ring::kImms, next % Ring::kImms);
    EXPECT_NE(Ring::imm_word(at, 7) >> 32, Ring::imm_word(next, 7) >> 32);
    EXPECT_NE(Ring::imm_word(at, UINT32_MAX) >> 32, Ring::imm_word(next, 0) >> 32);
  }
  std::set<uint64_t> words;
  for (uint64_t lap = 0; lap < 3; ++lap) {
    for (uint32_t state = PullRequest::kPublished; state <= PullRequest::kWithdrawn; ++state) {
      words.insert(
          PullRequest::word_of(5 + lap * Ring::kPulls, static_cast<PullRequest::State>(state)));
    }
  }
  EXPECT_EQ(words.size(), 3u * PullRequest::kWithdrawn);
}

TEST(ShmRing, AnImmediateKeepsAllItsBits) {
  EXPECT_EQ(static_cast<uint32_t>(Ring::imm_word(123, 0xdeadbeef)), 0xdeadbeefu);
  EXPECT_EQ(PullRequest::word_of(3, PullRequest::kDone) >> PullRequest::kStateBits, 3u);
  EXPECT_EQ(PullRequest::word_of(3, PullRequest::kDone) & 7, PullRequest::kDone);
}

}  // namespace
}  // namespace fabric::shm::shm_ring_test

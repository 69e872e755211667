#include <vector>

#include <gtest/gtest.h>

#include "base/light_mutex.h"
#include "base/membarrier.h"
#include "base/sync.h"
#include "explore/sweep.h"

// LightMutex in all interleavings. It guards plain data: two threads inside at once are a data
// race, and so is a thread that does not see the stores of the previous holder.

namespace fabric {

// membarrier() guarantees that each thread passes a full fence at its current position. For the
// explorer light_fence() is a full fence.
bool can_fence_all_threads() noexcept { return true; }
void fence_all_threads() noexcept { full_fence(); }

namespace {

using interleave::expect_mutants_found;
using interleave::expect_sound;
using interleave::NamedProgram;
using interleave::Program;
using interleave::program;
using interleave::require;

constexpr uint32_t kRebiasAfter = 1;  // the first thread that locks becomes the owner

/// Threads that add to one number, each so many times.
template <int... kTimes>
struct Adders : Program {
  static constexpr int kThreads = sizeof...(kTimes);
  LightMutex mutex{kRebiasAfter};
  Plain<int> sum{0};
  int threads() const override { return kThreads; }
  void thread(int index) override {
    constexpr int kEach[] = {kTimes...};
    for (int i = 0; i < kEach[index]; ++i) {
      mutex.lock();
      sum = sum + 1;
      mutex.unlock();
    }
  }
  void check() override { require(sum == (kTimes + ...), "an addition was lost"); }
};

const std::vector<NamedProgram> kMutex = {program<Adders<2, 1>>("AnOwnerAndAnother", 4),
                                          program<Adders<2, 2>>("TheOwnerChanges", 3),
                                          program<Adders<2, 1, 1>>("TwoRevokeTheBias", 2)};
TEST(ExploreMutex, OneIsInside) { expect_sound(kMutex); }
TEST(ExploreMutex, EveryWeakenedOrderIsFound) { expect_mutants_found(kMutex, {}); }

}  // namespace
}  // namespace fabric

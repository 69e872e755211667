#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "base/futex.h"
#include "base/sync.h"
#include "explore/sweep.h"
#include "providers/shm/arrivals.h"

// A receiver on shm that sleeps until the number of immediates that it waits for has arrived, in
// all interleavings with its senders. A lost wake-up is a sleep without end.

namespace fabric {
namespace {

using interleave::expect_mutants_found;
using interleave::expect_sound;
using interleave::NamedProgram;
using interleave::Program;
using interleave::program;
using interleave::require;

constexpr auto kRelaxed = std::memory_order_relaxed;

/// A receiver, and senders that publish so many immediates each, one at a time. The receiver waits
/// for all of them. The fences are those of the receiver's membarrier().
template <uint32_t... kImms>
struct Senders : Program {
  static constexpr std::array kEach{kImms...};
  static constexpr uint32_t kNeeded = (kImms + ...);
  std::array<Atomic<uint32_t>, sizeof...(kImms)> posted;  // the rings
  Atomic<uint64_t> sleep_epoch{0}, wake_at{0}, arrived{0};
  Atomic<uint32_t> wake_frames{0};  // the sockets
  uint32_t taken = 0;

  int threads() const override { return 1 + static_cast<int>(kEach.size()); }
  void thread(int index) override {
    if (index == 0) {
      receive();
    } else {
      send(static_cast<size_t>(index - 1));
    }
  }
  void check() override { require(taken == kNeeded, "not all were taken"); }

  void send(size_t sender) {
    for (uint32_t i = 1; i <= kEach[sender]; ++i) {
      posted[sender].store(i, kRelaxed);
      full_fence();
      if ((sleep_epoch.load(kRelaxed) & 1) == 0) continue;
      if (!shm::arrivals_wake(arrived, wake_at, 1)) continue;
      wake_frames.fetch_add(1, kRelaxed);
      futex_wake_all(wake_frames);
    }
  }

  void receive() {
    for (;;) {
      const uint32_t frames = wake_frames.load(kRelaxed);
      taken = arrivals();
      if (taken == kNeeded) return;
      wake_at.store(shm::wake_at_after(arrived, kNeeded - taken), kRelaxed);
      sleep_epoch.store(sleep_epoch.load(kRelaxed) + 1, kRelaxed);
      full_fence();
      if (arrivals() == taken) futex_wait(wake_frames, frames, nullptr);
      sleep_epoch.store(sleep_epoch.load(kRelaxed) + 1, kRelaxed);
    }
  }
  uint32_t arrivals() const {
    uint32_t sum = 0;
    for (const Atomic<uint32_t>& one : posted) sum += one.load(kRelaxed);
    return sum;
  }
};

const std::vector<NamedProgram> kArrivals = {
    program<Senders<2>>("OneSenderTwice", 4),
    program<Senders<1, 1>>("TwoSenders", 2),
    program<Senders<2, 1>>("TwoSendersOneOfThemTwice", 2),
};
TEST(ExploreArrivals, TheLastOneThatIsNeededWakes) { expect_sound(kArrivals); }
TEST(ExploreArrivals, EveryWeakenedOrderIsFound) {
  expect_mutants_found(kArrivals, {{"send fetch_add torn into load and store",
                                    "it stands for a socket: of two frames one is enough"}});
}

}  // namespace
}  // namespace fabric

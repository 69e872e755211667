#include <array>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "base/sync.h"
#include "explore/interleave.h"

// The explorer itself: what the model of memory allows and what it forbids, on the small programs
// that everybody knows.

namespace fabric::interleave {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;
constexpr auto kSeqCst = std::memory_order_seq_cst;

using Outcomes = std::set<std::vector<int>>;
Outcomes* outcomes = nullptr;

struct Litmus : Program {
  Atomic<int> x{0}, y{0};
  std::array<int, 2> read{};
  int threads() const override { return 2; }
  void check() override { outcomes->insert({read[0], read[1]}); }
};

template <class S>
Outcomes outcomes_of(const Options& options = {}) {
  Outcomes seen;
  outcomes = &seen;
  const Report report = explore([] { return std::make_unique<S>(); }, options);
  EXPECT_EQ(report.failure, "");
  EXPECT_TRUE(report.complete);
  return seen;
}

template <std::memory_order kStore, std::memory_order kLoad>
struct MessagePassing : Litmus {
  void thread(int index) override {
    if (index == 0) {
      x.store(1, kRelaxed);
      y.store(1, kStore);
    } else {
      read[0] = y.load(kLoad);
      read[1] = x.load(kRelaxed);
    }
  }
};
TEST(ExploreModel, AMessageComesAfterItsFlagOnlyWithReleaseAndAcquire) {
  const std::vector<int> early{1, 0};
  EXPECT_TRUE((outcomes_of<MessagePassing<kRelaxed, kRelaxed>>().contains(early)));
  EXPECT_TRUE((outcomes_of<MessagePassing<kRelease, kRelaxed>>().contains(early)));
  EXPECT_TRUE((outcomes_of<MessagePassing<kRelaxed, kAcquire>>().contains(early)));
  EXPECT_EQ((outcomes_of<MessagePassing<kRelease, kAcquire>>()),
            (Outcomes{{0, 0}, {0, 1}, {1, 1}}));
}

template <std::memory_order kStore, std::memory_order kLoad, bool kFences>
struct StoreBuffering : Litmus {
  void thread(int index) override {
    (index == 0 ? x : y).store(1, kStore);
    if (kFences) full_fence();
    read[index] = (index == 0 ? y : x).load(kLoad);
  }
};
TEST(ExploreModel, BothMayMissTheOtherUnlessThereAreFences) {
  const std::vector<int> both{0, 0};
  EXPECT_TRUE((outcomes_of<StoreBuffering<kRelease, kAcquire, false>>().contains(both)));
  const Outcomes rest{{0, 1}, {1, 0}, {1, 1}};
  EXPECT_EQ((outcomes_of<StoreBuffering<kRelaxed, kRelaxed, true>>()), rest);
  EXPECT_EQ((outcomes_of<StoreBuffering<kSeqCst, kSeqCst, false>>()), rest);
}

struct TwoLooks : Litmus {
  void thread(int index) override {
    if (index == 0) {
      x.store(1, kRelaxed);
      x.store(2, kRelaxed);
    } else {
      read = {x.load(kRelaxed), x.load(kRelaxed)};
    }
  }
};
TEST(ExploreModel, OnePlaceNeverGoesBack) {
  EXPECT_EQ(outcomes_of<TwoLooks>(), (Outcomes{{0, 0}, {0, 1}, {0, 2}, {1, 1}, {1, 2}, {2, 2}}));
}

// A read-modify-write in between hands on what it did not acquire itself; a store does not.
template <bool kModify>
struct Sequence : Litmus {
  int threads() const override { return 3; }
  void thread(int index) override {
    if (index == 0) {
      x.store(1, kRelaxed);
      y.store(1, kRelease);
    } else if (index == 1) {
      int one = 1;
      if (kModify) y.compare_exchange_strong(one, 2, kRelaxed, kRelaxed);
      if (!kModify && y.load(kRelaxed) == 1) y.store(2, kRelaxed);
    } else {
      read[0] = y.load(kAcquire);
      read[1] = x.load(kRelaxed);
    }
  }
};
TEST(ExploreModel, AReleaseIsCarriedOnByReadModifyWritesAlone) {
  const std::vector<int> early{2, 0};
  EXPECT_FALSE(outcomes_of<Sequence<true>>().contains(early));
  EXPECT_TRUE(outcomes_of<Sequence<false>>().contains(early));
}

struct TwoAdds : Litmus {
  void thread(int) override { x.fetch_add(1, kRelaxed); }
  void check() override { outcomes->insert({x.load(kRelaxed)}); }
};
TEST(ExploreModel, AnAddIsLostOnlyWhenItIsTorn) {
  EXPECT_EQ(outcomes_of<TwoAdds>(), (Outcomes{{2}}));
  Outcomes unused;
  outcomes = &unused;
  const Site add = explore([] { return std::make_unique<TwoAdds>(); }).sites.at(0).site;
  EXPECT_EQ((outcomes_of<TwoAdds>({.mutant = {add, Weakening::kTorn}})), (Outcomes{{1}, {2}}));
}

struct Guarded : Litmus {
  Mutex mutex;
  Plain<int> data{0};
  void thread(int) override {
    mutex.lock();
    data = data + 1;
    mutex.unlock();
  }
  void check() override { require(data == 2, "lost"); }
};
struct Unguarded : Guarded {
  void thread(int) override { data = data + 1; }
};
TEST(ExploreModel, PlainDataNeedsALock) {
  EXPECT_EQ(explore([] { return std::make_unique<Guarded>(); }).failure, "");
  EXPECT_NE(explore([] { return std::make_unique<Unguarded>(); }).failure, "");
}

// The bound leaves out orders and invents none; the short cut leaves out none that matter.
TEST(ExploreModel, ABoundOnPreemptionsTriesFewerOrders) {
  using Scenes = StoreBuffering<kRelaxed, kRelaxed, true>;
  EXPECT_EQ((outcomes_of<Scenes>({.preemptions_max = 0})), (Outcomes{{0, 1}, {1, 0}}));
  EXPECT_EQ((outcomes_of<Scenes>({.preemptions_max = 9})), (outcomes_of<Scenes>()));
  EXPECT_EQ((outcomes_of<Sequence<true>>({.preemptions_max = 9})), (outcomes_of<Sequence<true>>()));
}

}  // namespace
}  // namespace fabric::interleave

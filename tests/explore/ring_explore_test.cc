#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include "base/driver.h"
#include "base/event_count.h"
#include "base/free_list.h"
#include "base/ring.h"
#include "base/spsc.h"
#include "base/sync.h"
#include "explore/sweep.h"
#include "runtime/waker.h"

// Rings, the free list, EventCount and Waker in all interleavings. The values in the rings are
// plain data to the explorer, so a cell that is reused too early is detected as well as one read
// too early.

namespace fabric {

// The Waker without the kernel: one word instead of the eventfd.
namespace {
Atomic<uint32_t>* woken = nullptr;
}
namespace runtime {
Waker::~Waker() = default;
void Waker::write() noexcept {
  woken->store(1, std::memory_order_relaxed);
  interleave::futex_wake(woken->location());
}
void Waker::wait(const std::vector<int>&, int64_t) noexcept {
  interleave::futex_wait(woken->location(), 0);
  woken->store(0, std::memory_order_relaxed);
}
}  // namespace runtime

namespace {

using interleave::expect_mutants_found;
using interleave::expect_sound;
using interleave::NamedProgram;
using interleave::Program;
using interleave::program;
using interleave::require;

// --- rings --------------------------------------------------------------------------------------

// Three values through two cells, so that one of them is used twice.
struct TwoProducers : Program {
  MpscRing<uint32_t> ring{2};
  std::vector<uint32_t> got;
  int threads() const override { return 3; }
  void thread(int index) override {
    if (index == 0) {
      while (!ring.push(1)) yield_thread();
    } else if (index == 1) {
      const std::array<uint32_t, 2> both{2, 3};
      while (!ring.push_all(both)) yield_thread();
    } else {
      for (uint32_t taken = 0; taken < 3;) {
        uint32_t value = 0;
        if (ring.pop(value)) {
          ++taken;
          got.push_back(value);
        } else {
          yield_thread();
        }
      }
    }
  }
  void check() override {
    using V = std::vector<uint32_t>;
    require(got == V{1, 2, 3} || got == V{2, 3, 1}, "lost, duplicated, or inside a span");
    require(ring.empty(), "the ring is not empty");
  }
};

/// Three values through a ring that holds fewer, from one thread to another.
template <class Ring, uint32_t kRoom>
struct InOrder : Program {
  Ring ring{kRoom};
  uint32_t next = 1;
  int threads() const override { return 2; }
  void thread(int index) override {
    for (uint32_t i = 1; i <= 3; ++i) {
      if (index == 0) {
        while (!ring.push(i)) yield_thread();
      } else {
        uint32_t value = 0;
        while (!ring.pop(value)) yield_thread();
        require(value == next++, "out of order");
      }
    }
  }
  void check() override { require(next == 4 && ring.empty(), "lost"); }
};
using OneProducerWrapsAround = InOrder<MpscRing<uint32_t>, 2>;
using OneToOne = InOrder<SpscRing<uint32_t>, 1>;

// A consumer may act on a look alone, before it pops.
template <class Ring>
struct LookBeforeThePop : Program {
  Ring ring{2};
  Plain<int> beside{0};
  int threads() const override { return 2; }
  void thread(int index) override {
    if (index == 0) {
      beside = 1;
      ring.push(1);
      return;
    }
    while (ring.empty()) yield_thread();
    require(beside == 1, "not empty before the value was published");
    uint32_t value = 0;
    require(ring.pop(value), "pop() failed although the ring was not empty");
  }
  void check() override { require(ring.empty(), "the ring is not empty"); }
};

const std::vector<NamedProgram> kMpsc = {
    program<OneProducerWrapsAround>("OneProducerWrapsAround"),
    program<LookBeforeThePop<MpscRing<uint32_t>>>("LookBeforeThePop"),
    program<TwoProducers>("TwoProducers")};
TEST(ExploreRing, ManyProducersLoseNothing) { expect_sound(kMpsc); }
TEST(ExploreRing, EveryWeakenedOrderOfManyProducersIsFound) { expect_mutants_found(kMpsc, {}); }

const std::vector<NamedProgram> kSpsc = {
    program<OneToOne>("OneToOne"),
    program<LookBeforeThePop<SpscRing<uint32_t>>>("LookBeforeThePop")};
TEST(ExploreRing, OneProducerLosesNothing) { expect_sound(kSpsc); }
TEST(ExploreRing, EveryWeakenedOrderOfOneProducerIsFound) { expect_mutants_found(kSpsc, {}); }

// --- free list ----------------------------------------------------------------------------------

// One holds what it looked at while the other takes two and gives the first back: ABA.
struct TakesTwoGivesOneBack : Program {
  FreeList list{2};
  std::array<Plain<int>, 2> contents;
  std::array<int, 2> owners{};
  int threads() const override { return 2; }
  std::optional<uint32_t> take() {
    uint32_t slot = 0;
    if (!list.pop(slot)) return std::nullopt;
    require(++owners[slot] == 1, "two owners");
    contents[slot] = contents[slot] + 1;
    return slot;
  }
  void give(uint32_t slot) {
    --owners[slot];
    list.push(slot);
  }
  void thread(int index) override {
    const auto first = take();
    if (index == 0) return;
    take();
    if (first) give(*first);
  }
  void check() override {
    uint32_t left = 0;
    while (left < 2 && take()) ++left;
    require(owners[0] == 1 && owners[1] == 1, "a slot is lost");
    require(!take(), "a slot is in the list twice");
  }
};

struct TwoGiveBack : TakesTwoGivesOneBack {
  std::array<std::optional<uint32_t>, 2> held{take(), take()};
  void thread(int index) override { give(*held[index]); }
};

// Both at once, while the other holds on to the first of them.
struct TakesTwoAtOnce : TakesTwoGivesOneBack {
  void thread(int index) override {
    if (index == 0) {
      take();
      return;
    }
    std::array<uint32_t, 2> slots{};
    const uint32_t n = list.pop_all(slots);
    for (uint32_t i = 0; i < n; ++i) {
      require(++owners[slots[i]] == 1, "two owners");
      contents[slots[i]] = contents[slots[i]] + 1;
      --owners[slots[i]];
    }
    list.push_all(std::span(slots).first(n));
  }
};

const std::vector<NamedProgram> kFreeList = {program<TakesTwoGivesOneBack>("TakesTwoGivesOneBack"),
                                             program<TwoGiveBack>("TwoGiveBack"),
                                             program<TakesTwoAtOnce>("TakesTwoAtOnce")};
TEST(ExploreFreeList, ASlotHasOneOwner) { expect_sound(kFreeList); }
TEST(ExploreFreeList, EveryWeakenedOrderIsFound) { expect_mutants_found(kFreeList, {}); }

// --- sleeping -----------------------------------------------------------------------------------

// What is published is relaxed: the event_count alone must make it seen.
struct WakeMeetsTheSleeper : Program {
  EventCount event_count;
  Atomic<uint32_t> published{0};
  int threads() const override { return 2; }
  void thread(int index) override {
    if (index == 0) {
      published.store(1, std::memory_order_relaxed);
      event_count.wake();
      return;
    }
    while (published.load(std::memory_order_relaxed) == 0) {
      const EventCount::Ticket ticket = event_count.prepare();
      if (published.load(std::memory_order_relaxed) != 0) break;
      event_count.sleep(ticket, kNeverNs);
    }
  }
  void check() override {}
};

// A second sleeper comes for a second event, between a wake and the sleep of the first.
struct TwoSleepersTwoEvents : Program {
  EventCount event_count;
  Atomic<uint32_t> published{0};
  int threads() const override { return 3; }
  void wait_for(uint32_t event) {
    for (;;) {
      const EventCount::Ticket ticket = event_count.prepare();
      if (published.load(std::memory_order_relaxed) >= event) break;
      event_count.sleep(ticket, kNeverNs);
    }
  }
  void thread(int index) override {
    if (index != 0) return wait_for(static_cast<uint32_t>(index));
    for (uint32_t event = 1; event <= 2; ++event) {
      published.store(event, std::memory_order_relaxed);
      event_count.wake();
    }
  }
  void check() override {}
};

// One sleeper, two who wake it: the slower of them must not undo what happened since.
struct TwoWakersOneSleeper : TwoSleepersTwoEvents {
  void thread(int index) override {
    if (index == 2) return wait_for(2);
    published.fetch_add(1, std::memory_order_relaxed);
    event_count.wake();
  }
};
const std::vector<NamedProgram> kEventCount = {
    program<WakeMeetsTheSleeper>("WakeMeetsTheSleeper"),
    program<TwoSleepersTwoEvents>("TwoSleepersTwoEvents", 2),
    program<TwoWakersOneSleeper>("TwoWakersOneSleeper", 3)};
TEST(ExploreEventCount, NoWakeUpIsLost) { expect_sound(kEventCount); }
TEST(ExploreEventCount, EveryWeakenedOrderIsFound) { expect_mutants_found(kEventCount, {}); }

struct PublisherMeetsTheSleeper : Program {
  runtime::Waker waker;
  Atomic<uint32_t> word{0};
  Atomic<uint32_t> published{0};
  PublisherMeetsTheSleeper() { woken = &word; }
  int threads() const override { return 2; }
  void thread(int index) override {
    for (uint32_t event = 1; event <= 2; ++event) {
      if (index == 0) {
        published.store(event, std::memory_order_relaxed);
        waker.wake();
        continue;
      }
      while (published.load(std::memory_order_relaxed) < event) {
        waker.begin_sleep();
        if (published.load(std::memory_order_relaxed) < event) waker.wait({}, kNeverNs);
        waker.end_sleep();
      }
    }
  }
  void check() override {}
};
const std::vector<NamedProgram> kWaker = {
    program<PublisherMeetsTheSleeper>("PublisherMeetsTheSleeper")};
TEST(ExploreWaker, NoWakeIsMissed) { expect_sound(kWaker); }
TEST(ExploreWaker, EveryWeakenedOrderIsFound) {
  expect_mutants_found(kWaker, {{"wake_after_fence exchange without its write",
                                 "thins out the system calls and does nothing else"}});
}

}  // namespace
}  // namespace fabric

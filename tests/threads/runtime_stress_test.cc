#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/driver.h"
#include "base/ring.h"
#include "base/spsc.h"
#include "providers/self/handles.h"
#include "runtime/inline.h"
#include "runtime/threads.h"
#include "support/fake_progress.h"

namespace fabric::runtime::runtime_stress_test {
namespace {

constexpr uint32_t kThreads = 3;
constexpr int64_t kPatienceNs = 60'000'000'000;

/// What an engine does: takes requests from a ring in its turn, hands them to callbacks.
class Echo final : public Progress {
 public:
  explicit Echo(Driver& driver) : driver_(driver) {}

  void submit(uint32_t request) {
    while (!requests_.push(request)) std::this_thread::yield();
    driver_.wake(*this);
  }

  TurnResult turn(int64_t) noexcept override {
    ++plain_turns_;  // plain memory: two turns at once would be a race that TSan sees
    uint32_t n = 0;
    for (uint32_t request = 0; n < 4 && requests_.pop(request); ++n) {
      while (!reports_.push(request)) std::this_thread::yield();
    }
    if (n != 0) driver_.wake_callbacks(*this);
    return {.done = n};
  }
  uint32_t run_callbacks() noexcept override {
    ++plain_looks_;
    uint32_t n = 0;
    for (uint32_t request = 0; reports_.pop(request); ++n) answered_[request].fetch_add(1);
    return n;
  }
  bool arm() noexcept override { return requests_.empty(); }
  void wait_fds(std::vector<int>&) const override {}

  uint32_t answered(uint32_t request) const { return answered_[request].load(); }
  uint64_t plain() const { return plain_turns_ + plain_looks_; }

 private:
  Driver& driver_;
  MpscRing<uint32_t> requests_{8};
  // Holds every request of a turn: with an inline driver no other thread empties it.
  SpscRing<uint32_t> reports_{64};
  std::array<std::atomic<uint32_t>, kThreads> answered_{};
  uint64_t plain_turns_ = 0, plain_looks_ = 0;
};

// One request at a time and no spinning: worker and callback thread fall asleep over and over, each
// round is a chance to lose a wake-up. A lost request of the worker costs 50 ms, a lost one of the
// callback thread everything.
TEST(ThreadsDriverStress, AnswersEveryRequestWithoutWaitingForTheBoundOfASleep) {
  constexpr uint32_t kRequests = 2000;
  ThreadsDriver driver;
  Echo engine(driver);
  ASSERT_TRUE(driver.attach(engine, {}));
  std::atomic<uint32_t> late{0}, lost{0};
  std::vector<std::thread> clients;
  for (uint32_t t = 0; t < kThreads; ++t) {
    clients.emplace_back([&, t] {
      for (uint32_t i = 1; i <= kRequests && lost == 0; ++i) {
        const int64_t start = monotonic_ns();
        engine.submit(t);
        while (engine.answered(t) < i && lost == 0) {
          if (monotonic_ns() - start > kPatienceNs) ++lost;
          std::this_thread::yield();
        }
        if (monotonic_ns() - start > kSleepMaxNs) ++late;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  driver.detach(engine);
  EXPECT_EQ(lost, 0u);
  // A busy machine may keep a thread off its core for that long now and then.
  EXPECT_LT(late, kThreads * kRequests / 100);
  EXPECT_GT(engine.plain(), 0u);
}

TEST(ThreadsDriverStress, DetachesUnderFireFromWakes) {
  ThreadsDriver driver;
  test::FakeProgress engine;
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  for (uint32_t t = 0; t < kThreads; ++t) {
    others.emplace_back([&] {
      while (!stop) {
        engine.work = 1;
        driver.wake(engine);
        engine.due = 1;
        driver.wake_callbacks(engine);
        std::this_thread::yield();
      }
    });
  }
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(driver.attach(engine, {.spin_ns = i % 3 * 1000}));
    const uint32_t turns = engine.turns;
    while (engine.turns == turns) std::this_thread::yield();
    driver.detach(engine);
    const uint32_t after = engine.turns + engine.looks;
    driver.wake(engine);
    EXPECT_EQ(engine.turns + engine.looks, after);
  }
  stop = true;
  for (std::thread& other : others) other.join();
}

TEST(ThreadsDriverStress, RunsJobsOfManyThreadsOneAfterAnother) {
  uint64_t plain = 0;  // plain memory: two jobs at once would be a race that TSan sees
  {
    ThreadsDriver driver;
    std::vector<std::thread> others;
    for (uint32_t t = 0; t < kThreads; ++t) {
      others.emplace_back([&] {
        for (int i = 0; i < 500; ++i) driver.offload([&plain] { ++plain; });
      });
    }
    for (std::thread& other : others) other.join();
  }
  EXPECT_EQ(plain, kThreads * 500u);
}

// A last job may need another queue, while the driver is already waiting for the queues to end.
TEST(ThreadsDriverStress, JobsThatOffloadToOtherQueuesWhileTheDriverClosesAllRun) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<uint32_t> ran{0};
    {
      ThreadsDriver driver;
      for (uint32_t queue = 1; queue < Driver::kOffloadQueues; queue += 2) {
        driver.offload(
            [&, queue] {
              std::this_thread::yield();
              driver.offload([&] { ++ran; }, (queue + 3) % Driver::kOffloadQueues);
              ++ran;
            },
            queue);
      }
    }
    ASSERT_EQ(ran.load(), Driver::kOffloadQueues - 1) << "every other queue must have run";
  }
}

// Every client submits and drives; the one that holds the turn lock runs all turns.
TEST(InlineDriverStress, SeveralThreadsMayWaitAtOnce) {
  constexpr uint32_t kRequests = 500;
  InlineDriver driver;
  Echo engine(driver);
  ASSERT_TRUE(driver.attach(engine, {}));
  std::atomic<uint32_t> met{0};
  std::vector<std::thread> clients;
  const int64_t start = monotonic_ns();
  for (uint32_t t = 0; t < kThreads; ++t) {
    clients.emplace_back([&, t] {
      for (uint32_t i = 1; i <= kRequests; ++i) {
        engine.submit(t);
        met += driver.drive([&] { return engine.answered(t) == i; }, start + kPatienceNs);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(met, kThreads * kRequests);
  // Were each wait to end by the bound of a sleep, it would be more than twice this.
  EXPECT_LT(monotonic_ns() - start, kRequests * kSleepMaxNs / 2);
  driver.detach(engine);
}

TEST(InlineDriverStress, ASubmitFromAnotherThreadWakesADriverThatSleeps) {
  constexpr uint32_t kRequests = 1000;
  InlineDriver driver;
  Echo engine(driver);
  ASSERT_TRUE(driver.attach(engine, {}));
  std::atomic<uint32_t> late{0};
  std::thread client([&] {
    for (uint32_t i = 1; i <= kRequests; ++i) {
      const int64_t start = monotonic_ns();
      engine.submit(0);
      while (engine.answered(0) < i && monotonic_ns() - start < kPatienceNs) {
        std::this_thread::yield();
      }
      if (monotonic_ns() - start > kSleepMaxNs) ++late;
    }
  });
  EXPECT_TRUE(
      driver.drive([&] { return engine.answered(0) == kRequests; }, monotonic_ns() + kPatienceNs));
  client.join();
  EXPECT_LT(late, kRequests / 100);
  driver.detach(engine);
}

TEST(InlineDriverStress, AttachesAndDetachesWhileAnotherThreadDrives) {
  InlineDriver driver;
  test::FakeProgress resident;
  ASSERT_TRUE(driver.attach(resident, {}));
  std::atomic<bool> stop{false};
  std::thread driving([&] {
    while (!stop) driver.drive([&] { return stop.load(); }, monotonic_ns() + kPatienceNs);
  });
  const int64_t start = monotonic_ns();
  for (int i = 0; i < 100; ++i) {
    auto guest = std::make_unique<test::FakeProgress>();
    ASSERT_TRUE(driver.attach(*guest, {}));
    while (guest->turns == 0) std::this_thread::yield();
    driver.detach(*guest);  // the guest is freed: a turn after this is a use after free
  }
  // A guest waits for the sleeping driver to be woken, not for the bound of its sleep.
  EXPECT_LT(monotonic_ns() - start, 100 * kSleepMaxNs);
  stop = true;
  driver.wake(resident);
  driving.join();
}

// The bytes are plain memory and are freed after the fence: a copy that is still running then is a
// race that TSan sees, and a use after free that ASan sees.
TEST(SelfStress, AFenceIsTheEndOfTheLastCopy) {
  // Large, so that the worker is nearly always in the middle of a copy.
  constexpr uint64_t kBytes = self::kPollBytes;
  std::atomic<uint64_t> fenced{0};
  self::SelfRail rail({.engine_id = 1});
  std::vector<std::byte> hello, answer, wire;
  std::vector<std::byte> source(kBytes, std::byte{7});
  const auto from = rail.register_memory({.address = source.data(), .size_bytes = kBytes}, wire);
  std::vector<std::byte> address(8);
  address[0] = std::byte{1};
  const auto path = rail.open_path(address, 0, hello);
  ASSERT_TRUE(path);
  ASSERT_TRUE(rail.accept_path(hello, answer));
  ASSERT_TRUE(rail.start_path(*path, answer));

  std::atomic<uint64_t> target_key{0};
  std::atomic<bool> stop{false};
  std::atomic<uint32_t> written{0}, refused{0};
  std::thread worker([&] {
    std::array<RailEvent, 8> events;
    while (!stop) {
      const WriteOp op{.source = reinterpret_cast<uint64_t>(source.data()),
                       .size_bytes = kBytes,
                       .lkey = *from,
                       .rkey = target_key.load(),
                       .path = *path};
      rail.post({&op, 1});
      const uint32_t n = rail.poll(events);
      for (uint32_t i = 0; i < n; ++i) {
        if (events[i].kind == RailEvent::Kind::kFenced) {
          fenced.store(events[i].cookie);
        } else {
          ++(events[i].code == Errc::kOk ? written : refused);
        }
      }
      std::this_thread::yield();  // or the others wait long for the lock of the regions
    }
  });
  for (uint32_t round = 1; round <= 100; ++round) {
    auto target = std::make_unique<std::vector<std::byte>>(kBytes);
    std::vector<std::byte> key_bytes;
    const auto key =
        rail.register_memory({.address = target->data(), .size_bytes = kBytes}, key_bytes);
    ASSERT_TRUE(key);
    target_key = *rail.import_rkey(key_bytes);
    const uint32_t before = written;
    while (written == before) std::this_thread::yield();
    rail.deregister_memory(*key, round);
    while (fenced != round) std::this_thread::yield();
    std::memset(target->data(), 9, kBytes);
    target.reset();
  }
  stop = true;
  worker.join();
  EXPECT_GE(written, 100u);
  EXPECT_GT(refused, 0u);
}

}  // namespace
}  // namespace fabric::runtime::runtime_stress_test

#include "runtime/inline.h"
#include "runtime/threads.h"
#include "threads/engine_harness.h"

// A receiver that sleeps on shm is woken when its wait is met, not at each arrival; and by
// everything else that it has to act on.

namespace fabric::test::shm_wake_test {
namespace {

Config wake_config() {
  Config config = engine_config();
  config.networks = {{.provider = "shm", .options = shm::Options{.lanes = 1}}};
  return config;
}

enum class Turns : uint8_t { kInline, kWorker };

/// A runtime that records which threads wake the worker.
class WatchedRuntime final : public Runtime, private Driver {
 public:
  explicit WatchedRuntime(Turns turns)
      : inner_(turns == Turns::kInline ? static_cast<Driver&>(inline_) : threads_) {}

  void turn() { inline_.turn(); }
  uint64_t wakes_by_this_thread() {
    const std::lock_guard lock(mutex_);
    return wakes_[std::this_thread::get_id()];
  }

 private:
  Driver& driver() noexcept override { return *this; }

  int64_t now_ns() const noexcept override { return inner_.now_ns(); }
  uint64_t entropy() noexcept override { return inner_.entropy(); }
  uint64_t incarnation() noexcept override { return inner_.incarnation(); }
  Result<void> attach(Progress& engine, const AttachOptions& options) override {
    return inner_.attach(engine, options);
  }
  void detach(Progress& engine) noexcept override { inner_.detach(engine); }
  void wake(Progress& engine) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      ++wakes_[std::this_thread::get_id()];
    }
    inner_.wake(engine);
  }
  void wake_callbacks(Progress& engine) noexcept override { inner_.wake_callbacks(engine); }
  bool threaded() const noexcept override { return inner_.threaded(); }
  bool by_application() const noexcept override { return inner_.by_application(); }
  bool drive(const std::function<bool()>& done, int64_t deadline_ns) override {
    return inner_.drive(done, deadline_ns);
  }
  uint32_t turn_one(Progress& engine) noexcept override { return inner_.turn_one(engine); }
  void offload(std::function<void()> job, uint32_t queue) override {
    inner_.offload(std::move(job), queue);
  }

  runtime::InlineDriver inline_;
  runtime::ThreadsDriver threads_;
  Driver& inner_;
  std::mutex mutex_;
  std::map<std::thread::id, uint64_t> wakes_;
};

/// One engine with a runtime of its own.
struct Rank {
  explicit Rank(Turns turns = Turns::kInline)
      : runtime(std::make_shared<WatchedRuntime>(turns)),
        engine(*Engine::open(wake_config(), runtime)) {}
  std::shared_ptr<WatchedRuntime> runtime;
  Engine engine;
  MemoryRegion source = *engine.allocate({.size_bytes = 4096});
  PeerId receiver{};
  RemoteRegion target{};
};

/// A receiver, and ranks that write to it and are inline.
class Star {
 public:
  Star(uint32_t senders, Turns turns)
      : receiver(turns), area_(*receiver.engine.allocate({.size_bytes = 4096})) {
    ScopedThreads turning;
    std::atomic<bool> ready{false};
    turning.add([&] {
      while (!ready.load()) {
        receiver.runtime->turn();
        for (uint32_t i = 0; i < made_.load(); ++i) ranks_[i]->runtime->turn();
      }
    });
    ranks_.reserve(senders);
    for (uint32_t i = 0; i < senders; ++i) {
      Rank& rank = *ranks_.emplace_back(std::make_unique<Rank>());
      made_.store(i + 1);
      rank.receiver = *rank.engine.connect(receiver.engine.address());
      rank.target = *rank.engine.import_region(rank.receiver, *area_.desc());
      peers.push_back(*receiver.engine.connect(rank.engine.address()));
      counters.push_back(*receiver.engine.make_counter());
      EXPECT_TRUE(group.add(counters.back(), peers.back()));
    }
    // The first write of each opens its path and maps the memory.
    for (uint32_t i = 0; i < senders; ++i) write(i, counters[i]);
    EXPECT_TRUE(group.wait(20s));
    ready.store(true);
    turning.join();
  }

  ~Star() {
    // An engine that closes says so, and its peer has to listen. The peer may be the first to close
    // the path.
    expect_log("a path broke");
    std::atomic<bool> closed{false};
    ScopedThreads turning;
    turning.add([&] {
      while (!closed.load()) receiver.runtime->turn();
    });
    ranks_.clear();
    closed.store(true);
  }

  /// Returns when the bytes and the immediate are at the receiver.
  void write(uint32_t from, const Counter& counter, uint32_t times = 1) {
    Rank& rank = *ranks_[from];
    Batch batch = *rank.engine.make_batch();
    for (uint32_t i = 0; i < times; ++i) {
      ASSERT_TRUE(rank.engine.submit(Write{.source = rank.source.at(0),
                                           .target = rank.target.at(64 * from),
                                           .size_bytes = 64,
                                           .imm = counter.key(),
                                           .batch = batch}));
    }
    ASSERT_TRUE(rank.engine.wait(batch, 20s));
  }
  Rank& rank(uint32_t i) { return *ranks_[i]; }

  /// Wake frames that the receiver has read.
  uint64_t wake_ups() {
    for (const RailStats& rail : receiver.engine.rail_stats()) {
      for (const auto& [name, value] : rail.facts) {
        if (name == "wake-ups by peers") return std::stoull(value);
      }
    }
    ADD_FAILURE() << "no such fact";
    return 0;
  }
  /// The wait of the group has begun.
  void await_wait() {
    // Refused either way: kBusy if a wait is armed.
    constexpr uint64_t kWrong = 1000;
    EXPECT_TRUE(eventually([&] { return group.expect(kWrong, {}).error().code == Errc::kBusy; }));
  }
  /// The receiver has gone to sleep again since the call.
  void await_sleep() {
    const uint64_t before = receiver.engine.stats().sleeps;
    EXPECT_TRUE(eventually([&] { return receiver.engine.stats().sleeps > before; }));
  }

  Rank receiver;
  std::vector<PeerId> peers;
  std::vector<Counter> counters;
  CounterGroup group = *receiver.engine.make_counter_group();

 private:
  MemoryRegion area_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::atomic<uint32_t> made_{0};
};

/// A wait of the receiver, on a thread of its own.
template <class Wait>
class Waiting {
 public:
  explicit Waiting(Wait wait) {
    thread_.add([this, wait] {
      result_ = wait();
      done_.store(true);
    });
  }
  bool done() const { return done_.load(); }
  Result<void> result() {
    thread_.join();
    return result_;
  }

 private:
  std::atomic<bool> done_{false};
  Result<void> result_;
  ScopedThreads thread_;
};

using ShmWake = testing::TestWithParam<Turns>;

// Each arrival comes while it sleeps: a timer of 10 ms wakes it as well, so the test waits for
// that, and only wake-ups by senders are counted.
TEST_P(ShmWake, AGroupOfSevenIsWokenOnce) {
  Star star(7, GetParam());
  const uint64_t before = star.wake_ups();
  constexpr uint32_t kRounds = 4;
  for (uint32_t round = 0; round < kRounds; ++round) {
    Waiting waiting([&] { return star.group.wait(20s); });
    star.await_wait();
    for (uint32_t i = 0; i < 7; ++i) {
      star.await_sleep();
      EXPECT_FALSE(waiting.done());
      star.write(i, star.counters[i]);
    }
    EXPECT_TRUE(waiting.result());
  }
  const uint64_t woken = star.wake_ups() - before;
  EXPECT_GE(woken, 1u);  // the timer may have woken it just when the last one arrived
  // One more in case that a sender was preempted between seeing the sleep and counting.
  EXPECT_LE(woken, kRounds + 1);
}

TEST_P(ShmWake, AWaitForNCountsIsWokenOnce) {
  Star star(2, GetParam());
  Counter counter = *star.receiver.engine.make_counter();
  const uint64_t before = star.wake_ups();
  Waiting waiting([&] { return counter.wait(8, 20s); });
  for (uint32_t i = 0; i < 8; ++i) {
    star.await_sleep();
    star.write(i % 2, counter);
  }
  EXPECT_TRUE(waiting.result());
  // A worker without a wait is woken each time: the first writes may be earlier than the wait.
  EXPECT_LE(star.wake_ups() - before, 4u);
}

/// Arrivals that are not all that the group waits for.
class ShmWakeOthers : public testing::TestWithParam<Turns> {
 protected:
  static constexpr uint32_t kTries = 20;
  ShmWakeOthers() {
    star_.await_wait();
    // It may be preempted before it counts as a thread that waits.
    EXPECT_TRUE(eventually([this] {
      star_.await_sleep();
      return wakes([this] { (void)other_.count(); });
    })) << "a thread that reads a count wakes a worker that sleeps through arrivals";
    star_.await_sleep();
  }
  /// The call makes this thread wake the receiver.
  bool wakes(const std::function<void()>& read) {
    const uint64_t before = star_.receiver.runtime->wakes_by_this_thread();
    read();
    return star_.receiver.runtime->wakes_by_this_thread() > before;
  }
  /// The wait of the group ends when all of its members have written, or are masked.
  void finish(uint32_t first) {
    for (uint32_t i = first; i < 3; ++i) star_.write(i, star_.counters[i]);
    EXPECT_TRUE(waiting_.result());
  }
  /// One write to the counter wakes the receiver. It may be awake by its timer just then, so a few
  /// writes are tried.
  void expect_woken_by_one(Counter& counter) {
    uint32_t tries = 0;
    for (const uint64_t before = star_.wake_ups(); star_.wake_ups() == before; ++tries) {
      ASSERT_LT(tries, kTries) << "no arrival woke it";
      star_.await_sleep();
      star_.write(0, counter);
      star_.await_sleep();
    }
  }

  struct Reports {
    std::atomic<uint32_t> count{0};
    void report(const Event&) { count.fetch_add(1); }
  } reports_;
  Star star_{3, GetParam()};
  Counter other_ = *star_.receiver.engine.make_counter();
  Waiting<std::function<Result<void>()>> waiting_{
      [this] { return star_.group.wait(2 * kPatience); }};
};

TEST_P(ShmWakeOthers, AnExpectationThatIsArmedDuringTheSleep) {
  ASSERT_TRUE(other_.expect(kTries + 1, Notify::call<&Reports::report>(&reports_), 20s));
  expect_woken_by_one(other_);
  other_.disarm();
  finish(0);
}

TEST_P(ShmWakeOthers, AWaitOfAnotherThread) {
  std::atomic<uint64_t> by_second{0};
  Waiting second([&] {
    auto waited = other_.wait(kTries + 1, 20s);
    by_second.store(star_.receiver.runtime->wakes_by_this_thread());
    return waited;
  });
  expect_woken_by_one(other_);
  star_.write(0, other_, kTries + 1);
  EXPECT_TRUE(second.result());
  EXPECT_GE(by_second.load(), 1u) << "the worker may have slept through its arrivals";
  finish(0);
}

TEST_P(ShmWakeOthers, AThreadThatReadsACount) {
  EXPECT_TRUE(wakes([&] { EXPECT_EQ(other_.count(), 0u); }));
  EXPECT_TRUE(wakes([&] { EXPECT_FALSE(other_.try_take(1)); }));
  EXPECT_TRUE(wakes([&] { EXPECT_EQ(star_.group.count(), 0u); }));
  EXPECT_TRUE(wakes([&] { EXPECT_EQ(star_.group.missing().size(), 3u); }));
  star_.write(0, other_);
  EXPECT_TRUE(eventually([&] { return other_.count() == 1; }));
  finish(0);
}

TEST_P(ShmWakeOthers, AMemberIsMaskedDuringTheSleep) {
  const uint64_t before = star_.wake_ups();
  star_.write(0, star_.counters[0]);
  star_.await_sleep();
  EXPECT_TRUE(star_.group.mask(star_.peers[1]));
  star_.await_sleep();
  EXPECT_FALSE(waiting_.done());
  finish(2);
  EXPECT_LE(star_.wake_ups() - before, 1u);
}

TEST_P(ShmWakeOthers, AMessage) {
  const auto listening = star_.receiver.engine.listen(3, Notify::call<&Reports::report>(&reports_));
  ASSERT_TRUE(listening);
  star_.await_sleep();
  Rank& rank = star_.rank(1);
  Batch batch = *rank.engine.make_batch();
  const std::array<std::byte, 8> bytes{};
  ASSERT_TRUE(rank.engine.submit(
      Send{.peer = rank.receiver, .channel = 3, .bytes = bytes, .batch = batch}));
  EXPECT_TRUE(rank.engine.wait(batch, 20s));
  EXPECT_TRUE(eventually([this] { return reports_.count.load() == 1; }));
  EXPECT_FALSE(waiting_.done());
  finish(0);
}

const auto kTurns = testing::Values(Turns::kInline, Turns::kWorker);
std::string turns_name(const testing::TestParamInfo<Turns>& turns) {
  return turns.param == Turns::kInline ? "Inline" : "Worker";
}
INSTANTIATE_TEST_SUITE_P(All, ShmWake, kTurns, turns_name);
INSTANTIATE_TEST_SUITE_P(All, ShmWakeOthers, kTurns, turns_name);

}  // namespace
}  // namespace fabric::test::shm_wake_test

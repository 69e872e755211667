#include <time.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "threads/engine_harness.h"

// What a callback may and may not do, and what the library's threads do when there is nothing to.

namespace fabric::test::engine_callback_test {
namespace {

/// Runs its body once, in a callback of the engine.
class InCallback {
 public:
  InCallback(Engine& engine, std::function<void()> body) : body_(std::move(body)) {
    EXPECT_TRUE(engine.submit(Timer{.notify = Notify::call<&InCallback::report>(this)}));
    EXPECT_TRUE(eventually([&] { return done_.load(); }));
  }

 private:
  void report(const Event&) {
    body_();
    done_.store(true);
  }
  std::function<void()> body_;
  std::atomic<bool> done_{false};
};

TEST(EngineCallback, EveryBlockingCallIsRefused) {
  Cluster cluster(2);
  const PeerId peer = cluster.connect(0, 1);
  Counter counter = *cluster[0].make_counter();
  Inbox inbox = *cluster[0].make_inbox(1);
  Batch batch = *cluster[0].make_batch();
  ASSERT_TRUE(cluster[0].submit(Timer{.after = 10s, .batch = batch}));
  for (uint32_t which = 0; which < 2; ++which) {  // also in a callback of another engine
    const InCallback callback(cluster[which], [&] {
      const uint64_t name = 5;
      CounterKey key;
      EXPECT_EQ(cluster[0].close().error().code, Errc::kWouldDeadlock);
      EXPECT_EQ(cluster[0].wait(batch).error().code, Errc::kWouldDeadlock);
      EXPECT_EQ(counter.wait(1).error().code, Errc::kWouldDeadlock);
      EXPECT_EQ(counter.close().error().code, Errc::kWouldDeadlock);
      EXPECT_EQ(inbox.wait().error().code, Errc::kWouldDeadlock);
      EXPECT_EQ(cluster[0].resolve(peer, {&name, 1}, {&key, 1}).error().code, Errc::kWouldDeadlock);
      EXPECT_EQ(cluster[0].progress(), 0u);
    });
  }
  EXPECT_FALSE(inbox.wait(1ms));
}

TEST(EngineCallback, EverythingThatDoesNotBlockIsAllowed) {
  Cluster cluster(2);
  Area source(cluster[0], 4096), target(cluster[1], 4096);
  const PeerId peer = cluster.connect(0, 1);
  const RemoteRegion remote = target.seen_by(cluster[0], peer);
  ReportAudit audit(8);
  const InCallback callback(cluster[0], [&] {
    Counter counter = *cluster[0].make_counter();
    Inbox inbox = *cluster[0].make_inbox(2);
    Batch batch = *cluster[0].make_batch();
    ASSERT_TRUE(cluster[0].submit(Write{.source = source.region().at(0),
                                        .target = remote.at(0),
                                        .size_bytes = 8,
                                        .batch = batch,
                                        .notify = audit.call(audit.open())}));
    ASSERT_TRUE(counter.expect(1, audit.call(audit.open())));
    EXPECT_TRUE(cluster[0].cancel(batch));
    EXPECT_FALSE(cluster[0].dump().empty());
    EXPECT_TRUE(cluster[0].make_watcher(Notify::inbox(inbox)));
  });
  EXPECT_TRUE(eventually([&] { return audit.complete(); }));
  audit.expect_exactly_once();
}

TEST(EngineCallback, AllocatedMemoryMayEndThereAndItsPagesGoWithTheProof) {
  Cluster cluster(2);
  const PeerId peer = cluster.connect(0, 1);
  Area source(cluster[1], 4096);
  const PeerId back = cluster.connect(1, 0);
  for (uint32_t round = 0; round < 10; ++round) {
    auto region = std::make_unique<MemoryRegion>(*cluster[0].allocate({.size_bytes = 4096}));
    const auto remote = cluster[1].import_region(back, *region->desc());
    ASSERT_TRUE(remote);
    ReportAudit audit(8);
    for (uint32_t i = 0; i < 8; ++i) {
      ASSERT_TRUE(cluster[1].submit(Write{.source = source.region().at(0),
                                          .target = remote->at(0),
                                          .size_bytes = 4096,
                                          .notify = audit.call(audit.open())}));
    }
    // Nothing is logged: nothing is leaked.
    const InCallback callback(cluster[0], [&] { region.reset(); });
    ASSERT_TRUE(eventually([&] { return cluster[0].stats().regions == 0; }));
    ASSERT_TRUE(eventually([&] { return audit.complete(); }));
    audit.expect_exactly_once();
  }
  EXPECT_TRUE(cluster[0].disconnect(peer));
}

TEST(EngineCallback, ASubscriptionMayEndInsideItsOwnCallback) {
  Cluster cluster(2);
  const PeerId peer = cluster.connect(0, 1);
  struct Once {
    Subscription subscription;
    std::atomic<bool> ready{false};
    std::atomic<uint32_t> calls{0};
    void report(const Event&) {
      EXPECT_TRUE(eventually([&] { return ready.load(); }));
      calls.fetch_add(1);
      { const Subscription dying = std::move(subscription); }
      std::this_thread::sleep_for(100us);  // still inside, and still in memory
    }
  };
  const std::array<std::byte, 4> bytes{};
  for (uint32_t round = 0; round < 20; ++round) {
    Once once;
    once.subscription = *cluster[1].listen(2, Notify::call<&Once::report>(&once));
    ReportAudit audit(4);
    for (uint32_t i = 0; i < 4; ++i) {
      ASSERT_TRUE(cluster[0].submit(
          Send{.peer = peer, .channel = 2, .bytes = bytes, .notify = audit.call(audit.open())}));
    }
    once.ready = true;
    ASSERT_TRUE(eventually([&] { return audit.complete() && once.calls.load() == 1; }));
    audit.expect_exactly_once();
    // Nothing may run into `once` after this.
    const InCallback last(cluster[1], [] {});
    EXPECT_EQ(once.calls.load(), 1u);
  }
}

TEST(EngineCallback, TheEndOfASubscriptionWaitsForItsRunningCallback) {
  Cluster cluster(1);
  struct Slow {
    std::atomic<bool> inside{false}, left{false};
    void report(const Event&) {
      inside = true;
      std::this_thread::sleep_for(1ms);
      left = true;
    }
  };
  for (uint32_t round = 0; round < 10; ++round) {
    Slow slow;
    auto subscription =
        std::make_unique<Subscription>(*cluster[0].subscribe(Notify::call<&Slow::report>(&slow)));
    // A failure without a notification of its own.
    const auto op = cluster[0].submit(Timer{.after = 20s});
    ASSERT_TRUE(op);
    ASSERT_TRUE(cluster[0].cancel(*op));
    ASSERT_TRUE(eventually([&] { return slow.inside.load(); }));
    subscription.reset();
    EXPECT_TRUE(slow.left.load());
  }
}

TEST(EngineCallback, AWatcherMayEndInsideItsOwnCallbackOrDuringIt) {
  Cluster cluster(1);
  struct Once {
    std::unique_ptr<Watcher> watcher;
    std::atomic<bool> inside{false}, ends_itself{false}, left{false};
    void report(const Event&) {
      inside = true;
      if (ends_itself) watcher.reset();
      std::this_thread::sleep_for(200us);
      left = true;
    }
  };
  for (uint32_t round = 0; round < 20; ++round) {
    Once once;
    once.ends_itself = round % 2 == 0;
    once.watcher = std::make_unique<Watcher>(
        *cluster[0].make_watcher(Notify::call<&Once::report>(&once), {.polled = false}));
    once.watcher->arm();
    once.watcher->store(1);
    ASSERT_TRUE(eventually([&] { return once.inside.load(); }));
    if (!once.ends_itself) {
      once.watcher.reset();
      EXPECT_TRUE(once.left.load()) << "the destructor did not wait for the callback";
    }
    ASSERT_TRUE(eventually([&] { return once.left.load(); }));
  }
}

TEST(EngineCallback, ManyEventsForOneSubscriberOverflowTheQueueAndAllArriveInOrder) {
  Cluster cluster(1);
  struct Slow {
    std::atomic<bool> go_on{false};
    std::vector<uint64_t> seen;
    std::atomic<size_t> count{0};
    void report(const Event& event) {
      EXPECT_TRUE(eventually([&] { return go_on.load(); }));
      if (event.kind != EventKind::kUnhandled) return;
      seen.push_back(event.op.generation);
      count.fetch_add(1);
    }
  } slow;
  Subscription subscription = *cluster[0].subscribe(Notify::call<&Slow::report>(&slow));
  constexpr uint32_t kEvents = 3000;  // more than the queue holds beside operations
  for (uint32_t i = 0; i < kEvents; ++i) {
    auto op = cluster[0].submit(Timer{.after = 10s});
    ASSERT_TRUE(op);
    ASSERT_TRUE(cluster[0].cancel(*op));
  }
  EXPECT_TRUE(eventually([&] { return cluster[0].stats().ops_in_flight == 0; }));
  const auto begin = std::chrono::steady_clock::now();
  slow.go_on = true;
  // Before close() returns they have all been called.
  EXPECT_TRUE(cluster[0].close(20s));
  EXPECT_EQ(slow.count.load(), kEvents);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kPatience);
}

/// Threads of this process whose name begins with `prefix`, with their blocked signals.
std::vector<std::pair<std::string, uint64_t>> threads_named(const std::string& prefix) {
  std::vector<std::pair<std::string, uint64_t>> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name, line;
    std::ifstream(task.path() / "comm") >> name;
    if (!name.starts_with(prefix)) continue;
    std::ifstream status(task.path() / "status");
    uint64_t blocked = 0;
    while (std::getline(status, line)) {
      if (line.starts_with("SigBlk:")) blocked = std::stoull(line.substr(7), nullptr, 16);
    }
    found.emplace_back(name, blocked);
  }
  return found;
}

TEST(EngineThreads, AreNamedAndTakeNoSignals) {
  const auto before = threads_named("fabric-").size();
  Cluster cluster(2);
  {
    Area area(cluster[0], 4096);  // its end needs the helper
  }
  // A thread gives itself its name.
  EXPECT_TRUE(eventually([&] { return threads_named("fabric-").size() >= before + 5; }));
  std::array<uint32_t, 3> kinds{};
  // All but SIGKILL and SIGSTOP, which cannot be blocked, and the two that the C library keeps.
  const auto bit = [](int signal) { return uint64_t{1} << (signal - 1); };
  const uint64_t may_be_open = bit(9) | bit(19) | bit(32) | bit(33);
  for (const auto& [name, blocked] : threads_named("fabric-")) {
    EXPECT_EQ(blocked | may_be_open, UINT64_MAX) << name;
    kinds[0] += name == "fabric-worker";
    kinds[1] += name == "fabric-call";
    kinds[2] += name == "fabric-helper";
  }
  EXPECT_GE(kinds[0], 2u);
  EXPECT_GE(kinds[1], 2u);
  EXPECT_GE(kinds[2], 1u);
  EXPECT_TRUE(cluster[0].close());
  EXPECT_TRUE(cluster[1].close());
}

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

TEST(EngineThreads, AnIdleEngineSleeps) {
  Cluster cluster(2);
  const PeerId peer = cluster.connect(0, 1);
  ASSERT_TRUE(eventually([&] {
    const auto info = cluster[0].peer_info(peer);
    return info && info->state == PeerState::kConnected;
  }));
  Inbox inbox = *cluster[0].make_inbox(1);
  // A watcher that only this process stores to keeps no thread awake.
  Watcher watcher = *cluster[0].make_watcher(Notify::inbox(inbox), {.polled = false});
  watcher.arm();
  const EngineStats before = cluster[0].stats();
  const double cpu = cpu_seconds();
  EXPECT_FALSE(inbox.wait(300ms));
  const EngineStats after = cluster[0].stats();
  std::printf("idle for 300 ms: %llu turns, %llu sleeps, %.1f ms of CPU in the whole process\n",
              static_cast<unsigned long long>(after.turns - before.turns),
              static_cast<unsigned long long>(after.sleeps - before.sleeps),
              (cpu_seconds() - cpu) * 1e3);
  EXPECT_GT(after.sleeps, before.sleeps);
  EXPECT_LT(after.turns - before.turns, 1000u);  // one that does not sleep makes 100'000
}

}  // namespace
}  // namespace fabric::test::engine_callback_test

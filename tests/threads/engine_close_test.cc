#include "threads/engine_harness.h"

// close() with everything in flight, while others go on as if nothing were.

namespace fabric::test::engine_close_test {
namespace {

bool closed_or_ok(Errc code) { return code == Errc::kClosed || code == Errc::kOk; }

/// An engine under every kind of load, and everything that its callers hold.
class Load {
 public:
  explicit Load(Cluster& cluster)
      : cluster_(cluster),
        source_(cluster[0], 1 << 20),
        target_(cluster[1], 1 << 20),
        peer_(cluster.connect(0, 1)),
        remote_(target_.seen_by(cluster[0], peer_)),
        batch_(*cluster[0].make_batch()),
        counter_(*cluster[0].make_counter()),
        group_(*cluster[0].make_group({&peer_, 1})) {}

  void start(ScopedThreads& threads) {
    for (uint32_t t = 0; t < 3; ++t) threads.add([this, t] { submit(t); });
    threads.add([this] { wait_for_inbox(); });
    threads.add([this] { wait_for_counter(); });
    threads.add([this] { set_up(); });
    threads.add([this] { look(); });
    threads.add([this] { watch(); });
  }
  void expect_all_reported() {
    audit.expect_exactly_once();
    EXPECT_EQ(audit.reported() + audit.refusals(), audit.opened());
    EXPECT_EQ(batch_.pending(), 0u);
    EXPECT_EQ(cluster_[0].wait(batch_).error().code, Errc::kClosed);
    EXPECT_EQ(cluster_[0].close().error().code, Errc::kClosed);
    EXPECT_EQ(counter_.wait(1).error().code, Errc::kClosed);
    EXPECT_EQ(cluster_[0].stats().ops_in_flight, 0u);
  }

  ReportAudit audit{400'000};

 private:
  void submit(uint32_t number) {
    Rng rng(test_seed() + number);
    const std::array<std::byte, 32> bytes{};
    while (audit.opened() < 390'000) {
      const uint64_t tag = audit.open();
      const Notify notify = audit.call(tag);
      Result<OpId> op = fail(Errc::kClosed, "");
      const CounterKey key = CounterKey::from_wire(77);
      switch (rng.below(5)) {
        case 0:
          op = cluster_[0].submit(Write{.source = source_.region().at(0),
                                        .target = remote_.at(0),
                                        .size_bytes = 1 << 18,
                                        .batch = batch_,
                                        .notify = notify});
          break;
        case 1:
          op = cluster_[0].submit(Timer{.after = 10s, .batch = batch_, .notify = notify});
          break;
        case 2:
          op = cluster_[0].submit(Send{.peer = peer_, .bytes = bytes, .notify = notify});
          break;
        case 3:
          op = cluster_[0].submit(Signal{.group = group_, .keys = {&key, 1}, .notify = notify});
          break;
        default:
          op = cluster_[0].submit(
              Deregister{.region = source_.region().id(), .timeout = 0s, .notify = notify});
          break;  // refused: a timeout of nothing
      }
      if (op) continue;
      audit.refused(tag);
      if (op.error().code == Errc::kClosed) return;
      std::this_thread::yield();
    }
  }

  void wait_for_inbox() {
    auto inbox = cluster_[0].make_inbox(4);
    while (inbox) {
      (void)cluster_[0].submit(Timer{.after = 200us, .notify = Notify::inbox(*inbox)});
      const auto waited = inbox->wait(Timeout::forever());
      if (!waited) {
        EXPECT_EQ(waited.error().code, Errc::kClosed);
        return;
      }
      Event event;
      while (inbox->poll({&event, 1}) == 1) EXPECT_TRUE(closed_or_ok(event.code));
    }
  }

  void wait_for_counter() {
    const auto waited = counter_.wait(1'000'000, Timeout::forever());
    EXPECT_EQ(waited.error().code, Errc::kClosed);
  }

  /// Registers, connects, makes and drops all kinds of things until it is refused.
  void set_up() {
    std::vector<std::byte> bytes(8192);
    while (true) {
      auto region = cluster_[0].register_memory({bytes.data(), bytes.size()});
      auto counter = cluster_[0].make_counter();
      auto inbox = cluster_[0].make_inbox(2);
      auto batch = cluster_[0].make_batch();
      auto flag = cluster_[0].make_flag();
      (void)cluster_[0].connect(cluster_[1].address());
      auto group = cluster_[0].make_group({&peer_, 1});
      if (region) (void)region->desc();
      if (region) (void)region->grant(peer_);
      (void)target_.region().desc();
      if (!region && !counter && !inbox && !batch && !flag && !group) {
        EXPECT_EQ(region.error().code, Errc::kClosed);
        EXPECT_EQ(counter.error().code, Errc::kClosed);
        return;
      }
    }
  }

  void look() {
    while (cluster_[0].make_flag()) {
      (void)cluster_[0].peer_info(peer_);
      (void)cluster_[0].dump();
      (void)cluster_[0].rail_stats();
      (void)cluster_[0].peer_stats();
      (void)cluster_[0].peers();
      (void)cluster_[0].address();
    }
  }

  void watch() {
    struct Ignore {
      void report(const Event&) {}
    } ignore;
    for (uint64_t i = 1;; ++i) {
      auto subscription = cluster_[0].subscribe(Notify::call<&Ignore::report>(&ignore));
      auto watcher =
          cluster_[0].make_watcher(Notify::call<&Ignore::report>(&ignore), {.polled = i % 2 == 0});
      if (!subscription && !watcher) return;
      if (watcher) watcher->arm();
      if (watcher) watcher->store(i);
    }
  }

  Cluster& cluster_;
  Area source_, target_;
  PeerId peer_;
  RemoteRegion remote_;
  Batch batch_;
  Counter counter_;
  PeerGroup group_;
};

TEST(EngineClose, EverythingInFlightIsReportedAndEverybodyIsLetGo) {
  for (uint32_t round = 0; round < 6; ++round) {
    Config config = engine_config();
    config.ops_max = 512;
    Cluster cluster(2, config);
    Load load(cluster);
    ScopedThreads threads;
    load.start(threads);
    // From the very first moment to well under way.
    std::this_thread::sleep_for(std::chrono::milliseconds(round * 3));
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_TRUE(cluster[0].close());
    // Right on return, before any thread has been joined: callbacks included.
    EXPECT_EQ(cluster[0].stats().ops_in_flight, 0u);
    threads.join();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kPatience);
    load.expect_all_reported();
  }
}

TEST(EngineClose, BothEndsAtOnce) {
  for (uint32_t round = 0; round < 6; ++round) {
    Cluster cluster(2);
    Area source(cluster[0], 1 << 16), target(cluster[1], 1 << 16);
    const PeerId peer = cluster.connect(0, 1);
    const RemoteRegion remote = target.seen_by(cluster[0], peer);
    ReportAudit audit(64);
    for (uint32_t i = 0; i < 64; ++i) {
      const uint64_t tag = audit.open();
      if (!cluster[0].submit(Write{.source = source.region().at(0),
                                   .target = remote.at(0),
                                   .size_bytes = 1 << 16,
                                   .notify = audit.call(tag)})) {
        audit.refused(tag);
      }
    }
    std::this_thread::sleep_for(round * 100us);
    ScopedThreads threads;
    for (uint32_t i = 0; i < 2; ++i) threads.add([&, i] { EXPECT_TRUE(cluster[i].close()); });
    threads.join();
    EXPECT_TRUE(audit.complete());
    audit.expect_exactly_once();
  }
}

TEST(EngineClose, OfTwoThatCloseOneDoesAndTheOtherIsRefused) {
  for (uint32_t round = 0; round < 10; ++round) {
    Cluster cluster(1);
    std::atomic<uint32_t> done{0}, refused{0};
    ScopedThreads threads;
    for (uint32_t t = 0; t < 2; ++t) {
      threads.add([&] {
        const auto closed = cluster[0].close();
        closed ? done.fetch_add(1) : refused.fetch_add(1);
        EXPECT_TRUE(closed_or_ok(closed.error().code));
      });
    }
    threads.join();
    EXPECT_EQ(done.load(), 1u);
    EXPECT_EQ(refused.load(), 1u);
  }
}

TEST(EngineClose, HandlesOutliveTheEngineInertly) {
  auto cluster = std::make_unique<Cluster>(2);
  Engine& engine = (*cluster)[0];
  auto bytes = std::make_unique<std::array<std::byte, 4096>>();
  MemoryRegion region = *engine.register_memory({bytes->data(), bytes->size()});
  MemoryRegion own = *engine.allocate({.size_bytes = 1 << 16});
  Inbox inbox = *engine.make_inbox(4);
  Batch batch = *engine.make_batch();
  Flag flag = *engine.make_flag();
  Counter counter = *engine.make_counter();
  Counter named = *engine.named_counter(3);
  CounterGroup counters = *engine.make_counter_group();
  const PeerId peer = cluster->connect(0, 1);
  PeerGroup group = *engine.make_group({&peer, 1});
  ASSERT_TRUE(counters.add(counter, peer));
  ReportAudit audit(1);
  Watcher watcher = *engine.make_watcher(audit.call(0));
  Subscription subscription = *engine.subscribe(Notify::inbox(inbox));
  watcher.arm();
  cluster.reset();

  EXPECT_EQ(counter.wait(1).error().code, Errc::kBusy);  // its group waits in its place
  EXPECT_EQ(named.wait(1).error().code, Errc::kClosed);
  EXPECT_EQ(counters.wait(1).error().code, Errc::kClosed);
  EXPECT_EQ(counters.mask(peer).error().code, Errc::kClosed);
  EXPECT_EQ(named.expect(1, {}).error().code, Errc::kClosed);
  EXPECT_EQ(named.bind(peer).error().code, Errc::kClosed);
  EXPECT_EQ(named.close().error().code, Errc::kClosed);
  EXPECT_EQ(batch.seal({}).error().code, Errc::kClosed);
  EXPECT_EQ(batch.reset().error().code, Errc::kClosed);
  EXPECT_EQ(region.desc().error().code, Errc::kClosed);
  EXPECT_EQ(region.grant(peer).error().code, Errc::kClosed);
  EXPECT_EQ(inbox.fd().error().code, Errc::kClosed);
  EXPECT_EQ(group.size(), 1u);
  watcher.store(5);
  watcher.disarm();
  flag.store(1);
  std::array<Event, 4> events;
  while (inbox.poll(events) > 0) {
  }
  EXPECT_EQ(inbox.wait().error().code, Errc::kClosed);
  own.bytes()[0] = std::byte{1};
}

}  // namespace
}  // namespace fabric::test::engine_close_test

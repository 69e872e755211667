#include "threads/engine_harness.h"

// Many threads submit every kind of operation, with every kind of notification, while others
// cancel.

namespace fabric::test::engine_traffic_test {
namespace {

constexpr uint32_t kSubmitters = 8;
constexpr uint32_t kRounds = 600;
constexpr uint32_t kSliceBytes = 4096;  // of each submitter, in every area
constexpr uint32_t kPages = 4;
constexpr uint64_t kAreaBytes = uint64_t{kSubmitters} * kSliceBytes;

/// Engine 0 writes to the others. Each of them has one counter key that everything counts under.
struct TrafficSetup {
  Cluster cluster{3};
  Engine& engine = cluster[0];
  Area source{engine, kAreaBytes};
  std::vector<std::unique_ptr<Area>> targets;
  std::vector<Counter> counters;
  std::vector<CounterKey> keys;
  std::vector<PeerId> peers;
  std::vector<RemoteRegion> regions;
  Result<PeerGroup> group = fail(Errc::kClosed, "not made");
  std::atomic<uint64_t> messages{0};
  std::vector<Subscription> listeners;

  TrafficSetup() {
    for (uint32_t i = 1; i < cluster.size(); ++i) {
      targets.push_back(std::make_unique<Area>(cluster[i], kAreaBytes));
      counters.push_back(*cluster[i].make_counter());
      keys.push_back(counters.back().key());
      peers.push_back(cluster.connect(0, i));
      regions.push_back(targets.back()->seen_by(engine, peers.back()));
      listeners.push_back(*cluster[i].listen(7, Notify::call<&TrafficSetup::on_message>(this)));
    }
    group = engine.make_group(peers);
  }
  void on_message(const Event& event) {
    EXPECT_EQ(event.bytes().size(), 16u);
    messages.fetch_add(1);
  }
};

/// One thread's own things, and what it knows of the counts that it caused.
class Submitter {
 public:
  Submitter(TrafficSetup& setup, ReportAudit& audit, RecentOps& recent, uint32_t number)
      : setup_(setup),
        audit_(audit),
        recent_(recent),
        number_(number),
        rng_(test_seed() * 1000 + number),
        inbox_(*setup.engine.make_inbox(64)),
        flag_(*setup.engine.make_flag()),
        batch_(*setup.engine.make_batch()) {}

  void run() {
    for (uint32_t i = 0; i < kRounds; ++i) {
      submit_one();
      drain();
    }
    EXPECT_TRUE(eventually([&] {
      drain();
      return in_inbox_ == 0 && batch_.pending() == 0;
    }));
  }

  const Batch& batch() const { return batch_; }
  uint64_t in_batch() const { return in_batch_; }
  BatchId batch_id() const { return batch_.id(); }

 private:
  void drain() {
    std::array<Event, 16> events;
    while (const uint32_t n = inbox_.poll(events)) {
      for (uint32_t i = 0; i < n; ++i) audit_.report(events[i]);
      in_inbox_ -= n;
    }
  }

  /// By callback, by inbox, by flag and batch, or by batch alone.
  void submit_one() {
    const uint64_t how = rng_.below(4);
    BatchId batch{};
    Notify notify;
    uint64_t tag = 0;
    if (how < 2) {
      tag = audit_.open();
      notify = how == 0 ? audit_.call(tag) : Notify::inbox(inbox_, tag);
    } else {
      batch = batch_;
      if (how == 2) notify = Notify::flag(flag_);
    }
    const Result<OpId> op = submit(notify, batch);
    if (op) {
      recent_.add(*op);
      if (how == 1) ++in_inbox_;
      if (how >= 2) ++in_batch_;
      return;
    }
    if (how < 2) audit_.refused(tag);
    const Errc why = op.error().code;
    EXPECT_TRUE(why == Errc::kExhausted || why == Errc::kBusy) << to_string(why);
  }

  Result<OpId> submit(const Notify& notify, BatchId batch) {
    Engine& engine = setup_.engine;
    const uint64_t slice = uint64_t{number_} * kSliceBytes;
    const uint32_t to = static_cast<uint32_t>(rng_.below(setup_.peers.size()));
    switch (rng_.below(6)) {
      case 0:
        return engine.submit(Write{.source = setup_.source.region().at(slice),
                                   .target = setup_.regions[to].at(slice),
                                   .size_bytes = rng_.below(kSliceBytes + 1),
                                   .imm = setup_.keys[to],
                                   .priority = static_cast<Priority>(rng_.below(3)),
                                   .batch = batch,
                                   .notify = notify});
      case 1: {
        const std::array<uint32_t, kPages> pages{3, 0, 2, 1};
        const Pages both{.indices = pages, .stride_bytes = 512, .offset_bytes = slice};
        return engine.submit(PagedWrite{.source = setup_.source.region().id(),
                                        .source_pages = both,
                                        .target = setup_.regions[to],
                                        .target_pages = both,
                                        .page_bytes = 512,
                                        .imm = setup_.keys[to],
                                        .batch = batch,
                                        .notify = notify});
      }
      case 2: {
        std::vector<ScatterTarget> targets;
        for (size_t i = 0; i < setup_.peers.size(); ++i) {
          targets.push_back({setup_.regions[i].at(slice), slice, 100, setup_.keys[i]});
        }
        return engine.submit(Scatter{.source = setup_.source.region().id(),
                                     .targets = targets,
                                     .group = *setup_.group,
                                     .batch = batch,
                                     .notify = notify});
      }
      case 3:
        return engine.submit(
            Signal{.group = *setup_.group, .keys = setup_.keys, .batch = batch, .notify = notify});
      case 4: {
        const std::array<std::byte, 16> bytes{};
        return engine.submit(Send{.peer = setup_.peers[to],
                                  .channel = 7,
                                  .bytes = bytes,
                                  .batch = batch,
                                  .notify = notify});
      }
      default:
        return engine.submit(
            Timer{.after = Nanos(rng_.below(200'000)), .batch = batch, .notify = notify});
    }
  }

  TrafficSetup& setup_;
  ReportAudit& audit_;
  RecentOps& recent_;
  uint32_t number_;
  Rng rng_;
  Inbox inbox_;
  Flag flag_;
  Batch batch_;
  uint64_t in_inbox_ = 0, in_batch_ = 0;
};

TEST(EngineTraffic, EveryAcceptedOperationIsReportedOnceWhateverIsCancelled) {
  TrafficSetup setup;
  ReportAudit audit(kSubmitters * kRounds);
  RecentOps recent;
  std::vector<std::unique_ptr<Submitter>> submitters;
  for (uint32_t i = 0; i < kSubmitters; ++i) {
    submitters.push_back(std::make_unique<Submitter>(setup, audit, recent, i));
  }
  std::atomic<bool> stop{false};
  ScopedThreads cancellers;
  for (uint32_t i = 0; i < 2; ++i) {
    cancellers.add([&, i] {
      Rng rng(test_seed() + i);
      while (!stop.load()) {
        if (const OpId op = recent.pick(rng)) (void)setup.engine.cancel(op);
        (void)setup.engine.stats();
        std::this_thread::sleep_for(20us);
      }
    });
  }
  ScopedThreads threads;
  for (auto& submitter : submitters) threads.add([&] { submitter->run(); });
  threads.join();
  stop.store(true);
  cancellers.join();

  EXPECT_TRUE(eventually([&] { return audit.complete(); })) << setup.engine.dump();
  audit.expect_exactly_once();
  EXPECT_GT(audit.ok(), audit.opened() / 4);
  EXPECT_TRUE(eventually([&] { return setup.engine.stats().ops_in_flight == 0; }));
  for (auto& submitter : submitters) EXPECT_GT(submitter->in_batch(), 0u);
}

/// Parts that a completion says were delivered, by callback.
struct Delivered {
  std::atomic<uint64_t> parts{0}, failed{0}, unknown{0}, reports{0};
  void report(const Event& event) {
    parts.fetch_add(event.tag - event.parts_failed);
    failed.fetch_add(event.parts_failed);
    unknown.fetch_add(event.parts_unknown);
    reports.fetch_add(1);
  }
};

TEST(EngineTraffic, CountsAtRestAreWhatTheCompletionsSay) {
  Cluster cluster(2);
  Area source(cluster[0], kAreaBytes), target(cluster[1], kAreaBytes);
  const PeerId peer = cluster.connect(0, 1);
  const RemoteRegion remote = target.seen_by(cluster[0], peer);
  Counter counter = *cluster[1].make_counter();
  const CounterKey key = counter.key();
  Delivered delivered;
  std::atomic<uint64_t> accepted{0};
  RecentOps recent;
  ScopedThreads threads;
  for (uint32_t t = 0; t < kSubmitters; ++t) {
    threads.add([&, t] {
      Rng rng(test_seed() + 31 * t);
      const std::array<uint32_t, kPages> pages{0, 1, 2, 3};
      const Pages both{.indices = pages, .stride_bytes = 1024, .offset_bytes = t * kSliceBytes};
      for (uint32_t i = 0; i < kRounds; ++i) {
        const bool paged = rng.chance(0.5);
        const Notify notify = Notify::call<&Delivered::report>(&delivered, paged ? kPages : 1);
        const auto op = paged ? cluster[0].submit(PagedWrite{.source = source.region().id(),
                                                             .source_pages = both,
                                                             .target = remote,
                                                             .target_pages = both,
                                                             .page_bytes = 1024,
                                                             .imm = key,
                                                             .notify = notify})
                              : cluster[0].submit(Write{.source = source.region().at(0),
                                                        .target = remote.at(t * kSliceBytes),
                                                        .size_bytes = rng.below(kSliceBytes),
                                                        .imm = key,
                                                        .notify = notify});
        if (!op) continue;
        accepted.fetch_add(1);
        recent.add(*op);
        if (rng.chance(0.3)) (void)cluster[0].cancel(recent.pick(rng));
      }
    });
  }
  threads.join();
  ASSERT_TRUE(eventually([&] { return delivered.reports.load() == accepted.load(); }));
  EXPECT_EQ(delivered.unknown.load(), 0u);
  EXPECT_GT(delivered.parts.load(), 0u);
  EXPECT_TRUE(counter.wait(delivered.parts.load(), 10s));
  EXPECT_EQ(counter.count(), 0u);
  EXPECT_EQ(cluster[1].stats().stale_imms, 0u);
}

/// A write, its completion, its count, its bytes; then the next one. Another thread cancels.
class Courier {
 public:
  Courier(Cluster& cluster, Area& source, Area& target, RemoteRegion remote, uint32_t number)
      : cluster_(cluster),
        source_(source),
        target_(target),
        remote_(remote),
        offset_(uint64_t{number} * kSliceBytes),
        rng_(test_seed() + number),
        inbox_(*cluster[0].make_inbox(1)),
        counter_(*cluster[1].make_counter()) {}

  void run(RecentOps& recent) {
    for (uint32_t i = 0; i < 60; ++i) {
      const uint64_t size = 1 + rng_.below(kSliceBytes);
      std::byte* from = source_.bytes.data() + offset_;
      std::byte* to = target_.bytes.data() + offset_;
      std::memset(from, static_cast<int>(1 + rng_.below(255)), size);
      std::memset(to, 0, size);
      const auto op = cluster_[0].submit(Write{.source = source_.region().at(offset_),
                                               .target = remote_.at(offset_),
                                               .size_bytes = size,
                                               .imm = counter_.key(),
                                               .notify = Notify::inbox(inbox_)});
      ASSERT_TRUE(op);
      recent.add(*op);
      ASSERT_TRUE(inbox_.wait(20s));
      Event event;
      ASSERT_EQ(inbox_.poll({&event, 1}), 1u);
      ASSERT_EQ(event.op, *op);
      ASSERT_NE(event.remote, Remote::kUnknown);
      if (event.remote == Remote::kDelivered) {
        ASSERT_TRUE(counter_.wait(1, 20s));
        ASSERT_EQ(std::memcmp(from, to, size), 0);
        ++delivered;
      } else {
        ASSERT_EQ(event.code, Errc::kCancelled);
        ASSERT_EQ(counter_.count(), 0u);
      }
    }
  }
  uint32_t delivered = 0;

 private:
  Cluster& cluster_;
  Area& source_;
  Area& target_;
  RemoteRegion remote_;
  uint64_t offset_;
  Rng rng_;
  Inbox inbox_;
  Counter counter_;
};

TEST(EngineTraffic, BytesAreThereWithTheCountAndNotCountedWhenCancelled) {
  Cluster cluster(2);
  Area source(cluster[0], kAreaBytes), target(cluster[1], kAreaBytes);
  const PeerId peer = cluster.connect(0, 1);
  const RemoteRegion remote = target.seen_by(cluster[0], peer);
  std::vector<std::unique_ptr<Courier>> couriers;
  for (uint32_t i = 0; i < kSubmitters; ++i) {
    couriers.push_back(std::make_unique<Courier>(cluster, source, target, remote, i));
  }
  RecentOps recent;
  std::atomic<bool> stop{false};
  ScopedThreads canceller, threads;
  canceller.add([&] {
    Rng rng(test_seed());
    while (!stop.load()) {
      if (const OpId op = recent.pick(rng)) (void)cluster[0].cancel(op);
      std::this_thread::sleep_for(10us);
    }
  });
  for (auto& courier : couriers) threads.add([&] { courier->run(recent); });
  threads.join();
  stop.store(true);
  canceller.join();
  for (auto& courier : couriers) EXPECT_GT(courier->delivered, 0u);
}

TEST(EngineTraffic, BatchesAreCancelledSealedResetAndAbandonedUnderTheirSubmitters) {
  Cluster cluster(2);
  Area source(cluster[0], kAreaBytes), target(cluster[1], kAreaBytes);
  const PeerId peer = cluster.connect(0, 1);
  const RemoteRegion remote = target.seen_by(cluster[0], peer);
  ReportAudit audit(4096);
  std::atomic<uint64_t> seals{0}, sealed{0};
  struct Seal {
    std::atomic<uint64_t>& seals;
    void report(const Event&) { seals.fetch_add(1); }
  } seal{seals};

  for (uint32_t round = 0; round < 12; ++round) {
    auto batch = std::make_unique<Batch>(*cluster[0].make_batch());
    const BatchId id = *batch;
    std::atomic<bool> stop{false};
    ScopedThreads threads;
    for (uint32_t t = 0; t < 3; ++t) {
      threads.add([&, t] {
        for (uint32_t i = 0; i < 40 && !stop.load(); ++i) {
          const uint64_t tag = audit.open();
          const auto op = cluster[0].submit(Write{.source = source.region().at(0),
                                                  .target = remote.at(t * kSliceBytes),
                                                  .size_bytes = kSliceBytes,
                                                  .batch = id,
                                                  .notify = audit.call(tag)});
          if (!op) audit.refused(tag);
        }
      });
    }
    threads.add([&] {
      const auto waited = cluster[0].wait(id, 20s);
      EXPECT_NE(waited.error().code, Errc::kTimeout);
    });
    if (round % 3 == 0) {
      EXPECT_TRUE(cluster[0].cancel(id));
      EXPECT_TRUE(eventually([&] { return batch->pending() == 0; }));
      EXPECT_TRUE(batch->reset());
    }
    if (round % 3 == 1 && batch->seal(Notify::call<&Seal::report>(&seal))) sealed.fetch_add(1);
    if (round % 3 == 2) batch.reset();
    threads.join();
  }
  EXPECT_TRUE(eventually([&] { return audit.complete() && seals.load() == sealed.load(); }));
  audit.expect_exactly_once();
  EXPECT_EQ(sealed.load(), 4u);
}

TEST(EngineTraffic, ASealedBatchThatIsLetGoStillReportsOnce) {
  Cluster cluster(1);
  Inbox inbox = *cluster[0].make_inbox(1);
  for (uint32_t round = 0; round < 3; ++round) {
    {
      Batch batch = *cluster[0].make_batch();
      ASSERT_TRUE(cluster[0].submit(Timer{.after = 20s, .batch = batch}));
      ASSERT_TRUE(batch.seal(Notify::inbox(inbox, round)))
          << "its room in the inbox was never freed";
    }
    ASSERT_TRUE(inbox.wait(20s));
    Event event;
    ASSERT_EQ(inbox.poll({&event, 1}), 1u);
    EXPECT_EQ(event.tag, round);
    EXPECT_EQ(event.code, Errc::kCancelled);
  }
}

TEST(EngineTraffic, AFullQueueReportsWhenThereIsRoomAgainToEverySubmitter) {
  Config config = engine_config();
  config.ops_max = 16;
  Cluster cluster(2, config);
  Area source(cluster[0], kAreaBytes), target(cluster[1], kAreaBytes);
  const PeerId peer = cluster.connect(0, 1);
  const RemoteRegion remote = target.seen_by(cluster[0], peer);
  struct Room {
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t events = 0;
    void report(const Event& event) {
      if (event.kind != EventKind::kRoom) return;
      const std::lock_guard lock(mutex);
      ++events;
      changed.notify_all();
    }
  } room;
  Subscription subscription = *cluster[0].subscribe(Notify::call<&Room::report>(&room));
  ReportAudit audit(4 * 300 * 64);
  std::atomic<uint64_t> refused{0};
  ScopedThreads threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.add([&, t] {
      for (uint32_t i = 0; i < 300; ++i) {
        while (true) {
          std::unique_lock lock(room.mutex);
          const uint64_t before = room.events;
          lock.unlock();
          const uint64_t tag = audit.open();
          if (cluster[0].submit(Write{.source = source.region().at(0),
                                      .target = remote.at(t * kSliceBytes),
                                      .size_bytes = 64,
                                      .notify = audit.call(tag)})) {
            break;
          }
          audit.refused(tag);
          refused.fetch_add(1);
          lock.lock();
          ASSERT_TRUE(room.changed.wait_for(lock, kPatience, [&] { return room.events > before; }))
              << "refused, and never notified that there is room";
        }
      }
    });
  }
  threads.join();
  EXPECT_TRUE(eventually([&] { return audit.complete(); }));
  audit.expect_exactly_once();
  EXPECT_EQ(audit.ok(), 4u * 300u);
  EXPECT_GT(refused.load(), 0u);
}

}  // namespace
}  // namespace fabric::test::engine_traffic_test

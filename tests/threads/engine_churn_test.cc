#include "threads/engine_harness.h"

// Regions, peers, groups and names that come and go under traffic.

namespace fabric::test::engine_churn_test {
namespace {

bool one_of(Errc code, std::initializer_list<Errc> allowed) {
  return std::find(allowed.begin(), allowed.end(), code) != allowed.end();
}

TEST(EngineChurn, RegionsEndUnderTheWritesOfOthersAndAreNeverWrittenAfterwards) {
  Cluster cluster(2);
  Area source(cluster[0], 4096);
  std::fill(source.bytes.begin(), source.bytes.end(), std::byte{0x5a});
  const PeerId peer = cluster.connect(0, 1);
  std::mutex mutex;
  RemoteRegion current;
  std::atomic<bool> stop{false};
  ReportAudit audit(200'000);
  std::atomic<uint64_t> delivered{0};
  ScopedThreads writers;
  for (uint32_t t = 0; t < 3; ++t) {
    writers.add([&] {
      Inbox inbox = *cluster[0].make_inbox(4);
      std::array<Event, 4> events;
      while (!stop.load() && audit.opened() < 190'000) {
        RemoteRegion target;
        {
          const std::lock_guard lock(mutex);
          target = current;
        }
        const uint64_t tag = audit.open();
        const auto op = target ? cluster[0].submit(Write{.source = source.region().at(0),
                                                         .target = target.at(0),
                                                         .size_bytes = 4096,
                                                         .notify = Notify::inbox(inbox, tag)})
                               : Result<OpId>(fail(Errc::kNotFound, "target"));
        if (!op) {
          audit.refused(tag);
          ASSERT_TRUE(one_of(op.error().code, {Errc::kNotFound, Errc::kExhausted}))
              << to_string(op.error().code);
          std::this_thread::sleep_for(20us);  // until there is a region again
        } else {
          ASSERT_TRUE(inbox.wait(20s));
        }
        const uint32_t n = inbox.poll(events);
        for (uint32_t i = 0; i < n; ++i) {
          audit.report(events[i]);
          ASSERT_TRUE(one_of(events[i].code, {Errc::kOk, Errc::kNotFound}))
              << to_string(events[i].code);
          if (events[i].code == Errc::kOk) delivered.fetch_add(1);
        }
      }
    });
  }
  for (uint32_t round = 0; round < 40; ++round) {
    Area area(cluster[1], 4096);
    {
      const std::lock_guard lock(mutex);
      current = area.seen_by(cluster[0], peer);
    }
    const uint64_t before = delivered.load();
    ASSERT_TRUE(eventually([&] { return delivered.load() > before + 2; }));
    Batch batch = *cluster[1].make_batch();
    ASSERT_TRUE(cluster[1].submit(Deregister{.region = area.region().id(), .batch = batch}));
    ASSERT_TRUE(cluster[1].wait(batch, 20s));
    std::fill(area.bytes.begin(), area.bytes.end(), std::byte{0});
    std::this_thread::sleep_for(200us);
    ASSERT_EQ(std::count(area.bytes.begin(), area.bytes.end(), std::byte{0}), 4096);
  }
  stop.store(true);
  writers.join();
  EXPECT_TRUE(eventually([&] { return audit.complete(); }));
  audit.expect_exactly_once();
}

TEST(EngineChurn, RegionsThatWereTakenBackDoNotCountAgainstTheBound) {
  Config config = engine_config();
  config.regions_max = 4;
  Cluster cluster(2, config);
  const PeerId peer = cluster.connect(0, 1);
  // An owner that does not know its importer yet cannot report the end of a region to it.
  ASSERT_TRUE(eventually([&] { return cluster[1].peers().size() == 1; }));
  RemoteRegion first;
  for (uint32_t round = 0; round < 40; ++round) {
    Area area(cluster[1], 64);
    const RemoteRegion remote = area.seen_by(cluster[0], peer);
    ASSERT_TRUE(remote) << round;
    ASSERT_NE(remote, first);
    if (!first) first = remote;
  }
  // An old handle never means a new region.
  Area source(cluster[0], 64);
  EXPECT_EQ(
      cluster[0].submit(Write{.source = source.region().at(0), .target = first.at(0)}).error().code,
      Errc::kNotFound);
}

TEST(EngineChurn, OwnRegionsEndUnderOwnWrites) {
  Cluster cluster(2);
  Area target(cluster[1], 4096);
  const PeerId peer = cluster.connect(0, 1);
  const RemoteRegion remote = target.seen_by(cluster[0], peer);
  ReportAudit audit(4 * 40 * 20);
  ScopedThreads threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.add([&, t] {
      for (uint32_t round = 0; round < 40; ++round) {
        auto area = std::make_unique<Area>(cluster[0], 4096);
        for (uint32_t i = 0; i < 20; ++i) {
          const uint64_t tag = audit.open();
          if (!cluster[0].submit(Write{.source = area->region().at(0),
                                       .target = remote.at(1024 * t),
                                       .size_bytes = 1024,
                                       .notify = audit.call(tag)})) {
            audit.refused(tag);
          }
        }
        area.reset();  // waits for the fence; the bytes are freed right after
      }
    });
  }
  threads.join();
  EXPECT_TRUE(eventually([&] { return audit.complete(); }));
  audit.expect_exactly_once();
  EXPECT_EQ(cluster[0].stats().regions, 0u);
}

TEST(EngineChurn, PeersDisconnectAndComeBackUnderTraffic) {
  Cluster cluster(3);
  Area source(cluster[0], 4096);
  std::vector<std::unique_ptr<Area>> targets;
  for (uint32_t i = 1; i < 3; ++i) targets.push_back(std::make_unique<Area>(cluster[i], 4096));
  ReportAudit audit(100'000);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> connected{0};
  ScopedThreads threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.add([&, t] {
      const uint32_t to = 1 + t % 2;
      while (!stop.load() && audit.opened() < 90'000) {
        auto peer = cluster[0].connect(cluster[to].address());
        if (!peer) continue;
        auto desc = targets[to - 1]->region().desc();
        ASSERT_TRUE(desc);
        auto remote = cluster[0].import_region(*peer, *desc);
        auto group = cluster[0].make_group({&*peer, 1});
        if (!remote || !group) continue;
        for (uint32_t i = 0; i < 20; ++i) {
          const uint64_t tag = audit.open();
          const ScatterTarget target{remote->at(0), 0, 64, {}};
          const auto op = i % 2 == 0 ? cluster[0].submit(Write{.source = source.region().at(0),
                                                               .target = remote->at(t * 512),
                                                               .size_bytes = 512,
                                                               .notify = audit.call(tag)})
                                     : cluster[0].submit(Scatter{.source = source.region().id(),
                                                                 .targets = {&target, 1},
                                                                 .group = *group,
                                                                 .notify = audit.call(tag)});
          if (!op) audit.refused(tag);
        }
        std::this_thread::sleep_for(100us);
      }
    });
  }
  for (uint32_t round = 0; round < 60; ++round) {
    const uint32_t to = 1 + round % 2;
    auto peer = cluster[0].connect(cluster[to].address());
    if (!peer) continue;
    // Sometimes before it is up, sometimes from the other side.
    if (round % 4 < 2) {
      EXPECT_TRUE(eventually([&] {
        const auto info = cluster[0].peer_info(*peer);
        return !info || info->state != PeerState::kConnecting;
      }));
      connected.fetch_add(1);
    }
    if (round % 3 == 0) {
      for (const PeerId back : cluster[to].peers()) (void)cluster[to].disconnect(back);
    } else {
      (void)cluster[0].disconnect(*peer);
    }
    std::this_thread::sleep_for(300us);
  }
  stop.store(true);
  threads.join();
  EXPECT_TRUE(eventually([&] { return audit.complete(); })) << cluster[0].dump();
  audit.expect_exactly_once();
  EXPECT_GT(audit.ok(), 0u);
}

TEST(EngineChurn, FencesAreCancelledAndLosePeersUnderThem) {
  Cluster cluster(2);
  ReportAudit audit(4 * 60);
  for (uint32_t round = 0; round < 60; ++round) {
    const PeerId peer = cluster.connect(0, 1);
    ASSERT_TRUE(eventually([&] {
      const auto info = cluster[0].peer_info(peer);
      return !info || info->state != PeerState::kConnecting;
    }));
    const uint64_t tag = audit.open();
    const auto op = cluster[0].submit(Fence{.peer = peer, .notify = audit.call(tag)});
    if (!op) audit.refused(tag);
    ScopedThreads threads;
    if (op && round % 3 == 0) threads.add([&] { (void)cluster[0].cancel(*op); });
    if (round % 3 == 1) threads.add([&] { (void)cluster[0].disconnect(peer); });
    if (round % 3 == 2) {
      threads.add([&] {
        for (const PeerId back : cluster[1].peers()) (void)cluster[1].disconnect(back);
      });
    }
    threads.join();
    ASSERT_TRUE(eventually([&] { return audit.complete(); })) << cluster[0].dump();
  }
  audit.expect_exactly_once();
  EXPECT_EQ(cluster[0].stats().ops_in_flight, 0u);
}

TEST(EngineChurn, GroupsEndWhileTheirSignalsAreSubmitted) {
  Config config = engine_config();
  config.peers_max = 1;  // 16 groups: their slots come back at once
  Cluster cluster(2, config);
  const PeerId peer = cluster.connect(0, 1);
  Counter counter = *cluster[1].make_counter();
  const CounterKey key = counter.key();
  std::atomic<uint64_t> id{0}, accepted{0};
  std::atomic<bool> stop{false};
  ReportAudit audit(400'000);
  ScopedThreads threads;
  for (uint32_t t = 0; t < 3; ++t) {
    threads.add([&] {
      while (!stop.load() && audit.opened() < 390'000) {
        const uint64_t packed = id.load();
        const GroupId group(static_cast<uint32_t>(packed), static_cast<uint32_t>(packed >> 32));
        const uint64_t tag = audit.open();
        const auto op =
            cluster[0].submit(Signal{.group = group, .keys = {&key, 1}, .notify = audit.call(tag)});
        if (!op) {
          audit.refused(tag);
          ASSERT_TRUE(
              one_of(op.error().code, {Errc::kNotFound, Errc::kInvalidArgument, Errc::kExhausted}))
              << to_string(op.error().code);
          std::this_thread::yield();
        } else {
          accepted.fetch_add(1);
        }
      }
    });
  }
  for (uint32_t i = 0; i < 3000; ++i) {
    auto group = cluster[0].make_group({&peer, 1});
    if (!group) continue;  // a submitter still looks at the last free one
    id.store(uint64_t{group->id().generation} << 32 | group->id().slot);
    std::this_thread::yield();
  }
  stop.store(true);
  threads.join();
  EXPECT_TRUE(eventually([&] { return audit.complete(); }));
  audit.expect_exactly_once();
  EXPECT_EQ(audit.ok(), accepted.load());
  if (accepted.load() > 0) {
    EXPECT_TRUE(counter.wait(accepted.load(), 20s));
  }
}

TEST(EngineChurn, NamesAreResolvedAndClosedByManyThreads) {
  Cluster cluster(2);
  const PeerId peer = cluster.connect(0, 1);
  ScopedThreads threads;
  for (uint32_t t = 0; t < 4; ++t) {
    threads.add([&, t] {
      for (uint32_t i = 0; i < 25; ++i) {
        const uint64_t name = t * 1000 + i;
        Counter counter = *cluster[1].named_counter(name);
        CounterKey key;
        ASSERT_TRUE(cluster[0].resolve(peer, {&name, 1}, {&key, 1}, 20s));
        ASSERT_EQ(key, counter.key());
        const auto rest = counter.close(20s);
        ASSERT_TRUE(rest);
        EXPECT_EQ(*rest, Quiescence::kProved);
      }
    });
  }
  threads.join();
  EXPECT_EQ(cluster[1].stats().counters, 0u);
}

}  // namespace
}  // namespace fabric::test::engine_churn_test

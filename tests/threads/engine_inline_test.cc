#include "providers/sim/world.h"
#include "threads/engine_harness.h"

// Several engines without threads of their own, driven by one thread while others submit.

namespace fabric::test::engine_inline_test {
namespace {

/// A network in real time that engines of any runtime can be opened on.
struct Site {
  std::shared_ptr<sim::World::Impl> world =
      sim::make_world({.seed = test_seed(), .realtime = true});
  std::shared_ptr<InlineRuntime> runtime = std::make_shared<InlineRuntime>();

  Engine open() {
    sim::NodeNetwork network;
    network.model = quick_nic();
    const uint32_t node = world->wire.add_node({network});
    Config config = engine_config();
    config.networks = {{.provider = "sim", .devices = {sim::world_token(*world, node)}}};
    auto engine = Engine::open(config, runtime);
    EXPECT_TRUE(engine) << engine.error().what;
    return *std::move(engine);
  }
};

/// An engine that writes to another one, or to itself.
struct Loop {
  Engine engine;
  Area source{engine, 4096}, target{engine, 4096};
  Counter counter;
  PeerId peer{};
  RemoteRegion remote{};
  explicit Loop(Site& site) : engine(site.open()), counter(*engine.make_counter()) {}
  void aim_at(Loop& other) {
    peer = *engine.connect(other.engine.address());
    remote = other.target.seen_by(engine, peer);
  }
};

TEST(EngineInline, OneThreadDrivesSeveralEnginesWhileOthersSubmit) {
  Site site;
  std::vector<std::unique_ptr<Loop>> loops;
  for (uint32_t i = 0; i < 3; ++i) loops.push_back(std::make_unique<Loop>(site));
  for (uint32_t i = 0; i < 3; ++i) loops[i]->aim_at(*loops[(i + 1) % 3]);
  constexpr uint32_t kThreads = 6, kWrites = 200;
  ReportAudit audit(kThreads * kWrites);
  std::atomic<uint32_t> submitting{kThreads};
  const std::thread::id driver = std::this_thread::get_id();
  struct Here {
    ReportAudit& audit;
    std::thread::id driver;
    void report(const Event& event) {
      EXPECT_EQ(std::this_thread::get_id(), driver) << "a callback on a submitter's thread";
      audit.report(event);
    }
  } here{audit, driver};
  ScopedThreads threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.add([&, t] {
      Loop& loop = *loops[t % loops.size()];
      for (uint32_t i = 0; i < kWrites; ++i) {
        const uint64_t tag = audit.open();
        ASSERT_TRUE(loop.engine.submit(Write{.source = loop.source.region().at(0),
                                             .target = loop.remote.at(0),
                                             .size_bytes = 256,
                                             .imm = loops[(t + 1) % 3]->counter.key(),
                                             .notify = Notify::call<&Here::report>(&here, tag)}));
      }
      submitting.fetch_sub(1);
    });
  }
  // A wait on any of them drives all of them; so does a turn, and progress() one.
  EXPECT_TRUE(loops[0]->counter.wait(kThreads / 3 * kWrites, 20s));
  EXPECT_TRUE(eventually([&] {
    site.runtime->turn();
    loops[1]->engine.progress();
    return submitting.load() == 0 && audit.complete();
  }));
  threads.join();
  audit.expect_exactly_once();
  EXPECT_EQ(audit.ok(), kThreads * kWrites);
  for (uint32_t i = 1; i < 3; ++i) EXPECT_TRUE(loops[i]->counter.wait(kThreads / 3 * kWrites, 20s));
}

TEST(EngineInline, ThreadsThatWaitTakeTurnsAtDrivingAndNoneRunsTheOthersCallbacksTwice) {
  Site site;
  Loop loop(site);
  loop.aim_at(loop);  // by a copy
  constexpr uint32_t kThreads = 4, kRounds = 60;
  ReportAudit audit(kThreads * kRounds);
  ScopedThreads threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.add([&] {
      Batch batch = *loop.engine.make_batch();
      for (uint32_t i = 0; i < kRounds; ++i) {
        const uint64_t tag = audit.open();
        ASSERT_TRUE(loop.engine.submit(Write{.source = loop.source.region().at(0),
                                             .target = loop.remote.at(0),
                                             .size_bytes = 64,
                                             .batch = batch,
                                             .notify = audit.call(tag)}));
        if (i % 3 == 0) loop.engine.progress();
        if (i % 3 == 1) site.runtime->turn();
        ASSERT_TRUE(loop.engine.wait(batch, 20s));
      }
    });
  }
  threads.join();
  EXPECT_TRUE(eventually([&] {
    site.runtime->turn();
    return audit.complete();
  }));
  audit.expect_exactly_once();
}

TEST(EngineInline, ClosesWhileOthersSubmitAndDrive) {
  for (uint32_t round = 0; round < 6; ++round) {
    Site site;
    Loop loop(site), other(site);
    loop.aim_at(other);
    ReportAudit audit(200'000);
    std::atomic<bool> stop{false};
    ScopedThreads threads;
    for (uint32_t t = 0; t < 2; ++t) {
      threads.add([&] {
        while (audit.opened() < 190'000) {
          const uint64_t tag = audit.open();
          const auto op = loop.engine.submit(Write{.source = loop.source.region().at(0),
                                                   .target = loop.remote.at(0),
                                                   .size_bytes = 64,
                                                   .notify = audit.call(tag)});
          if (op) continue;
          audit.refused(tag);
          if (op.error().code == Errc::kClosed) return;
          std::this_thread::yield();
        }
      });
    }
    threads.add([&] {
      while (!stop.load()) {
        site.runtime->turn();
        loop.engine.progress();
      }
    });
    threads.add(
        [&] { EXPECT_EQ(loop.counter.wait(1, Timeout::forever()).error().code, Errc::kClosed); });
    std::this_thread::sleep_for(round * 500us);
    EXPECT_TRUE(loop.engine.close(20s));
    // The other engine of the runtime goes on.
    Batch batch = *other.engine.make_batch();
    EXPECT_TRUE(other.engine.submit(Timer{.after = 100us, .batch = batch}));
    EXPECT_TRUE(other.engine.wait(batch, 20s));
    stop.store(true);
    threads.join();
    EXPECT_TRUE(audit.complete());
    audit.expect_exactly_once();
  }
}

}  // namespace
}  // namespace fabric::test::engine_inline_test

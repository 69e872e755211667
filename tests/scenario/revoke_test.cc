#include <algorithm>
#include <cstring>
#include <optional>

#include "scenario/story.h"
#include "support/log_guard.h"

// Memory that is taken back under load (P13): importers hear of it first and drain, so that nobody
// breaks a connection over a refused write; who does not listen pays alone; and without proof the
// memory stays in quarantine.

namespace fabric::test {
namespace {

using sim::Fault;

constexpr uint64_t kSize = 32 << 10, kPage = 1024;
constexpr uint32_t kOwner = 0, kFirst = 1, kSecond = 2;  // nodes
constexpr uint32_t kWrites = 100;                        // of each importer to each region
constexpr uint64_t kStride = 53;

sim::NicModel slow_rc() {
  sim::NicModel model = sim::NicModel::connectx7();
  model.gbit_per_s = 4;
  model.path_depth = 32;
  return model;
}

/// One who writes to two regions of the owner: `ending` is about to be taken back, `staying` not.
struct Importer {
  Importer(sim::World& world, Host& owner, const MemoryRegion& ending_region, uint32_t node,
           const Config& config)
      : host(open_host(world, node, kSize, config)),
        peer(*host.engine.connect(owner.engine.address())),
        ending(*host.engine.import_region(peer, *ending_region.desc())),
        staying(*host.engine.import_region(peer, *owner.memory.desc())),
        counter(*owner.engine.make_counter()),
        to_ending(*host.engine.make_batch()),
        to_staying(*host.engine.make_batch()) {
    await_connected(world, host, peer);
    fill(host.bytes(), node);
  }
  void load(uint64_t base) {
    for (uint32_t i = 0; i < kWrites; ++i) {
      const uint64_t at = i % 8 * kPage;
      ASSERT_TRUE(host.engine.submit(Write{.source = host.memory.at(at),
                                           .target = ending.at(base + at),
                                           .size_bytes = kPage,
                                           .batch = to_ending,
                                           .notify = ended.notify()}));
      ASSERT_TRUE(host.engine.submit(Write{.source = host.memory.at(at),
                                           .target = staying.at(base + at),
                                           .size_bytes = kPage,
                                           .imm = counter.key(),
                                           .batch = to_staying}));
    }
  }
  Errc write_to_ending() {
    const Write request{.source = host.memory.at(0), .target = ending.at(0), .size_bytes = 8};
    return host.engine.submit(request).error().code;
  }

  Witness ended;
  Host host;
  PeerId peer;
  RemoteRegion ending, staying;
  Counter counter;
  Batch to_ending, to_staying;
};

class Stage {
 public:
  explicit Stage(const sim::NicModel& model = slow_rc(), const Config& config = quick())
      : world({.seed = test_seed()}), memory(kSize) {
    for (uint32_t node = 0; node < 3; ++node) world.add_node(1, model);
    owner.emplace(open_host(world, kOwner, kSize, config));
    region.emplace(*owner->engine.register_memory({.address = memory.data(), .size_bytes = kSize}));
    first.emplace(world, *owner, *region, kFirst, quick());
    second.emplace(world, *owner, *region, kSecond, quick());
    sub.emplace(*owner->engine.subscribe(seen.notify()));
    desc = *region->desc();
  }
  static Config quick() {
    Config config = story_config();
    config.peer_timeout = 1s;
    config.lost_timeout = 6s;
    config.drain_timeout = 2s;
    return config;
  }
  void load() {
    first->load(0);
    second->load(8 * kPage);
  }
  OpId deregister(uint64_t tag, Timeout timeout = 5s) {
    return *owner->engine.submit(
        Deregister{.region = region->id(), .timeout = timeout, .notify = ended.notify(tag)});
  }
  /// Nothing may land from the moment at which the deregistration says ok.
  void guard() {
    ended.then = [this](const Event& event) {
      if (event.code == Errc::kOk) reuse();
    };
  }
  void reuse() {
    fill(memory, 99);
    expected = memory;
    reused = true;
  }
  bool intact() const { return std::memcmp(memory.data(), expected.data(), kSize) == 0; }
  Event await(uint64_t tag) {
    const bool came = world.run_until([&] { return ended.find(tag) != nullptr; }, 60s);
    EXPECT_TRUE(came) << owner->engine.dump();
    return came ? *ended.find(tag) : Event{};
  }
  /// Everything to the region that stays has arrived once.
  void stays(Importer& importer, uint64_t base) {
    EXPECT_TRUE(importer.host.engine.wait(importer.to_staying)) << importer.host.engine.dump();
    EXPECT_EQ(importer.to_staying.failed(), 0u);
    EXPECT_TRUE(importer.counter.wait(kWrites, 5s));
    EXPECT_EQ(importer.counter.count(), 0u);
    EXPECT_TRUE(
        std::ranges::equal(owner->bytes(base, 8 * kPage), importer.host.bytes(0, 8 * kPage)));
  }
  /// What went to the region that ended has ended too, in one of these ways.
  void ended_with(Importer& importer, std::initializer_list<Errc> codes) {
    EXPECT_TRUE(world.run_until([&] { return importer.to_ending.pending() == 0; }, 60s))
        << importer.host.engine.dump();
    EXPECT_EQ(importer.ended.count(), kWrites);
    for (const Event& event : importer.ended.events) {
      EXPECT_TRUE(std::ranges::find(codes, event.code) != codes.end()) << to_string(event.code);
    }
  }
  void happens(const Fault& fault) { ASSERT_TRUE(world.at(world.now(), fault)); }

  Witness seen, ended;
  sim::World world;
  std::vector<std::byte> memory;
  std::optional<Host> owner;
  std::optional<MemoryRegion> region;
  std::optional<Importer> first, second;
  std::optional<Subscription> sub;
  std::vector<std::byte> desc;
  bool reused = false;
  std::vector<std::byte> expected;  ///< in the memory, once it is used again
};

EachStep watch(Stage& stage) {
  return EachStep(stage.world, [&stage, failed = false]() mutable {
    if (!stage.reused || failed || stage.intact()) return;
    failed = true;
    ADD_FAILURE() << "a write landed in memory that was given back";
  });
}

// ---- Under load ---------------------------------------------------------------------------------

TEST(Deregister, UnderLoadAtAnyStepBreaksNobodysConnection) {
  uint64_t begin = 0, end = 0;
  {
    Stage stage;
    begin = stage.world.events();
    stage.load();
    stage.stays(*stage.first, 0);
    stage.stays(*stage.second, 8 * kPage);
    end = stage.world.events();
  }
  ASSERT_GT(end - begin, 500u);
  for (uint64_t at = begin; at < end; at += kStride) {
    SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
    Stage stage;
    stage.guard();
    const EachStep check = watch(stage);
    stage.load();
    stage.world.run_until([&] { return stage.world.events() >= at; }, 1s);
    const Nanos began = stage.world.now();
    stage.deregister(1);
    EXPECT_EQ(stage.await(1).code, Errc::kOk);
    EXPECT_LE(stage.world.now() - began, Nanos(10ms)) << "they answer, nobody waits for a bound";
    for (Importer* importer : {&*stage.first, &*stage.second}) {
      EXPECT_EQ(importer->write_to_ending(), Errc::kNotFound) << "refused before it is posted";
      EXPECT_EQ(importer->host.engine.import_region(importer->peer, stage.desc).error().code,
                Errc::kNotFound);
      stage.ended_with(*importer, {Errc::kOk, Errc::kNotFound});
      EXPECT_EQ(importer->to_ending.unknown(), 0u);
    }
    stage.stays(*stage.first, 0);
    stage.stays(*stage.second, 8 * kPage);
    EXPECT_EQ(stage.owner->engine.stats().stale_imms, 0u);
    if (testing::Test::HasFailure()) return;
  }
}

/// One importer does not answer. Returns how it is undone.
using Silence = std::function<Fault(Stage&)>;

void one_is_silent(const Silence& silence) {
  expect_log("a path broke");
  for (const Nanos after : {Nanos(20us), Nanos(150us), Nanos(700us)}) {
    SCOPED_TRACE(after.count());
    Stage stage;
    stage.guard();
    const EachStep check = watch(stage);
    stage.load();
    stage.world.run_for(after);
    const Fault undo = silence(stage);
    const Nanos began = stage.world.now();
    stage.deregister(1);
    EXPECT_EQ(stage.await(1).code, Errc::kOk);
    EXPECT_GE(stage.world.now() - began, Nanos(1s)) << "it had its grace";
    EXPECT_LE(stage.world.now() - began, Nanos(1100ms));
    const uint64_t broken = logged("a path broke");
    stage.stays(*stage.second, 8 * kPage);
    stage.ended_with(*stage.second, {Errc::kOk, Errc::kNotFound});
    EXPECT_EQ(logged("a path broke"), broken) << "who listened has not paid";
    stage.happens(undo);
    stage.stays(*stage.first, 0);
    stage.ended_with(*stage.first, {Errc::kOk, Errc::kNotFound, Errc::kRemoteAccess});
    stage.world.run_for(1s);
    EXPECT_EQ(stage.first->write_to_ending(), Errc::kNotFound) << "it has heard of it in the end";
    EXPECT_EQ(stage.owner->engine.stats().stale_imms, 0u);
  }
}

TEST(Deregister, AStoppedImporterPaysAlone) {
  one_is_silent([](Stage& stage) {
    stage.happens(Fault::stop(kFirst));
    return Fault::resume(kFirst);
  });
}

TEST(Deregister, AnImporterThatCannotHearPaysAlone) {
  one_is_silent([](Stage& stage) {
    stage.happens(Fault::control_cut(kFirst, kOwner));
    return Fault::control_heal(kFirst, kOwner);
  });
}

TEST(Deregister, AnImporterWhoseWritesAreLatePaysAlone) {
  one_is_silent([](Stage& stage) {
    stage.happens(Fault::delay(kFirst, 1500ms));
    return Fault::delay(kFirst, 0s);
  });
}

// ---- Without proof ------------------------------------------------------------------------------

TEST(Quarantine, LastsUntilTheProofThatComesAfterTheDeadline) {
  Config config = Stage::quick();
  config.regions_max = 2;
  Stage stage(slow_rc(), config);
  stage.load();
  stage.world.run_for(100us);
  stage.happens(Fault::late_proof(kOwner, 3s));
  const Nanos began = stage.world.now();
  const OpId op = stage.deregister(1, 1s);
  const Event event = stage.await(1);
  EXPECT_EQ(event.code, Errc::kTimeout);
  EXPECT_EQ(event.remote, Remote::kUnknown);
  EXPECT_LE(stage.world.now() - began, Nanos(1001ms));
  // In quarantine: nobody writes there, nobody gets its place, and it is nobody's any more.
  EXPECT_EQ(stage.first->write_to_ending(), Errc::kNotFound);
  EXPECT_EQ(stage.owner->engine.allocate({.size_bytes = 64}).error().code, Errc::kExhausted);
  EXPECT_EQ(stage.region->desc().error().code, Errc::kNotFound);
  EXPECT_EQ(stage.owner->engine.submit(Deregister{.region = stage.region->id()}).error().code,
            Errc::kNotFound);
  EXPECT_EQ(stage.seen.count(EventKind::kFenceProved), 0u);

  const auto proved = [&] { return stage.seen.count(EventKind::kFenceProved) > 0; };
  ASSERT_TRUE(stage.world.run_until(proved, 10s));
  EXPECT_GE(stage.world.now() - began, Nanos(3s));
  const auto proof = std::ranges::find(stage.seen.events, EventKind::kFenceProved, &Event::kind);
  EXPECT_EQ(proof->op, op);
  stage.reuse();
  const EachStep check = watch(stage);
  stage.happens(Fault::late_proof(kOwner, 0s));
  auto next = stage.owner->engine.allocate({.size_bytes = 64});
  EXPECT_TRUE(next) << "its place is free again";
  EXPECT_EQ(stage.first->write_to_ending(), Errc::kNotFound) << "an old handle, a new region";
  stage.stays(*stage.first, 0);
  stage.stays(*stage.second, 8 * kPage);
  EXPECT_EQ(stage.seen.count(EventKind::kFenceProved), 1u);
}

// ---- Grants -------------------------------------------------------------------------------------

TEST(Grant, IsForOnePeerAndGoesWithIt) {
  expect_log("a path broke");  // the last write below, which a NIC refuses
  for (const FenceKind kind : {FenceKind::kLocal, FenceKind::kRekey}) {
    SCOPED_TRACE(to_string(kind));
    sim::NicModel model = slow_rc();
    model.fence = kind;
    Stage stage(model);
    Host& from = stage.first->host;
    Engine& owner = stage.owner->engine;
    stage.world.run_for(1ms);
    Config config = Stage::quick();
    config.engine_id = 77;
    const uint32_t node = stage.world.add_node(1, model);
    Host granted = open_host(stage.world, node, kSize, config);
    fill(granted.bytes(), 5);
    PeerId to = *granted.engine.connect(owner.address());
    await_connected(stage.world, granted, to);
    stage.world.run_for(1ms);
    const auto session = [&] {
      PeerId found{};
      for (const PeerId peer : owner.peers()) {
        if (owner.peer_info(peer)->engine_id == 77) found = peer;
      }
      return found;
    };
    const PeerId peer = session();
    const auto grant = *stage.region->grant(peer);
    EXPECT_EQ(*stage.region->grant(peer), grant) << "the same again";
    EXPECT_EQ(from.engine.import_region(stage.first->peer, grant).error().code, Errc::kPermission);

    const auto write = [&](RemoteRegion region) {
      Batch batch = *granted.engine.make_batch();
      const auto op = granted.engine.submit(Write{.source = granted.memory.at(0),
                                                  .target = region.at(0),
                                                  .size_bytes = kPage,
                                                  .batch = batch});
      if (!op) return op.error().code;
      return granted.engine.wait(batch).error().code;
    };
    const RemoteRegion region = *granted.engine.import_region(to, grant);
    EXPECT_EQ(write(region), Errc::kOk);
    EXPECT_TRUE(holds(std::span(stage.memory).first(kPage), 5));

    ASSERT_TRUE(owner.disconnect(peer));
    EXPECT_EQ(stage.region->grant(peer).error().code, Errc::kPeerLost);
    stage.world.run_for(1s);
    EXPECT_EQ(write(region), Errc::kPeerLost);
    to = *granted.engine.connect(owner.address());
    await_connected(stage.world, granted, to);
    stage.world.run_for(1ms);
    std::ranges::fill(stage.memory, std::byte{0});
    // Its keys went with the session it was granted to, whatever the descriptor says.
    if (const auto again = granted.engine.import_region(to, grant)) {
      EXPECT_EQ(write(*again), Errc::kRemoteAccess);
    }
    EXPECT_TRUE(untouched(stage.memory));
    EXPECT_EQ(write(*granted.engine.import_region(to, *stage.region->grant(session()))), Errc::kOk);
    EXPECT_TRUE(holds(std::span(stage.memory).first(kPage), 5));
  }
}

}  // namespace
}  // namespace fabric::test

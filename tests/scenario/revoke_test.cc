#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <set>

#include <gtest/gtest.h>

#include "core/core.h"
#include "harness/host.h"
#include "scenario/pairs.h"
#include "scenario/scripted_peer.h"
#include "support/log_guard.h"

// Revocation. Memory, under load (P13): importers are asked to drain first, so that no refused
// write breaks a connection; an importer that does not answer pays alone; and without proof the
// memory stays in quarantine. Named counter keys (P11): after the proof nothing is posted under
// them, in whatever order the frames arrive and whichever peer still has the counter key.

namespace fabric::test::revoke_test {
namespace {

using sim::Fault;

constexpr uint64_t kSize = 32 << 10, kPage = 1024;
constexpr uint32_t kOwner = 0, kFirst = 1, kSecond = 2;  // nodes
constexpr uint32_t kWrites = 100;                        // of each importer to each region
constexpr uint64_t kStride = 53;

sim::NicModel revoke_nic() {
  sim::NicModel model = rc_model();
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

  EventRecorder ended;
  Host host;
  PeerId peer;
  RemoteRegion ending, staying;
  Counter counter;
  Batch to_ending, to_staying;
};

class RevokeSetup {
 public:
  explicit RevokeSetup(const sim::NicModel& model = revoke_nic(), const Config& config = quick())
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
    Config config = test_config();
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
  /// Nothing may land once the deregistration has completed with kOk.
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
  /// What went to the region that ended has ended too, in one of these remotes.
  void ended_with(Importer& importer, std::initializer_list<Errc> codes) {
    EXPECT_TRUE(world.run_until([&] { return importer.to_ending.pending() == 0; }, 60s))
        << importer.host.engine.dump();
    EXPECT_EQ(importer.ended.count(), kWrites);
    for (const Event& event : importer.ended.events) {
      EXPECT_TRUE(std::ranges::find(codes, event.code) != codes.end()) << to_string(event.code);
    }
  }
  void happens(const Fault& fault) { ASSERT_TRUE(world.at(world.now(), fault)); }

  EventRecorder seen, ended;
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

sim::Hook watch(RevokeSetup& setup) {
  return setup.world.each_step([&setup, failed = false]() mutable {
    if (!setup.reused || failed || setup.intact()) return;
    failed = true;
    ADD_FAILURE() << "a write landed in memory that was given back";
  });
}

// ---- Under load ---------------------------------------------------------------------------------

TEST(Deregister, UnderLoadAtAnyStepBreaksNoConnection) {
  uint64_t begin = 0, end = 0;
  {
    RevokeSetup setup;
    begin = setup.world.events();
    setup.load();
    setup.stays(*setup.first, 0);
    setup.stays(*setup.second, 8 * kPage);
    end = setup.world.events();
  }
  ASSERT_GT(end - begin, 500u);
  for (uint64_t at = begin; at < end; at += kStride) {
    SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
    RevokeSetup setup;
    setup.guard();
    const sim::Hook check = watch(setup);
    setup.load();
    setup.world.run_until([&] { return setup.world.events() >= at; }, 1s);
    const Nanos began = setup.world.now();
    setup.deregister(1);
    EXPECT_EQ(setup.await(1).code, Errc::kOk);
    EXPECT_LE(setup.world.now() - began, Nanos(10ms))
        << "the peers answer: there must be no wait for a timeout";
    for (Importer* importer : {&*setup.first, &*setup.second}) {
      EXPECT_EQ(importer->write_to_ending(), Errc::kNotFound) << "refused before it is posted";
      EXPECT_EQ(importer->host.engine.import_region(importer->peer, setup.desc).error().code,
                Errc::kNotFound);
      setup.ended_with(*importer, {Errc::kOk, Errc::kNotFound});
      EXPECT_EQ(importer->to_ending.unknown(), 0u);
    }
    setup.stays(*setup.first, 0);
    setup.stays(*setup.second, 8 * kPage);
    EXPECT_EQ(setup.owner->engine.stats().stale_imms, 0u);
    if (testing::Test::HasFailure()) return;
  }
}

/// One importer does not answer. Returns how it is undone.
using Silence = std::function<Fault(RevokeSetup&)>;

void one_is_silent(const Silence& silence) {
  expect_log("a path broke");
  for (const Nanos after : {Nanos(20us), Nanos(150us), Nanos(700us)}) {
    SCOPED_TRACE(after.count());
    RevokeSetup setup;
    setup.guard();
    const sim::Hook check = watch(setup);
    setup.load();
    setup.world.run_for(after);
    const Fault undo = silence(setup);
    const Nanos began = setup.world.now();
    setup.deregister(1);
    EXPECT_EQ(setup.await(1).code, Errc::kOk);
    EXPECT_GE(setup.world.now() - began, Nanos(1s)) << "proved before the grace period had passed";
    EXPECT_LE(setup.world.now() - began, Nanos(1100ms));
    const uint64_t broken = logged("a path broke");
    setup.stays(*setup.second, 8 * kPage);
    setup.ended_with(*setup.second, {Errc::kOk, Errc::kNotFound});
    EXPECT_EQ(logged("a path broke"), broken) << "paths of peers that answered were closed";
    setup.happens(undo);
    setup.stays(*setup.first, 0);
    setup.ended_with(*setup.first, {Errc::kOk, Errc::kNotFound, Errc::kRemoteAccess});
    setup.world.run_for(1s);
    EXPECT_EQ(setup.first->write_to_ending(), Errc::kNotFound)
        << "the peer must learn of the revocation in the end";
    EXPECT_EQ(setup.owner->engine.stats().stale_imms, 0u);
  }
}

TEST(Deregister, AStoppedImporterPaysAlone) {
  one_is_silent([](RevokeSetup& setup) {
    setup.happens(Fault::stop(kFirst));
    return Fault::resume(kFirst);
  });
}

TEST(Deregister, AnImporterThatCannotBeReachedPaysAlone) {
  one_is_silent([](RevokeSetup& setup) {
    setup.happens(Fault::control_cut(kFirst, kOwner));
    return Fault::control_heal(kFirst, kOwner);
  });
}

TEST(Deregister, AnImporterWhoseWritesAreLatePaysAlone) {
  one_is_silent([](RevokeSetup& setup) {
    setup.happens(Fault::delay(kFirst, 1500ms));
    return Fault::delay(kFirst, 0s);
  });
}

// ---- Without proof ------------------------------------------------------------------------------

TEST(Quarantine, LastsUntilTheProofThatComesAfterTheDeadline) {
  Config config = RevokeSetup::quick();
  config.regions_max = 2;
  RevokeSetup setup(revoke_nic(), config);
  setup.load();
  setup.world.run_for(100us);
  setup.happens(Fault::late_proof(kOwner, 3s));
  const Nanos began = setup.world.now();
  const OpId op = setup.deregister(1, 1s);
  const Event event = setup.await(1);
  EXPECT_EQ(event.code, Errc::kTimeout);
  EXPECT_EQ(event.remote, Remote::kUnknown);
  EXPECT_LE(setup.world.now() - began, Nanos(1001ms));
  // In quarantine: no peer writes there, its slot is not reused, and no handle refers to it.
  EXPECT_EQ(setup.first->write_to_ending(), Errc::kNotFound);
  EXPECT_EQ(setup.owner->engine.allocate({.size_bytes = 64}).error().code, Errc::kExhausted);
  EXPECT_EQ(setup.region->desc().error().code, Errc::kNotFound);
  EXPECT_EQ(setup.owner->engine.submit(Deregister{.region = setup.region->id()}).error().code,
            Errc::kNotFound);
  EXPECT_EQ(setup.seen.count(EventKind::kFenceProved), 0u);

  const auto proved = [&] { return setup.seen.count(EventKind::kFenceProved) > 0; };
  ASSERT_TRUE(setup.world.run_until(proved, 10s));
  EXPECT_GE(setup.world.now() - began, Nanos(3s));
  const auto proof = std::ranges::find(setup.seen.events, EventKind::kFenceProved, &Event::kind);
  EXPECT_EQ(proof->op, op);
  setup.reuse();
  const sim::Hook check = watch(setup);
  setup.happens(Fault::late_proof(kOwner, 0s));
  auto next = setup.owner->engine.allocate({.size_bytes = 64});
  EXPECT_TRUE(next) << "its slot must be free again";
  EXPECT_EQ(setup.first->write_to_ending(), Errc::kNotFound)
      << "an old handle reached the new region";
  setup.stays(*setup.first, 0);
  setup.stays(*setup.second, 8 * kPage);
  EXPECT_EQ(setup.seen.count(EventKind::kFenceProved), 1u);
}

// ---- Grants -------------------------------------------------------------------------------------

TEST(Grant, IsForOnePeerAndGoesWithIt) {
  expect_log("a path broke");  // the last write below, which a NIC refuses
  for (const FenceKind kind : {FenceKind::kLocal, FenceKind::kRekey}) {
    SCOPED_TRACE(to_string(kind));
    sim::NicModel model = revoke_nic();
    model.fence = kind;
    RevokeSetup setup(model);
    Host& from = setup.first->host;
    Engine& owner = setup.owner->engine;
    setup.world.run_for(1ms);
    Config config = RevokeSetup::quick();
    config.engine_id = 77;
    const uint32_t node = setup.world.add_node(1, model);
    Host granted = open_host(setup.world, node, kSize, config);
    fill(granted.bytes(), 5);
    PeerId to = *granted.engine.connect(owner.address());
    await_connected(setup.world, granted, to);
    setup.world.run_for(1ms);
    const auto session = [&] {
      PeerId found{};
      for (const PeerId peer : owner.peers()) {
        if (owner.peer_info(peer)->engine_id == 77) found = peer;
      }
      return found;
    };
    const PeerId peer = session();
    const auto grant = setup.region->grant(peer)->desc;
    EXPECT_NE(setup.region->grant(peer)->desc, grant) << "each grant is a new one";
    EXPECT_EQ(from.engine.import_region(setup.first->peer, grant).error().code, Errc::kPermission);

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
    EXPECT_TRUE(holds(std::span(setup.memory).first(kPage), 5));

    ASSERT_TRUE(owner.disconnect(peer));
    EXPECT_EQ(setup.region->grant(peer).error().code, Errc::kPeerLost);
    setup.world.run_for(1s);
    EXPECT_EQ(write(region), Errc::kPeerLost);
    to = *granted.engine.connect(owner.address());
    await_connected(setup.world, granted, to);
    setup.world.run_for(1ms);
    std::ranges::fill(setup.memory, std::byte{0});
    // Its rkeys went with the session it was granted to, whatever the descriptor contains.
    if (const auto again = granted.engine.import_region(to, grant)) {
      EXPECT_EQ(write(*again), Errc::kRemoteAccess);
    }
    EXPECT_TRUE(untouched(setup.memory));
    EXPECT_EQ(write(*granted.engine.import_region(to, setup.region->grant(session())->desc)),
              Errc::kOk);
    EXPECT_TRUE(holds(std::span(setup.memory).first(kPage), 5));
  }
}

// ---- Counter keys -------------------------------------------------------------------------------

/// A sender, and an owner of names.
struct Names {
  explicit Names(const sim::WorldOptions& options = {.seed = test_seed()},
                 const Config& config = test_config(), const Config& owners = test_config())
      : world(options),
        sender(open_host(world, world.add_node(1, {}), kSize, config)),
        owner(open_host(world, world.add_node(1, {}), kSize, owners)),
        remote(connect(sender, owner)) {}
  CounterKey resolve(uint64_t name) {
    CounterKey key;
    EXPECT_TRUE(sender.engine.resolve(remote.peer, {&name, 1}, {&key, 1}));
    return key;
  }
  Quiescence resolved_and_closed(uint64_t name) {
    Counter counter = *owner.engine.named_counter(name);
    EXPECT_EQ(resolve(name), counter.key());
    return *counter.close();
  }
  template <class Request>
  Event end_of(Request request) {
    EventRecorder seen;
    request.notify = seen.notify();
    EXPECT_TRUE(sender.engine.submit(request));
    EXPECT_TRUE(world.run_until([&] { return seen.count() > 0; }, 10s));
    return seen.count() > 0 ? seen.events[0] : Event{};
  }
  Write write(CounterKey key) const {
    return {.source = sender.memory.at(0), .target = remote.at(0), .size_bytes = 64, .imm = key};
  }
  uint64_t stale() {
    world.run_for(10ms);
    return owner.engine.stats().stale_imms;
  }

  sim::World world;
  Host sender, owner;
  RemoteHost remote;
};

void expect_refused(const Event& event, uint32_t parts = 1) {
  EXPECT_EQ(event.code, Errc::kReleased) << to_string(event.code);
  EXPECT_EQ(event.remote, Remote::kNotDelivered);
  EXPECT_EQ(event.parts_failed, parts);
}

TEST(RevokedKey, RefusesWhatIsSubmittedAfterTheProof) {
  Names names;
  Counter closed = *names.owner.engine.named_counter(1),
          open = *names.owner.engine.named_counter(2);
  const CounterKey key = names.resolve(1), good = names.resolve(2);
  const RegionId source = names.sender.memory.id();
  const std::vector<uint32_t> pages = {0, 1, 2};
  const PagedWrite paged{.source = source,
                         .source_pages = {.indices = pages, .stride_bytes = 64},
                         .target = names.remote.region,
                         .target_pages = {.indices = pages, .stride_bytes = 64},
                         .page_bytes = 64,
                         .imm = key};
  const PeerGroup group = *names.sender.engine.make_group({&names.remote.peer, 1});
  ASSERT_EQ(*closed.close(), Quiescence::kProved);

  expect_refused(names.end_of(names.write(key)));
  expect_refused(names.end_of(paged), 3);
  expect_refused(names.end_of(Signal{.group = group, .keys = {&key, 1}}));
  const std::vector<ScatterTarget> targets = {{names.remote.at(0), 0, 64, key},
                                              {names.remote.at(64), 0, 64, good}};
  const Event scattered = names.end_of(Scatter{.source = source, .targets = targets});
  EXPECT_EQ(scattered.code, Errc::kReleased);
  EXPECT_EQ(scattered.parts_failed, 1u) << "a target that fails does not stop the others";
  EXPECT_EQ(scattered.first_failed, 0u);
  EXPECT_EQ(scattered.parts_unknown, 0u) << "it must be certain that nothing landed";
  EXPECT_EQ(names.end_of(names.write(good)).code, Errc::kOk);
  EXPECT_EQ(names.end_of(names.write({})).code, Errc::kOk);
  EXPECT_EQ(names.stale(), 0u) << "landed after the proof";
  EXPECT_EQ(open.count(), 2u) << "other counter keys must not be affected";
}

TEST(RevokedKey, IsNotLearntFromAnAnswerThatItsRevocationOvertook) {
  uint32_t proved_first = 0;
  for (const uint64_t seed : seeds(60)) {
    SCOPED_TRACE(replay(seed));
    sim::WorldOptions options{.seed = seed};
    options.drop_control = 0.3;
    Names names(options);
    Counter counter = *names.owner.engine.named_counter(42);
    const CounterKey old = counter.key();
    const uint64_t name = 42;
    CounterKey key;
    Batch batch = *names.sender.engine.make_batch();
    ASSERT_TRUE(names.sender.engine.submit(
        Resolve{.peer = names.remote.peer, .names = {&name, 1}, .out = {&key, 1}, .batch = batch}));
    names.world.run_for(30us);
    const auto quiescence = counter.close();
    const bool came_first = batch.pending() == 0;
    ASSERT_TRUE(names.sender.engine.wait(batch));
    ASSERT_EQ(batch.failed(), 0u);
    if (!quiescence || *quiescence != Quiescence::kProved || came_first) continue;
    ++proved_first;
    ASSERT_NE(key, old) << "resolved to the old counter key after the proof";
    // It is the name's next counter key, and good.
    ASSERT_EQ(names.end_of(names.write(key)).code, Errc::kOk);
    ASSERT_EQ(names.owner.engine.named_counter(42)->count(), 1u);
    ASSERT_EQ(names.stale(), 0u);
  }
  EXPECT_GT(proved_first, 5u) << "the proof never came first: the test shows nothing";
}

TEST(RevokedKey, BeyondWhatASessionKeepsNothingIsCalledProved) {
  Config config = test_config();
  config.peers_max = 1;  // so that the next session has the slot of this one
  Config owners = config;
  owners.names_per_peer_max = 1;
  Names names({.seed = test_seed()}, config, owners);
  Counter first = *names.owner.engine.named_counter(0);
  const CounterKey old = names.resolve(0);
  ASSERT_EQ(*first.close(), Quiescence::kProved);
  uint64_t name = 1;
  for (; name < core::kRevokedKeysPerName; ++name) {
    ASSERT_EQ(names.resolved_and_closed(name), Quiescence::kProved) << name;
  }
  EXPECT_EQ(names.resolved_and_closed(name), Quiescence::kQuarantined)
      << "beyond the limit there must be no proof";
  EXPECT_EQ(names.resolved_and_closed(name), Quiescence::kQuarantined);
  expect_refused(names.end_of(names.write(old)));
  // The next session starts with nothing: by now the value may belong to another counter.
  ASSERT_TRUE(names.sender.engine.disconnect(names.remote.peer));
  names.world.run_for(1s);
  names.remote = connect(names.sender, names.owner);
  EXPECT_EQ(names.resolved_and_closed(name), Quiescence::kProved);
  EXPECT_EQ(names.end_of(names.write(old)).code, Errc::kOk);
}

/// A sender whose memory owner is a scripted peer, which breaks the order of the protocol.
class ScriptedOwner : public testing::Test {
 protected:
  void SetUp() override {
    peer = *engine.connect(scripted.encoded_address());
    world.run_for(1ms);
    scripted.read();
    scripted.send_welcome();
    turn();
    target = *engine.import_region(peer, scripted.desc());
  }
  void turn() {
    world.run_for(1ms);
    scripted.read();
    for (const uint64_t stamp : scripted.stamps()) scripted.send_pong(stamp);
    scripted.send(control::MessageType::kAck);
    world.run_for(1ms);
  }
  static Config config() {
    Config config = test_config();
    config.names_per_peer_max = 1;
    return config;
  }
  void ask(uint64_t tag) {
    ASSERT_TRUE(engine.submit(Resolve{
        .peer = peer, .names = {&name, 1}, .out = {&learned, 1}, .notify = seen.notify(tag)}));
    turn();
  }
  /// The number of the one question that is open.
  uint32_t question() {
    const auto frames = scripted.take(control::MessageType::kResolve);
    EXPECT_EQ(frames.size(), 1u);
    return frames.empty() ? 0 : control::decode_resolve(frames[0].body)->ref;
  }
  void answer(uint32_t ref, uint32_t key) {
    scripted.send(control::MessageType::kResolved,
                  control::encode(control::ResolvedNames{.ref = ref, .keys = {key}}));
    turn();
  }
  /// What the sender answers to a revocation.
  Errc revoke(uint32_t key) {
    const control::RevokeKey body{.ref = next_ref++, .key = key};
    scripted.send(control::MessageType::kRevokeKey, control::encode(body));
    turn();
    const auto frames = scripted.take(control::MessageType::kKeyRevoked);
    EXPECT_EQ(frames.size(), 1u);
    if (frames.empty()) return Errc::kTimeout;
    const auto done = control::decode_done(frames[0].body);
    EXPECT_EQ(done->ref, body.ref);
    return done->code;
  }
  Errc write_under(uint32_t key) {
    Batch batch = *engine.make_batch();
    const auto source = memory.at(0);
    EXPECT_TRUE(engine.submit(Write{.source = source,
                                    .target = target.at(0),
                                    .size_bytes = 64,
                                    .imm = CounterKey::from_wire(key),
                                    .timeout = 1s,
                                    .batch = batch,
                                    .notify = seen.notify(99)}));
    for (uint32_t i = 0; i < 10 && batch.pending() > 0; ++i) turn();
    return seen.events.back().code;
  }

  EventRecorder seen;
  ScriptedWorld world;
  Engine engine = world.open(config());
  ScriptedPeer scripted{world, engine.address()};
  MemoryRegion memory = *engine.allocate({.size_bytes = 4096});
  PeerId peer{};
  RemoteRegion target{};
  const uint64_t name = 42;
  CounterKey learned{};
  uint32_t next_ref = 1;
};

TEST_F(ScriptedOwner, IsAskedAgainWhenItsRepliesOvertakeEachOther) {
  ASSERT_NO_FATAL_FAILURE(ask(1));
  const uint32_t first = question();
  EXPECT_EQ(revoke(77), Errc::kOk) << "nothing was posted under it";
  answer(first, 77);
  EXPECT_EQ(seen.find(1), nullptr) << "the counter key of an earlier generation";
  const uint32_t second = question();
  EXPECT_GT(second, first);
  answer(second, 78);
  ASSERT_NE(seen.find(1), nullptr);
  EXPECT_EQ(seen.find(1)->code, Errc::kOk);
  EXPECT_EQ(learned.wire(), 78u);
  EXPECT_EQ(write_under(77), Errc::kReleased);
  EXPECT_EQ(write_under(78), Errc::kOk);
}

TEST_F(ScriptedOwner, MayGiveTheValueOutAgain) {
  ASSERT_NO_FATAL_FAILURE(ask(1));
  answer(question(), 77);
  EXPECT_EQ(write_under(77), Errc::kOk);
  EXPECT_EQ(revoke(77), Errc::kOk);
  EXPECT_EQ(write_under(77), Errc::kReleased);
  ASSERT_NO_FATAL_FAILURE(ask(2));
  answer(question(), 77);
  ASSERT_NE(seen.find(2), nullptr) << "the resolve was sent after the revocation";
  EXPECT_EQ(learned.wire(), 77u);
  EXPECT_EQ(write_under(77), Errc::kOk);
  // And its next generation ends like the first, though the answer is late again.
  ASSERT_NO_FATAL_FAILURE(ask(3));
  const uint32_t third = question();
  EXPECT_EQ(revoke(77), Errc::kOk);
  answer(third, 77);
  EXPECT_EQ(seen.find(3), nullptr);
  EXPECT_EQ(write_under(77), Errc::kReleased);
}

TEST_F(ScriptedOwner, IsNotCalledQuietBeyondWhatIsKept) {
  for (uint32_t key = 1; key <= core::kRevokedKeysPerName; ++key) ASSERT_EQ(revoke(key), Errc::kOk);
  EXPECT_EQ(revoke(1000), Errc::kExhausted);
  EXPECT_EQ(write_under(1000), Errc::kOk) << "the write is not refused: there must be no proof";
  EXPECT_EQ(revoke(1), Errc::kOk) << "a counter key that is remembered already must be confirmed";
  EXPECT_EQ(write_under(1), Errc::kReleased);
}

/// Values come back after so many counter keys that only a smaller table can show it.
TEST(RevokedKey, ComesBackOnlyWhenNoSessionRefusesIt) {
  ScriptedWorld world;
  const auto core = *core::EngineCore::open(world.placed(test_config()), world.sim_world.impl,
                                            &world.sim_world.impl->world_driver);
  core::Counters& counters = core->counters;
  std::destroy_at(&counters.table);
  std::construct_at(&counters.table, core::CounterTable::Options{.live_max = 2, .key_bits = 8});
  core->state_mutex.lock();
  const auto address = control::encode(core->peers.own_address(false));
  core->state_mutex.unlock();
  ScriptedPeer scripted(world, address);
  core->state_mutex.lock();
  const PeerId id = *core->peers.connect(scripted.address, {});
  core->state_mutex.unlock();
  core->kick();
  world.run_for(1ms);
  scripted.read();
  scripted.send_welcome();
  world.run_for(1ms);
  const uint64_t name = 42;
  scripted.send(control::MessageType::kResolve,
                control::encode(control::ResolveNames{.ref = 1, .names = {name}}));
  world.run_for(1ms);
  core->state_mutex.lock();
  const CounterKey key = *counters.claim_name(name, world.sim_world.now());
  counters.release({.key = key, .named = true, .name = name}, world.sim_world.now());
  core->state_mutex.unlock();

  // Long enough for every quarantine to end, many times over.
  int64_t now_ns = world.sim_world.now();
  const auto later_values = [&] {
    const core::StateGuard lock(core->state_mutex);
    std::set<CounterKey> values;
    for (uint32_t i = 0; i < 1000; ++i) {
      now_ns += counters.quarantine_ns();
      const auto next = counters.make(now_ns);
      if (!next) continue;
      values.insert(*next);
      counters.table.release(*next, now_ns);
    }
    return values;
  };
  const auto others = later_values();
  EXPECT_GT(others.size(), 100u);
  EXPECT_FALSE(others.contains(key)) << "reused while a session would refuse it";
  core->state_mutex.lock();
  core->peers.disconnect(*core->peers.find(id));
  core->state_mutex.unlock();
  world.run_for(1s);
  EXPECT_TRUE(later_values().contains(key));
  EXPECT_TRUE(core->close({}));
}

// A granted registration ends with the session of its peer.
TEST(Grant, EndsWithItsPeer) {
  ConnectedPair p;
  const PeerId sender = p.b.engine.peers().at(0);
  auto granted = p.b.memory.grant(sender);
  ASSERT_TRUE(granted);
  auto region = p.a.engine.import_region(p.remote.peer, granted->desc);
  ASSERT_TRUE(region);
  ASSERT_TRUE(p.b.engine.disconnect(sender));
  p.world.run_for(10ms);
  auto back = p.b.engine.connect(p.a.engine.address());
  ASSERT_TRUE(back);
  EXPECT_EQ(p.b.memory.grant(sender).error().code, Errc::kPeerLost);
  auto again = p.b.memory.grant(*back);
  ASSERT_TRUE(again);
  EXPECT_NE(again->id, granted->id);
  EXPECT_NE(again->desc, granted->desc);
}

// Writes that are held back when their counter key is closed: the same question as for a fence.
TEST(RevokedKey, IsQuietOnceItsCloseReturns) {
  FaultyPair pair(slow_srd());
  const uint64_t name = 5;
  Counter counter = *pair.b->engine.named_counter(name);
  CounterKey key;
  ASSERT_TRUE(pair.a->engine.resolve(pair.remote.peer, {&name, 1}, {&key, 1}));
  pair.happens(Fault::refuse_posts(0, 0));
  for (uint32_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(pair.a->engine.submit(Write{.source = pair.a->memory.at(i * 4096),
                                            .target = pair.remote.at(i * 4096),
                                            .size_bytes = 4096,
                                            .imm = key,
                                            .notify = pair.ended.notify(i)}));
  }
  pair.world.run_for(1ms);
  ASSERT_TRUE(pair.world.at(pair.world.now() + Nanos(50ms), Fault::nic_down(0, 0)));
  (void)counter.close(2s);
  const uint64_t stale = pair.b->engine.stats().stale_imms;
  pair.world.run_for(1s);
  EXPECT_EQ(pair.b->engine.stats().stale_imms, stale);
}

}  // namespace
}  // namespace fabric::test::revoke_test

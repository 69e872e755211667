#include <algorithm>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "harness/host.h"
#include "scenario/pairs.h"

// Counter keys and names: reuse under late traffic, barriers, steps of a mixture of experts, the
// pages of a key-value cache, names without a counter (P6, P8, P9, P11).

namespace fabric::test::keys_test {
namespace {

/// `n` hosts, each connected to each other one.
struct Mesh {
  Mesh(uint64_t seed, uint32_t n, uint64_t size_bytes, const sim::NicModel& model = {},
       uint32_t rails = 1)
      : world(sim::WorldOptions{.seed = seed}), remotes(n, std::vector<RemoteHost>(n)) {
    for (uint32_t i = 0; i < n; ++i) {
      hosts.push_back(open_host(world, world.add_node(rails, model), size_bytes));
    }
    for (uint32_t from = 0; from < n; ++from) {
      for (uint32_t to = 0; to < n; ++to) {
        if (from != to) remotes[from][to] = connect(hosts[from], hosts[to]);
      }
    }
  }
  uint32_t size() const { return static_cast<uint32_t>(hosts.size()); }
  Engine& engine(uint32_t i) { return hosts[i].engine; }

  sim::World world;
  std::vector<Host> hosts;
  std::vector<std::vector<RemoteHost>> remotes;
};

// ---- Reuse of counter keys ----------------------------------------------------------------------

TEST(KeyReuse, LateWritesOfAReleasedKeyAreStaleAndTheNewCountIsExact) {
  constexpr uint64_t kPage = 8192;
  constexpr uint32_t kLate = 64, kNew = 10;
  for (const uint64_t seed : seeds(10)) {
    SCOPED_TRACE(replay(seed));
    sim::World world(sim::WorldOptions{.seed = seed});
    sim::NicModel model = srd_model();
    model.jitter = 50us;
    Config config = test_config();
    config.counters_max = 1;  // two slots, so that the same one comes back at once
    Host sender = open_host(world, world.add_node(2, model), 128 * kPage);
    Host receiver = open_host(world, world.add_node(2, model), 128 * kPage, config);
    const RemoteHost remote = connect(sender, receiver);
    Batch batch = *sender.engine.make_batch();
    const auto send = [&](CounterKey key, uint32_t n) {
      for (uint32_t i = 0; i < n; ++i) {
        ASSERT_TRUE(sender.engine.submit(Write{.source = sender.memory.at(i * kPage),
                                               .target = remote.at(i * kPage),
                                               .size_bytes = kPage,
                                               .imm = key,
                                               .batch = batch}));
      }
    };
    std::set<CounterKey> keys;
    uint64_t stale = 0;
    for (uint32_t round = 0; round < 4; ++round) {
      Counter old = *receiver.engine.make_counter();
      EXPECT_TRUE(keys.insert(old.key()).second) << "a counter key value was reused at once";
      send(old.key(), kLate);
      ASSERT_TRUE(world.run_until([&] { return old.count() >= kLate / 4; }, 1s));
      const uint64_t in_time = old.count();
      ASSERT_LT(in_time, kLate) << "the test needs late writes";
      old.release();
      EXPECT_EQ(old.count(), 0u);
      EXPECT_EQ(old.expect(1, {}).error().code, Errc::kReleased);

      Counter fresh = *receiver.engine.make_counter();
      EXPECT_TRUE(keys.insert(fresh.key()).second);
      send(fresh.key(), kNew);
      ASSERT_TRUE(fresh.wait(kNew));
      ASSERT_TRUE(sender.engine.wait(batch)) << "the sender is not affected";
      world.run_for(1ms);
      EXPECT_EQ(fresh.count(), 0u) << "a late write counted under the new counter key";
      stale += kLate - in_time;
      EXPECT_EQ(receiver.engine.stats().stale_imms, stale);
    }
    EXPECT_EQ(batch.failed(), 0u);
  }
}

TEST(KeyReuse, ClosingANamedKeyProvesThatItsSendersAreQuiet) {
  constexpr uint64_t kPage = 65536;
  sim::NicModel slow;
  slow.gbit_per_s = 8;
  Mesh mesh(1, 2, 64 * kPage, slow);
  Counter counter = *mesh.engine(1).named_counter(42);
  std::vector<CounterKey> key(1);
  const uint64_t name = 42;
  ASSERT_TRUE(mesh.engine(0).resolve(mesh.remotes[0][1].peer, {&name, 1}, key));
  EXPECT_EQ(key[0], counter.key());
  Batch batch = *mesh.engine(0).make_batch();
  for (uint32_t i = 0; i < 32; ++i) {
    ASSERT_TRUE(mesh.engine(0).submit(Write{.source = mesh.hosts[0].memory.at(0),
                                            .target = mesh.remotes[0][1].at(i * kPage),
                                            .size_bytes = kPage,
                                            .imm = key[0],
                                            .batch = batch}));
  }
  mesh.world.run_for(50us);
  ASSERT_GT(batch.pending(), 0u) << "the test needs writes in flight";
  const auto quiescence = counter.close();
  ASSERT_TRUE(quiescence);
  EXPECT_EQ(*quiescence, Quiescence::kProved);
  EXPECT_EQ(batch.pending(), 0u) << "confirmed although a posted write had not ended";
  const uint64_t stale = mesh.engine(1).stats().stale_imms;
  mesh.world.run_for(10ms);
  EXPECT_EQ(mesh.engine(1).stats().stale_imms, stale) << "something arrived after the proof";
  // The name is free again, for another counter.
  Counter again = *mesh.engine(1).named_counter(42);
  EXPECT_NE(again.key(), key[0]);
}

// ---- Barrier ------------------------------------------------------------------------------------

/// A rank that passes barriers by itself: whenever its count is there it enters the next one.
class Rank {
 public:
  Rank(Mesh& mesh, uint32_t me, std::vector<std::vector<uint32_t>>& entered)
      : mesh_(mesh), me_(me), entered_(entered), counter_(*mesh.engine(me).named_counter(7)) {
    std::vector<PeerId> others;
    for (uint32_t i = 0; i < mesh.size(); ++i) {
      if (i != me) others.push_back(mesh.remotes[me][i].peer);
    }
    group_ = *mesh.engine(me).make_group(others);
    keys_.resize(others.size());
    const uint64_t name = 7;
    for (uint32_t i = 0; i < others.size(); ++i) {
      EXPECT_TRUE(mesh.engine(me).resolve(others[i], {&name, 1}, {&keys_[i], 1}));
    }
  }
  Rank(const Rank&) = delete;

  void enter(uint32_t step) {
    entered_[step].push_back(me_);
    ASSERT_TRUE(mesh_.engine(me_).submit(Signal{.group = group_, .keys = keys_}));
    ASSERT_TRUE(counter_.expect(keys_.size(), Notify::call<&Rank::passed>(this, step)));
  }
  void passed(const Event& event) {
    ASSERT_EQ(event.code, Errc::kOk);
    EXPECT_EQ(entered_[event.tag].size(), mesh_.size())
        << "rank " << me_ << " passed barrier " << event.tag << " before all had entered it";
    ++steps;
    if (steps < entered_.size()) enter(steps);
  }

  uint32_t steps = 0;

 private:
  Mesh& mesh_;
  const uint32_t me_;
  std::vector<std::vector<uint32_t>>& entered_;
  Counter counter_;
  PeerGroup group_;
  std::vector<CounterKey> keys_;
};

TEST(Barrier, OneKeyCarriesManyStepsOverFourEngines) {
  constexpr uint32_t kSteps = 12;
  for (const uint64_t seed : seeds(5)) {
    SCOPED_TRACE(replay(seed));
    sim::NicModel model = srd_model();
    model.jitter = 30us;
    std::vector<std::vector<uint32_t>> entered(kSteps);
    Mesh mesh(seed, 4, 4096, model, 2);
    std::vector<std::unique_ptr<Rank>> ranks;
    for (uint32_t i = 0; i < 4; ++i) ranks.push_back(std::make_unique<Rank>(mesh, i, entered));
    for (auto& rank : ranks) rank->enter(0);
    const auto all_done = [&] {
      return std::ranges::all_of(ranks, [](const auto& r) { return r->steps == kSteps; });
    };
    ASSERT_TRUE(mesh.world.run_until(all_done, 1s));
    for (uint32_t i = 0; i < 4; ++i) {
      EXPECT_EQ(mesh.engine(i).stats().rx.imms, 3u * kSteps);
      EXPECT_EQ(mesh.engine(i).stats().tx.bytes, 0u) << "a barrier moves no bytes";
    }
  }
}

// ---- Mixture of experts -------------------------------------------------------------------------

/// Every rank sends every other one a token block a step, under a counter key for each pair.
struct Moe {
  static constexpr uint64_t kBlock = 48 << 10;
  static constexpr uint32_t kRanks = 4;

  explicit Moe(uint64_t seed)
      : mesh(seed, kRanks, 2 * kRanks * kBlock, srd_model(), 2),
        keys(kRanks, std::vector<CounterKey>(kRanks)) {
    for (uint32_t me = 0; me < kRanks; ++me) {
      groups.push_back(*mesh.engine(me).make_counter_group());
      for (uint32_t from = 0; from < kRanks; ++from) {
        if (from == me) continue;
        counters.push_back(*mesh.engine(me).make_counter());
        keys[me][from] = counters.back().key();
        EXPECT_TRUE(groups[me].add(counters.back(), mesh.remotes[me][from].peer));
      }
    }
  }
  static uint64_t out(uint32_t to) { return to * kBlock; }
  static uint64_t in(uint32_t from) { return (kRanks + from) * kBlock; }
  static uint64_t content(uint32_t step, uint32_t from, uint32_t to) {
    return 1000 * step + 10 * from + to;
  }

  void send(uint32_t from, uint32_t step) {
    std::vector<ScatterTarget> targets;
    for (uint32_t to = 0; to < kRanks; ++to) {
      if (to == from || (gone == to)) continue;
      fill(mesh.hosts[from].bytes(out(to), kBlock), content(step, from, to));
      targets.push_back({.target = mesh.remotes[from][to].at(in(from)),
                         .source_offset = out(to),
                         .size_bytes = kBlock,
                         .imm = keys[to][from]});
    }
    ASSERT_TRUE(mesh.engine(from).submit(
        Scatter{.source = mesh.hosts[from].memory.id(), .targets = targets}));
  }
  bool received(uint32_t me, uint32_t from, uint32_t step) const {
    return holds(mesh.hosts[me].bytes(in(from), kBlock), content(step, from, me));
  }

  static constexpr uint32_t kNoRank = UINT32_MAX;
  uint32_t gone = kNoRank;
  Mesh mesh;
  std::vector<std::vector<CounterKey>> keys;
  std::vector<Counter> counters;
  std::vector<CounterGroup> groups;
};

TEST(MixtureOfExperts, EveryStepHasTheBlocksOfAllRanks) {
  for (const uint64_t seed : seeds(3)) {
    SCOPED_TRACE(replay(seed));
    Moe moe(seed);
    for (uint32_t step = 0; step < 6; ++step) {
      for (uint32_t rank = 0; rank < Moe::kRanks; ++rank) moe.send(rank, step);
      for (uint32_t rank = 0; rank < Moe::kRanks; ++rank) {
        ASSERT_TRUE(moe.groups[rank].wait());
        for (uint32_t from = 0; from < Moe::kRanks; ++from) {
          if (from != rank) {
            EXPECT_TRUE(moe.received(rank, from, step)) << from << " to " << rank;
          }
        }
        EXPECT_EQ(moe.groups[rank].count(), 0u);
      }
      // Between two steps no rank has contributed to the next one.
      for (uint32_t rank = 0; rank < Moe::kRanks; ++rank) {
        EXPECT_EQ(moe.groups[rank].missing().size(), Moe::kRanks - 1) << "step " << step;
      }
    }
    for (uint32_t rank = 0; rank < Moe::kRanks; ++rank) {
      EXPECT_EQ(moe.mesh.engine(rank).stats().stale_imms, 0u);
    }
  }
}

TEST(MixtureOfExperts, NamesWhoIsMissingAndGoesOnWithoutIt) {
  EventRecorder recorder;
  Moe moe(1);
  sim::World& world = moe.mesh.world;
  const auto last = moe.mesh.remotes[0][3].peer;
  for (uint32_t step = 0; step < 2; ++step) {
    for (uint32_t rank = 0; rank < Moe::kRanks; ++rank) moe.send(rank, step);
    for (uint32_t rank = 0; rank < Moe::kRanks; ++rank) {
      ASSERT_TRUE(moe.groups[rank].wait());
    }
  }
  // Rank 3 falls silent.
  ASSERT_TRUE(moe.groups[0].expect(3, recorder.notify(1), 10s));
  EXPECT_EQ(moe.groups[0].missing().size(), 3u);
  moe.send(1, 2);
  moe.send(2, 2);
  world.run_for(5ms);
  EXPECT_EQ(moe.groups[0].missing(), std::vector<PeerId>{last});
  EXPECT_EQ(recorder.count(), 0u);
  EXPECT_EQ(moe.groups[0].expect(Notify{}).error().code, Errc::kBusy);

  ASSERT_TRUE(moe.groups[0].mask(last));
  ASSERT_TRUE(world.run_until([&] { return recorder.count() == 1; }, 1s));
  EXPECT_EQ(recorder.events[0].code, Errc::kOk);
  EXPECT_TRUE(moe.received(0, 1, 2));
  EXPECT_TRUE(moe.received(0, 2, 2));
  EXPECT_TRUE(moe.groups[0].missing().size() == 2u)
      << "the two remaining members have not arrived at the next step";

  // What rank 3 sends now is stale, and the next steps are complete with two.
  const uint64_t stale = moe.mesh.engine(0).stats().stale_imms;
  moe.send(3, 2);
  world.run_for(5ms);
  EXPECT_EQ(moe.mesh.engine(0).stats().stale_imms, stale + 1);
  for (uint32_t step = 3; step < 6; ++step) {
    EXPECT_EQ(moe.groups[0].count(), 0u);
    moe.send(1, step);
    moe.send(2, step);
    ASSERT_TRUE(moe.groups[0].wait(2));
    EXPECT_TRUE(moe.received(0, 1, step) && moe.received(0, 2, step));
  }
  EXPECT_EQ(moe.groups[0].mask(last).error().code, Errc::kNotFound)
      << "the member is already masked";
}

TEST(MixtureOfExperts, AWaitThatNamesItsPeersEndsWhenOneOfThemIsLost) {
  EventRecorder recorder;
  Moe moe(2);
  ASSERT_TRUE(moe.groups[0].expect(3, recorder.notify(), 20s));
  moe.send(1, 0);
  moe.send(2, 0);
  moe.mesh.world.run_for(5ms);
  ASSERT_EQ(recorder.count(), 0u);
  const Nanos before = moe.mesh.world.now();
  ASSERT_TRUE(moe.mesh.engine(3).close());
  ASSERT_TRUE(moe.mesh.world.run_until([&] { return recorder.count() == 1; }, 1s));
  EXPECT_EQ(recorder.events[0].code, Errc::kPeerLost);
  EXPECT_EQ(recorder.events[0].peer, moe.mesh.remotes[0][3].peer);
  EXPECT_LT(moe.mesh.world.now() - before, 1s)
      << "the loss must be reported by the goodbye, not by a deadline";
}

// ---- Key-value cache ----------------------------------------------------------------------------

/// A prefill engine whose kernel counts layers up; each finished layer's pages are pushed.
class Prefill {
 public:
  static constexpr uint32_t kLayers = 12, kPages = 7;
  static constexpr uint64_t kPage = 4096;
  static constexpr uint64_t kLayerBytes = 16 * kPage;

  Prefill(Host& host, const RemoteHost& remote, std::vector<CounterKey> keys)
      : host_(host),
        remote_(remote),
        keys_(std::move(keys)),
        batch_(*host.engine.make_batch()),
        watcher_(*host.engine.make_watcher(Notify::call<&Prefill::moved>(this))) {
    watcher_.arm();
  }

  /// What the kernel does: the bytes of a layer, then its number.
  void finish_layer(uint32_t layer) {
    for (uint32_t page = 0; page < kPages; ++page) {
      fill(host_.bytes(layer * kLayerBytes + kSource[page] * kPage, kPage), layer * 100 + page);
    }
    __atomic_store_n(watcher_.word(), layer + 1, __ATOMIC_RELEASE);
  }

  void moved(const Event& event) {
    EXPECT_EQ(event.kind, EventKind::kWatch);
    EXPECT_EQ(event.previous, pushed) << "a step that was reported twice, or never";
    EXPECT_GT(event.value, event.previous);
    ++wakes;
    for (; pushed < event.value; ++pushed) push(static_cast<uint32_t>(pushed));
  }

  static constexpr uint32_t kSource[kPages] = {0, 1, 2, 3, 4, 5, 6};
  static constexpr uint32_t kTarget[kPages] = {15, 3, 8, 0, 12, 7, 9};  // where there was room
  uint64_t pushed = 0, wakes = 0;
  BatchId batch() const { return batch_; }

 private:
  void push(uint32_t layer) {
    const PagedWrite request{.source = host_.memory.id(),
                             .source_pages = {.indices = kSource,
                                              .stride_bytes = kPage,
                                              .offset_bytes = layer * kLayerBytes},
                             .target = remote_.region,
                             .target_pages = {.indices = kTarget,
                                              .stride_bytes = kPage,
                                              .offset_bytes = layer * kLayerBytes},
                             .page_bytes = kPage,
                             .imm = keys_[layer],
                             .batch = batch_};
    ASSERT_TRUE(host_.engine.submit(request));
  }

  Host& host_;
  RemoteHost remote_;
  std::vector<CounterKey> keys_;
  Batch batch_;
  Watcher watcher_;
};

TEST(KeyValueCache, LayersArriveWithTheirPagesAsTheKernelFinishesThem) {
  using P = Prefill;
  for (const uint64_t seed : seeds(3)) {
    SCOPED_TRACE(replay(seed));
    Mesh mesh(seed, 2, P::kLayers * P::kLayerBytes, srd_model(), 2);
    // The decoder hands out a counter key a layer, agreed by name.
    std::vector<uint64_t> names;
    std::vector<Counter> layers;
    for (uint32_t i = 0; i < P::kLayers; ++i) {
      names.push_back(0xcafe0000 + i);
      layers.push_back(*mesh.engine(1).named_counter(names.back()));
    }
    std::vector<CounterKey> keys(P::kLayers);
    ASSERT_TRUE(mesh.engine(0).resolve(mesh.remotes[0][1].peer, names, keys));

    Prefill prefill(mesh.hosts[0], mesh.remotes[0][1], keys);
    const Nanos start = mesh.world.now();
    uint32_t finished = 0;
    // The first layers come one by one, the last ones faster than the watcher is polled.
    const sim::Hook kernel = mesh.world.each_step([&] {
      while (finished < P::kLayers && mesh.world.now() - start >= std::min(finished, 8u) * 40us) {
        prefill.finish_layer(finished++);
      }
    });
    for (uint32_t layer = 0; layer < P::kLayers; ++layer) {
      ASSERT_TRUE(layers[layer].wait(P::kPages)) << "layer " << layer;
      for (uint32_t page = 0; page < P::kPages; ++page) {
        const uint64_t at = layer * P::kLayerBytes + P::kTarget[page] * P::kPage;
        EXPECT_TRUE(holds(mesh.hosts[1].bytes(at, P::kPage), layer * 100 + page))
            << "layer " << layer << " page " << page;
      }
      EXPECT_EQ(layers[layer].count(), 0u);
    }
    EXPECT_EQ(prefill.pushed, P::kLayers);
    EXPECT_LT(prefill.wakes, P::kLayers) << "steps that arrive together must be reported together";
    ASSERT_TRUE(mesh.engine(0).wait(prefill.batch()));
    // Only those pages were written.
    uint64_t written = 0;
    for (uint64_t at = 0; at < mesh.hosts[1].bytes().size(); at += P::kPage) {
      written += untouched(mesh.hosts[1].bytes(at, P::kPage)) ? 0 : 1;
    }
    EXPECT_EQ(written, P::kLayers * P::kPages);
  }
}

// ---- Names --------------------------------------------------------------------------------------

// P9: counts under a name wait until it is claimed, also when their sender has closed.
TEST(Names, ACountUnderANameOutlivesItsSender) {
  ConnectedPair p;
  const uint64_t name = 5;
  CounterKey key;
  ASSERT_TRUE(p.a.engine.resolve(p.remote.peer, {&name, 1}, {&key, 1}, 1s));
  auto batch = p.a.engine.make_batch();
  ASSERT_TRUE(p.a.engine.submit(Write{.source = p.a.memory.at(0),
                                      .target = p.remote.at(0),
                                      .size_bytes = 8,
                                      .imm = key,
                                      .batch = *batch}));
  ASSERT_TRUE(p.a.engine.wait(*batch, 1s));
  ASSERT_TRUE(p.a.engine.close());
  p.world.run_for(10ms);
  auto counter = p.b.engine.named_counter(name);
  ASSERT_TRUE(counter);
  EXPECT_EQ(counter->count(), 1u);
}

// ... but not for ever, and not without an event.
TEST(Names, ANameThatIsNeverClaimedIsDroppedWithAnEvent) {
  ConnectedPair p;
  EventRecorder recorder;
  auto subscription = p.b.engine.subscribe(recorder.notify());
  const uint64_t name = 7;
  CounterKey key;
  ASSERT_TRUE(p.a.engine.resolve(p.remote.peer, {&name, 1}, {&key, 1}, 1s));
  ASSERT_TRUE(p.a.engine.submit(
      Write{.source = p.a.memory.at(0), .target = p.remote.at(0), .size_bytes = 8, .imm = key}));
  p.world.run_for(1ms);
  ASSERT_TRUE(p.a.engine.close());
  p.world.run_for(40s);
  ASSERT_EQ(recorder.count(EventKind::kUnhandled), 1u);
  const Event& event = recorder.events.back();
  EXPECT_EQ(event.name, name);
  EXPECT_EQ(event.value, 1u);
  EXPECT_EQ(p.b.engine.stats().counters, 0u);
}

// A masked member gives its name back: the peer comes back with a new counter key under the same
// name.
TEST(Names, AMaskedNameCanBeClaimedAgain) {
  ConnectedPair p;
  const uint64_t name = 9;
  auto group = p.b.engine.make_counter_group();
  const PeerId sender = p.b.engine.peers().at(0);
  CounterKey old_key;
  {
    auto counter = p.b.engine.named_counter(name);
    ASSERT_TRUE(p.a.engine.resolve(p.remote.peer, {&name, 1}, {&old_key, 1}, 1s));
    ASSERT_TRUE(group->add(*counter, sender));
    ASSERT_TRUE(group->mask(sender));
  }
  auto again = p.b.engine.named_counter(name);
  ASSERT_TRUE(again) << to_string(again.error().code);
  CounterKey key;
  ASSERT_TRUE(p.a.engine.resolve(p.remote.peer, {&name, 1}, {&key, 1}, 1s));
  EXPECT_NE(key, old_key);
  EXPECT_EQ(key, again->key());
}

using sim::Fault;

// A counted write is delivered under a name that is not claimed yet; then its sender closes.
void name_count(Nanos late) {
  FaultyPair pair(slow_rc(), 1, 1);
  const uint64_t name = 42;
  CounterKey key;
  ASSERT_TRUE(pair.a->engine.resolve(pair.remote.peer, {&name, 1}, {&key, 1}));
  if (late.count() > 0) pair.happens(Fault::late_counts(1, late));
  Batch batch = *pair.a->engine.make_batch();
  ASSERT_TRUE(pair.a->engine.submit(Write{.source = pair.a->memory.at(0),
                                          .target = pair.remote.at(0),
                                          .size_bytes = 64,
                                          .imm = key,
                                          .batch = batch}));
  if (late.count() == 0) pair.happens(Fault::slow(1, 20ms));
  ASSERT_TRUE(pair.a->engine.wait(batch));
  ASSERT_EQ(batch.delivered(), 1u) << "reported as delivered: the count is certain";
  EXPECT_TRUE(pair.a->engine.close());
  pair.world.run_for(100ms);
  Counter counter = *pair.b->engine.named_counter(name);
  EXPECT_EQ(counter.count(), 1u) << "asking late loses nothing (P9)";
}
TEST(Names, KeepALateCountOfASenderThatClosed) { name_count(10ms); }
TEST(Names, KeepACountThatIsTakenAfterTheGoodbye) { name_count(0ms); }

// The sender's write is delivered, then it closes: the receiver's wait that names it is still met.
TEST(BoundCounter, IsMetByACertainCountAfterItsPeerClosed) {
  FaultyPair pair(slow_rc(), 1, 1);
  Counter counter = *pair.b->engine.make_counter();
  ASSERT_TRUE(counter.bind(pair.there));
  EventRecorder waited;
  ASSERT_TRUE(counter.expect(1, waited.notify(1)));
  Batch batch = *pair.a->engine.make_batch();
  ASSERT_TRUE(pair.a->engine.submit(Write{.source = pair.a->memory.at(0),
                                          .target = pair.remote.at(0),
                                          .size_bytes = 64,
                                          .imm = counter.key(),
                                          .batch = batch}));
  pair.happens(Fault::slow(1, 20ms));
  ASSERT_TRUE(pair.a->engine.wait(batch));
  ASSERT_EQ(batch.delivered(), 1u);
  EXPECT_TRUE(pair.a->engine.close());
  pair.world.run_for(100ms);
  ASSERT_NE(waited.find(1), nullptr);
  EXPECT_EQ(waited.find(1)->code, Errc::kOk) << to_string(waited.find(1)->code);
}

}  // namespace
}  // namespace fabric::test::keys_test

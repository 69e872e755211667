#include <algorithm>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "harness/host.h"
#include "harness/write_auditor.h"
#include "scenario/pairs.h"
#include "support/log_guard.h"
#include "support/sanitizers.h"

// Connections that break, rails that go and come back. Whatever happens to the network between two
// live engines, every write is delivered once, with all of its bytes (P10).

namespace fabric::test::failover_test {
namespace {

using sim::Fault;

constexpr uint64_t kSize = 360'000;
constexpr uint64_t kCut = 140'000, kSliced = 60'000, kPage = 2000, kSmall = 280'000,
                   kSpread = 320'000;
constexpr uint32_t kFrom = 0, kTo = 1;  // nodes

void expect_breaks() {
  for (const char* part : {"a path broke", "a rail went down", "a rail came back",
                           "an operation does not drain", "a path could not be opened"}) {
    expect_log(part);
  }
}

/// A network that loses nothing for good: RC-like, two rails.
sim::NicModel rc() {
  sim::NicModel model = rc_model();
  model.gbit_per_s = 10;  // slow enough that a fault hits writes in flight
  return model;
}

Config transfers_config() {
  Config config = test_config();
  config.bulk_slice_bytes = 32'768;
  return config;
}

/// One of everything that counts, from one host to another.
class CountedTransfers {
 public:
  explicit CountedTransfers(uint64_t seed, uint32_t rails = 2, const sim::NicModel& model = rc(),
                            const Config& config = transfers_config())
      : world_({.seed = seed}),
        a_(open_host(world_, world_.add_node(rails, model), kSize, config)),
        b_(open_host(world_, world_.add_node(rails, model), kSize, config)),
        remote_(connect(a_, b_)) {
    await_connected(world_, a_, remote_.peer);
    fill(a_.bytes(), seed);
    for (auto& counter : counters_) counter.emplace(*b_.engine.make_counter());
    batch_.emplace(*a_.engine.make_batch());
  }

  void submit() {
    const auto both = [&](uint64_t at) { return std::pair(a_.memory.at(at), remote_.at(at)); };
    // Cut over the rails.
    auto [source, target] = both(0);
    accepted(a_.engine.submit(Write{.source = source,
                                    .target = target,
                                    .size_bytes = kCut,
                                    .imm = counters_[0]->key(),
                                    .batch = *batch_}));
    // In slices, each covered by the last.
    std::tie(source, target) = both(kCut);
    accepted(a_.engine.submit(Write{.source = source,
                                    .target = target,
                                    .size_bytes = kSliced,
                                    .imm = counters_[1]->key(),
                                    .priority = Priority::kBulk,
                                    .unsplit = true,
                                    .batch = *batch_}));
    // Pages, back to front.
    std::vector<uint32_t> here, there;
    for (uint32_t i = 0; i < 20; ++i) {
      here.push_back(100 + i);
      there.push_back(119 - i);
    }
    accepted(a_.engine.submit(PagedWrite{.source = a_.memory.id(),
                                         .source_pages = {.indices = here, .stride_bytes = kPage},
                                         .target = remote_.region,
                                         .target_pages = {.indices = there, .stride_bytes = kPage},
                                         .page_bytes = kPage,
                                         .imm = counters_[2]->key(),
                                         .batch = *batch_}));
    // Small ones, with a count and without.
    for (uint32_t i = 0; i < 10; ++i) {
      std::tie(source, target) = both(kSmall + i * 1000);
      accepted(a_.engine.submit(Write{.source = source,
                                      .target = target,
                                      .size_bytes = 900,
                                      .imm = i % 2 == 0 ? counters_[3]->key() : CounterKey{},
                                      .batch = *batch_}));
    }
    std::vector<ScatterTarget> targets;
    for (uint32_t i = 0; i < 4; ++i) {
      targets.push_back(
          {remote_.at(kSpread + i * 5000), kSpread + i * 5000, 5000, counters_[4]->key()});
    }
    accepted(
        a_.engine.submit(Scatter{.source = a_.memory.id(), .targets = targets, .batch = *batch_}));
  }

  void everything_arrived_once() {
    ASSERT_TRUE(a_.engine.wait(*batch_, 60s)) << a_.engine.dump();
    EXPECT_EQ(batch_->failed(), 0u);
    world_.run_for(3s);  // whatever is late
    const uint64_t expected[] = {1, 1, 20, 5, 4};
    for (size_t i = 0; i < std::size(expected); ++i) {
      EXPECT_EQ(counters_[i]->count(), expected[i]) << "counter " << i;
    }
    EXPECT_TRUE(std::ranges::equal(b_.bytes(0, kCut + kSliced), a_.bytes(0, kCut + kSliced)));
    for (uint32_t i = 0; i < 20; ++i) {
      EXPECT_TRUE(std::ranges::equal(b_.bytes((119 - i) * kPage, kPage),
                                     a_.bytes((100 + i) * kPage, kPage)));
    }
    for (uint32_t i = 0; i < 10; ++i) {
      EXPECT_TRUE(
          std::ranges::equal(b_.bytes(kSmall + i * 1000, 900), a_.bytes(kSmall + i * 1000, 900)));
    }
    EXPECT_TRUE(std::ranges::equal(b_.bytes(kSpread, 20'000), a_.bytes(kSpread, 20'000)));
    EXPECT_EQ(b_.engine.stats().stale_imms, 0u);
  }

  /// Runs the writes without any fault; how many events of the network they take.
  std::pair<uint64_t, uint64_t> span() {
    const uint64_t begin = world_.events();
    submit();
    EXPECT_TRUE(a_.engine.wait(*batch_));
    return {begin, world_.events()};
  }

  sim::World& world() { return world_; }
  Host& a() { return a_; }
  Host& b() { return b_; }
  PeerId peer() const { return remote_.peer; }
  const RemoteHost& remote() const { return remote_; }
  Batch& batch() { return *batch_; }
  Counter& counter(size_t i) { return *counters_[i]; }

 private:
  static void accepted(const Result<OpId>& op) { ASSERT_TRUE(op) << to_string(op.error().code); }

  sim::World world_;
  Host a_, b_;
  RemoteHost remote_;
  std::array<std::optional<Counter>, 5> counters_;
  std::optional<Batch> batch_;
};

/// Runs the test once for every event between the first submit and the last completion; the faults
/// begin right after that event.
void at_every_step(const std::function<void(CountedTransfers&, uint64_t)>& break_at,
                   uint64_t stride = 1) {
  expect_breaks();
  const auto [begin, end] = CountedTransfers(test_seed()).span();
  ASSERT_GT(end - begin, 50u);
  for (uint64_t at = begin; at <= end; at += stride * kStepStride) {
    SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
    CountedTransfers transfers(test_seed());
    break_at(transfers, at);
    transfers.submit();
    transfers.everything_arrived_once();
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Failover, ARailOfTheSenderGoesDownAtAnyStep) {
  at_every_step([](CountedTransfers& transfers, uint64_t at) {
    ASSERT_TRUE(transfers.world().at_event(at, Fault::nic_down(kFrom, 0)));
  });
}

TEST(Failover, ARailOfTheTargetGoesDownAtAnyStep) {
  at_every_step([](CountedTransfers& transfers, uint64_t at) {
    ASSERT_TRUE(transfers.world().at_event(at, Fault::nic_down(kTo, 1)));
  });
}

TEST(Failover, TheSendersEndBreaksAtAnyStep) {
  at_every_step([](CountedTransfers& transfers, uint64_t at) {
    ASSERT_TRUE(transfers.world().at_event(at, Fault::break_sender(kFrom, kTo, 0)));
  });
}

TEST(Failover, TheTargetsEndBreaksAtAnyStep) {
  at_every_step([](CountedTransfers& transfers, uint64_t at) {
    ASSERT_TRUE(transfers.world().at_event(at, Fault::break_target(kFrom, kTo, 0)));
  });
}

TEST(Failover, BothEndsBreakAtDifferentTimes) {
  for (const uint64_t apart : {1u, 7u, 40u}) {
    at_every_step(
        [&](CountedTransfers& transfers, uint64_t at) {
          ASSERT_TRUE(transfers.world().at_event(at, Fault::break_sender(kFrom, kTo, 0)));
          ASSERT_TRUE(transfers.world().at_event(at + apart, Fault::break_target(kFrom, kTo, 0)));
        },
        3);
    at_every_step(
        [&](CountedTransfers& transfers, uint64_t at) {
          ASSERT_TRUE(transfers.world().at_event(at, Fault::break_target(kFrom, kTo, 1)));
          ASSERT_TRUE(transfers.world().at_event(at + apart, Fault::break_sender(kFrom, kTo, 1)));
        },
        3);
  }
}

TEST(Failover, BothRailsBreakOneAfterTheOther) {
  for (const uint64_t apart : {2u, 30u, 150u}) {
    at_every_step(
        [&](CountedTransfers& transfers, uint64_t at) {
          ASSERT_TRUE(transfers.world().at_event(at, Fault::break_sender(kFrom, kTo, 0)));
          ASSERT_TRUE(transfers.world().at_event(at + apart, Fault::break_sender(kFrom, kTo, 1)));
        },
        5);
  }
}

TEST(Failover, ABreakDuringTheReplay) {
  at_every_step(
      [](CountedTransfers& transfers, uint64_t at) {
        for (const uint64_t later : {0, 10, 20, 40, 80, 160}) {
          ASSERT_TRUE(transfers.world().at_event(
              at + later, later / 10 % 2 == 0 ? Fault::break_sender(kFrom, kTo, 0)
                                              : Fault::break_target(kFrom, kTo, 1)));
        }
      },
      7);
}

TEST(Failover, AcknowledgementsLostAfterDelivery) {
  at_every_step(
      [](CountedTransfers& transfers, uint64_t at) {
        ASSERT_TRUE(transfers.world().at_event(at, Fault::lose_acks(kFrom, kTo, 0)));
      },
      3);
}

TEST(Failover, LandedButNotCounted) {
  at_every_step(
      [](CountedTransfers& transfers, uint64_t at) {
        ASSERT_TRUE(transfers.world().at_event(at, Fault::receiver_not_ready(kTo, 1)));
      },
      3);
}

TEST(Failover, ACutLinkThatHealsInTimeAndOneThatDoesNot) {
  for (const Nanos lasts : {Nanos(100ms), Nanos(2s)}) {
    at_every_step(
        [&](CountedTransfers& transfers, uint64_t at) {
          sim::World& world = transfers.world();
          ASSERT_TRUE(world.at_event(at, Fault::cut(kFrom, kTo, 0)));
          ASSERT_TRUE(world.at(world.now() + lasts, Fault::heal(kFrom, kTo, 0)));
        },
        5);
  }
}

TEST(Failover, PartitionAndHeal) {
  for (const Nanos lasts : {Nanos(100ms), Nanos(3s)}) {
    at_every_step(
        [&](CountedTransfers& transfers, uint64_t at) {
          sim::World& world = transfers.world();
          ASSERT_TRUE(world.at_event(at, Fault::cut(kFrom, kTo)));
          ASSERT_TRUE(world.at(world.now() + lasts, Fault::heal(kFrom, kTo)));
        },
        11);
  }
}

TEST(Failover, AWrongKeyBreaksTheConnectionOfInnocents) {
  expect_breaks();
  const auto [begin, end] = CountedTransfers(test_seed()).span();
  for (uint64_t at = begin; at <= end; at += 5) {
    SCOPED_TRACE("after event " + std::to_string(at));
    CountedTransfers transfers(test_seed());
    ASSERT_TRUE(transfers.world().at_event(at, Fault::wrong_rkey(kFrom, kTo, 0)));
    transfers.submit();
    const auto waited = transfers.a().engine.wait(transfers.batch(), 60s);
    if (transfers.world().faults(Fault::Kind::kWrongRkey) == 0 || waited) continue;
    // One work request was refused; only its operation fails, and reports why.
    EXPECT_EQ(waited.error().code, Errc::kRemoteAccess);
    std::array<Failure, 8> failures;
    const uint32_t n = transfers.batch().failures(failures);
    ASSERT_EQ(n, 1u);
    EXPECT_EQ(failures[0].code, Errc::kRemoteAccess);
  }
}

// ---- In doubt -----------------------------------------------------------------------------------

// Writes that are in doubt after a break wait for the drain report of their own target only.

constexpr uint64_t kBreakBytes = 1 << 20;

/// One sender and two receivers. A stopped receiver still answers by its second NIC.
struct BreakSetup {
  BreakSetup() {
    expect_fault_logs();
    await_connected(world, a, to_b.peer);
    await_connected(world, a, to_c.peer);
    world.run_for(5ms);
    fill(a.bytes(), 7);
  }
  void happens(const Fault& fault) { ASSERT_TRUE(world.at(world.now(), fault)); }
  void write(const RemoteHost& remote, CounterKey key, uint64_t tag) {
    ASSERT_TRUE(a.engine.submit(Write{.source = a.memory.at(0),
                                      .target = remote.at(0),
                                      .size_bytes = kBreakBytes,
                                      .imm = key,
                                      .timeout = 20s,
                                      .notify = seen.notify(tag)}));
  }

  Host open() {
    return open_host(world, world.add_node(2, slow_rc()), kBreakBytes, short_timeouts_config());
  }

  EventRecorder seen;
  sim::World world{sim::WorldOptions{.seed = test_seed()}};
  Host a = open(), b = open(), c = open();
  RemoteHost to_b = connect(a, b, {.warm = true}), to_c = connect(a, c, {.warm = true});
};

TEST(Failover, TheLossOfAPeerCompletesWhatIsInDoubtWithItAndNothingElse) {
  BreakSetup setup;
  Counter at_b = *setup.b.engine.make_counter(), at_c = *setup.c.engine.make_counter();
  setup.happens(Fault::stop(1));
  setup.happens(Fault::stop(2));
  setup.write(setup.to_b, at_b.key(), 1);
  setup.write(setup.to_c, at_c.key(), 2);
  setup.world.run_for(300us);
  setup.happens(Fault::break_sender(0, 1, 0));
  setup.happens(Fault::break_sender(0, 2, 0));
  setup.world.run_for(100ms);
  ASSERT_EQ(setup.seen.count(), 0u) << "no drain report has come yet";

  setup.happens(Fault::crash(1));
  const Nanos died = setup.world.now();
  ASSERT_TRUE(setup.world.run_until([&] { return setup.seen.count() > 0; }, 10s));
  EXPECT_EQ(setup.seen.events[0].tag, 1u);
  EXPECT_EQ(setup.seen.events[0].code, Errc::kPeerLost);
  EXPECT_LE(setup.world.now(), died + short_timeouts_config().lost_timeout + 1ms);
  EXPECT_EQ(setup.seen.count(), 1u) << "the other path still waits for its drain report";

  setup.happens(Fault::resume(2));
  ASSERT_TRUE(setup.world.run_until([&] { return setup.seen.count() > 1; }, 1s));
  EXPECT_EQ(setup.seen.find(2)->code, Errc::kOk);
  EXPECT_EQ(at_c.count(), 1u);
  EXPECT_TRUE(holds(setup.c.bytes(), 7));
}

// The drain report may be the last thing that is missing: nothing else happens afterwards that
// would make the sender check again.
TEST(ClosedName, IsProvedAsSoonAsTheTargetHasReported) {
  constexpr Nanos kLate = 100ms;
  BreakSetup setup;
  const uint64_t name = 5;
  Counter counter = *setup.b.engine.named_counter(name);
  CounterKey key;
  ASSERT_TRUE(setup.a.engine.resolve(setup.to_b.peer, {&name, 1}, {&key, 1}));
  setup.happens(Fault::late_proof(1, kLate));
  setup.write(setup.to_b, key, 1);
  setup.world.run_for(300us);
  setup.happens(Fault::break_sender(0, 1, 0));
  setup.world.run_for(10ms);
  ASSERT_EQ(setup.seen.count(), 0u) << "the target is still closing its end";
  const Nanos asked = setup.world.now();
  const auto quiescence = counter.close();
  ASSERT_TRUE(quiescence);
  EXPECT_EQ(*quiescence, Quiescence::kProved);
  EXPECT_LE(setup.world.now(), asked + kLate);
}

// ---- Two faults ---------------------------------------------------------------------------------

constexpr uint64_t kTwoFaultStride = 149;  // events of the network from one run to the next

// Two faults at every step, three hosts, asymmetric rails.
void enumerate(const sim::NicModel& model, uint32_t ra, uint32_t rb, const Fault& first,
               const Fault& second, uint64_t apart, bool bulk, const Fault& undo) {
  for (uint64_t at = 5; at < 200; at += kTwoFaultStride) {
    SCOPED_TRACE("at " + std::to_string(at) + " rails " + std::to_string(ra) + std::to_string(rb) +
                 " " + to_string(first.kind) + " " + to_string(second.kind));
    Config config = short_timeouts_config();
    config.bulk_slice_bytes = 64 << 10;
    FaultyPair pair(model, ra, rb, 4 << 20, config);
    expect_log("");
    WriteAuditor auditor(*pair.a, 7);
    const WriteAuditor::Target to{&*pair.b, pair.remote};
    const uint64_t base = pair.world.events();
    ASSERT_TRUE(pair.world.at_event(base + at, first));
    ASSERT_TRUE(pair.world.at_event(base + at + apart, second));
    const WriteAuditor::Options options{.timeout = 500ms,
                                        .priority = bulk ? Priority::kBulk : Priority::kNormal};
    for (int i = 0; i < 3; ++i) auditor.write(to, 300 << 10, options);
    auditor.pages(to, 16, 4096, options);
    ASSERT_TRUE(pair.world.at(pair.world.now() + Nanos(50ms), undo));
    run_until_complete(pair.world, auditor);
    auditor.check();
    if (testing::Test::HasFailure()) return;
  }
}
TEST(Failover, TwoFaultsAtAnyStep) {
  for (const bool bulk : {false, true}) {
    for (const auto& [ra, rb] : {std::pair{1u, 4u}, {4u, 1u}, {2u, 3u}}) {
      enumerate(slow_rc(), ra, rb, Fault::break_sender(0, 1, 0), Fault::nic_down(1, 0), 7, bulk,
                Fault::nic_up(1, 0));
      enumerate(slow_rc(), ra, rb, Fault::lose_acks(0, 1, 0), Fault::break_target(0, 1, 0), 11,
                bulk, Fault::keep_acks(0, 1));
      enumerate(slow_rc(), ra, rb, Fault::refuse_posts(0, 0), Fault::break_sender(0, 1, 0), 5, bulk,
                Fault::take_posts(0));
      enumerate(slow_rc(), ra, rb, Fault::receiver_not_ready(1, 0), Fault::nic_down(0, 0), 40, bulk,
                Fault::receiver_ready(1));
      enumerate(slow_rc(), ra, rb, Fault::control_cut(0, 1), Fault::break_target(0, 1, 0), 3, bulk,
                Fault::control_heal(0, 1));
      enumerate(slow_srd(), ra, rb, Fault::refuse_posts(0, 0), Fault::nic_down(0, 0), 5, bulk,
                Fault::nic_up(0, 0));
      enumerate(slow_srd(), ra, rb, Fault::lose_acks(0, 1, 0), Fault::nic_down(1, 0), 20, bulk,
                Fault::nic_up(1, 0));
    }
  }
}

}  // namespace
}  // namespace fabric::test::failover_test

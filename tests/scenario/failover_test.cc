#include <algorithm>
#include <map>
#include <string>

#include "harness/host.h"
#include "support/log_guard.h"

// Connections that break, rails that go and come back. Whatever happens to the network between two
// engines that live, every write is delivered once, with all of its bytes (P10).

namespace fabric::test {
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
  sim::NicModel model = sim::NicModel::connectx7();
  model.gbit_per_s = 10;  // slow enough that a fault finds something on its way
  return model;
}

Config traffic_config() {
  Config config = test_config();
  config.bulk_slice_bytes = 32'768;
  return config;
}

/// One of everything that counts, from one host to another.
class Traffic {
 public:
  explicit Traffic(uint64_t seed, uint32_t rails = 2, const sim::NicModel& model = rc(),
                   const Config& config = traffic_config())
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

/// Tells the story once for every event between the first submit and the last completion, with the
/// faults beginning right after that event.
void at_every_step(const std::function<void(Traffic&, uint64_t)>& break_at, uint64_t stride = 1) {
  expect_breaks();
  const auto [begin, end] = Traffic(test_seed()).span();
  ASSERT_GT(end - begin, 50u);
  for (uint64_t at = begin; at <= end; at += stride) {
    SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
    Traffic traffic(test_seed());
    break_at(traffic, at);
    traffic.submit();
    traffic.everything_arrived_once();
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Failover, ARailOfTheSenderGoesDownAtAnyStep) {
  at_every_step([](Traffic& traffic, uint64_t at) {
    ASSERT_TRUE(traffic.world().at_event(at, Fault::nic_down(kFrom, 0)));
  });
}

TEST(Failover, ARailOfTheTargetGoesDownAtAnyStep) {
  at_every_step([](Traffic& traffic, uint64_t at) {
    ASSERT_TRUE(traffic.world().at_event(at, Fault::nic_down(kTo, 1)));
  });
}

TEST(Failover, TheSendersEndBreaksAtAnyStep) {
  at_every_step([](Traffic& traffic, uint64_t at) {
    ASSERT_TRUE(traffic.world().at_event(at, Fault::break_sender(kFrom, kTo, 0)));
  });
}

TEST(Failover, TheTargetsEndBreaksAtAnyStep) {
  at_every_step([](Traffic& traffic, uint64_t at) {
    ASSERT_TRUE(traffic.world().at_event(at, Fault::break_target(kFrom, kTo, 0)));
  });
}

TEST(Failover, BothEndsBreakAtDifferentTimes) {
  for (const uint64_t apart : {1u, 7u, 40u}) {
    at_every_step(
        [&](Traffic& traffic, uint64_t at) {
          ASSERT_TRUE(traffic.world().at_event(at, Fault::break_sender(kFrom, kTo, 0)));
          ASSERT_TRUE(traffic.world().at_event(at + apart, Fault::break_target(kFrom, kTo, 0)));
        },
        3);
    at_every_step(
        [&](Traffic& traffic, uint64_t at) {
          ASSERT_TRUE(traffic.world().at_event(at, Fault::break_target(kFrom, kTo, 1)));
          ASSERT_TRUE(traffic.world().at_event(at + apart, Fault::break_sender(kFrom, kTo, 1)));
        },
        3);
  }
}

TEST(Failover, BothRailsBreakOneAfterTheOther) {
  for (const uint64_t apart : {2u, 30u, 150u}) {
    at_every_step(
        [&](Traffic& traffic, uint64_t at) {
          ASSERT_TRUE(traffic.world().at_event(at, Fault::break_sender(kFrom, kTo, 0)));
          ASSERT_TRUE(traffic.world().at_event(at + apart, Fault::break_sender(kFrom, kTo, 1)));
        },
        5);
  }
}

TEST(Failover, ABreakDuringTheReplay) {
  at_every_step(
      [](Traffic& traffic, uint64_t at) {
        for (const uint64_t later : {0, 10, 20, 40, 80, 160}) {
          ASSERT_TRUE(traffic.world().at_event(
              at + later, later / 10 % 2 == 0 ? Fault::break_sender(kFrom, kTo, 0)
                                              : Fault::break_target(kFrom, kTo, 1)));
        }
      },
      7);
}

TEST(Failover, AcknowledgementsLostAfterDelivery) {
  at_every_step(
      [](Traffic& traffic, uint64_t at) {
        ASSERT_TRUE(traffic.world().at_event(at, Fault::lose_acks(kFrom, kTo, 0)));
      },
      3);
}

TEST(Failover, LandedButNotCounted) {
  at_every_step(
      [](Traffic& traffic, uint64_t at) {
        ASSERT_TRUE(traffic.world().at_event(at, Fault::receiver_not_ready(kTo, 1)));
      },
      3);
}

TEST(Failover, ACutLinkThatHealsInTimeAndOneThatDoesNot) {
  for (const Nanos lasts : {Nanos(100ms), Nanos(2s)}) {
    at_every_step(
        [&](Traffic& traffic, uint64_t at) {
          sim::World& world = traffic.world();
          ASSERT_TRUE(world.at_event(at, Fault::cut(kFrom, kTo, 0)));
          ASSERT_TRUE(world.at(world.now() + lasts, Fault::heal(kFrom, kTo, 0)));
        },
        5);
  }
}

TEST(Failover, PartitionAndHeal) {
  for (const Nanos lasts : {Nanos(100ms), Nanos(3s)}) {
    at_every_step(
        [&](Traffic& traffic, uint64_t at) {
          sim::World& world = traffic.world();
          ASSERT_TRUE(world.at_event(at, Fault::cut(kFrom, kTo)));
          ASSERT_TRUE(world.at(world.now() + lasts, Fault::heal(kFrom, kTo)));
        },
        11);
  }
}

TEST(Failover, AWrongKeyBreaksTheConnectionOfInnocents) {
  expect_breaks();
  const auto [begin, end] = Traffic(test_seed()).span();
  for (uint64_t at = begin; at <= end; at += 5) {
    SCOPED_TRACE("after event " + std::to_string(at));
    Traffic traffic(test_seed());
    ASSERT_TRUE(traffic.world().at_event(at, Fault::wrong_key(kFrom, kTo, 0)));
    traffic.submit();
    const auto waited = traffic.a().engine.wait(traffic.batch(), 60s);
    if (traffic.world().faults(Fault::Kind::kWrongKey) == 0 || waited) continue;
    // One piece was refused; only its own operation fails, and says why.
    EXPECT_EQ(waited.error().code, Errc::kRemoteAccess);
    std::array<Failure, 8> failures;
    const uint32_t n = traffic.batch().failures(failures);
    ASSERT_EQ(n, 1u);
    EXPECT_EQ(failures[0].code, Errc::kRemoteAccess);
  }
}

}  // namespace
}  // namespace fabric::test

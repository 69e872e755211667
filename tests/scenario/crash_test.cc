#include <algorithm>

#include <gtest/gtest.h>

#include "harness/write_auditor.h"
#include "support/log_guard.h"

// Processes that die without a goodbye, at every step of what their peers do (P1, P3, P5, P16).

namespace fabric::test::crash_test {
namespace {

using sim::Fault;

constexpr uint64_t kSize = 512 << 10;
constexpr uint64_t kStride = 11;    // run the test at every n-th network event
constexpr uint32_t kA = 0, kB = 1;  // nodes

/// A sender and three receivers, of which the first will die.
class CrashCluster {
 public:
  explicit CrashCluster(const sim::NicModel& model = slow_rc())
      : world(sim::WorldOptions{.seed = test_seed()}) {
    for (uint32_t i = 0; i < 4; ++i) {
      hosts.push_back(open_host(world, world.add_node(2, model), kSize, short_timeouts_config()));
    }
    for (uint32_t i = 1; i < 4; ++i) {
      to.push_back({&hosts[i], connect(hosts[0], hosts[i])});
      await_connected(world, hosts[0], to.back().remote.peer);
    }
    // The third host waits for a count of the one that dies.
    back = connect(hosts[2], hosts[1]);
    await_connected(world, hosts[2], back.peer);
    bound.emplace(*hosts[2].engine.make_counter());
    EXPECT_TRUE(bound->bind(back.peer));
    EXPECT_TRUE(bound->expect(1, seen_c.notify(7), 60s));
    sub.emplace(*hosts[0].engine.subscribe(seen_a.notify()));
    auditor.emplace(hosts[0], test_seed());
  }

  Host& a() { return hosts[0]; }
  Host& b() { return hosts[1]; }

  /// The same at whatever event: it all depends on nothing but the seed.
  void submit() {
    auditor->pages(to[0], 20, 4096);
    auditor->scatter(to, 20'000);
    auditor->write(to[0], 140'000);
    others.push_back(auditor->ops.size());
    auditor->write(to[1], 140'000);
    auditor->pages(to[2], 8, 4096);
  }

  uint64_t losses(PeerId peer) const {
    return static_cast<uint64_t>(
        std::count_if(seen_a.events.begin(), seen_a.events.end(), [&](const Event& e) {
          return e.kind == EventKind::kPeer && e.peer == peer &&
                 e.value == static_cast<uint64_t>(PeerState::kLost);
        }));
  }

  EventRecorder seen_a, seen_c;
  sim::World world;
  std::vector<Host> hosts;
  std::vector<WriteAuditor::Target> to;
  RemoteHost back;
  std::vector<size_t> others;  ///< the first operation that does not involve the dead host
  std::optional<Counter> bound;
  std::optional<Subscription> sub;
  std::optional<WriteAuditor> auditor;
};

struct UndisturbedRun {
  uint64_t begin = 0, end = 0;  ///< events
  std::vector<Nanos> ended{};   ///< operations, on the clock
};

UndisturbedRun without_a_crash(const sim::NicModel& model) {
  CrashCluster cluster(model);
  UndisturbedRun undisturbed{.begin = cluster.world.events()};
  cluster.submit();
  EXPECT_TRUE(cluster.world.run_until([&] { return cluster.auditor->all_completed(); }, 10s));
  undisturbed.end = cluster.world.events();
  for (const auto& op : cluster.auditor->ops) {
    EXPECT_TRUE(op.ok());
    undisturbed.ended.push_back(op.completed);
  }
  return undisturbed;
}

/// `lose_acks`: the sender gets no acknowledgement of what the receiver counted before it died.
void a_receiver_dies_at_any_step(const sim::NicModel& model, bool lose_acks = false) {
  expect_fault_logs();
  const UndisturbedRun undisturbed = without_a_crash(model);
  ASSERT_GT(undisturbed.end, undisturbed.begin + 100);
  uint64_t unknown = 0, not_delivered = 0;
  for (uint64_t at = undisturbed.begin; at < undisturbed.end; at += kStride) {
    SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
    CrashCluster cluster(model);
    ASSERT_TRUE(cluster.world.at_event(at, Fault::crash(kB)));
    const Fault acks = lose_acks ? Fault::lose_acks(kA, kB) : Fault::keep_acks(kA, kB);
    ASSERT_TRUE(cluster.world.at(cluster.world.now(), acks));
    cluster.auditor->died(cluster.b());
    cluster.submit();
    run_until_complete(cluster.world, *cluster.auditor);
    ASSERT_NO_FATAL_FAILURE(cluster.auditor->check());
    cluster.auditor->check_keys();
    for (size_t i = 0; i < cluster.auditor->ops.size(); ++i) {
      const auto& op = cluster.auditor->ops[i];
      for (const auto& part : op.parts) {
        const bool survivor = part.target_engine != &cluster.b().engine;
        EXPECT_TRUE(!survivor || part.remote == Remote::kDelivered)
            << "a write to a survivor was not delivered";
        unknown += part.remote == Remote::kUnknown;
        not_delivered += part.remote == Remote::kNotDelivered;
      }
      if (!op.ok()) {
        const bool gave_up = op.event.code == Errc::kRailLost && !model.exact_replay;
        EXPECT_TRUE(op.event.code == Errc::kPeerLost || op.event.code == Errc::kTimeout || gave_up)
            << to_string(op.event.code);
        EXPECT_EQ(op.event.peer, cluster.to[0].remote.peer);
      }
      if (i >= cluster.others[0]) {
        // Jitter may be drawn in another order; any waiting for the dead would be far longer.
        EXPECT_LE(op.completed, undisturbed.ended[i] + 50us)
            << "operation " << i << " was delayed by the crashed peer";
      }
    }
    ASSERT_TRUE(cluster.world.run_until([&] { return cluster.seen_c.find(7) != nullptr; }, 10s));
    EXPECT_EQ(cluster.seen_c.find(7)->code, Errc::kPeerLost);
    EXPECT_EQ(cluster.seen_c.find(7)->peer, cluster.back.peer);
    EXPECT_EQ(cluster.losses(cluster.to[0].remote.peer), 1u);

    Host next = open_host(cluster.world, kB, kSize, short_timeouts_config());
    EXPECT_TRUE(delivers(cluster.world, cluster.a(), next, 9));
    EXPECT_TRUE(delivers(cluster.world, next, cluster.hosts[2], 10));
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(unknown, 0u);
  EXPECT_GT(not_delivered, 0u);
}

TEST(Crash, OfAReceiverDisturbsNoOtherPeer) { a_receiver_dies_at_any_step(slow_rc()); }

TEST(Crash, OfAReceiverThatCountedUnreportedWrites) {
  a_receiver_dies_at_any_step(slow_rc(), true);
}

TEST(Crash, OfAReceiverDisturbsNoOtherPeerWithoutConnections) {
  a_receiver_dies_at_any_step(slow_srd());
}

// ---- During what is not a write -----------------------------------------------------------------

/// Two hosts without a session. The second one dies after a given network event.
class CrashPair {
 public:
  explicit CrashPair(const sim::NicModel& model = slow_rc())
      : world(sim::WorldOptions{.seed = test_seed()}),
        a(open_host(world, world.add_node(2, model), kSize, short_timeouts_config())),
        b(open_host(world, world.add_node(2, model), kSize, short_timeouts_config())) {}

  void meet() {
    to_b = connect(a, b);
    to_a = connect(b, a);
    await_connected(world, a, to_b.peer);
    await_connected(world, b, to_a.peer);
  }
  /// The surviving host works with the successor of the dead one.
  void works_with_successor() {
    Host next = open_host(world, kB, kSize, short_timeouts_config());
    EXPECT_TRUE(delivers(world, a, next, 11));
    EXPECT_TRUE(delivers(world, next, a, 12));
  }
  Nanos bound() const {
    return short_timeouts_config().default_timeout + short_timeouts_config().drain_timeout;
  }

  EventRecorder seen;
  sim::World world;
  Host a, b;
  RemoteHost to_b, to_a;
};

/// Crashes b after every event of an undisturbed run. `begin` prepares the hosts, `act` submits
/// under tag 1 of the recorder.
void dies_during(const std::function<void(CrashPair&)>& begin,
                 const std::function<void(CrashPair&)>& act,
                 const std::function<void(CrashPair&, const Event&)>& check, uint64_t stride) {
  expect_fault_logs();
  uint64_t first = 0, last = 0;
  {
    CrashPair two;
    begin(two);
    first = two.world.events();
    act(two);
    ASSERT_TRUE(two.world.run_until([&] { return two.seen.find(1) != nullptr; }, 10s));
    EXPECT_EQ(two.seen.find(1)->code, Errc::kOk);
    last = two.world.events();
  }
  ASSERT_GT(last, first);
  for (uint64_t at = first; at <= last; at += stride) {
    SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
    CrashPair two;
    begin(two);
    const Nanos started = two.world.now();
    ASSERT_TRUE(two.world.at_event(at, Fault::crash(kB)));
    act(two);
    ASSERT_TRUE(two.world.run_until([&] { return two.seen.find(1) != nullptr; }, 60s));
    EXPECT_LE(two.world.now(), started + two.bound());
    check(two, *two.seen.find(1));
    two.world.run_for(5s);
    EXPECT_EQ(std::ranges::count(two.seen.events, 1u, &Event::tag), 1) << "it must complete once";
    EXPECT_EQ(two.a.engine.stats().ops_in_flight, 0u) << two.a.engine.dump();
    two.works_with_successor();
    if (testing::Test::HasFailure()) return;
  }
}

void meet(CrashPair& two) { two.meet(); }

TEST(Crash, DuringConnectEndsWhatWaitedForIt) {
  dies_during([](CrashPair&) {},
              [](CrashPair& two) {
                two.to_b = connect(two.a, two.b);
                fill(two.a.bytes(), 1);
                const Write write{.source = two.a.memory.at(0),
                                  .target = two.to_b.at(0),
                                  .size_bytes = 140'000,
                                  .notify = two.seen.notify(1)};
                ASSERT_TRUE(two.a.engine.submit(write));
              },
              [](CrashPair& two, const Event& event) {
                if (event.code == Errc::kOk) {
                  EXPECT_TRUE(holds(two.b.bytes(0, 140'000), 1));
                } else if (event.remote == Remote::kNotDelivered) {
                  std::ranges::fill(two.b.bytes(), std::byte{0});
                  two.world.run_for(1s);
                  EXPECT_TRUE(untouched(two.b.bytes())) << "landed after the completion";
                }
                // Never reached, dead, or no answer before the deadline.
                EXPECT_TRUE(event.code == Errc::kOk || event.code == Errc::kUnreachable ||
                            event.code == Errc::kPeerLost || event.code == Errc::kTimeout)
                    << to_string(event.code);
              },
              1);
}

TEST(Crash, DuringResolveEndsIt) {
  static constexpr uint64_t kNames[] = {1, 2, 3};
  std::array<CounterKey, 3> out{};
  dies_during(
      meet,
      [&](CrashPair& two) {
        out = {};
        ASSERT_TRUE(two.a.engine.submit(Resolve{
            .peer = two.to_b.peer, .names = kNames, .out = out, .notify = two.seen.notify(1)}));
      },
      [&](CrashPair&, const Event& event) {
        const bool ok = event.code == Errc::kOk;
        EXPECT_TRUE(ok || event.code == Errc::kPeerLost || event.code == Errc::kTimeout);
        for (const CounterKey key : out) EXPECT_EQ(static_cast<bool>(key), ok);
      },
      1);
}

/// The host that dies has writes in flight to the host that fences, or deregisters.
void start_writes_of_b(CrashPair& two, uint64_t content) {
  fill(two.b.bytes(), content);
  for (uint64_t i = 0; i < 4; ++i) {
    const auto op = two.b.engine.submit(Write{.source = two.b.memory.at(i * 100'000),
                                              .target = two.to_a.at(i * 100'000),
                                              .size_bytes = 100'000});
    ASSERT_TRUE(op);
  }
  two.world.run_for(30us);
}

/// After a proof nothing lands, whatever was in flight.
void nothing_lands(CrashPair& two, std::span<std::byte> memory) {
  std::ranges::fill(memory, std::byte{0});
  two.world.run_for(3s);
  EXPECT_TRUE(untouched(memory)) << "a write landed after the proof";
}

TEST(Crash, DuringAFenceIsAsGoodAsAnAnswer) {
  dies_during(
      [](CrashPair& two) {
        two.meet();
        start_writes_of_b(two, 2);
      },
      [](CrashPair& two) {
        ASSERT_TRUE(
            two.a.engine.submit(Fence{.peer = two.to_b.peer, .notify = two.seen.notify(1)}));
      },
      [](CrashPair& two, const Event& event) {
        EXPECT_EQ(event.code, Errc::kOk) << "this network can shut a peer out by itself";
        nothing_lands(two, two.a.bytes());
      },
      kStride);
}

TEST(Crash, DuringADeregistrationIsAsGoodAsAnAnswer) {
  dies_during(
      [](CrashPair& two) {
        two.meet();
        start_writes_of_b(two, 2);
      },
      [](CrashPair& two) {
        ASSERT_TRUE(two.a.engine.submit(
            Deregister{.region = two.a.memory.id(), .notify = two.seen.notify(1)}));
      },
      [](CrashPair& two, const Event& event) {
        EXPECT_EQ(event.code, Errc::kOk);
        two.a.memory = *two.a.engine.allocate({.size_bytes = kSize});
      },
      kStride);
}

// ---- The sender ---------------------------------------------------------------------------------

TEST(Crash, OfASenderEndsTheWaitsThatNameItAndItsMemoryCanBeFenced) {
  expect_fault_logs();
  const auto [begin, end] = [] {
    CrashPair two;
    two.meet();
    WriteAuditor auditor(two.a, 1);
    const uint64_t from = two.world.events();
    auditor.pages({&two.b, two.to_b}, 20, 4096);
    auditor.write({&two.b, two.to_b}, 150'000);
    EXPECT_TRUE(two.world.run_until([&] { return auditor.all_completed(); }, 10s));
    return std::pair(from, two.world.events());
  }();
  for (uint64_t at = begin; at <= end; at += kStride) {
    for (const bool early :
         {true, false}) {  // the fence comes before the loss is noticed, or after
      SCOPED_TRACE("after event " + std::to_string(at) + (early ? ", early" : ", late"));
      CrashPair two;
      two.meet();
      WriteAuditor auditor(two.a, 1);
      Counter bound = *two.b.engine.make_counter();
      ASSERT_TRUE(bound.bind(two.to_a.peer));
      ASSERT_TRUE(bound.expect(1, two.seen.notify(2), 60s));
      ASSERT_TRUE(two.world.at_event(at, Fault::crash(kA)));
      const WriteAuditor::Target to{&two.b, two.to_b};
      auditor.pages(to, 20, 4096);
      auditor.write(to, 150'000);
      const auto crashed = [&] { return two.world.faults(Fault::Kind::kCrash) > 0; };
      ASSERT_TRUE(two.world.run_until(crashed, 10s));
      EXPECT_NE(two.a.engine.dump(), "") << "a dead engine can still be dumped";
      const Nanos when = two.world.now();
      // Closing its inbound paths takes time, and the proof does not come before.
      constexpr Nanos kProof = 20ms;
      ASSERT_TRUE(two.world.at(when, Fault::late_proof(kB, kProof)));
      const Fence fence{.peer = two.to_a.peer, .notify = two.seen.notify(1)};
      const auto reported = [&] { return two.seen.find(2) != nullptr; };
      if (early) {
        ASSERT_TRUE(two.b.engine.submit(fence));
      }
      const auto gone = [&] {
        const auto info = two.b.engine.peer_info(two.to_a.peer);
        return !info || info->state >= PeerState::kLost;
      };
      ASSERT_TRUE(two.world.run_until(gone, 10s));
      const Nanos lost = two.world.now();
      ASSERT_TRUE(two.world.run_until(reported, 100ms))
          << "the wait for its last counts is too long";
      if (!early) {
        ASSERT_TRUE(two.b.engine.submit(fence));
      }
      const bool had_a_path = !untouched(two.b.bytes());
      ASSERT_TRUE(two.world.run_until([&] { return two.seen.find(1) != nullptr; }, 10s));
      EXPECT_EQ(two.seen.find(1)->code, Errc::kOk);
      EXPECT_GE(two.world.now(), had_a_path ? lost + kProof : lost);
      nothing_lands(two, two.b.bytes());
      ASSERT_TRUE(reported());
      EXPECT_EQ(two.seen.find(2)->code, Errc::kPeerLost);
      EXPECT_EQ(two.seen.find(2)->peer, two.to_a.peer);
      EXPECT_LE(two.world.now(), when + 4s + short_timeouts_config().lost_timeout);
      Host next = open_host(two.world, kA, kSize, short_timeouts_config());
      EXPECT_TRUE(delivers(two.world, next, two.b, 11));
      EXPECT_TRUE(delivers(two.world, two.b, next, 12));
      if (testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace fabric::test::crash_test

#include <algorithm>

#include "harness/write_auditor.h"
#include "support/log_guard.h"

// Processes that die without a word, at every step of what others do with them (P1, P3, P5, P16).

namespace fabric::test {
namespace {

using sim::Fault;

constexpr uint64_t kSize = 512 << 10;
constexpr uint64_t kStride = 11;    // of the events of the network at which a story is told
constexpr uint32_t kA = 0, kB = 1;  // nodes

/// One who writes to three, of whom the first will die.
class Four {
 public:
  explicit Four(const sim::NicModel& model = slow_rc())
      : world(sim::WorldOptions{.seed = test_seed()}) {
    for (uint32_t i = 0; i < 4; ++i) {
      hosts.push_back(open_host(world, world.add_node(2, model), kSize, hasty_config()));
    }
    for (uint32_t i = 1; i < 4; ++i) {
      to.push_back({&hosts[i], connect(hosts[0], hosts[i])});
      await_connected(world, hosts[0], to.back().way.peer);
    }
    // The third has to do with the one who dies, and waits for it.
    back = connect(hosts[2], hosts[1]);
    await_connected(world, hosts[2], back.peer);
    bound.emplace(*hosts[2].engine.make_counter());
    EXPECT_TRUE(bound->bind(back.peer));
    EXPECT_TRUE(bound->expect(1, seen_c.notify(7), 60s));
    sub.emplace(*hosts[0].engine.subscribe(seen_a.notify()));
    ledger.emplace(hosts[0], test_seed());
  }

  Host& a() { return hosts[0]; }
  Host& b() { return hosts[1]; }

  /// The same at whatever event: it all depends on nothing but the seed.
  void submit() {
    ledger->pages(to[0], 20, 4096);
    ledger->scatter(to, 20'000);
    ledger->write(to[0], 140'000);
    others.push_back(ledger->lines.size());
    ledger->write(to[1], 140'000);
    ledger->pages(to[2], 8, 4096);
  }

  uint64_t losses(PeerId peer) const {
    return static_cast<uint64_t>(
        std::count_if(seen_a.events.begin(), seen_a.events.end(), [&](const Event& e) {
          return e.kind == EventKind::kPeer && e.peer == peer &&
                 e.value == static_cast<uint64_t>(PeerState::kLost);
        }));
  }

  Witness seen_a, seen_c;
  sim::World world;
  std::vector<Host> hosts;
  std::vector<Ledger::Target> to;
  Way back;
  std::vector<size_t> others;  ///< the first operation that has nothing to do with the dead one
  std::optional<Counter> bound;
  std::optional<Subscription> sub;
  std::optional<Ledger> ledger;
};

struct Calm {
  uint64_t begin = 0, end = 0;  ///< events
  std::vector<Nanos> ended{};   ///< operations, on the clock
};

Calm without_a_crash(const sim::NicModel& model) {
  Four four(model);
  Calm calm{.begin = four.world.events()};
  four.submit();
  EXPECT_TRUE(four.world.run_until([&] { return four.ledger->all_ended(); }, 10s));
  calm.end = four.world.events();
  for (const auto& line : four.ledger->lines) {
    EXPECT_TRUE(line.ok());
    calm.ended.push_back(line.ended);
  }
  return calm;
}

/// `unheard`: what it takes before it dies it counts, and nobody hears of it.
void a_receiver_dies_at_any_step(const sim::NicModel& model, bool unheard = false) {
  expect_trouble();
  const Calm calm = without_a_crash(model);
  ASSERT_GT(calm.end, calm.begin + 100);
  uint64_t unknown = 0, not_delivered = 0;
  for (uint64_t at = calm.begin; at < calm.end; at += kStride) {
    SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
    Four four(model);
    ASSERT_TRUE(four.world.at_event(at, Fault::crash(kB)));
    const Fault deaf = unheard ? Fault::lose_acks(kA, kB) : Fault::keep_acks(kA, kB);
    ASSERT_TRUE(four.world.at(four.world.now(), deaf));
    four.ledger->died(four.b());
    four.submit();
    run_to_the_end(four.world, *four.ledger);
    ASSERT_NO_FATAL_FAILURE(four.ledger->check());
    four.ledger->check_keys();
    for (size_t i = 0; i < four.ledger->lines.size(); ++i) {
      const auto& line = four.ledger->lines[i];
      for (const auto& part : line.parts) {
        const bool survivor = part.host != &four.b();
        EXPECT_TRUE(!survivor || part.remote == Remote::kDelivered) << "of a survivor";
        unknown += part.remote == Remote::kUnknown;
        not_delivered += part.remote == Remote::kNotDelivered;
      }
      if (!line.ok()) {
        const bool gave_up = line.event.code == Errc::kRailLost && !model.exact_replay;
        EXPECT_TRUE(line.event.code == Errc::kPeerLost || line.event.code == Errc::kTimeout ||
                    gave_up)
            << to_string(line.event.code);
        EXPECT_EQ(line.event.peer, four.to[0].way.peer);
      }
      if (i >= four.others[0]) {
        // Jitter may be drawn in another order; any waiting for the dead would be far longer.
        EXPECT_LE(line.ended, calm.ended[i] + 50us)
            << "operation " << i << " was delayed by the dead";
      }
    }
    ASSERT_TRUE(four.world.run_until([&] { return four.seen_c.find(7) != nullptr; }, 10s));
    EXPECT_EQ(four.seen_c.find(7)->code, Errc::kPeerLost);
    EXPECT_EQ(four.seen_c.find(7)->peer, four.back.peer);
    EXPECT_EQ(four.losses(four.to[0].way.peer), 1u);

    Host next = open_host(four.world, kB, kSize, hasty_config());
    EXPECT_TRUE(delivers(four.world, four.a(), next, 9));
    EXPECT_TRUE(delivers(four.world, next, four.hosts[2], 10));
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(unknown, 0u);
  EXPECT_GT(not_delivered, 0u);
}

TEST(Crash, OfAReceiverHurtsNobodyElse) { a_receiver_dies_at_any_step(slow_rc()); }

TEST(Crash, OfAReceiverThatCountedWhatNobodyHeardOf) {
  a_receiver_dies_at_any_step(slow_rc(), true);
}

TEST(Crash, OfAReceiverHurtsNobodyElseWithoutConnectionsEither) {
  a_receiver_dies_at_any_step(slow_srd());
}

// ---- During what is not a write -----------------------------------------------------------------

/// Two hosts, of whom the second dies at an event of the network; nothing has been said before.
class Two {
 public:
  explicit Two(const sim::NicModel& model = slow_rc())
      : world(sim::WorldOptions{.seed = test_seed()}),
        a(open_host(world, world.add_node(2, model), kSize, hasty_config())),
        b(open_host(world, world.add_node(2, model), kSize, hasty_config())) {}

  void meet() {
    to_b = connect(a, b);
    to_a = connect(b, a);
    await_connected(world, a, to_b.peer);
    await_connected(world, b, to_a.peer);
  }
  /// The one who stays can do everything with whoever comes next.
  void starts_again() {
    Host next = open_host(world, kB, kSize, hasty_config());
    EXPECT_TRUE(delivers(world, a, next, 11));
    EXPECT_TRUE(delivers(world, next, a, 12));
  }
  Nanos bound() const { return hasty_config().default_timeout + hasty_config().drain_timeout; }

  Witness seen;
  sim::World world;
  Host a, b;
  Way to_b, to_a;
};

/// Tells `story` with the crash after every event from its beginning to its end without one.
/// `begin` brings the hosts to where it starts, `act` submits under tag 1 of the witness.
void dies_during(const std::function<void(Two&)>& begin, const std::function<void(Two&)>& act,
                 const std::function<void(Two&, const Event&)>& check, uint64_t stride) {
  expect_trouble();
  uint64_t first = 0, last = 0;
  {
    Two two;
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
    Two two;
    begin(two);
    const Nanos started = two.world.now();
    ASSERT_TRUE(two.world.at_event(at, Fault::crash(kB)));
    act(two);
    ASSERT_TRUE(two.world.run_until([&] { return two.seen.find(1) != nullptr; }, 60s));
    EXPECT_LE(two.world.now(), started + two.bound());
    check(two, *two.seen.find(1));
    two.world.run_for(5s);
    EXPECT_EQ(std::ranges::count(two.seen.events, 1u, &Event::tag), 1) << "it ends once";
    EXPECT_EQ(two.a.engine.stats().ops_in_flight, 0u) << two.a.engine.dump();
    two.starts_again();
    if (testing::Test::HasFailure()) return;
  }
}

void meet(Two& two) { two.meet(); }

TEST(Crash, DuringConnectEndsWhatWaitedForIt) {
  dies_during([](Two&) {},
              [](Two& two) {
                two.to_b = connect(two.a, two.b);
                fill(two.a.bytes(), 1);
                const Write write{.source = two.a.memory.at(0),
                                  .target = two.to_b.at(0),
                                  .size_bytes = 140'000,
                                  .notify = two.seen.notify(1)};
                ASSERT_TRUE(two.a.engine.submit(write));
              },
              [](Two& two, const Event& event) {
                if (event.code == Errc::kOk) {
                  EXPECT_TRUE(holds(two.b.bytes(0, 140'000), 1));
                } else if (event.remote == Remote::kNotDelivered) {
                  std::ranges::fill(two.b.bytes(), std::byte{0});
                  two.world.run_for(1s);
                  EXPECT_TRUE(untouched(two.b.bytes())) << "landed after the end";
                }
                // Nobody was ever there, nobody is there any more, or nobody said anything in time.
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
      [&](Two& two) {
        out = {};
        ASSERT_TRUE(two.a.engine.submit(Resolve{
            .peer = two.to_b.peer, .names = kNames, .out = out, .notify = two.seen.notify(1)}));
      },
      [&](Two&, const Event& event) {
        const bool ok = event.code == Errc::kOk;
        EXPECT_TRUE(ok || event.code == Errc::kPeerLost || event.code == Errc::kTimeout);
        for (const CounterKey key : out) EXPECT_EQ(static_cast<bool>(key), ok);
      },
      1);
}

/// The one who dies has writes under way to the one who fences, or deregisters.
void let_b_write(Two& two, uint64_t content) {
  fill(two.b.bytes(), content);
  for (uint64_t i = 0; i < 4; ++i) {
    const auto op = two.b.engine.submit(Write{.source = two.b.memory.at(i * 100'000),
                                              .target = two.to_a.at(i * 100'000),
                                              .size_bytes = 100'000});
    ASSERT_TRUE(op);
  }
  two.world.run_for(30us);
}

/// After a proof: whatever was on its way, nothing lands.
void nothing_lands(Two& two, std::span<std::byte> memory) {
  std::ranges::fill(memory, std::byte{0});
  two.world.run_for(3s);
  EXPECT_TRUE(untouched(memory)) << "after the proof";
}

TEST(Crash, DuringAFenceIsAsGoodAsAnAnswer) {
  dies_during(
      [](Two& two) {
        two.meet();
        let_b_write(two, 2);
      },
      [](Two& two) {
        ASSERT_TRUE(
            two.a.engine.submit(Fence{.peer = two.to_b.peer, .notify = two.seen.notify(1)}));
      },
      [](Two& two, const Event& event) {
        EXPECT_EQ(event.code, Errc::kOk) << "this network can shut a peer out by itself";
        nothing_lands(two, two.a.bytes());
      },
      kStride);
}

TEST(Crash, DuringADeregistrationIsAsGoodAsAnAnswer) {
  dies_during(
      [](Two& two) {
        two.meet();
        let_b_write(two, 2);
      },
      [](Two& two) {
        ASSERT_TRUE(two.a.engine.submit(
            Deregister{.region = two.a.memory.id(), .notify = two.seen.notify(1)}));
      },
      [](Two& two, const Event& event) {
        EXPECT_EQ(event.code, Errc::kOk);
        two.a.memory = *two.a.engine.allocate({.size_bytes = kSize});
      },
      kStride);
}

// ---- The sender ---------------------------------------------------------------------------------

TEST(Crash, OfASenderEndsTheWaitsThatNameItAndItsMemoryCanBeFenced) {
  expect_trouble();
  const auto [begin, end] = [] {
    Two two;
    two.meet();
    Ledger ledger(two.a, 1);
    const uint64_t from = two.world.events();
    ledger.pages({&two.b, two.to_b}, 20, 4096);
    ledger.write({&two.b, two.to_b}, 150'000);
    EXPECT_TRUE(two.world.run_until([&] { return ledger.all_ended(); }, 10s));
    return std::pair(from, two.world.events());
  }();
  for (uint64_t at = begin; at <= end; at += kStride) {
    for (const bool early :
         {true, false}) {  // the fence comes before anybody has noticed, or after
      SCOPED_TRACE("after event " + std::to_string(at) + (early ? ", early" : ", late"));
      Two two;
      two.meet();
      Ledger ledger(two.a, 1);
      Counter bound = *two.b.engine.make_counter();
      ASSERT_TRUE(bound.bind(two.to_a.peer));
      ASSERT_TRUE(bound.expect(1, two.seen.notify(2), 60s));
      ASSERT_TRUE(two.world.at_event(at, Fault::crash(kA)));
      const Ledger::Target to{&two.b, two.to_b};
      ledger.pages(to, 20, 4096);
      ledger.write(to, 150'000);
      const auto crashed = [&] { return two.world.faults(Fault::Kind::kCrash) > 0; };
      ASSERT_TRUE(two.world.run_until(crashed, 10s));
      EXPECT_NE(two.a.engine.dump(), "") << "whoever looks at what is left of it";
      const Nanos when = two.world.now();
      // Closing its ways in takes time, and the proof is not there before.
      constexpr Nanos kProof = 20ms;
      ASSERT_TRUE(two.world.at(when, Fault::late_proof(kB, kProof)));
      const Fence fence{.peer = two.to_a.peer, .notify = two.seen.notify(1)};
      const auto told = [&] { return two.seen.find(2) != nullptr; };
      if (early) {
        ASSERT_TRUE(two.b.engine.submit(fence));
      }
      const auto gone = [&] {
        const auto info = two.b.engine.peer_info(two.to_a.peer);
        return !info || info->state >= PeerState::kLost;
      };
      ASSERT_TRUE(two.world.run_until(gone, 10s));
      const Nanos lost = two.world.now();
      ASSERT_TRUE(two.world.run_until(told, 100ms)) << "its last counts are not waited for longer";
      if (!early) {
        ASSERT_TRUE(two.b.engine.submit(fence));
      }
      const bool had_a_way = !untouched(two.b.bytes());
      ASSERT_TRUE(two.world.run_until([&] { return two.seen.find(1) != nullptr; }, 10s));
      EXPECT_EQ(two.seen.find(1)->code, Errc::kOk);
      EXPECT_GE(two.world.now(), had_a_way ? lost + kProof : lost);
      nothing_lands(two, two.b.bytes());
      ASSERT_TRUE(told());
      EXPECT_EQ(two.seen.find(2)->code, Errc::kPeerLost);
      EXPECT_EQ(two.seen.find(2)->peer, two.to_a.peer);
      EXPECT_LE(two.world.now(), when + 4s + hasty_config().lost_timeout);
      Host next = open_host(two.world, kA, kSize, hasty_config());
      EXPECT_TRUE(delivers(two.world, next, two.b, 11));
      EXPECT_TRUE(delivers(two.world, two.b, next, 12));
      if (testing::Test::HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace fabric::test

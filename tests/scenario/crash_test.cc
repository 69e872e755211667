#include <algorithm>

#include "scenario/ledger.h"
#include "support/log_guard.h"

// Processes that die without a word, at every step of what others do with them (P1, P3, P5, P16).

namespace fabric::test {
namespace {

using sim::Fault;

constexpr uint64_t kSize = 512 << 10;
constexpr uint64_t kStride = 5;     // of the events of the network at which a story is told
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
    ledger->write(to[0], 80'000);
    others.push_back(ledger->lines.size());
    ledger->write(to[1], 80'000);
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

void a_receiver_dies_at_any_step(const sim::NicModel& model) {
  expect_trouble();
  const Calm calm = without_a_crash(model);
  ASSERT_GT(calm.end, calm.begin + 100);
  uint64_t unknown = 0, not_delivered = 0;
  for (uint64_t at = calm.begin; at < calm.end; at += kStride) {
    SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
    Four four(model);
    ASSERT_TRUE(four.world.at_event(at, Fault::crash(kB)));
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

TEST(Crash, OfAReceiverHurtsNobodyElseWithoutConnectionsEither) {
  a_receiver_dies_at_any_step(slow_srd());
}

}  // namespace
}  // namespace fabric::test

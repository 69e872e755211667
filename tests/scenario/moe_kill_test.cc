#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "harness/host.h"
#include "harness/pattern.h"
#include "support/log_guard.h"

// The loop of a mixture of experts as its author would write it: two banks, a group for each, one
// write to every live rank in every step, and ranks that die at any point. Who is lost is dropped,
// and the step is waited for again. No rank ever reads a block of another step.
//
// FABRICLIB_TEST_ROUNDS=N kills N times as many; 84 are 1,008 kills.

namespace fabric::test::moe_kill_test {
namespace {

using sim::Fault;

constexpr uint64_t kBlock = 6 << 10;
constexpr uint32_t kBanks = 2, kSteps = 10, kKillsPerWorld = 2;

uint32_t rounds() {
  const char* text = std::getenv("FABRICLIB_TEST_ROUNDS");
  if (text == nullptr) return 1;
  uint32_t times = 0;
  const auto parsed = std::from_chars(text, text + std::strlen(text), times);
  EXPECT_TRUE(parsed.ec == std::errc{} && times > 0) << "FABRICLIB_TEST_ROUNDS is '" << text << "'";
  return std::max(times, 1u);
}

Config rank_config() {
  Config config = test_config();
  config.peer_timeout = 200ms;
  config.lost_timeout = 1s;
  config.drain_timeout = 500ms;
  return config;
}

uint64_t content(uint32_t step, uint32_t from, uint32_t to) {
  return 10'000 * uint64_t{step} + 100 * from + to + 1;
}

class Moe;

/// One rank. Everything happens in its callbacks, as in an engine's event loop.
class Rank {
 public:
  Rank(Moe& moe, uint32_t me) : moe_(moe), me_(me) {}
  void start();
  void on_step(const Event& event);
  void on_retry(const Event&) { send(); }

  uint32_t step = 0;
  uint64_t stale = 0;  ///< blocks of another step that it read
  std::set<uint32_t> dropped{};
  std::vector<std::vector<Counter>> counters{};  ///< by bank and sender
  std::vector<CounterGroup> groups{};
  std::vector<Batch> sent{};
  std::optional<Batch> drops{};
  std::string failure{};

 private:
  void send();
  void expect();
  void read();
  void drop(const std::vector<PeerId>& peers);

  Moe& moe_;
  const uint32_t me_;
};

class Moe {
 public:
  Moe(uint64_t seed, uint32_t ranks, const sim::NicModel& model)
      : world({.seed = seed}), remotes(ranks, std::vector<RemoteHost>(ranks)) {
    for (uint32_t i = 0; i < ranks; ++i) {
      all.emplace_back(*this, i);
      hosts.push_back(
          open_host(world, world.add_node(2, model), 2 * kBanks * ranks * kBlock, rank_config()));
    }
    for (uint32_t from = 0; from < ranks; ++from) {
      for (uint32_t to = 0; to < ranks; ++to) {
        if (from != to) remotes[from][to] = connect(hosts[from], hosts[to]);
      }
    }
  }
  uint32_t size() const { return static_cast<uint32_t>(hosts.size()); }
  uint64_t out(uint32_t bank, uint32_t to) const { return (bank * size() + to) * kBlock; }
  uint64_t in(uint32_t bank, uint32_t from) const {
    return ((kBanks + bank) * size() + from) * kBlock;
  }
  bool alive(uint32_t rank) const { return !dead.contains(rank); }
  bool done() const {
    return std::ranges::all_of(all, [&](const Rank& rank) {
      return !alive(static_cast<uint32_t>(&rank - all.data())) || rank.step == kSteps;
    });
  }
  void kill(uint32_t rank) {
    dead.insert(rank);
    ASSERT_TRUE(world.at(world.now(), Fault::crash(rank)));
  }

  std::vector<Rank> all;  // before the engines, which call them
  std::set<uint32_t> dead{};
  sim::World world;
  std::vector<Host> hosts;
  std::vector<std::vector<RemoteHost>> remotes;
};

void Rank::start() {
  Engine& engine = moe_.hosts[me_].engine;
  drops.emplace(*engine.make_batch());
  for (uint32_t bank = 0; bank < kBanks; ++bank) {
    sent.push_back(*engine.make_batch());
    groups.push_back(*engine.make_counter_group());
    counters.emplace_back();
    for (uint32_t from = 0; from < moe_.size(); ++from) {
      counters[bank].push_back(*engine.make_counter());
      if (from == me_) continue;
      ASSERT_TRUE(groups[bank].add(counters[bank][from], moe_.remotes[me_][from].peer));
    }
  }
}

void Rank::send() {
  const uint32_t bank = step % kBanks;
  Engine& engine = moe_.hosts[me_].engine;
  // The send bank is free when its last writes have ended, also those to a rank that is gone.
  if (sent[bank].pending() > 0) {
    (void)engine.submit(Timer{.after = 1us, .notify = Notify::call<&Rank::on_retry>(this)});
    return;
  }
  (void)sent[bank].reset();
  std::vector<ScatterTarget> targets;
  for (uint32_t to = 0; to < moe_.size(); ++to) {
    if (to == me_ || dropped.contains(to)) continue;
    fill(moe_.hosts[me_].bytes(moe_.out(bank, to), kBlock), content(step, me_, to));
    targets.push_back({.target = moe_.remotes[me_][to].at(moe_.in(bank, me_)),
                       .source_offset = moe_.out(bank, to),
                       .size_bytes = kBlock,
                       .imm = moe_.all[to].counters[bank][me_].key()});
  }
  if (!targets.empty()) {
    const auto op = engine.submit(Scatter{.source = moe_.hosts[me_].memory.id(),
                                          .targets = targets,
                                          .timeout = 20s,
                                          .batch = sent[bank]});
    if (!op) failure = to_string(op.error().code);
  }
  expect();
}

void Rank::expect() {
  const auto op = groups[step % kBanks].expect(Notify::call<&Rank::on_step>(this), 10s);
  if (op) return;
  // Lost between two steps: the group says so at once.
  on_step(Event{.code = op.error().code});
}

void Rank::on_step(const Event& event) {
  if (!moe_.alive(me_)) return;
  CounterGroup& group = groups[step % kBanks];
  switch (event.code) {
    case Errc::kOk:
      read();
      if (++step < kSteps) send();
      return;
    case Errc::kTimeout:
      drop(group.missing());
      return expect();
    case Errc::kPeerLost:
    case Errc::kAborted:
      drop(group.lost());
      return expect();
    default:
      failure = to_string(event.code);
  }
}

void Rank::drop(const std::vector<PeerId>& peers) {
  if (peers.empty()) failure = "no peer to drop";
  for (const PeerId peer : peers) {
    for (uint32_t rank = 0; rank < moe_.size(); ++rank) {
      if (rank != me_ && moe_.remotes[me_][rank].peer == peer) dropped.insert(rank);
    }
    const auto op = moe_.hosts[me_].engine.submit(Drop{.peer = peer, .batch = *drops});
    if (!op) failure = to_string(op.error().code);
  }
}

/// The blocks of the living are of this step, each byte of them.
void Rank::read() {
  const uint32_t bank = step % kBanks;
  for (uint32_t from = 0; from < moe_.size(); ++from) {
    if (from == me_ || dropped.contains(from)) continue;
    stale += !holds(moe_.hosts[me_].bytes(moe_.in(bank, from), kBlock), content(step, from, me_));
  }
}

sim::NicModel slow(sim::NicModel model) {
  model.gbit_per_s = 8;  // so that much is in flight when a rank dies
  model.jitter = 20us;
  return model;
}

/// How long a run without a kill takes.
Nanos run_length(uint32_t ranks, const sim::NicModel& model) {
  Moe moe(1, ranks, model);
  for (Rank& rank : moe.all) rank.start();
  const Nanos began = moe.world.now();
  for (Rank& rank : moe.all) rank.on_retry({});
  EXPECT_TRUE(moe.world.run_until([&] { return moe.done(); }, 10s));
  for (const Rank& rank : moe.all) EXPECT_EQ(rank.stale, 0u);
  return moe.world.now() - began;
}

/// `proves`: the network proves that a dead rank cannot write.
void run_and_kill(uint64_t seed, const sim::NicModel& model, Nanos length, bool proves) {
  SCOPED_TRACE(replay(seed));
  Rng rng(seed);
  const auto ranks = static_cast<uint32_t>(rng.between(3, 5));
  Moe moe(seed, ranks, model);
  for (Rank& rank : moe.all) rank.start();
  for (Rank& rank : moe.all) rank.on_retry({});
  for (uint32_t kill = 0; kill < kKillsPerWorld; ++kill) {
    // Often both within one step, so that one dies while the other is being dropped.
    const Nanos span = rng.chance(0.5) ? length / kSteps : length;
    moe.world.run_for(Nanos(static_cast<int64_t>(rng.below(static_cast<uint64_t>(span.count())))));
    uint32_t victim = static_cast<uint32_t>(rng.below(ranks));
    while (!moe.alive(victim)) victim = (victim + 1) % ranks;
    moe.kill(victim);
  }
  ASSERT_TRUE(moe.world.run_until([&] { return moe.done(); }, 60s)) << "the loop is stuck";
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (!moe.alive(rank)) continue;
    Rank& one = moe.all[rank];
    EXPECT_EQ(one.stale, 0u) << "rank " << rank << " read blocks of another step";
    EXPECT_EQ(one.failure, "") << "rank " << rank;
    EXPECT_TRUE(std::ranges::includes(moe.dead, one.dropped)) << "a live rank was dropped";
    ASSERT_TRUE(moe.world.run_until([&] { return one.drops->pending() == 0; }, 60s));
    if (proves) {
      EXPECT_EQ(one.drops->failed(), 0u) << "a drop without proof";
    }
  }
}

TEST(MoeWithKills, TheLivingNeverReadAStaleBlock) {
  for (const char* part : {"a path broke", "a path could not be opened", "does not drain",
                           "no proof that no peer writes to it"}) {
    expect_log(part);
  }
  const std::array models{slow(sim::NicModel::connectx7()), slow(sim::NicModel::efa_200g())};
  const Nanos length = run_length(4, models[0]);
  const uint32_t worlds = 6 * rounds();
  for (uint32_t i = 0; i < worlds && !testing::Test::HasFailure(); ++i) {
    run_and_kill(test_seed() + i, models[i % 2], length, i % 2 == 0);
  }
}

}  // namespace
}  // namespace fabric::test::moe_kill_test

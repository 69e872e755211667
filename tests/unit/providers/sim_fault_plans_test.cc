#include <algorithm>
#include <array>
#include <functional>
#include <set>

#include "unit/providers/sim_harness.h"

// How faults come about: by time, by event, by the seed; and what happens to engines.

namespace fabric::sim::sim_fault_plans_test {
namespace {

using Kind = RailEvent::Kind;

/// A process with a network: it posts nothing, and counts its turns.
class Process final : public Progress {
 public:
  Process(TestWorld& in, uint32_t node, int64_t turns_every_ns = 1'000)
      : world(in), every_ns(turns_every_ns) {
    network = in.open(node, "sim", this);
    EXPECT_TRUE(in.impl->world_driver.attach(*this, {}));
  }
  ~Process() override { world.impl->world_driver.detach(*this); }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  TurnResult turn(int64_t now_ns) noexcept override {
    turns.push_back(now_ns);
    return {.done = 0, .next_ns = now_ns + every_ns, .keep_polling = false};
  }
  uint32_t run_callbacks() noexcept override { return ++callbacks, 0; }
  bool arm() noexcept override { return true; }
  void wait_fds(std::vector<int>&) const override {}
  void simulate_crash() noexcept override {
    ++vanished;
    std::array<std::byte, 8> out;
    while (network->receive(out) > 0) ++unread;
    world.impl->world_driver.detach(*this);
    network.reset();
  }
  size_t turns_in(int64_t ns) {
    const size_t before = turns.size();
    world.run_for(ns);
    return turns.size() - before;
  }

  TestWorld& world;
  int64_t every_ns;
  std::unique_ptr<OpenNetwork> network;
  std::vector<int64_t> turns;
  uint32_t callbacks = 0, vanished = 0, unread = 0;
};

TEST(SimEngineFaults, StoppedProcessGetsNoTimeAndItsNicGoesOn) {
  TestWorld world;
  const uint32_t a = world.add_node(), b = world.add_node();
  Process sender(world, a), zombie(world, b);
  const Path there(*sender.network, *zombie.network), back(*zombie.network, *sender.network);
  const Block source(sender.network->rail(0), 100'000, 3), target(zombie.network->rail(0), 100'000);
  const Block own(zombie.network->rail(0), 1u << 20, 4), far(sender.network->rail(0), 1u << 20);
  back.post(back.counted(own, far, 1u << 20, 1, 1));  // on its way when it stops
  const auto link = sender.network->open_link(zombie.network->address());
  world.in(1'000, Fault::stop(b));
  world.run_for(1'000);
  EXPECT_EQ(zombie.turns_in(100'000), 0u);
  world.impl->world_driver.wake_callbacks(zombie);
  there.post(there.counted(source, target, 100'000, 2, 2));
  const std::byte word[] = {std::byte{1}};
  for (uint32_t i = 0; i < kDatagramsMax + 10; ++i) {
    sender.network->send(*link, word);
    if (i % 100 == 0) world.run_for(10'000);
  }
  world.run_for(1'000'000);
  EXPECT_EQ(zombie.callbacks, 0u);
  EXPECT_EQ(target.bytes, source.bytes) << "the NIC must go on writing";
  const auto sent = drain(sender.network->rail(0));
  EXPECT_EQ(count_of(sent, Kind::kCompletion), 1u) << "the NIC must go on acknowledging";
  EXPECT_EQ(count_of(sent, Kind::kImm), 1u) << "the NIC must send what was posted";
  EXPECT_EQ(far.bytes, own.bytes);
  EXPECT_EQ(world.impl->world_driver.turn_one(zombie), 0u);

  world.now(Fault::resume(b));
  EXPECT_GE(zombie.turns_in(10'000), 10u);
  EXPECT_EQ(zombie.callbacks, 1u);
  EXPECT_EQ(count_of(drain(zombie.network->rail(0)), Kind::kImm), 1u);
  uint32_t datagrams = 0;
  std::array<std::byte, 8> out;
  while (zombie.network->receive(out) > 0) ++datagrams;
  EXPECT_EQ(datagrams, kDatagramsMax) << "datagrams must accumulate up to the limit";
}

TEST(SimEngineFaults, SlowProcessGetsATurnNowAndThen) {
  TestWorld world;
  const uint32_t a = world.add_node(), b = world.add_node();
  Process usual(world, a), slow(world, b);
  world.now(Fault::slow(b, Nanos(25'000)));
  world.run_for(1'000);
  EXPECT_EQ(slow.turns_in(100'000), 4u);
  for (uint32_t i = 0; i < 100; ++i) {
    world.impl->world_driver.wake(slow);
    world.run_for(1'000);
  }
  EXPECT_EQ(slow.turns.size(), 1u + 4 + 4) << "a wake must not make a slow process faster";
  world.now(Fault::slow(b, Nanos(0)));
  EXPECT_GE(slow.turns_in(100'000), 100u);
  EXPECT_GE(usual.turns.size(), 300u);
}

TEST(SimEngineFaults, CrashTakesTheProcessesOfANodeAndWhatHadLeftLands) {
  TestWorld world;
  const uint32_t a = world.add_node(), b = world.add_node();
  Process sender(world, a), other(world, a), receiver(world, b);
  const Path path(*sender.network, *receiver.network);
  const Block source(sender.network->rail(0), 1u << 20, 3);
  const Block target(receiver.network->rail(0), 1u << 20);
  path.post(path.counted(source, target, 100, 1, 1));
  path.post(path.counted(source, target, 1u << 20, 2, 2));
  world.in(3'000, Fault::crash(a));
  EXPECT_FALSE(world.impl->world_driver.drive([&] { return false; }, world.now() + kRetryNs));
  EXPECT_EQ(sender.vanished, 1u);
  EXPECT_EQ(other.vanished, 1u);
  EXPECT_EQ(receiver.vanished, 0u);
  EXPECT_LT(sender.turns.back(), 3'000) << "no turn after its death";
  const auto got = drain(receiver.network->rail(0));
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].imm, 1u);
  EXPECT_TRUE(
      std::equal(source.bytes.begin(), source.bytes.begin() + 65'536, target.bytes.begin()));
  EXPECT_NE(source.bytes, target.bytes);
  EXPECT_EQ(world.impl->wire.in_flight(), 0u);
  Process reborn(world, a);
  EXPECT_GE(reborn.turns_in(10'000), 10u);
  EXPECT_EQ(world.impl->wire.applied(Fault::Kind::kCrash), 1u);
}

TEST(SimEngineFaults, CrashComesBeforeAnythingElseOfItsInstant) {
  TestWorld world;
  const uint32_t a = world.add_node(), b = world.add_node();
  Process sender(world, a), receiver(world, b);
  const auto link = sender.network->open_link(receiver.network->address());
  world.in(NicModel{}.latency.count(), Fault::crash(b));
  const std::byte word[] = {std::byte{1}};
  sender.network->send(*link, word);  // arrives at the same time, and was sent later
  const uint64_t before = world.impl->wire.events();
  world.run_for(10'000);
  EXPECT_EQ(world.impl->wire.events(), before + 1);
  EXPECT_EQ(receiver.vanished, 1u);
  EXPECT_EQ(receiver.unread, 0u) << "the datagram arrived before the crash";
  EXPECT_EQ(world.impl->wire.in_flight(), 0u);
}

// ---- Plans --------------------------------------------------------------------------------------

/// One counted write of four packets, broken after `when` events of the network.
struct BrokenWrite {
  explicit BrokenWrite(uint64_t when) {
    const uint32_t from = world.add_node(), to = world.add_node();
    const auto a = world.open(from), b = world.open(to);
    const Path path(*a, *b);
    const Block source(a->rail(0), 16'384, 3), target(b->rail(0), 16'384);
    path.post(path.counted(source, target, 16'384, 0, 0));
    EXPECT_TRUE(world.impl->wire.plan_by_event(when, Fault::break_sender(from, to, 0)));
    world.run_for(1'000'000);
    events = world.impl->wire.events();
    for (const RailEvent& event : drain(a->rail(0))) {
      if (event.kind == Kind::kCompletion) remote = event.remote;
    }
    for (uint32_t i = 0; i < 4; ++i) packets += target.bytes[i * 4096] == source.bytes[i * 4096];
    counted = !drain(b->rail(0)).empty();
  }
  TestWorld world;
  uint64_t events = 0;
  Remote remote = Remote::kDelivered;
  uint32_t packets = 0;
  bool counted = false;
};

TEST(SimFaultPlans, EveryStepOfAWriteCanBeBroken) {
  const uint64_t all = BrokenWrite(1'000'000).events;
  ASSERT_GT(all, 8u);
  std::set<uint32_t> landed;
  for (uint64_t when = 0; when <= all; ++when) {
    const BrokenWrite write(when);
    landed.insert(write.packets);
    EXPECT_EQ(write.counted, write.packets == 4) << when;
    // The last event is the acknowledgement; before it the result is unknown.
    EXPECT_EQ(write.remote, when == all ? Remote::kDelivered : Remote::kUnknown) << when;
    EXPECT_EQ(write.world.impl->wire.applied(Fault::Kind::kBreakSender), 1u);
  }
  EXPECT_EQ(landed, (std::set<uint32_t>{1, 2, 3, 4}));
}

TEST(SimFaultPlans, WhatIsNotThereIsNamed) {
  World world;
  const uint32_t a = world.add_node(2), b = world.add_node(1);
  NodeNetwork storage;
  storage.name = "storage";
  const uint32_t c = world.add_node({storage});
  const auto wrong = [&](Fault fault) {
    const auto planned = world.at(Nanos(0), fault);
    const auto again = world.at_event(3, fault);
    EXPECT_FALSE(planned || again);
    EXPECT_EQ(planned.error().code, Errc::kInvalidArgument);
    return std::string(planned.error().what);
  };
  EXPECT_EQ(wrong(Fault::crash(9)), "node");
  EXPECT_EQ(wrong(Fault::cut(a, 9)), "other");
  EXPECT_EQ(wrong(Fault::cut(a, c)), "other") << "they share no network";
  EXPECT_EQ(wrong(Fault::nic_down(b, 1)), "rail");
  EXPECT_EQ(wrong(Fault::slow(a, Nanos(-1))), "time");
  Fault fault = Fault::nic_down(a, 0);
  fault.network = 1;
  EXPECT_EQ(wrong(fault), "network");
  fault = Fault::nic_down(a, 0);
  fault.kind = static_cast<Fault::Kind>(Fault::kKinds);
  EXPECT_EQ(wrong(fault), "kind");
  EXPECT_TRUE(world.at(Nanos(0), Fault::nic_down(a, 1)));
  world.run_for(Nanos(1));
  EXPECT_EQ(world.faults(Fault::Kind::kNicDown), 1u);
  EXPECT_EQ(world.faults(Fault::Kind::kNicUp), 0u);
}

TEST(SimFaultPlans, EveryKindHasANameOfItsOwn) {
  std::set<std::string> names;
  for (uint32_t i = 0; i < Fault::kKinds; ++i) {
    names.insert(to_string(static_cast<Fault::Kind>(i)));
  }
  EXPECT_EQ(names.size(), Fault::kKinds);
  EXPECT_EQ(std::string(to_string(Fault::Kind::kLateProof)), "late proof");
  EXPECT_FALSE(names.contains(to_string(static_cast<Fault::Kind>(Fault::kKinds))));
}

TEST(SimFaultPlans, RealTimeHasNoPowerOverProcesses) {
  World world({.realtime = true});
  const uint32_t a = world.add_node(), b = world.add_node();
  for (const Fault& fault :
       {Fault::crash(a), Fault::stop(a), Fault::resume(a), Fault::slow(a, Nanos(1))}) {
    EXPECT_EQ(world.at(Nanos(0), fault).error().code, Errc::kUnsupported);
    EXPECT_EQ(world.at_event(1, fault).error().code, Errc::kUnsupported);
    EXPECT_EQ(world.chaos({.until = Nanos(1), .kinds = {fault.kind}}).error().code,
              Errc::kUnsupported);
  }
  EXPECT_TRUE(world.at(Nanos(0), Fault::cut(a, b)));
  EXPECT_TRUE(world.chaos({.until = Nanos(1'000'000)}));
}

// ---- Chaos --------------------------------------------------------------------------------------

constexpr int64_t kChaosNs = 2'000'000'000;

/// Writes on fresh paths all through a chaos, and one when it is over.
struct Storm {
  explicit Storm(uint64_t seed, std::vector<Fault::Kind> kinds = {}) : world({.seed = seed}) {
    const uint32_t from = world.add_node(2, jittery_ordered_model());
    const uint32_t to = world.add_node(2, jittery_ordered_model());
    Process a(world, from, 100'000), b(world, to, 100'000);
    EXPECT_TRUE(world.impl->wire.plan(Chaos{.until = Nanos(kChaosNs), .kinds = std::move(kinds)}));
    const Block source(a.network->rail(0), 6'000, 3), target(b.network->rail(0), 6'000);
    while (world.now() < kChaosNs) {
      const Path path(*a.network, *b.network);
      for (uint32_t i = 0; i < 3; ++i) {
        const WriteOp op = path.counted(source, target, 6'000, i, i);
        posted += a.network->rail(0).post({&op, 1});
      }
      world.run_for(10'000'000);
      a.network->rail(0).close_path(path.out, false);
      b.network->rail(0).close_path(path.in, true);
      world.run_for(2'000'000);
      collect(a, b);
    }
    world.run_for(1'000'000);
    collect(a, b);
    EXPECT_EQ(written, posted) << "a write completed twice or never";
    EXPECT_LE(counted, posted);
    const Path path(*a.network, *b.network);
    path.post(path.counted(source, target, 6'000, 7, 7));
    world.run_for(1'000'000);
    const auto last = drain(a.network->rail(0));
    EXPECT_EQ(last.size() == 1 && last[0].remote == Remote::kDelivered, true)
        << "the fault was not undone";
    EXPECT_GT(a.turns_in(10'000'000), 90u) << "the process was not resumed";
  }
  void collect(Process& a, Process& b) {
    written += count_of(drain(a.network->rail(0)), Kind::kCompletion);
    counted += count_of(drain(b.network->rail(0)), Kind::kImm);
  }
  uint64_t applied(uint32_t kind) const {
    return world.impl->wire.applied(static_cast<Fault::Kind>(kind));
  }
  TestWorld world;
  uint32_t posted = 0, written = 0, counted = 0;
};

TEST(SimChaos, SameSeedGivesTheSameRunAndEndsWell) {
  const uint64_t hash = Storm(1).world.impl->wire.trace_hash();
  EXPECT_EQ(Storm(1).world.impl->wire.trace_hash(), hash);
  EXPECT_NE(Storm(2).world.impl->wire.trace_hash(), hash);
}

TEST(SimChaos, DrawsEveryKindButTheCrash) {
  std::array<uint64_t, Fault::kKinds> seen{};
  for (uint64_t seed = 10; seed < 14; ++seed) {
    const Storm storm(seed);
    for (uint32_t i = 0; i < Fault::kKinds; ++i) seen[i] += storm.applied(i);
  }
  for (uint32_t i = 0; i < Fault::kKinds; ++i) {
    const auto kind = static_cast<Fault::Kind>(i);
    EXPECT_EQ(seen[i] > 0, kind != Fault::Kind::kCrash) << to_string(kind);
  }
}

TEST(SimChaos, DrawsOnlyWhatIsNamed) {
  const Storm storm(3, {Fault::Kind::kCut});
  for (uint32_t i = 0; i < Fault::kKinds; ++i) {
    const auto kind = static_cast<Fault::Kind>(i);
    const bool named = kind == Fault::Kind::kCut || kind == Fault::Kind::kHeal;
    EXPECT_EQ(storm.applied(i) > 10, named) << to_string(kind);
  }
}

TEST(SimChaos, RefusesAPlanThatHasNoEndOrNoWorld) {
  World world;
  EXPECT_EQ(std::string(world.chaos({.until = Nanos(1)}).error().what), "node");
  world.add_node();
  EXPECT_EQ(std::string(world.chaos({.until = Nanos(1), .gap = Nanos(0)}).error().what), "gap");
  EXPECT_EQ(std::string(world.chaos({.until = Nanos(1), .lasts = Nanos(-1)}).error().what),
            "lasts");
  const auto none = static_cast<Fault::Kind>(Fault::kKinds);
  EXPECT_EQ(std::string(world.chaos({.until = Nanos(1), .kinds = {none}}).error().what), "kinds");
}

}  // namespace
}  // namespace fabric::sim::sim_fault_plans_test

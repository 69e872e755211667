#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include <fabric/engine.h>

#include "support/log_guard.h"
#include "unit/providers/sim_harness.h"

namespace fabric::sim::sim_world_test {
namespace {

/// An engine of which only the turns are there.
class Fake final : public Progress {
 public:
  TurnResult turn(int64_t now_ns) noexcept override {
    turns.push_back(now_ns);
    return on_turn ? on_turn(now_ns) : TurnResult{};
  }
  uint32_t run_callbacks() noexcept override { return on_callbacks ? on_callbacks() : 0; }
  bool arm() noexcept override { return true; }
  void wait_fds(std::vector<int>&) const override {}

  std::function<TurnResult(int64_t)> on_turn;
  std::function<uint32_t()> on_callbacks;
  std::vector<int64_t> turns;
};

const auto kNotYet = [] { return false; };

TEST(SimDriver, ClockMovesToWhatIsDueNext) {
  TestWorld world;
  WorldDriver& driver = world.impl->world_driver;
  Fake engine;
  engine.on_turn = [](int64_t now) { return TurnResult{.next_ns = (now / 500 + 1) * 500}; };
  ASSERT_TRUE(driver.attach(engine, {}));
  EXPECT_FALSE(driver.drive(kNotYet, 1'700));
  EXPECT_EQ(engine.turns, (std::vector<int64_t>{0, 500, 1'000, 1'500}));
  EXPECT_EQ(driver.now_ns(), 1'700);
  EXPECT_FALSE(driver.drive(kNotYet, 2'000)) << "what is due at the deadline still runs";
  EXPECT_EQ(engine.turns.back(), 2'000);
  EXPECT_FALSE(driver.drive(kNotYet, 10)) << "a deadline in the past does not turn time back";
  EXPECT_EQ(driver.now_ns(), 2'000);
  driver.detach(engine);
}

TEST(SimDriver, StopsWhenDoneAndNotLater) {
  TestWorld world;
  WorldDriver& driver = world.impl->world_driver;
  Fake engine;
  engine.on_turn = [](int64_t now) { return TurnResult{.next_ns = now + 100}; };
  ASSERT_TRUE(driver.attach(engine, {}));
  EXPECT_TRUE(driver.drive([&] { return engine.turns.size() == 3; }, kNeverNs));
  EXPECT_EQ(driver.now_ns(), 200);
  driver.detach(engine);
}

TEST(SimDriver, EndlessWaitInAWorldWhereNothingIsDueReturns) {
  TestWorld world;
  Fake engine;
  ASSERT_TRUE(world.impl->world_driver.attach(engine, {}));
  EXPECT_FALSE(world.impl->world_driver.drive(kNotYet, kNeverNs));
  world.impl->world_driver.detach(engine);
}

TEST(SimDriver, EngineThatCannotBeWokenIsPolledEveryMicrosecond) {
  TestWorld world;
  WorldDriver& driver = world.impl->world_driver;
  Fake engine;
  engine.on_turn = [](int64_t) { return TurnResult{.keep_polling = true}; };
  ASSERT_TRUE(driver.attach(engine, {}));
  driver.drive(kNotYet, 10'000);
  EXPECT_EQ(engine.turns.size(), 11u);
  driver.detach(engine);
}

TEST(SimDriver, EngineThatIsNeverIdleDoesNotStopTheClock) {
  TestWorld world;
  WorldDriver& driver = world.impl->world_driver;
  Fake busy, impatient;
  busy.on_turn = [](int64_t) { return TurnResult{.done = 1}; };
  impatient.on_turn = [](int64_t now) { return TurnResult{.next_ns = now - 5}; };
  ASSERT_TRUE(driver.attach(busy, {}) && driver.attach(impatient, {}));
  driver.drive(kNotYet, 5);
  EXPECT_EQ(driver.now_ns(), 5);
  EXPECT_LT(busy.turns.size(), 50'000u);
  driver.detach(busy);
  driver.detach(impatient);
}

TEST(SimDriver, WakeDuringATurnIsNotLost) {
  TestWorld world;
  WorldDriver& driver = world.impl->world_driver;
  Fake engine;
  engine.on_turn = [&](int64_t) {
    if (engine.turns.size() < 3) driver.wake(engine);
    return TurnResult{};
  };
  ASSERT_TRUE(driver.attach(engine, {}));
  driver.drive(kNotYet, 100);
  EXPECT_EQ(engine.turns, (std::vector<int64_t>{0, 0, 0}));
  driver.wake(engine);
  driver.drive(kNotYet, 200);
  EXPECT_EQ(engine.turns.back(), 100);
  driver.detach(engine);
}

TEST(SimDriver, CallbacksAndJobsRunOutsideTurns) {
  TestWorld world;
  WorldDriver& driver = world.impl->world_driver;
  Fake engine;
  bool in_turn = false;
  std::vector<std::string> log;
  engine.on_turn = [&](int64_t) {
    in_turn = true;
    if (engine.turns.size() == 1) {
      driver.offload([&] {
        EXPECT_FALSE(in_turn);
        log.push_back("job");
        driver.offload([&] { log.push_back("next job"); });
      });
      driver.wake_callbacks(engine);
    }
    in_turn = false;
    return TurnResult{};
  };
  engine.on_callbacks = [&] {
    EXPECT_FALSE(in_turn);
    EXPECT_FALSE(driver.drive(kNotYet, kNeverNs)) << "a wait inside a callback does not recurse";
    log.push_back("callback");
    return log.size() < 4 ? 1u : 0u;
  };
  ASSERT_TRUE(driver.attach(engine, {}));
  driver.drive(kNotYet, 100);
  EXPECT_EQ(log, (std::vector<std::string>{"job", "next job", "callback", "callback"}));
  driver.offload([&] { log.push_back("last"); });
  EXPECT_EQ(log.size(), 4u) << "the caller may hold a lock that the job needs";
  driver.detach(engine);
  EXPECT_EQ(log.size(), 5u) << "no job outlives its engine";
  driver.offload([&] { log.push_back("alone"); });
  EXPECT_EQ(log.size(), 6u) << "no engine is left that would run it later";
}

TEST(SimDriver, OrderOfTurnsVariesWithTheSeed) {
  const auto order_of = [](uint64_t seed) {
    TestWorld world({.seed = seed});
    Fake engines[6];
    std::vector<int> order;
    for (int i = 0; i < 6; ++i) {
      engines[i].on_turn = [&order, i](int64_t) {
        order.push_back(i);
        return TurnResult{};
      };
      EXPECT_TRUE(world.impl->world_driver.attach(engines[i], {}));
    }
    world.run_for(1);
    for (Fake& engine : engines) world.impl->world_driver.detach(engine);
    return order;
  };
  EXPECT_EQ(order_of(1), order_of(1));
  EXPECT_NE(order_of(1), order_of(2));
}

TEST(SimDriver, IncarnationsAndEntropyNeverRepeat) {
  TestWorld world;
  WorldDriver& driver = world.impl->world_driver;
  const uint64_t first = driver.incarnation(), second = driver.incarnation();
  EXPECT_GT(first, 0u);
  EXPECT_GT(second, first);
  world.run_for(1'000);
  EXPECT_GE(driver.incarnation(), 1'000u);
  EXPECT_NE(driver.entropy(), driver.entropy());
}

TEST(SimWorld, ActorsRunInEveryStepAndMayWait) {
  World world;
  uint32_t steps = 0;
  bool nested = false;
  const Hook actor = world.each_step([&] {
    ++steps;
    if (!nested) {
      nested = true;
      world.run_for(Nanos(500));  // without the actors
    }
  });
  EXPECT_TRUE(world.run_until([&] { return steps > 0; }, Nanos(10'000)));
  EXPECT_EQ(world.now(), Nanos(500));
  EXPECT_EQ(steps, 1u);
  world.run_for(Nanos(100));
  EXPECT_GT(steps, 1u);
}

TEST(SimWorld, AHookEndsWithItsHandleAndNotWithTheWorld) {
  World world;
  // A workload that is gone before the world: its hook must not run any more.
  struct Workload {
    explicit Workload(World& world) : hook(world.each_step([this] { ++*steps; })) {}
    std::unique_ptr<uint32_t> steps = std::make_unique<uint32_t>(0);
    Hook hook;
  };
  auto workload = std::make_unique<Workload>(world);
  auto captured = std::make_shared<uint32_t>(0);
  Hook counting = world.each_step([captured] { ++*captured; });
  world.run_for(Nanos(100));
  EXPECT_GT(*workload->steps, 0u);
  const uint32_t before = *captured;
  EXPECT_GT(before, 0u);

  workload.reset();
  world.run_for(Nanos(100));
  EXPECT_GT(*captured, before);
  Hook moved = std::move(counting);
  counting.end();  // it is empty
  const uint32_t still = *captured;
  world.run_for(Nanos(100));
  EXPECT_GT(*captured, still);
  EXPECT_EQ(captured.use_count(), 2);
  moved = Hook();
  EXPECT_EQ(captured.use_count(), 1) << "the function is destroyed with its hook";
  const uint32_t last = *captured;
  world.run_for(Nanos(100));
  EXPECT_EQ(*captured, last);
}

TEST(SimWorld, AHookMayEndItselfAndOthersAndAddNewOnesInsideAStep) {
  World world;
  std::string order;
  Hook first, second, third;
  bool changed = false;
  first = world.each_step([&, once = std::make_shared<char>('a')] {
    order += *once;  // valid until it returns, although it ends its own hook
    first.end();
    order += *once;
  });
  second = world.each_step([&] {
    order += 'b';
    if (std::exchange(changed, true)) return;
    third.end();
    first = world.each_step([&] { order += 'd'; });
  });
  third = world.each_step([&] { order += 'c'; });
  world.run_until([&] { return !order.empty(); }, Nanos(1));
  EXPECT_EQ(order, "aabd");
  order.clear();
  world.run_until([&] { return !order.empty(); }, Nanos(1));
  EXPECT_EQ(order, "bd");
}

TEST(SimWorld, HooksMayOutliveTheWorldAndEndWithIt) {
  auto world = std::make_optional<World>();
  auto engine = world->open(world->add_node(), {.log_sink = test::test_log_sink()});
  ASSERT_TRUE(engine);
  uint32_t steps = 0;
  const Hook hook = world->each_step([&] { ++steps; });
  world->run_for(Nanos(10));
  EXPECT_GT(steps, 0u);
  const uint32_t before = steps;
  world.reset();
  // The engine keeps the simulation; the world's hooks are gone.
  EXPECT_TRUE(engine->close(Nanos(1'000'000)));
  EXPECT_EQ(steps, before);
}

TEST(SimWorld, SeveralObserversSeeEveryArrivalUntilTheirHooksEnd) {
  World world;
  const Config config{.log_sink = test::test_log_sink()};
  Engine from = *world.open(world.add_node(), config), to = *world.open(world.add_node(), config);
  Counter counter = *to.make_counter();
  const PeerId peer = *from.connect(to.address());
  const PeerGroup group = *from.make_group({&peer, 1});
  const CounterKey key = counter.key();
  const auto write = [&] {
    EXPECT_TRUE(from.submit(Signal{.group = group, .keys = {&key, 1}}));
    EXPECT_TRUE(counter.wait(1, Nanos(1'000'000'000)));
  };
  uint32_t one = 0, two = 0;
  const Hook kept = world.each_arrival([&](const Arrival& arrival) { one += arrival.node == 1; });
  Hook ended = world.each_arrival([&](const Arrival&) { ++two; });
  write();
  EXPECT_EQ(one, 1u);
  EXPECT_EQ(two, 1u);
  ended.end();
  write();
  EXPECT_EQ(one, 2u);
  EXPECT_EQ(two, 1u);
}

/// A busy little world; returns its trace.
uint64_t play(uint64_t seed, uint32_t extra_bytes = 0) {
  TestWorld world(
      {.seed = seed, .drop_control = 0.1, .duplicate_control = 0.1, .reorder_control = 0.1});
  auto a = world.open_new(2, wild_model()), b = world.open_new(2, wild_model());
  const Path one(*a, *b, 0, 1), two(*a, *b, 1, 0), back(*b, *a);
  const Block source1(a->rail(0), 70'000, 1), source2(a->rail(1), 70'000, 2);
  const Block source3(b->rail(0), 70'000, 3);
  const Block target1(b->rail(1), 70'000), target2(b->rail(0), 70'000), target3(a->rail(0), 70'000);
  const auto link = a->open_link(b->address());
  for (uint32_t i = 0; i < 50; ++i) {
    one.post(one.counted(source1, target1, 70 * i + extra_bytes, i, i));
    two.post(two.counted(source2, target2, 1'000 * i, i, i));
    back.post(back.counted(source3, target3, 8, i, i));
    EXPECT_TRUE(a->send(*link, std::span(source1.bytes).first(i + 1)));
    world.run_for(777);
  }
  a->rail(0).close_path(one.out, false);
  world.run_for(10'000'000);
  return world.impl->wire.trace_hash();
}

TEST(SimWorld, SameSeedGivesTheSameTrace) {
  const uint64_t hash = play(5);
  EXPECT_EQ(play(5), hash);
  {
    const TestWorld other;  // another world in the process, and other heap addresses
    std::vector<std::unique_ptr<int>> clutter;
    for (int i = 0; i < 1'000; ++i) clutter.push_back(std::make_unique<int>(i));
    EXPECT_EQ(play(5), hash);
  }
  EXPECT_NE(play(6), hash);
  EXPECT_NE(play(5, 1), hash) << "one byte more must change the trace hash";
}

TEST(SimWorld, NodesKeepTheirNumbersAndRailsAreBounded) {
  TestWorld world;
  EXPECT_EQ(world.add_node(0), 0u);
  EXPECT_EQ(world.add_node(100), 1u);
  EXPECT_EQ(world.open(0)->rail_count(), 1u);
  EXPECT_EQ(world.open(1)->rail_count(), kRailsMax);
  World moved;
  EXPECT_EQ(moved.add_node(), 0u);
  World other(std::move(moved));
  EXPECT_EQ(other.add_node(), 1u);
  EXPECT_EQ(other.open(7).error().code, Errc::kInvalidArgument);
}

TEST(SimWorld, NetworksOutliveTheWorldObject) {
  auto world = std::make_unique<TestWorld>();
  auto a = world->open_new(), b = world->open_new();
  WorldDriver& driver = world->impl->world_driver;
  const auto link = a->open_link(b->address());
  world.reset();
  const std::byte hello[4] = {};
  EXPECT_TRUE(a->send(*link, hello));
  driver.drive(kNotYet, 10'000);
  std::byte buffer[16];
  EXPECT_EQ(b->receive(buffer), 4u);
}

TEST(SimWorld, ArrivalWakesTheEngine) {
  TestWorld world;
  WorldDriver& driver = world.impl->world_driver;
  Fake engine;
  Network spec;
  spec.provider = "sim";
  spec.devices = {world_token(*world.impl, world.add_node())};
  OpenContext context;
  context.driver = &driver;
  context.wake = [&] { driver.wake(engine); };
  auto b = *fabric::sim::open(spec, context);
  auto a = world.open_new();
  const Path path(*a, *b);
  const Block source(a->rail(0), 8, 1), target(b->rail(0), 8);
  ASSERT_TRUE(driver.attach(engine, {}));
  path.post(path.counted(source, target, 8, 0, 1));
  driver.drive(kNotYet, 100'000);
  EXPECT_EQ(engine.turns, (std::vector<int64_t>{0, 2'090})) << "a turn ran at another time";
  const std::byte hello[4] = {};
  EXPECT_TRUE(a->send(*a->open_link(b->address()), hello));
  driver.drive(kNotYet, 200'000);
  EXPECT_EQ(engine.turns.back(), 102'000);
  driver.detach(engine);
}

}  // namespace
}  // namespace fabric::sim::sim_world_test

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "harness/dump.h"
#include "harness/host.h"
#include "support/log_guard.h"

// What the tests of prepared page lists and write lists share.

namespace fabric::test {

/// An operation from `a` to `b`, while the paths between them may break.
struct ListTransfer {
  explicit ListTransfer(const sim::NicModel& model)
      : world({.seed = test_seed()}),
        a(open_host(world, world.add_node(2, model), 1 << 17)),
        b(open_host(world, world.add_node(2, model), 1 << 17)),
        remote(connect(a, b)) {
    await_connected(world, a, remote.peer);
    fill(a.bytes(), 9);
  }
  sim::World world;
  Host a, b;
  RemoteHost remote;
  Counter counter = *b.engine.make_counter();
  Batch batch = *a.engine.make_batch();
};

/// `submit` makes the lists and submits to the batch; its lists are destroyed when it returns, and
/// held until the operations end. `check` looks at what has arrived. Once without a fault, then
/// with the paths of both rails broken, one after the other, at every `stride`-th step.
inline void break_paths_at_any_step(uint64_t stride,
                                    const std::function<void(ListTransfer&)>& submit,
                                    const std::function<void(ListTransfer&)>& check) {
  for (const char* part : {"a path broke", "a rail went down", "a path could not be opened"})
    expect_log(part);
  sim::NicModel model = sim::NicModel::connectx7();
  model.gbit_per_s = 10;
  uint64_t begin = 0, end = 0;
  const auto run = [&](std::optional<uint64_t> at) {
    ListTransfer transfer(model);
    sim::World& world = transfer.world;
    if (at) {
      ASSERT_TRUE(world.at_event(*at, sim::Fault::break_target(0, 1, *at % 2)));
      ASSERT_TRUE(world.at_event(*at + 30, sim::Fault::break_sender(0, 1, 1 - *at % 2)));
    } else {
      begin = world.events();
    }
    ASSERT_NO_FATAL_FAILURE(submit(transfer));
    Engine& engine = transfer.a.engine;
    ASSERT_TRUE(engine.wait(transfer.batch, 60s)) << engine.dump();
    if (!at) end = world.events();
    world.run_for(3s);
    check(transfer);
    EXPECT_EQ(held(engine, "prepared_lists"), 0u);
  };
  run({});
  ASSERT_GT(end - begin, 50u);
  for (uint64_t at = begin; at <= end && !testing::Test::HasFailure(); at += stride) {
    SCOPED_TRACE("after event " + std::to_string(at) + ", " + replay(test_seed()));
    run(at);
  }
}

}  // namespace fabric::test

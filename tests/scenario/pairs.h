#pragma once

#include <optional>

#include <gtest/gtest.h>

#include "harness/host.h"
#include "support/log_guard.h"

// Two connected hosts, for scenarios that need nothing else.

namespace fabric::test {

/// Without faults.
struct ConnectedPair {
  explicit ConnectedPair(const Config& config = test_config(), uint64_t bytes = 1 << 16)
      : a(open_host(world, world.add_node(), bytes, config)),
        b(open_host(world, world.add_node(), bytes, config)),
        remote(connect(a, b)) {
    await_connected(world, a, remote.peer);
  }
  sim::World world;
  Host a, b;
  RemoteHost remote;
};

/// On a network that will fail. Both engines are optional, so that a test can close one.
struct FaultyPair {
  explicit FaultyPair(const sim::NicModel& model, uint32_t rails_a = 2, uint32_t rails_b = 2,
                      uint64_t size = 4 << 20, Config config = short_timeouts_config())
      : world({.seed = test_seed()}) {
    expect_fault_logs();
    a.emplace(open_host(world, world.add_node(rails_a, model), size, config));
    b.emplace(open_host(world, world.add_node(rails_b, model), size, config));
    remote = connect(*a, *b, {.warm = true});
    await_connected(world, *a, remote.peer);
    world.run_for(5ms);
    there = b->engine.peers().at(0);
    fill(a->bytes(), 7);
  }
  void happens(const sim::Fault& fault) { ASSERT_TRUE(world.at(world.now(), fault)); }
  EventRecorder ended, fenced;
  sim::World world;
  std::optional<Host> a, b;
  RemoteHost remote;
  PeerId there;
};

}  // namespace fabric::test

#include "harness/host.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "support/log_guard.h"

namespace fabric::test {

Config test_config() {
  Config config;
  config.log_sink = test_log_sink();
  return config;
}

Config short_timeouts_config() {
  Config config = test_config();
  config.default_timeout = 3s;
  config.drain_timeout = 400ms;
  config.peer_timeout = 1s;
  config.lost_timeout = 3s;
  return config;
}

Host open_host(sim::World& world, uint32_t node, uint64_t size_bytes, const Config& config) {
  auto engine = world.open(node, config);
  auto memory = engine->allocate({.size_bytes = size_bytes});
  return {{}, *std::move(engine), *std::move(memory)};
}

RemoteHost connect(Host& from, const Host& to, const ConnectOptions& options) {
  const PeerId peer = *from.engine.connect(to.engine.address(), options);
  return {peer, *from.engine.import_region(peer, *to.memory.desc())};
}

void await_connected(sim::World& world, const Host& from, PeerId peer) {
  const auto connected = [&] {
    return from.engine.peer_info(peer)->state == PeerState::kConnected;
  };
  EXPECT_TRUE(world.run_until(connected, 10s)) << from.engine.dump();
}

bool delivers(sim::World& world, Host& from, Host& to, uint64_t seed) {
  const auto peer = from.engine.connect(to.engine.address());
  if (!peer) return false;
  const auto region = from.engine.import_region(*peer, *to.memory.desc());
  if (!region) return false;
  const auto counter = to.engine.make_counter();
  const auto batch = from.engine.make_batch();
  constexpr uint64_t kSize = 160'000;
  fill(from.bytes(0, kSize), seed);
  const auto op = from.engine.submit(Write{.source = from.memory.at(0),
                                           .target = region->at(0),
                                           .size_bytes = kSize,
                                           .imm = counter->key(),
                                           .batch = *batch});
  if (!op || !from.engine.wait(*batch, 10s)) return false;
  world.run_for(1ms);
  const bool arrived = counter->count() == 1 && holds(to.bytes(0, kSize), seed);
  std::ranges::fill(to.bytes(0, kSize), std::byte{0});  // as it was before the write
  return arrived;
}

sim::NicModel slow_rc() {
  sim::NicModel model = rc_model();
  model.gbit_per_s = 10;
  return model;
}

sim::NicModel slow_srd() {
  sim::NicModel model = srd_model();
  model.gbit_per_s = 10;
  return model;
}

void expect_fault_logs() {
  for (const char* part : {"a path broke", "a rail went down", "a rail came back",
                           "an operation does not drain", "a path could not be opened"}) {
    expect_log(part);
  }
}

std::vector<uint64_t> seeds(uint64_t how_many) {
  std::vector<uint64_t> all;
  for (uint64_t i = 0; i < how_many; ++i) all.push_back(test_seed() + i);
  return all;
}

std::string replay(uint64_t seed) { return "replay: FABRICLIB_TEST_SEED=" + std::to_string(seed); }

}  // namespace fabric::test

#include "harness/host.h"

#include <algorithm>

#include "support/log_guard.h"

namespace fabric::test {

Config test_config() {
  Config config;
  config.log_sink = test_log_sink();
  return config;
}

Host open_host(sim::World& world, uint32_t node, uint64_t size_bytes, const Config& config) {
  auto engine = world.open(node, config);
  auto memory = engine->allocate({.size_bytes = size_bytes});
  return {*std::move(engine), *std::move(memory)};
}

Way connect(Host& from, const Host& to, const ConnectOptions& options) {
  const PeerId peer = *from.engine.connect(to.engine.address(), options);
  return {peer, *from.engine.import_region(peer, *to.memory.desc())};
}

void await_connected(sim::World& world, const Host& from, PeerId peer) {
  const auto connected = [&] {
    return from.engine.peer_info(peer)->state == PeerState::kConnected;
  };
  EXPECT_TRUE(world.run_until(connected, 10s)) << from.engine.dump();
}

std::byte byte_of(uint64_t seed, uint64_t place) {
  uint64_t mixed = (seed + 1) * 0x9e3779b97f4a7c15 + place * 0xbf58476d1ce4e5b9;
  mixed ^= mixed >> 29;
  // Never zero, so that memory nobody wrote to is told apart from memory that was written.
  return static_cast<std::byte>(1 + mixed % 255);
}

void fill(std::span<std::byte> bytes, uint64_t seed) {
  for (uint64_t i = 0; i < bytes.size(); ++i) bytes[i] = byte_of(seed, i);
}

bool holds(std::span<const std::byte> bytes, uint64_t seed) {
  for (uint64_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != byte_of(seed, i)) return false;
  }
  return true;
}

bool untouched(std::span<const std::byte> bytes, std::byte value) {
  return std::all_of(bytes.begin(), bytes.end(), [&](std::byte b) { return b == value; });
}

void Witness::on(const Event& event) {
  events.push_back(event);
  times.push_back(clock_ == nullptr ? Nanos{} : clock_->now());
  if (event.kind == EventKind::kMessage) {
    messages.emplace_back(event.bytes().begin(), event.bytes().end());
  }
  if (then) then(event);
}

uint64_t Witness::count(EventKind kind) const {
  return static_cast<uint64_t>(
      std::count_if(events.begin(), events.end(), [&](const Event& e) { return e.kind == kind; }));
}

const Event* Witness::find(uint64_t tag) const {
  const auto found =
      std::find_if(events.begin(), events.end(), [&](const Event& e) { return e.tag == tag; });
  return found == events.end() ? nullptr : &*found;
}

Nanos Witness::when(uint64_t tag) const {
  const Event* event = find(tag);
  EXPECT_NE(event, nullptr) << "nothing with tag " << tag << " was reported";
  return event == nullptr ? Nanos::max() : times[static_cast<size_t>(event - events.data())];
}

std::vector<uint64_t> seeds(uint64_t how_many) {
  std::vector<uint64_t> all;
  for (uint64_t i = 0; i < how_many; ++i) all.push_back(test_seed() + i);
  return all;
}

std::string replay(uint64_t seed) { return "replay: FABRICLIB_TEST_SEED=" + std::to_string(seed); }

}  // namespace fabric::test

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fabric/fabric.h>
#include <fabric/sim.h>

#include "harness/event_recorder.h"
#include "harness/nic_models.h"
#include "harness/pattern.h"

// Hosts of a test on the simulator: an engine with one region each, and how one host reaches the
// memory of another. tests/conformance has hosts of its own shape (DuplexHost), see there.

namespace fabric::test {

using namespace std::chrono_literals;

/// A Config whose unexpected warnings fail the test.
Config test_config();

/// The same with timeouts that let a test fail and recover within a few virtual seconds.
Config short_timeouts_config();

/// One engine with one region, which is source and target alike.
struct Host {
  std::vector<std::byte> owned;  ///< the region's memory, when the engine did not allocate it
  Engine engine;
  MemoryRegion memory;  ///< deregistered before the engine closes

  std::span<std::byte> bytes() const { return memory.bytes(); }
  std::span<std::byte> bytes(uint64_t offset, uint64_t size) const {
    return memory.bytes().subspan(offset, size);
  }
};

/// The memory comes from Engine::allocate().
Host open_host(sim::World& world, uint32_t node, uint64_t size_bytes,
               const Config& config = test_config());

/// Another host as one host knows it: the peer, and the imported region.
struct RemoteHost {
  PeerId peer{};
  RemoteRegion region{};
  RemoteRef at(uint64_t offset) const { return region.at(offset); }
};

RemoteHost connect(Host& from, const Host& to, const ConnectOptions& options = {});

/// Runs until `from` has a session with the peer.
void await_connected(sim::World& world, const Host& from, PeerId peer);

/// A counted write from one host to the other arrives.
bool delivers(sim::World& world, Host& from, Host& to, uint64_t seed);

/// NICs with connections, like RC, slow enough that a fault hits writes in flight.
sim::NicModel slow_rc();
/// Like EFA: after a fault it is unknown what arrived.
sim::NicModel slow_srd();

/// Allows the warnings that a faulty network causes.
void expect_fault_logs();

/// The test's seed and those after it, for tests that run several times.
std::vector<uint64_t> seeds(uint64_t how_many);

/// The command that repeats one run of a test.
std::string replay(uint64_t seed);

}  // namespace fabric::test

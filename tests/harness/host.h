#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <fabric/fabric.h>
#include <fabric/sim.h>

// What the stories on the simulator have in common: hosts with one piece of memory each, bytes that
// can be told apart, and somebody who writes down what was reported.

namespace fabric::test {

using namespace std::chrono_literals;

/// A Config whose unexpected warnings fail the test.
Config test_config();

/// One engine with one region, which is source and target alike.
struct Host {
  Engine engine;
  MemoryRegion memory;

  std::span<std::byte> bytes() const { return memory.bytes(); }
  std::span<std::byte> bytes(uint64_t offset, uint64_t size) const {
    return memory.bytes().subspan(offset, size);
  }
};

Host open_host(sim::World& world, uint32_t node, uint64_t size_bytes,
               const Config& config = test_config());

/// The way from one host to another's memory.
struct Way {
  PeerId peer{};
  RemoteRegion region{};
  RemoteRef at(uint64_t offset) const { return region.at(offset); }
};

Way connect(Host& from, const Host& to, const ConnectOptions& options = {});

/// Runs until both sides of the way know each other.
void await_connected(sim::World& world, const Host& from, PeerId peer);

/// Bytes that differ with the seed and with every place.
std::byte byte_of(uint64_t seed, uint64_t place);
void fill(std::span<std::byte> bytes, uint64_t seed);
bool holds(std::span<const std::byte> bytes, uint64_t seed);
/// Every byte is `value`: nobody wrote there.
bool untouched(std::span<const std::byte> bytes, std::byte value = std::byte{0});

/// Takes down every event it gets, and when.
class Witness {
 public:
  explicit Witness(const Engine* clock = nullptr) : clock_(clock) {}
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;

  Notify notify(uint64_t tag = 0) { return Notify::call<&Witness::on>(this, tag); }
  void on(const Event& event);

  uint64_t count() const { return events.size(); }
  uint64_t count(EventKind kind) const;
  const Event* find(uint64_t tag) const;
  /// When the event of that tag came.
  Nanos when(uint64_t tag) const;

  std::vector<Event> events;
  std::vector<std::vector<std::byte>> messages;  ///< the bytes of kMessage events
  std::vector<Nanos> times;
  std::function<void(const Event&)> then;  ///< called after each was taken down

 private:
  const Engine* clock_;
};

/// Runs `check` in every step of the world for as long as it lives. Declare it after everything
/// that the check looks at.
class EachStep {
 public:
  EachStep(sim::World& world, std::function<void()> check)
      : check_(std::make_shared<std::function<void()>>(std::move(check))) {
    world.each_step([weak = std::weak_ptr(check_)] {
      if (const auto alive = weak.lock()) (*alive)();
    });
  }
  EachStep(const EachStep&) = delete;
  EachStep& operator=(const EachStep&) = delete;

 private:
  std::shared_ptr<std::function<void()>> check_;
};

/// The test's seed and those after it, for stories that are told several times.
std::vector<uint64_t> seeds(uint64_t how_many);

/// What to type to see one run of a story again.
std::string replay(uint64_t seed);

}  // namespace fabric::test

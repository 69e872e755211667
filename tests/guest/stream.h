#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fabric/fabric.h>

#include "base/rng.h"
#include "control/descriptor.h"

// Engines on the devices of the guest, and fully checked writes between them.

namespace fabric::test {

/// The devices of one host ("a" or "b"), as a line of Config::networks.
Network rails_of(char host, uint32_t rails = 2);
/// With test_log_sink(), and with times that fit a guest without KVM.
Config guest_config(char host, uint32_t rails = 2);
/// Opens or fails the test.
Engine open_host(char host, uint32_t rails = 2);

/// What a peer could make of a descriptor that it was given.
std::vector<std::byte> forged(const MemoryRegion& region,
                              const std::function<void(control::RegionDesc&)>& change);
void with_wrong_keys(control::RegionDesc& desc);

/// FABRICLIB_TEST_ROUNDS, or 1: how much more than in `make test`.
uint32_t rounds();

/// Continuous writes from one engine to another, of several sizes, with and without an immediate.
/// Each has a slot of the target and a counter of its own: when it is counted its bytes are
/// compared and wiped, and the slot must stay wiped and its count unchanged until the next write to
/// it. So a count without its bytes, a second count and a late store are all detected.
///
/// Threads: one, callbacks aside.
class Stream {
 public:
  struct Options {
    uint32_t slots = 48;         ///< as many writes are in flight
    uint64_t bytes_max = 65536;  ///< of one
    Nanos timeout{30'000'000'000};
  };
  Stream(Engine& from, Engine& to, uint64_t seed, const Options& options);
  Stream(Engine& from, Engine& to, uint64_t seed) : Stream(from, to, seed, Options()) {}

  /// Checks every slot once, and submits to those that are free. True when one of them moved.
  bool step(bool refill = true);
  uint32_t outstanding() const;  ///< submitted, and not ended
  /// Lets all of them end, and looks whether everything stays as it is.
  void finish();

  uint64_t delivered() const { return delivered_; }
  uint64_t not_delivered() const { return not_delivered_; }
  uint64_t unknown() const { return unknown_; }
  uint64_t failed() const { return not_delivered_ + unknown_; }
  std::string first_failure() const { return first_failure_; }
  std::string describe() const;  ///< human-readable, for when it is stuck
  PeerId peer() const { return peer_; }

 private:
  enum class Phase : uint8_t { kFree, kFlying, kFailed };
  struct StreamSlot {
    explicit StreamSlot(Counter key) : counter(std::move(key)) {}
    void on(const Event& event);
    Counter counter;
    Phase phase = Phase::kFree;
    uint64_t size_bytes = 0;
    uint64_t stamp = 0;
    bool counts = false;            ///< this one carries an immediate
    bool counted = false;           ///< and it has come
    bool taken = false;             ///< and was taken: its counter key was not poisoned
    std::vector<std::byte> left{};  ///< bytes of the slot when a write failed
    Event end{};
    std::atomic<uint32_t> ends{0};
  };

  void submit(uint32_t index);
  bool look(uint32_t index);
  void take_end(uint32_t index);
  void check_bytes(uint32_t index, const char* when);
  void expect_wiped(uint32_t index, const char* when);
  std::span<std::byte> target(uint32_t index) const;

  Engine& from_;
  Engine& to_;
  const Options options_;
  Rng rng_;
  MemoryRegion source_, target_;
  PeerId peer_{};
  RemoteRegion remote_{};
  std::vector<std::unique_ptr<StreamSlot>> slots_;
  uint64_t stamps_ = 0;
  uint64_t delivered_ = 0, not_delivered_ = 0, unknown_ = 0;
  std::string first_failure_;
};

/// Steps all of them until `done`; false when that takes too long.
bool run(std::vector<Stream*> streams, const std::function<bool()>& done, bool refill = true);
/// That many more writes of each are delivered, and none has ever failed.
void expect_service(std::vector<Stream*> streams, uint64_t writes = 64);
/// Every rail of both engines completes work requests, and no write has ever failed.
void expect_all_rails(Engine& one, Engine& other, std::vector<Stream*> streams);

}  // namespace fabric::test

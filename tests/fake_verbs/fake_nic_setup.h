#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <fabric/fabric.h>
#include <fabric/verbs.h>

#include "fake_verbs/fake_nics.h"
#include "support/log_guard.h"

// Engines on fake NICs, and fully checked writes between them.

namespace fabric::test {

using namespace std::chrono_literals;

/// Counted writes from one engine to another, each with its own target bytes and counter.
///
/// Threads: one, callbacks aside.
class CheckedWrites {
 public:
  struct Options {
    uint32_t count = 64;
    uint64_t bytes = 4096;
    Nanos timeout{20s};
    bool shared_key = false;  ///< one counter for all, as with paged writes
  };
  CheckedWrites(Engine& from, Engine& to, const Options& options);
  CheckedWrites(Engine& from, Engine& to) : CheckedWrites(from, to, Options()) {}

  void submit(uint32_t first, uint32_t count);  ///< in one call, so that they are posted in chains
  void submit() { submit(0, options_.count); }
  /// All submitted writes have completed, and all delivered ones are counted.
  bool ended() const;
  uint32_t landed() const;  ///< counts so far
  uint32_t delivered() const { return with(Remote::kDelivered); }
  uint32_t not_delivered() const { return with(Remote::kNotDelivered); }
  uint32_t unknown() const { return with(Remote::kUnknown); }
  uint32_t with(Remote remote) const;
  uint32_t with(Errc code) const;
  /// Every write completed once, and its completion is true.
  void expect_true() const;
  /// The same, and all were delivered.
  void expect_delivered() const;
  MemoryRegion& source() { return source_; }
  MemoryRegion& target() { return target_; }
  PeerId peer() const { return peer_; }

 private:
  struct WriteRecord {
    explicit WriteRecord(Counter key) : counter(std::move(key)) {}
    void on(const Event& event);
    Counter counter;
    bool submitted = false;
    Event end{};
    std::atomic<uint32_t> ends{0};
  };
  bool has_bytes(uint32_t index) const;

  Engine& from_;
  const Options options_;
  std::vector<std::unique_ptr<WriteRecord>> records_;  ///< a region that goes may still end a write
  MemoryRegion source_, target_;
  PeerId peer_{};
  RemoteRegion remote_{};
};

/// Fake NICs, and an engine on every host.
class FakeNicSetup {
 public:
  struct Options {
    uint32_t hosts = 2, rails = 1;
    bool threads = true;  ///< false: turns and packets only by until() and turn()
    FakeNicOptions nics{};
    verbs::Options network{};
    Config config{};
  };
  explicit FakeNicSetup(const Options& options);
  FakeNicSetup() : FakeNicSetup(Options()) {}
  ~FakeNicSetup();

  FakeNics& nics() { return *nics_; }
  Engine& operator[](uint32_t host) { return *engines_[host]; }
  Result<Engine> open(uint32_t host);  ///< one more
  void close(uint32_t host) { engines_[host].reset(); }
  Config config(uint32_t host) const;

  /// Makes progress until `done`; false after `limit`.
  bool until(const std::function<bool()>& done, Nanos limit = 30s);
  /// Without threads: some turns of all engines. `moves`: and packets between them.
  void turn(uint32_t times, bool moves = true);
  /// From now on warnings about broken networks are expected.
  void expect_fault_logs();
  /// A new set of writes is delivered each way.
  void expect_service(uint32_t from = 0, uint32_t to = 1);
  /// The rail's fact of this name.
  std::string fact(uint32_t host, uint32_t rail, const std::string& name);
  bool rail_up(uint32_t host, uint32_t rail) { return (*this)[host].rail_stats()[rail].up; }

 private:
  const Options options_;
  std::unique_ptr<FakeNics> nics_;
  std::shared_ptr<InlineRuntime> runtime_;
  std::optional<Engine> clock_;  ///< for those with threads
  std::optional<Inbox> ticks_;
  std::vector<std::optional<Engine>> engines_;
};

}  // namespace fabric::test

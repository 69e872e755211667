#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <fabric/fabric.h>
#include <fabric/sim.h>

#include "base/event_count.h"
#include "base/rng.h"
#include "base/system.h"
#include "support/log_guard.h"

// Whole engines with threads of their own, in one process, on a network in real time.

namespace fabric::test {

using namespace std::chrono_literals;

/// Nothing here takes nearly as long; who waits this long has found a hang.
inline constexpr auto kPatience = 30s;

/// Looks until the condition holds. False: it never did.
inline bool eventually(const std::function<bool()>& condition) {
  const auto limit = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(200us);
  }
  return true;
}

inline Config engine_config() {
  Config config;
  config.log_sink = test_log_sink();
  config.spin = Nanos(5'000);  // the tests run more threads than there are cores
  return config;
}

inline sim::NicModel quick_nic() {
  sim::NicModel model;
  model.jitter = Nanos(20'000);  // so that completions and arrivals change places
  return model;
}

/// Engines that know each other, one a node.
class Cluster {
 public:
  explicit Cluster(uint32_t nodes, Config config = engine_config(), uint32_t rails = 2)
      : world_({.seed = test_seed(), .realtime = true}) {
    for (uint32_t i = 0; i < nodes; ++i) {
      const uint32_t node = world_.add_node(rails, quick_nic());
      auto engine = world_.open(node, config);
      EXPECT_TRUE(engine) << engine.error().what;
      engines_.push_back(std::make_unique<Engine>(*std::move(engine)));
    }
  }

  Engine& operator[](uint32_t i) { return *engines_[i]; }
  uint32_t size() const { return static_cast<uint32_t>(engines_.size()); }
  sim::World& world() { return world_; }

  PeerId connect(uint32_t from, uint32_t to) {
    auto peer = (*this)[from].connect((*this)[to].address());
    EXPECT_TRUE(peer);
    return peer ? *peer : PeerId{};
  }

 private:
  sim::World world_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

/// Bytes of an engine, and what another one needs to write to them.
class Area {
 public:
  Area(Engine& owner, uint64_t size)
      : bytes(size), region_(owner.register_memory({bytes.data(), size})) {
    EXPECT_TRUE(region_) << region_.error().what;
  }
  MemoryRegion& region() { return *region_; }
  RemoteRegion seen_by(Engine& writer, PeerId owner) {
    auto desc = region_->desc();
    EXPECT_TRUE(desc);
    auto remote = writer.import_region(owner, *desc);
    EXPECT_TRUE(remote);
    return remote ? *remote : RemoteRegion{};
  }
  std::vector<std::byte> bytes;

 private:
  Result<MemoryRegion> region_;
};

/// Which of the accepted operations were reported, and how often.
///
/// Threads: everything from any thread.
class ReportAudit {
 public:
  explicit ReportAudit(uint64_t tags) : reports_(tags) {}

  /// The tag of the next request.
  uint64_t open() {
    const uint64_t tag = next_.fetch_add(1);
    EXPECT_LT(tag, reports_.size()) << "the audit is too small";
    return tag;
  }
  /// It was not taken: nothing may be reported for it.
  void refused(uint64_t tag) { reports_[tag].fetch_or(kRefused); }
  void report(const Event& event) {
    ASSERT_LT(event.tag, reports_.size());
    reports_[event.tag].fetch_add(1);
    if (event.code == Errc::kOk) ok_.fetch_add(1);
    reported_.fetch_add(1);  // the last: a thread that sees it may destroy the audit
  }
  Notify call(uint64_t tag) { return Notify::call<&ReportAudit::report>(this, tag); }

  uint64_t opened() const { return next_.load(); }
  uint64_t reported() const { return reported_.load(); }
  uint64_t ok() const { return ok_.load(); }
  uint64_t refusals() const {
    return static_cast<uint64_t>(std::count_if(reports_.begin(), reports_.end(), [](const auto& r) {
      return (r.load() & kRefused) != 0;
    }));
  }
  bool complete() const { return reported() + refusals() >= opened(); }
  /// Everything accepted once, everything refused never.
  void expect_exactly_once() const {
    for (uint64_t tag = 0; tag < opened(); ++tag) {
      const uint32_t seen = reports_[tag].load();
      if ((seen & kRefused) != 0) {
        EXPECT_EQ(seen, kRefused) << "refused, and reported: " << tag;
      } else {
        EXPECT_EQ(seen, 1u) << "tag " << tag;
      }
    }
  }

 private:
  static constexpr uint32_t kRefused = 1u << 31;
  std::vector<std::atomic<uint32_t>> reports_;
  std::atomic<uint64_t> next_{0}, reported_{0}, ok_{0};
};

/// Threads that are joined at the end of the scope.
class ScopedThreads {
 public:
  ~ScopedThreads() { join(); }
  template <class F>
  void add(F body) {
    threads_.emplace_back(std::move(body));
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::vector<std::thread> threads_;
};

/// The last submitted operations, for other threads to cancel.
///
/// Threads: everything from any thread.
class RecentOps {
 public:
  void add(OpId id) {
    const uint64_t packed = uint64_t{id.generation} << 32 | id.slot;
    ids_[next_.fetch_add(1) % ids_.size()].store(packed);
  }
  OpId pick(Rng& rng) const {
    const uint64_t packed = ids_[rng.below(ids_.size())].load();
    return OpId(static_cast<uint32_t>(packed), static_cast<uint32_t>(packed >> 32));
  }

 private:
  std::array<std::atomic<uint64_t>, 64> ids_{};
  std::atomic<uint64_t> next_{0};
};

}  // namespace fabric::test

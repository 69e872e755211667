#pragma once

#include <deque>
#include <optional>

#include "harness/host.h"

// The truth about writes under failure. Every operation has places and keys of its own, so that
// what its end says of each part can be held against the receiver's memory and counters (P1, P3).

namespace fabric::test {

/// Bounds that let a story fail and recover within a few virtual seconds.
Config short_timeouts_config();

/// Connections like RC, slow enough that a fault finds something on its way.
sim::NicModel slow_rc();
/// Like EFA: nobody can say afterwards what arrived.
sim::NicModel slow_srd();

/// The warnings that a broken network may cause.
void expect_fault_logs();

/// Submits from one host and takes down how each operation ended.
///
/// When one ends, its source is turned into something else, and what it says was not delivered is
/// wiped at the target: who still reads the one or writes the other is found by check().
class Ledger {
 public:
  struct Target {
    Host* host = nullptr;
    Way remote{};
  };
  struct Options {
    Timeout timeout{};
    Priority priority = Priority::kNormal;
    bool unsplit = false;
    bool counted = true;
  };
  struct Part {
    Host* host = nullptr;
    uint64_t source = 0, target = 0, size = 0;
    size_t key = SIZE_MAX;  ///< which counter; none if it does not count
    Remote remote = Remote::kDelivered;
    Errc code = Errc::kOk;
  };
  struct AuditedOp {
    OpId id{};
    std::vector<Part> parts{};
    std::optional<Batch> batch{};
    Nanos submitted{}, deadline{}, ended{};
    uint32_t reports = 0;
    Event event{};
    bool ok() const { return reports == 1 && event.code == Errc::kOk; }
  };

  Ledger(Host& from, uint64_t seed);
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  AuditedOp& write(const Target& to, uint64_t size, const Options& options);
  AuditedOp& write(const Target& to, uint64_t size) { return write(to, size, {}); }
  AuditedOp& pages(const Target& to, uint32_t count, uint64_t size, const Options& options);
  AuditedOp& pages(const Target& to, uint32_t count, uint64_t size) {
    return pages(to, count, size, {});
  }
  AuditedOp& scatter(std::span<const Target> to, uint64_t size, Timeout timeout = {});

  /// Its process is gone: what its NIC took just before, nobody has counted.
  void died(const Host& host) { dead_ = &host; }

  bool all_completed() const;
  /// When the network is at rest: every operation has ended once and in time, and what it said is
  /// what happened.
  void check() const;
  /// Counts that the sender takes for certain and the receiver does not have.
  uint64_t uncounted() const;
  /// Whether keys of unknown fate are spoiled and no others are; for receivers that can be told.
  void check_keys();

  std::deque<AuditedOp> ops;

 private:
  struct AuditedCounter {
    Host* host = nullptr;
    Counter counter;
  };
  AuditedOp& open_op(Timeout timeout);
  Part take_part(Host& host, uint64_t size, size_t key);
  size_t add_counter(Host& host);
  CounterKey key(size_t account) const;
  void accepted(AuditedOp& line, const Result<OpId>& op);
  void on(const Event& event);
  /// Per counter: counts that are certain, and that are possible.
  std::vector<std::pair<uint64_t, uint64_t>> counts() const;
  static bool plausible(const Part& part, uint64_t seed);

  Host& from_;
  uint64_t seed_;
  Config config_ = short_timeouts_config();
  uint64_t at_ = 0;  ///< the next free place
  std::deque<AuditedCounter> counters_;
  const Host* dead_ = nullptr;
};

/// Runs until everything has ended, then until nothing can be late any more.
void run_until_complete(sim::World& world, const Ledger& ledger);

/// A host that can be used like any other: a counted write from one to the other arrives.
bool delivers(sim::World& world, Host& from, Host& to, uint64_t content);

}  // namespace fabric::test

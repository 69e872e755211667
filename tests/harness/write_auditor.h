#pragma once

#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "harness/host.h"

namespace fabric::test {

/// Submits writes from one engine and checks that every completion is true (P1, P3): the bytes and
/// the counts at the target are those that the completion reported for each part.
///
/// Every operation has a byte range of its own, at the same offset in the source and in the target.
/// When it completes, its source is overwritten with kReusedByte, and what it reports as not
/// delivered is cleared at the target: check() finds a source that is read, or a target that is
/// written, after the completion.
///
/// The expectations are computed from the pattern and from what was submitted, never from the
/// engine's statistics. fuzz::CompletionAuditor is separate: it checks operations whose peers lie,
/// so that neither bytes nor counts are known, and it aborts instead of failing a gtest.
///
/// Lifetime: with recorders of its own it outlives the completions of all its operations.
class WriteAuditor {
 public:
  struct Target {
    Target() = default;
    Target(Host* host, const RemoteHost& to)
        : engine(&host->engine), bytes(host->bytes()), remote(to) {}
    Target(Engine& owner, std::span<std::byte> memory, const RemoteHost& to)
        : engine(&owner), bytes(memory), remote(to) {}

    Engine* engine = nullptr;
    std::span<std::byte> bytes{};
    RemoteHost remote{};
  };
  struct Options {
    Timeout timeout{};
    Priority priority = Priority::kNormal;
    bool unsplit = false;
    bool counted = true;
    bool own_batch = true;  ///< reports the fate of each part; not needed when there is one part
    BatchId batch{};        ///< the test's, instead of an own one
    std::optional<size_t> counter{};  ///< of add_counter(); without it a new one
  };
  struct Part {
    const Engine* target_engine = nullptr;
    std::span<std::byte> source{}, target{};
    uint64_t offset = 0;  ///< of the source in the pattern
    size_t counter = kNoCounter;
    Remote remote = Remote::kDelivered;
    Errc code = Errc::kOk;
  };
  struct AuditedOp {
    OpId id{};
    std::vector<Part> parts{};
    std::optional<Batch> batch{};  ///< Options::own_batch
    Nanos submitted{}, deadline{}, completed{};
    uint32_t reports = 0;
    Event event{};
    bool ok() const { return reports == 1 && event.code == Errc::kOk; }
  };
  /// What the target's counters can still prove.
  enum class TargetState {
    kConnected,  ///< the session is up: a poisoned counter key is known on both sides
    kCutOff,     ///< the target is alive and unreachable
    kDead,       ///< only its memory can be checked
  };
  /// What ends a counter's wait.
  enum class Expect { kNothing, kOneCount };

  static constexpr size_t kNoCounter = SIZE_MAX;

  /// On the simulator, with short_timeouts_config(): completions are checked against deadlines too.
  WriteAuditor(Host& from, uint64_t seed);
  /// On any network. The recorders belong to the test, so that they outlive every engine.
  WriteAuditor(Engine& from, const MemoryRegion& source, uint64_t seed, EventRecorder& completions,
               EventRecorder& met);
  ~WriteAuditor();
  WriteAuditor(const WriteAuditor&) = delete;
  WriteAuditor& operator=(const WriteAuditor&) = delete;

  AuditedOp& write(const Target& to, uint64_t size, const Options& options);
  AuditedOp& write(const Target& to, uint64_t size) { return write(to, size, {}); }
  AuditedOp& pages(const Target& to, uint32_t count, uint64_t size, const Options& options);
  AuditedOp& pages(const Target& to, uint32_t count, uint64_t size) {
    return pages(to, count, size, {});
  }
  AuditedOp& scatter(std::span<const Target> to, uint64_t size, Timeout timeout = {});

  /// A counter at the target. With kOneCount an expectation is armed, and when it is met every byte
  /// of the write has to be in place (P6).
  size_t add_counter(const Target& to, Expect expect = Expect::kNothing);
  Counter& counter(size_t index) { return counters_[index].counter; }

  /// The target's process died: it did not take the last immediates out of its NIC.
  void died(const Host& host) { dead_ = &host.engine; }

  bool all_completed() const;
  /// When nothing is in flight any more: every operation has completed once, and in time, and its
  /// report is true.
  void check(TargetState state = TargetState::kConnected);
  /// Counts that were reported to the sender as delivered and that the receiver does not have.
  uint64_t uncounted() const;
  /// Exactly the counter keys with writes of unknown fate are poisoned; for receivers that are
  /// connected.
  void check_keys();

  uint32_t parts_with(Remote remote) const;
  Nanos last_completion() const { return last_completion_; }
  const EventRecorder& completions() const { return completions_; }

  std::deque<AuditedOp> ops;

 private:
  struct AuditedCounter {
    const Engine* engine = nullptr;
    Counter counter;
    Expect expect = Expect::kNothing;
  };
  AuditedOp& open_op(const Options& options);
  Part take_part(const Target& to, uint64_t size, size_t counter);
  size_t counter_for(const Target& to, const Options& options);
  CounterKey key(size_t counter) const;
  BatchId batch_of(const AuditedOp& op, const Options& options) const;
  void accepted(AuditedOp& op, const Result<OpId>& id);
  void on_completion(const Event& event);
  void on_met(const Event& event);
  void check_op(const AuditedOp& op) const;
  void check_bytes(const Part& part) const;
  void check_expected(size_t index, TargetState state);
  /// Per counter: counts that are certain, and that are possible.
  std::vector<std::pair<uint64_t, uint64_t>> counts() const;

  Engine& from_;
  const MemoryRegion& source_;
  const uint64_t seed_;
  const std::optional<Config> bounds_;  ///< for deadlines
  EventRecorder own_completions_, own_met_;
  EventRecorder &completions_, &met_;
  uint64_t at_ = 0;  ///< the next free offset
  std::deque<AuditedCounter> counters_;
  const Engine* dead_ = nullptr;
  Nanos last_completion_{};
};

/// Runs until everything has completed, then until nothing can be late any more.
void run_until_complete(sim::World& world, const WriteAuditor& auditor);

}  // namespace fabric::test

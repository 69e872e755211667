#pragma once

#include <vector>

#include "conformance/conformance.h"

namespace fabric::test {

/// Counted writes, each with a place and a key of its own, what was said of each and what is there.
/// A source is overwritten at the instant its write ends: whatever is read from it afterwards shows
/// at the target (P3).
class AuditedWrites {
 public:
  static constexpr uint32_t kWrites = 24;
  static constexpr uint64_t kSize = 40'000;

  /// `ends` and `met` are the test's, so that they outlive every engine. Fills the source and
  /// clears the target.
  AuditedWrites(DuplexHost& from, DuplexHost& to, RemoteRegion in, EventRecorder& completions, EventRecorder& met);
  ~AuditedWrites();
  AuditedWrites(const AuditedWrites&) = delete;
  AuditedWrites& operator=(const AuditedWrites&) = delete;

  /// All of them: cut, whole, urgent and in slices, by turns.
  void submit(BatchId batch = {}, Timeout timeout = {});
  bool all_completed() const { return completions_.count() >= kWrites; }

  /// Who can still tell what the target knows.
  enum class Target {
    kConnected,  ///< the session lives: a spoiled key is known on both sides
    kCutOff,     ///< it lives without us
    kDead,       ///< only its memory can be looked at
  };
  /// Holds every end against the memory and the counts. At rest, when nothing is under way.
  void check(Target target);

  uint32_t delivered() const { return reported(Remote::kDelivered); }
  uint32_t not_delivered() const { return reported(Remote::kNotDelivered); }
  uint32_t unknown() const { return reported(Remote::kUnknown); }
  const EventRecorder& completions() const { return completions_; }
  Counter& counter(uint32_t i) { return counters_[i]; }
  Nanos last_completion() const { return last_completion_; }

 private:
  void on_end(const Event& event);
  void on_met(const Event& event);
  void check_bytes(uint32_t i, const Event& end);
  void check_count(uint32_t i, const Event& end, Target target);
  uint32_t reported(Remote remote) const;
  std::byte* there(uint32_t i) { return to_.in.bytes.data() + i * kSize; }
  const std::byte* original(uint32_t i) const { return original_.data() + i * kSize; }

  DuplexHost& from_;
  DuplexHost& to_;
  RemoteRegion in_;
  EventRecorder& completions_;
  EventRecorder& met_;
  TestBytes original_;
  std::vector<std::vector<std::byte>> when_refused_;  ///< the target's bytes as kNotDelivered came
  std::vector<Counter> counters_;
  Nanos last_completion_{};
};

}  // namespace fabric::test

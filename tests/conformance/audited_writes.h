#pragma once

#include "conformance/conformance.h"
#include "harness/write_auditor.h"

namespace fabric::test {

/// A fixed set of counted writes from one host to another, each with a byte range, a counter and an
/// expectation of its own, which a WriteAuditor checks.
class AuditedWrites {
 public:
  using Target = WriteAuditor::TargetState;
  static constexpr uint32_t kWrites = 24;
  static constexpr uint64_t kSize = 40'000;

  /// `completions` and `met` are the test's, so that they outlive every engine. Fills the source
  /// and clears the target.
  AuditedWrites(DuplexHost& from, DuplexHost& to, RemoteRegion in, EventRecorder& completions,
                EventRecorder& met);

  /// All of them: split and unsplit, normal, urgent and in slices, by turns.
  void submit(BatchId batch = {}, Timeout timeout = {});
  bool all_completed() const { return auditor_.completions().count() >= kWrites; }

  /// Checks every completion against the memory and the counts, when nothing is in flight.
  void check(Target target) { auditor_.check(target); }

  uint32_t delivered() const { return auditor_.parts_with(Remote::kDelivered); }
  uint32_t not_delivered() const { return auditor_.parts_with(Remote::kNotDelivered); }
  uint32_t unknown() const { return auditor_.parts_with(Remote::kUnknown); }
  const EventRecorder& completions() const { return auditor_.completions(); }
  Nanos last_completion() const { return auditor_.last_completion(); }

 private:
  WriteAuditor auditor_;
  const WriteAuditor::Target to_;
};

}  // namespace fabric::test

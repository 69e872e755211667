#include "conformance/audited_writes.h"

#include "support/log_guard.h"

namespace fabric::test {

AuditedWrites::AuditedWrites(DuplexHost& from, DuplexHost& to, RemoteRegion in,
                             EventRecorder& completions, EventRecorder& met)
    : auditor_(from.engine, from.out.region, test_seed(), completions, met),
      to_(to.engine, to.in.bytes, RemoteHost{.region = in}) {
  to.in.clear();
  for (uint32_t i = 0; i < kWrites; ++i) {
    auditor_.add_counter(to_, WriteAuditor::Expect::kOneCount);
  }
}

void AuditedWrites::submit(BatchId batch, Timeout timeout) {
  constexpr Priority kPriorities[] = {Priority::kNormal, Priority::kUrgent, Priority::kBulk};
  for (uint32_t i = 0; i < kWrites; ++i) {
    auditor_.write(to_, kSize,
                   {.timeout = timeout,
                    .priority = kPriorities[i % 3],
                    .unsplit = i % 2 == 0,
                    .own_batch = false,
                    .batch = batch,
                    .counter = i});
  }
}

}  // namespace fabric::test

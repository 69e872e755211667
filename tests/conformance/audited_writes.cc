#include "conformance/audited_writes.h"

#include <algorithm>
#include <cstring>

#include "support/log_guard.h"

namespace fabric::test {

namespace {
constexpr int kReused = 0xee;  // even, and never zero: no byte of TestMemory::fill()
}

AuditedWrites::AuditedWrites(DuplexHost& from, DuplexHost& to, RemoteRegion in, EventRecorder& completions, EventRecorder& met)
    : from_(from), to_(to), in_(in), completions_(completions), met_(met), when_refused_(kWrites) {
  from_.out.fill(test_seed());
  to_.in.clear();
  original_ = from_.out.bytes;
  completions_.then = [this](const Event& event) { on_end(event); };
  met_.then = [this](const Event& event) { on_met(event); };
  for (uint32_t i = 0; i < kWrites; ++i) {
    counters_.push_back(*to_.engine.make_counter());
    EXPECT_TRUE(counters_[i].expect(1, met_.notify(i), Timeout::forever()));
  }
}

AuditedWrites::~AuditedWrites() {
  completions_.then = {};
  met_.then = {};
}

void AuditedWrites::submit(BatchId batch, Timeout timeout) {
  for (uint32_t i = 0; i < kWrites; ++i) {
    constexpr Priority kPriorities[] = {Priority::kNormal, Priority::kUrgent, Priority::kBulk};
    const auto op = from_.engine.submit(Write{.source = from_.out.at(i * kSize),
                                              .target = in_.at(i * kSize),
                                              .size_bytes = kSize,
                                              .imm = counters_[i].key(),
                                              .priority = kPriorities[i % 3],
                                              .unsplit = i % 2 == 0,
                                              .timeout = timeout,
                                              .batch = batch,
                                              .notify = completions_.notify(i)});
    ASSERT_TRUE(op) << to_string(op.error().code);
  }
}

void AuditedWrites::on_end(const Event& event) {
  last_completion_ = from_.engine.now();
  const auto i = static_cast<uint32_t>(event.tag);
  std::memset(from_.out.bytes.data() + i * kSize, kReused, kSize);
  if (event.remote == Remote::kNotDelivered) when_refused_[i].assign(there(i), there(i) + kSize);
}

void AuditedWrites::on_met(const Event& event) {
  if (event.code != Errc::kOk) return;
  EXPECT_EQ(std::memcmp(there(static_cast<uint32_t>(event.tag)),
                        original(static_cast<uint32_t>(event.tag)), kSize),
            0)
      << "counted before its bytes were there: " << event.tag;
}

void AuditedWrites::check(Target target) {
  for (uint32_t i = 0; i < kWrites; ++i) {
    SCOPED_TRACE("write " + std::to_string(i));
    ASSERT_EQ(completions_.count(i), 1u);
    const Event& end = *completions_.find(i);
    SCOPED_TRACE(std::string(to_string(end.code)) + " " + to_string(end.remote));
    EXPECT_EQ(end.code == Errc::kOk, end.remote == Remote::kDelivered);
    EXPECT_EQ(end.parts_failed, end.code == Errc::kOk ? 0u : 1u);
    check_bytes(i, end);
    if (target != Target::kDead) check_count(i, end, target);
  }
}

void AuditedWrites::check_bytes(uint32_t i, const Event& end) {
  const bool arrived = std::memcmp(there(i), original(i), kSize) == 0;
  if (end.remote == Remote::kDelivered) {
    EXPECT_TRUE(arrived);
    return;
  }
  if (end.remote == Remote::kNotDelivered) {
    EXPECT_EQ(std::memcmp(when_refused_[i].data(), there(i), kSize), 0) << "landed after all";
  }
  uint64_t foreign = 0;
  for (uint64_t n = 0; !arrived && n < kSize; ++n) {
    foreign += there(i)[n] != std::byte{0} && there(i)[n] != original(i)[n];
  }
  EXPECT_EQ(foreign, 0u) << "read from the source after the end";
}

void AuditedWrites::check_count(uint32_t i, const Event& end, Target target) {
  EXPECT_EQ(counters_[i].count(), 0u) << "more than the expectation took, or counted too late";
  EXPECT_LE(met_.count(i), 1u);
  const Event* met = met_.find(i);
  switch (end.remote) {
    case Remote::kDelivered:
      ASSERT_NE(met, nullptr) << "said to be delivered, and never counted";
      EXPECT_EQ(met->code, Errc::kOk);
      break;
    case Remote::kNotDelivered:
      EXPECT_EQ(met, nullptr) << "ended with " << to_string(met->code);
      break;
    case Remote::kUnknown:
      if (target == Target::kConnected) {
        ASSERT_NE(met, nullptr) << "nobody ends the wait for a key that was spoiled";
        EXPECT_TRUE(met->code == Errc::kOk || met->code == Errc::kAborted);
        EXPECT_EQ(counters_[i].expect(1, {}).error().code, Errc::kAborted)
            << "and it stays spoiled";
      }
      break;
  }
}

uint32_t AuditedWrites::reported(Remote remote) const {
  const auto& seen = completions_.seen();
  return static_cast<uint32_t>(std::count_if(
      seen.begin(), seen.end(), [&](const auto& one) { return one.event.remote == remote; }));
}

}  // namespace fabric::test

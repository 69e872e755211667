#include "harness/write_auditor.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <gtest/gtest.h>

namespace fabric::test {

namespace {
constexpr Nanos kSlack = 1ms;  // for the turn in which something is noticed, and a tear-down
}

WriteAuditor::WriteAuditor(Host& from, uint64_t seed)
    : from_(from.engine),
      source_(from.memory),
      seed_(seed),
      bounds_(short_timeouts_config()),
      completions_(own_completions_),
      met_(own_met_) {
  fill(source_.bytes(), seed_);
  completions_.then = [this](const Event& event) { on_completion(event); };
  met_.then = [this](const Event& event) { on_met(event); };
}

WriteAuditor::WriteAuditor(Engine& from, const MemoryRegion& source, uint64_t seed,
                           EventRecorder& completions, EventRecorder& met)
    : from_(from), source_(source), seed_(seed), completions_(completions), met_(met) {
  fill(source_.bytes(), seed_);
  completions_.then = [this](const Event& event) { on_completion(event); };
  met_.then = [this](const Event& event) { on_met(event); };
}

WriteAuditor::~WriteAuditor() {
  completions_.then = {};
  met_.then = {};
}

// Submission

WriteAuditor::AuditedOp& WriteAuditor::open_op(const Options& options) {
  AuditedOp& op = ops.emplace_back();
  if (options.own_batch) op.batch.emplace(*from_.make_batch());
  op.submitted = from_.now();
  const bool by_default = options.timeout.ns == Timeout::kDefault;
  const Nanos standard = bounds_ ? bounds_->default_timeout : Nanos{};
  op.deadline = op.submitted + (by_default ? standard : Nanos(options.timeout.ns));
  return op;
}

size_t WriteAuditor::add_counter(const Target& to, Expect expect) {
  const size_t index = counters_.size();
  counters_.push_back({to.engine, *to.engine->make_counter(), expect});
  if (expect == Expect::kOneCount) {
    EXPECT_TRUE(counters_.back().counter.expect(1, met_.notify(index), Timeout::forever()));
  }
  return index;
}

size_t WriteAuditor::counter_for(const Target& to, const Options& options) {
  if (!options.counted) return kNoCounter;
  return options.counter ? *options.counter : add_counter(to);
}

CounterKey WriteAuditor::key(size_t counter) const {
  return counter == kNoCounter ? CounterKey{} : counters_[counter].counter.key();
}

BatchId WriteAuditor::batch_of(const AuditedOp& op, const Options& options) const {
  return op.batch ? op.batch->id() : options.batch;
}

WriteAuditor::Part WriteAuditor::take_part(const Target& to, uint64_t size, size_t counter) {
  const Part part{.target_engine = to.engine,
                  .source = source_.bytes().subspan(at_, size),
                  .target = to.bytes.subspan(at_, size),
                  .offset = at_,
                  .counter = counter};
  at_ += size;
  EXPECT_LE(at_, source_.bytes().size()) << "the memory of the test is too small";
  return part;
}

void WriteAuditor::accepted(AuditedOp& op, const Result<OpId>& id) {
  ASSERT_TRUE(id) << to_string(id.error().code) << " " << id.error().what;
  op.id = *id;
}

WriteAuditor::AuditedOp& WriteAuditor::write(const Target& to, uint64_t size,
                                             const Options& options) {
  AuditedOp& op = open_op(options);
  const size_t counter = counter_for(to, options);
  const Part& part = op.parts.emplace_back(take_part(to, size, counter));
  accepted(op, from_.submit(Write{.source = source_.at(part.offset),
                                  .target = to.remote.at(part.offset),
                                  .size_bytes = size,
                                  .imm = key(counter),
                                  .priority = options.priority,
                                  .unsplit = options.unsplit,
                                  .timeout = options.timeout,
                                  .batch = batch_of(op, options),
                                  .notify = completions_.notify(ops.size() - 1)}));
  return op;
}

/// Target pages in reverse order: a write that ignores the indices lands on the wrong page.
WriteAuditor::AuditedOp& WriteAuditor::pages(const Target& to, uint32_t count, uint64_t size,
                                             const Options& options) {
  AuditedOp& op = open_op(options);
  const size_t counter = counter_for(to, options);
  const uint64_t base = at_;
  std::vector<uint32_t> here, there;
  for (uint32_t i = 0; i < count; ++i) {
    here.push_back(i);
    there.push_back(count - 1 - i);
    op.parts.push_back(take_part(to, size, counter));
    op.parts.back().target = to.bytes.subspan(base + (count - 1 - i) * size, size);
  }
  accepted(op, from_.submit(PagedWrite{
                   .source = source_.id(),
                   .source_pages = {.indices = here, .stride_bytes = size, .offset_bytes = base},
                   .target = to.remote.region,
                   .target_pages = {.indices = there, .stride_bytes = size, .offset_bytes = base},
                   .page_bytes = size,
                   .imm = key(counter),
                   .priority = options.priority,
                   .timeout = options.timeout,
                   .batch = batch_of(op, options),
                   .notify = completions_.notify(ops.size() - 1)}));
  return op;
}

WriteAuditor::AuditedOp& WriteAuditor::scatter(std::span<const Target> to, uint64_t size,
                                               Timeout timeout) {
  const Options options{.timeout = timeout};
  AuditedOp& op = open_op(options);
  std::vector<ScatterTarget> targets;
  for (const Target& target : to) {
    const size_t counter = add_counter(target);
    const Part& part = op.parts.emplace_back(take_part(target, size, counter));
    targets.push_back({target.remote.at(part.offset), part.offset, size, key(counter)});
  }
  accepted(op, from_.submit(Scatter{.source = source_.id(),
                                    .targets = targets,
                                    .timeout = timeout,
                                    .batch = batch_of(op, options),
                                    .notify = completions_.notify(ops.size() - 1)}));
  return op;
}

// Completion

void WriteAuditor::on_completion(const Event& event) {
  AuditedOp& op = ops.at(event.tag);
  ++op.reports;
  op.event = event;
  op.completed = last_completion_ = from_.now();
  if (op.batch) {
    std::array<Failure, Batch::kFailuresMax> failures;
    const uint32_t n = op.batch->failures(failures);
    for (uint32_t i = 0; i < n; ++i) {
      op.parts.at(failures[i].part).remote = failures[i].remote;
      op.parts.at(failures[i].part).code = failures[i].code;
    }
  } else {
    op.parts.at(0).remote = event.remote;
    op.parts.at(0).code = event.code;
  }
  for (const Part& part : op.parts) {
    std::memset(part.source.data(), std::to_integer<int>(kReusedByte), part.source.size());
    if (part.remote != Remote::kNotDelivered) continue;
    std::memset(part.target.data(), 0, part.target.size());
  }
}

/// The tag is the counter's index: every part that counts on it is complete.
void WriteAuditor::on_met(const Event& event) {
  if (event.code != Errc::kOk) return;
  for (const AuditedOp& op : ops) {
    for (const Part& part : op.parts) {
      if (part.counter != event.tag) continue;
      EXPECT_TRUE(holds(part.target, seed_, part.offset))
          << "counted before its bytes were in place: counter " << event.tag;
    }
  }
}

bool WriteAuditor::all_completed() const {
  return std::all_of(ops.begin(), ops.end(), [](const AuditedOp& op) { return op.reports > 0; });
}

uint32_t WriteAuditor::parts_with(Remote remote) const {
  uint32_t n = 0;
  for (const AuditedOp& op : ops) {
    if (op.reports == 0) continue;
    for (const Part& part : op.parts) n += part.remote == remote;
  }
  return n;
}

// Checks

std::vector<std::pair<uint64_t, uint64_t>> WriteAuditor::counts() const {
  std::vector<std::pair<uint64_t, uint64_t>> out(counters_.size());
  for (const AuditedOp& op : ops) {
    for (const Part& part : op.parts) {
      if (part.counter == kNoCounter) continue;
      out[part.counter].first += part.remote == Remote::kDelivered;
      out[part.counter].second += part.remote != Remote::kNotDelivered;
    }
  }
  return out;
}

uint64_t WriteAuditor::uncounted() const {
  const auto claimed = counts();
  uint64_t missing = 0;
  for (size_t i = 0; i < counters_.size(); ++i) {
    if (claimed[i].first != claimed[i].second) continue;  // a poisoned counter does not count
    missing += claimed[i].first - std::min(claimed[i].first, counters_[i].counter.count());
  }
  return missing;
}

/// Every byte is the one that was sent there, or was never written.
void WriteAuditor::check_bytes(const Part& part) const {
  if (part.remote == Remote::kNotDelivered) {
    EXPECT_TRUE(untouched(part.target)) << "landed after the completion";
    return;
  }
  if (holds(part.target, seed_, part.offset)) return;
  uint64_t foreign = 0;
  for (uint64_t i = 0; i < part.target.size(); ++i) {
    foreign += part.target[i] != std::byte{0} && part.target[i] != byte_of(seed_, part.offset + i);
  }
  EXPECT_EQ(foreign, 0u) << "the source was read after the completion";
  EXPECT_NE(part.remote, Remote::kDelivered) << "reported as delivered, and bytes are missing";
}

void WriteAuditor::check_op(const AuditedOp& op) const {
  ASSERT_EQ(op.reports, 1u) << from_.dump();
  if (bounds_) {
    EXPECT_LE(op.completed, op.deadline + bounds_->drain_timeout + kSlack);
  }
  uint64_t delivered = 0, unknown = 0;
  for (size_t p = 0; p < op.parts.size(); ++p) {
    SCOPED_TRACE("part " + std::to_string(p));
    check_bytes(op.parts[p]);
    delivered += op.parts[p].remote == Remote::kDelivered;
    unknown += op.parts[p].remote == Remote::kUnknown;
  }
  EXPECT_EQ(op.event.parts_failed, op.parts.size() - delivered);
  EXPECT_EQ(op.event.parts_unknown, unknown);
  EXPECT_EQ(op.event.code == Errc::kOk, delivered == op.parts.size());
  if (!op.batch) return;
  EXPECT_EQ(op.batch->delivered(), delivered);
  EXPECT_EQ(op.batch->failed(), op.parts.size() - delivered);
  EXPECT_EQ(op.batch->unknown(), unknown);
  EXPECT_EQ(op.batch->pending(), 0u);
}

void WriteAuditor::check(TargetState state) {
  for (size_t i = 0; i < ops.size(); ++i) {
    SCOPED_TRACE("operation " + std::to_string(i) + ": " + to_string(ops[i].event.code) + ", " +
                 to_string(ops[i].event.remote));
    ASSERT_NO_FATAL_FAILURE(check_op(ops[i]));
  }
  if (state == TargetState::kDead) return;
  const auto claimed = counts();
  for (size_t i = 0; i < counters_.size(); ++i) {
    if (counters_[i].expect == Expect::kOneCount) {
      check_expected(i, state);
      continue;
    }
    // A poisoned counter does not count, and a dead engine has not taken its last immediates.
    const bool exact = counters_[i].engine != dead_ && claimed[i].first == claimed[i].second;
    EXPECT_GE(counters_[i].counter.count(), exact ? claimed[i].first : 0) << "counter " << i;
    EXPECT_LE(counters_[i].counter.count(), claimed[i].second) << "counter " << i;
  }
}

/// A counter whose expectation waits for the one write that counts on it.
void WriteAuditor::check_expected(size_t index, TargetState state) {
  SCOPED_TRACE("counter " + std::to_string(index));
  Counter& counter = counters_[index].counter;
  EXPECT_EQ(counter.count(), 0u) << "counts beyond the expectation, or late counts";
  EXPECT_LE(met_.count(index), 1u);
  const Event* met = met_.find(index);
  for (const AuditedOp& op : ops) {
    if (op.parts.at(0).counter != index) continue;
    switch (op.parts[0].remote) {
      case Remote::kDelivered:
        ASSERT_NE(met, nullptr) << "reported as delivered, and never counted";
        EXPECT_EQ(met->code, Errc::kOk);
        break;
      case Remote::kNotDelivered:
        EXPECT_EQ(met, nullptr) << "completed with " << to_string(met->code);
        break;
      case Remote::kUnknown:
        if (state != TargetState::kConnected) break;
        ASSERT_NE(met, nullptr) << "the wait on a poisoned counter did not end";
        EXPECT_TRUE(met->code == Errc::kOk || met->code == Errc::kAborted);
        EXPECT_EQ(counter.expect(1, {}).error().code, Errc::kAborted)
            << "the counter must stay poisoned";
        break;
    }
  }
}

void WriteAuditor::check_keys() {
  std::vector<bool> unknown(counters_.size());
  for (const AuditedOp& op : ops) {
    for (const Part& part : op.parts) {
      if (part.counter != kNoCounter && part.remote == Remote::kUnknown) {
        unknown[part.counter] = true;
      }
    }
  }
  for (size_t i = 0; i < counters_.size(); ++i) {
    if (counters_[i].engine == dead_) continue;
    // More counts than any test sends: the wait ends by its deadline or because of the poison.
    const Errc code = counters_[i].counter.wait(1000, 1us).error().code;
    EXPECT_EQ(code, unknown[i] ? Errc::kAborted : Errc::kTimeout)
        << "counter " << i << ": " << to_string(code);
  }
}

void run_until_complete(sim::World& world, const WriteAuditor& auditor) {
  EXPECT_TRUE(world.run_until([&] { return auditor.all_completed(); }, 60s));
  world.run_for(2s);
}

}  // namespace fabric::test

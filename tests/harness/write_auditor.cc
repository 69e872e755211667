#include "harness/write_auditor.h"

#include <algorithm>

#include "support/log_guard.h"

namespace fabric::test {

namespace {
constexpr Nanos kSlack = 1ms;  // for the turn in which something is noticed, and a tear-down
}

Config short_timeouts_config() {
  Config config = test_config();
  config.default_timeout = 3s;
  config.drain_timeout = 400ms;
  config.peer_timeout = 1s;
  config.lost_timeout = 3s;
  return config;
}

sim::NicModel slow_rc() {
  sim::NicModel model = sim::NicModel::connectx7();
  model.gbit_per_s = 10;
  return model;
}

sim::NicModel slow_srd() {
  sim::NicModel model = sim::NicModel::efa_200g();
  model.gbit_per_s = 10;
  return model;
}

void expect_fault_logs() {
  for (const char* part : {"a path broke", "a rail went down", "a rail came back",
                           "an operation does not drain", "a path could not be opened"}) {
    expect_log(part);
  }
}

Ledger::Ledger(Host& from, uint64_t seed) : from_(from), seed_(seed) { fill(from_.bytes(), seed_); }

Ledger::AuditedOp& Ledger::open_op(Timeout timeout) {
  AuditedOp& line = ops.emplace_back();
  line.batch.emplace(*from_.engine.make_batch());
  line.submitted = from_.engine.now();
  const Nanos patience =
      timeout.ns == Timeout::kDefault ? config_.default_timeout : Nanos(timeout.ns);
  line.deadline = line.submitted + patience;
  return line;
}

size_t Ledger::add_counter(Host& host) {
  counters_.push_back({&host, *host.engine.make_counter()});
  return counters_.size() - 1;
}

CounterKey Ledger::key(size_t account) const {
  return account == SIZE_MAX ? CounterKey{} : counters_[account].counter.key();
}

Ledger::Part Ledger::take_part(Host& host, uint64_t size, size_t account) {
  const Part part{.host = &host, .source = at_, .target = at_, .size = size, .key = account};
  at_ += size;
  EXPECT_LE(at_, from_.bytes().size()) << "the test needs more memory";
  return part;
}

void Ledger::accepted(AuditedOp& line, const Result<OpId>& op) {
  ASSERT_TRUE(op) << to_string(op.error().code) << " " << op.error().what;
  line.id = *op;
}

Ledger::AuditedOp& Ledger::write(const Target& to, uint64_t size, const Options& options) {
  AuditedOp& line = open_op(options.timeout);
  const size_t account = options.counted ? add_counter(*to.host) : SIZE_MAX;
  const Part& part = line.parts.emplace_back(take_part(*to.host, size, account));
  accepted(line,
           from_.engine.submit(Write{.source = from_.memory.at(part.source),
                                     .target = to.remote.at(part.target),
                                     .size_bytes = size,
                                     .imm = key(account),
                                     .priority = options.priority,
                                     .unsplit = options.unsplit,
                                     .timeout = options.timeout,
                                     .batch = *line.batch,
                                     .notify = Notify::call<&Ledger::on>(this, ops.size() - 1)}));
  return line;
}

/// Back to front, so that a page is not where it would be by accident.
Ledger::AuditedOp& Ledger::pages(const Target& to, uint32_t count, uint64_t size,
                            const Options& options) {
  AuditedOp& line = open_op(options.timeout);
  const size_t account = options.counted ? add_counter(*to.host) : SIZE_MAX;
  const uint64_t base = at_;
  std::vector<uint32_t> here, there;
  for (uint32_t i = 0; i < count; ++i) {
    here.push_back(i);
    there.push_back(count - 1 - i);
    line.parts.push_back(take_part(*to.host, size, account));
    line.parts.back().target = base + (count - 1 - i) * size;
  }
  accepted(line, from_.engine.submit(PagedWrite{
                     .source = from_.memory.id(),
                     .source_pages = {.indices = here, .stride_bytes = size, .offset_bytes = base},
                     .target = to.remote.region,
                     .target_pages = {.indices = there, .stride_bytes = size, .offset_bytes = base},
                     .page_bytes = size,
                     .imm = key(account),
                     .priority = options.priority,
                     .timeout = options.timeout,
                     .batch = *line.batch,
                     .notify = Notify::call<&Ledger::on>(this, ops.size() - 1)}));
  return line;
}

Ledger::AuditedOp& Ledger::scatter(std::span<const Target> to, uint64_t size, Timeout timeout) {
  AuditedOp& line = open_op(timeout);
  std::vector<ScatterTarget> targets;
  for (const Target& target : to) {
    const size_t account = add_counter(*target.host);
    const Part& part = line.parts.emplace_back(take_part(*target.host, size, account));
    targets.push_back({target.remote.at(part.target), part.source, size, key(account)});
  }
  accepted(line, from_.engine.submit(
                     Scatter{.source = from_.memory.id(),
                             .targets = targets,
                             .timeout = timeout,
                             .batch = *line.batch,
                             .notify = Notify::call<&Ledger::on>(this, ops.size() - 1)}));
  return line;
}

void Ledger::on(const Event& event) {
  AuditedOp& line = ops.at(event.tag);
  ++line.reports;
  line.event = event;
  line.ended = from_.engine.now();
  std::array<Failure, Batch::kFailuresMax> failures;
  const uint32_t n = line.batch->failures(failures);
  for (uint32_t i = 0; i < n; ++i) {
    line.parts.at(failures[i].part).remote = failures[i].remote;
    line.parts.at(failures[i].part).code = failures[i].code;
  }
  for (const Part& part : line.parts) {
    for (std::byte& b : from_.bytes(part.source, part.size)) b = ~b;
    if (part.remote != Remote::kNotDelivered) continue;
    std::ranges::fill(part.host->bytes(part.target, part.size), std::byte{0});
  }
}

bool Ledger::all_completed() const {
  return std::all_of(ops.begin(), ops.end(), [](const AuditedOp& line) { return line.reports > 0; });
}

/// Every byte is what was sent there, or nobody wrote it.
bool Ledger::plausible(const Part& part, uint64_t seed) {
  const auto bytes = part.host->bytes(part.target, part.size);
  for (uint64_t i = 0; i < part.size; ++i) {
    if (bytes[i] != std::byte{0} && bytes[i] != byte_of(seed, part.source + i)) return false;
  }
  return true;
}

std::vector<std::pair<uint64_t, uint64_t>> Ledger::counts() const {
  std::vector<std::pair<uint64_t, uint64_t>> out(counters_.size());
  for (const AuditedOp& line : ops) {
    for (const Part& part : line.parts) {
      if (part.key == SIZE_MAX) continue;
      out[part.key].first += part.remote == Remote::kDelivered;
      out[part.key].second += part.remote != Remote::kNotDelivered;
    }
  }
  return out;
}

uint64_t Ledger::uncounted() const {
  const auto claimed = counts();
  uint64_t missing = 0;
  for (size_t i = 0; i < counters_.size(); ++i) {
    if (claimed[i].first != claimed[i].second) continue;  // a spoiled counter stands still
    missing += claimed[i].first - std::min(claimed[i].first, counters_[i].counter.count());
  }
  return missing;
}

void Ledger::check() const {
  for (size_t i = 0; i < ops.size(); ++i) {
    const AuditedOp& line = ops[i];
    SCOPED_TRACE("operation " + std::to_string(i) + ": " + to_string(line.event.code) + ", " +
                 to_string(line.event.remote));
    ASSERT_EQ(line.reports, 1u) << from_.engine.dump();
    EXPECT_LE(line.ended, line.deadline + config_.drain_timeout + kSlack);
    uint64_t delivered = 0, unknown = 0;
    for (size_t p = 0; p < line.parts.size(); ++p) {
      const Part& part = line.parts[p];
      const auto bytes = part.host->bytes(part.target, part.size);
      EXPECT_TRUE(plausible(part, seed_)) << "part " << p << ": the source was read after the end";
      if (part.remote == Remote::kDelivered) {
        ++delivered;
        EXPECT_FALSE(std::ranges::count(bytes, std::byte{0}) > 0) << "part " << p << " is missing";
      } else if (part.remote == Remote::kNotDelivered) {
        EXPECT_TRUE(untouched(bytes)) << "part " << p << " landed after the end";
      } else {
        ++unknown;
      }
    }
    EXPECT_EQ(line.event.parts_failed, line.parts.size() - delivered);
    EXPECT_EQ(line.event.previous, unknown);
    EXPECT_EQ(line.batch->delivered(), delivered);
    EXPECT_EQ(line.batch->failed(), line.parts.size() - delivered);
    EXPECT_EQ(line.batch->unknown(), unknown);
    EXPECT_EQ(line.batch->pending(), 0u);
    EXPECT_EQ(line.event.code == Errc::kOk, delivered == line.parts.size());
  }
  const auto claimed = counts();
  for (size_t i = 0; i < counters_.size(); ++i) {
    // A spoiled counter stands still, and a dead one has not looked at its last arrivals.
    const bool exact = counters_[i].host != dead_ && claimed[i].first == claimed[i].second;
    EXPECT_GE(counters_[i].counter.count(), exact ? claimed[i].first : 0) << "counter " << i;
    EXPECT_LE(counters_[i].counter.count(), claimed[i].second) << "counter " << i;
  }
}

void Ledger::check_keys() {
  std::vector<bool> unknown(counters_.size());
  for (const AuditedOp& line : ops) {
    for (const Part& part : line.parts) {
      if (part.key != SIZE_MAX && part.remote == Remote::kUnknown) unknown[part.key] = true;
    }
  }
  for (size_t i = 0; i < counters_.size(); ++i) {
    if (counters_[i].host == dead_) continue;
    // Nobody sends so many.
    const Errc code = counters_[i].counter.wait(1000, 1us).error().code;
    EXPECT_EQ(code, unknown[i] ? Errc::kAborted : Errc::kTimeout)
        << "counter " << i << ": " << to_string(code);
  }
}

void run_until_complete(sim::World& world, const Ledger& ledger) {
  EXPECT_TRUE(world.run_until([&] { return ledger.all_completed(); }, 60s));
  world.run_for(2s);
}

bool delivers(sim::World& world, Host& from, Host& to, uint64_t content) {
  const auto peer = from.engine.connect(to.engine.address());
  if (!peer) return false;
  const auto region = from.engine.import_region(*peer, *to.memory.desc());
  if (!region) return false;
  const auto counter = to.engine.make_counter();
  const auto batch = from.engine.make_batch();
  constexpr uint64_t kSize = 160'000;
  fill(from.bytes(0, kSize), content);
  const auto op = from.engine.submit(Write{.source = from.memory.at(0),
                                           .target = region->at(0),
                                           .size_bytes = kSize,
                                           .imm = counter->key(),
                                           .batch = *batch});
  if (!op || !from.engine.wait(*batch, 10s)) return false;
  world.run_for(1ms);
  const bool arrived = counter->count() == 1 && holds(to.bytes(0, kSize), content);
  std::ranges::fill(to.bytes(0, kSize), std::byte{0});  // as if nobody had written here
  return arrived;
}

}  // namespace fabric::test

#include "fake_verbs/fake_nic_setup.h"

#include <algorithm>
#include <cstring>

namespace fabric::test {

namespace {

constexpr std::byte kEmpty{0xEE};

MemoryRegion block(Engine& engine, uint64_t size_bytes) {
  auto region = engine.allocate({.size_bytes = size_bytes, .huge_pages = false});
  EXPECT_TRUE(region) << region.error().what;
  return *std::move(region);
}

}  // namespace

// ---- CheckedWrites ------------------------------------------------------------------------------

void CheckedWrites::WriteRecord::on(const Event& event) {
  end = event;
  ends.fetch_add(1, std::memory_order_release);  // pairs with ended()
}

CheckedWrites::CheckedWrites(Engine& from, Engine& to, const Options& options)
    : from_(from),
      options_(options),
      source_(block(from, options.count * options.bytes)),
      target_(block(to, options.count * options.bytes)) {
  const auto peer = from.connect(to.address());
  EXPECT_TRUE(peer) << peer.error().what;
  peer_ = *peer;
  const auto remote = from.import_region(peer_, *target_.desc());
  EXPECT_TRUE(remote) << remote.error().what;
  remote_ = *remote;
  std::ranges::fill(target_.bytes(), kEmpty);
  const auto bytes = source_.bytes();
  for (uint64_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>((i * 7 + i / options.bytes * 13) % 199);
  }
  for (uint32_t i = 0; i < options.count; ++i) {
    records_.push_back(std::make_unique<WriteRecord>(*to.make_counter()));
  }
}

void CheckedWrites::submit(uint32_t first, uint32_t count) {
  std::vector<Write> requests;
  for (uint32_t i = first; i < first + count; ++i) {
    const uint64_t at = i * options_.bytes;
    records_[i]->submitted = true;
    const CounterKey key = records_[options_.shared_key ? 0 : i]->counter.key();
    requests.push_back({.source = source_.at(at),
                        .target = remote_.at(at),
                        .size_bytes = options_.bytes,
                        .imm = key,
                        .timeout = options_.timeout,
                        .notify = Notify::call<&WriteRecord::on>(records_[i].get())});
  }
  const auto taken = from_.submit(requests);
  EXPECT_TRUE(taken) << taken.error().what;
  EXPECT_EQ(taken ? *taken : 0, count);
}

bool CheckedWrites::has_bytes(uint32_t index) const {
  const uint64_t at = index * options_.bytes;
  return std::memcmp(source_.bytes().data() + at, target_.bytes().data() + at, options_.bytes) == 0;
}

uint32_t CheckedWrites::landed() const {
  uint64_t sum = 0;
  for (const auto& record : records_) sum += record->counter.count();
  return static_cast<uint32_t>(sum);
}

bool CheckedWrites::ended() const {
  const bool all = std::ranges::all_of(records_, [](const auto& record) {
    return !record->submitted || record->ends.load(std::memory_order_acquire) != 0;  // with on()
  });
  // A sender may know of a write before its target has looked.
  return all && landed() >= delivered();
}

uint32_t CheckedWrites::with(Remote remote) const {
  return static_cast<uint32_t>(std::ranges::count_if(records_, [&](const auto& record) {
    return record->ends.load(std::memory_order_acquire) != 0 && record->end.remote == remote;
  }));
}

uint32_t CheckedWrites::with(Errc code) const {
  return static_cast<uint32_t>(std::ranges::count_if(records_, [&](const auto& record) {
    return record->ends.load(std::memory_order_acquire) != 0 && record->end.code == code;
  }));
}

void CheckedWrites::expect_true() const {
  for (uint32_t i = 0; i < records_.size() && !testing::Test::HasFailure(); ++i) {
    const WriteRecord& record = *records_[i];
    const uint32_t ends = record.ends.load(std::memory_order_acquire);  // with on()
    EXPECT_EQ(ends, record.submitted ? 1u : 0u) << "write " << i;
    if (ends == 0) continue;
    const bool delivered = record.end.remote == Remote::kDelivered;
    const bool unknown = record.end.remote == Remote::kUnknown;
    EXPECT_EQ(delivered, record.end.code == Errc::kOk) << "write " << i;
    if (delivered) {
      EXPECT_TRUE(has_bytes(i)) << "write " << i << " is reported as delivered without its bytes";
    }
    if (options_.shared_key) continue;
    const uint64_t counts = record.counter.count();
    EXPECT_GE(counts, delivered ? 1u : 0u)
        << "write " << i << " is reported as delivered and was not counted";
    EXPECT_LE(counts, delivered || unknown ? 1u : 0u)
        << "write " << i << ", " << to_string(record.end.code) << ", "
        << to_string(record.end.remote);
  }
  const uint32_t sum = landed();
  EXPECT_GE(sum, delivered());
  EXPECT_LE(sum, delivered() + unknown());
}

void CheckedWrites::expect_delivered() const {
  expect_true();
  const auto submitted =
      std::ranges::count_if(records_, [](const auto& record) { return record->submitted; });
  const auto failed = std::ranges::find_if(
      records_, [](const auto& record) { return record->end.code != Errc::kOk; });
  EXPECT_EQ(delivered(), static_cast<uint32_t>(submitted))
      << "the first failure: "
      << (failed == records_.end() ? "none" : to_string((*failed)->end.code));
}

// ---- FakeNicSetup -------------------------------------------------------------------------------

FakeNicSetup::FakeNicSetup(const Options& options) : options_(options) {
  FakeNicOptions nic_options = options.nics;
  nic_options.hosts = options.hosts;
  nic_options.rails = options.rails;
  nic_options.wire_thread = options.threads;
  nics_ = std::make_unique<FakeNics>(nic_options);
  if (options.threads) {
    clock_ = *Engine::open({.networks = {{.provider = "shm"}}, .log_sink = test_log_sink()});
    ticks_ = *clock_->make_inbox(2);
  } else {
    runtime_ = std::make_shared<InlineRuntime>();
  }
  for (uint32_t host = 0; host < options.hosts; ++host) {
    auto engine = open(host);
    EXPECT_TRUE(engine) << engine.error().what;
    engines_.emplace_back(*std::move(engine));
  }
}

FakeNicSetup::~FakeNicSetup() {
  nics_->start_wire_thread();  // close() waits for drains
  for (auto& engine : engines_) engine.reset();
  runtime_.reset();
  clock_.reset();
}

Config FakeNicSetup::config(uint32_t host) const {
  Network network{.provider = "verbs", .options = options_.network};
  for (uint32_t rail = 0; rail < options_.rails; ++rail) {
    network.devices.push_back(FakeNics::name(host, rail));
  }
  Config config = options_.config;
  config.networks = {std::move(network)};
  config.log_sink = test_log_sink();
  config.spin = Nanos(5'000);  // more threads than cores
  return config;
}

Result<Engine> FakeNicSetup::open(uint32_t host) { return Engine::open(config(host), runtime_); }

bool FakeNicSetup::until(const std::function<bool()>& done, Nanos limit) {
  Engine& clock = clock_ ? *clock_ : *engines_[0];
  const Nanos end = clock.now() + limit;
  while (!done()) {
    if (clock.now() >= end) return false;
    if (!clock_) {
      turn(1);
      nics_->pass(10us);
      continue;
    }
    Event tick[2];
    const auto timer = clock.submit(Timer{.after = 1ms, .notify = Notify::inbox(*ticks_)});
    if (!timer || !ticks_->wait(10s) || ticks_->poll(tick) != 1) return false;
  }
  return true;
}

void FakeNicSetup::turn(uint32_t times, bool moves) {
  for (uint32_t i = 0; i < times; ++i) {
    runtime_->turn();
    if (moves) nics_->run();
  }
}

void FakeNicSetup::expect_fault_logs() {
  for (const char* text : {"rail", "path", "peer", "connection", "write"}) expect_log(text);
}

void FakeNicSetup::expect_service(uint32_t from, uint32_t to) {
  CheckedWrites there((*this)[from], (*this)[to], {.count = 24, .bytes = 9000});
  CheckedWrites back((*this)[to], (*this)[from], {.count = 24, .bytes = 40});
  there.submit();
  back.submit();
  EXPECT_TRUE(until([&] { return there.ended() && back.ended(); }))
      << (*this)[from].dump() << (*this)[to].dump();
  there.expect_delivered();
  back.expect_delivered();
}

std::string FakeNicSetup::fact(uint32_t host, uint32_t rail, const std::string& name) {
  const RailStats stats = (*this)[host].rail_stats()[rail];
  for (const auto& [key, value] : stats.facts) {
    if (key == name) return value;
  }
  return {};
}

}  // namespace fabric::test

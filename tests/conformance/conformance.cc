#include "conformance/conformance.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "base/shared_pages.h"
#include "support/log_guard.h"

namespace fabric::test {

void PrintTo(const ProviderCase& provider, std::ostream* out) { *out << provider.name; }

// Memory

namespace {
std::atomic<bool> use_shared{false};
std::mutex shared_mutex;
std::map<void*, SharedPages> shared_pages;
}  // namespace

void use_shared_pages(bool shared) noexcept { use_shared = shared; }

void* allocate_test_memory(size_t bytes) {
  if (!use_shared) return ::operator new(bytes);
  auto pages = SharedPages::allocate((bytes + 4095) / 4096 * 4096, false);
  if (!pages) throw std::bad_alloc();
  void* const at = pages->address();
  const std::lock_guard lock(shared_mutex);
  shared_pages.emplace(at, *std::move(pages));
  return at;
}

void free_test_memory(void* at) noexcept {
  {
    const std::lock_guard lock(shared_mutex);
    if (shared_pages.erase(at) != 0) return;
  }
  ::operator delete(at);
}

// Conformance

Config Conformance::usual_config() {
  Config config;
  config.ops_max = 1024;
  config.batches_max = 64;
  config.peers_max = 64;
  config.regions_max = 1024;
  config.counters_max = 1024;
  config.stripe_bytes_min = kStripe;
  config.stripe_align = 256;
  config.log_sink = test_log_sink();
  return config;
}

Config Conformance::short_config() {
  Config config = usual_config();
  config.default_timeout = 5s;
  config.drain_timeout = 1s;
  config.peer_timeout = 3s;
  config.lost_timeout = 6s;
  config.bulk_slice_bytes = 8192;
  return config;
}

void Conformance::SetUp() { reopen(usual_config()); }

void Conformance::TearDown() {
  // The body has returned: what its callbacks refer to is destroyed.
  for (auto& one : recorders_) one->then = {};
  close_all();
}

void Conformance::close_all() {
  for (auto& host : hosts_) host.reset();
  env_.reset();
}

void Conformance::reopen(const Config& config, const TestEnvOptions& options) {
  close_all();
  config_ = config;
  env_ = GetParam().make(options);
  ASSERT_NE(env_, nullptr);
  env_->each_step([this] {
    if (step_hook_) step_hook_();
  });
  for (uint32_t host = 0; host < (GetParam().caps.two_engines ? 2 : 1); ++host) {
    hosts_[host] = make_host(host, config);
    ASSERT_NE(hosts_[host], nullptr);
  }
  ab_ = connect(a(), b());
  a().out.fill(test_seed());
}

DuplexHost& Conformance::c() {
  EXPECT_TRUE(GetParam().caps.two_engines);
  if (hosts_[2] == nullptr) hosts_[2] = make_host(2, config_);
  return *hosts_[2];
}

DuplexHost& Conformance::restart(uint32_t host, const Config& config) {
  hosts_[host] = make_host(host, config);
  return *hosts_[host];
}

std::unique_ptr<DuplexHost> Conformance::make_host(uint32_t host, const Config& config) {
  auto engine = env_->open(host, config);
  EXPECT_TRUE(engine) << engine.error().what;
  if (!engine) return nullptr;
  TestMemory out = make_memory(*engine), in = make_memory(*engine);
  return std::make_unique<DuplexHost>(
      DuplexHost{std::move(out), std::move(in), *std::move(engine)});
}

TestMemory Conformance::make_memory(Engine& engine, uint64_t size_bytes) {
  TestBytes bytes(size_bytes);
  auto region = engine.register_memory({.address = bytes.data(), .size_bytes = size_bytes});
  EXPECT_TRUE(region) << region.error().what;
  return {std::move(bytes), *std::move(region)};  // moving them leaves them in place
}

RemoteHost Conformance::connect(DuplexHost& from, DuplexHost& to) {
  const auto peer = from.engine.connect(to.engine.address());
  EXPECT_TRUE(peer) << peer.error().what;
  const auto desc = to.in.region.desc();
  EXPECT_TRUE(desc) << desc.error().what;
  if (!peer || !desc) return {};
  const auto region = from.engine.import_region(*peer, *desc);
  EXPECT_TRUE(region) << region.error().what;
  EXPECT_TRUE(until([&] {
    const auto info = from.engine.peer_info(*peer);
    return info && info->state == PeerState::kConnected;
  })) << "no connection";
  const auto back = to.engine.connect(from.engine.address());  // the session exists already
  EXPECT_TRUE(until([&] {
    const auto info = to.engine.peer_info(*back);
    return info && info->state == PeerState::kConnected;
  })) << "only one side is connected";
  return region ? RemoteHost{*peer, *region} : RemoteHost{*peer, {}};
}

SilentPeer Conformance::silent_peer() {
  if (auto silent = env_->silent_peer(config_)) return *std::move(silent);
  auto closed = make_host(TestEnv::kHosts - 1, config_);
  return {closed->engine.address(), *closed->in.region.desc()};
}

Write Conformance::write(uint64_t offset, uint64_t size_bytes, CounterKey imm) {
  return {.source = a().out.at(offset),
          .target = ab_.region.at(offset),
          .size_bytes = size_bytes,
          .imm = imm};
}

bool Conformance::arrived(uint64_t offset, uint64_t size_bytes) {
  return std::memcmp(a().out.bytes.data() + offset, b().in.bytes.data() + offset, size_bytes) == 0;
}

bool Conformance::untouched(uint64_t offset, uint64_t size_bytes) {
  static const std::vector<std::byte> zeros(kBytes);
  return std::memcmp(b().in.bytes.data() + offset, zeros.data(), size_bytes) == 0;
}

EventRecorder& Conformance::recorder() {
  recorders_.push_back(std::make_unique<EventRecorder>());
  return *recorders_.back();
}

bool Conformance::until(const std::function<bool()>& done, Nanos limit) {
  return env_->run_until(done, limit);
}

void Conformance::reopen_with_faults(const Config& config, const TestEnvOptions& options) {
  TestEnvOptions with_faults = options;
  with_faults.faults = true;
  reopen(config, with_faults);
  expect_fault_logs();
  EXPECT_EQ(submit_and_wait(ea(), write(0, kBytes)).code, Errc::kOk);
  b().in.clear();
}

void Conformance::expect_service(DuplexHost& to) {
  constexpr uint64_t kSize = 50'000;
  const RemoteHost there = connect(a(), to);
  auto counter = *to.engine.make_counter();
  a().out.fill(test_seed() + 1);
  const Event event = submit_and_wait(ea(), Write{.source = a().out.at(0),
                                                  .target = there.region.at(0),
                                                  .size_bytes = kSize,
                                                  .imm = counter.key(),
                                                  .timeout = 5s});
  EXPECT_EQ(event.code, Errc::kOk) << ea().dump() << ea().dump_json();
  EXPECT_TRUE(counter.wait(1, kLong));
  EXPECT_EQ(std::memcmp(a().out.bytes.data(), to.in.bytes.data(), kSize), 0);
  wait_idle();
  EXPECT_EQ(counter.count(), 0u) << "counted more than once";
}

Event Conformance::wait_completion(EventRecorder& completions, uint64_t tag) {
  const bool came = until([&] { return completions.count(tag) > 0; });
  EXPECT_TRUE(came) << "no completion for tag " << tag;
  if (!came) return Event{.code = Errc::kTimeout, .remote = Remote::kUnknown};
  EXPECT_EQ(completions.count(tag), 1u) << "tag " << tag;
  return *completions.find(tag);
}

}  // namespace fabric::test

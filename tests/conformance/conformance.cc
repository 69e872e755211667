#include "conformance/conformance.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <new>

#include "base/shared_pages.h"
#include "support/log_guard.h"

namespace fabric {

void PrintTo(Errc code, std::ostream* out) { *out << to_string(code); }
void PrintTo(Remote remote, std::ostream* out) { *out << to_string(remote); }
void PrintTo(PeerState state, std::ostream* out) { *out << to_string(state); }

}  // namespace fabric

namespace fabric::test {

void PrintTo(const ProviderCase& provider, std::ostream* out) { *out << provider.name; }

// FaultInjector

namespace {
void missing_capability(const char* what) {
  ADD_FAILURE() << "the case declares a capability that its ground does not have: " << what;
}
}  // namespace

void FaultInjector::cut(uint32_t, uint32_t, Phase) { missing_capability("cuts"); }
void FaultInjector::lose_rail(uint32_t, uint32_t, Phase) { missing_capability("lost_rails"); }
void FaultInjector::break_path(uint32_t, uint32_t, uint32_t, Side) { missing_capability("broken_paths"); }
void FaultInjector::kill(uint32_t) { missing_capability("kills"); }
void FaultInjector::stop(uint32_t, Phase) { missing_capability("stops"); }
void FaultInjector::lose_acks(uint32_t, uint32_t, Phase) { missing_capability("lost_acks"); }
void FaultInjector::not_ready(uint32_t, Phase) { missing_capability("not_ready"); }
void FaultInjector::wrong_key(uint32_t, uint32_t) { missing_capability("wrong_keys"); }
void FaultInjector::delay_proofs(uint32_t, Nanos) { missing_capability("late_proofs"); }

FaultInjector& TestEnv::faults() {
  static FaultInjector none;
  return none;
}

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

// EventRecorder

void EventRecorder::on(const Event& event) {
  Seen seen{.event = event, .bytes = {event.bytes().begin(), event.bytes().end()}};
  seen.event.data = nullptr;  // valid in the callback only
  seen_.push_back(std::move(seen));
  if (then) then(event);
}

uint32_t EventRecorder::count(uint64_t tag) const {
  return static_cast<uint32_t>(std::count_if(
      seen_.begin(), seen_.end(), [&](const Seen& seen) { return seen.event.tag == tag; }));
}

uint32_t EventRecorder::count(EventKind kind) const {
  return static_cast<uint32_t>(std::count_if(
      seen_.begin(), seen_.end(), [&](const Seen& seen) { return seen.event.kind == kind; }));
}

const Event* EventRecorder::find(uint64_t tag) const {
  const auto it = std::find_if(seen_.begin(), seen_.end(),
                               [&](const Seen& seen) { return seen.event.tag == tag; });
  return it == seen_.end() ? nullptr : &it->event;
}

const Event* EventRecorder::find(EventKind kind) const {
  const auto it = std::find_if(seen_.begin(), seen_.end(),
                               [&](const Seen& seen) { return seen.event.kind == kind; });
  return it == seen_.end() ? nullptr : &it->event;
}

std::vector<PeerState> EventRecorder::states(PeerId peer) const {
  std::vector<PeerState> states;
  for (const Seen& seen : seen_) {
    if (seen.event.kind == EventKind::kPeer && seen.event.peer == peer) {
      states.push_back(static_cast<PeerState>(seen.event.value));
    }
  }
  return states;
}

// TestMemory

void TestMemory::fill(uint64_t seed) {
  uint64_t word = seed;
  for (size_t i = 0; i < bytes.size(); i += sizeof word) {
    word = word * 0x5851'f42d'4c95'7f2d + 0x1405'7b7e'f767'814f;
    // Never zero: a byte that has not arrived is told from one that has.
    const uint64_t odd = (word ^ word >> 32) | 0x0101'0101'0101'0101;
    std::memcpy(bytes.data() + i, &odd, std::min(sizeof odd, bytes.size() - i));
  }
}

void TestMemory::clear() { std::memset(bytes.data(), 0, bytes.size()); }

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
  // The body is over, and what it looked at is gone.
  for (auto& one : recorders_) one->then = {};
  close_all();
}

void Conformance::close_all() {
  for (auto& end : hosts_) end.reset();
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
  return std::make_unique<DuplexHost>(DuplexHost{std::move(out), std::move(in), *std::move(engine)});
}

TestMemory Conformance::make_memory(Engine& engine, uint64_t size_bytes) {
  TestBytes bytes(size_bytes);
  auto region = engine.register_memory({.address = bytes.data(), .size_bytes = size_bytes});
  EXPECT_TRUE(region) << region.error().what;
  return {std::move(bytes), *std::move(region)};  // moving a vector leaves its bytes in place
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
  const auto back = to.engine.connect(from.engine.address());  // the session that is there already
  EXPECT_TRUE(until([&] {
    const auto info = to.engine.peer_info(*back);
    return info && info->state == PeerState::kConnected;
  })) << "only one side is connected";
  return region ? RemoteHost{*peer, *region} : RemoteHost{*peer, {}};
}

SilentPeer Conformance::silent_peer() {
  if (auto mute = env_->silent_peer(config_)) return *std::move(mute);
  auto gone = make_host(TestEnv::kHosts - 1, config_);
  return {gone->engine.address(), *gone->in.region.desc()};
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
  for (const char* part : {"a path broke", "a rail went down", "a rail came back",
                           "an operation does not drain", "a path could not be opened"}) {
    expect_log(part);
  }
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
  EXPECT_TRUE(came) << "no end for tag " << tag;
  if (!came) return Event{.code = Errc::kTimeout, .remote = Remote::kUnknown};
  EXPECT_EQ(completions.count(tag), 1u) << "tag " << tag;
  return *completions.find(tag);
}

}  // namespace fabric::test

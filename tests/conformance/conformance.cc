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

// Trouble

namespace {
void not_made(const char* what) {
  ADD_FAILURE() << "the case declares a capability that its ground does not have: " << what;
}
}  // namespace

void Trouble::cut(uint32_t, uint32_t, Phase) { not_made("cuts"); }
void Trouble::lose_rail(uint32_t, uint32_t, Phase) { not_made("lost_rails"); }
void Trouble::break_path(uint32_t, uint32_t, uint32_t, Side) { not_made("broken_paths"); }
void Trouble::kill(uint32_t) { not_made("kills"); }
void Trouble::stop(uint32_t, Phase) { not_made("stops"); }
void Trouble::lose_acks(uint32_t, uint32_t, Phase) { not_made("lost_acks"); }
void Trouble::not_ready(uint32_t, Phase) { not_made("not_ready"); }
void Trouble::wrong_key(uint32_t, uint32_t) { not_made("wrong_keys"); }
void Trouble::delay_proofs(uint32_t, Nanos) { not_made("late_proofs"); }

Trouble& Ground::trouble() {
  static Trouble none;
  return none;
}

// Memory

namespace {
std::atomic<bool> shared_blocks{false};
std::mutex shared_mutex;
std::map<void*, SharedPages> shared_pages;
}  // namespace

void use_shared_blocks(bool shared) noexcept { shared_blocks = shared; }

void* take_block_memory(size_t bytes) {
  if (!shared_blocks) return ::operator new(bytes);
  auto pages = SharedPages::allocate((bytes + 4095) / 4096 * 4096, false);
  if (!pages) throw std::bad_alloc();
  void* const at = pages->address();
  const std::lock_guard lock(shared_mutex);
  shared_pages.emplace(at, *std::move(pages));
  return at;
}

void free_block_memory(void* at) noexcept {
  {
    const std::lock_guard lock(shared_mutex);
    if (shared_pages.erase(at) != 0) return;
  }
  ::operator delete(at);
}

// Recorder

void Recorder::on(const Event& event) {
  Seen seen{.event = event, .bytes = {event.bytes().begin(), event.bytes().end()}};
  seen.event.data = nullptr;  // valid in the callback only
  seen_.push_back(std::move(seen));
  if (also) also(event);
}

uint32_t Recorder::count(uint64_t tag) const {
  return static_cast<uint32_t>(std::count_if(
      seen_.begin(), seen_.end(), [&](const Seen& seen) { return seen.event.tag == tag; }));
}

uint32_t Recorder::count(EventKind kind) const {
  return static_cast<uint32_t>(std::count_if(
      seen_.begin(), seen_.end(), [&](const Seen& seen) { return seen.event.kind == kind; }));
}

const Event* Recorder::find(uint64_t tag) const {
  const auto it = std::find_if(seen_.begin(), seen_.end(),
                               [&](const Seen& seen) { return seen.event.tag == tag; });
  return it == seen_.end() ? nullptr : &it->event;
}

const Event* Recorder::find(EventKind kind) const {
  const auto it = std::find_if(seen_.begin(), seen_.end(),
                               [&](const Seen& seen) { return seen.event.kind == kind; });
  return it == seen_.end() ? nullptr : &it->event;
}

std::vector<PeerState> Recorder::states(PeerId peer) const {
  std::vector<PeerState> states;
  for (const Seen& seen : seen_) {
    if (seen.event.kind == EventKind::kPeer && seen.event.peer == peer) {
      states.push_back(static_cast<PeerState>(seen.event.value));
    }
  }
  return states;
}

// Block

void Block::fill(uint64_t seed) {
  uint64_t word = seed;
  for (size_t i = 0; i < bytes.size(); i += sizeof word) {
    word = word * 0x5851'f42d'4c95'7f2d + 0x1405'7b7e'f767'814f;
    // Never zero: a byte that has not arrived is told from one that has.
    const uint64_t odd = (word ^ word >> 32) | 0x0101'0101'0101'0101;
    std::memcpy(bytes.data() + i, &odd, std::min(sizeof odd, bytes.size() - i));
  }
}

void Block::clear() { std::memset(bytes.data(), 0, bytes.size()); }

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
  for (auto& one : recorders_) one->also = {};
  close_all();
}

void Conformance::close_all() {
  for (auto& end : ends_) end.reset();
  ground_.reset();
}

void Conformance::reopen(const Config& config, const GroundOptions& options) {
  close_all();
  config_ = config;
  ground_ = GetParam().make(options);
  ASSERT_NE(ground_, nullptr);
  ground_->each_step([this] {
    if (look_) look_();
  });
  for (uint32_t place = 0; place < (GetParam().caps.two_engines ? 2 : 1); ++place) {
    ends_[place] = make_end(place, config);
    ASSERT_NE(ends_[place], nullptr);
  }
  ab_ = way(a(), b());
  a().out.fill(test_seed());
}

End& Conformance::c() {
  EXPECT_TRUE(GetParam().caps.two_engines);
  if (ends_[2] == nullptr) ends_[2] = make_end(2, config_);
  return *ends_[2];
}

End& Conformance::restart(uint32_t place, const Config& config) {
  ends_[place] = make_end(place, config);
  return *ends_[place];
}

std::unique_ptr<End> Conformance::make_end(uint32_t place, const Config& config) {
  auto engine = ground_->open(place, config);
  EXPECT_TRUE(engine) << engine.error().what;
  if (!engine) return nullptr;
  Block out = make_block(*engine), in = make_block(*engine);
  return std::make_unique<End>(End{std::move(out), std::move(in), *std::move(engine)});
}

Block Conformance::make_block(Engine& engine, uint64_t size_bytes) {
  BlockBytes bytes(size_bytes);
  auto region = engine.register_memory({.address = bytes.data(), .size_bytes = size_bytes});
  EXPECT_TRUE(region) << region.error().what;
  return {std::move(bytes), *std::move(region)};  // moving a vector leaves its bytes in place
}

Way Conformance::way(End& from, End& to) {
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
  return region ? Way{*peer, *region} : Way{*peer, {}};
}

Ghost Conformance::ghost() {
  if (auto mute = ground_->mute(config_)) return *std::move(mute);
  auto gone = make_end(Ground::kPlaces - 1, config_);
  return {gone->engine.address(), *gone->in.region.desc()};
}

Write Conformance::write(uint64_t offset, uint64_t size_bytes, CounterKey imm) {
  return {.source = a().out.at(offset),
          .target = ab_.in.at(offset),
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

Recorder& Conformance::recorder() {
  recorders_.push_back(std::make_unique<Recorder>());
  return *recorders_.back();
}

bool Conformance::until(const std::function<bool()>& done, Nanos limit) {
  return ground_->run_until(done, limit);
}

void Conformance::expect_trouble(const Config& config, const GroundOptions& options) {
  GroundOptions with_trouble = options;
  with_trouble.trouble = true;
  reopen(config, with_trouble);
  for (const char* part : {"a path broke", "a rail went down", "a rail came back",
                           "an operation does not drain", "a path could not be opened"}) {
    expect_log(part);
  }
  EXPECT_EQ(end_of(ea(), write(0, kBytes)).code, Errc::kOk);
  b().in.clear();
}

void Conformance::expect_service(End& to) {
  constexpr uint64_t kSize = 50'000;
  const Way there = way(a(), to);
  auto counter = *to.engine.make_counter();
  a().out.fill(test_seed() + 1);
  const Event event = end_of(ea(), Write{.source = a().out.at(0),
                                         .target = there.in.at(0),
                                         .size_bytes = kSize,
                                         .imm = counter.key(),
                                         .timeout = 5s});
  EXPECT_EQ(event.code, Errc::kOk) << ea().dump() << ea().dump_json();
  EXPECT_TRUE(counter.wait(1, kLong));
  EXPECT_EQ(std::memcmp(a().out.bytes.data(), to.in.bytes.data(), kSize), 0);
  settle();
  EXPECT_EQ(counter.count(), 0u) << "counted more than once";
}

Event Conformance::ended(Recorder& ends, uint64_t tag) {
  const bool came = until([&] { return ends.count(tag) > 0; });
  EXPECT_TRUE(came) << "no end for tag " << tag;
  if (!came) return Event{.code = Errc::kTimeout, .remote = Remote::kUnknown};
  EXPECT_EQ(ends.count(tag), 1u) << "tag " << tag;
  return *ends.find(tag);
}

}  // namespace fabric::test

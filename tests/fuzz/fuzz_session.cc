#include "fuzz/fuzz_session.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "control/descriptor.h"
#include "harness/nic_models.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__has_feature)
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/allocator_interface.h>
#define FABRIC_COUNTS_HEAP 1
#endif
#endif

namespace fabric::fuzz {

namespace {

constexpr uint64_t kEngineId = 0x1001, kHonestId = 0x2002, kHostileId = 0x9990;
constexpr uint32_t kPeersMax = 6, kOpsMax = 256, kRegionsMax = 16, kCountersMax = 64;
/// More than all of Config's bounds allow, less than a flood brings.
constexpr uint64_t kHeapMax = 4u << 20;
constexpr size_t kGrantsMax = 3;  // for each hostile peer

uint64_t heap_bytes() {
#ifdef FABRIC_COUNTS_HEAP
  return __sanitizer_get_current_allocated_bytes();
#else
  return 0;
#endif
}

/// Hostile peers cause warnings in every run; they are not checked.
void no_log(void*, const LogRecord&) {}

Config fuzz_config(const Setting& setting) {
  Config config;
  config.ops_max = kOpsMax;
  config.batches_max = 16;
  config.peers_max = kPeersMax;
  config.regions_max = kRegionsMax;
  config.counters_max = kCountersMax;
  config.names_per_peer_max = 8;
  config.message_bytes_max = 72'000;
  config.message_buffers = 16;
  config.message_credits = 4;
  config.index_arena_bytes = 256u << 10;
  config.log_sink = {.write = no_log};
  if ((setting.flags & Setting::kJobKey) != 0) config.job_key = "the job";
  return config;
}

sim::WorldOptions world_options(const Setting& setting) {
  sim::WorldOptions options{.seed = setting.seed + 1u};
  if ((setting.flags & Setting::kLossy) != 0) {
    options.drop_control = options.duplicate_control = options.reorder_control = 0.1;
  }
  return options;
}

}  // namespace

void play(const Script& script, InitialState initial) {
  FuzzSession session(script.setting, initial);
  for (const FuzzAction& action : script.actions) session.act(action);
  session.finish();
}

// ---- Setup --------------------------------------------------------------------------------------

FuzzSession::FuzzSession(const Setting& setting, InitialState initial)
    : setting_(setting),
      world_(sim::make_world(world_options(setting))),
      auditor_(*world_),
      honest_auditor_(*world_) {
  sim::NodeNetwork network;
  const bool unordered = (setting.flags & Setting::kUnordered) != 0;
  network.model = unordered ? test::srd_model() : test::rc_model();
  for (size_t i = 0; i < node_.size(); ++i) {
    const bool two_rails = i < 2 && (setting.flags & Setting::kTwoRails) != 0;
    network.rails = two_rails ? 2 : 1;
    node_[i] = world_->wire.add_node({network});
  }
  engine_.emplace(open_side(kEngineId, node_[0]));
  honest_.emplace(open_side(kHonestId, node_[1]));
  secret_.emplace(*engine_->engine.make_counter());
  connect_honest();

  Hostile::World around{.impl = world_};
  around.engine = *control::decode_address(engine_->engine.address());
  around.honest = *control::decode_address(honest_->engine.address());
  around.secrets = {engine_->counter.key(), secret_->key()};
  const bool keyed = (setting.flags & Setting::kJobKey) != 0;
  for (uint32_t who = 0; who < 2; ++who) {
    const bool knows = !keyed || who == 0 || (setting.flags & Setting::kSecondKnows) != 0;
    const std::string key = !keyed                  ? ""
                            : knows                 ? "the job"
                            : setting.seed % 2 == 0 ? ""
                                                    : "another";
    hostile_[who] = std::make_unique<Hostile>(around, node_[2 + who], kHostileId + who, key, knows);
    given_counters_.push_back(*engine_->engine.make_counter());
    share(who);
  }
  hostile_[0]->know_accomplice(*hostile_[1]);
  hostile_[1]->know_accomplice(*hostile_[0]);
  if (initial == InitialState::kSessions) connect_hostile();
  heap_before_ = heap_bytes();
}

FuzzSession::Side FuzzSession::open_side(uint64_t engine_id, uint32_t node) {
  Config config = fuzz_config(setting_);
  config.engine_id = engine_id;
  config.default_timeout = config.timeout_max = kTimeoutMax;
  config.drain_timeout = kDrain;
  config.peer_timeout = kPeerTimeout;
  config.lost_timeout = kLost;
  config.networks = {{.provider = "sim", .name = "sim"}};
  config.networks[0].devices = {sim::world_token(*world_, node)};
  Engine engine = *Engine::open(config, world_);
  Bytes bytes(2 * kSlots * kSlotBytes);
  test::fill(std::span(bytes).first(bytes.size() / 2), engine_id);
  MemoryRegion memory =
      *engine.register_memory({.address = bytes.data(), .size_bytes = bytes.size()});
  Counter counter = *engine.make_counter();
  return {{std::move(bytes), std::move(engine), std::move(memory)}, std::move(counter)};
}

void FuzzSession::run_for(Nanos time) {
  world_->world_driver.drive([] { return false; }, world_->wire.now_ns() + time.count());
}

void FuzzSession::connect_honest() {
  const auto connect_side = [](Side& side, const Side& to) {
    side.other.peer = *side.engine.connect(to.engine.address());
    side.other.region = *side.engine.import_region(side.other.peer, *to.memory.desc());
    side.listener = *side.engine.listen(kHonestChannel, side.received->notify());
  };
  connect_side(*honest_, *engine_);
  connect_side(*engine_, *honest_);
  honest_round();
  run_for((setting_.flags & Setting::kLossy) != 0 ? kTimeoutMax : 1ms);
  check_all(true);
}

void FuzzSession::connect_hostile() {
  peer_[0] = *engine_->engine.connect(control::encode(hostile_[0]->address()));
  hostile_[1]->hello();
  const auto turns = [&] {
    for (int i = 0; i < 4; ++i) {
      run_for(10us);
      for (const auto& hostile : hostile_) hostile->read(Answers::kAll);
    }
  };
  turns();
  for (const auto& hostile : hostile_) hostile->open_path();
  turns();
  for (uint32_t who = 0; who < 2; ++who) {
    const auto target = engine_->engine.import_region(peer_of(who), hostile_[who]->desc());
    if (target) target_[who] = *target;
  }
}

/// New memory for a hostile peer, as long as there is room.
void FuzzSession::share(uint32_t who) {
  Bytes bytes(kSharedBytes);
  auto memory =
      engine_->engine.register_memory({.address = bytes.data(), .size_bytes = bytes.size()});
  if (!memory) return;
  Bytes wire_rkey = control::decode_desc(*memory->desc())->networks.at(0).rail_keys.at(0);
  shared_[who].push_back(
      std::make_unique<Shared>(Shared{std::move(bytes), *std::move(memory), std::move(wire_rkey)}));
}

/// New memory with a grant for a hostile peer, as long as there is room and a session.
void FuzzSession::grant(uint32_t who) {
  if (granted_[who].size() == kGrantsMax) return;
  Bytes bytes(kSharedBytes);
  auto memory =
      engine_->engine.register_memory({.address = bytes.data(), .size_bytes = bytes.size()});
  if (!memory) return;
  const auto granted = memory->grant(peer_of(who));
  if (!granted) return;
  Bytes wire_rkey = control::decode_desc(granted->desc)->networks.at(0).rail_keys.at(0);
  granted_[who].push_back(std::make_unique<Granted>(
      Granted{std::move(bytes), *std::move(memory), granted->id, std::move(wire_rkey)}));
}

/// The session with a hostile peer, whichever side began it; the last one when there is none.
PeerId FuzzSession::peer_of(uint32_t who) {
  for (const PeerId id : engine_->engine.peers()) {
    if (id == engine_->other.peer) continue;
    const auto info = engine_->engine.peer_info(id);
    if (info && info->engine_id == hostile_[who]->address().engine_id) peer_[who] = id;
  }
  return peer_[who];
}

// ---- Actions ------------------------------------------------------------------------------------

void FuzzSession::act(const FuzzAction& action) {
  Hostile& hostile = *hostile_[action.who % 2];
  Hostile& other = *hostile_[1 - action.who % 2];
  switch (action.verb) {
    case Verb::kFrame:
      hostile.send_twisted(kFrameKinds[action.what % kFrameKinds.size()], action, other);
      if ((action.who & 2) != 0) run_for(5us);  // before anything else happens
      break;
    case Verb::kPass: {
      const uint32_t parts = 1 + action.n % 4u;
      for (uint32_t i = 0; i < parts; ++i) {
        run_for(1us * (1u << action.what % 20) / parts);
        hostile_[0]->read(action.twist);
        hostile_[1]->read(action.a);
      }
      break;
    }
    case Verb::kLocal:
      local(action);
      break;
    case Verb::kHonest:
      honest_round();
      break;
    case Verb::kWrite: {
      const uint32_t who = action.who % 2;
      const bool by_grant = (action.what & 4) != 0 && !granted_[who].empty();
      hostile.write(action,
                    by_grant ? granted_[who][action.n % granted_[who].size()]->wire_rkey
                             : shared_[who].back()->wire_rkey,
                    given_counters_[who].key());
      break;
    }
    case Verb::kReplay:
      hostile.replay(action, other);
      break;
    case Verb::kBecome:
      hostile.become(action, other);
      break;
    case Verb::kFault:
      fault(action);
      break;
  }
  check_all(false);
}

/// One write and one message each way.
void FuzzSession::honest_round() {
  if (rounds_ == kSlots) return;
  exchange(*honest_, *engine_);
  exchange(*engine_, *honest_);
  ++rounds_;
}

void FuzzSession::exchange(Side& from, Side& to) {
  const auto well = [this](const Event& event) {
    FABRIC_CHECK(event.code == Errc::kOk || closing_,
                 "an operation between the honest peers failed");
  };
  const uint64_t at = rounds_ * kSlotBytes;
  const bool written = honest_auditor_.offer(
      kTimeoutMax,
      [&](Notify notify) {
        return from.engine.submit(Write{.source = from.memory.at(at),
                                        .target = from.other.at(kSlots * kSlotBytes + at),
                                        .size_bytes = kSlotBytes,
                                        .imm = to.counter.key(),
                                        .timeout = kTimeoutMax,
                                        .notify = notify});
      },
      well);
  const bool sent = honest_auditor_.offer(
      kTimeoutMax,
      [&](Notify notify) {
        return from.engine.submit(Send{.peer = from.other.peer,
                                       .channel = kHonestChannel,
                                       .bytes = from.bytes(at, kSlotBytes),
                                       .timeout = kTimeoutMax,
                                       .notify = notify});
      },
      well);
  FABRIC_CHECK(written && sent, "no room for the honest exchange");
}

/// Only on links that the honest exchange does not use.
void FuzzSession::fault(const FuzzAction& action) {
  const uint32_t here = node_[0], there = node_[2 + action.who % 2];
  const sim::Fault faults[] = {sim::Fault::break_sender(here, there, 0),
                               sim::Fault::break_target(here, there, 0),
                               sim::Fault::break_sender(there, here, 0),
                               sim::Fault::break_target(there, here, 0),
                               sim::Fault::cut(here, there),
                               sim::Fault::heal(here, there),
                               sim::Fault::lose_acks(here, there),
                               sim::Fault::keep_acks(here, there),
                               sim::Fault::control_cut(here, there),
                               sim::Fault::control_heal(here, there)};
  const auto planned =
      world_->wire.plan(world_->wire.now_ns(), faults[action.what % std::size(faults)]);
  FABRIC_CHECK(planned.has_value());
}

// ---- Invariants ---------------------------------------------------------------------------------

void FuzzSession::check_bounds() const {
  const EngineStats stats = engine_->engine.stats();
  FABRIC_CHECK(stats.peers <= kPeersMax && stats.ops_in_flight <= kOpsMax);
  FABRIC_CHECK(stats.regions <= kRegionsMax && stats.counters <= kCountersMax);
  FABRIC_CHECK(heap_bytes() <= heap_before_ + kHeapMax || heap_before_ == 0,
               "the heap grows with what a peer sends");
}

void FuzzSession::check_snapshots() const {
  for (uint32_t who = 0; who < 2; ++who) {
    for (const auto& shared : shared_[who]) {
      if (!shared->snapshot) continue;
      const bool again = hostile_[who]->paths_started() != shared->paths_then;
      if (again && !shared->deregistered) continue;
      FABRIC_CHECK(shared->bytes == *shared->snapshot,
                   "written after the proof of a fence or deregistration");
    }
    for (const auto& granted : granted_[who]) {
      FABRIC_CHECK(!granted->snapshot || granted->bytes == *granted->snapshot,
                   "written under a grant after the proof of its revocation");
    }
  }
}

void FuzzSession::check_honest(const Side& from, const Side& to, bool idle) const {
  const uint64_t count = to.counter.count();
  FABRIC_CHECK(idle ? count == rounds_ : count <= rounds_,
               "counts without a write, or lost counts");
  const auto& messages = to.received->messages;
  FABRIC_CHECK(idle ? messages.size() == rounds_ : messages.size() <= rounds_);
  const auto out = from.bytes(0, kSlots * kSlotBytes);
  const auto in = to.bytes().subspan(kSlots * kSlotBytes);
  if (idle) {
    FABRIC_CHECK(std::memcmp(out.data(), in.data(), rounds_ * kSlotBytes) == 0);
    std::vector<Bytes> expected, arrived = messages;
    for (uint64_t i = 0; i < rounds_; ++i) {
      const auto slot = out.subspan(i * kSlotBytes, kSlotBytes);
      expected.emplace_back(slot.begin(), slot.end());
    }
    std::ranges::sort(expected);
    std::ranges::sort(arrived);
    FABRIC_CHECK(arrived == expected, "received a message twice, or one that was never sent");
  }
  FABRIC_CHECK(test::untouched(in.subspan(rounds_ * kSlotBytes)), "a write of another peer landed");
}

void FuzzSession::check_all(bool idle) const {
  check_bounds();
  check_snapshots();
  check_honest(*honest_, *engine_, idle);
  check_honest(*engine_, *honest_, idle);
  FABRIC_CHECK(secret_->count() == 0);
  for (uint32_t who = 0; who < given_counters_.size(); ++who) {
    FABRIC_CHECK(given_counters_[who].count() <= hostile_[who]->counted(),
                 "more counts than writes");
  }
}

void FuzzSession::finish() {
  Engine& engine = engine_->engine;
  if ((setting_.flags & Setting::kAbrupt) == 0) {
    for (const auto& hostile : hostile_) hostile->vanish();
    counters_.clear();
    small_listener_.reset();
    inbox_.reset();
    run_for(2 * kLost + kTimeoutMax + kDrain);
    auditor_.check_all_reported();
    honest_auditor_.check_all_reported();
    honest_round();
    run_for((setting_.flags & Setting::kLossy) != 0 ? kTimeoutMax : 1ms);
    check_all(true);
    FABRIC_CHECK(engine.peers() == std::vector<PeerId>{engine_->other.peer},
                 "a closed peer is still listed");
    const EngineStats stats = engine.stats();
    FABRIC_CHECK(stats.ops_in_flight == 0 && stats.peers == 1);
    FABRIC_CHECK(stats.counters == 2 + given_counters_.size(),
                 "names of closed peers are still held");
  }
  closing_ = true;
  const int64_t began = world_->wire.now_ns();
  const auto closed = engine.close();
  FABRIC_CHECK(closed.has_value(), "a peer prevents the engine from closing");
  FABRIC_CHECK(world_->wire.now_ns() - began <= (2 * kDrain).count());
  FABRIC_CHECK(engine.stats().ops_in_flight == 0);
  run_for(kLost + kDrain);
  // The honest peer has received the goodbye, and its own operations have completed as well.
  FABRIC_CHECK(honest_->engine.peers().empty() && honest_->engine.stats().ops_in_flight == 0);
  auditor_.check_all_reported();
  honest_auditor_.check_all_reported();
}

}  // namespace fabric::fuzz

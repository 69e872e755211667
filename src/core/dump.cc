#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include <fabric/version.h>

#include "core/core.h"
#include "core/registry.h"

// Statistics and dump(): what is in flight, which peer it waits for, and for how long. Read under
// one hold of the state lock, so that a dump is consistent.

namespace fabric {

const char* version() noexcept { return FABRIC_VERSION_STRING; }

std::vector<std::string> providers() {
  std::vector<std::string> names = core::built_providers();
  std::erase(names, "self");  // every engine has it and no Config may name it
  return names;
}

EngineStats Engine::stats() const {
  if (core_ == nullptr || core_->forked()) return {};
  return core_->stats();
}

std::vector<RailStats> Engine::rail_stats() const {
  std::vector<RailStats> out;
  if (core_ == nullptr || core_->forked()) return out;
  const core::StateGuard lock(core_->state_mutex);
  for (core::NetworkSlot& network : core_->networks) {
    for (core::RailSlot& rail : network.rails) {
      RailStats stats{.network = network.name,
                      .device = std::string(rail.rail->device()),
                      .index = rail.index,
                      .up = rail.up,
                      .caps = rail.caps,
                      .tx = rail.tx,
                      .rx = rail.rx,
                      .facts = rail.rail->facts()};
      stats.tx.posted = rail.inflight;
      for (const auto& path : core_->transfers.paths()) {
        if (path->state == core::Path::State::kFree) continue;
        if (path->network == rail.network && path->rail == rail.index) {
          stats.tx.queued += core_->transfers.queued_on(*path);
        }
      }
      out.push_back(std::move(stats));
    }
  }
  return out;
}

std::vector<PeerStats> Engine::peer_stats() const {
  std::vector<PeerStats> out;
  if (core_ == nullptr || core_->forked()) return out;
  const core::StateGuard lock(core_->state_mutex);
  core_->advance_clock(core_->driver->now_ns());
  const int64_t now = core_->now_ns;
  for (const core::Peer* peer : core_->peers.all()) {
    if (peer->state.load(std::memory_order_relaxed) >= PeerState::kLost) continue;
    PeerStats stats{.peer = peer->id(), .silent_for = Nanos(now - peer->last_received_ns)};
    if (peer->counts != nullptr) {
      stats.tx = peer->counts->tx;
      stats.rx = peer->counts->rx;
    }
    for (const auto& path : core_->transfers.paths()) {
      if (path->state == core::Path::State::kFree || path->peer != peer->slot) continue;
      stats.tx.posted += path->inflight;
      stats.tx.queued += core_->transfers.queued_on(*path);
    }
    out.push_back(std::move(stats));
  }
  return out;
}

std::string Engine::dump() const {
  if (core_ == nullptr || core_->forked()) return "engine: closed\n";
  return core_->dump_text();
}

std::string Engine::dump_json() const {
  if (core_ == nullptr || core_->forked()) return R"({"state":"closed"})";
  return core_->dump_json();
}

}  // namespace fabric

namespace fabric::core {

namespace {

std::string name_of(OpId id) { return fmt::format("{}.{}", id.slot, id.generation); }
std::string name_of(PeerId id) { return fmt::format("{}.{}", id.slot, id.generation); }

const char* op_state_name(OpState state) {
  switch (state) {
    case OpState::kFree:
      return "free";
    case OpState::kQueued:
      return "queued";
    case OpState::kRunning:
      return "running";
    case OpState::kDraining:
      return "draining";
    case OpState::kReporting:
      return "reporting";
  }
  return "?";
}

/// The peers that an operation still waits for.
std::vector<PeerId> waits_for(EngineCore& core, const Op& op) FABRIC_REQUIRES(state_lock) {
  std::vector<PeerId> out;
  const auto add = [&](PeerId id) {
    if (id && std::find(out.begin(), out.end(), id) == out.end()) out.push_back(id);
  };
  add(op.peer);
  core.transfers.each_peer_of(
      op, [&](uint32_t slot) FABRIC_REQUIRES(state_lock) { add(core.peers.at(slot)->id()); });
  return out;
}

const char* state_name(Path::State state) {
  switch (state) {
    case Path::State::kFree:
      return "free";
    case Path::State::kOpening:
      return "opening";
    case Path::State::kReady:
      return "ready";
    case Path::State::kClosing:
      return "closing";
    case Path::State::kBackingOff:
      return "backing off";
  }
  return "?";
}

/// The paths to a peer.
nlohmann::json paths_of(EngineCore& core, const Peer& peer) FABRIC_REQUIRES(state_lock) {
  nlohmann::json out = nlohmann::json::array();
  if (core.networks.empty()) return out;  // closed or dead: the paths went with the networks
  for (const auto& path : core.transfers.paths()) {
    if (path->state == Path::State::kFree || path->peer != peer.slot) continue;
    out.push_back({{"network", core.networks[path->network].name},
                   {"rail", path->rail},
                   {"remote_rail", path->remote_rail},
                   {"state", state_name(path->state)},
                   {"needs_probe", path->needs_probe},
                   {"failures", path->failures},
                   {"posted", path->inflight},
                   {"queued", core.transfers.queued_on(*path)}});
  }
  return out;
}

nlohmann::json protocol_object(const ProtocolCounters& counters) {
  nlohmann::json out;
  for (uint32_t i = 0; i < kProtocolEvents; ++i) {
    out[to_string(static_cast<ProtocolEvent>(i))] = counters.events[i];
  }
  for (uint32_t i = 0; i < ProtocolCounters::kMessages; ++i) {
    const char* name = control::to_string(static_cast<control::MessageType>(i));
    if (name[0] == '?') continue;
    out[fmt::format("sent {}", name)] = counters.sent[i];
    out[fmt::format("received {}", name)] = counters.received[i];
  }
  return out;
}

std::string duration(int64_t ns) {
  if (ns < 10'000) return fmt::format("{} ns", ns);
  if (ns < 10'000'000) return fmt::format("{} us", ns / 1'000);
  if (ns < 10'000'000'000) return fmt::format("{} ms", ns / 1'000'000);
  return fmt::format("{} s", ns / 1'000'000'000);
}

}  // namespace

void merge(Traffic& sum, const Traffic& one) noexcept {
  sum.ops += one.ops;
  sum.bytes += one.bytes;
  sum.failed += one.failed;
  sum.imms += one.imms;
  for (size_t i = 0; i < sum.submit_to_post.bucket.size(); ++i) {
    sum.submit_to_post.bucket[i] += one.submit_to_post.bucket[i];
    sum.post_to_done.bucket[i] += one.post_to_done.bucket[i];
  }
}

void EngineCore::drop_networks() {
  for (const NetworkSlot& network : networks) {
    for (const RailSlot& rail : network.rails) {
      merge(tx, rail.tx);
      merge(rx, rail.rx);
    }
  }
  networks.clear();
}

EngineStats EngineCore::stats() {
  const StateGuard lock(state_mutex);
  EngineStats out{.tx = tx, .rx = rx};
  for (const NetworkSlot& network : networks) {
    for (const RailSlot& rail : network.rails) {
      out.tx.posted += rail.inflight;
      merge(out.tx, rail.tx);
      merge(out.rx, rail.rx);
    }
  }
  for (uint32_t i = running_head; i != kNone; i = ops.at(i).running_next) {
    out.tx.queued += transfers.queued_parts(ops.at(i));
  }
  out.stale_imms = stale_imms;
  out.exhausted = exhausted.load(std::memory_order_relaxed);
  out.turns = turns;
  out.sleeps = sleeps.load(std::memory_order_relaxed);
  out.callbacks = callbacks_run.load(std::memory_order_relaxed);
  out.control_bad = control_bad;
  out.peers = peers.live_count();
  out.regions = regions.live();
  out.counters = counters.table.live_count();
  out.ops_in_flight = ops.in_flight();
  return out;
}

nlohmann::json EngineCore::dump_object() {
  const StateGuard lock(state_mutex);
  // Each in-flight write is shown on its own; without networks there are none.
  if (!networks.empty()) transfers.expand_all();
  advance_clock(driver->now_ns());
  const int64_t now = now_ns;
  nlohmann::json out{{"version", FABRIC_VERSION_STRING},
                     {"engine", engine_id},
                     {"incarnation", incarnation},
                     {"state", closed.load()    ? "closed"
                               : closing.load() ? "closing"
                                                : "open"},
                     {"ops_in_flight", ops.in_flight()},
                     {"networks", nlohmann::json::array()},
                     {"peers", nlohmann::json::array()},
                     {"ops", nlohmann::json::array()}};
  out["protocol_counters"] = protocol_object(protocol);
  out["held"] = {{"arena_bytes", arena.used()},
                 {"pending_fragments", transfers.pending_held()},
                 {"inflight_writes", transfers.inflight_held()},
                 {"broken_connections", transfers.broken_held()},
                 {"batches", reporter.batches.live()},
                 {"prepared_lists", page_lists.live() + write_lists.live()},
                 {"messages", peers.messages_held()},
                 {"callbacks", reporter.callbacks_held()}};
  for (const NetworkSlot& network : networks) {
    nlohmann::json rails = nlohmann::json::array();
    for (const RailSlot& rail : network.rails) {
      // An object even if it is empty: `{}` in an initializer list would become null.
      nlohmann::json facts = nlohmann::json::object();
      for (const auto& [name, value] : rail.rail->facts()) facts[name] = value;
      rails.push_back({{"device", rail.rail->device()},
                       {"up", rail.up},
                       {"posted", rail.inflight},
                       {"facts", std::move(facts)}});
    }
    out["networks"].push_back(
        {{"name", network.name}, {"provider", network.provider}, {"rails", rails}});
  }
  for (const Peer* peer : peers.all()) {
    const uint8_t route = peer->route[0][0];
    out["peers"].push_back(
        {{"peer", name_of(peer->id())},
         {"engine", peer->remote.engine_id},
         {"state", to_string(peer->state.load(std::memory_order_relaxed))},
         {"route", route == kNoNetwork || networks.empty() ? "" : networks[route].name},
         {"count_is_final", !networks.empty() && peers.count_is_final(*peer)},
         {"in_state_ns", now - peer->state_since_ns},
         {"silent_ns", now - peer->last_received_ns},
         {"unacknowledged", peer->channel->unacknowledged()},
         {"paths", paths_of(*this, *peer)}});
  }
  for (uint32_t i = running_head; i != kNone; i = ops.at(i).running_next) {
    const Op& op = ops.at(i);
    nlohmann::json waits = nlohmann::json::array();
    for (const PeerId id : waits_for(*this, op)) waits.push_back(name_of(id));
    out["ops"].push_back({{"op", name_of(op.id())},
                          {"kind", to_string(op.kind)},
                          {"state", op_state_name(op.state.load(std::memory_order_relaxed))},
                          {"age_ns", std::max<int64_t>(0, now - op.submitted_ns)},
                          {"remaining_ns", op.deadline_ns == kNeverNs ? -1 : op.deadline_ns - now},
                          {"parts", op.parts},
                          {"parts_completed", op.parts_completed},
                          {"posted", op.inflight},
                          {"queued", transfers.queued_parts(op)},
                          {"waits_for", waits}});
  }
  return out;
}

std::string EngineCore::dump_json() { return dump_object().dump(); }

std::string EngineCore::dump_text() {
  const nlohmann::json all = dump_object();
  std::string out =
      fmt::format("engine {} {}, {} operations in flight\n", all["engine"].get<uint64_t>(),
                  all["state"].get<std::string>(), all["ops_in_flight"].get<uint32_t>());
  for (const auto& network : all["networks"]) {
    out += fmt::format("network {}: {} rails", network["name"].get<std::string>(),
                       network["rails"].size());
    for (const auto& rail : network["rails"]) {
      out += fmt::format(", {} {} ({} posted)", rail["device"].get<std::string>(),
                         rail["up"].get<bool>() ? "up" : "down", rail["posted"].get<uint32_t>());
    }
    out += "\n";
    for (const auto& rail : network["rails"]) {
      if (rail["facts"].empty()) continue;
      out += "  " + rail["device"].get<std::string>() + ":";
      for (const auto& [name, value] : rail["facts"].items()) {
        out += fmt::format(" {}={}", name, value.get<std::string>());
      }
      out += "\n";
    }
  }
  for (const auto& peer : all["peers"]) {
    out += fmt::format(
        "peer {} {} for {} via {}{}, silent for {}, {} control messages unacknowledged\n",
        peer["peer"].get<std::string>(), peer["state"].get<std::string>(),
        duration(peer["in_state_ns"].get<int64_t>()), peer["route"].get<std::string>(),
        peer["count_is_final"].get<bool>() ? "" : " (counts not final)",
        duration(peer["silent_ns"].get<int64_t>()), peer["unacknowledged"].get<uint32_t>());
    for (const auto& path : peer["paths"]) {
      out +=
          fmt::format("  path via {} rail {} to rail {}: {}{}, {} failures, {} posted, {} queued\n",
                      path["network"].get<std::string>(), path["rail"].get<uint32_t>(),
                      path["remote_rail"].get<uint32_t>(), path["state"].get<std::string>(),
                      path["needs_probe"].get<bool>() ? ", needs a probe" : "",
                      path["failures"].get<uint32_t>(), path["posted"].get<uint32_t>(),
                      path["queued"].get<uint64_t>());
    }
  }
  for (const auto& op : all["ops"]) {
    const auto left = op["remaining_ns"].get<int64_t>();
    out += fmt::format("op {} {} {} for {}, {}: {} of {} parts completed, {} posted, {} queued",
                       op["op"].get<std::string>(), op["kind"].get<std::string>(),
                       op["state"].get<std::string>(), duration(op["age_ns"].get<int64_t>()),
                       left < 0 ? "no deadline" : duration(left) + " left",
                       op["parts_completed"].get<uint32_t>(), op["parts"].get<uint32_t>(),
                       op["posted"].get<uint32_t>(), op["queued"].get<uint64_t>());
    std::string waits;
    for (const auto& peer : op["waits_for"]) waits += " " + peer.get<std::string>();
    out += waits.empty() ? "\n" : ", waits for" + waits + "\n";
  }
  return out;
}

}  // namespace fabric::core

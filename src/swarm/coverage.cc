#include "swarm/coverage.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <fabric/fabric.h>
#include <fabric/sim.h>

#include "swarm/model.h"
#include "swarm/plan.h"

namespace fabric::swarm {

Coverage::Coverage() {
  for (uint32_t i = 0; i < sim::Fault::kKinds; ++i) {
    add("fault", sim::to_string(static_cast<sim::Fault::Kind>(i)), 0);
  }
  for (uint32_t i = 0; i < Action::kKinds; ++i)
    add("action", to_string(static_cast<Action::Kind>(i)), 0);
  for (uint32_t i = 0; i < PendingOp::kKinds; ++i) {
    add("completion", fmt::format("{} ok", to_string(static_cast<PendingOp::Kind>(i))), 0);
  }
  // Only transfers fail with a known or unknown delivery.
  for (uint32_t i = 0; i <= static_cast<uint32_t>(PendingOp::Kind::kSignal); ++i) {
    for (const Remote remote : {Remote::kNotDelivered, Remote::kUnknown}) {
      add("completion",
          fmt::format("{} {}", to_string(static_cast<PendingOp::Kind>(i)), to_string(remote)), 0);
    }
  }
  for (const Errc code :
       {Errc::kOk, Errc::kTimeout, Errc::kCancelled, Errc::kAborted, Errc::kReleased, Errc::kClosed,
        Errc::kUnsupported, Errc::kPeerLost, Errc::kRemoteAccess, Errc::kNotFound, Errc::kRailLost,
        Errc::kUnreachable, Errc::kTooLarge, Errc::kBusy}) {
    add("code", to_string(code), 0);
  }
  for (const Errc code :
       {Errc::kInvalidArgument, Errc::kOutOfBounds, Errc::kExhausted, Errc::kTooLarge,
        Errc::kBadFormat, Errc::kNotFound, Errc::kBusy, Errc::kPermission, Errc::kPeerLost,
        Errc::kVersion, Errc::kWouldDeadlock, Errc::kWrongJob}) {
    add("refusal", to_string(code), 0);
  }
  for (const EventKind kind : {EventKind::kPeer, EventKind::kRail, EventKind::kRoom,
                               EventKind::kFenceProved, EventKind::kUnhandled}) {
    add("event", to_string(kind), 0);
  }
  for (const PeerState state :
       {PeerState::kConnected, PeerState::kStalled, PeerState::kLost, PeerState::kFenced}) {
    add("peer", to_string(state), 0);
  }
  for (const char* how : {"callback", "inbox", "subscriber", "none"}) add("reported by", how, 0);
  for (const char* list : {"page list", "write list"}) add("prepared", list, 0);
  add("counter close", to_string(Quiescence::kProved), 0);
  add("counter close", to_string(Quiescence::kQuarantined), 0);
}

void Coverage::add(std::string_view section, std::string_view name, uint64_t times) {
  sections_[std::string(section)][std::string(name)] += times;
}

void Coverage::add_protocol_counters(const std::string& dump_json) {
  const auto dump = nlohmann::json::parse(dump_json);
  const auto counters = dump.find("protocol_counters");
  if (counters == dump.end()) return;
  for (const auto& [name, times] : counters->items())
    add("protocol counter", name, times.get<uint64_t>());
}

void Coverage::merge(const Coverage& other) {
  for (const auto& [section, names] : other.sections_) {
    for (const auto& [name, times] : names) add(section, name, times);
  }
}

std::vector<std::string> Coverage::missing() const {
  std::vector<std::string> out;
  for (const auto& [section, names] : sections_) {
    for (const auto& [name, times] : names) {
      if (times == 0) out.push_back(section + ": " + name);
    }
  }
  return out;
}

std::string Coverage::table() const {
  std::string out;
  for (const auto& [section, names] : sections_) {
    out += section + "\n";
    for (const auto& [name, times] : names) {
      if (times > 0) out += fmt::format("  {:<40} {:>12}\n", name, times);
    }
  }
  return out;
}

}  // namespace fabric::swarm

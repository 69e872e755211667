#include <array>

#include <fmt/format.h>

#include "swarm/model.h"
#include "swarm/plan.h"

namespace fabric::swarm {
namespace {

constexpr std::array<const char*, Action::kKinds> kActionNames = {
    "write",   "writes",  "paged write", "scatter", "signal",       "send",
    "timer",   "watch",   "expect",      "take",    "group wait",   "cancel",
    "wait",    "release", "fence",       "revoke",  "deregister",   "disconnect",
    "restart", "misuse",  "drop",        "disarm",  "listed writes"};
constexpr std::array<const char*, PendingOp::kKinds> kOpNames = {
    "write",   "paged write", "listed writes", "scatter",    "signal", "send",       "timer",
    "resolve", "fence",       "revoke",        "deregister", "expect", "group wait", "drop"};

std::string time_of(Nanos time) { return fmt::format("{:>12.6f} s", time.count() * 1e-9); }

/// Whether the action uses Action::other.
bool has_other(Action::Kind kind) {
  switch (kind) {
    case Action::Kind::kWrite:
    case Action::Kind::kWrites:
    case Action::Kind::kPaged:
    case Action::Kind::kSend:
    case Action::Kind::kFence:
    case Action::Kind::kDrop:
    case Action::Kind::kDisconnect:
    case Action::Kind::kMisuse:
    case Action::Kind::kListed:
      return true;
    default:
      return false;
  }
}

std::string describe(const Action& action) {
  std::string out =
      fmt::format("{}  node {}: {}", time_of(action.at), action.node, to_string(action.kind));
  if (has_other(action.kind)) out += fmt::format(", node {}", action.other);
  return out + fmt::format("  (seed {:x})\n", action.seed);
}

std::string describe(const PlannedFault& planned) {
  const sim::Fault& fault = planned.fault;
  std::string out = fmt::format("{}  FAULT {} at node {}", time_of(planned.at),
                                sim::to_string(fault.kind), fault.node);
  out += fmt::format(", other {}, network {}, ", fault.other, fault.network);
  out += fault.rail == sim::Fault::kAllRails ? "all rails" : fmt::format("rail {}", fault.rail);
  return out + fmt::format(", by {} us, for {} us\n", fault.time.count() / 1000,
                           planned.lasts.count() / 1000);
}

}  // namespace

const char* to_string(Action::Kind kind) noexcept {
  return kActionNames[static_cast<size_t>(kind)];
}
const char* to_string(PendingOp::Kind kind) noexcept { return kOpNames[static_cast<size_t>(kind)]; }

std::string describe(const Plan& plan) {
  std::string out = fmt::format(
      "seed {}: {} nodes, {} actions, {} faults, quiet after {}; control messages lost {:.3f}, "
      "duplicated {:.3f}, reordered {:.3f}{}{}\n",
      plan.seed, plan.nodes.size(), plan.actions.size(), plan.faults.size(),
      time_of(plan.quiet_after), plan.world.drop_control, plan.world.duplicate_control,
      plan.world.reorder_control, plan.grants ? ", granted memory" : "",
      plan.job_key ? ", job key" : "");
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    out += fmt::format("node {}{}{}:", i, plan.nodes[i].tight ? ", small queues" : "",
                       plan.nodes[i].reroute ? ", reroutes" : "");
    for (const sim::NodeNetwork& network : plan.nodes[i].networks) {
      const sim::NicModel& model = network.model;
      out += fmt::format(
          " {}: {} rails of {} Gb/s, {}{}{}, fence {}, {} + {} ns, depth {}/{}, at most {} bytes;",
          network.name, network.rails, model.gbit_per_s, model.ordered ? "ordered" : "unordered",
          model.exact_replay ? ", exact replay" : "", model.slice_safe ? ", slice-safe" : "",
          to_string(model.fence), model.latency.count(), model.jitter.count(), model.depth,
          model.path_depth, model.write_bytes_max);
    }
    out += "\n";
  }
  auto planned = plan.faults.begin();
  for (const Action& action : plan.actions) {
    while (planned != plan.faults.end() && planned->at <= action.at) out += describe(*planned++);
    out += describe(action);
  }
  while (planned != plan.faults.end()) out += describe(*planned++);
  return out;
}

}  // namespace fabric::swarm

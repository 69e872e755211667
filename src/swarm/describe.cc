#include <array>

#include <fmt/format.h>

#include "swarm/plan.h"
#include "swarm/model.h"

namespace fabric::swarm {
namespace {

constexpr std::array<const char*, Deed::kKinds> kDeeds = {
    "write", "writes",     "paged write", "scatter", "signal", "send", "alarm",
    "watch", "expect",     "take",        "round",   "cancel", "wait", "release",
    "fence", "deregister", "disconnect",  "restart", "misuse"};
constexpr std::array<const char*, Task::kKinds> kTasks = {
    "write",   "paged write", "scatter",    "signal", "send", "alarm",
    "resolve", "fence",       "deregister", "expect", "round"};

std::string time_of(Nanos time) { return fmt::format("{:>12.6f} s", time.count() * 1e-9); }

/// Whether the deed is about the other node at all.
bool has_other(Deed::Kind kind) {
  switch (kind) {
    case Deed::Kind::kWrite:
    case Deed::Kind::kWrites:
    case Deed::Kind::kPaged:
    case Deed::Kind::kSend:
    case Deed::Kind::kFence:
    case Deed::Kind::kDisconnect:
    case Deed::Kind::kMisuse:
      return true;
    default:
      return false;
  }
}

std::string tell(const Deed& deed) {
  std::string out =
      fmt::format("{}  node {}: {}", time_of(deed.at), deed.node, to_string(deed.kind));
  if (has_other(deed.kind)) out += fmt::format(", node {}", deed.other);
  return out + fmt::format("  (dice {:x})\n", deed.dice);
}

std::string tell(const Trouble& trouble) {
  const sim::Fault& fault = trouble.fault;
  std::string out = fmt::format("{}  FAULT {} at node {}", time_of(trouble.at),
                                sim::to_string(fault.kind), fault.node);
  out += fmt::format(", other {}, network {}, ", fault.other, fault.network);
  out += fault.rail == sim::Fault::kAllRails ? "all rails" : fmt::format("rail {}", fault.rail);
  return out + fmt::format(", by {} us, for {} us\n", fault.time.count() / 1000,
                           trouble.lasts.count() / 1000);
}

}  // namespace

const char* to_string(Deed::Kind kind) noexcept { return kDeeds[static_cast<size_t>(kind)]; }
const char* to_string(Task::Kind kind) noexcept { return kTasks[static_cast<size_t>(kind)]; }

std::string tell(const Story& story) {
  std::string out = fmt::format(
      "seed {}: {} nodes, {} deeds, {} faults, calm at {}; control lost {:.3f}, doubled {:.3f}, "
      "reordered {:.3f}{}{}\n",
      story.seed, story.nodes.size(), story.deeds.size(), story.troubles.size(),
      time_of(story.calm), story.world.drop_control, story.world.duplicate_control,
      story.world.reorder_control, story.grants ? ", granted memory" : "",
      story.job_key ? ", a job key" : "");
  for (size_t i = 0; i < story.nodes.size(); ++i) {
    out += fmt::format("node {}{}{}:", i, story.nodes[i].tight ? ", small queues" : "",
                       story.nodes[i].reroute ? ", reroutes" : "");
    for (const sim::NodeNetwork& network : story.nodes[i].networks) {
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
  auto trouble = story.troubles.begin();
  for (const Deed& deed : story.deeds) {
    while (trouble != story.troubles.end() && trouble->at <= deed.at) out += tell(*trouble++);
    out += tell(deed);
  }
  while (trouble != story.troubles.end()) out += tell(*trouble++);
  return out;
}

}  // namespace fabric::swarm

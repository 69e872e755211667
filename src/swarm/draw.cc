#include <algorithm>
#include <array>

#include "base/rng.h"
#include "swarm/plan.h"

namespace fabric::swarm {
namespace {

using namespace std::chrono_literals;
using Kind = Action::Kind;

/// Relative frequency of each kind of action.
constexpr std::array<uint32_t, Action::kKinds> kWeights = {30, 6, 14, 8, 5, 8, 3, 2, 12, 3, 3, 8,
                                                           2,  4, 2,  4, 2, 2, 1, 3, 2,  3, 10};

Nanos between(Rng& rng, Nanos low, Nanos high) {
  return Nanos(static_cast<int64_t>(
      rng.between(static_cast<uint64_t>(low.count()), static_cast<uint64_t>(high.count()))));
}

/// A preset, often modified: slower, so that more is in flight when something breaks, or with
/// another combination of capabilities.
sim::NicModel draw_model(Rng& rng, bool ordered) {
  sim::NicModel model = ordered ? sim::NicModel::connectx7() : sim::NicModel::efa_200g();
  if (rng.chance(0.5)) model.gbit_per_s = static_cast<double>(rng.between(1, 20));
  if (rng.chance(0.3)) model.latency = between(rng, 1us, 200us);
  if (rng.chance(0.3)) model.jitter = between(rng, 0us, 100us);
  if (rng.chance(0.2)) model.depth = static_cast<uint32_t>(rng.between(4, 64));
  if (rng.chance(0.2)) model.path_depth = static_cast<uint32_t>(rng.between(2, 16));
  if (rng.chance(0.1)) model.write_bytes_max = uint64_t{4096} << rng.below(4);
  if (ordered && rng.chance(0.1)) model.slice_safe = false;
  if (ordered && rng.chance(0.1)) model.exact_replay = false;
  if (rng.chance(0.1)) model.fence = FenceKind::kNone;
  return model;
}

/// All nodes have the same networks; the number of rails may differ between nodes.
std::vector<NodePlan> draw_nodes(Rng& rng) {
  const uint64_t count = rng.chance(0.05) ? rng.between(6, 8) : rng.between(2, 4);
  std::vector<sim::NodeNetwork> networks(rng.chance(0.2) ? 2 : 1);
  for (size_t i = 0; i < networks.size(); ++i) {
    networks[i].name = i == 0 ? "red" : "blue";
    networks[i].model = draw_model(rng, rng.chance(0.6));
    networks[i].rails = static_cast<uint32_t>(rng.chance(0.1) ? 8 : rng.between(1, 4));
  }
  const bool uneven = rng.chance(0.2);
  const bool reroute = networks.size() > 1 && rng.chance(0.7);
  std::vector<NodePlan> nodes(count);
  for (NodePlan& node : nodes) {
    node.networks = networks;
    node.tight = rng.chance(0.15);
    node.reroute = reroute;
    for (sim::NodeNetwork& network : node.networks) {
      if (uneven) network.rails = static_cast<uint32_t>(rng.between(1, 4));
    }
  }
  return nodes;
}

Kind draw_kind(Rng& rng) {
  uint32_t sum = 0;
  for (const uint32_t weight : kWeights) sum += weight;
  auto left = static_cast<uint32_t>(rng.below(sum));
  uint32_t kind = 0;
  while (left >= kWeights[kind]) left -= kWeights[kind++];
  return static_cast<Kind>(kind);
}

/// Bursts of actions with pauses in between.
std::vector<Action> draw_actions(Rng& rng, uint32_t nodes, Nanos quiet_after) {
  std::vector<Action> actions(rng.between(20, 300));
  const Nanos spacing_max =
      std::max<Nanos>(1us, quiet_after / static_cast<int64_t>(rng.between(1, 1000)));
  Nanos at{};
  for (Action& action : actions) {
    if (rng.chance(0.1)) at = between(rng, 0ns, quiet_after);
    at = std::min(quiet_after, at + between(rng, 0ns, spacing_max));
    action.at = at;
    action.kind = draw_kind(rng);
    action.node = static_cast<uint32_t>(rng.below(nodes));
    action.other = static_cast<uint32_t>(rng.below(nodes));
    // A few writes go to the node itself, which takes no network.
    if (action.other == action.node && !rng.chance(0.2)) action.other = (action.node + 1) % nodes;
    action.seed = rng.next();
  }
  std::ranges::stable_sort(actions, {}, &Action::at);
  return actions;
}

/// Faults that silence a peer or its paths; drawn to last longer than the timeouts.
constexpr sim::Fault::Kind kSilences[] = {
    sim::Fault::Kind::kStop,    sim::Fault::Kind::kCut,       sim::Fault::Kind::kControlCut,
    sim::Fault::Kind::kNicDown, sim::Fault::Kind::kCrash,     sim::Fault::Kind::kLoseAcks,
    sim::Fault::Kind::kOverrun, sim::Fault::Kind::kLateProof, sim::Fault::Kind::kReceiverNotReady,
};

/// A few kinds in each plan, each several times: repetition reaches states that a uniform draw over
/// all kinds does not.
std::vector<PlannedFault> draw_faults(Rng& rng, const Plan& plan, bool silent) {
  std::vector<sim::Fault::Kind> kinds;
  for (uint64_t left = rng.between(1, 6); left > 0; --left) {
    kinds.push_back(silent ? kSilences[rng.below(std::size(kSilences))]
                           : static_cast<sim::Fault::Kind>(rng.below(sim::Fault::kKinds)));
  }
  const auto count = static_cast<uint32_t>(plan.nodes.size());
  const Nanos longest = plan.quiet_after / static_cast<int64_t>(silent ? 1 : rng.between(1, 8));
  std::vector<PlannedFault> faults(rng.chance(0.1) ? 0 : rng.between(1, 16));
  for (PlannedFault& planned : faults) {
    planned.at = between(rng, 0ns, plan.quiet_after * 3 / 4);
    planned.lasts = std::min(between(rng, silent ? longest / 4 : Nanos(1us), longest),
                             plan.quiet_after - planned.at);
    sim::Fault& fault = planned.fault;
    fault.kind = kinds[rng.below(kinds.size())];
    fault.node = static_cast<uint32_t>(rng.below(count));
    fault.other = static_cast<uint32_t>((fault.node + rng.between(1, count - 1)) % count);
    const auto& networks = plan.nodes[fault.node].networks;
    fault.network = static_cast<uint32_t>(rng.below(networks.size()));
    fault.rail = static_cast<uint32_t>(rng.below(networks[fault.network].rails));
    if (rng.chance(0.25)) fault.rail = sim::Fault::kAllRails;
    fault.time = between(rng, 1us, 1ms);
    if (fault.kind == sim::Fault::Kind::kSwallowCounts) fault.time = planned.lasts / 2;
  }
  std::ranges::stable_sort(faults, {}, &PlannedFault::at);
  return faults;
}

}  // namespace

Plan draw_plan(uint64_t seed) {
  Rng rng(seed);
  Plan plan{.seed = seed, .world = {.seed = seed}};
  if (rng.chance(0.5)) plan.world.drop_control = 0.3 / static_cast<double>(rng.between(1, 30));
  if (rng.chance(0.5)) plan.world.duplicate_control = 0.1;
  if (rng.chance(0.5)) plan.world.reorder_control = 0.2;
  plan.grants = rng.chance(0.4);
  plan.job_key = rng.chance(0.3);
  plan.nodes = draw_nodes(rng);
  const bool silent = rng.chance(0.2);
  plan.quiet_after =
      silent ? between(rng, 1s, 4s) : between(rng, 1ms, 1ms * (int64_t{1} << rng.between(1, 11)));
  plan.actions = draw_actions(rng, static_cast<uint32_t>(plan.nodes.size()), plan.quiet_after);
  plan.faults = draw_faults(rng, plan, silent);
  return plan;
}

}  // namespace fabric::swarm

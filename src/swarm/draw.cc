#include <algorithm>
#include <array>

#include "base/rng.h"
#include "swarm/plan.h"

namespace fabric::swarm {
namespace {

using namespace std::chrono_literals;
using Kind = Deed::Kind;

/// How often each deed is done, among all of them.
constexpr std::array<uint32_t, Deed::kKinds> kWeights = {30, 6, 14, 8, 5, 8, 3, 2, 12, 3,
                                                         3,  8, 2,  4, 2, 2, 2, 1, 3};

Nanos between(Rng& dice, Nanos low, Nanos high) {
  return Nanos(static_cast<int64_t>(
      dice.between(static_cast<uint64_t>(low.count()), static_cast<uint64_t>(high.count()))));
}

/// Presets, and NICs that no preset is like: slow ones, on which much is under way when something
/// breaks, and mixtures of what a network can promise.
sim::NicModel draw_model(Rng& dice, bool ordered) {
  sim::NicModel model = ordered ? sim::NicModel::connectx7() : sim::NicModel::efa_200g();
  if (dice.chance(0.5)) model.gbit_per_s = static_cast<double>(dice.between(1, 20));
  if (dice.chance(0.3)) model.latency = between(dice, 1us, 200us);
  if (dice.chance(0.3)) model.jitter = between(dice, 0us, 100us);
  if (dice.chance(0.2)) model.depth = static_cast<uint32_t>(dice.between(4, 64));
  if (dice.chance(0.2)) model.path_depth = static_cast<uint32_t>(dice.between(2, 16));
  if (dice.chance(0.1)) model.write_bytes_max = uint64_t{4096} << dice.below(4);
  if (ordered && dice.chance(0.1)) model.slice_safe = false;
  if (ordered && dice.chance(0.1)) model.exact_replay = false;
  if (dice.chance(0.1)) model.fence = FenceKind::kNone;
  return model;
}

/// Everybody has the same networks; the number of rails may differ from node to node.
std::vector<NodePlan> draw_nodes(Rng& dice) {
  const uint64_t count = dice.chance(0.05) ? dice.between(6, 8) : dice.between(2, 4);
  std::vector<sim::NodeNetwork> networks(dice.chance(0.2) ? 2 : 1);
  for (size_t i = 0; i < networks.size(); ++i) {
    networks[i].name = i == 0 ? "red" : "blue";
    networks[i].model = draw_model(dice, dice.chance(0.6));
    networks[i].rails = static_cast<uint32_t>(dice.chance(0.1) ? 8 : dice.between(1, 4));
  }
  const bool uneven = dice.chance(0.2);
  const bool reroute = networks.size() > 1 && dice.chance(0.7);
  std::vector<NodePlan> nodes(count);
  for (NodePlan& node : nodes) {
    node.networks = networks;
    node.tight = dice.chance(0.15);
    node.reroute = reroute;
    for (sim::NodeNetwork& network : node.networks) {
      if (uneven) network.rails = static_cast<uint32_t>(dice.between(1, 4));
    }
  }
  return nodes;
}

Kind draw_kind(Rng& dice) {
  uint32_t sum = 0;
  for (const uint32_t weight : kWeights) sum += weight;
  auto left = static_cast<uint32_t>(dice.below(sum));
  uint32_t kind = 0;
  while (left >= kWeights[kind]) left -= kWeights[kind++];
  return static_cast<Kind>(kind);
}

/// Crowds of deeds, and pauses in between.
std::vector<Deed> draw_deeds(Rng& dice, uint32_t nodes, Nanos calm) {
  std::vector<Deed> deeds(dice.between(20, 300));
  const Nanos crowd = std::max<Nanos>(1us, calm / static_cast<int64_t>(dice.between(1, 1000)));
  Nanos at{};
  for (Deed& deed : deeds) {
    if (dice.chance(0.1)) at = between(dice, 0ns, calm);
    at = std::min(calm, at + between(dice, 0ns, crowd));
    deed.at = at;
    deed.kind = draw_kind(dice);
    deed.node = static_cast<uint32_t>(dice.below(nodes));
    deed.other = static_cast<uint32_t>(dice.below(nodes));
    // Now and then a node writes to itself, which is served without a network.
    if (deed.other == deed.node && !dice.chance(0.2)) deed.other = (deed.node + 1) % nodes;
    deed.dice = dice.next();
  }
  std::ranges::stable_sort(deeds, {}, &Deed::at);
  return deeds;
}

/// What takes a peer or its paths away for longer than anybody is patient.
constexpr sim::Fault::Kind kSilences[] = {
    sim::Fault::Kind::kStop,    sim::Fault::Kind::kCut,       sim::Fault::Kind::kControlCut,
    sim::Fault::Kind::kNicDown, sim::Fault::Kind::kCrash,     sim::Fault::Kind::kLoseAcks,
    sim::Fault::Kind::kOverrun, sim::Fault::Kind::kLateProof, sim::Fault::Kind::kReceiverNotReady,
};

/// A few kinds in a world, each more than once: together they get further than all at random.
std::vector<Trouble> draw_troubles(Rng& dice, const Story& story, bool silent) {
  std::vector<sim::Fault::Kind> kinds;
  for (uint64_t left = dice.between(1, 6); left > 0; --left) {
    kinds.push_back(silent ? kSilences[dice.below(std::size(kSilences))]
                           : static_cast<sim::Fault::Kind>(dice.below(sim::Fault::kKinds)));
  }
  const auto count = static_cast<uint32_t>(story.nodes.size());
  const Nanos longest = story.calm / static_cast<int64_t>(silent ? 1 : dice.between(1, 8));
  std::vector<Trouble> troubles(dice.chance(0.1) ? 0 : dice.between(1, 16));
  for (Trouble& trouble : troubles) {
    trouble.at = between(dice, 0ns, story.calm * 3 / 4);
    trouble.lasts = std::min(between(dice, silent ? longest / 4 : Nanos(1us), longest),
                             story.calm - trouble.at);
    sim::Fault& fault = trouble.fault;
    fault.kind = kinds[dice.below(kinds.size())];
    fault.node = static_cast<uint32_t>(dice.below(count));
    fault.other = static_cast<uint32_t>((fault.node + dice.between(1, count - 1)) % count);
    const auto& networks = story.nodes[fault.node].networks;
    fault.network = static_cast<uint32_t>(dice.below(networks.size()));
    fault.rail = static_cast<uint32_t>(dice.below(networks[fault.network].rails));
    if (dice.chance(0.25)) fault.rail = sim::Fault::kAllRails;
    fault.time = between(dice, 1us, 1ms);
    if (fault.kind == sim::Fault::Kind::kSwallowCounts) fault.time = trouble.lasts / 2;
  }
  std::ranges::stable_sort(troubles, {}, &Trouble::at);
  return troubles;
}

}  // namespace

Story draw_story(uint64_t seed) {
  Rng dice(seed);
  Story story{.seed = seed, .world = {.seed = seed}};
  if (dice.chance(0.5)) story.world.drop_control = 0.3 / static_cast<double>(dice.between(1, 30));
  if (dice.chance(0.5)) story.world.duplicate_control = 0.1;
  if (dice.chance(0.5)) story.world.reorder_control = 0.2;
  story.grants = dice.chance(0.4);
  story.job_key = dice.chance(0.3);
  story.nodes = draw_nodes(dice);
  const bool silent = dice.chance(0.2);
  story.calm = silent ? between(dice, 1s, 4s)
                      : between(dice, 1ms, 1ms * (int64_t{1} << dice.between(1, 11)));
  story.deeds = draw_deeds(dice, static_cast<uint32_t>(story.nodes.size()), story.calm);
  story.troubles = draw_troubles(dice, story, silent);
  return story;
}

}  // namespace fabric::swarm

#include "topology/distance.h"

#include <algorithm>

namespace fabric::topology {

namespace {

/// By the firmware's table; UINT32_MAX: it does not say.
uint32_t distance_of_nodes(const Machine& machine, uint32_t from, uint32_t to) {
  const auto at = [&](uint32_t id) {
    return std::find_if(machine.numa_nodes.begin(), machine.numa_nodes.end(),
                        [id](const NumaNode& node) { return node.id == id; });
  };
  const auto row = at(from), column = at(to);
  if (row == machine.numa_nodes.end() || column == machine.numa_nodes.end()) return UINT32_MAX;
  if (row->distances.empty()) return UINT32_MAX;
  return row->distances[static_cast<size_t>(column - machine.numa_nodes.begin())];
}

}  // namespace

const char* to_string(Distance distance) noexcept {
  switch (distance) {
    case Distance::kSelf:
      return "the device itself";
    case Distance::kSwitch:
      return "same PCI switch";
    case Distance::kRootPort:
      return "same root port";
    case Distance::kHostBridge:
      return "same host bridge";
    case Distance::kNuma:
      return "same NUMA node";
    case Distance::kOtherNuma:
      return "other NUMA node";
    case Distance::kUnknown:
      break;
  }
  return "distance unknown";
}

Closeness closeness(const Machine& machine, std::span<const uint32_t> nodes,
                    const PciLocation& nic) {
  const auto node = numa_of(machine, nic);
  if (!node || nodes.empty()) return {};
  Closeness nearest{.distance = Distance::kOtherNuma, .numa_distance = UINT32_MAX};
  for (const uint32_t from : nodes) {
    if (from == *node) return {.distance = Distance::kNuma};
    nearest.numa_distance =
        std::min(nearest.numa_distance, distance_of_nodes(machine, from, *node));
  }
  return nearest;
}

Closeness closeness(const Machine& machine, const PciLocation& from, const PciLocation& nic) {
  const auto [end, other] =
      std::mismatch(from.path.begin(), from.path.end(), nic.path.begin(), nic.path.end());
  const auto common = static_cast<uint32_t>(end - from.path.begin());
  if (end == from.path.end() && other == nic.path.end()) return {.distance = Distance::kSelf};
  // The path begins with the host bridge and its root port; what follows are ports of switches.
  if (common > 2) return {.distance = Distance::kSwitch, .common = common};
  if (common == 2) return {.distance = Distance::kRootPort, .common = common};
  const auto here = numa_of(machine, from);
  const Closeness by_node = here ? closeness(machine, std::span(&*here, 1), nic) : Closeness{};
  // A virtual machine may put devices of several NUMA nodes on one host bridge.
  if (common == 1 && by_node.distance != Distance::kOtherNuma) {
    return {.distance = Distance::kHostBridge, .common = common};
  }
  return by_node;
}

}  // namespace fabric::topology

#include "machine.h"

#include <hwloc.h>

#include <algorithm>
#include <memory>

#include <fmt/format.h>

namespace fabric::tool {
namespace {

struct Destroy {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, Destroy>;

std::string pci_of(const hwloc_obj* pci) {
  const auto& at = pci->attr->pcidev;
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", at.domain, at.bus, at.dev, at.func);
}

uint32_t count(hwloc_topology* topology, hwloc_obj_type_t type) {
  return static_cast<uint32_t>(std::max(0, hwloc_get_nbobjs_by_type(topology, type)));
}

void add_hwloc(Machine& machine) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) {
    machine.problem = "hwloc_topology_init() failed";
    return;
  }
  const Topology topology(raw);
  if (hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_ALL) != 0 ||
      hwloc_topology_load(raw) != 0) {
    machine.problem = "hwloc_topology_load() failed";
    return;
  }
  machine.cpus = {.packages = count(raw, HWLOC_OBJ_PACKAGE),
                  .cores = count(raw, HWLOC_OBJ_CORE),
                  .threads = count(raw, HWLOC_OBJ_PU)};
  for (hwloc_obj* at = nullptr; (at = hwloc_get_next_pcidev(raw, at)) != nullptr;) {
    const char* name = hwloc_obj_get_info_by_name(at, "PCIDevice");
    if (name != nullptr) machine.pci_names[pci_of(at)] = name;
  }
}

}  // namespace

Machine find_machine(const std::string& sysfs_root) {
  Machine machine{
      .devices = topology::read_machine(sysfs_root.empty() ? topology::sysfs_root() : sysfs_root)};
  if (sysfs_root.empty()) add_hwloc(machine);
  return machine;
}

std::vector<NearGpu> gpus_near(const Machine& machine, const topology::Nic& nic) {
  std::vector<std::pair<topology::Closeness, NearGpu>> gpus;
  if (!nic.pci) return {};
  for (const topology::Gpu& gpu : machine.devices.gpus) {
    const auto close = closeness(machine.devices, gpu.pci, *nic.pci);
    gpus.push_back({close, {to_string(gpu.pci.address), close.distance}});
  }
  std::stable_sort(gpus.begin(), gpus.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<NearGpu> out;
  for (auto& [close, gpu] : gpus) out.push_back(std::move(gpu));
  return out;
}

}  // namespace fabric::tool

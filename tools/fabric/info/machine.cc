#include "machine.h"

#include <hwloc.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <memory>

#include <fmt/format.h>

namespace fabric::tool {

const char* to_string(Nearness nearness) {
  switch (nearness) {
    case Nearness::kSwitch:
      return "same PCI switch";
    case Nearness::kNuma:
      return "same NUMA node";
    case Nearness::kPackage:
      return "same package";
    case Nearness::kFar:
      break;
  }
  return "another package";
}

namespace {

struct Destroy {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, Destroy>;

std::string line_of(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

/// The number that a line starts with, if it is positive: drivers report -1 for "unknown".
std::optional<double> leading_number(const std::string& line) {
  double value = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (error != std::errc{} || end == line.data() || value <= 0) return std::nullopt;
  return value;
}

void read_sysfs(Nic& nic) {
  if (nic.rdma) {
    const std::string port = "/sys/class/infiniband/" + nic.name + "/ports/1/";
    nic.gbit = leading_number(line_of(port + "rate"));  // "100 Gb/sec (4X EDR)"
    nic.state = line_of(port + "state");                // "4: ACTIVE"
    if (const size_t colon = nic.state.find(": "); colon != std::string::npos) {
      nic.state.erase(0, colon + 2);
    }
    return;
  }
  const std::string device = "/sys/class/net/" + nic.name + "/";
  if (const auto mbit = leading_number(line_of(device + "speed"))) nic.gbit = *mbit / 1000;
  nic.state = line_of(device + "operstate");
}

std::string pci_of(const hwloc_obj* pci) {
  const auto& at = pci->attr->pcidev;
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", at.domain, at.bus, at.dev, at.func);
}

const hwloc_obj* pci_above(const hwloc_obj* object) {
  while (object != nullptr && object->type != HWLOC_OBJ_PCI_DEVICE) object = object->parent;
  return object;
}

/// The package, NUMA node or machine that a device is attached to.
const hwloc_obj* locality_of(hwloc_topology* topology, const hwloc_obj* device) {
  return hwloc_get_non_io_ancestor_obj(topology, const_cast<hwloc_obj*>(device));
}

std::optional<uint32_t> numa_of(hwloc_topology* topology, const hwloc_obj* device) {
  const hwloc_obj* locality = locality_of(topology, device);
  if (locality == nullptr || locality->nodeset == nullptr) return std::nullopt;
  if (hwloc_bitmap_weight(locality->nodeset) != 1) return std::nullopt;
  return static_cast<uint32_t>(hwloc_bitmap_first(locality->nodeset));
}

const hwloc_obj* package_of(hwloc_topology* topology, const hwloc_obj* device) {
  const hwloc_obj* locality = locality_of(topology, device);
  while (locality != nullptr && locality->type != HWLOC_OBJ_PACKAGE) locality = locality->parent;
  return locality;
}

/// Whether both are below one PCI switch: a bridge that is not the host bridge.
bool share_switch(const hwloc_obj* one, const hwloc_obj* other) {
  for (const hwloc_obj* a = one->parent; a != nullptr; a = a->parent) {
    if (a->type != HWLOC_OBJ_BRIDGE) return false;
    if (a->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_HOST) return false;
    for (const hwloc_obj* b = other->parent; b != nullptr; b = b->parent) {
      if (a == b) return true;
    }
  }
  return false;
}

Nearness nearness_of(hwloc_topology* topology, const hwloc_obj* nic, const hwloc_obj* gpu) {
  if (share_switch(nic, gpu)) return Nearness::kSwitch;
  const auto here = numa_of(topology, nic), there = numa_of(topology, gpu);
  if (here && here == there) return Nearness::kNuma;
  const hwloc_obj* package = package_of(topology, nic);
  if (package != nullptr && package == package_of(topology, gpu)) return Nearness::kPackage;
  return Nearness::kFar;
}

/// PCI devices of the classes "display" and "processing accelerator".
std::vector<const hwloc_obj*> gpus_of(hwloc_topology* topology) {
  constexpr uint32_t kDisplay = 0x03, kAccelerator = 0x12;
  std::vector<const hwloc_obj*> out;
  for (hwloc_obj* at = nullptr; (at = hwloc_get_next_pcidev(topology, at)) != nullptr;) {
    const uint32_t kind = at->attr->pcidev.class_id >> 8;
    if (kind == kDisplay || kind == kAccelerator) out.push_back(at);
  }
  return out;
}

Nic nic_of(hwloc_topology* topology, const hwloc_obj* device,
           const std::vector<const hwloc_obj*>& gpus) {
  Nic nic{.name = device->name,
          .rdma = device->attr->osdev.type == HWLOC_OBJ_OSDEV_OPENFABRICS,
          .numa = numa_of(topology, device)};
  read_sysfs(nic);
  const hwloc_obj* pci = pci_above(device);
  if (pci == nullptr) return nic;
  nic.pci = pci_of(pci);
  for (const hwloc_obj* gpu : gpus) {
    nic.gpus.push_back({pci_of(gpu), nearness_of(topology, pci, gpu)});
  }
  std::stable_sort(nic.gpus.begin(), nic.gpus.end(),
                   [](const NearGpu& a, const NearGpu& b) { return a.nearness < b.nearness; });
  return nic;
}

uint32_t count(hwloc_topology* topology, hwloc_obj_type_t type) {
  return static_cast<uint32_t>(std::max(0, hwloc_get_nbobjs_by_type(topology, type)));
}

}  // namespace

Machine find_machine() {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return {.problem = "hwloc_topology_init() failed"};
  const Topology topology(raw);
  if (hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_ALL) != 0 ||
      hwloc_topology_load(raw) != 0) {
    return {.problem = "hwloc_topology_load() failed"};
  }
  Machine machine{.packages = count(raw, HWLOC_OBJ_PACKAGE),
                  .numa_nodes = count(raw, HWLOC_OBJ_NUMANODE),
                  .cores = count(raw, HWLOC_OBJ_CORE),
                  .threads = count(raw, HWLOC_OBJ_PU)};
  const auto gpus = gpus_of(raw);
  for (const hwloc_obj* gpu : gpus) {
    const char* name = hwloc_obj_get_info_by_name(const_cast<hwloc_obj*>(gpu), "PCIDevice");
    machine.gpus.push_back({pci_of(gpu), name == nullptr ? "" : name, numa_of(raw, gpu)});
  }
  for (hwloc_obj* at = nullptr; (at = hwloc_get_next_osdev(raw, at)) != nullptr;) {
    const hwloc_obj_osdev_type_t type = at->attr->osdev.type;
    if (type == HWLOC_OBJ_OSDEV_NETWORK || type == HWLOC_OBJ_OSDEV_OPENFABRICS) {
      machine.nics.push_back(nic_of(raw, at, gpus));
    }
  }
  return machine;
}

}  // namespace fabric::tool

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "topology/distance.h"
#include "topology/machine.h"

namespace fabric::tool {

struct CpuCounts {
  uint32_t packages = 0, cores = 0, threads = 0;
};

/// NICs, GPUs and NUMA nodes as an engine sees them (src/topology), and what hwloc adds: CPUs, and
/// the names of PCI devices.
struct Machine {
  topology::Machine devices{};
  std::optional<CpuCounts> cpus{};                 ///< none for a recorded sysfs tree
  std::map<std::string, std::string> pci_names{};  ///< by PCI address
  std::string problem{};                           ///< why it is incomplete; empty: it is complete
};

/// `sysfs_root`: of a recorded tree; empty: this machine.
Machine find_machine(const std::string& sysfs_root);

struct NearGpu {
  std::string pci{};
  topology::Distance distance = topology::Distance::kUnknown;
};

/// The GPUs by their distance to a NIC, closest first.
std::vector<NearGpu> gpus_near(const Machine& machine, const topology::Nic& nic);

}  // namespace fabric::tool

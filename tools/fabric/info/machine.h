#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fabric::tool {

/// How close a GPU is to a NIC, closest first.
enum class Nearness : uint8_t { kSwitch, kNuma, kPackage, kFar };

const char* to_string(Nearness nearness);

struct NearGpu {
  std::string pci{};
  Nearness nearness = Nearness::kFar;
};

struct Nic {
  std::string name{};
  bool rdma = false;  ///< an RDMA device; else a network interface
  std::string pci{};
  std::string state{};             ///< as sysfs names it; empty: unknown
  std::optional<double> gbit{};    ///< Gbit/s; unknown if the port is down or virtual
  std::optional<uint32_t> numa{};  ///< none if it is not local to one node
  std::vector<NearGpu> gpus{};     ///< closest first
};

struct Gpu {
  std::string pci{};
  std::string name{};
  std::optional<uint32_t> numa{};
};

/// The topology as hwloc and sysfs describe it. HWLOC_XMLFILE loads that of another machine.
struct Machine {
  uint32_t packages = 0, numa_nodes = 0, cores = 0, threads = 0;
  std::vector<Nic> nics{};
  std::vector<Gpu> gpus{};
  std::string problem{};  ///< why the topology is incomplete; empty: it is complete
};

Machine find_machine();

}  // namespace fabric::tool

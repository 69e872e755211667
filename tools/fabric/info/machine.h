#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fabric::tool {

/// How near a GPU is to a NIC, the best first.
enum class Nearness : uint8_t { kSwitch, kNuma, kPackage, kFar };

const char* to_string(Nearness nearness);

struct NearGpu {
  std::string pci{};
  Nearness nearness = Nearness::kFar;
};

struct Nic {
  std::string name{};
  bool rdma = false;  ///< an RDMA device of the kernel; else a network interface
  std::string pci{};
  std::string state{};             ///< in the kernel's word; empty: unknown
  std::optional<double> gbit{};    ///< per second; unknown when it is down, or virtual
  std::optional<uint32_t> numa{};  ///< the only node that is near; none when all are
  std::vector<NearGpu> gpus{};     ///< the nearest first
};

struct Gpu {
  std::string pci{};
  std::string name{};
  std::optional<uint32_t> numa{};
};

/// What hwloc and sysfs know of the devices. HWLOC_XMLFILE shows another machine's, for tests.
struct Machine {
  uint32_t packages = 0, numa_nodes = 0, cores = 0, threads = 0;
  std::vector<Nic> nics{};
  std::vector<Gpu> gpus{};
  std::string problem{};  ///< why there is less than there should be
};

Machine find_machine();

}  // namespace fabric::tool

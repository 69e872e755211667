#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "topology/pci_address.h"

// What sysfs says of NICs, GPUs and NUMA nodes. Plain data; reading it takes some milliseconds and
// is for open() and tools only.

namespace fabric::topology {

/// Where a device is in the PCIe tree.
struct PciLocation {
  PciAddress address{};
  /// Host bridge, root port, ports of switches and the device itself, as /sys/devices nests them:
  /// "pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0", "0000:18:00.0".
  std::vector<std::string> path{};
  std::optional<uint32_t> numa{};  ///< none: the kernel does not know
};

/// An RDMA device or a network interface.
struct Nic {
  std::string name{};
  bool rdma = false;
  std::optional<PciLocation> pci{};  ///< none: it is not a PCI device, or sysfs is broken
  std::string state{};               ///< as sysfs names it; of an RDMA device, of port 1
  std::optional<double> gbit{};      ///< Gbit/s; none if the port is down or virtual
  bool active = true;  ///< false: an RDMA device whose ports are known and none is active
};

enum class GpuVendor : uint8_t { kNvidia, kAmd };

struct Gpu {
  PciLocation pci{};
  GpuVendor vendor = GpuVendor::kNvidia;
};

struct NumaNode {
  uint32_t id = 0;
  std::vector<std::pair<uint32_t, uint32_t>> cpus{};  ///< first and last of each range
  std::vector<uint32_t> distances{};  ///< to every node in the order of ids; empty: unknown
};

struct Machine {
  std::string sysfs_root{};
  std::vector<Nic> nics{};        ///< RDMA devices, by PCI address, then by name
  std::vector<Nic> interfaces{};  ///< network interfaces of PCI devices, in the same order
  /// NVIDIA's before AMD's, each by PCI address: gpu0 is the GPU 0 of CUDA with
  /// CUDA_DEVICE_ORDER=PCI_BUS_ID.
  std::vector<Gpu> gpus{};
  std::vector<NumaNode> numa_nodes{};  ///< by id
};

/// Reads a sysfs tree: `sysfs_root` is "/sys", or the root of a recorded one. What is missing or
/// broken (a dangling or cyclic link, a file with garbage) is left out, never an error.
Machine read_machine(const std::string& sysfs_root);

/// Any PCI device of the machine: a GPU, a NIC, a disk or a bridge. None: there is no such device.
std::optional<PciLocation> find_pci(const Machine& machine, const PciAddress& address);

/// The NUMA node of a device; on a machine with one node, that one. None: the kernel does not know.
std::optional<uint32_t> numa_of(const Machine& machine, const PciLocation& location);

/// The root that engines read: "/sys", unless a test has replaced it.
std::string sysfs_root();
/// For tests with recorded trees. Returns the previous root. Only while no engine is being opened.
std::string exchange_sysfs_root_for_tests(std::string root);

}  // namespace fabric::topology

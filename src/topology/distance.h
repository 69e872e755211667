#pragma once

#include <compare>
#include <cstdint>
#include <span>

#include "topology/machine.h"

namespace fabric::topology {

/// What a NIC and another device have in common, closest first.
enum class Distance : uint8_t {
  kSelf,        ///< the NIC is that device
  kSwitch,      ///< both are below one PCIe switch
  kRootPort,    ///< both are below one root port, without a switch
  kHostBridge,  ///< one host bridge
  kNuma,        ///< one NUMA node
  kOtherNuma,
  kUnknown,  ///< no PCI device, or the kernel does not know its NUMA node
};

/// For an operator: "same PCI switch".
const char* to_string(Distance distance) noexcept;

/// How close two devices are. Less is closer.
struct Closeness {
  Distance distance = Distance::kUnknown;
  uint32_t common = 0;         ///< bridges in common: with nested switches more is closer
  uint32_t numa_distance = 0;  ///< of the firmware's table (SLIT), between different nodes

  friend std::strong_ordering operator<=>(const Closeness& a, const Closeness& b) noexcept {
    if (a.distance != b.distance) return a.distance <=> b.distance;
    if (a.common != b.common) return b.common <=> a.common;
    return a.numa_distance <=> b.numa_distance;
  }
  friend bool operator==(const Closeness& a, const Closeness& b) noexcept = default;
};

/// Of two devices, by the longest common path below /sys/devices, then by their NUMA nodes.
Closeness closeness(const Machine& machine, const PciLocation& from, const PciLocation& nic);

/// Of a device and a set of NUMA nodes.
Closeness closeness(const Machine& machine, std::span<const uint32_t> nodes,
                    const PciLocation& nic);

}  // namespace fabric::topology

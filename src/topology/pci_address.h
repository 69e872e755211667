#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fabric::topology {

/// Where a PCI function is: "0000:19:00.0". Ordered as CUDA_DEVICE_ORDER=PCI_BUS_ID orders GPUs.
struct PciAddress {
  uint32_t domain = 0;
  uint8_t bus = 0, device = 0, function = 0;

  friend auto operator<=>(const PciAddress&, const PciAddress&) = default;
};

/// Reads "0000:19:00.0", "19:00.0" (domain 0), and the form of nvidia-smi, "00000000:19:00.0", in
/// upper or lower case. None: it is no PCI address.
std::optional<PciAddress> parse_pci_address(std::string_view text);

/// As sysfs names it: "0000:19:00.0".
std::string to_string(const PciAddress& address);

}  // namespace fabric::topology

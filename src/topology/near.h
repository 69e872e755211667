#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "topology/distance.h"
#include "topology/machine.h"

namespace fabric::topology {

/// Network::near, parsed.
struct Near {
  enum class Kind : uint8_t { kPci, kGpu, kNuma, kAuto };
  Kind kind = Kind::kAuto;
  uint32_t number = 0;   ///< of the GPU or NUMA node
  PciAddress address{};  ///< kPci
};

/// Reads "0000:19:00.0", "gpu0" or "gpu:0", "numa:1", "auto". None: it is none of them.
std::optional<Near> parse_near(std::string_view text);

/// What the choice depends on besides the machine.
struct ProcessView {
  std::optional<std::string> cuda_visible_devices{};  ///< none: the variable is not set
  std::vector<uint32_t> cpus{};                       ///< where the calling thread may run
};

/// Reads CUDA_VISIBLE_DEVICES and the CPU affinity of the calling thread.
ProcessView this_process();

/// Which NICs an engine takes, and which it leaves out and why.
struct NicChoice {
  struct ChosenNic {
    std::string name{};
    Distance distance = Distance::kUnknown;
  };
  struct LeftOut {
    std::string name{};
    std::string reason{};
  };
  std::string target{};            ///< what `near` means here: "gpu0, PCI 0000:1b:00.0"
  std::vector<ChosenNic> taken{};  ///< by PCI address, so that equal hosts pair equal rails
  std::vector<LeftOut> left_out{};
  std::string note{};     ///< how the environment was read; empty: it does not matter
  std::string warning{};  ///< why the choice may not be what was meant; empty: there is no doubt
  std::string problem{};  ///< why there is no choice: names the value and what exists
};

/// Chooses those of `candidates` (names of RDMA devices) that are closest to `near`, whose text is
/// `text`. All of the closest ones are taken; where several GPUs share them behind one PCIe switch,
/// the NICs are divided in the order of PCI addresses, and each GPU gets its share. NICs without an
/// active port are taken only if there are no others.
///
/// GPU ordinals are those of the process: CUDA_VISIBLE_DEVICES is honoured if it is a list of plain
/// ordinals, and ignored with a warning otherwise (UUIDs, MIG).
///
/// Fails with `problem` when there is no such device or node, or no candidate.
NicChoice choose_nics(const Machine& machine, const ProcessView& process, std::string_view text,
                      std::span<const std::string> candidates);

}  // namespace fabric::topology

#include <algorithm>
#include <charconv>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "topology/near.h"

// choose_nics(): what `near` means on this machine, and which NICs are closest to it.

namespace fabric::topology {

namespace {

/// The GPUs that the process numbers from 0, as indices of Machine::gpus.
struct VisibleGpus {
  std::vector<size_t> index{};
  bool renumbered = false;  ///< by CUDA_VISIBLE_DEVICES
  std::string ignored{};    ///< CUDA_VISIBLE_DEVICES, if it cannot be honoured
};

VisibleGpus visible_gpus(const Machine& machine, const ProcessView& process) {
  VisibleGpus all;
  for (size_t i = 0; i < machine.gpus.size(); ++i) all.index.push_back(i);
  const auto nvidia = static_cast<size_t>(
      std::count_if(machine.gpus.begin(), machine.gpus.end(),
                    [](const Gpu& gpu) { return gpu.vendor == GpuVendor::kNvidia; }));
  if (!process.cuda_visible_devices || nvidia == 0) return all;
  VisibleGpus some{.renumbered = true};
  bool listed = true;  // CUDA's rule: the first ordinal that does not exist ends the list
  std::string_view rest = *process.cuda_visible_devices;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    int64_t ordinal = 0;
    const auto [end, error] = std::from_chars(item.data(), item.data() + item.size(), ordinal);
    if (error != std::errc{} || end != item.data() + item.size()) {
      all.ignored = *process.cuda_visible_devices;
      return all;
    }
    listed = listed && ordinal >= 0 && ordinal < static_cast<int64_t>(nvidia);
    if (listed) some.index.push_back(static_cast<size_t>(ordinal));
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
  }
  return some;
}

/// What `near` means: a device, or NUMA nodes.
struct Target {
  std::string label{};  ///< short, for reasons: "gpu0"
  std::optional<PciLocation> device{};
  std::vector<uint32_t> nodes{};
  std::optional<size_t> gpu{};  ///< the index of the GPU that `device` is
};

/// A choice in progress. Every list of NICs holds indices of `nics`, in their order.
class Chooser {
 public:
  Chooser(const Machine& machine, const ProcessView& process, std::string_view text,
          std::span<const std::string> candidates)
      : machine_(machine), process_(process), text_(text), gpus_(visible_gpus(machine, process)) {
    for (const Nic& nic : machine.nics) {
      if (std::find(candidates.begin(), candidates.end(), nic.name) != candidates.end()) {
        nics_.push_back(nic);
      }
    }
    for (const std::string& name : candidates) {
      const auto same = [&](const Nic& nic) { return nic.name == name; };
      if (std::none_of(nics_.begin(), nics_.end(), same)) nics_.push_back({.name = name});
    }
    any_active_ =
        std::any_of(nics_.begin(), nics_.end(), [](const Nic& nic) { return nic.active; });
  }

  NicChoice choose();

 private:
  using Indices = std::vector<size_t>;

  bool find_target(const Near& near);
  bool find_gpu(uint32_t ordinal);
  bool find_node(uint32_t id);
  bool find_device(const PciAddress& address);
  bool find_affinity();
  bool refuse(std::string problem) {
    choice_.problem = std::move(problem);
    return false;
  }

  Closeness from_gpu(size_t gpu, size_t nic) const {
    const auto& pci = nics_[nic].pci;
    return pci ? closeness(machine_, machine_.gpus[gpu].pci, *pci) : Closeness{};
  }
  Closeness from_target(size_t nic) const {
    const auto& pci = nics_[nic].pci;
    if (!pci) return {};
    return target_.device ? closeness(machine_, *target_.device, *pci)
                          : closeness(machine_, target_.nodes, *pci);
  }
  template <class F>
  Indices closest(F&& closeness_of) const;
  Indices closest_to_gpu(size_t gpu) const {
    return closest([&](size_t nic) { return from_gpu(gpu, nic); });
  }
  Indices share_of_gpu(size_t gpu, const Indices& shared) const;
  std::string gpu_name(size_t gpu) const;
  std::string role_of(size_t nic) const;
  std::string reason_against(size_t nic, size_t taken) const;

  const Machine& machine_;
  const ProcessView& process_;
  const std::string_view text_;
  const VisibleGpus gpus_;
  std::vector<Nic> nics_;
  bool any_active_ = false;
  Target target_{};
  std::map<size_t, std::vector<size_t>> owners_{};  ///< NIC to the GPUs that would take it
  NicChoice choice_{};
};

// ---- The target ---------------------------------------------------------------------------------

bool Chooser::find_gpu(uint32_t ordinal) {
  const std::string variable =
      gpus_.renumbered ? fmt::format(" (CUDA_VISIBLE_DEVICES={})", *process_.cuda_visible_devices)
                       : "";
  if (ordinal >= gpus_.index.size()) {
    const std::string there_are =
        gpus_.index.empty()       ? "there is no GPU"
        : gpus_.index.size() == 1 ? "there is gpu0"
                                  : fmt::format("there are gpu0..gpu{}", gpus_.index.size() - 1);
    return refuse(fmt::format("near: no such GPU '{}'; {}{}", text_, there_are, variable));
  }
  const size_t gpu = gpus_.index[ordinal];
  const PciLocation& pci = machine_.gpus[gpu].pci;
  target_ = {.label = fmt::format("gpu{}", ordinal), .device = pci, .gpu = gpu};
  choice_.target = fmt::format("gpu{}, PCI {}", ordinal, to_string(pci.address));
  if (gpus_.renumbered) {
    choice_.note =
        fmt::format("CUDA_VISIBLE_DEVICES={}: gpu{} is GPU {} of the host by PCI address",
                    *process_.cuda_visible_devices, ordinal, gpu);
  }
  if (!gpus_.ignored.empty()) {
    choice_.warning = fmt::format(
        "CUDA_VISIBLE_DEVICES={} is no list of ordinals and is ignored: gpu{} is GPU {} of the "
        "host "
        "by PCI address; give the PCI address instead",
        gpus_.ignored, ordinal, gpu);
  }
  return true;
}

bool Chooser::find_node(uint32_t id) {
  std::vector<uint32_t> ids;
  for (const NumaNode& node : machine_.numa_nodes) ids.push_back(node.id);
  if (ids.empty()) ids.push_back(0);  // a kernel without NUMA
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) {
    return refuse(fmt::format("near: no such NUMA node '{}'; there {} numa:{}", text_,
                              ids.size() == 1 ? "is" : "are", fmt::join(ids, ", numa:")));
  }
  target_ = {.label = fmt::format("numa:{}", id), .nodes = {id}};
  choice_.target = fmt::format("NUMA node {}", id);
  return true;
}

bool Chooser::find_device(const PciAddress& address) {
  const std::string name = to_string(address);
  target_ = {.label = name, .device = find_pci(machine_, address)};
  if (!target_.device) {
    std::vector<std::string> known;
    for (size_t i = 0; i < machine_.gpus.size(); ++i) {
      known.push_back(fmt::format("GPU {}", to_string(machine_.gpus[i].pci.address)));
    }
    for (const Nic& nic : nics_) {
      if (nic.pci) known.push_back(fmt::format("{} {}", nic.name, to_string(nic.pci->address)));
    }
    return refuse(fmt::format(
        "near: no PCI device at '{}'; there are {}", text_,
        known.empty() ? "no GPUs and NICs" : fmt::format("{}", fmt::join(known, ", "))));
  }
  for (size_t i = 0; i < machine_.gpus.size(); ++i) {
    if (machine_.gpus[i].pci.address == address) target_.gpu = i;
  }
  choice_.target = fmt::format("{}PCI {}", target_.gpu ? "GPU, " : "", name);
  return true;
}

bool Chooser::find_affinity() {
  target_ = {.label = "the CPUs of this process"};
  for (const NumaNode& node : machine_.numa_nodes) {
    const bool ours = std::any_of(node.cpus.begin(), node.cpus.end(), [&](const auto& range) {
      return std::any_of(process_.cpus.begin(), process_.cpus.end(),
                         [&](uint32_t cpu) { return cpu >= range.first && cpu <= range.second; });
    });
    if (ours) target_.nodes.push_back(node.id);
  }
  if (machine_.numa_nodes.empty()) target_.nodes.push_back(0);
  if (target_.nodes.empty()) {
    return refuse(
        "near: 'auto' needs the NUMA node of the CPUs that this process may use, and "
        "/sys/devices/system/node does not list them");
  }
  choice_.target =
      fmt::format("the CPUs of this process, NUMA node{} {}", target_.nodes.size() == 1 ? "" : "s",
                  fmt::join(target_.nodes, ", "));
  if (machine_.numa_nodes.size() > 1 && target_.nodes.size() == machine_.numa_nodes.size()) {
    choice_.warning =
        "this process may run on every NUMA node, so 'auto' excludes none: pin it (numactl "
        "--cpunodebind, taskset)";
  }
  return true;
}

bool Chooser::find_target(const Near& near) {
  switch (near.kind) {
    case Near::Kind::kPci:
      return find_device(near.address);
    case Near::Kind::kGpu:
      return find_gpu(near.number);
    case Near::Kind::kNuma:
      return find_node(near.number);
    case Near::Kind::kAuto:
      break;
  }
  return find_affinity();
}

// ---- The NICs -----------------------------------------------------------------------------------

template <class F>
Chooser::Indices Chooser::closest(F&& closeness_of) const {
  Indices found;
  Closeness least{};
  for (size_t nic = 0; nic < nics_.size(); ++nic) {
    if (any_active_ && !nics_[nic].active) continue;
    const Closeness here = closeness_of(nic);
    if (!found.empty() && here > least) continue;
    if (!found.empty() && here < least) found.clear();
    least = here;
    found.push_back(nic);
  }
  return found;
}

/// GPUs that are equally close to the same NICs, behind one switch, get equal shares of them; when
/// there are more GPUs than NICs, some share one.
Chooser::Indices Chooser::share_of_gpu(size_t gpu, const Indices& shared) const {
  if (shared.empty()) return shared;
  const Closeness here = from_gpu(gpu, shared[0]);
  if (here.distance != Distance::kSwitch && here.distance != Distance::kRootPort) return shared;
  size_t rivals = 0, before = 0;
  for (size_t other = 0; other < machine_.gpus.size(); ++other) {
    if (closest_to_gpu(other) != shared || from_gpu(other, shared[0]) != here) continue;
    ++rivals;
    if (other < gpu) ++before;
  }
  const size_t first = before * shared.size() / rivals;
  const size_t end = std::max(first + 1, (before + 1) * shared.size() / rivals);
  return Indices(shared.begin() + static_cast<ptrdiff_t>(first),
                 shared.begin() + static_cast<ptrdiff_t>(end));
}

/// With CUDA_VISIBLE_DEVICES, ordinals of other processes mean nothing here.
std::string Chooser::gpu_name(size_t gpu) const {
  return gpus_.renumbered ? fmt::format("GPU {}", to_string(machine_.gpus[gpu].pci.address))
                          : fmt::format("gpu{}", gpu);
}

/// "nearest to gpu1, ": whose NIC it is. One that is nearest to no GPU is often for storage.
std::string Chooser::role_of(size_t nic) const {
  if (machine_.gpus.empty()) return "";
  const auto owners = owners_.find(nic);
  if (owners == owners_.end()) return "nearest to no GPU, ";
  std::vector<std::string> names;
  for (const size_t gpu : owners->second) names.push_back(gpu_name(gpu));
  return fmt::format("nearest to {}, ", fmt::join(names, ", "));
}

std::string Chooser::reason_against(size_t nic, size_t taken) const {
  if (any_active_ && !nics_[nic].active) return "no active port";
  const Closeness here = from_target(nic), least = from_target(taken);
  if (here == least) {
    return fmt::format("{}as close to {} as {}, but the share of another GPU below that switch",
                       role_of(nic), target_.label, nics_[taken].name);
  }
  std::string how = to_string(here.distance);
  if (!nics_[nic].pci) how = "no PCI device in sysfs";
  if (here.distance == least.distance && here.common != least.common) {
    how = "a switch farther up";
  } else if (here.distance == least.distance) {
    how = "farther NUMA node";
  }
  return fmt::format("{}farther from {} than {}: {}", role_of(nic), target_.label,
                     nics_[taken].name, how);
}

NicChoice Chooser::choose() {
  const auto near = parse_near(text_);
  if (!near) {
    refuse(fmt::format("near: '{}' is none of a PCI address, gpuN, numa:N and auto", text_));
    return choice_;
  }
  if (nics_.empty()) {
    refuse("near: there is no RDMA NIC to choose from");
    return choice_;
  }
  if (!find_target(*near)) return choice_;
  Indices taken = closest([this](size_t nic) { return from_target(nic); });
  if (target_.gpu) taken = share_of_gpu(*target_.gpu, taken);
  for (size_t gpu = 0; gpu < machine_.gpus.size(); ++gpu) {
    for (const size_t nic : share_of_gpu(gpu, closest_to_gpu(gpu))) owners_[nic].push_back(gpu);
  }
  for (size_t nic = 0; nic < nics_.size(); ++nic) {
    if (std::find(taken.begin(), taken.end(), nic) != taken.end()) {
      choice_.taken.push_back({nics_[nic].name, from_target(nic).distance});
    } else {
      choice_.left_out.push_back({nics_[nic].name, reason_against(nic, taken[0])});
    }
  }
  return choice_;
}

}  // namespace

NicChoice choose_nics(const Machine& machine, const ProcessView& process, std::string_view text,
                      std::span<const std::string> candidates) {
  return Chooser(machine, process, text, candidates).choose();
}

}  // namespace fabric::topology

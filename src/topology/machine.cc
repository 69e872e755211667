#include "topology/machine.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <tuple>

namespace fabric::topology {

namespace {

namespace fs = std::filesystem;

/// The names in a folder, sorted; empty if it cannot be read.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator at(folder, error);
  while (!error && at != fs::directory_iterator()) {
    names.push_back(at->path().filename().string());
    at.increment(error);
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The first line of a file, without blanks at its end; empty if there is none.
std::string line_of(const fs::path& path) {
  std::string line;
  std::error_code error;
  // A recorded tree may hold anything; opening a FIFO would block.
  if (!fs::is_regular_file(path, error)) return line;
  std::ifstream file(path);
  std::getline(file, line);
  while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
  return line;
}

template <class T>
std::optional<T> number_of(std::string_view text, int base = 10) {
  if (base == 16 && text.starts_with("0x")) text.remove_prefix(2);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// The number that a line starts with, if it is positive: drivers report -1 for "unknown".
std::optional<double> leading_number(const std::string& line) {
  double value = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (error != std::errc{} || end == line.data() || value <= 0) return std::nullopt;
  return value;
}

/// "0-55,112-167". Empty if any of it is garbage: half of a list would be a wrong list.
std::vector<std::pair<uint32_t, uint32_t>> cpu_ranges(std::string_view list) {
  std::vector<std::pair<uint32_t, uint32_t>> ranges;
  while (!list.empty()) {
    const size_t comma = list.find(',');
    const std::string_view item = list.substr(0, comma);
    const size_t dash = item.find('-');
    const auto first = number_of<uint32_t>(item.substr(0, dash));
    const auto last =
        dash == std::string_view::npos ? first : number_of<uint32_t>(item.substr(dash + 1));
    if (!first || !last || *last < *first) return {};
    ranges.emplace_back(*first, *last);
    list.remove_prefix(comma == std::string_view::npos ? list.size() : comma + 1);
  }
  return ranges;
}

bool is_host_bridge(std::string_view name) {
  return name.starts_with("pci") && name.find(':') != std::string_view::npos;
}

/// The PCI device that a link below `root` leads to, or that contains what it leads to.
std::optional<PciLocation> location_of(const fs::path& root, const fs::path& link) {
  std::error_code error;
  const fs::path target = fs::canonical(link, error);  // fails for dangling and cyclic links
  if (error) return std::nullopt;
  PciLocation found;
  fs::path folder, device_folder;
  for (const fs::path& part : target.lexically_relative(root / "devices")) {
    const std::string name = part.string();
    folder /= part;
    const auto address = parse_pci_address(name);
    const bool inside = !found.path.empty();
    if (!inside && !is_host_bridge(name)) continue;
    // Below the PCI device there is only what its driver made: "infiniband", "virtio2".
    if (inside && !address && !is_host_bridge(name)) break;
    found.path.push_back(name);
    if (!address) continue;
    found.address = *address;
    device_folder = folder;
  }
  if (device_folder.empty()) return std::nullopt;
  found.numa = number_of<uint32_t>(line_of(root / "devices" / device_folder / "numa_node"));
  return found;
}

void read_ports(Nic& nic, const fs::path& ports) {
  uint32_t known = 0, active = 0;
  for (const std::string& port : names_in(ports)) {
    std::string state = line_of(ports / port / "state");  // "4: ACTIVE"
    if (state.empty()) continue;
    ++known;
    if (state.starts_with("4:")) ++active;
    if (port != "1") continue;
    nic.gbit = leading_number(line_of(ports / port / "rate"));  // "100 Gb/sec (4X EDR)"
    const size_t colon = state.find(": ");
    nic.state = colon == std::string::npos ? state : state.substr(colon + 2);
  }
  nic.active = known == 0 || active > 0;
}

void sort_nics(std::vector<Nic>& nics) {
  const auto place = [](const Nic& nic) {
    return std::tuple(!nic.pci, nic.pci ? nic.pci->address : PciAddress{}, nic.name);
  };
  std::sort(nics.begin(), nics.end(),
            [&](const Nic& a, const Nic& b) { return place(a) < place(b); });
}

std::vector<Nic> read_rdma(const fs::path& root) {
  std::vector<Nic> nics;
  const fs::path folder = root / "class" / "infiniband";
  for (const std::string& name : names_in(folder)) {
    Nic nic{.name = name, .rdma = true, .pci = location_of(root, folder / name)};
    if (!nic.pci) nic.pci = location_of(root, folder / name / "device");
    read_ports(nic, folder / name / "ports");
    nics.push_back(std::move(nic));
  }
  sort_nics(nics);
  return nics;
}

std::vector<Nic> read_interfaces(const fs::path& root) {
  std::vector<Nic> nics;
  const fs::path folder = root / "class" / "net";
  for (const std::string& name : names_in(folder)) {
    Nic nic{.name = name, .pci = location_of(root, folder / name)};
    if (!nic.pci) continue;  // loopback, bridges and other virtual ones
    nic.state = line_of(folder / name / "operstate");
    if (const auto mbit = leading_number(line_of(folder / name / "speed"))) nic.gbit = *mbit / 1000;
    nics.push_back(std::move(nic));
  }
  sort_nics(nics);
  return nics;
}

std::vector<Gpu> read_gpus(const fs::path& root) {
  constexpr uint32_t kNvidia = 0x10de, kAmd = 0x1002;
  // Display controllers (VGA, 3D) and, of AMD, processing accelerators: the MI series.
  constexpr uint32_t kVga = 0x0300, kThreeD = 0x0302, kAccelerator = 0x1200;
  std::vector<Gpu> gpus;
  const fs::path folder = root / "bus" / "pci" / "devices";
  for (const std::string& name : names_in(folder)) {
    if (!parse_pci_address(name)) continue;
    const uint32_t vendor = number_of<uint32_t>(line_of(folder / name / "vendor"), 16).value_or(0);
    if (vendor != kNvidia && vendor != kAmd) continue;
    const uint32_t kind =
        number_of<uint32_t>(line_of(folder / name / "class"), 16).value_or(0) >> 8;
    const bool display = kind == kVga || kind == kThreeD;
    if (!display && !(vendor == kAmd && kind == kAccelerator)) continue;
    auto location = location_of(root, folder / name);
    if (!location) continue;
    gpus.push_back(
        {*std::move(location), vendor == kNvidia ? GpuVendor::kNvidia : GpuVendor::kAmd});
  }
  std::sort(gpus.begin(), gpus.end(), [](const Gpu& a, const Gpu& b) {
    return std::pair(a.vendor, a.pci.address) < std::pair(b.vendor, b.pci.address);
  });
  return gpus;
}

std::vector<NumaNode> read_numa_nodes(const fs::path& root) {
  std::vector<NumaNode> nodes;
  const fs::path folder = root / "devices" / "system" / "node";
  for (const std::string& name : names_in(folder)) {
    if (!name.starts_with("node")) continue;
    const auto id = number_of<uint32_t>(std::string_view(name).substr(4));
    if (!id) continue;  // "node_states"
    NumaNode node{.id = *id, .cpus = cpu_ranges(line_of(folder / name / "cpulist"))};
    std::string row = line_of(folder / name / "distance");  // "10 21"
    for (std::string_view rest = row; !rest.empty();) {
      const size_t blank = rest.find(' ');
      node.distances.push_back(number_of<uint32_t>(rest.substr(0, blank)).value_or(UINT32_MAX));
      rest.remove_prefix(blank == std::string_view::npos ? rest.size() : blank + 1);
    }
    nodes.push_back(std::move(node));
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  for (NumaNode& node : nodes) {
    if (node.distances.size() != nodes.size()) node.distances.clear();
  }
  return nodes;
}

std::string& root_in_use() {
  static std::string root = "/sys";
  return root;
}

}  // namespace

Machine read_machine(const std::string& sysfs_root) {
  std::error_code error;
  const fs::path root = fs::canonical(sysfs_root, error);
  if (error) return {.sysfs_root = sysfs_root};
  return {.sysfs_root = root.string(),
          .nics = read_rdma(root),
          .interfaces = read_interfaces(root),
          .gpus = read_gpus(root),
          .numa_nodes = read_numa_nodes(root)};
}

std::optional<PciLocation> find_pci(const Machine& machine, const PciAddress& address) {
  const fs::path root = machine.sysfs_root;
  auto found = location_of(root, root / "bus" / "pci" / "devices" / to_string(address));
  if (!found || found->address != address) return std::nullopt;
  return found;
}

std::optional<uint32_t> numa_of(const Machine& machine, const PciLocation& location) {
  if (machine.numa_nodes.empty()) return 0;
  if (machine.numa_nodes.size() == 1) return machine.numa_nodes[0].id;
  return location.numa;
}

std::string sysfs_root() { return root_in_use(); }

std::string exchange_sysfs_root_for_tests(std::string root) {
  return std::exchange(root_in_use(), std::move(root));
}

}  // namespace fabric::topology

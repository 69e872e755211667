// fabric info: networks of this build and whether they work here, capabilities of their rails, NICs
// and GPUs, and system limits that matter.

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <fabric/fabric.h>

#include "commands.h"
#include "limits.h"
#include "machine.h"
#include "near.h"
#include "networks.h"
#include "versions.h"

namespace fabric::tool {
namespace {

using Json = nlohmann::ordered_json;

struct InfoOptions {
  bool json = false;
  std::string near{};
  std::string sysfs{};  ///< the root of a recorded tree; empty: this machine
};

struct InfoReport {
  std::vector<NetworkInfo> networks{};
  Machine machine{};
  std::vector<std::vector<std::string>> nics_of_gpus{};
  std::vector<NearReport> near{};
  std::vector<Limit> limits{};
};

/// Throws BadOption when --near names nothing of this machine.
InfoReport make_report(const InfoOptions& options) {
  InfoReport report{.machine = find_machine(options.sysfs)};
  const topology::Machine& devices = report.machine.devices;
  if (devices.nics.empty() && devices.numa_nodes.empty() && !options.sysfs.empty()) {
    throw BadOption("--sysfs", fmt::format("'{}' holds no sysfs tree", options.sysfs));
  }
  report.near = find_near(devices, options.near);
  if (!options.near.empty() && !report.near[0].choice.problem.empty()) {
    throw BadOption("--near", report.near[0].choice.problem);
  }
  report.nics_of_gpus = nics_of_gpus(devices);
  // A recorded machine's GPU is not one of this machine, whose networks are opened.
  report.networks = find_networks(options.sysfs.empty() ? options.near : "");
  report.limits = find_limits();
  return report;
}

std::vector<std::string> kinds_of(const Caps& caps) {
  std::vector<std::string> names;
  for (const MemoryKind kind : {MemoryKind::kHost, MemoryKind::kCuda, MemoryKind::kRocm}) {
    if ((caps.memory_kinds & kind_bit(kind)) != 0) names.emplace_back(to_string(kind));
  }
  return names;
}

/// The capabilities that a rail either has or has not.
std::vector<std::pair<std::string, bool>> capabilities_of(const Caps& caps) {
  return {{"ordered", caps.ordered},
          {"exact_replay", caps.exact_replay},
          {"count_is_final", caps.count_is_final},
          {"checks_access", caps.checks_access},
          {"maps_memory", caps.maps_memory},
          {"cpu_copy", caps.cpu_copy}};
}

void print_rail(const RailStats& rail) {
  const auto line = [](std::string_view name, const auto& value) {
    fmt::print("      {:<24} {}\n", name, value);
  };
  std::vector<std::string> capabilities;
  for (const auto& [name, has] : capabilities_of(rail.caps)) {
    if (has) capabilities.push_back(name);
  }
  fmt::print("    rail {} {} ({})\n", rail.index, rail.device, rail.up ? "up" : "down");
  line("fence kind", to_string(rail.caps.fence));
  line("memory", fmt::format("{}", fmt::join(kinds_of(rail.caps), ", ")));
  line("capabilities", fmt::format("{}", fmt::join(capabilities, ", ")));
  line("in flight",
       fmt::format("{} work requests, {} per path", rail.caps.queue_depth, rail.caps.path_depth));
  line("max work request bytes", rail.caps.write_bytes_max);
  for (const auto& [name, value] : rail.facts) line(name, value);
}

void print_networks(const std::vector<NetworkInfo>& networks) {
  fmt::print("\nnetworks, in order of preference\n");
  for (const NetworkInfo& network : networks) {
    if (network.usable()) {
      fmt::print("  {:<5} usable\n", network.name);
    } else {
      fmt::print("  {:<5} {}: {} ({})\n", network.name, network.built ? "not usable" : "not built",
                 to_string(network.why.code), network.why.what);
      fmt::print("        {}\n", network.remedy);
    }
    for (const RailStats& rail : network.rails) print_rail(rail);
  }
}

std::optional<uint32_t> numa_of(const Machine& machine, const topology::Nic& nic) {
  return nic.pci ? topology::numa_of(machine.devices, *nic.pci) : std::nullopt;
}

std::string numa_text(std::optional<uint32_t> numa) {
  return numa ? fmt::format("NUMA node {}", *numa) : "no NUMA affinity";
}

std::string pci_text(const topology::Nic& nic) {
  return nic.pci ? to_string(nic.pci->address) : "";
}

std::vector<topology::Nic> all_nics(const Machine& machine) {
  std::vector<topology::Nic> nics = machine.devices.nics;
  nics.insert(nics.end(), machine.devices.interfaces.begin(), machine.devices.interfaces.end());
  return nics;
}

std::string name_of(const Machine& machine, const topology::Gpu& gpu) {
  const auto found = machine.pci_names.find(to_string(gpu.pci.address));
  if (found != machine.pci_names.end()) return found->second;
  return gpu.vendor == topology::GpuVendor::kNvidia ? "NVIDIA" : "AMD";
}

void print_machine(const InfoReport& info) {
  const Machine& machine = info.machine;
  fmt::print("\nmachine\n");
  if (!machine.problem.empty()) fmt::print("  {}\n", machine.problem);
  fmt::print("  NUMA nodes {}", machine.devices.numa_nodes.size());
  if (machine.cpus) {
    fmt::print(", packages {}, cores {}, threads {}", machine.cpus->packages, machine.cpus->cores,
               machine.cpus->threads);
  }
  fmt::print("\n");
  const std::vector<topology::Nic> nics = all_nics(machine);
  for (const topology::Nic& nic : nics) {
    fmt::print("  {} {} {}: {}, {}, {}\n", nic.rdma ? "RDMA" : "NIC ", nic.name, pci_text(nic),
               nic.gbit ? fmt::format("{:g} Gbit/s", *nic.gbit) : "speed unknown",
               nic.state.empty() ? "state unknown" : nic.state, numa_text(numa_of(machine, nic)));
    for (const NearGpu& gpu : gpus_near(machine, nic)) {
      fmt::print("       GPU {}: {}\n", gpu.pci, to_string(gpu.distance));
    }
  }
  for (size_t i = 0; i < machine.devices.gpus.size(); ++i) {
    const topology::Gpu& gpu = machine.devices.gpus[i];
    fmt::print("  GPU  {}: {}, {}, near=gpu{} takes {}\n", to_string(gpu.pci.address),
               name_of(machine, gpu), numa_text(topology::numa_of(machine.devices, gpu.pci)), i,
               info.nics_of_gpus[i].empty()
                   ? "no NIC"
                   : fmt::format("{}", fmt::join(info.nics_of_gpus[i], " ")));
  }
  if (nics.empty()) fmt::print("  no NIC\n");
  if (machine.devices.gpus.empty()) fmt::print("  no GPU\n");
}

void print_near(const std::vector<NearReport>& near) {
  for (const auto& [value, choice] : near) {
    fmt::print("\nnear={}\n", value);
    if (!choice.problem.empty()) fmt::print("  {}\n", choice.problem);
    if (!choice.target.empty()) fmt::print("  {}\n", choice.target);
    for (const std::string& text : {choice.note, choice.warning}) {
      if (!text.empty()) fmt::print("  {}\n", text);
    }
    for (const auto& nic : choice.taken) {
      fmt::print("  takes      {}: {}\n", nic.name, to_string(nic.distance));
    }
    for (const auto& nic : choice.left_out)
      fmt::print("  leaves out {}: {}\n", nic.name, nic.reason);
  }
}

void print_text(const InfoReport& info) {
  for (const auto& [name, value] : versions()) fmt::print("{:<10} {}\n", name, value);
  print_networks(info.networks);
  print_machine(info);
  print_near(info.near);
  fmt::print("\nlimits of this process and of the system\n");
  for (const Limit& limit : info.limits) {
    fmt::print("  {:<30} {}\n", limit.name, limit.text);
    if (!limit.advice.empty()) fmt::print("        {}\n", limit.advice);
  }
  if (const char* chosen = std::getenv("FABRICLIB_NETWORKS")) {
    fmt::print("\nFABRICLIB_NETWORKS={}: engines in this environment use only these networks\n",
               chosen);
  }
}

Json to_json(const RailStats& rail) {
  Json caps{{"fence", to_string(rail.caps.fence)},
            {"memory", kinds_of(rail.caps)},
            {"queue_depth", rail.caps.queue_depth},
            {"path_depth", rail.caps.path_depth},
            {"write_bytes_max", rail.caps.write_bytes_max}};
  for (const auto& [name, has] : capabilities_of(rail.caps)) caps[name] = has;
  Json facts = Json::object();
  for (const auto& [name, value] : rail.facts) facts[name] = value;
  return {{"index", rail.index},
          {"device", rail.device},
          {"up", rail.up},
          {"caps", caps},
          {"facts", facts}};
}

Json to_json(const NetworkInfo& network) {
  Json one{{"name", network.name}, {"built", network.built}, {"usable", network.usable()}};
  if (!network.usable()) {
    one["why"] = {{"code", to_string(network.why.code)}, {"what", network.why.what}};
    one["remedy"] = network.remedy;
  }
  one["rails"] = Json::array();
  for (const RailStats& rail : network.rails) one["rails"].push_back(to_json(rail));
  return one;
}

Json to_json(const Limit::Value& value) {
  return std::visit(
      [](const auto& v) {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::monostate>) {
          return Json();
        } else {
          return Json(v);
        }
      },
      value);
}

Json to_json(std::optional<uint32_t> numa) { return numa ? Json(*numa) : Json(); }

Json nic_to_json(const Machine& machine, const topology::Nic& nic) {
  Json near = Json::array();
  for (const NearGpu& gpu : gpus_near(machine, nic)) {
    near.push_back({{"pci", gpu.pci}, {"nearness", to_string(gpu.distance)}});
  }
  return {{"name", nic.name},
          {"rdma", nic.rdma},
          {"pci", pci_text(nic)},
          {"state", nic.state},
          {"gbit_per_second", nic.gbit ? Json(*nic.gbit) : Json()},
          {"numa", to_json(numa_of(machine, nic))},
          {"gpus", near}};
}

Json machine_to_json(const InfoReport& info) {
  const Machine& machine = info.machine;
  Json nics = Json::array(), gpus = Json::array();
  for (const topology::Nic& nic : all_nics(machine)) nics.push_back(nic_to_json(machine, nic));
  for (size_t i = 0; i < machine.devices.gpus.size(); ++i) {
    const topology::Gpu& gpu = machine.devices.gpus[i];
    gpus.push_back({{"pci", to_string(gpu.pci.address)},
                    {"name", name_of(machine, gpu)},
                    {"numa", to_json(topology::numa_of(machine.devices, gpu.pci))},
                    {"nics", info.nics_of_gpus[i]}});
  }
  const auto& cpus = machine.cpus;
  Json out{{"packages", cpus ? Json(cpus->packages) : Json()},
           {"numa_nodes", machine.devices.numa_nodes.size()},
           {"cores", cpus ? Json(cpus->cores) : Json()},
           {"threads", cpus ? Json(cpus->threads) : Json()},
           {"nics", nics},
           {"gpus", gpus}};
  if (!machine.problem.empty()) out["problem"] = machine.problem;
  return out;
}

Json to_json(const NearReport& near) {
  Json taken = Json::array(), left_out = Json::array();
  for (const auto& nic : near.choice.taken) {
    taken.push_back({{"name", nic.name}, {"nearness", to_string(nic.distance)}});
  }
  for (const auto& nic : near.choice.left_out) {
    left_out.push_back({{"name", nic.name}, {"reason", nic.reason}});
  }
  Json out{{"near", near.value},
           {"target", near.choice.target},
           {"taken", taken},
           {"left_out", left_out}};
  for (const auto& [name, text] :
       {std::pair("note", near.choice.note), std::pair("warning", near.choice.warning),
        std::pair("problem", near.choice.problem)}) {
    if (!text.empty()) out[name] = text;
  }
  return out;
}

void print_json(const InfoReport& info) {
  Json report{{"version", version()}};
  for (const auto& [name, value] : versions()) report["versions"][name] = value;
  for (const NetworkInfo& network : info.networks) {
    report["networks"].push_back(to_json(network));
  }
  report["machine"] = machine_to_json(info);
  report["near"] = Json::array();
  for (const NearReport& near : info.near) report["near"].push_back(to_json(near));
  report["advice"] = Json::object();
  for (const Limit& limit : info.limits) {
    std::string key = limit.name;
    std::replace(key.begin(), key.end(), ' ', '_');
    report["limits"][key] = to_json(limit.value);
    if (!limit.advice.empty()) report["advice"][key] = limit.advice;
  }
  fmt::print("{}\n", report.dump());
}

}  // namespace

Command info_command() {
  auto options = std::make_shared<InfoOptions>();
  return {
      .name = "info",
      .help = "What this build and this machine can do",
      .footer =
          "A network that does not work is listed with the reason and a remedy, a limit that has "
          "a\ncost with advice. --near shows which NICs an engine with that Network::near takes, "
          "and "
          "why\nit leaves out the others; without it, the values in FABRICLIB_NETWORKS are "
          "shown.\n\n"
          "Examples:\n"
          "  fabric info\n"
          "  fabric info --near gpu0\n"
          "  fabric info --json | python3 -m json.tool\n\n"
          "Exit code 0: printed, whatever was found; 2: bad options.",
      .options = {{.name = "--json", .help = "The same as JSON", .target = &options->json},
                  {.name = "--near",
                   .help = "A PCI address, gpuN, numa:N or auto: the NICs that are closest to it",
                   .target = &options->near,
                   .value_name = "DEVICE"},
                  {.name = "--sysfs",
                   .help = "NICs and GPUs of a recorded sysfs tree, not of this machine",
                   .target = &options->sysfs,
                   .value_name = "FOLDER"}},
      .run = [options] {
        const InfoReport report = make_report(*options);
        options->json ? print_json(report) : print_text(report);
        return 0;
      }};
}

}  // namespace fabric::tool

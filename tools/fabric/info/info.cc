// fabric info: networks of this build and whether they work here, capabilities of their rails, NICs
// and GPUs, and system limits that matter.

#include <algorithm>
#include <cstdlib>
#include <memory>
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
#include "networks.h"
#include "versions.h"

namespace fabric::tool {
namespace {

using Json = nlohmann::ordered_json;

struct InfoReport {
  std::vector<NetworkInfo> networks = find_networks();
  Machine machine = find_machine();
  std::vector<Limit> limits = find_limits();
};

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

std::string numa_text(std::optional<uint32_t> numa) {
  return numa ? fmt::format("NUMA node {}", *numa) : "no NUMA affinity";
}

void print_machine(const Machine& machine) {
  fmt::print("\nmachine\n");
  if (!machine.problem.empty()) fmt::print("  {}\n", machine.problem);
  fmt::print("  packages {}, NUMA nodes {}, cores {}, threads {}\n", machine.packages,
             machine.numa_nodes, machine.cores, machine.threads);
  for (const Nic& nic : machine.nics) {
    fmt::print("  {} {} {}: {}, {}, {}\n", nic.rdma ? "RDMA" : "NIC ", nic.name, nic.pci,
               nic.gbit ? fmt::format("{:g} Gbit/s", *nic.gbit) : "speed unknown",
               nic.state.empty() ? "state unknown" : nic.state, numa_text(nic.numa));
    for (const NearGpu& gpu : nic.gpus) {
      fmt::print("       GPU {}: {}\n", gpu.pci, to_string(gpu.nearness));
    }
  }
  for (const Gpu& gpu : machine.gpus) {
    fmt::print("  GPU  {}: {}{}{}\n", gpu.pci, gpu.name, gpu.name.empty() ? "" : ", ",
               numa_text(gpu.numa));
  }
  if (machine.nics.empty()) fmt::print("  no NIC\n");
  if (machine.gpus.empty()) fmt::print("  no GPU\n");
}

void print_text(const InfoReport& info) {
  for (const auto& [name, value] : versions()) fmt::print("{:<10} {}\n", name, value);
  print_networks(info.networks);
  print_machine(info.machine);
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

Json to_json(const Machine& machine) {
  Json nics = Json::array(), gpus = Json::array();
  for (const Nic& nic : machine.nics) {
    Json near = Json::array();
    for (const NearGpu& gpu : nic.gpus) {
      near.push_back({{"pci", gpu.pci}, {"nearness", to_string(gpu.nearness)}});
    }
    nics.push_back({{"name", nic.name},
                    {"rdma", nic.rdma},
                    {"pci", nic.pci},
                    {"state", nic.state},
                    {"gbit_per_second", nic.gbit ? Json(*nic.gbit) : Json()},
                    {"numa", to_json(nic.numa)},
                    {"gpus", near}});
  }
  for (const Gpu& gpu : machine.gpus) {
    gpus.push_back({{"pci", gpu.pci}, {"name", gpu.name}, {"numa", to_json(gpu.numa)}});
  }
  Json out{{"packages", machine.packages},
           {"numa_nodes", machine.numa_nodes},
           {"cores", machine.cores},
           {"threads", machine.threads},
           {"nics", nics},
           {"gpus", gpus}};
  if (!machine.problem.empty()) out["problem"] = machine.problem;
  return out;
}

void print_json(const InfoReport& info) {
  Json report{{"version", version()}};
  for (const auto& [name, value] : versions()) report["versions"][name] = value;
  for (const NetworkInfo& network : info.networks) {
    report["networks"].push_back(to_json(network));
  }
  report["machine"] = to_json(info.machine);
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
  auto json = std::make_shared<bool>(false);
  return {
      .name = "info",
      .help = "What this build and this machine can do",
      .footer =
          "A network that does not work is listed with the reason and a remedy, a limit that has "
          "a\ncost with advice.\n\n"
          "Examples:\n"
          "  fabric info\n"
          "  fabric info --json | python3 -m json.tool\n\n"
          "Exit code 0: printed, whatever was found; 2: bad options.",
      .options = {{.name = "--json", .help = "The same as JSON", .target = json.get()}},
      .run = [json] {
        const InfoReport report;
        *json ? print_json(report) : print_text(report);
        return 0;
      }};
}

}  // namespace fabric::tool

#include "near.h"

#include <cstdlib>
#include <string_view>

#include <fabric/config.h>

namespace fabric::tool {
namespace {

std::vector<std::string> rdma_names(const topology::Machine& machine) {
  std::vector<std::string> names;
  for (const topology::Nic& nic : machine.nics) names.push_back(nic.name);
  return names;
}

/// The networks of FABRICLIB_NETWORKS that have `near`. A text that does not parse is reported
/// where engines are opened.
std::vector<Network> networks_with_near() {
  std::vector<Network> out;
  const char* variable = std::getenv("FABRICLIB_NETWORKS");
  std::string_view rest = variable == nullptr ? "" : variable;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    auto network = parse_network(rest.substr(0, comma));
    if (network && !network->near.empty()) out.push_back(*std::move(network));
    rest.remove_prefix(comma == std::string_view::npos ? rest.size() : comma + 1);
  }
  return out;
}

}  // namespace

std::vector<NearReport> find_near(const topology::Machine& machine, const std::string& value) {
  const topology::ProcessView process = topology::this_process();
  std::vector<NearReport> out;
  if (!value.empty()) {
    out.push_back({value, choose_nics(machine, process, value, rdma_names(machine))});
    return out;
  }
  for (const Network& network : networks_with_near()) {
    std::vector<std::string> candidates;
    for (const std::string& port : network.devices) {
      candidates.push_back(port.substr(0, port.find(':')));
    }
    if (candidates.empty()) candidates = rdma_names(machine);
    out.push_back({network.near, choose_nics(machine, process, network.near, candidates)});
  }
  return out;
}

std::vector<std::vector<std::string>> nics_of_gpus(const topology::Machine& machine) {
  std::vector<std::vector<std::string>> out;
  for (const topology::Gpu& gpu : machine.gpus) {
    const auto choice = choose_nics(machine, {}, to_string(gpu.pci.address), rdma_names(machine));
    out.emplace_back();
    for (const auto& nic : choice.taken) out.back().push_back(nic.name);
  }
  return out;
}

}  // namespace fabric::tool

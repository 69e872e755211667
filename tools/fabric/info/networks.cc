#include "networks.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include <fmt/format.h>

namespace fabric::tool {
namespace {

/// An engine obeys FABRICLIB_NETWORKS, whatever it is asked for; here every network is asked.
class IgnoreNetworkChoice {
 public:
  IgnoreNetworkChoice() {
    if (const char* value = std::getenv("FABRICLIB_NETWORKS")) chosen_ = value;
    ::unsetenv("FABRICLIB_NETWORKS");
  }
  ~IgnoreNetworkChoice() {
    if (!chosen_.empty()) ::setenv("FABRICLIB_NETWORKS", chosen_.c_str(), 1);
  }
  IgnoreNetworkChoice(IgnoreNetworkChoice&&) = delete;

 private:
  std::string chosen_{};
};

/// What users ask for by name and this source does not have yet, and what serves instead.
struct Planned {
  const char* name;
  const char* instead;
};
constexpr std::array<Planned, 3> kPlanned{
    {{"verbs",
      "for RDMA cards configure with libibverbs-dev installed, or FABRIC_VERBS=ON to insist"},
     {"ofi",
      "EFA and other libfabric networks wait for it: between hosts with RDMA cards use verbs"},
     {"tcp", "hosts without RDMA wait for it: on one host use shm"}}};

std::string remedy_of_verbs(const Error& why) {
  const std::string_view what = why.what;
  if (what.find("libibverbs") != std::string_view::npos) {
    return "install rdma-core: libibverbs1 and ibverbs-providers";
  }
  if (why.code == Errc::kPermission) return "let this user open the devices in /dev/infiniband";
  if (why.code == Errc::kUnsupported) {
    return "it needs an RDMA card with an active port: `rdma link` shows them";
  }
  return "FABRICLIB_LOG_LEVEL=debug tells more";
}

std::string remedy_of(const std::string& network, const Error& why) {
  const std::string_view what = why.what;
  if (what.starts_with("FABRICLIB_")) {
    return fmt::format("correct or unset the environment variable {}", what);
  }
  if (network == "sim")
    return "nothing is wrong: `fabric sim` and sim::World open simulated worlds";
  if (network == "verbs" && why.code != Errc::kExhausted) return remedy_of_verbs(why);
  switch (why.code) {
    case Errc::kExhausted:
      return "raise the limit of open files (ulimit -n) or free memory, then look again";
    case Errc::kPermission:
      return "let this user make Unix sockets and memory files (a sandbox or seccomp forbids it)";
    case Errc::kUnsupported:
      return "this machine lacks what it needs: use another network, or another kernel";
    default:
      return "FABRICLIB_LOG_LEVEL=debug tells more";
  }
}

std::vector<RailStats> rails_of(const Engine& engine, const std::string& network) {
  std::vector<RailStats> rails = engine.rail_stats();
  std::erase_if(rails, [&](const RailStats& rail) { return rail.network != network; });
  return rails;
}

NetworkInfo probe(const std::string& name, const Config& config) {
  const auto engine = Engine::open(config);
  if (engine) return {.name = name, .rails = rails_of(*engine, name)};
  return {.name = name, .why = engine.error(), .remedy = remedy_of(name, engine.error())};
}

}  // namespace

std::vector<NetworkInfo> find_networks() {
  const IgnoreNetworkChoice every;
  const std::vector<std::string> built = providers();
  std::vector<NetworkInfo> out;
  for (const std::string& name : built) {
    out.push_back(probe(name, {.networks = {{.provider = name}}}));
  }
  for (const Planned& planned : kPlanned) {
    if (std::find(built.begin(), built.end(), planned.name) != built.end()) continue;
    out.push_back({.name = planned.name,
                   .built = false,
                   .why = fail(Errc::kUnsupported, "not part of this build"),
                   .remedy = planned.instead});
  }
  // Part of every engine, whatever else it has.
  out.push_back(probe("self", {}));
  return out;
}

}  // namespace fabric::tool

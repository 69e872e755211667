#include "networks.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include <fmt/format.h>

namespace fabric::tool {
namespace {

/// Unsets FABRICLIB_NETWORKS in its scope: it would override the network that is to be opened.
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

/// Networks that are not built in, or do not exist yet, and what to use instead.
struct Planned {
  const char* name;
  const char* instead;
};
constexpr std::array<Planned, 3> kPlanned{
    {{"verbs",
      "for RDMA NICs install libibverbs-dev and configure again (FABRIC_VERBS=ON requires it)"},
     {"ofi",
      "planned, for EFA and other libfabric networks: use verbs between hosts with RDMA NICs"},
     {"tcp", "planned, for hosts without RDMA: use shm on one host"}}};

std::string remedy_of_verbs(const Error& why) {
  const std::string_view what = why.what;
  if (what.find("libibverbs") != std::string_view::npos) {
    return "install rdma-core: libibverbs1 and ibverbs-providers";
  }
  if (why.code == Errc::kPermission)
    return "give this user access to the devices in /dev/infiniband";
  if (why.code == Errc::kUnsupported) {
    return "needs an RDMA NIC with an active port: `rdma link` lists them";
  }
  return "run with FABRICLIB_LOG_LEVEL=debug for details";
}

std::string remedy_of(const std::string& network, const Error& why) {
  const std::string_view what = why.what;
  if (what.starts_with("FABRICLIB_")) {
    return fmt::format("correct or unset the environment variable {}", what);
  }
  if (network == "sim")
    return "as intended: simulated networks are opened by `fabric sim` and sim::World";
  if (network == "verbs" && why.code != Errc::kExhausted) return remedy_of_verbs(why);
  switch (why.code) {
    case Errc::kExhausted:
      return "raise the limit of open files (ulimit -n) or free memory, then try again";
    case Errc::kPermission:
      return "allow Unix sockets and memfd_create() (a sandbox or seccomp filter forbids them)";
    case Errc::kUnsupported:
      return "not supported on this machine: use another network or a newer kernel";
    default:
      return "run with FABRICLIB_LOG_LEVEL=debug for details";
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

std::vector<NetworkInfo> find_networks(const std::string& near) {
  const IgnoreNetworkChoice every;
  const std::vector<std::string> built = providers();
  std::vector<NetworkInfo> out;
  for (const std::string& name : built) {
    const bool over_nics = name == "verbs";
    out.push_back(probe(name, {.networks = {{.provider = name, .near = over_nics ? near : ""}}}));
  }
  for (const Planned& planned : kPlanned) {
    if (std::find(built.begin(), built.end(), planned.name) != built.end()) continue;
    out.push_back({.name = planned.name,
                   .built = false,
                   .why = fail(Errc::kUnsupported, "not part of this build"),
                   .remedy = planned.instead});
  }
  // Part of every engine.
  out.push_back(probe("self", {}));
  return out;
}

}  // namespace fabric::tool

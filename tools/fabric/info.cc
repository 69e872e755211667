// fabric info: which networks this build has and this machine can use, what each of their rails can
// do, and the limits of the system that decide about it.

#include <linux/membarrier.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#if __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <fabric/fabric.h>

#include "verbs.h"

namespace fabric::tool {
namespace {

/// One network of this build, opened by itself. Without an engine `why` says what is missing.
struct Found {
  std::string name{};
  std::vector<RailStats> rails{};
  Error why{};
  bool usable() const { return !rails.empty(); }
};

/// A name and a value for people; for programs the same value as it is.
struct Limit {
  std::string name{};
  std::string text{};
  nlohmann::ordered_json value{};
};

std::vector<RailStats> rails_of(const Engine& engine, const std::string& network) {
  std::vector<RailStats> rails = engine.rail_stats();
  std::erase_if(rails, [&](const RailStats& rail) { return rail.network != network; });
  return rails;
}

Found look_at(const std::string& provider) {
  const auto engine = Engine::open({.networks = {{.provider = provider}}});
  if (!engine) return {.name = provider, .why = engine.error()};
  return {.name = provider, .rails = rails_of(*engine, provider)};
}

Limit resource(const char* name, __rlimit_resource which) {
  rlimit limit{};
  if (::getrlimit(which, &limit) != 0) return {name, "unknown", nullptr};
  if (limit.rlim_cur == RLIM_INFINITY) return {name, "unlimited", "unlimited"};
  return {name, fmt::format("{}", limit.rlim_cur), limit.rlim_cur};
}

Limit yes_or_no(const char* name, bool value) { return {name, value ? "yes" : "no", value}; }

/// A number or word that the kernel shows as a file. Nothing when there is no such file.
void add_file(std::vector<Limit>& limits, const char* name, const char* path) {
  std::string line;
  std::ifstream file(path);
  if (file && std::getline(file, line)) limits.push_back({name, line, line});
}

bool has_rseq() {
#ifdef RSEQ_SIG
  return __rseq_size > 0;  // the C library has registered its threads
#else
  return false;
#endif
}

bool has_membarrier() {
  const long commands = ::syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
  return commands > 0 && (commands & MEMBARRIER_CMD_GLOBAL_EXPEDITED) != 0;
}

std::vector<Limit> limits() {
  std::vector<Limit> out{resource("locked memory bytes", RLIMIT_MEMLOCK),
                         resource("open files", RLIMIT_NOFILE),
                         yes_or_no("restartable sequences", has_rseq()),
                         yes_or_no("global memory barrier", has_membarrier())};
  add_file(out, "ptrace scope", "/proc/sys/kernel/yama/ptrace_scope");
  add_file(out, "reserved huge pages", "/proc/sys/vm/nr_hugepages");
  add_file(out, "huge pages for shared memory",
           "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  return out;
}

std::vector<std::string> kinds_of(const Caps& caps) {
  std::vector<std::string> names;
  for (const MemoryKind kind : {MemoryKind::kHost, MemoryKind::kCuda, MemoryKind::kRocm}) {
    if ((caps.memory_kinds & kind_bit(kind)) != 0) names.emplace_back(to_string(kind));
  }
  return names;
}

/// The capabilities that are there or not, by what they mean to a user.
std::vector<std::pair<std::string, bool>> abilities_of(const Caps& caps) {
  return {{"ordered", caps.ordered},
          {"exact_replay", caps.exact_replay},
          {"checks_access", caps.checks_access},
          {"maps_memory", caps.maps_memory},
          {"cpu_copy", caps.cpu_copy}};
}

void print_rail(const RailStats& rail) {
  const auto line = [](std::string_view name, const auto& value) {
    fmt::print("      {:<24} {}\n", name, value);
  };
  std::vector<std::string> abilities;
  for (const auto& [name, has] : abilities_of(rail.caps)) {
    if (has) abilities.push_back(name);
  }
  fmt::print("    rail {} {} ({})\n", rail.index, rail.device, rail.up ? "up" : "down");
  line("fence kind", to_string(rail.caps.fence));
  line("memory", fmt::format("{}", fmt::join(kinds_of(rail.caps), ", ")));
  line("abilities", fmt::format("{}", fmt::join(abilities, ", ")));
  line("in flight",
       fmt::format("{} pieces, {} on a path", rail.caps.queue_depth, rail.caps.path_depth));
  line("bytes of a piece", rail.caps.write_bytes_max);
  for (const auto& [name, value] : rail.facts) line(name, value);
}

void print_text(const std::vector<Found>& networks, const std::vector<Limit>& limits) {
  fmt::print("fabric-lib {}\n\nnetworks, in the order of preference\n", version());
  for (const Found& network : networks) {
    if (network.usable()) {
      fmt::print("  {:<5} usable\n", network.name);
    } else {
      fmt::print("  {:<5} not here: {} ({})\n", network.name, to_string(network.why.code),
                 network.why.what);
    }
    for (const RailStats& rail : network.rails) print_rail(rail);
  }
  fmt::print("\nlimits of this process and system\n");
  for (const Limit& limit : limits) fmt::print("  {:<30} {}\n", limit.name, limit.text);
  if (const char* chosen = std::getenv("FABRIC_NETWORKS")) {
    fmt::print("\nFABRIC_NETWORKS={}: engines in this environment use these only\n", chosen);
  }
}

nlohmann::ordered_json to_json(const RailStats& rail) {
  nlohmann::ordered_json caps{{"fence", to_string(rail.caps.fence)},
                              {"memory", kinds_of(rail.caps)},
                              {"queue_depth", rail.caps.queue_depth},
                              {"path_depth", rail.caps.path_depth},
                              {"write_bytes_max", rail.caps.write_bytes_max}};
  for (const auto& [name, has] : abilities_of(rail.caps)) caps[name] = has;
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();
  for (const auto& [name, value] : rail.facts) facts[name] = value;
  return {{"index", rail.index},
          {"device", rail.device},
          {"up", rail.up},
          {"caps", caps},
          {"facts", facts}};
}

void print_json(const std::vector<Found>& networks, const std::vector<Limit>& limits) {
  nlohmann::ordered_json report{{"version", version()}};
  for (const Found& network : networks) {
    nlohmann::ordered_json one{{"name", network.name}, {"usable", network.usable()}};
    if (!network.usable()) {
      one["why"] = {{"code", to_string(network.why.code)}, {"what", network.why.what}};
    }
    one["rails"] = nlohmann::ordered_json::array();
    for (const RailStats& rail : network.rails) one["rails"].push_back(to_json(rail));
    report["networks"].push_back(std::move(one));
  }
  for (const Limit& limit : limits) {
    std::string key = limit.name;
    std::replace(key.begin(), key.end(), ' ', '_');
    report["limits"][key] = limit.value;
  }
  fmt::print("{}\n", report.dump());
}

/// An engine obeys FABRIC_NETWORKS, whatever it is asked for; here every network is asked.
class EveryNetwork {
 public:
  EveryNetwork() {
    if (const char* value = std::getenv("FABRIC_NETWORKS")) chosen_ = value;
    ::unsetenv("FABRIC_NETWORKS");
  }
  ~EveryNetwork() {
    if (!chosen_.empty()) ::setenv("FABRIC_NETWORKS", chosen_.c_str(), 1);
  }
  EveryNetwork(EveryNetwork&&) = delete;

 private:
  std::string chosen_{};
};

std::vector<Found> look() {
  const EveryNetwork every;
  std::vector<Found> out;
  for (const std::string& provider : providers()) out.push_back(look_at(provider));
  // The engine's own address: part of every engine, whatever else it has.
  const auto engine = Engine::open();
  if (engine) out.push_back({.name = "self", .rails = rails_of(*engine, "self")});
  if (!engine) out.push_back({.name = "self", .why = engine.error()});
  return out;
}

}  // namespace

void add_info(CLI::App& app, int& exit_code) {
  auto json = std::make_shared<bool>(false);
  CLI::App* verb = app.add_subcommand("info", "What this build and this machine can do");
  verb->add_flag("--json", *json, "The same for programs");
  verb->callback([json, &exit_code] {
    const std::vector<Found> networks = look();
    *json ? print_json(networks, limits()) : print_text(networks, limits());
    exit_code = 0;
  });
}

}  // namespace fabric::tool

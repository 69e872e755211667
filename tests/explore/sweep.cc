#include "explore/sweep.h"

#include <algorithm>
#include <cstdio>
#include <tuple>

namespace fabric::interleave {
namespace {

/// Without the template arguments, which not every compiler includes.
std::string_view function_of(const Site& site) {
  const std::string_view name = site.function;
  return name.substr(0, name.find('<'));
}

bool same_operation(const Site& a, const Site& b) {
  return function_of(a) == function_of(b) && std::string_view(a.operation) == b.operation;
}

/// "cancel compare_exchange"; with a number when the function has several of the kind.
std::string name_of(const std::vector<SiteUse>& all, const Site& site) {
  int before = 0, count = 0;
  for (const SiteUse& use : all) {
    count += same_operation(use.site, site);
    before += same_operation(use.site, site) && use.site.line < site.line;
  }
  std::string name = std::string(function_of(site)) + " " + site.operation;
  if (count > 1) name += " " + std::to_string(before + 1);
  return name;
}

std::vector<SiteUse> sites_of(const std::vector<NamedProgram>& programs) {
  std::vector<SiteUse> all;
  for (const NamedProgram& one : programs) {
    for (const SiteUse& use : explore(one.make, {.preemptions_max = one.preemptions_max}).sites)
      all.push_back(use);
  }
  const auto key = [](const SiteUse& use) {
    return std::tuple(function_of(use.site), use.site.line, std::string_view(use.site.operation));
  };
  std::sort(all.begin(), all.end(),
            [&](const SiteUse& a, const SiteUse& b) { return key(a) < key(b); });
  all.erase(std::unique(all.begin(), all.end(),
                        [&](const SiteUse& a, const SiteUse& b) { return key(a) == key(b); }),
            all.end());
  return all;
}

}  // namespace

void expect_sound(const std::vector<NamedProgram>& programs) {
  for (const NamedProgram& one : programs) {
    const Report report = explore(one.make, {.preemptions_max = one.preemptions_max});
    EXPECT_EQ(report.failure, "") << one.name << ", execution " << report.executions << "\n"
                                  << report.schedule;
    EXPECT_TRUE(report.complete) << one.name;
    std::printf("  %-44s %8llu executions\n", one.name,
                static_cast<unsigned long long>(report.executions));
  }
}

void expect_mutants_found(const std::vector<NamedProgram>& programs,
                          const std::vector<Survivor>& survivors) {
  const std::vector<SiteUse> sites = sites_of(programs);
  std::vector<std::string> alive;
  for (const SiteUse& use : sites) {
    for (const Weakening how : use.weakenings) {
      const std::string name = name_of(sites, use.site) + " " + to_string(how);
      bool found = false;
      for (const NamedProgram& one : programs) {
        const Report report =
            explore(one.make, {.mutant = {use.site, how}, .preemptions_max = one.preemptions_max});
        if (report.failure.empty()) continue;
        std::printf("  %-56s %s, execution %llu, order %s: %s\n", name.c_str(), one.name,
                    static_cast<unsigned long long>(report.executions), report.order.c_str(),
                    report.failure.c_str());
        found = true;
        break;
      }
      if (!found) alive.push_back(name);
    }
  }
  for (const std::string& name : alive) {
    const bool known = std::any_of(survivors.begin(), survivors.end(),
                                   [&](const Survivor& one) { return one.mutant == name; });
    EXPECT_TRUE(known) << "no program detects: " << name;
  }
  for (const Survivor& one : survivors) {
    EXPECT_TRUE(std::find(alive.begin(), alive.end(), one.mutant) != alive.end())
        << "listed as undetected, but is detected or no longer exists: " << one.mutant;
  }
}

}  // namespace fabric::interleave

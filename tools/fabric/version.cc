#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "versions.h"

namespace fabric::tool {

void add_version(CLI::App& app, int& exit_code) {
  auto json = std::make_shared<bool>(false);
  CLI::App* verb = app.add_subcommand("version", "Which library this is, and what built it");
  verb->add_flag("--json", *json, "The same for programs");
  verb->footer(
      "Examples:\n  fabric version\n  fabric version --json\n\nExit code 0: printed; 2: bad "
      "options.");
  verb->callback([json, &exit_code] {
    nlohmann::ordered_json object;
    for (const auto& [name, value] : versions()) {
      object[name] = value;
      if (!*json) fmt::print("{:<10} {}\n", name, value);
    }
    if (*json) fmt::print("{}\n", object.dump());
    exit_code = 0;
  });
}

}  // namespace fabric::tool

#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "versions.h"

namespace fabric::tool {
namespace {

int print_versions(bool json) {
  nlohmann::ordered_json object;
  for (const auto& [name, value] : versions()) {
    object[name] = value;
    if (!json) fmt::print("{:<10} {}\n", name, value);
  }
  if (json) fmt::print("{}\n", object.dump());
  return 0;
}

}  // namespace

Command version_command() {
  auto json = std::make_shared<bool>(false);
  return {.name = "version",
          .help = "Versions of the library, its compiler and the system",
          .footer =
              "Examples:\n  fabric version\n  fabric version --json\n\nExit code 0: printed; "
              "2: bad options.",
          .options = {{.name = "--json", .help = "The same as JSON", .target = json.get()}},
          .run = [json] { return print_versions(*json); }};
}

}  // namespace fabric::tool

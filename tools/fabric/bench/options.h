#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "plan.h"

namespace fabric::tool::bench {

/// One command line of `fabric bench`.
struct Options {
  BenchPlan plan{};
  std::vector<int> cpus{};
  std::vector<std::string> peer_devices{};  ///< of a receiver that is started here
  std::optional<std::string> listen{};
  std::optional<std::string> connect{};
  bool json = false;
};

/// The options that make sense for the verb, with its defaults. What is wrong on the command line
/// is a CLI::ParseError that names the option.
void add_options(CLI::App& verb, Options& options);

/// What remains to be looked at when all of them are known.
void validate(Options& options);

}  // namespace fabric::tool::bench

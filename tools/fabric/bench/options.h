#pragma once

#include <optional>
#include <string>
#include <vector>

#include "command_line.h"
#include "plan.h"

namespace fabric::tool::bench {

/// The command line of one benchmark.
struct Options {
  BenchPlan plan{};
  std::vector<int> cpus{};                  ///< --pin: of the sender, of the receiver
  std::vector<std::string> peer_devices{};  ///< of a receiver that is forked here
  std::optional<std::string> listen{};
  std::optional<std::string> connect{};
  bool json = false;
};

/// The options of the benchmark that `options` names, with its defaults. They refer to `options`,
/// which must outlive them.
std::vector<Option> options_of(Options& options);

/// Checks options against each other and fills in what depends on others. Throws BadOption.
void validate(Options& options);

}  // namespace fabric::tool::bench

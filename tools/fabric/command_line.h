#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

// The command line as plain data: a tree of commands with their options. Only command_line.cc knows
// the parser (CLI11).

namespace fabric::tool {

/// A value that the command line cannot have. Thrown by Option::target functions and by
/// Command::run; the user gets the option's name, the reason and exit code 2.
struct BadOption : std::runtime_error {
  BadOption(std::string name, const std::string& why)
      : std::runtime_error(why), option(std::move(name)) {}
  std::string option;
};

struct Option {
  /// bool: a flag. A function takes the text as it is.
  using Target = std::variant<bool*, uint32_t*, uint64_t*, double*, std::string*,
                              std::function<void(const std::string&)>>;

  std::string name{};  ///< "--seed"
  std::string help{};
  Target target{};                     ///< must outlive the call of run_command_line()
  std::string value_name{};            ///< in the help; empty: the type of the target
  bool show_default = false;           ///< show the target's present value in the help
  std::string default_text{};          ///< or this text
  std::vector<std::string> choices{};  ///< the values that are allowed; empty: any
  std::pair<double, double> range{};   ///< of a number, both ends included; {0, 0}: any
  std::function<std::string(const std::string&)>
      check{};  ///< why a value is wrong; empty: it is not
  bool value_optional = false;
  std::string excludes{};  ///< an option before it in the list

  bool is_flag() const { return std::holds_alternative<bool*>(target); }
};

struct Command {
  std::string name{};
  std::string help{};
  std::string footer{};  ///< below the options in the help: examples, exit codes
  std::vector<Option> options{};
  std::vector<Command> commands{};  ///< exactly one must follow, if there are any
  std::function<int()> run{};       ///< returns the exit code of the process
};

// Options that the parser adds: the first to every command, the second to the root.
inline constexpr const char* kHelpOptionHelp = "Print this help message and exit";
inline constexpr const char* kVersionOptionHelp = "Display program version information and exit";

/// Parses the command line, runs the command that it names and returns the exit code: 2 if the
/// command line is wrong, 0 after --help or --version, else what Command::run returns. Exceptions
/// of Command::run other than BadOption pass through.
int run_command_line(const Command& root, const std::string& version, int argc, char** argv);

}  // namespace fabric::tool

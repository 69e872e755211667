#include "command_line.h"

#include <cstdio>
#include <type_traits>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

namespace fabric::tool {
namespace {

/// Instead of CLI::Range, which accepts "nan" and adds its text to every line of the help.
template <class T>
CLI::Validator within(T least, T most) {
  const auto check = [least, most](const std::string& text) -> std::string {
    T value{};
    const bool good = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
    return good ? "" : fmt::format("'{}' is not a number from {} to {}", text, least, most);
  };
  return CLI::Validator(check, "");
}

/// Runs `call` and hands a BadOption to the parser in its own type.
template <class Call>
auto translated(Call call) {
  try {
    return call();
  } catch (const BadOption& bad) {
    throw CLI::ValidationError(bad.option, bad.what());
  }
}

/// One overload for each kind of target.
struct AddTarget {
  CLI::App& app;
  const Option& option;

  CLI::Option* operator()(bool* flag) const {
    return app.add_flag(option.name, *flag, option.help);
  }

  template <class T>
  CLI::Option* operator()(T* value) const {
    CLI::Option* added = app.add_option(option.name, *value, option.help);
    if constexpr (std::is_arithmetic_v<T>) {
      const auto [least, most] = option.range;
      if (least < most) added->check(within(static_cast<T>(least), static_cast<T>(most)));
    }
    return added;
  }

  CLI::Option* operator()(const std::function<void(const std::string&)>& set) const {
    return app.add_option_function<std::string>(
        option.name, [set](const std::string& text) { translated([&] { set(text); }); },
        option.help);
  }
};

void add_option(CLI::App& app, const Option& option) {
  CLI::Option* added = std::visit(AddTarget{app, option}, option.target);
  if (!option.value_name.empty()) added->type_name(option.value_name);
  if (!option.choices.empty()) added->check(CLI::IsMember(option.choices));
  if (option.check) added->check(option.check);
  if (option.value_optional) added->expected(0, 1);
  if (option.show_default) added->capture_default_str();
  if (!option.default_text.empty() || option.value_optional) {
    added->default_str(option.default_text);
  }
  if (!option.excludes.empty()) added->excludes(app.get_option(option.excludes));
}

/// Adds options and commands of `command` to `app`, which has its name and help already.
void fill(CLI::App& app, const Command& command, int& exit_code) {
  app.footer(command.footer);
  for (const Option& option : command.options) add_option(app, option);
  for (const Command& child : command.commands) {
    fill(*app.add_subcommand(child.name, child.help), child, exit_code);
  }
  if (!command.commands.empty()) app.require_subcommand(1);
  if (command.run) {
    app.callback(
        [run = command.run, &exit_code] { exit_code = translated([&] { return run(); }); });
  }
}

/// The first word that should be a command and is none; empty: all are. The parser would only
/// report that a subcommand is missing.
std::string unknown_command(const Command& root, int argc, char** argv) {
  const Command* level = &root;
  for (int i = 1; i < argc && argv[i][0] != '-' && !level->commands.empty(); ++i) {
    const Command* next = nullptr;
    for (const Command& child : level->commands) {
      if (child.name == argv[i]) next = &child;
    }
    if (next == nullptr) return argv[i];
    level = next;
  }
  return {};
}

}  // namespace

int run_command_line(const Command& root, const std::string& version, int argc, char** argv) {
  CLI::App app(root.help, root.name);
  app.set_help_flag("-h,--help", kHelpOptionHelp);
  app.set_version_flag("--version", version, kVersionOptionHelp);
  int exit_code = 0;
  fill(app, root, exit_code);
  if (const std::string word = unknown_command(root, argc, argv); !word.empty()) {
    std::fprintf(stderr, "%s: unknown command '%s'; --help in its place lists the commands\n",
                 root.name.c_str(), word.c_str());
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // --help and --version end here too, with 0.
    return app.exit(error) == 0 ? 0 : 2;
  }
  return exit_code;
}

}  // namespace fabric::tool

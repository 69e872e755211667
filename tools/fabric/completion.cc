// fabric completion: completion scripts for shells, generated from the same command tree as --help.

#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "commands.h"

namespace fabric::tool {
namespace {

struct Name {
  std::string word{};
  std::string what{};
};

/// An option that needs a value, and the values that it may have, if they are known.
struct Valued {
  std::string option{};
  std::vector<std::string> choices{};
};

/// One node of the command tree: the words that lead to it, and the words that may follow.
struct Level {
  std::vector<std::string> path{};
  std::vector<Name> commands{};
  std::vector<Name> options{};
  std::vector<Valued> valued{};

  /// " bench write": the path as the scripts put it together, word by word.
  std::string key() const {
    std::string out;
    for (const std::string& word : path) out += " " + word;
    return out;
  }
};

void add_levels(const Command& command, const std::vector<std::string>& path,
                std::vector<Level>& out) {
  Level level{.path = path, .options = {{"--help", kHelpOptionHelp}}};
  if (path.empty()) level.options.push_back({"--version", kVersionOptionHelp});
  for (const Option& option : command.options) {
    level.options.push_back({option.name, option.help});
    if (!option.is_flag() && !option.value_optional) {
      level.valued.push_back({option.name, option.choices});
    }
  }
  for (const Command& child : command.commands) level.commands.push_back({child.name, child.help});
  out.push_back(std::move(level));
  for (const Command& child : command.commands) {
    std::vector<std::string> deeper = path;
    deeper.push_back(child.name);
    add_levels(child, deeper, out);
  }
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

/// Shell cases for the values of options, for bash and zsh: `offer` is how the shell offers words.
/// Options without known values offer none, and no other options either.
std::string cases(const std::vector<Level>& levels, const std::string& offer) {
  std::string out;
  std::vector<std::string> any_value;
  for (const Level& level : levels) {
    for (const Valued& one : level.valued) {
      const std::string where = quoted(level.key() + " " + one.option);
      if (one.choices.empty()) {
        any_value.push_back(where);
        continue;
      }
      out += fmt::format("    {}) {}; return ;;\n", where,
                         fmt::format(fmt::runtime(offer), fmt::join(one.choices, " ")));
    }
  }
  return out + fmt::format("    {}) return ;;\n", fmt::join(any_value, "|"));
}

/// Patterns of all levels, by which a script finds the words that lead to a deeper one.
std::string paths(const std::vector<Level>& levels) {
  std::vector<std::string> all;
  for (const Level& level : levels) {
    if (!level.path.empty()) all.push_back(quoted(level.key()));
  }
  return fmt::format("{}", fmt::join(all, "|"));
}

std::string bash(const std::vector<Level>& levels) {
  std::string words;
  for (const Level& level : levels) {
    std::string names;
    for (const auto* list : {&level.commands, &level.options}) {
      for (const Name& name : *list) names += (names.empty() ? "" : " ") + name.word;
    }
    words += fmt::format("    {}) names='{}' ;;\n", quoted(level.key()), names);
  }
  return fmt::format(
      R"(# Completion of fabric for bash: source <(fabric completion bash)
_fabric() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} level= names= i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$level ${{COMP_WORDS[i]}}" in
    {}) level="$level ${{COMP_WORDS[i]}}" ;;
    esac
  done
  case "$level ${{COMP_WORDS[COMP_CWORD - 1]}}" in
{}  esac
  case "$level" in
{}  esac
  COMPREPLY=($(compgen -W "$names" -- "$current"))
}}
complete -F _fabric fabric
)",
      paths(levels), cases(levels, "COMPREPLY=($(compgen -W '{}' -- \"$current\"))"), words);
}

std::string zsh(const std::vector<Level>& levels) {
  std::string words;
  for (const Level& level : levels) {
    words += fmt::format("    {}) names=(", quoted(level.key()));
    for (const auto* list : {&level.commands, &level.options}) {
      for (const Name& name : *list) {
        // Only the first colon is a separator; the words have none.
        words += "\n      " + quoted(name.word + ":" + name.what);
      }
    }
    words += ") ;;\n";
  }
  return fmt::format(
      R"(#compdef fabric
# Completion of fabric for zsh: source <(fabric completion zsh), after compinit
_fabric() {{
  local level= i
  local -a names
  for ((i = 2; i < CURRENT; i++)); do
    case "$level ${{words[i]}}" in
    {}) level="$level ${{words[i]}}" ;;
    esac
  done
  case "$level ${{words[CURRENT - 1]}}" in
{}  esac
  case "$level" in
{}  esac
  _describe fabric names
}}
if [ "$funcstack[1]" = _fabric ]; then _fabric "$@"; else compdef _fabric fabric; fi
)",
      paths(levels), cases(levels, "compadd -- {}"), words);
}

std::string fish(const std::vector<Level>& levels) {
  std::string out =
      "# Completion of fabric for fish: fabric completion fish | source\n"
      "complete -c fabric -f\n";
  const auto escaped = [](const std::string& text) {
    std::string quotes = "'";
    for (const char c : text)
      quotes += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
    return quotes + "'";
  };
  for (const Level& level : levels) {
    // After all words of its path, and before any word that leads to a deeper level.
    std::string when;
    for (const std::string& word : level.path) {
      when += fmt::format("__fish_seen_subcommand_from {}; and ", word);
    }
    std::vector<std::string> deeper;
    for (const Name& command : level.commands) deeper.push_back(command.word);
    when += deeper.empty()
                ? "true"
                : fmt::format("not __fish_seen_subcommand_from {}", fmt::join(deeper, " "));
    for (const Name& command : level.commands) {
      out += fmt::format("complete -c fabric -n '{}' -a {} -d {}\n", when, command.word,
                         escaped(command.what));
    }
    for (const Name& option : level.options) {
      out += fmt::format("complete -c fabric -n '{}' -l {}", when, option.word.substr(2));
      for (const Valued& one : level.valued) {
        if (one.option == option.word) {
          out += fmt::format(" -x -a '{}'", fmt::join(one.choices, " "));
        }
      }
      out += fmt::format(" -d {}\n", escaped(option.what));
    }
  }
  return out;
}

}  // namespace

Command completion_command(const Command& root) {
  const auto shell = [&root](const char* name, std::string (*script)(const std::vector<Level>&)) {
    return Command{.name = name, .help = std::string("For ") + name, .run = [&root, script] {
                     std::vector<Level> levels;
                     add_levels(root, {}, levels);
                     fmt::print("{}", script(levels));
                     return 0;
                   }};
  };
  return {.name = "completion",
          .help = "Print a script that completes fabric in a shell",
          .footer =
              "Examples:\n"
              "  source <(fabric completion bash)           now; or in ~/.bashrc\n"
              "  source <(fabric completion zsh)            the same, after compinit\n"
              "  fabric completion fish | source\n\n"
              "Exit code 0: printed; 2: bad options.",
          .commands = {shell("bash", bash), shell("zsh", zsh), shell("fish", fish)}};
}

}  // namespace fabric::tool

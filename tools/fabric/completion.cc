// fabric completion: scripts for shells, made from the options that the command itself knows. So
// they cannot tell another story than --help.

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

/// An option that needs a value, and the words that it may be, if they are known.
struct Valued {
  std::string option{};
  std::vector<std::string> choices{};
};

/// A place on the command line: behind which words one is, and what may follow there.
struct Place {
  std::vector<std::string> path{};
  std::vector<Name> verbs{};
  std::vector<Name> options{};
  std::vector<Valued> valued{};

  /// " bench write": as the scripts put it together, word by word.
  std::string key() const {
    std::string out;
    for (const std::string& word : path) out += " " + word;
    return out;
  }
};

/// What a check for one of several words adds to the name of the type: "WORD:{inline,threaded}".
std::vector<std::string> choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

void walk(const CLI::App& app, const std::vector<std::string>& path, std::vector<Place>& out) {
  Place here{.path = path};
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      here.options.push_back({"--" + name, option->get_description()});
      if (option->get_items_expected_min() > 0) {
        here.valued.push_back({"--" + name, choices_of(*option)});
      }
    }
  }
  const auto verbs = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* verb : verbs) {
    here.verbs.push_back({verb->get_name(), verb->get_description()});
  }
  out.push_back(std::move(here));
  for (const CLI::App* verb : verbs) {
    std::vector<std::string> deeper = path;
    deeper.push_back(verb->get_name());
    walk(*verb, deeper, out);
  }
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

/// What an option wants behind it, for bash and zsh: `offer` is how the shell offers words. Where
/// none are known nothing is offered, least of all other options.
std::string cases(const std::vector<Place>& places, const std::string& offer) {
  std::string out;
  std::vector<std::string> silent;
  for (const Place& place : places) {
    for (const Valued& one : place.valued) {
      const std::string where = quoted(place.key() + " " + one.option);
      if (one.choices.empty()) {
        silent.push_back(where);
        continue;
      }
      out += fmt::format("    {}) {}; return ;;\n", where,
                         fmt::format(fmt::runtime(offer), fmt::join(one.choices, " ")));
    }
  }
  return out + fmt::format("    {}) return ;;\n", fmt::join(silent, "|"));
}

/// All places, so that a script knows which words lead further.
std::string paths(const std::vector<Place>& places) {
  std::vector<std::string> all;
  for (const Place& place : places) {
    if (!place.path.empty()) all.push_back(quoted(place.key()));
  }
  return fmt::format("{}", fmt::join(all, "|"));
}

std::string bash(const std::vector<Place>& places) {
  std::string words;
  for (const Place& place : places) {
    std::string names;
    for (const auto* list : {&place.verbs, &place.options}) {
      for (const Name& name : *list) names += (names.empty() ? "" : " ") + name.word;
    }
    words += fmt::format("    {}) names='{}' ;;\n", quoted(place.key()), names);
  }
  return fmt::format(
      R"(# Completion of fabric for bash: source <(fabric completion bash)
_fabric() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} place= names= i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$place ${{COMP_WORDS[i]}}" in
    {}) place="$place ${{COMP_WORDS[i]}}" ;;
    esac
  done
  case "$place ${{COMP_WORDS[COMP_CWORD - 1]}}" in
{}  esac
  case "$place" in
{}  esac
  COMPREPLY=($(compgen -W "$names" -- "$current"))
}}
complete -F _fabric fabric
)",
      paths(places), cases(places, "COMPREPLY=($(compgen -W '{}' -- \"$current\"))"), words);
}

std::string zsh(const std::vector<Place>& places) {
  std::string words;
  for (const Place& place : places) {
    words += fmt::format("    {}) names=(", quoted(place.key()));
    for (const auto* list : {&place.verbs, &place.options}) {
      for (const Name& name : *list) {
        // Only the first colon is a separator; the words have none.
        words += "\n      " + quoted(name.word + ":" + name.what);
      }
    }
    words += ") ;;\n";
  }
  return fmt::format(
      R"(#compdef fabric
# Completion of fabric for zsh: source <(fabric completion zsh), behind compinit
_fabric() {{
  local place= i
  local -a names
  for ((i = 2; i < CURRENT; i++)); do
    case "$place ${{words[i]}}" in
    {}) place="$place ${{words[i]}}" ;;
    esac
  done
  case "$place ${{words[CURRENT - 1]}}" in
{}  esac
  case "$place" in
{}  esac
  _describe fabric names
}}
if [ "$funcstack[1]" = _fabric ]; then _fabric "$@"; else compdef _fabric fabric; fi
)",
      paths(places), cases(places, "compadd -- {}"), words);
}

std::string fish(const std::vector<Place>& places) {
  std::string out =
      "# Completion of fabric for fish: fabric completion fish | source\n"
      "complete -c fabric -f\n";
  const auto escaped = [](const std::string& text) {
    std::string quotes = "'";
    for (const char c : text)
      quotes += c == '\'' || c == '\\' ? std::string("\\") + c : std::string(1, c);
    return quotes + "'";
  };
  for (const Place& place : places) {
    // Behind all words of its path, and before any that leads further.
    std::string when;
    for (const std::string& word : place.path) {
      when += fmt::format("__fish_seen_subcommand_from {}; and ", word);
    }
    std::vector<std::string> deeper;
    for (const Name& verb : place.verbs) deeper.push_back(verb.word);
    when += deeper.empty()
                ? "true"
                : fmt::format("not __fish_seen_subcommand_from {}", fmt::join(deeper, " "));
    for (const Name& verb : place.verbs) {
      out += fmt::format("complete -c fabric -n '{}' -a {} -d {}\n", when, verb.word,
                         escaped(verb.what));
    }
    for (const Name& option : place.options) {
      out += fmt::format("complete -c fabric -n '{}' -l {}", when, option.word.substr(2));
      for (const Valued& one : place.valued) {
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

void add_completion(CLI::App& app, int& exit_code) {
  CLI::App* verb = app.add_subcommand("completion", "A script that completes fabric in a shell");
  verb->require_subcommand(1);
  verb->footer(
      "Examples:\n"
      "  source <(fabric completion bash)           now; or in ~/.bashrc\n"
      "  source <(fabric completion zsh)            the same, behind compinit\n"
      "  fabric completion fish | source\n\n"
      "Exit code 0: printed; 2: bad options.");
  const auto add = [&](const char* shell, std::string (*script)(const std::vector<Place>&)) {
    verb->add_subcommand(shell, std::string("For ") + shell)->callback([&app, &exit_code, script] {
      std::vector<Place> places;
      walk(app, {}, places);
      fmt::print("{}", script(places));
      exit_code = 0;
    });
  };
  add("bash", bash);
  add("zsh", zsh);
  add("fish", fish);
}

}  // namespace fabric::tool

// The fabric command: one binary, one file or folder a verb.

#include <cstdio>
#include <exception>
#include <string>

#include <fabric/fabric.h>

#include "commands.h"

int main(int argc, char** argv) {
  CLI::App app(
      "One-sided writes that are counted: look at a machine, measure it, run a simulated world.",
      "fabric");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("fabric-lib ") + fabric::version());
  app.footer(
      "Examples:\n"
      "  fabric info                       what works here, and what to do about the rest\n"
      "  fabric bench write --pin 0,1      how fast two processes write to each other\n"
      "  fabric sim --worlds 100           random worlds with faults, every promise watched\n"
      "  fabric bench write --help         each verb has help and examples of its own\n\n"
      "Exit code 0: it is so; 1: something failed, or a promise was broken; 2: bad options.");
  int exit_code = 0;
  try {
    fabric::tool::add_info(app, exit_code);
    fabric::tool::add_bench(app, exit_code);
    fabric::tool::add_sim(app, exit_code);
    fabric::tool::add_version(app, exit_code);
    fabric::tool::add_completion(app, exit_code);
    // The parser would only say that some verb is missing.
    const CLI::App* place = &app;
    for (int i = 1; i < argc && argv[i][0] != '-' && !place->get_subcommands({}).empty(); ++i) {
      const std::string verb = argv[i];
      const auto known =
          place->get_subcommands([&](const CLI::App* one) { return one->get_name() == verb; });
      if (known.empty()) {
        std::fprintf(stderr, "fabric: no verb '%s'; --help in its place has them\n", verb.c_str());
        return 2;
      }
      place = known.front();
    }
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Asking for help is no mistake; anything else is one of the caller's.
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fabric: %s\n", error.what());
    return 1;
  }
  return exit_code;
}

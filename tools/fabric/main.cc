// The fabric command: one binary, one file or folder for each of its commands.

#include <cstdio>
#include <exception>
#include <string>

#include <fabric/fabric.h>

#include "commands.h"

int main(int argc, char** argv) {
  using namespace fabric::tool;
  try {
    Command root{
        .name = "fabric",
        .help = "One-sided counted writes: inspect a machine, measure it, run random simulations.",
        .footer =
            "Examples:\n"
            "  fabric info                       what works on this machine, and how to fix the "
            "rest\n"
            "  fabric bench write --pin 0,1      throughput between two processes\n"
            "  fabric sim --worlds 100           random simulations with faults, all promises "
            "checked\n"
            "  fabric bench write --help         each command has help and examples of its own\n\n"
            "Exit code 0: success; 1: something failed, or a promise was violated; 2: bad options.",
        .commands = {info_command(), bench_command(), sim_command(), kv_command(),
                     version_command()}};
    root.commands.push_back(completion_command(root));
    return run_command_line(root, std::string("fabric-lib ") + fabric::version(), argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fabric: %s\n", error.what());
    return 1;
  }
}

#include <fmt/format.h>

#include <fabric/fabric.h>

#include "verbs.h"

namespace fabric::tool {
namespace {

#ifdef __clang__
constexpr const char* kCompiler = "clang " __clang_version__;
#else
constexpr const char* kCompiler = "gcc " __VERSION__;
#endif

void print() {
  fmt::print("fabric-lib {}\ncompiler   {}\nheaders    {}\n", version(), kCompiler,
             FABRIC_VERSION_STRING);
}

}  // namespace

void add_version(CLI::App& app, int& exit_code) {
  app.add_subcommand("version", "Which library this is, and what built it")->callback([&exit_code] {
    print();
    exit_code = 0;
  });
}

}  // namespace fabric::tool

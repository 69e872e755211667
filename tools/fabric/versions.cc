#include "versions.h"

#include <gnu/libc-version.h>
#include <hwloc.h>
#include <sys/utsname.h>

#include <fmt/format.h>

#include <fabric/fabric.h>

namespace fabric::tool {
namespace {

#ifdef __clang__
constexpr const char* kCompiler = "clang " __clang_version__;
#else
constexpr const char* kCompiler = "gcc " __VERSION__;
#endif

std::string kernel() {
  utsname name{};
  if (::uname(&name) != 0) return "unknown";
  return fmt::format("{} {} {}", name.sysname, name.release, name.machine);
}

/// The version of the loaded library, which may differ from that of the headers.
std::string hwloc() {
  const unsigned api = hwloc_get_api_version();
  return fmt::format("API {}.{}.{}", api >> 16, api >> 8 & 0xff, api & 0xff);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> versions() {
  return {{"fabric-lib", version()}, {"headers", FABRIC_VERSION_STRING},  {"compiler", kCompiler},
          {"kernel", kernel()},      {"glibc", ::gnu_get_libc_version()}, {"hwloc", hwloc()}};
}

}  // namespace fabric::tool

#include "planted.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fabric {
namespace {

constexpr const char* kNames[] = {
#include "planted_names.inc"
};

/// An unknown name exits: it must not look like a bug that no test finds.
int chosen() noexcept {
  const char* wanted = std::getenv("FABRICLIB_TEST_PLANTED");
  if (wanted == nullptr) return -1;
  int number = 0;
  for (const char* name : kNames) {
    if (std::strcmp(name, wanted) == 0) return number;
    ++number;
  }
  std::fprintf(stderr, "FABRICLIB_TEST_PLANTED: no planted bug is called %s\n", wanted);
  std::_Exit(64);
}

}  // namespace

const int planted_number = chosen();

}  // namespace fabric

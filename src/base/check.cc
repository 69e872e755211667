#include "base/check.h"

#include <cstdio>
#include <cstdlib>

#include <fabric/result.h>

namespace fabric::detail {

void check_failed(const char* condition, const char* message, const char* file, int line) noexcept {
  std::fprintf(stderr, "fabric: check failed: %s%s%s (%s:%d)\n", condition,
               message[0] != '\0' ? ": " : "", message, file, line);
  std::abort();
}

void unchecked_result(const Error& error) noexcept {
  std::fprintf(stderr, "fabric: a failed Result was used as a value: %s: %s (native %d, %s:%d)\n",
               to_string(error.code), error.what, error.native, error.file, error.line);
  std::abort();
}

}  // namespace fabric::detail

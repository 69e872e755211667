#pragma once

#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include <fabric/result.h>

namespace fabric::tool::bench {

/// Ends a run; the text is for the user. Caught in bench.cc.
struct BenchError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The value; throws BenchError if there is none.
template <class T>
T need(Result<T> result, const char* what) {
  if (!result) {
    throw BenchError(
        fmt::format("{}: {} ({})", what, result.error().what, to_string(result.error().code)));
  }
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

}  // namespace fabric::tool::bench

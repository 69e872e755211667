#pragma once

#include <stdexcept>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <fabric/result.h>

namespace fabric::tool {

/// A command has nobody to hand an error to but its user: main() prints what these throw.
[[noreturn]] inline void give_up(std::string_view doing, const Error& error) {
  throw std::runtime_error(fmt::format("{}: {}: {}", doing, to_string(error.code), error.what));
}

template <class T>
T need(Result<T> result, std::string_view doing) {
  if (!result) give_up(doing, result.error());
  return *std::move(result);
}

inline void need(Result<void> result, std::string_view doing) {
  if (!result) give_up(doing, result.error());
}

}  // namespace fabric::tool

#pragma once

// Broken invariants. A check that fails is a bug of this library or a caller who broke a written
// rule, never a network or a peer: those end in an Errc. FABRIC_CHECK stays on in release builds;
// FABRIC_DCHECK is for conditions that are too dear for the hot path.

namespace fabric::detail {

/// Prints `condition`, `message` and the place to standard error, then aborts.
[[noreturn]] void check_failed(const char* condition, const char* message, const char* file,
                               int line) noexcept;

}  // namespace fabric::detail

/// FABRIC_CHECK(condition) or FABRIC_CHECK(condition, "what it means").
#define FABRIC_CHECK(condition, ...)                                                  \
  do {                                                                                \
    if (!(condition)) [[unlikely]] {                                                  \
      ::fabric::detail::check_failed(#condition, "" __VA_ARGS__, __FILE__, __LINE__); \
    }                                                                                 \
  } while (false)

#ifdef NDEBUG
// sizeof keeps the names in use and evaluates nothing.
#define FABRIC_DCHECK(condition, ...) static_cast<void>(sizeof(!(condition)))
#else
#define FABRIC_DCHECK(condition, ...) FABRIC_CHECK(condition, __VA_ARGS__)
#endif

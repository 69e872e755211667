#pragma once

// Invariant checks. A failed check is a bug of this library or a caller that broke a documented
// rule, never a network or a peer: those result in an Errc. FABRIC_CHECK stays on in release
// builds; FABRIC_DCHECK is for conditions that are too expensive for the hot path.

namespace fabric::detail {

/// Prints `condition`, `message`, file and line to standard error, then aborts.
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

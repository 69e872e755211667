#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

// Counts the system calls of a child process while its window is open, by ptrace: those of libc's
// wrappers and bare instructions alike.

namespace fabric::test {

/// Shared memory by which the child controls its tracer without a system call.
struct Window {
  bool open = false;
  char failure[256] = {};  ///< why the child gave up
};

struct SystemCalls {
  std::map<uint64_t, uint64_t> by_number{};
  std::string failure{};  ///< why the child did not finish

  uint64_t of(uint64_t number) const {
    const auto found = by_number.find(number);
    return found == by_number.end() ? 0 : found->second;
  }
  uint64_t total() const;
  std::string text() const;  ///< numbers and counts
};

/// Runs `body` in a child and counts while the window is open. Empty when ptrace is not permitted.
std::optional<SystemCalls> trace(const std::function<void(Window&)>& body);

}  // namespace fabric::test

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

// Counts the system calls of a child process while it says so, as a debugger sees them: by whatever
// way they are made, libc's wrappers or bare instructions.

namespace fabric::test {

/// What the child tells its tracer, in memory that both have: telling takes no system call.
struct Window {
  bool open = false;
  char failure[256] = {};  ///< why the child gave up
};

struct SystemCalls {
  std::map<uint64_t, uint64_t> by_number{};
  std::string failure{};  ///< the child did not come to its end

  uint64_t of(uint64_t number) const {
    const auto found = by_number.find(number);
    return found == by_number.end() ? 0 : found->second;
  }
  uint64_t total() const;
  std::string text() const;  ///< numbers and counts
};

/// Runs `body` in a child and counts while the window is open. Nothing: this process may not trace.
std::optional<SystemCalls> trace(const std::function<void(Window&)>& body);

}  // namespace fabric::test

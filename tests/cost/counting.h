#pragma once

#include <cstdint>
#include <string>

// Counts what this thread asks of the allocator and of locks. The program's own malloc() and
// pthread_mutex_lock() stand before libc's, so nothing escapes that the library or the standard
// library does. Not seen is a place of the library's own (base/biased_lock.h), taken by plain stores or
// an exchange; who has to wait for one makes a system call (system_calls.h). Not for a build with a
// sanitizer, which does the same.

namespace fabric::test {

struct Counts {
  uint64_t allocations = 0;  ///< operator new included, which comes by way of malloc()
  uint64_t frees = 0;
  uint64_t locks = 0;  ///< of mutexes and of readers and writers, taken or tried
  // Each place with its callers, for addr2line.
  std::string where_allocated{}, where_locked{};
};

/// From its beginning until done().
class Counting {
 public:
  Counting();
  ~Counting();
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;
  Counts done();
};

}  // namespace fabric::test

#pragma once

#include <cstdint>
#include <string>

// Counts the allocations and locks of this thread. The program interposes on malloc() and
// pthread_mutex_lock(), so that calls of the library and of the standard library are all counted.
// Not counted are biased locks (base/biased_lock.h), which are taken by plain stores or an
// exchange; a thread that waits for one makes a system call (system_calls.h). Not for a build with
// a sanitizer, which interposes on the same functions.

namespace fabric::test {

struct Counts {
  uint64_t allocations = 0;  ///< operator new included, which calls malloc()
  uint64_t frees = 0;
  uint64_t locks = 0;  ///< of mutexes and reader-writer locks, taken or tried
  // Each call site with its callers, for addr2line.
  std::string where_allocated{}, where_locked{};
};

/// Counts from its construction until done().
class Counting {
 public:
  Counting();
  ~Counting();
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;
  Counts done();
};

}  // namespace fabric::test

#include "base/membarrier.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

namespace fabric {

namespace {
long membarrier(int command) noexcept { return syscall(SYS_membarrier, command, 0, 0); }
}  // namespace

bool can_fence_all_threads() noexcept {
  static const bool registered = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0 &&
                                 membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0;
  return registered;
}

void fence_all_threads() noexcept {
  if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return;
  // A sandbox installed after the registration forbids it. Stores become visible to all threads
  // within microseconds, at the latest when the storing thread is interrupted.
  timespec rest{.tv_sec = 0, .tv_nsec = 10'000'000};
  while (nanosleep(&rest, &rest) != 0 && errno == EINTR) continue;
}

}  // namespace fabric

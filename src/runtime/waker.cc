#include "runtime/waker.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "base/check.h"

namespace fabric::runtime {

Waker::~Waker() {
  if (fd_ >= 0) close(fd_);
}

Result<void> Waker::open() {
  fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd_ < 0) return fail(Errc::kExhausted, "eventfd", errno);
  return {};
}

void Waker::write() noexcept {
  const uint64_t one = 1;
  // Never blocks and never overflows: the sleeper drains it before the next begin_sleep().
  const ssize_t rc = ::write(fd_, &one, sizeof(one));
  FABRIC_CHECK(rc == sizeof(one) || errno == EAGAIN, "eventfd write failed");
}

void Waker::wait(const std::vector<int>& others, int64_t timeout_ns) noexcept {
  if (timeout_ns <= 0) return;
  polled_.clear();
  polled_.push_back({fd_, POLLIN, 0});
  for (const int fd : others) polled_.push_back({fd, POLLIN, 0});
  const timespec limit{0, static_cast<long>(std::min(timeout_ns, kSleepMaxNs))};
  const int rc = ppoll(polled_.data(), polled_.size(), &limit, nullptr);
  // ENOMEM ends the sleep early, as a signal does: the caller checks for work and sleeps again.
  FABRIC_CHECK(rc >= 0 || errno == EINTR || errno == ENOMEM, "ppoll failed");
  if (rc > 0 && polled_[0].revents != 0) {
    uint64_t rings = 0;
    const ssize_t got = read(fd_, &rings, sizeof(rings));
    FABRIC_CHECK(got == sizeof(rings) || errno == EAGAIN, "eventfd read failed");
  }
}

}  // namespace fabric::runtime

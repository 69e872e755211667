#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "fake_verbs/card.h"

// Control datagrams cross the same cables as the writes. They go over the loopback here, by
// sendmsg() of this program, which stands in front of the one of the C library.

namespace fabric::test {
namespace {

/// Host and rail of an address of these nics.
bool is_fake_nic(const sockaddr_in& at, uint32_t& host, uint32_t& rail) {
  uint8_t bytes[4] = {};
  std::memcpy(bytes, &at.sin_addr, sizeof bytes);
  if (at.sin_family != AF_INET || bytes[0] != 127 || bytes[1] != 77) return false;
  host = bytes[2] - 1u;
  rail = bytes[3] - 1u;
  return true;
}

ssize_t really_send(int fd, const msghdr* message, int flags) {
  return ::syscall(SYS_sendmsg, fd, message, flags);
}

/// A datagram that is to be passed by the next one.
struct Held {
  sockaddr_in to{};
  std::vector<std::byte> bytes{};
  int fd = -1;
};

class Reorder {
 public:
  /// True: it is kept, and goes out behind the next one of its socket.
  bool keep(int fd, const msghdr* message) {
    const std::lock_guard lock(mutex_);
    if (held_.fd >= 0) return false;
    held_.fd = fd;
    held_.bytes.clear();
    std::memcpy(&held_.to, message->msg_name, sizeof held_.to);
    for (size_t i = 0; i < message->msg_iovlen; ++i) {
      const auto* from = static_cast<const std::byte*>(message->msg_iov[i].iov_base);
      held_.bytes.insert(held_.bytes.end(), from, from + message->msg_iov[i].iov_len);
    }
    return true;
  }
  void let_go(int fd) {
    const std::lock_guard lock(mutex_);
    if (held_.fd != fd) return;
    held_.fd = -1;
    iovec part{held_.bytes.data(), held_.bytes.size()};
    msghdr message{};
    message.msg_name = &held_.to;
    message.msg_namelen = sizeof held_.to;
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    really_send(fd, &message, MSG_NOSIGNAL);
  }

 private:
  std::mutex mutex_;
  Held held_;
};

Reorder reorder;

ssize_t size_of(const msghdr* message) {
  size_t size = 0;
  for (size_t i = 0; i < message->msg_iovlen; ++i) size += message->msg_iov[i].iov_len;
  return static_cast<ssize_t>(size);
}

ssize_t send_control(FakeNics& nics, int fd, const msghdr* message, int flags) {
  sockaddr_in to{}, from{};
  socklen_t size = sizeof from;
  std::memcpy(&to, message->msg_name, sizeof to);
  uint32_t to_host = 0, to_rail = 0, from_host = 0, from_rail = 0;
  const bool ours = is_fake_nic(to, to_host, to_rail) &&
                    ::getsockname(fd, reinterpret_cast<sockaddr*>(&from), &size) == 0 &&
                    is_fake_nic(from, from_host, from_rail);
  if (!ours) return really_send(fd, message, flags);
  const auto [copies, swaps] = nics.control(from_host, from_rail, to_host, to_rail);
  if (copies == 0 || (swaps && reorder.keep(fd, message))) return size_of(message);
  ssize_t sent = 0;
  for (uint32_t i = 0; i < copies; ++i) sent = really_send(fd, message, flags);
  reorder.let_go(fd);
  return sent;
}

}  // namespace
}  // namespace fabric::test

extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  using namespace fabric::test;
  FakeNics* const nics = FakeNics::current();
  const bool named = message->msg_name != nullptr && message->msg_namelen == sizeof(sockaddr_in);
  if (nics == nullptr || !named) return really_send(fd, message, flags);
  return send_control(*nics, fd, message, flags);
}

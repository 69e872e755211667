#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

#include "fake_verbs/fake_nics.h"

// Control datagrams use the same links as the writes and are lost with them. They go over the
// loopback, through the sendmsg() of this file, which overrides that of the C library. On a stepped
// clock they stay in the process, and recv() and timerfd_settime() are overridden too.

namespace fabric::test {
namespace {

/// Host and rail of an address of the fake NICs.
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

/// A datagram that the next one overtakes.
struct Held {
  sockaddr_in to{};
  std::vector<std::byte> bytes{};
  int fd = -1;
};

class Reorder {
 public:
  /// True: it is held, and sent after the next one of its socket.
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

uint64_t socket_key(const sockaddr_in& at) {
  return uint64_t{at.sin_addr.s_addr} << 16 | at.sin_port;
}

std::vector<std::byte> bytes_of(const msghdr* message) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i < message->msg_iovlen; ++i) {
    const auto* from = static_cast<const std::byte*>(message->msg_iov[i].iov_base);
    bytes.insert(bytes.end(), from, from + message->msg_iov[i].iov_len);
  }
  return bytes;
}

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
  const auto fate = nics.control(from_host, from_rail, to_host, to_rail);
  const auto [copies, swaps] = fate;
  if (nics.stepped()) {
    nics.send_datagram(socket_key(to), bytes_of(message), fate);
    return size_of(message);
  }
  if (copies == 0 || (swaps && reorder.keep(fd, message))) return size_of(message);
  ssize_t sent = 0;
  for (uint32_t i = 0; i < copies; ++i) sent = really_send(fd, message, flags);
  reorder.let_go(fd);
  return sent;
}

}  // namespace

void FakeNics::send_datagram(uint64_t to_socket, std::vector<std::byte> bytes,
                             const DatagramFate& fate) {
  const std::lock_guard lock(mutex_);
  constexpr int64_t kOvertakenNs = 200'000;  // longer than to the next datagram of a busy sender
  const int64_t due_ns = now_ns() + options_.cable.count() + (fate.swaps ? kOvertakenNs : 0);
  std::deque<Datagram>& queue = datagrams_[to_socket];
  const auto at = std::ranges::upper_bound(queue, due_ns, {}, &Datagram::due_ns);
  queue.insert(at, fate.copies, Datagram{due_ns, std::move(bytes)});
}

std::optional<std::vector<std::byte>> FakeNics::receive_datagram(uint64_t socket) {
  const std::lock_guard lock(mutex_);
  std::deque<Datagram>& queue = datagrams_[socket];
  if (queue.empty() || queue.front().due_ns > now_ns()) return std::nullopt;
  auto bytes = std::move(queue.front().bytes);
  queue.pop_front();
  return bytes;
}

void FakeNics::set_timer(int fd, int64_t after_ns) {
  const std::lock_guard lock(mutex_);
  if (after_ns == 0) {
    timers_.erase(fd);
  } else {
    timers_[fd] = now_ns() + after_ns;
  }
}

}  // namespace fabric::test

extern "C" ssize_t recv(int fd, void* out, size_t room, int flags) {
  using namespace fabric::test;
  FakeNics* const nics = FakeNics::current();
  const auto really_receive = [&] {
    return ::syscall(SYS_recvfrom, fd, out, room, flags, nullptr, nullptr);
  };
  if (nics == nullptr || !nics->stepped()) return really_receive();
  sockaddr_in at{};
  socklen_t size = sizeof at;
  uint32_t host = 0, rail = 0;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) != 0 ||
      !is_fake_nic(at, host, rail)) {
    return really_receive();
  }
  const auto bytes = nics->receive_datagram(socket_key(at));
  if (!bytes) {
    errno = EAGAIN;
    return -1;
  }
  std::copy_n(bytes->begin(), std::min(bytes->size(), room), static_cast<std::byte*>(out));
  return static_cast<ssize_t>(bytes->size());  // as with MSG_TRUNC
}

extern "C" int timerfd_settime(int fd, int flags, const itimerspec* set, itimerspec* old) noexcept {
  using namespace fabric::test;
  FakeNics* const nics = FakeNics::current();
  if (nics == nullptr || !nics->stepped()) {
    return static_cast<int>(::syscall(SYS_timerfd_settime, fd, flags, set, old));
  }
  nics->set_timer(fd, int64_t{set->it_value.tv_sec} * 1'000'000'000 + set->it_value.tv_nsec);
  return 0;
}

extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  using namespace fabric::test;
  FakeNics* const nics = FakeNics::current();
  const bool named = message->msg_name != nullptr && message->msg_namelen == sizeof(sockaddr_in);
  if (nics == nullptr || !named) return really_send(fd, message, flags);
  return send_control(*nics, fd, message, flags);
}

#include "providers/shm/socket.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <string_view>

#include <fmt/format.h>

namespace fabric::shm {

namespace {

constexpr std::string_view kFilePrefix = "fabric-";
constexpr std::string_view kUnfinished = ".new";

struct SocketName {
  sockaddr_un address{};
  socklen_t length = 0;
};

SocketName name_of(const Address& where, std::string_view suffix = {}) {
  SocketName name;
  name.address.sun_family = AF_UNIX;
  // Abstract: begins with a zero byte, lives as long as the socket and leaves no file.
  const bool abstract = where.directory.empty();
  std::array<char, sizeof(name.address.sun_path)> path{};
  const auto end = abstract
                       ? fmt::format_to_n(path.data() + 1, path.size() - 1, "{}{:016x}",
                                          kFilePrefix, where.instance)
                       : fmt::format_to_n(path.data(), path.size() - 1, "{}/{}{:016x}{}",
                                          where.directory, kFilePrefix, where.instance, suffix);
  std::memcpy(name.address.sun_path, path.data(), path.size());
  // An abstract name is as long as the address says; a file name includes the terminating zero.
  const auto written = static_cast<size_t>(end.out - path.data()) + (abstract ? 0 : 1);
  name.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + written);
  return name;
}

Result<UniqueFd> make_socket() {
  UniqueFd made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made) return fail(Errc::kExhausted, "shm socket", errno);
  return made;
}

const sockaddr* as_sockaddr(const SocketName& name) noexcept {
  return reinterpret_cast<const sockaddr*>(&name.address);
}

}  // namespace

Result<Address> own_address() {
  Address address;
  const UniqueFd boot(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  char text[64] = {};
  const ssize_t got = boot ? ::read(boot.get(), text, sizeof(text) - 1) : -1;
  uint32_t digits = 0;
  for (ssize_t i = 0; i < got && digits < 32; ++i) {
    const char c = text[i];
    const int value = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (value < 0) continue;
    std::byte& byte = address.host[digits / 2];
    byte = byte << 4 | static_cast<std::byte>(value);
    ++digits;
  }
  struct stat space {};
  if (digits != 32 || ::stat("/proc/self/ns/net", &space) != 0) {
    return fail(Errc::kUnsupported, "shm: procfs does not name this host", errno);
  }
  address.net_namespace = space.st_ino;
  address.user = ::geteuid();
  return address;
}

Result<UniqueFd> listen_at(const Address& address) {
  auto listener = make_socket();
  if (!listener) return listener.error();
  // A socket file gets its final name only after listen(): before that, remove_stale_sockets() of
  // another engine would take it for a dead one.
  const bool abstract = address.directory.empty();
  const SocketName name = name_of(address, abstract ? std::string_view() : kUnfinished);
  if (::bind(listener->get(), as_sockaddr(name), name.length) != 0) {
    return fail(errno == EACCES || errno == ENOENT || errno == ENOTDIR || errno == EROFS
                    ? Errc::kPermission
                    : Errc::kExhausted,
                "shm: the socket's directory", errno);
  }
  if (::listen(listener->get(), SOMAXCONN) != 0) {
    const int why = errno;
    if (!abstract) ::unlink(name.address.sun_path);
    return fail(Errc::kExhausted, "shm socket", why);
  }
  if (!abstract && ::rename(name.address.sun_path, name_of(address).address.sun_path) != 0) {
    return fail(Errc::kExhausted, "shm: the socket's directory", errno);
  }
  return listener;
}

void unlisten(const Address& address) noexcept {
  if (address.directory.empty()) return;
  ::unlink(name_of(address).address.sun_path);
}

void remove_stale_sockets(const std::string& directory) noexcept {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(directory.c_str()), &::closedir);
  if (!listing) return;
  while (const dirent* const entry = ::readdir(listing.get())) {
    const std::string_view file = entry->d_name;
    Address left;
    left.directory = directory;
    const char* const end = file.data() + file.size();
    if (!file.starts_with(kFilePrefix)) continue;
    const auto number = std::from_chars(file.data() + kFilePrefix.size(), end, left.instance, 16);
    if (number.ec != std::errc{} || number.ptr != end) continue;
    const SocketName name = name_of(left);
    const char* const path = name.address.sun_path;
    struct stat about {};
    // Connecting to a file that is no socket fails with the same error.
    if (::lstat(path, &about) != 0 || !S_ISSOCK(about.st_mode)) continue;
    auto probe = connect_to(left);
    // Only this error means that no process has the socket open.
    if (!probe && probe.error().native == ECONNREFUSED) ::unlink(path);
  }
}

Result<UniqueFd> connect_to(const Address& address) {
  auto connection = make_socket();
  if (!connection) return connection.error();
  const SocketName name = name_of(address);
  if (::connect(connection->get(), as_sockaddr(name), name.length) != 0) {
    if (errno == EAGAIN)
      return fail(Errc::kBusy, "shm: the listen backlog of the peer is full", errno);
    if (errno == ENOENT || errno == ENOTDIR || errno == EACCES) {
      return fail(Errc::kNotFound, "shm: the peer's socket is not in its directory as seen here",
                  errno);
    }
    return fail(Errc::kUnreachable, "shm: no engine listens at the peer's address", errno);
  }
  // Any user may have bound an abstract name.
  const auto there = credentials(connection->get());
  if (!there) return there.error();
  if (there->user != ::geteuid())
    return fail(Errc::kPermission, "shm: a process of another user has the peer's name");
  return connection;
}

Result<Credentials> credentials(int socket) {
  ucred found{};
  socklen_t length = sizeof(found);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &found, &length) != 0) {
    return fail(Errc::kUnsupported, "shm: credentials", errno);
  }
  return Credentials{found.pid, found.uid};
}

SendStatus send_frame(int socket, std::span<const std::byte> head, std::span<const std::byte> rest,
                      std::span<const int> descriptors) noexcept {
  iovec parts[2] = {{const_cast<std::byte*>(head.data()), head.size()},
                    {const_cast<std::byte*>(rest.data()), rest.size()}};
  alignas(cmsghdr) char room[CMSG_SPACE(kDescriptorsMax * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = rest.empty() ? 1 : 2;
  if (!descriptors.empty()) {
    message.msg_control = room;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const control = CMSG_FIRSTHDR(&message);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(control), descriptors.data(), descriptors.size_bytes());
  }
  for (;;) {
    if (::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return SendStatus::kSent;
    if (errno == EINTR) continue;
    // ETOOMANYREFS: too many descriptors in flight on sockets.
    const bool full =
        errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM || errno == ETOOMANYREFS;
    return full ? SendStatus::kFull : SendStatus::kBroken;
  }
}

Received receive_frame(int socket, std::span<std::byte> buffer) noexcept {
  iovec part{buffer.data(), buffer.size()};
  // Room for one more than allowed, so that an excess is detected instead of truncated.
  alignas(cmsghdr) char room[CMSG_SPACE((kDescriptorsMax + 1) * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = room;
  message.msg_controllen = sizeof(room);
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  Received received;
  if (got < 0) {
    const bool nothing = errno == EAGAIN || errno == ENOMEM;
    received.kind = nothing ? Received::Kind::kNothing : Received::Kind::kClosed;
    return received;
  }
  bool oversized = (message.msg_flags & MSG_TRUNC) != 0;
  for (cmsghdr* control = CMSG_FIRSTHDR(&message); control != nullptr;
       control = CMSG_NXTHDR(&message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(control) + i * sizeof(int), sizeof(int));
      UniqueFd owned(descriptor);
      if (received.descriptor_count == kDescriptorsMax) {
        oversized = true;  // `owned` closes the descriptor
      } else {
        received.descriptors[received.descriptor_count++] = std::move(owned);
      }
    }
  }
  // Frames have at least a type byte, so an empty read is the end of the stream.
  if (got == 0 || oversized) {
    received = {};
    received.kind = Received::Kind::kClosed;
    return received;
  }
  // Truncated although there was room: this process has no descriptor left.
  received.truncated = (message.msg_flags & MSG_CTRUNC) != 0;
  received.kind = Received::Kind::kFrame;
  received.size_bytes = static_cast<uint32_t>(got);
  return received;
}

}  // namespace fabric::shm

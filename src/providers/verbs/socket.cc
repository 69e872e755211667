#include "providers/verbs/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace fabric::verbs {

namespace {

constexpr int kBufferBytes = 4 << 20;   // for bursts of large messages; the kernel may give less
constexpr uint32_t kUnansweredMax = 4;  // datagrams without an answer before another rail is tried
constexpr uint32_t kReadsMax = 64;      // datagram parts read from one socket in one call

socklen_t to_sockaddr(const ControlAddress& from, sockaddr_storage& out) {
  std::memset(&out, 0, sizeof(out));
  if (!is_ipv4(from.ip)) {
    auto* address = reinterpret_cast<sockaddr_in6*>(&out);
    address->sin6_family = AF_INET6;
    address->sin6_port = htons(from.port);
    std::memcpy(&address->sin6_addr, from.ip.data(), from.ip.size());
    return sizeof(*address);
  }
  auto* address = reinterpret_cast<sockaddr_in*>(&out);
  address->sin_family = AF_INET;
  address->sin_port = htons(from.port);
  std::memcpy(&address->sin_addr, from.ip.data() + 12, 4);
  return sizeof(*address);
}

GidBytes from_ipv4(const void* bytes) {
  GidBytes out{};
  out[10] = out[11] = 0xff;
  std::memcpy(out.data() + 12, bytes, 4);
  return out;
}

uint16_t bound_port(int fd) {
  sockaddr_storage at{};
  socklen_t size = sizeof(at);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) != 0) return 0;
  return ntohs(at.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&at)->sin6_port
                                        : reinterpret_cast<sockaddr_in*>(&at)->sin_port);
}

}  // namespace

Result<ControlSockets> ControlSockets::open(std::span<const GidBytes> ips, uint16_t port,
                                            uint64_t instance) {
  ControlSockets made;
  made.instance_ = instance;
  made.buffer_.resize(DatagramPartHead::kBytes + kDatagramPartBytes);
  for (const GidBytes& ip : ips) {
    ControlAddress address{.ip = ip, .port = made.fds_.empty() ? port : uint16_t{0}};
    UniqueFd fd(
        ::socket(is_ipv4(ip) ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return fail(Errc::kExhausted, "verbs: control socket", errno);
    const int size = kBufferBytes;
    // Best effort: a smaller buffer only means more retransmissions.
    (void)::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
    sockaddr_storage at{};
    const socklen_t length = to_sockaddr(address, at);
    if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&at), length) != 0) {
      return fail(errno == EACCES ? Errc::kPermission : Errc::kInvalidArgument,
                  errno == EADDRNOTAVAIL ? "control_address" : "control_port", errno);
    }
    address.port = bound_port(fd.get());
    made.fds_.push_back(std::move(fd));
    made.addresses_.push_back(address);
  }
  return made;
}

std::vector<int> ControlSockets::fds() const {
  std::vector<int> out;
  for (const UniqueFd& fd : fds_) out.push_back(fd.get());
  return out;
}

/// The local socket to send from: that of the same index (rails pair by index), or the next of the
/// same address family. -1: there is none.
int ControlSockets::local_socket(const ControlPeer& peer, uint32_t address_index) const noexcept {
  const bool v4 = is_ipv4(peer.to.control[address_index].ip);
  for (uint32_t i = 0; i < addresses_.size(); ++i) {
    const auto local = static_cast<uint32_t>((address_index + i) % addresses_.size());
    if (is_ipv4(addresses_[local].ip) == v4) return static_cast<int>(local);
  }
  return -1;
}

bool ControlSockets::reaches(const Address& address) const noexcept {
  const ControlPeer peer{.to = address};
  for (uint32_t address_index = 0; address_index < address.control.size(); ++address_index) {
    if (local_socket(peer, address_index) >= 0) return true;
  }
  return false;
}

/// Keeps the rail on which the peer was last heard from. Moves on to the next after kUnansweredMax
/// datagrams without an answer, and skips rails that are down; if all are down, the current rail is
/// kept.
void ControlSockets::choose(ControlPeer& peer, uint32_t down) const noexcept {
  const auto count = static_cast<uint32_t>(peer.to.control.size());
  if (++peer.unanswered > kUnansweredMax) {
    peer.unanswered = 0;
    peer.address_index = (peer.address_index + 1) % count;
  }
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t address_index = (peer.address_index + i) % count;
    const int local = local_socket(peer, address_index);
    if (local < 0 || (down >> local & 1) != 0) continue;
    peer.address_index = address_index;
    return;
  }
}

bool ControlSockets::send(ControlPeer& peer, std::span<const std::byte> datagram,
                          uint32_t down) noexcept {
  choose(peer, down);
  const int local = local_socket(peer, peer.address_index);
  if (local < 0) return true;
  sockaddr_storage at{};
  const socklen_t length = to_sockaddr(peer.to.control[peer.address_index], at);
  DatagramPartHead head{.from = instance_,
                        .number = next_number_++,
                        .count = static_cast<uint16_t>(datagram_parts_of(datagram.size())),
                        .address_index = static_cast<uint8_t>(local)};
  for (; head.index < head.count; ++head.index) {
    auto bytes = encode(head);
    const auto rest = datagram.subspan(size_t{head.index} * kDatagramPartBytes);
    const auto part = rest.first(std::min<size_t>(rest.size(), kDatagramPartBytes));
    iovec parts[2] = {{bytes.data(), bytes.size()},
                      {const_cast<std::byte*>(part.data()), part.size()}};
    msghdr message{};
    message.msg_name = &at;
    message.msg_namelen = length;
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    if (::sendmsg(fds_[static_cast<size_t>(local)].get(), &message, MSG_NOSIGNAL) >= 0) continue;
    return errno != EAGAIN && errno != ENOBUFS;
  }
  return true;
}

/// Round robin, so that a flood on one rail does not starve the others.
ControlSockets::Received ControlSockets::receive() noexcept {
  for (size_t i = 0; i < fds_.size(); ++i) {
    const Received received = receive(fds_[next_socket_++ % fds_.size()].get());
    if (!received.datagram.empty()) return received;
  }
  return {};
}

ControlSockets::Received ControlSockets::receive(int fd) noexcept {
  for (uint32_t reads = 0; reads < kReadsMax; ++reads) {
    const ssize_t size = ::recv(fd, buffer_.data(), buffer_.size(), MSG_TRUNC);
    if (size < 0 && errno == EAGAIN) return {};
    // EINTR, an ICMP error for an earlier send, or a datagram that is too long: read on.
    if (size < 0 || static_cast<size_t>(size) > buffer_.size()) continue;
    const auto bytes = std::span(buffer_).first(static_cast<size_t>(size));
    const auto head = decode_datagram_part(bytes);
    if (!head) continue;
    const auto whole = assembler_.take(*head, bytes.subspan(DatagramPartHead::kBytes));
    if (!whole.empty()) return {head->from, head->address_index, whole};
  }
  return {};
}

std::vector<GidBytes> own_ips(std::span<const Gid> rails) {
  std::vector<GidBytes> ips;
  const auto add = [&](const GidBytes& ip) {
    const bool known = std::find(ips.begin(), ips.end(), ip) != ips.end();
    if (!known && ips.size() < kControlAddressesMax) ips.push_back(ip);
  };
  for (const Gid& gid : rails) {
    if (is_routable_ip(gid)) add(gid.bytes);
  }
  if (!ips.empty()) return ips;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return ips;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    const bool usable = (one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_LOOPBACK) == 0;
    if (!usable || one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET) continue;
    add(from_ipv4(&reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr));
  }
  return ips;
}

Result<GidBytes> parse_ip(const std::string& text) {
  in_addr v4{};
  if (::inet_pton(AF_INET, text.c_str(), &v4) == 1) return from_ipv4(&v4);
  GidBytes v6{};
  if (::inet_pton(AF_INET6, text.c_str(), v6.data()) == 1) return v6;
  return fail(Errc::kInvalidArgument, "control_address");
}

}  // namespace fabric::verbs

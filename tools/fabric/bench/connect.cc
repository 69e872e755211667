#include "connect.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "bench_error.h"

namespace fabric::tool::bench {
namespace {

constexpr int kListenMs = 600'000;
constexpr int kConnectMs = 10'000;

[[noreturn]] void fail_with_errno(const std::string& what) {
  throw BenchError(fmt::format("{}: {}", what, std::strerror(errno)));
}

/// Closes the descriptor unless it was released.
struct FdGuard {
  int fd = -1;
  ~FdGuard() {
    if (fd >= 0) ::close(fd);
  }
  int release() { return std::exchange(fd, -1); }
};

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses find(const std::string& address, int flags) {
  std::string host = address, port = kDefaultPort;
  const size_t colon = host.rfind(':');
  const bool bracketed = !host.empty() && host.front() == '[';
  const size_t bracket = bracketed ? host.find(']') : std::string::npos;
  // Several colons without brackets: an IPv6 address without a port.
  const bool has_port = bracketed ? colon != std::string::npos && colon > bracket
                                  : colon != std::string::npos && host.find(':') == colon;
  if (has_port) {
    port = host.substr(colon + 1);
    host.resize(colon);
  }
  if (bracketed && bracket != std::string::npos) host = host.substr(1, bracket - 1);
  if (host.empty()) host = "127.0.0.1";
  const addrinfo hints{.ai_flags = flags | AI_NUMERICSERV,
                       .ai_family = AF_UNSPEC,
                       .ai_socktype = SOCK_STREAM,
                       .ai_protocol = 0,
                       .ai_addrlen = 0,
                       .ai_addr = nullptr,
                       .ai_canonname = nullptr,
                       .ai_next = nullptr};
  addrinfo* list = nullptr;
  const int rc = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  if (rc != 0) throw BenchError(fmt::format("{}: {}", address, ::gai_strerror(rc)));
  return Addresses(list);
}

std::string name_of(int fd) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  char host[NI_MAXHOST], port[NI_MAXSERV];
  auto* address = reinterpret_cast<sockaddr*>(&bound);
  if (::getsockname(fd, address, &size) != 0 ||
      ::getnameinfo(address, size, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    fail_with_errno("getsockname");
  }
  return bound.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host, port)
                                     : fmt::format("{}:{}", host, port);
}

/// Polls for `events`. False: timeout.
bool ready(int fd, short events, int ms) {
  pollfd one{.fd = fd, .events = events, .revents = 0};
  int n = 0;
  while ((n = ::poll(&one, 1, ms)) < 0 && errno == EINTR) {
  }
  return n > 0;
}

JsonSocket make_json_socket(FdGuard& socket) {
  const int on = 1;
  ::setsockopt(socket.fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // failure only costs latency
  return JsonSocket(socket.release());
}

}  // namespace

ForkedPeer::ForkedPeer(const std::function<int(JsonSocket&)>& work) {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) < 0)
    fail_with_errno("socketpair");
  socket_ = JsonSocket(sockets[0]);
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) fail_with_errno("fork");
  if (pid_ > 0) {
    ::close(sockets[1]);
    return;
  }
  // If the parent died before prctl() no signal will come: check once more.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  socket_ = JsonSocket();
  JsonSocket socket(sockets[1]);
  ::_exit(work(socket));
}

ForkedPeer::~ForkedPeer() {
  if (pid_ > 0) (void)reap(0);
}

ForkedPeer::ExitStatus ForkedPeer::reap(int ms) {
  int status = 0;
  pid_t ended = 0;
  for (int waited = 0; waited < ms && ended == 0; ++waited) {
    ended = ::waitpid(pid_, &status, WNOHANG);
    if (ended == 0) ::usleep(1000);
  }
  if (ended == 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return {.text = "the other side did not exit and was killed"};
  }
  pid_ = -1;
  if (ended < 0) return {.text = fmt::format("waitpid: {}", std::strerror(errno))};
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    return {.signalled = true,
            .text = fmt::format("the other side was killed by signal {} ({})", number,
                                ::strsignal(number))};
  }
  const int code = WEXITSTATUS(status);
  return {.ok = code == 0, .text = fmt::format("the other side exited with code {}", code)};
}

JsonSocket listen_at(const std::string& address) {
  const Addresses list = find(address, AI_PASSIVE);
  FdGuard socket{::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const int on = 1;
  if (socket.fd < 0 || ::setsockopt(socket.fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(socket.fd, list->ai_addr, list->ai_addrlen) != 0 || ::listen(socket.fd, 1) != 0) {
    fail_with_errno(fmt::format("cannot listen at '{}'", address));
  }
  fmt::print(stderr, "listening at {}\n", name_of(socket.fd));
  if (!ready(socket.fd, POLLIN, kListenMs)) throw BenchError("no sender connected for ten minutes");
  FdGuard one{::accept4(socket.fd, nullptr, nullptr, SOCK_CLOEXEC)};
  if (one.fd < 0) fail_with_errno("accept");
  return make_json_socket(one);
}

JsonSocket connect_to(const std::string& address) {
  const Addresses list = find(address, 0);
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next) {
    FdGuard socket{::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (socket.fd < 0) continue;
    int error = ::connect(socket.fd, one->ai_addr, one->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      socklen_t size = sizeof(error);
      error = ETIMEDOUT;
      if (ready(socket.fd, POLLOUT, kConnectMs)) {
        ::getsockopt(socket.fd, SOL_SOCKET, SO_ERROR, &error, &size);
      }
    }
    errno = error;
    if (error == 0) return make_json_socket(socket);
  }
  fail_with_errno(fmt::format("cannot connect to '{}'", address));
}

void pin_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  if (::sched_setaffinity(0, sizeof(set), &set) != 0)
    fail_with_errno(fmt::format("--pin: core {}", cpu));
}

}  // namespace fabric::tool::bench

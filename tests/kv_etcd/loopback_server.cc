#include "kv_etcd/loopback_server.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>

#include <gtest/gtest.h>

namespace fabric::test {

namespace {

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

}  // namespace

LoopbackServer::LoopbackServer() {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
  EXPECT_EQ(::listen(listener_, 16), 0);
  port_ = ntohs(address.sin_port);
  accepting_ = std::thread([this] { accept_all(); });
}

LoopbackServer::~LoopbackServer() = default;

void LoopbackServer::accept_all() {
  while (true) {
    const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) return;
    const std::lock_guard lock(mutex_);
    open_.push_back(connection);
    serving_.emplace_back([this, connection] {
      serve(connection);
      const std::lock_guard inner(mutex_);
      std::erase(open_, connection);
      ::close(connection);
    });
  }
}

void LoopbackServer::cut_connections() {
  const std::lock_guard lock(mutex_);
  for (const int connection : open_) ::shutdown(connection, SHUT_RDWR);
}

void LoopbackServer::close_all() {
  ::shutdown(listener_, SHUT_RDWR);
  accepting_.join();
  ::close(listener_);
  cut_connections();
  for (std::thread& one : serving_) one.join();
}

TcpRelay::~TcpRelay() {
  cut();
  close_all();
}

void TcpRelay::cut() {
  cut_.store(true);
  release();
  cut_connections();
}

void TcpRelay::hold(const std::string& text) {
  const std::lock_guard lock(mutex_);
  hold_ = text;
}

void TcpRelay::release() {
  const std::lock_guard lock(mutex_);
  hold_.clear();
}

bool TcpRelay::must_hold(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  return !hold_.empty() && bytes.find(hold_) != std::string_view::npos;
}

bool TcpRelay::forward(int from, int to, bool request) {
  std::array<char, 16384> bytes;
  const ssize_t count = ::recv(from, bytes.data(), bytes.size(), 0);
  if (count <= 0) return false;
  const std::string_view got(bytes.data(), static_cast<size_t>(count));
  while (request && must_hold(got)) {
    held_.store(true);
    if (cut_.load()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return write_all(to, got);
}

void TcpRelay::serve(int connection) {
  const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = loopback(to_);
  bool open = !cut_.load() &&
              ::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  while (open && !cut_.load()) {
    pollfd both[] = {{connection, POLLIN, 0}, {server, POLLIN, 0}};
    // While paused nothing is read, so the kernel's buffers fill, as on a cut link.
    if (::poll(&both[0], paused_.load() ? 0 : 2, 10) < 0) break;
    if (paused_.load()) continue;
    if (both[0].revents != 0) open = forward(connection, server, true);
    if (open && both[1].revents != 0) open = forward(server, connection, false);
  }
  ::shutdown(connection, SHUT_RDWR);
  ::close(server);
}

void ScriptedHttpServer::serve(int connection) {
  std::string request;
  std::array<char, 4096> bytes;
  // The body has come when the connection is quiet: what it says does not matter.
  while (request.find("\r\n\r\n") == std::string::npos) {
    const ssize_t count = ::recv(connection, bytes.data(), bytes.size(), 0);
    if (count <= 0) return;
    request.append(bytes.data(), static_cast<size_t>(count));
  }
  ++requests_;
  const size_t from = request.find(' ') + 1;
  const std::string path = request.substr(from, request.find(' ', from) - from);
  write_all(connection, answer_(path));
  ::shutdown(connection, SHUT_WR);
  while (::recv(connection, bytes.data(), bytes.size(), 0) > 0) continue;
}

std::string http_answer(std::string_view body, int status) {
  return "HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Type: application/json\r\n" +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
}

}  // namespace fabric::test

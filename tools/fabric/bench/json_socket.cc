#include "json_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench_error.h"

namespace fabric::tool::bench {
namespace {

using Clock = std::chrono::steady_clock;

/// Enough for the offers of kTargetsMax engines; bounds what an unknown sender can make us
/// allocate.
constexpr uint32_t kMessageBytesMax = 4u << 20;
constexpr int kSendMs = 30'000;
constexpr const char* kClosed = "the other side has closed the connection";

}  // namespace

JsonSocket::~JsonSocket() {
  if (fd_ >= 0) ::close(fd_);
}

void JsonSocket::send(const nlohmann::ordered_json& message) {
  const std::string text = message.dump();
  const auto size = static_cast<uint32_t>(text.size());
  std::string frame;
  for (const uint32_t shift : {24u, 16u, 8u, 0u}) {
    frame.push_back(static_cast<char>(size >> shift & 0xff));
  }
  frame += text;
  for (size_t sent = 0; sent < frame.size();) {
    const ssize_t n =
        ::send(fd_, frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      pollfd one{.fd = fd_, .events = POLLOUT, .revents = 0};
      if (::poll(&one, 1, kSendMs) == 0) throw BenchError("the other side does not read");
      continue;
    }
    if (n <= 0) throw BenchError(kClosed);
    sent += static_cast<size_t>(n);
  }
}

nlohmann::json JsonSocket::receive(double seconds, const Idle& idle) {
  std::array<char, 4> head{};
  read(head.data(), head.size(), seconds, idle);
  uint32_t size = 0;
  for (const char byte : head) size = size << 8 | static_cast<unsigned char>(byte);
  if (size == 0 || size > kMessageBytesMax) {
    throw BenchError("invalid message: impossible length");
  }
  std::string text(size, '\0');
  read(text.data(), text.size(), seconds, idle);
  nlohmann::json message = nlohmann::json::parse(text, nullptr, false);
  if (!message.is_object()) throw BenchError("invalid message: not JSON");
  if (message.contains("error") && message["error"].is_string()) {
    throw BenchError("the other side: " + message["error"].get<std::string>());
  }
  return message;
}

void JsonSocket::receive_error(double seconds) { (void)receive(seconds); }

bool JsonSocket::closed_by_peer() const {
  pollfd one{.fd = fd_, .events = POLLRDHUP, .revents = 0};
  return ::poll(&one, 1, 0) > 0 && (one.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void JsonSocket::read(char* to, size_t bytes, double seconds, const Idle& idle) {
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (bytes > 0) {
    const auto left = std::chrono::duration<double>(end - Clock::now()).count();
    if (left <= 0)
      throw BenchError(fmt::format("the other side sent nothing for {:.0f} s", seconds));
    pollfd one{.fd = fd_, .events = POLLIN, .revents = 0};
    // Rounded up: a wait of 0 ms would spin.
    const int ms = idle ? 0 : static_cast<int>(left * 1000) + 1;
    const int ready = ::poll(&one, 1, ms);
    if (ready < 0 && errno != EINTR) throw BenchError(std::strerror(errno));
    if (ready <= 0) {
      if (idle) idle();
      continue;
    }
    const ssize_t n = ::recv(fd_, to, bytes, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno == ECONNRESET)) throw BenchError(kClosed);
    if (n < 0 && errno != EAGAIN && errno != EINTR) throw BenchError(std::strerror(errno));
    if (n > 0) {
      to += n;
      bytes -= static_cast<size_t>(n);
    }
  }
}

}  // namespace fabric::tool::bench

#pragma once

#include <functional>
#include <string>
#include <utility>

#include <nlohmann/json_fwd.hpp>

namespace fabric::tool::bench {

/// A stream socket between the two sides that carries JSON objects, each prefixed with its length.
/// Control traffic only: offers, starts of rounds and results.
///
/// Every wait is bounded. An invalid message, or the end of the other side, throws a BenchError.
class JsonSocket {
 public:
  /// Called repeatedly while nothing arrives. Without it, receive() sleeps.
  using Idle = std::function<void()>;

  JsonSocket() = default;
  explicit JsonSocket(int fd) : fd_(fd) {}
  JsonSocket(JsonSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  JsonSocket& operator=(JsonSocket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~JsonSocket();

  void send(const nlohmann::ordered_json& message);
  nlohmann::json receive(double seconds, const Idle& idle = {});
  /// Receives one message and drops it. Throws its error if it has one, or if the socket is closed.
  void receive_error(double seconds);
  /// Whether the other side has closed the socket.
  bool closed_by_peer() const;

 private:
  void read(char* to, size_t bytes, double seconds, const Idle& idle);

  int fd_ = -1;
};

}  // namespace fabric::tool::bench

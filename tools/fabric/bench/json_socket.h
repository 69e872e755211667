#pragma once

#include <functional>
#include <string>

#include <nlohmann/json.hpp>

namespace fabric::tool::bench {

/// A stream socket between the two sides that carries JSON, each with its length before it. Slow
/// and plain: offers, beginnings and results go here, the writes do not.
///
/// Every wait is bounded; what is no message of ours, or the end of the other side, is a BenchError.
class JsonSocket {
 public:
  /// What to do while nothing arrives, or nothing: then the line sleeps.
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
  /// The other side has closed it. For those who wait for something else.
  bool broken() const;

 private:
  void read(char* to, size_t bytes, double seconds, const Idle& idle);

  int fd_ = -1;
};

}  // namespace fabric::tool::bench

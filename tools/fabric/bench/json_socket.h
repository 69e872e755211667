#pragma once

#include <functional>
#include <string>

#include <nlohmann/json.hpp>

namespace fabric::tool::bench {

/// A stream socket between the two sides that carries JSON, each with its length before it. Slow
/// and plain: offers, beginnings and results go here, the writes do not.
///
/// Every wait is bounded; what is no message of ours, or the end of the other side, is a Failed.
class Line {
 public:
  /// What to do while nothing arrives, or nothing: then the line sleeps.
  using Idle = std::function<void()>;

  Line() = default;
  explicit Line(int fd) : fd_(fd) {}
  Line(Line&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Line& operator=(Line&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Line();

  void send(const nlohmann::ordered_json& message);
  nlohmann::json receive(double seconds, const Idle& idle = {});
  /// The other side has closed it. For those who wait for something else.
  bool broken() const;

 private:
  void read(char* to, size_t bytes, double seconds, const Idle& idle);

  int fd_ = -1;
};

}  // namespace fabric::tool::bench

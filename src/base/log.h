#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>

#include <fabric/log.h>
#include <fabric/result.h>
#include <fabric/types.h>

namespace fabric {

namespace detail {

std::string log_value(std::string_view value);
std::string log_value(bool value);
std::string log_value(int64_t value);
std::string log_value(uint64_t value);
std::string log_value(double value);
std::string log_value(const void* value);
std::string log_value(Nanos value);         ///< "1500ns"
std::string log_value(const Error& value);  ///< "PeerLost: connect"
std::string log_handle(uint32_t slot, uint32_t generation);

/// Turns a value into text by its type; enums by their to_string().
template <class T>
std::string to_log_value(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return log_value(std::string_view(to_string(value)));
  } else if constexpr (requires { value.slot, value.generation; }) {
    return log_handle(value.slot, value.generation);
  } else if constexpr (std::convertible_to<T, std::string_view>) {
    return log_value(std::string_view(value));
  } else if constexpr (std::is_same_v<T, bool>) {
    return log_value(value);
  } else if constexpr (std::signed_integral<T>) {
    return log_value(static_cast<int64_t>(value));
  } else if constexpr (std::unsigned_integral<T>) {
    return log_value(static_cast<uint64_t>(value));
  } else if constexpr (std::floating_point<T>) {
    return log_value(static_cast<double>(value));
  } else {
    return log_value(value);
  }
}

}  // namespace detail

/// An engine's log. The function that detects an error logs it; its callers only return it.
///
/// Threads: every call from any thread; a mutex serialises the calls of the sink.
/// Cost: one comparison when the level is off; the line is not formatted.
class Log {
 public:
  struct Field {
    std::string_view key;
    std::string value;
    template <class T>
    Field(std::string_view k, const T& v) : key(k), value(detail::to_log_value(v)) {}
  };
  /// Further fields are dropped.
  static constexpr uint32_t kFieldsMax = 16;

  /// A sink without a function means standard error.
  Log(LogSink sink, LogLevel level) noexcept;
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  bool on(LogLevel level) const noexcept { return level >= level_; }
  void write(LogLevel level, const char* area, const char* file, int line, std::string_view text,
             std::initializer_list<Field> fields) noexcept;

 private:
  LogSink sink_;
  const LogLevel level_;
  std::mutex mutex_;
};

/// `fabric[core] warning: text key=value`, the form of a line on standard error. Values with spaces
/// are quoted and unprintable bytes escaped, because values may come from a peer.
std::string log_line(const LogRecord& record);

/// Rate limiter: one line per interval, so that a hostile or broken peer cannot fill a disk. The
/// caller passes the time.
///
/// Threads: one at a time.
class LogLimiter {
 public:
  explicit LogLimiter(int64_t interval_ns = 1'000'000'000) noexcept : interval_ns_(interval_ns) {}

  /// True: write the line now, with `suppressed()` as a field.
  bool allow(int64_t now_ns) noexcept {
    if (open_ && now_ns - last_ns_ < interval_ns_) {
      ++held_;
      return false;
    }
    open_ = true;
    last_ns_ = now_ns;
    suppressed_ = held_;
    held_ = 0;
    return true;
  }
  /// Lines suppressed before the one that allow() has just permitted.
  uint64_t suppressed() const noexcept { return suppressed_; }

 private:
  int64_t interval_ns_;
  int64_t last_ns_ = 0;
  uint64_t held_ = 0;
  uint64_t suppressed_ = 0;
  bool open_ = false;
};

}  // namespace fabric

/// FABRIC_LOG(log, kWarning, "core", "peer is silent", {"peer", id}, {"for", silence});
/// The values are not evaluated when the level is off.
#define FABRIC_LOG(log, level, area, text, ...)                                                    \
  do {                                                                                             \
    ::fabric::Log& fabric_log_ = (log);                                                            \
    if (fabric_log_.on(::fabric::LogLevel::level)) [[unlikely]] {                                  \
      fabric_log_.write(::fabric::LogLevel::level, area, __FILE__, __LINE__, text, {__VA_ARGS__}); \
    }                                                                                              \
  } while (false)

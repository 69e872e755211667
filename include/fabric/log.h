#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include <fabric/export.h>

namespace fabric {

enum class LogLevel : uint8_t { kTrace, kDebug, kInfo, kWarning, kError, kOff };

FABRIC_EXPORT const char* to_string(LogLevel level) noexcept;

/// A name and its value, as text.
struct LogField {
  std::string_view key{};
  std::string_view value{};
};

/// A structured log line: a constant text and its values.
///
/// Lifetime: everything is borrowed for the call.
struct LogRecord {
  LogLevel level = LogLevel::kInfo;
  const char* area = "";  ///< the folder of the source: "core", "control", "sim", ...
  std::string_view text{};
  std::span<const LogField> fields{};
  const char* file = "";
  int32_t line = 0;
};

/// Where an engine's log goes. Without one, warnings and errors go to standard error.
///
/// Threads: called from any thread of the engine, never from two at once for one engine. It must
/// not call back into the engine.
struct LogSink {
  void (*write)(void* context, const LogRecord& record) = nullptr;
  void* context = nullptr;
};

}  // namespace fabric

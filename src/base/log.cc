#include "base/log.h"

#include <array>
#include <cstdio>

#include <fmt/format.h>

namespace fabric {

namespace detail {

std::string log_value(std::string_view value) { return std::string(value); }
std::string log_value(bool value) { return value ? "true" : "false"; }
std::string log_value(int64_t value) { return fmt::format("{}", value); }
std::string log_value(uint64_t value) { return fmt::format("{}", value); }
std::string log_value(double value) { return fmt::format("{}", value); }
std::string log_value(const void* value) { return fmt::format("{}", value); }
std::string log_value(Nanos value) { return fmt::format("{}ns", value.count()); }

std::string log_value(const Error& value) {
  std::string text = fmt::format("{}: {}", to_string(value.code), value.what);
  if (value.native != 0) text += fmt::format(" ({})", value.native);
  return text;
}

std::string log_handle(uint32_t slot, uint32_t generation) {
  return generation == 0 ? "none" : fmt::format("{}.{}", slot, generation);
}

}  // namespace detail

namespace {

bool prints(char c) noexcept { return c >= 0x20 && c < 0x7f; }

bool needs_quotes(std::string_view value) noexcept {
  if (value.empty()) return true;
  for (const char c : value) {
    if (!prints(c) || c == ' ' || c == '"' || c == '=' || c == '\\') return true;
  }
  return false;
}

void append_value(std::string& line, std::string_view value) {
  if (!needs_quotes(value)) {
    line += value;
    return;
  }
  line += '"';
  for (const char c : value) {
    if (c == '"' || c == '\\') line += '\\';
    if (prints(c)) {
      line += c;
    } else {
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  line += '"';
}

void write_stderr(void*, const LogRecord& record) {
  const std::string line = log_line(record) + '\n';
  // One call per line, so that lines of several engines do not interleave.
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace

std::string log_line(const LogRecord& record) {
  std::string line =
      fmt::format("fabric[{}] {}: {}", record.area, to_string(record.level), record.text);
  for (const LogField& field : record.fields) {
    line += ' ';
    line += field.key;
    line += '=';
    append_value(line, field.value);
  }
  return line;
}

Log::Log(LogSink sink, LogLevel level) noexcept : sink_(sink), level_(level) {
  if (sink_.write == nullptr) sink_ = {write_stderr, nullptr};
}

void Log::write(LogLevel level, const char* area, const char* file, int line, std::string_view text,
                std::initializer_list<Field> fields) noexcept {
  // FABRIC_LOG has checked the level; a direct caller may not have.
  if (!on(level) || level == LogLevel::kOff) return;
  std::array<LogField, kFieldsMax> views;
  uint32_t count = 0;
  for (const Field& field : fields) {
    if (count == kFieldsMax) break;
    views[count++] = {field.key, field.value};
  }
  const LogRecord record{level, area, text, {views.data(), count}, file, line};
  const std::lock_guard lock(mutex_);
  sink_.write(sink_.context, record);
}

}  // namespace fabric

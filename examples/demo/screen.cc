#include "screen.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace demo {

namespace {

constexpr size_t kColumns = 100;

std::string format_list(const char* format, va_list values) {
  char buffer[512];
  std::vsnprintf(buffer, sizeof(buffer), format, values);
  return buffer;
}

[[gnu::format(printf, 1, 2)]] std::string text_of(const char* format, ...) {
  va_list values;
  va_start(values, format);
  std::string out = format_list(format, values);
  va_end(values);
  return out;
}

bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

}  // namespace

Screen::Screen() {
  const char* terminal = std::getenv("TERM");
  live_ = ::isatty(STDOUT_FILENO) != 0 && terminal != nullptr &&
          std::string_view(terminal) != "dumb" && *terminal != '\0';
  colour_ = live_ && !is_set("NO_COLOR");
}

int64_t Screen::interval_ns() const { return live_ ? 200'000'000 : 1'000'000'000; }

std::string Screen::paint(Tone tone, const std::string& text) const {
  if (!colour_ || tone == Tone::kPlain) return text;
  const char* code = tone == Tone::kGood ? "32" : tone == Tone::kWarn ? "33" : "31";
  return std::string("\033[").append(code).append("m").append(text).append("\033[0m");
}

void Screen::print_line(const char* format, ...) {
  va_list values;
  va_start(values, format);
  const std::string text = format_list(format, values);
  va_end(values);
  erase();
  std::printf("%.*s\n", static_cast<int>(kColumns), text.c_str());
  std::fflush(stdout);
}

void Screen::refresh(double seconds, const std::vector<Row>& rows) {
  erase();
  live_ ? draw(seconds, rows) : line(seconds, rows);
  std::fflush(stdout);
}

void Screen::conclude(double seconds, const std::vector<Row>& rows) {
  erase();
  draw(seconds, rows);
  leave();
}

void Screen::erase() {
  if (drawn_ > 0) std::printf("\033[%uA\033[J", drawn_);
  drawn_ = 0;
}

/// At most 80 columns: lines that wrap could not be erased correctly.
void Screen::draw(double seconds, const std::vector<Row>& rows) {
  std::printf("\n%6.1f s  %7s %-10s %6s %5s %6s %7s %15s %6s\n", seconds, "pid", "state", "prompts",
              "GB/s", "p50 ms", "p99 ms", "counts/expected", "failed");
  for (const Row& row : rows) {
    const std::string state = paint(row.tone, text_of("%-10s", row.state.c_str()));
    const std::string rates = row.window.requests > 0
                                  ? text_of("%5.2f %6.2f %7.2f", row.window.gigabytes_per_second,
                                            row.window.p50, row.window.p99)
                                  : text_of("%5s %6s %7s", "-", "-", "-");
    const std::string counts = std::to_string(row.counted) + "/" + std::to_string(row.expected);
    std::printf("%-9s %7lld %s %7llu %s %15s %6llu\n", row.name.c_str(),
                static_cast<long long>(row.pid), state.c_str(),
                static_cast<unsigned long long>(row.requests), rates.c_str(), counts.c_str(),
                static_cast<unsigned long long>(row.failed));
  }
  drawn_ = 2 + static_cast<uint32_t>(rows.size());
}

void Screen::line(double seconds, const std::vector<Row>& rows) {
  std::string out = text_of("%4.1f s", seconds);
  for (const Row& row : rows) {
    out += row.window.requests > 0 && row.tone == Tone::kGood
               ? text_of("   %s %.2f GB/s p99 %.2f ms", row.name.c_str(),
                         row.window.gigabytes_per_second, row.window.p99)
               : text_of("   %s %s", row.name.c_str(), row.state.c_str());
  }
  std::printf("%.*s\n", static_cast<int>(kColumns), out.c_str());
}

}  // namespace demo

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

void Screen::refresh(double seconds, const Totals& totals, const std::vector<Row>& rows) {
  erase();
  live_ ? draw(seconds, totals, rows) : line(seconds, totals, rows);
  std::fflush(stdout);
}

void Screen::conclude(double seconds, const Totals& totals, const std::vector<Row>& rows) {
  erase();
  draw(seconds, totals, rows);
  leave();
}

void Screen::erase() {
  if (drawn_ > 0) std::printf("\033[%uA\033[J", drawn_);
  drawn_ = 0;
}

/// At most 80 columns: a line that wraps could not be erased correctly.
void Screen::draw(double seconds, const Totals& totals, const std::vector<Row>& rows) {
  std::printf("\n%6.1f s: %llu requests, %llu answered, %llu sent again, %llu members\n", seconds,
              static_cast<unsigned long long>(totals.submitted),
              static_cast<unsigned long long>(totals.answered),
              static_cast<unsigned long long>(totals.sent_again),
              static_cast<unsigned long long>(totals.members));
  std::printf("%-9s %7s %-8s %4s %13s %7s %8s %9s %7s\n", "", "pid", "state", "done",
              "TTFT ms 50/99", "KV GB/s", "free/all", "in flight", "fencing");
  for (const Row& row : rows) {
    const std::string state = paint(row.tone, text_of("%-8s", row.state.c_str()));
    const std::string rates = row.window.requests > 0
                                  ? text_of("%6.1f/%6.1f %7.4f", row.window.p50_ms,
                                            row.window.p99_ms, row.window.gigabytes_per_second)
                                  : text_of("%13s %7s", "-", "-");
    std::string pages;
    if (row.pages > 0) {
      pages = text_of(" %8s", (std::to_string(row.free) + "/" + std::to_string(row.pages)).c_str());
    }
    if (row.pages > 0 && row.decodes) {
      pages += text_of(" %9llu %7llu", static_cast<unsigned long long>(row.flowing),
                       static_cast<unsigned long long>(row.fenced));
    }
    std::printf("%-9s %7lld %s %4llu %s%s\n", row.name.c_str(), static_cast<long long>(row.pid),
                state.c_str(), static_cast<unsigned long long>(row.requests), rates.c_str(),
                pages.c_str());
  }
  drawn_ = 3 + static_cast<uint32_t>(rows.size());
}

void Screen::line(double seconds, const Totals& totals, const std::vector<Row>& rows) {
  uint64_t free = 0, flowing = 0, fenced = 0;
  for (const Row& row : rows) {
    if (!row.decodes) continue;
    free += row.free;
    flowing += row.flowing;
    fenced += row.fenced;
  }
  std::string out = text_of("%4.1f s   %llu of %llu answered, %llu members", seconds,
                            static_cast<unsigned long long>(totals.answered),
                            static_cast<unsigned long long>(totals.submitted),
                            static_cast<unsigned long long>(totals.members));
  std::string pages =
      text_of(", pages: %llu free, %llu in flight", static_cast<unsigned long long>(free),
              static_cast<unsigned long long>(flowing));
  if (fenced > 0) pages += text_of(", %llu fencing", static_cast<unsigned long long>(fenced));
  if (totals.window.requests > 0) {
    out += text_of(", TTFT %.0f ms", totals.window.p50_ms);
    const std::string rate = text_of(", KV %.4f GB/s", totals.window.gigabytes_per_second);
    // Dropped when the line would be too long: fencing matters more at that moment.
    if (out.size() + rate.size() + pages.size() <= kColumns) out += rate;
  }
  std::printf("%.*s\n", static_cast<int>(kColumns), (out + pages).c_str());
}

}  // namespace demo

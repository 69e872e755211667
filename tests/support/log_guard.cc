#include "support/log_guard.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/log_listener.h"

namespace fabric::test {
namespace {

std::string line_of(const LogRecord& record) {
  std::string line = to_string(record.level);
  line.append(" [").append(record.area).append("] ").append(record.text);
  for (const LogField& field : record.fields) {
    line.append(" ").append(field.key).append("=").append(field.value);
  }
  return line.append(" (").append(record.file).append(":").append(std::to_string(record.line)) +
         ")";
}

/// The warnings and errors of the test that is running, and which of them it allows.
class LogGuard {
 public:
  void add(const LogRecord& record) {
    if (record.level < LogLevel::kWarning) return;
    const std::scoped_lock lock(mutex_);
    lines_.push_back(line_of(record));
    if (shown_) std::fprintf(stderr, "%s\n", lines_.back().c_str());
  }

  void expect(std::string_view part) {
    const std::scoped_lock lock(mutex_);
    expected_.emplace_back(part);
  }

  uint64_t count(std::string_view part) {
    const std::scoped_lock lock(mutex_);
    return static_cast<uint64_t>(std::ranges::count_if(
        lines_, [&](const std::string& line) { return line.find(part) != std::string::npos; }));
  }

  /// The lines that were not expected. Starts over for the next test.
  std::vector<std::string> finish() {
    const std::scoped_lock lock(mutex_);
    std::erase_if(lines_, [&](const std::string& line) {
      return std::ranges::any_of(
          expected_, [&](const std::string& part) { return line.find(part) != std::string::npos; });
    });
    expected_.clear();
    return std::exchange(lines_, {});
  }

 private:
  std::mutex mutex_;
  const bool shown_ =
      std::getenv("FABRICLIB_TEST_LOG") != nullptr;  ///< also prints them as they come
  std::vector<std::string> lines_;
  std::vector<std::string> expected_;
};

// Never destroyed: an engine of a static object may still log while the process ends.
LogGuard& guard() {
  static auto* const instance = new LogGuard;
  return *instance;
}

}  // namespace

LogSink test_log_sink() {
  return {
      [](void* context, const LogRecord& record) { static_cast<LogGuard*>(context)->add(record); },
      &guard()};
}

void expect_log(std::string_view text_part) { guard().expect(text_part); }

uint64_t logged(std::string_view text_part) { return guard().count(text_part); }

uint64_t test_seed() {
  static const uint64_t seed = [] {
    const char* text = std::getenv("FABRICLIB_TEST_SEED");
    if (text == nullptr) return uint64_t{1};
    uint64_t value = 0;
    const char* end = text + std::strlen(text);
    const auto [stop, error] = std::from_chars(text, end, value);
    if (error != std::errc{} || stop != end) {
      // A seed that is silently replaced would replay another run than the one that failed.
      std::fprintf(stderr, "FABRICLIB_TEST_SEED is '%s': a decimal number is needed\n", text);
      std::exit(2);
    }
    return value;
  }();
  return seed;
}

// What a suite's set-up logs between two tests fails the next test.
void LogListener::OnTestEnd(const testing::TestInfo&) {
  for (const std::string& line : guard().finish()) {
    ADD_FAILURE() << "logged and not expected (expect_log() allows it): " << line;
  }
}

}  // namespace fabric::test

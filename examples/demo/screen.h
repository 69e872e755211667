#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "records.h"

// The output of the demo. In a terminal, a table below the log lines is redrawn continually;
// elsewhere a plain line is printed every second.

namespace demo {

enum class Tone { kPlain, kGood, kWarn, kBad };

/// One process.
struct Row {
  std::string name{};
  int64_t pid = 0;
  std::string state{};
  Tone tone = Tone::kPlain;
  uint64_t requests = 0;
  bool decodes = false;
  Window window{};  ///< decoders only
  // Pages by state; 0 pages: it has no cache.
  uint64_t pages = 0, free = 0, flowing = 0, fenced = 0;
};

/// The whole service.
struct Totals {
  uint64_t submitted = 0, answered = 0, sent_again = 0, members = 0;
  Window window{};
};

class Screen {
 public:
  Screen();
  /// How often to call refresh().
  int64_t interval_ns() const;
  /// Prints a log line.
  [[gnu::format(printf, 2, 3)]] void print_line(const char* format, ...);
  void refresh(double seconds, const Totals& totals, const std::vector<Row>& rows);
  /// Prints the final table, in a terminal or not.
  void conclude(double seconds, const Totals& totals, const std::vector<Row>& rows);
  /// Keeps the table that is on the screen.
  void leave() { drawn_ = 0; }
  std::string paint(Tone tone, const std::string& text) const;

 private:
  void draw(double seconds, const Totals& totals, const std::vector<Row>& rows);
  void line(double seconds, const Totals& totals, const std::vector<Row>& rows);
  void erase();

  bool live_ = false;
  bool colour_ = false;
  uint32_t drawn_ = 0;  ///< lines of the table on the screen
};

}  // namespace demo

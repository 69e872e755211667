#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stats.h"

// Where the show is seen. In a terminal a table stands below the lines that were said and is drawn
// again and again; anywhere else there is a plain line a second.

namespace demo {

enum class Tone { kPlain, kGood, kWarn, kBad };

struct Row {
  std::string name{};
  int64_t pid = 0;
  std::string state{};
  Tone tone = Tone::kPlain;
  Window window{};
  uint64_t requests = 0, counted = 0, expected = 0, failed = 0;
};

class Screen {
 public:
  Screen();
  /// How often refresh() has something to show.
  int64_t interval_ns() const;
  /// A line that stays.
  [[gnu::format(printf, 2, 3)]] void print_line(const char* format, ...);
  void refresh(double seconds, const std::vector<Row>& rows);
  /// The last table, which stays wherever the show is seen.
  void conclude(double seconds, const std::vector<Row>& rows);
  /// What follows comes below whatever there is.
  void leave() { drawn_ = 0; }
  std::string paint(Tone tone, const std::string& text) const;

 private:
  void draw(double seconds, const std::vector<Row>& rows);
  void line(double seconds, const std::vector<Row>& rows);
  void erase();

  bool live_ = false;
  bool colour_ = false;
  uint32_t drawn_ = 0;  ///< lines of the table that stand below the cursor's home
};

}  // namespace demo

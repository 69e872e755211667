#pragma once

#include <cstdint>
#include <vector>

#include "plan.h"

namespace fabric::tool::bench {

/// The measurements of one round.
struct Repetition {
  double seconds = 0;
  uint64_t counts = 0;  ///< writes, pages, targets or messages that the receiver counted
  uint64_t bytes = 0;
  double sender_cpu = 0, receiver_cpu = 0;
  double half_p50 = 0, half_p99 = 0;  ///< nanoseconds; 0: no round trips were timed
  double word_p50 = 0, word_p99 = 0;  ///< likewise, from the layer word to the first post
};

/// The results for one size.
struct Case {
  uint64_t size = 0;
  std::vector<Repetition> repetitions{};
  bool verified = true;
};

/// Prints a line for each case, as a table or as JSON.
class Report {
 public:
  Report(const BenchPlan& plan, bool json);
  void add(const Case& one);

  /// Shows progress on a terminal; erased before the next line is printed.
  void progress(uint64_t size, uint32_t repetition);

 private:
  void head() const;
  void add_text(const Case& one) const;
  void add_json(const Case& one) const;
  void wipe();

  const BenchPlan plan_;
  const bool json_, colour_, watched_;
  bool begun_ = false, dirty_ = false;
};

}  // namespace fabric::tool::bench

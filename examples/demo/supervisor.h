#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "child.h"
#include "screen.h"
#include "stats.h"

namespace demo {

struct Options {
  double seconds = 15;
  uint32_t lanes = 2;
};

/// A receiver process, as the parent sees it.
struct Receiver {
  std::string name{};
  std::unique_ptr<Child> child{};
  pid_t pid = 0;
  ReceiverStats stats{};
  std::string offer{};
  bool kill_requested = false;   ///< kDie was sent
  bool killed = false;           ///< and its socket has closed since
  MessageHeader death_report{};  ///< kDying: when, and how far the request was
  bool finished = false;         ///< kFinished was received
};

/// Owns the child processes and collects their reports.
///
/// Threads: one. Messages are read while run_for() or run_until() runs.
class DemoSupervisor {
 public:
  DemoSupervisor(const RoleOptions& options, Screen& screen);

  /// Starts another receiver, waits for its offer and returns its number.
  uint32_t start_receiver();
  /// Sends the receiver's offer to the source, which connects to it.
  void connect_source_to(uint32_t receiver_id);
  /// Sets the time between the layers of a prompt, and between the prompts of a receiver.
  void pace(int64_t layer_ns, int64_t request_ns);
  /// Stops all processes. True: every one that was not killed exited with 0.
  bool finish();

  /// Handles messages and refreshes the screen for that long.
  void run_for(int64_t ns);
  /// The same until `done`. False: not within 30 s, where milliseconds are normal.
  bool run_until(const std::function<bool()>& done);

  Receiver& operator[](uint32_t receiver_id) { return *receivers_[receiver_id - 1]; }
  const std::vector<std::unique_ptr<Receiver>>& receivers() const { return receivers_; }
  /// Prints a log line with the time.
  [[gnu::format(printf, 2, 3)]] void print_line(const char* format, ...);
  /// Rows of the table: rates and latencies of the span, totals of the whole run.
  std::vector<Row> rows(int64_t from_ns, int64_t to_ns) const;
  Screen& screen() { return screen_; }
  double seconds() const;
  uint64_t operations_accepted() const { return drained_.count; }
  uint64_t operations_completed() const { return drained_.extra; }

 private:
  void poll_children(int64_t until_ns);
  void take(const Message& message, const std::string& from);
  bool take_all(Child& child, const std::string& from);
  void refresh();
  [[noreturn]] void abort_demo(const std::string& why);

  RoleOptions options_;
  Screen& screen_;
  int64_t begun_ns_;
  int64_t refresh_ns_ = 0;
  bool source_is_up_ = false;
  MessageHeader drained_{};
  std::vector<std::unique_ptr<Receiver>> receivers_{};  ///< number i + 1 has index i
  std::unique_ptr<Child> source_{};
};

}  // namespace demo

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "child.h"
#include "records.h"
#include "roles.h"
#include "screen.h"

namespace demo {

/// A child process, as the parent sees it.
struct Process {
  enum class Role { kRouter, kPrefiller, kDecoder };
  Role role = Role::kRouter;
  std::string name{};
  std::unique_ptr<Child> child{};
  pid_t pid = 0;
  std::string address{};     ///< empty until it is ready
  bool listed = false;       ///< in the directory
  MessageHeader status{};    ///< the last kStatus
  MessageHeader stopping{};  ///< kStopping: when it killed or stopped itself
  MessageHeader finished{};  ///< kFinished
  bool may_end = false;      ///< its socket may close
  bool ended = false;        ///< and has closed
  std::string state = "starting";
};

/// Owns the child processes and collects their reports.
///
/// Threads: one. Messages are read while run_for() or run_until() runs.
class Supervisor {
 public:
  Supervisor(const RoleOptions& options, Screen& screen);
  ~Supervisor();

  /// Starts a process and waits until it is ready. Members get the router's address.
  Process& start(Process::Role role, const std::string& name);
  Process& operator[](const std::string& name);
  /// Kills a process (SIGKILL) and forgets it, so that its name is free. False: it did not end.
  bool kill(const std::string& name);
  const std::vector<std::unique_ptr<Process>>& processes() const { return processes_; }

  /// Handles messages and refreshes the screen for that long.
  void run_for(int64_t ns);
  /// The same until `done`. False: not within 30 s, where milliseconds are normal.
  bool run_until(const std::function<bool()>& done);

  Records& records() { return records_; }
  bool router_is_idle() const { return idle_; }
  /// Prints a log line with the time, and keeps it for the report.
  void note(const std::string& member, const std::string& text);
  std::vector<Row> rows(int64_t from_ns, int64_t to_ns) const;
  Totals totals(int64_t from_ns, int64_t to_ns) const;
  Screen& screen() { return screen_; }
  double seconds() const;
  int64_t begun_ns() const { return begun_ns_; }

 private:
  void poll_children(int64_t until_ns);
  bool take_all(Process& process);
  void take(const Message& message, Process& process);
  void refresh();
  Process* find(const std::string& name);
  [[noreturn]] void abort_demo(const std::string& why);

  RoleOptions options_;
  Screen& screen_;
  int64_t begun_ns_;
  int64_t refresh_ns_ = 0;
  bool idle_ = false;
  Records records_{};
  std::vector<std::unique_ptr<Process>> processes_{};
};

}  // namespace demo

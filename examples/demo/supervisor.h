#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "child.h"
#include "stats.h"
#include "screen.h"

namespace demo {

struct Options {
  double seconds = 15;
  uint32_t lanes = 2;
};

/// One of the receivers, as the parent sees it.
struct Receiver {
  std::string name{};
  std::unique_ptr<Child> child{};
  pid_t pid = 0;
  ReceiverStats stats{};
  std::string offer{};
  bool kill_requested = false;    ///< it was told to die
  bool killed = false;    ///< and did
  MessageHeader death_report{};       ///< when, and in the middle of what
  bool finished = false;  ///< it has said how many counts were left over
};

/// The processes, and everything that they have told so far.
class DemoSupervisor {
 public:
  DemoSupervisor(const RoleOptions& options, Screen& screen);

  /// Starts another receiver; its number is returned once it has an offer.
  uint32_t start_receiver();
  /// Hands its offer to the source, which connects.
  void connect_source_to(uint32_t receiver_id);
  /// Time between the layers of a prompt, and between the prompts of a receiver.
  void pace(int64_t layer_ns, int64_t request_ns);
  /// Ends every process in good order. False: one of them did not.
  bool finish();

  /// Listens and shows for so long.
  void run_for(int64_t ns);
  /// The same until `done`. False: it did not come in half a minute. What is waited for takes
  /// milliseconds, unless much else is running on the machine.
  bool run_until(const std::function<bool()>& done);

  Receiver& operator[](uint32_t receiver_id) { return *receivers_[receiver_id - 1]; }
  const std::vector<std::unique_ptr<Receiver>>& receivers() const { return receivers_; }
  /// A line that stays, with the time before it.
  [[gnu::format(printf, 2, 3)]] void print_line(const char* format, ...);
  /// What the table shows: rates and times of a stretch, sums of the whole.
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
  std::vector<std::unique_ptr<Receiver>> receivers_{};  ///< number i + 1 is at i
  std::unique_ptr<Child> source_{};
};

}  // namespace demo

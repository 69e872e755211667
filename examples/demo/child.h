#pragma once

#include <sys/types.h>

#include <string>

#include "channel.h"
#include "roles.h"

namespace demo {

/// A child process: this program again, in a role.
///
/// Lifetime: the destructor kills it and waits for its end. It also dies with the parent, however
///   that ends.
class Child {
 public:
  /// `role` is "source" or "receiver". Ends the parent when no process can be had.
  Child(const char* role, const RoleOptions& options);
  ~Child();
  Child(Child&&) = delete;

  const Channel& channel() const { return channel_; }
  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Waits for its end; the status as waitpid() gives it.
  int reap();

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  Channel channel_{-1};
};

/// Where a child finds its end of the channel.
constexpr int kChildFd = 3;

}  // namespace demo

#pragma once

#include <sys/types.h>

#include <string>

#include "control_socket.h"
#include "roles.h"

namespace demo {

/// A child process: this program again, in a role.
///
/// Lifetime: the destructor kills it and waits for its end. It also dies with the parent, however
///   that sockets.
class Child {
 public:
  /// `role` is "source" or "receiver". Ends the parent when no process can be had.
  Child(const char* role, const RoleOptions& options);
  ~Child();
  Child(Child&&) = delete;

  const ControlSocket& control() const { return control_; }
  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Waits for its end; the status as waitpid() gives it.
  int reap();

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  ControlSocket control_{-1};
};

/// Where a child finds its end of the channel.
constexpr int kChildFd = 3;

}  // namespace demo

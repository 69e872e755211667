#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "control_socket.h"

namespace demo {

/// A child process: this program, executed again in a role.
///
/// Lifetime: the destructor kills the process and waits for it. It is also killed if the parent
/// dies.
class Child {
 public:
  /// `arguments` of the program, without its name. Exits if no process can be made.
  explicit Child(std::vector<std::string> arguments);
  ~Child();
  Child(Child&&) = delete;

  const ControlSocket& control() const { return control_; }
  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// Waits for the process to exit; returns the status of waitpid().
  int reap();

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  ControlSocket control_{-1};
};

/// The descriptor of the control socket in a child.
constexpr int kChildFd = 3;

}  // namespace demo

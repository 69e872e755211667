#include "child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace demo {

namespace {

[[noreturn]] void abort_demo(const char* call) {
  std::perror(call);
  std::exit(1);
}

/// Makes only calls that are async-signal-safe, as required between fork and exec.
[[noreturn]] void exec_role(int fd, pid_t parent, char* const* arguments) {
  // If the parent died before prctl() no signal will come: check once more.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  // dup2() onto itself would keep the close-on-exec flag.
  if (fd == kChildFd ? ::fcntl(fd, F_SETFD, 0) < 0 : ::dup2(fd, kChildFd) < 0) ::_exit(1);
  ::execv("/proc/self/exe", arguments);
  ::_exit(127);
}

}  // namespace

Child::Child(std::vector<std::string> words) {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
    abort_demo("socketpair");
  words.insert(words.begin(), "demo");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) abort_demo("fork");
  if (pid_ == 0) exec_role(sockets[1], parent, arguments.data());
  ::close(sockets[1]);
  control_ = ControlSocket(sockets[0]);
}

Child::~Child() {
  if (pid_ > 0) {
    signal(SIGKILL);
    reap();
  }
  ::close(control_.fd());
}

void Child::signal(int number) const {
  if (pid_ > 0) ::kill(pid_, number);
}

int Child::reap() {
  if (pid_ <= 0) return status_;
  while (::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return status_;
}

}  // namespace demo

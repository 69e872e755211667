#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "providers/shm/copy.h"
#include "providers/shm/proof.h"
#include "providers/shm/writer_slots.h"

// Writers in child processes, and what they share with the test.

namespace fabric::shm {

/// A T in memory that the children forked after it share with the test.
template <class T>
class Shared {
 public:
  Shared()
      : object_(new (mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                          -1, 0)) T) {}
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { munmap(static_cast<void*>(object_), sizeof(T)); }
  T& operator*() const { return *object_; }
  T* operator->() const { return object_; }

 private:
  T* object_;
};

/// A child process that exits with the test, or by SIGALRM if it hangs.
class Child {
 public:
  explicit Child(const std::function<void()>& body) {
    std::fflush(nullptr);
    const pid_t test = getpid();
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != test) _exit(1);  // it ended before it could take us along
      ::alarm(60);
      body();
      _exit(0);
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() {
    if (!ended_) kill();
  }

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  /// Returns when every thread of it has stopped.
  void stop() {
    signal(SIGSTOP);
    int status = 0;
    if (waitpid(pid_, &status, WUNTRACED) == pid_ && !WIFSTOPPED(status)) ended_ = true;
  }
  void kill() {
    signal(SIGKILL);
    while (!ended_ && waitpid(pid_, nullptr, 0) != pid_) {
    }
    ended_ = true;
  }
  /// Waits until it exits by itself; true if with code 0.
  bool join() {
    int status = 0;
    ended_ = waitpid(pid_, &status, 0) == pid_;
    return ended_ && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  /// Polls the condition. False: the child has exited, and it still does not hold.
  bool await(const std::function<bool()>& condition) {
    while (!condition()) {
      if (ended_ || waitpid(pid_, nullptr, WNOHANG) == pid_) {
        ended_ = true;
        return condition();
      }
      sched_yield();
    }
    return true;
  }

 private:
  pid_t pid_ = -1;
  bool ended_ = false;
};

/// Stays on its CPU. (The compiler may remove an empty loop.)
[[noreturn]] inline void spin_forever() {
  for (volatile bool on = true; on;) {
  }
  _exit(0);
}

/// The child's descriptor of its writer slots; 0 until it has some.
using WriterSlotsFd = std::atomic<int>;

/// In the child: takes the calling thread's slot and shows the descriptor to the test.
inline WriterSlot& announce_slot(WriterSlotsFd& fd) {
  const auto slots = WriterSlots::of_process();
  WriterSlot* const slot = slots ? (*slots)->mine() : nullptr;
  if (slot == nullptr) _exit(2);
  fd.store((*slots)->fd());
  return *slot;
}

/// In the test: maps the child's slots, through procfs instead of a socket. Null: it has exited.
inline std::unique_ptr<PeerWriterSlots> slots_of(Child& child, const WriterSlotsFd& fd,
                                                 bool pid_known = true) {
  if (!child.await([&] { return fd.load() != 0; })) return nullptr;
  const std::string path =
      "/proc/" + std::to_string(child.pid()) + "/fd/" + std::to_string(fd.load());
  auto slots = PeerWriterSlots::map(UniqueFd(open(path.c_str(), O_RDWR | O_CLOEXEC)),
                                    pid_known ? child.pid() : 0);
  return slots ? *std::move(slots) : nullptr;
}

/// Sets the guard kind for its lifetime.
class UseGuardKind {
 public:
  explicit UseGuardKind(GuardKind kind) : before_(guard_kind()), used_(use_guard_kind(kind)) {}
  ~UseGuardKind() { use_guard_kind(before_); }
  bool used() const { return used_; }

 private:
  GuardKind before_;
  bool used_;
};

inline std::string name_of(GuardKind kind) {
  return kind == GuardKind::kRestartable ? "Restartable" : "Plain";
}

}  // namespace fabric::shm

#include "cost/system_calls.h"

#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>

#include <fmt/format.h>

namespace fabric::test {
namespace {

constexpr int kMayNotTrace = 99;                 // how a child ends that was refused
constexpr int kSystemCallStop = SIGTRAP | 0x80;  // as PTRACE_O_TRACESYSGOOD marks it

[[noreturn]] void be_traced(const std::function<void(Window&)>& body, Window& window) {
  if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(kMayNotTrace);
  ::alarm(120);  // a child that hangs is killed, and its tracer ends
  ::raise(SIGSTOP);
  try {
    body(window);
  } catch (const std::exception& error) {
    window.open = false;
    std::snprintf(window.failure, sizeof(window.failure), "%s", error.what());
  }
  ::_exit(window.failure[0] == '\0' ? 0 : 1);
}

/// The number of the call that the child is about to make; nothing at the end of one.
std::optional<uint64_t> call_of(pid_t child) {
  __ptrace_syscall_info info{};
  const auto size = reinterpret_cast<void*>(sizeof(info));
  if (::ptrace(PTRACE_GET_SYSCALL_INFO, child, size, &info) <= 0) return std::nullopt;
  if (info.op != PTRACE_SYSCALL_INFO_ENTRY) return std::nullopt;
  return info.entry.nr;
}

/// From stop to stop until the child has ended; returns how.
int follow(pid_t child, const Window& window, SystemCalls& calls) {
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) return status;
  ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
  long signal = 0;
  while (::ptrace(PTRACE_SYSCALL, child, nullptr, signal) == 0 &&
         ::waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
    signal = WSTOPSIG(status);
    if (signal != kSystemCallStop) continue;  // it is the child's: delivered
    signal = 0;
    if (!window.open) continue;
    if (const auto number = call_of(child)) ++calls.by_number[*number];
  }
  return status;
}

}  // namespace

uint64_t SystemCalls::total() const {
  uint64_t sum = 0;
  for (const auto& [number, count] : by_number) sum += count;
  return sum;
}

std::string SystemCalls::text() const {
  std::string text;
  for (const auto& [number, count] : by_number) {
    text += fmt::format("{} x system call {}\n", count, number);
  }
  return text;
}

std::optional<SystemCalls> trace(const std::function<void(Window&)>& body) {
  void* const shared =
      ::mmap(nullptr, sizeof(Window), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return std::nullopt;
  auto& window = *new (shared) Window;
  SystemCalls calls;
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) be_traced(body, window);
  const int status = child < 0 ? -1 : follow(child, window, calls);
  if (status != 0) calls.failure = fmt::format("status {:#x} {}", status, window.failure);
  ::munmap(shared, sizeof(Window));
  const bool refused = WIFEXITED(status) && WEXITSTATUS(status) == kMayNotTrace;
  if (refused) return std::nullopt;
  return calls;
}

}  // namespace fabric::test

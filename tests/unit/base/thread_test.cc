#include "base/thread.h"

#include <sched.h>

#include <csignal>
#include <filesystem>
#include <string>

#include <gtest/gtest.h>

namespace fabric::thread_test {
namespace {

uint32_t thread_count() {
  uint32_t n = 0;
  for ([[maybe_unused]] const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    ++n;
  }
  return n;
}

TEST(Thread, HasItsNameAndBlocksSignals) {
  std::string name;
  bool deaf = false;
  Result<Thread> thread = Thread::start({.name = "fabric-test"}, [&] {
    char buffer[16] = {};
    pthread_getname_np(pthread_self(), buffer, sizeof(buffer));
    name = buffer;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    deaf = sigismember(&mask, SIGINT) == 1 && sigismember(&mask, SIGTERM) == 1 &&
           sigismember(&mask, SIGCHLD) == 1;
  });
  ASSERT_TRUE(thread);
  thread->join();
  EXPECT_EQ(name, "fabric-test");
  EXPECT_TRUE(deaf);
}

TEST(Thread, LeavesTheCallersSignalsAlone) {
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  ASSERT_TRUE(Thread::start({}, [] {}));
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal = 1; signal < 32; ++signal) {
    EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal)) << signal;
  }
}

TEST(Thread, RunsOnTheCpusItIsGiven) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  int cpu = CPU_SETSIZE - 1;
  while (cpu > 0 && !CPU_ISSET(cpu, &allowed)) --cpu;
  int ran_on = -1;
  Result<Thread> thread = Thread::start({.cpus = {cpu}}, [&] { ran_on = sched_getcpu(); });
  ASSERT_TRUE(thread);
  thread->join();
  EXPECT_EQ(ran_on, cpu);
}

TEST(Thread, RefusesACpuThatDoesNotExistAndLeavesNothingBehind) {
  const uint32_t before = thread_count();
  for (const int cpu : {-1, CPU_SETSIZE - 1, CPU_SETSIZE}) {
    const Result<Thread> thread = Thread::start({.cpus = {cpu}}, [] { ADD_FAILURE(); });
    ASSERT_FALSE(thread);
    EXPECT_EQ(thread.error().code, Errc::kInvalidArgument);
  }
  EXPECT_EQ(thread_count(), before);
}

}  // namespace
}  // namespace fabric::thread_test

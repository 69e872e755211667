#include "base/fork_guard.h"

#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace fabric::fork_guard_test {
namespace {

/// Runs `body` in a child and returns what it returned.
template <class Body>
int in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

TEST(ForkGuard, TellsAChildFromItsParent) {
  const ForkGuard guard;
  EXPECT_FALSE(guard.forked());
  EXPECT_EQ(in_child([&] { return guard.forked() ? 1 : 0; }), 1);
  EXPECT_FALSE(guard.forked());
}

TEST(ForkGuard, OfAChildIsAtHomeThereAndForkedInAGrandchild) {
  const ForkGuard parents;
  const int bits = in_child([&] {
    const ForkGuard childs;
    const int at_home = childs.forked() ? 0 : 1;
    const int beyond =
        in_child([&] { return (childs.forked() ? 2 : 0) | (parents.forked() ? 4 : 0); });
    return at_home | beyond;
  });
  EXPECT_EQ(bits, 1 | 2 | 4);
}

}  // namespace
}  // namespace fabric::fork_guard_test

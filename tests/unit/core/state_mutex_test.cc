#include "core/state_mutex.h"

#include <gtest/gtest.h>

namespace fabric::core::state_mutex_test {
namespace {

TEST(StateMutex, AssertHeldAcceptsTheHolder) {
  StateMutex mutex;
  {
    const StateGuard lock(mutex);
    mutex.assert_held();
  }
  mutex.lock_for_turn();
  const StateGuard lock(mutex, std::adopt_lock);
  mutex.assert_held();
}

#ifndef NDEBUG
TEST(StateMutexDeathTest, AssertHeldAbortsWithoutTheLock) {
  StateMutex mutex;
  EXPECT_DEATH(mutex.assert_held(), "the state lock is not held by this thread");
  { const StateGuard lock(mutex); }
  EXPECT_DEATH(mutex.assert_held(), "the state lock is not held by this thread");
}
#endif

TEST(StateMutex, OnlyTheTurnLeavesItUndisturbed) {
  StateMutex mutex;
  mutex.lock_for_turn();
  mutex.watch(true);
  mutex.unlock();
  mutex.lock_for_turn();
  EXPECT_TRUE(mutex.undisturbed());
  mutex.unlock();
  { const StateGuard lock(mutex); }
  mutex.lock_for_turn();
  EXPECT_FALSE(mutex.undisturbed());
  mutex.unlock();
}

}  // namespace
}  // namespace fabric::core::state_mutex_test

#include "base/log.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace fabric::log_test {
namespace {

/// Notices when two threads are inside at once. The count is plain on purpose: the sanitizer for
/// threads then watches the promise as well.
struct Guarded {
  std::atomic<int> inside{0};
  int overlaps = 0;
  int lines = 0;

  static void write(void* context, const LogRecord&) {
    auto* self = static_cast<Guarded*>(context);
    if (self->inside.fetch_add(1, std::memory_order_relaxed) != 0) ++self->overlaps;
    std::this_thread::yield();
    ++self->lines;
    self->inside.fetch_sub(1, std::memory_order_relaxed);
  }
};

TEST(LogThreads, NeverCallsTheSinkFromTwoThreadsAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kOffloadQueues = 500;
  Guarded guarded;
  Log log({&Guarded::write, &guarded}, LogLevel::kInfo);
  std::vector<std::thread> writers;
  for (int t = 0; t < kThreads; ++t) {
    writers.emplace_back([&, t] {
      for (int i = 0; i < kOffloadQueues; ++i)
        FABRIC_LOG(log, kInfo, "test", "line", {"thread", t});
    });
  }
  for (auto& writer : writers) writer.join();
  EXPECT_EQ(guarded.overlaps, 0);
  EXPECT_EQ(guarded.lines, kThreads * kOffloadQueues);
}

}  // namespace
}  // namespace fabric::log_test

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/driver.h"

namespace fabric::test {

/// An engine for tests of runtimes: turn() takes `work`, run_callbacks() takes `due`.
class FakeProgress : public Progress {
 public:
  TurnResult turn(int64_t now_ns) noexcept override {
    if (on_turn) on_turn();
    const uint32_t took = work.exchange(0);
    worked += took;
    ++turns;
    const int64_t after = next_after_ns.load();
    return {.done = took,
            .next_ns = after == kNeverNs ? kNeverNs : now_ns + after,
            .keep_polling = keep_polling.load()};
  }
  uint32_t run_callbacks() noexcept override {
    const uint32_t took = due.exchange(0);
    if (took != 0 && on_callback) on_callback();
    called += took;
    ++looks;
    if (on_look) on_look();
    return took;
  }
  bool arm() noexcept override {
    const bool quiet = work.load() == 0;
    if (on_armed) on_armed();
    return quiet;
  }
  void wait_fds(std::vector<int>& out) const override { out = fds; }
  void on_sleep() noexcept override { ++sleeps; }

  std::atomic<uint32_t> work{0}, worked{0}, turns{0};
  std::atomic<uint32_t> due{0}, called{0}, looks{0};
  std::atomic<uint32_t> sleeps{0};
  std::atomic<int64_t> next_after_ns{kNeverNs};
  std::atomic<bool> keep_polling{false};
  std::vector<int> fds;
  // Set before attach().
  std::function<void()> on_turn, on_callback;
  std::function<void()> on_look;   ///< after every run_callbacks()
  std::function<void()> on_armed;  ///< between the last check for work and the sleep
};

}  // namespace fabric::test

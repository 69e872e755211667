#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <utility>

#include <fabric/engine.h>

namespace fabric::workloads {

/// A sum and a multiple of times that callers may set to Nanos::max(): they end there.
constexpr Nanos later(Nanos now, Nanos delay) {
  return delay > Nanos::max() - now ? Nanos::max() : now + delay;
}
constexpr Nanos times(uint32_t n, Nanos delay) {
  return delay > Nanos::max() / n ? Nanos::max() : n * delay;
}

/// The deadlines of a workload on its engine's clock, and one engine timer for the earliest, so
/// that a program that sleeps on its inbox wakes up in time.
///
/// Threads: one at a time.
class Deadlines {
 public:
  void add(Nanos at, uint64_t what) { due_.emplace(at, what); }
  void remove(Nanos at, uint64_t what) { due_.erase({at, what}); }
  bool empty() const noexcept { return due_.empty(); }

  /// Takes out the earliest one that has passed.
  std::optional<uint64_t> take(Nanos now) {
    if (due_.empty() || due_.begin()->first > now) return std::nullopt;
    const uint64_t what = due_.begin()->second;
    due_.erase(due_.begin());
    return what;
  }

  /// Submits a timer for the earliest deadline, unless one fires by then. Its report carries `tag`.
  /// When the engine has no room, the next call tries again.
  void arm(Engine& engine, Inbox& inbox, uint64_t tag) {
    if (due_.empty()) return;
    const Nanos now = engine.now();
    const Nanos at = std::min(std::max(due_.begin()->first, now), now + kLongest);
    if (!armed_.empty() && *armed_.begin() <= at) return;
    if (engine.submit(Timer{.after = at - now, .notify = Notify::inbox(inbox, tag)})) {
      armed_.insert(at);
    }
  }
  /// A timer of arm() has reported. They report in the order of their times.
  void fired() {
    if (!armed_.empty()) armed_.erase(armed_.begin());
  }

 private:
  // Timers of an engine are bounded by Config::timeout_max; a later deadline takes several.
  static constexpr Nanos kLongest{10'000'000'000};

  std::set<std::pair<Nanos, uint64_t>> due_;
  std::multiset<Nanos> armed_;
};

}  // namespace fabric::workloads

#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fabric/fabric.h>

#include "failed.h"
#include "line.h"
#include "plan.h"

namespace fabric::tool::bench {

/// An engine with memory to write from or into, and the counter of what arrives there.
struct Port {
  struct Free {
    void operator()(std::byte* first) const { std::free(first); }
  };
  using Heap = std::unique_ptr<std::byte, Free>;

  Engine engine;
  Heap heap;  ///< ordinary memory; null when the engine allocated it
  MemoryRegion memory;
  Counter counter;
  std::span<std::byte> bytes;
  Offer other{};         ///< where this port writes to
  uint64_t awaited = 0;  ///< counts of this round that were seen and are not yet taken
};

/// One of the two sides: its engines, how they are driven, and how long it waits.
///
/// Threads: one, the caller's; threaded engines have their own and touch only `failure_`.
class Side {
 public:
  /// Engines of the plan, `ports` of them, each with `bytes` of memory.
  Side(const Plan& plan, Line& line, uint32_t ports, uint64_t bytes);
  Side(Side&&) = delete;

  const Plan& plan() const { return plan_; }
  std::vector<Port>& ports() { return ports_; }
  Port& first() { return ports_.front(); }
  Line& line() { return line_; }

  /// Lets the engines work, once. With threads of their own they do so anyway.
  void turn() {
    if (runtime_ != nullptr) {
      runtime_->turn();
    } else {
      std::this_thread::yield();
    }
    if (++turns_ % kTurnsBetweenLooks == 0) look();
  }
  /// Until `n` more have been counted.
  void await(Port& port, uint64_t n) {
    if (runtime_ == nullptr) return sleep_for(port, n);
    port.awaited += n;
    while (port.counter.count() < port.awaited) turn();
  }
  /// After a round: takes what was awaited, so that no counter runs over.
  void settle();
  /// Submits with a turn in between while there is no room.
  template <class Request>
  void submit(Engine& engine, const Request& request) {
    for (;;) {
      const auto taken = engine.submit(request);
      if (taken) return;
      if (taken.error().code != Errc::kExhausted) need<OpId>(taken.error(), "submit");
      turn();
    }
  }
  /// A count without bytes: the round is over at this side.
  void answer() {
    Port& port = first();
    submit(port.engine, Write{.source = port.memory.at(0),
                              .target = port.other.region.at(0),
                              .imm = port.other.key});
  }
  /// Something has moved; the patience begins anew.
  void moved() { ++moves_; }
  nlohmann::json receive(double seconds);

  std::vector<Offer> offers{};  ///< all the other side's, in its order

 private:
  using Clock = std::chrono::steady_clock;
  // Looking costs a system call, a turn without work some 100 ns.
  static constexpr uint64_t kTurnsBetweenLooks = 4096;

  Port open_port(uint64_t bytes);
  void sleep_for(Port& port, uint64_t n);
  uint64_t progress() const;
  void look();
  void on_event(const Event& event);

  const Plan plan_;
  Line& line_;
  std::shared_ptr<InlineRuntime> runtime_;
  std::atomic<Errc> failure_{Errc::kOk};  ///< what the engines reported; look() reads it
  std::vector<Port> ports_;
  std::vector<Subscription> subscriptions_;
  uint64_t turns_ = 0, moves_ = 0, progress_seen_ = 0;
  Clock::time_point patient_since_ = Clock::now();
};

/// How long a side waits while nothing moves.
inline constexpr double kPatienceSeconds = 30;

/// Processor time of this process so far, in seconds.
double cpu_seconds();

}  // namespace fabric::tool::bench

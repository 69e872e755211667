#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fabric/fabric.h>

#include "bench_error.h"
#include "json_socket.h"
#include "plan.h"

namespace fabric::tool::bench {

/// An engine with memory to write from or into, and the counter of what arrives there.
struct BenchEngine {
  struct Free {
    void operator()(std::byte* first) const { std::free(first); }
  };
  using Heap = std::unique_ptr<std::byte, Free>;

  Engine engine;
  Heap heap;  ///< ordinary memory; null when the engine allocated it
  MemoryRegion memory;
  Counter counter;
  std::span<std::byte> bytes;
  Offer remote{};         ///< where this local writes to
  uint64_t awaited = 0;  ///< counts of this round that were seen and are not yet taken
};

/// One of the two sides: its engines, how they are driven, and how long it waits.
///
/// Threads: one, the caller's; threaded engines have their own and touch only `failure_`.
class Side {
 public:
  /// Engines of the plan, `engines` of them, each with `bytes` of memory.
  Side(const BenchPlan& plan, JsonSocket& socket, uint32_t engines, uint64_t bytes);
  Side(Side&&) = delete;

  const BenchPlan& plan() const { return plan_; }
  std::vector<BenchEngine>& engines() { return engines_; }
  BenchEngine& first() { return engines_.front(); }
  JsonSocket& socket() { return socket_; }

  /// Lets the engines work, once. With threads of their own they do so anyway.
  void turn() {
    if (runtime_ != nullptr) {
      runtime_->turn();
    } else {
      std::this_thread::yield();
    }
    if (++turns_ % kTurnsBetweenChecks == 0) check_peer();
  }
  /// Until `n` more have been counted.
  void await(BenchEngine& local, uint64_t n) {
    if (runtime_ == nullptr) return wait_for_counts(local, n);
    local.awaited += n;
    while (local.counter.count() < local.awaited) turn();
  }
  /// After a round: takes what was awaited, so that no counter runs over.
  void take_counts();
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
  void send_reply() {
    BenchEngine& local = first();
    submit(local.engine, Write{.source = local.memory.at(0),
                              .target = local.remote.region.at(0),
                              .imm = local.remote.key});
  }
  /// Something has note_progress; the reply_timeout begins anew.
  void note_progress() { ++moves_; }
  nlohmann::json receive(double seconds);

  std::vector<Offer> offers{};  ///< all the other side's, in its order

 private:
  using Clock = std::chrono::steady_clock;
  // Looking costs a system call, a turn without work some 100 ns.
  static constexpr uint64_t kTurnsBetweenChecks = 4096;

  BenchEngine open_engine(uint64_t bytes);
  void wait_for_counts(BenchEngine& local, uint64_t n);
  uint64_t progress() const;
  void check_peer();
  void on_event(const Event& event);

  const BenchPlan plan_;
  JsonSocket& socket_;
  std::shared_ptr<InlineRuntime> runtime_;
  std::atomic<Errc> failure_{Errc::kOk};  ///< what the engines reported; check_peer() reads it
  std::vector<BenchEngine> engines_;
  std::vector<Subscription> subscriptions_;
  uint64_t turns_ = 0, moves_ = 0, progress_at_check_ = 0;
  Clock::time_point last_progress_ = Clock::now();
};

/// How long a side waits while nothing moves.
inline constexpr double kIdleSecondsMax = 30;

/// Processor time of this process so far, in seconds.
double cpu_seconds();

}  // namespace fabric::tool::bench

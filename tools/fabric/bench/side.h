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

/// An engine with memory to write from or into, and a counter of the writes that arrive.
struct BenchEngine {
  struct Free {
    void operator()(std::byte* first) const { std::free(first); }
  };
  using Heap = std::unique_ptr<std::byte, Free>;

  Engine engine;
  Heap heap;  ///< ordinary memory; null if the engine allocated it
  MemoryRegion memory;
  Counter counter;
  std::span<std::byte> bytes;
  Offer remote{};        ///< where this engine writes to
  uint64_t awaited = 0;  ///< counts of this round that arrived and are not taken yet
};

/// One side of a run: its engines, how they are driven, and its timeouts.
///
/// Threads: one, the caller's. Threads of the engines only touch `failure_`, in on_event().
class Side {
 public:
  /// Engines of the plan, `engines` of them, each with `bytes` of memory.
  Side(const BenchPlan& plan, JsonSocket& socket, uint32_t engines, uint64_t bytes);
  Side(Side&&) = delete;

  const BenchPlan& plan() const { return plan_; }
  std::vector<BenchEngine>& engines() { return engines_; }
  BenchEngine& first() { return engines_.front(); }
  JsonSocket& socket() { return socket_; }

  /// One turn of the engines; yields if they have threads of their own.
  void turn() {
    if (runtime_ != nullptr) {
      runtime_->turn();
    } else {
      std::this_thread::yield();
    }
    if (++turns_ % kTurnsBetweenChecks == 0) check_peer();
  }
  /// Waits until `n` more writes have been counted.
  void await(BenchEngine& local, uint64_t n) {
    if (runtime_ == nullptr) return wait_for_counts(local, n);
    local.awaited += n;
    while (local.counter.count() < local.awaited) turn();
  }
  /// After a round: takes the awaited counts, so that no counter overflows.
  void count_arrived_imms();
  /// Submits, taking turns while the queues are full.
  template <class Request>
  void submit(Engine& engine, const Request& request) {
    for (;;) {
      const auto taken = engine.submit(request);
      if (taken) return;
      if (taken.error().code != Errc::kExhausted) need<OpId>(taken.error(), "submit");
      turn();
    }
  }
  /// An empty counted write, by which the sender learns that the round has ended here.
  void send_reply() {
    BenchEngine& local = first();
    submit(local.engine, Write{.source = local.memory.at(0),
                               .target = local.remote.region.at(0),
                               .imm = local.remote.key});
  }
  /// Restarts the idle timeout.
  void note_progress() { ++moves_; }
  /// Keeps inline engines running while the socket waits.
  JsonSocket::Idle idle();

  std::vector<Offer> offers{};  ///< of all engines of the other side

 private:
  using Clock = std::chrono::steady_clock;
  // A check costs a system call, a turn without work some 100 ns.
  static constexpr uint64_t kTurnsBetweenChecks = 4096;

  BenchEngine open_engine(uint64_t bytes);
  void wait_for_counts(BenchEngine& local, uint64_t n);
  uint64_t progress() const;
  void check_peer();
  void on_event(const Event& event);

  const BenchPlan plan_;
  JsonSocket& socket_;
  std::shared_ptr<InlineRuntime> runtime_;
  std::atomic<Errc> failure_{Errc::kOk};  ///< reported by the engines; read by check_peer()
  std::vector<BenchEngine> engines_;
  std::vector<Subscription> subscriptions_;
  uint64_t turns_ = 0, moves_ = 0, progress_at_check_ = 0;
  Clock::time_point last_progress_ = Clock::now();
};

/// A side gives up after this time without progress.
inline constexpr double kIdleSecondsMax = 30;

/// CPU time of this process so far, in seconds.
double cpu_seconds();

}  // namespace fabric::tool::bench

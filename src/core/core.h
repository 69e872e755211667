#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <fabric/engine.h>

#include "base/arena.h"
#include "base/driver.h"
#include "base/fork_guard.h"
#include "base/log.h"
#include "base/ring.h"
#include "base/rng.h"
#include "core/counters.h"
#include "core/op.h"
#include "core/peer.h"
#include "core/region.h"
#include "core/report.h"
#include "core/slot_table.h"
#include "core/timer_heap.h"
#include "core/transfer.h"

namespace fabric::core {

struct PeerGroupState {
  std::shared_ptr<EngineCore> core{};
  GroupId id{};
  std::vector<PeerId> peers{};
  ~PeerGroupState();
};

struct GroupSlot : SlotHead {
  std::vector<PeerId> peers{};
  std::atomic<uint32_t> size{0};  ///< read by submitters
};

/// Everything behind one Engine.
///
/// Threads: submitters fill an operation and push its slot into `submissions` without a lock. The
/// worker's turn() holds `state_mutex` and owns everything else; set-up calls take the same lock
/// for a moment. Callbacks run without it. Counters have their own words (counter_table.h).
class EngineCore final : public Progress, public std::enable_shared_from_this<EngineCore> {
 public:
  static Result<std::shared_ptr<EngineCore>> open(const Config& config,
                                                  std::shared_ptr<Runtime> runtime, Driver* driver);
  EngineCore(const Config& checked, std::shared_ptr<Runtime> runtime, Driver* driver,
             std::unique_ptr<Driver> own_driver);
  ~EngineCore() override;

  // Progress
  TurnResult turn(int64_t now_ns) noexcept override;
  uint32_t run_callbacks() noexcept override { return report.run_callbacks(); }
  bool arm() noexcept override;
  void wait_fds(std::vector<int>& out) const override;
  void on_sleep() noexcept override { sleeps.fetch_add(1, std::memory_order_relaxed); }

  bool forked() const noexcept { return fork_guard.forked(); }
  /// New calls are answered with kClosed.
  bool refuses() const noexcept {
    return forked() || closing.load(std::memory_order_acquire);  // pairs with close()
  }
  /// A handle that dies in a forked child touches nothing, not even its engine's memory (P21).
  template <class State>
  static bool leak_if_forked(std::shared_ptr<State>& state) noexcept {
    if (!state->core->forked()) return false;
    new (static_cast<void*>(leaked(sizeof state))) std::shared_ptr<State>(std::move(state));
    return true;
  }
  static void* leaked(size_t bytes) noexcept;

  Result<void> close(Timeout timeout);

  // Operations, any thread (submit.cc).
  Result<OpId> submit(const Write& request);
  Result<OpId> submit(const PagedWrite& request);
  Result<OpId> submit(const Scatter& request);
  Result<OpId> submit(const Signal& request);
  Result<OpId> submit(const Send& request);
  Result<OpId> submit(const Alarm& request);
  Result<OpId> submit(const Resolve& request);
  Result<OpId> submit(const Fence& request);
  Result<OpId> submit(const Deregister& request);
  Result<uint32_t> submit(std::span<const Write> requests);
  /// `armed`, where given, gets the expectation, so that its end can be asked for.
  Result<OpId> expect(Key key, uint64_t n, const Notify& notify, Timeout timeout,
                      CounterTable::Armed* armed = nullptr);
  Result<void> wait_count(Key key, uint64_t n, Timeout timeout,
                          CounterTable::Armed* armed = nullptr);
  Result<void> cancel(OpId id);
  Result<void> cancel(BatchId id);
  void abandon_batch(BatchId id);
  void stop_batch(BatchId id, Errc code);  ///< state lock held
  Result<void> wait(BatchId id, Timeout timeout);

  /// Deregisters and waits for the proof. False: it did not come.
  bool end_region(RegionId id);
  /// Waits for done(); kWouldDeadlock in a callback, kTimeout at the deadline.
  Result<void> block(ParkingSpot& spot, const std::function<bool()>& done, Timeout timeout);
  /// A relative timeout to an absolute time; checked against the maximum for operations.
  Result<int64_t> deadline(Timeout timeout, bool may_be_forever) const;

  // Worker, state lock held.
  /// Reports an operation that has no parts (alarms, fences, sends, expectations).
  void finish(Op& op, Errc code, Remote remote, uint64_t value = 0);
  void finish_transfer(Op& op);
  void stop(Op& op, Errc code);
  void stop_where(const std::function<bool(const Op&)>& wanted, Errc code);
  void room_made() noexcept;
  NetworkSlot* network_named(std::string_view provider, std::string_view name) noexcept;

  std::string dump_text();
  std::string dump_json();
  EngineStats stats();

  // Members stand in dependency order.
  const Config config;
  Log log;
  std::shared_ptr<Runtime> runtime;    ///< keeps a shared runtime alive
  std::unique_ptr<Driver> own_driver;  ///< threads of this engine's own
  Driver* const driver;
  ForkGuard fork_guard;
  uint64_t engine_id = 0, incarnation = 0;
  Rng rng;

  mutable std::mutex state_mutex;
  int64_t now_ns = 0;  ///< of the present turn
  OpTable ops;
  Arena arena;
  MpscRing<uint32_t> submissions;
  struct Ended {
    uint32_t op = 0;
    Errc code = Errc::kOk;
  };
  MpscRing<Ended> ended;  ///< expectations, from whatever thread met them
  TimerHeap timers;
  std::vector<NetworkSlot> networks;  ///< fixed once open; the last one is "self"
  Reporter report;
  Regions regions;
  Transfers transfers;
  Peers peers;
  Counters counters;
  SlotTable<GroupSlot> groups;
  uint32_t running_head = kNone;  ///< operations that the worker has

  std::atomic<bool> closing{false};
  std::atomic<bool> closed{false};
  ParkingSpot closing_parking{};
  std::atomic<bool> room_wanted{false};
  std::atomic<bool> room_due{false};
  std::atomic<uint64_t> exhausted{0}, sleeps{0}, callbacks_run{0};
  uint64_t turns = 0, stale_imms = 0, control_bad = 0;
  Traffic tx{}, rx{};

 private:
  struct Request;  // what all requests have in common
  Result<Op*> admit(const Request& request);
  Result<OpId> launch(Op& op);
  void discard(Op& op);
  Result<void*> copy_list(Op& op, const void* data, uint64_t bytes, const char* what);
  Error exhausted_error(const char* what);
  Result<Op*> admit_write(const Write& request, int64_t now);
  Result<int64_t> deadline_after(int64_t now, Timeout timeout, bool may_be_forever) const;
  Result<void> check_write(const Write& request) const;
  Result<void> check_scatter(const Scatter& request) const;

  Result<void> open_networks();
  uint32_t take_submissions();
  uint32_t take_ended();
  void begin(Op& op);
  uint32_t fire_timers();
  void conclude(Op& op, const Event& event);
  /// Waits until done(), which nobody announces; false at the limit.
  bool settle(int64_t limit_ns, const std::function<bool()>& done);
  void end_expectation(Op& op, Errc code);
  void link_running(Op& op) noexcept;
  void unlink_running(Op& op) noexcept;
  void release_lists(Op& op) noexcept;
  uint32_t poll_control(NetworkSlot& network, uint8_t index);

  nlohmann::json dump_object();

  std::vector<std::byte> datagram_;  ///< the one being read
};

/// Checks every field and applies the FABRIC_ variables. Fails with the field's or variable's name.
Result<Config> effective_config(const Config& config);

/// Adds a time to a histogram.
void record(Histogram& histogram, int64_t ns) noexcept;

}  // namespace fabric::core

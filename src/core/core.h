#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
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
#include "base/light_mutex.h"
#include "base/log.h"
#include "base/ring.h"
#include "base/rng.h"
#include "core/counters.h"
#include "core/op.h"
#include "core/peer.h"
#include "core/region.h"
#include "core/report.h"
#include "core/slot_table.h"
#include "core/protocol_counters.h"
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
  std::atomic<uint32_t> readers{0};  ///< submitters that look at `peers`: it must not change
};

/// A submitter's look at a group, which may be destroyed meanwhile. Reader and destroyer both
/// change `readers` by read-modify-writes: either the destroyer sees the reader and leaves the slot
/// alone, or the reader sees that the group is gone.
class GroupReader {
 public:
  GroupReader(const SlotTable<GroupSlot>& groups, GroupId id) noexcept
      : slot_(id ? groups.at(id.slot) : nullptr) {
    if (slot_ == nullptr) return;
    slot_->readers.fetch_add(1, std::memory_order_acq_rel);  // pairs with destroy_group()
    found_ = groups.find(id.slot, id.generation) != nullptr;
  }
  ~GroupReader() {
    // Release pairs with destroy_group(): the list has been read.
    if (slot_ != nullptr) slot_->readers.fetch_sub(1, std::memory_order_release);
  }
  GroupReader(const GroupReader&) = delete;
  GroupReader& operator=(const GroupReader&) = delete;
  explicit operator bool() const noexcept { return found_; }
  const std::vector<PeerId>& peers() const noexcept { return slot_->peers; }

 private:
  GroupSlot* slot_;
  bool found_ = false;
};

/// The lock of everything that the worker owns. Whoever takes it may change what the next turn
/// would find; only a turn that finds the lock as the turn before has left it knows what there is
/// to do.
class StateMutex {
 public:
  void lock() noexcept {
    lock_for_turn();
    undisturbed_ = false;
  }
  void unlock() noexcept { mutex_.unlock(); }

  // For the turn.
  void lock_for_turn() noexcept { mutex_.lock(); }
  bool undisturbed() const noexcept { return undisturbed_; }  ///< since watch(true)
  void watch(bool on) noexcept { undisturbed_ = on; }

 private:
  LightMutex mutex_;
  bool undisturbed_ = false;  ///< guarded by the mutex
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
  uint32_t run_callbacks() noexcept override {
    return reporter.callbacks_held() == 0 ? 0 : reporter.run_callbacks();
  }
  bool arm() noexcept override;
  void wait_fds(std::vector<int>& out) const override;
  void on_sleep() noexcept override { sleeps.fetch_add(1, std::memory_order_relaxed); }
  void vanish() noexcept override;

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
  /// The state lock for a set-up call. Not held when the engine closes: close() takes the networks
  /// away, so a look at the flag before the lock does not do.
  std::unique_lock<StateMutex> lock_if_open() const {
    if (refuses()) return {};
    std::unique_lock lock(state_mutex);
    if (closing.load(std::memory_order_acquire)) return {};  // pairs with close()
    return lock;
  }
  /// Only a turn can act on what has just changed. A worker that is about to sleep looks again.
  void kick() noexcept {
    kicked.store(true, std::memory_order_release);  // pairs with turn() and arm()
    driver->wake(*this);
  }
  /// Runs a call of a network's outside the turn; close() waits for it.
  void offload(std::function<void()> job);
  void destroy_group(GroupId id);  ///< state lock held, as for the next one
  void sweep_groups();         ///< slots that nobody looks at any more may be used again

  Result<void> close(Timeout timeout);

  // Operations, any thread (submit.cc).
  Result<OpId> submit(const Write& request);
  Result<OpId> submit(const PagedWrite& request);
  Result<OpId> submit(const Scatter& request);
  Result<OpId> submit(const Signal& request);
  Result<OpId> submit(const Send& request);
  Result<OpId> submit(const Timer& request);
  Result<OpId> submit(const Resolve& request);
  Result<OpId> submit(const Fence& request);
  Result<OpId> submit(const Deregister& request);
  Result<uint32_t> submit(std::span<const Write> requests);
  /// `armed`, where given, gets the expectation, so that its end can be asked for.
  Result<OpId> expect(CounterKey key, uint64_t n, const Notify& notify, Timeout timeout,
                      CounterTable::Armed* armed = nullptr);
  Result<void> wait_count(CounterKey key, uint64_t n, Timeout timeout,
                          CounterTable::Armed* armed = nullptr);
  Result<void> cancel(OpId id);
  Result<void> cancel(BatchId id);
  void abandon_batch(BatchId id);
  void stop_batch(BatchId id, Errc code);  ///< state lock held
  Result<void> wait(BatchId id, Timeout timeout);

  /// Deregisters and waits for the proof. False: it did not come.
  bool end_region(RegionId id);
  /// Waits for done(); kWouldDeadlock in a callback, kTimeout at the deadline.
  Result<void> block(EventCount& event_count, const std::function<bool()>& done, Timeout timeout);
  /// A relative timeout to an absolute time; checked against the maximum for operations.
  Result<int64_t> deadline(Timeout timeout, bool may_be_forever) const;

  // Worker, state lock held.
  /// Reports an operation that has no parts (alarms, fences, sends, expectations).
  void complete(Op& op, Errc code, Remote remote, uint64_t value = 0);
  void complete_transfer(Op& op);
  /// Among those that the worker has, with its deadline set.
  void add_running(Op& op);
  /// The end of a write that went the short way.
  void complete_write(Op& op) {
    reporter.defer_parts(op, 1);
    if (Reporter::is_silent(op.notify)) {
      reporter.defer_op(op);
    } else {
      report_write(op);
    }
  }
  void report_write(Op& op);
  void stop(Op& op, Errc code);
  void stop_where(const std::function<bool(const Op&)>& wanted, Errc code);
  void room_made() noexcept;
  void inbox_read() noexcept;  ///< a reader has made room in its inbox
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

  mutable StateMutex state_mutex;
  int64_t now_ns = 0;  ///< of the present turn
  /// The clocks of two threads may differ by microseconds; the engine's time does not go back.
  void advance_clock(int64_t now) noexcept { now_ns = std::max(now_ns, now); }
  OpTable ops;
  Arena arena;
  MpscRing<uint32_t> submissions;
  struct CompletedExpectation {
    uint32_t op = 0;
    Errc code = Errc::kOk;
  };
  MpscRing<CompletedExpectation> completed_expectations;  ///< expectations, from whatever thread met them
  TimerHeap timers;
  std::vector<NetworkSlot> networks;  ///< fixed once open; the last one is "self"
  bool maps_memory = false;           ///< a rail does; fixed once open
  Reporter reporter;
  Regions regions;
  Transfers transfers;
  Peers peers;
  Counters counters;
  SlotTable<GroupSlot> groups;
  std::vector<uint32_t> dying_groups;  ///< destroyed while a submitter was looking
  uint32_t running_head = kNone;       ///< operations that the worker has

  std::shared_ptr<EngineCore> orphan{};  ///< itself, when it could not be closed: never ends
  /// Whoever must not be missed by close() counts itself first and then looks here
  /// (OpTable::take(), OutsideCall), while close() sets it first and then looks at the counts:
  /// sequentially consistent on both sides, so one sees the other. All other looks are early
  /// answers (acquire), or happen under the state lock (relaxed).
  std::atomic<bool> closing{false};
  /// Release when the worker is gone: who acquires it sees all that the worker did.
  std::atomic<bool> closed{false};
  EventCount close_event_count{};
  /// Stored with release before the driver's wake(), taken with acquire by turn() and arm(): the
  /// fences of the doorbell make sure that a worker about to sleep sees it or is rung.
  std::atomic<bool> kicked{false};
  std::atomic<uint32_t> outside{0};  ///< calls of networks without the state lock; see `closing`
  /// Who was refused asks and then looks for room once more; who makes room looks afterwards
  /// whether somebody asked. Two variables, hence sequentially consistent on both sides.
  std::atomic<bool> room_wanted{false};
  std::atomic<uint32_t> waiting_ops{0};  ///< expectations that the worker has; a gauge, relaxed
  std::atomic<bool> inbox_room_wanted{false};  ///< as room_wanted, for the reader of an inbox
  std::atomic<bool> room_due{false};           ///< from who made room to turn(), with a wake()
  std::atomic<uint64_t> exhausted{0}, sleeps{0}, callbacks_run{0};  ///< statistics, relaxed
  uint64_t turns = 0, stale_imms = 0, control_bad = 0;
  ProtocolCounters protocol{};
  Traffic tx{}, rx{};  ///< what no rail counts, and what rails had counted that are gone

 private:
  struct Request;  // what all requests have in common
  Result<Op*> admit(const Request& request);
  Result<OpId> launch(Op& op);
  void discard(Op& op);
  void give_back(Op& op);
  bool all_reported();
  Result<void*> copy_list(Op& op, const void* data, uint64_t bytes, const char* what);
  Error exhausted_error(const char* what, uint32_t peer = kNone);
  Errc deadline_after(int64_t now, Timeout timeout, bool may_be_forever,
                      int64_t& until) const noexcept;
  Result<void> reserve(const Notify& notify);
  struct WriteGroup;
  uint32_t admit_writes(std::span<const Write> requests, int64_t now, WriteGroup& group);
  bool look_up_regions(const Write& request, int64_t now, WriteGroup& group) const noexcept;
  uint32_t check_writes(std::span<const Write> requests, int64_t now,
                        WriteGroup& group) const noexcept;
  uint32_t charge_slots(uint32_t taken, WriteGroup& group) noexcept;
  uint32_t reserve_reports(std::span<const Write> requests, WriteGroup& group);
  void fill_writes(std::span<const Write> requests, int64_t now, const WriteGroup& group) noexcept;
  Result<void> check_scatter(const Scatter& request) const;

  Result<void> open_networks();
  bool nothing_new() noexcept;
  [[gnu::noinline]] TurnResult full_turn() noexcept;
  enum class Take : uint8_t { kTransfers, kAll };
  uint32_t take_submissions(Take what);
  uint32_t take_completed_expectations();
  void begin(Op& op);
  uint32_t fire_timers();
  void report_completion(Op& op, const Event& event);
  /// Waits until done(), which nobody announces; false at the limit.
  bool wait_until(int64_t limit_ns, const std::function<bool()>& done);
  void complete_expectation(Op& op, Errc code);
  void link_running(Op& op) noexcept;
  void unlink_running(Op& op) noexcept;
  void release_lists(Op& op) noexcept;
  uint32_t poll_control(NetworkSlot& network, uint8_t index);
  uint32_t post_all();
  void drop_networks();

  nlohmann::json dump_object();

  /// Out of the ring and not begun: it waits for the polls, or for the next turn.
  struct Taken {
    std::array<uint32_t, 64> slots{};
    uint32_t at = 0, count = 0;
    bool empty() const noexcept { return at == count; }
    std::span<const uint32_t> rest() const noexcept {
      return std::span(slots).subspan(at, count - at);
    }
  };
  Taken taken_{};
  int64_t idle_until_ns_ = 0;  ///< the last turn left nothing to do before that
  struct {
    size_t network = SIZE_MAX;
    OpenNetwork::PendingWork what{};
  } pending_network_{};  ///< a network that has said so in this turn
  bool has_submissions() const noexcept { return !taken_.empty() || !submissions.empty(); }
  std::unique_ptr<std::byte[]> datagram_;  ///< the one being read; the largest are rare
  size_t datagram_bytes_max_ = 0;
};

/// A call that reaches the networks without the state lock, because it may block. close() sets its
/// flag and then looks at the count, this counts itself and then looks at the flag: one sees the
/// other, and the networks stay until it is done.
class OutsideCall {
 public:
  explicit OutsideCall(EngineCore& core) noexcept : core_(core) {
    core_.outside.fetch_add(1, std::memory_order_seq_cst);
    allowed_ = !core_.forked() && !core_.closing.load(std::memory_order_seq_cst);
  }
  ~OutsideCall() { core_.outside.fetch_sub(1, std::memory_order_seq_cst); }
  OutsideCall(const OutsideCall&) = delete;
  OutsideCall& operator=(const OutsideCall&) = delete;
  explicit operator bool() const noexcept { return allowed_; }

 private:
  EngineCore& core_;
  bool allowed_ = false;
};

/// Checks every field and applies the FABRIC_ variables. Fails with the field's or variable's name.
Result<Config> effective_config(const Config& config);

/// Adds what rails count.
void merge(Traffic& sum, const Traffic& one) noexcept;

/// Where a time belongs in a histogram.
inline size_t bucket_of(int64_t ns) noexcept {
  const auto value = static_cast<uint64_t>(ns) | 1;
  const auto bucket = static_cast<size_t>(std::bit_width(value)) - 1;
  return ns < 0 ? 0 : std::min(bucket, Histogram{}.bucket.size() - 1);
}

}  // namespace fabric::core

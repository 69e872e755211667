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
#include "base/log.h"
#include "base/ring.h"
#include "base/rng.h"
#include "core/counters.h"
#include "core/op.h"
#include "core/page_list.h"
#include "core/peer.h"
#include "core/protocol_counters.h"
#include "core/region.h"
#include "core/report.h"
#include "core/slot_table.h"
#include "core/state_mutex.h"
#include "core/timer_heap.h"
#include "core/transfer.h"
#include "core/write_list.h"

namespace fabric::core {

struct PeerGroupState {
  std::shared_ptr<EngineCore> core{};
  GroupId id{};
  std::vector<PeerId> peers{};
  ~PeerGroupState();
};

struct GroupSlot : SlotHead {
  std::vector<PeerId> peers{};
  std::atomic<uint32_t> readers{0};  ///< submitters that read `peers`: it must not change
};

/// A submitter's reference to a group that another thread may destroy at the same time. Both change
/// `readers` by read-modify-writes: either the destroyer sees the reader and keeps the slot, or the
/// reader sees that the group is destroyed.
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

/// The implementation of one Engine: owns its networks, its tables and the objects that work on
/// them, and implements the turn of its worker.
///
/// Owner: the public handles (Engine, Batch, Counter, MemoryRegion, ...), which share it. The
/// driver calls turn() and run_callbacks() between attach() and detach().
///
/// Threads:
/// - Submitters (any thread) check a request, fill an operation slot and push its number into
///   `submissions`, without a lock (submit.cc).
/// - The worker runs turn(), which holds `state_mutex`: takes submissions, polls networks, posts,
///   retires, reports. Everything without a comment that says otherwise is protected by that lock.
///   Set-up calls and cancel() take it for a moment; they see the state between two turns.
/// - The callback thread runs user callbacks without the lock.
/// - Calls of a network that may block (memory registration) run without the lock, counted in
///   `outside` (OutsideCall).
/// - Counters are lock-free (counter_table.h): the worker adds to them, any thread waits on them.
///   An expectation that completes goes back to the worker through `completed_expectations`.
///
/// Division of work: Transfers moves bytes, Peers keeps sessions and their control messages,
/// Regions keeps memory, Counters keeps counters and names, Reporter delivers completions.
/// EngineCore has the life cycle of operations: begin(), stop(), complete*(). An operation is
/// *completed* when its final code is known, and *reported* when the code is in its batch, inbox,
/// flag or callback queue; only then its slot is free again. Room for the report is reserved at
/// submit, so it never fails.
///
/// Invariant: every accepted operation is reported exactly once (contracts.md P1), and close()
/// returns only after the last report, or with kTimeout.
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
  void simulate_crash() noexcept override;

  bool forked() const noexcept { return fork_guard.forked(); }
  /// New calls fail with kClosed.
  bool refuses() const noexcept {
    return forked() || closing.load(std::memory_order_acquire);  // pairs with close()
  }
  /// A handle that is destroyed in a forked child leaks: it must not even touch the engine's
  /// reference count (P21).
  template <class State>
  static bool leak_if_forked(std::shared_ptr<State>& state) noexcept {
    if (!state->core->forked()) return false;
    new (static_cast<void*>(leaked(sizeof state))) std::shared_ptr<State>(std::move(state));
    return true;
  }
  static void* leaked(size_t bytes) noexcept;
  /// Requests a full turn: state has changed that only a turn can act on. A worker that is about to
  /// sleep checks again.
  void kick() noexcept {
    kicked.store(true, std::memory_order_release);  // pairs with turn() and arm()
    driver->wake(*this);
  }
  /// Called by threads that read counts: a worker that sleeps through arrivals counts them now.
  void take_in_arrivals() noexcept {
    if (sleeps_through_arrivals.load(std::memory_order_relaxed)) driver->wake(*this);
  }
  /// Runs a blocking call into a network on an offload queue; close() waits for it (`outside`). The
  /// job runs without the state lock, and takes it where it needs worker state. Worker.
  void offload(std::function<void()> job) FABRIC_REQUIRES(state_lock);
  Result<std::shared_ptr<const PageListState>> add_page_list(Result<PageIndices> pages)
      FABRIC_EXCLUDES(state_lock);
  Result<std::shared_ptr<const WriteListState>> add_write_list(std::span<const ListedWrite> writes)
      FABRIC_EXCLUDES(state_lock);
  void destroy_group(GroupId id)
      FABRIC_REQUIRES(state_lock);  ///< state lock held, as for the next one
  void sweep_groups()
      FABRIC_REQUIRES(state_lock);  ///< frees destroyed groups that have no reader any more

  Result<void> close(Timeout timeout) FABRIC_EXCLUDES(state_lock);

  // Operations, any thread (submit.cc).
  Result<OpId> submit(const Write& request);
  Result<OpId> submit(const PagedWrite& request);
  Result<OpId> submit(const ListedWrites& request);
  Result<OpId> submit(const Scatter& request);
  Result<OpId> submit(const Signal& request);
  Result<OpId> submit(const Send& request);
  Result<OpId> submit(const Timer& request);
  Result<OpId> submit(const Resolve& request);
  Result<OpId> submit(const Fence& request);
  Result<OpId> submit(const Revoke& request);
  Result<OpId> submit(const Deregister& request);
  Result<uint32_t> submit(std::span<const Write> requests);
  Result<OpId> submit(const Drop& request) FABRIC_EXCLUDES(state_lock);
  struct Expected {
    CounterKey key{};
    uint64_t n = 0;      ///< 0: met at once (of a group whose shares are all here)
    uint64_t value = 0;  ///< of the event when it is met
  };
  /// `armed`, where given, gets the expectation, so that the caller can query or cancel it.
  Result<OpId> expect(const Expected& expected, const Notify& notify, Timeout timeout,
                      CounterTable::Armed* armed = nullptr);
  Result<OpId> expect_group(CounterGroupState& group, uint64_t n, const Notify& notify,
                            Timeout timeout) FABRIC_EXCLUDES(state_lock);
  Result<void> wait_count(CounterKey key, uint64_t n, Timeout timeout);
  Result<void> wait_group(CounterGroupState& group, uint64_t n, Timeout timeout)
      FABRIC_EXCLUDES(state_lock);
  Result<void> cancel(OpId id) FABRIC_EXCLUDES(state_lock);
  Result<void> cancel(BatchId id) FABRIC_EXCLUDES(state_lock);
  void abandon_batch(BatchId id);
  void stop_batch(BatchId id, Errc code) FABRIC_REQUIRES(state_lock);  ///< state lock held
  Result<void> wait(BatchId id, Timeout timeout) FABRIC_EXCLUDES(state_lock);

  /// Deregisters and waits for the proof that no peer can write there. False: no proof in time.
  bool end_region(RegionId id) FABRIC_EXCLUDES(state_lock);
  /// Waits for done(); kWouldDeadlock in a callback, kTimeout at the deadline.
  Result<void> block(EventCount& event_count, const std::function<bool()>& done, Timeout timeout);
  /// Converts a relative timeout to an absolute time; checks the maximum for operations.
  Result<int64_t> deadline(Timeout timeout, bool may_be_forever) const;

  // Worker, state lock held.
  /// Completes and reports an operation without parts (timer, fence, send, expectation, ...).
  void complete(Op& op, Errc code, Remote remote, uint64_t value = 0) FABRIC_REQUIRES(state_lock);
  /// Completes and reports a transfer, all parts of which have completed.
  void complete_transfer(Op& op) FABRIC_REQUIRES(state_lock);
  /// Adds it to the list of running operations and sets its timer.
  void add_running(Op& op) FABRIC_REQUIRES(state_lock);
  /// Completes a write that was delivered as an entry of a compact post batch.
  void complete_write(Op& op) FABRIC_REQUIRES(state_lock) {
    reporter.defer_parts(op, 1);
    if (Reporter::is_silent(op.notify)) {
      reporter.defer_op(op);
    } else {
      report_write(op);
    }
  }
  void report_write(Op& op) FABRIC_REQUIRES(state_lock);
  void stop(Op& op, Errc code) FABRIC_REQUIRES(state_lock);
  void stop_where(const std::function<bool(const Op&)>& wanted, Errc code)
      FABRIC_REQUIRES(state_lock);
  void room_made() noexcept;   ///< operation slots were given back; any thread, no lock
  void inbox_read() noexcept;  ///< a reader has made room in its inbox; any thread, no lock
  NetworkSlot* network_named(std::string_view provider, std::string_view name) noexcept;

  std::string dump_text() FABRIC_EXCLUDES(state_lock);
  std::string dump_json() FABRIC_EXCLUDES(state_lock);
  EngineStats stats() FABRIC_EXCLUDES(state_lock);

  // Members in dependency order.
  const Config config;
  Log log;
  std::shared_ptr<Runtime> runtime;    ///< keeps a shared runtime alive
  std::unique_ptr<Driver> own_driver;  ///< null if a runtime is shared
  Driver* const driver;
  ForkGuard fork_guard;
  uint64_t engine_id = 0, incarnation = 0;
  Rng rng FABRIC_GUARDED_BY(state_lock);

  mutable StateMutex state_mutex;
  int64_t now_ns FABRIC_GUARDED_BY(state_lock) = 0;  ///< of the current turn
  /// The clocks of two threads may differ by microseconds; the engine's time never goes back.
  void advance_clock(int64_t now) noexcept FABRIC_REQUIRES(state_lock) {
    now_ns = std::max(now_ns, now);
  }
  OpTable ops;
  Arena arena;
  MpscRing<uint32_t> submissions;
  struct CompletedExpectation {
    uint32_t op = 0;
    Errc code = Errc::kOk;
  };
  MpscRing<CompletedExpectation> completed_expectations;  ///< from any thread to the worker
  TimerHeap timers FABRIC_GUARDED_BY(state_lock);
  std::vector<NetworkSlot> networks;  ///< fixed once open; the last one is "self"
  bool maps_memory = false;           ///< a rail does; fixed once open
  Reporter reporter;
  Regions regions;
  Transfers transfers;
  Peers peers;
  Counters counters;
  SlotTable<GroupSlot> groups;
  ListTable<PageListSlot> page_lists;
  ListTable<WriteListSlot> write_lists;
  /// Groups that were destroyed while a submitter was reading them.
  std::vector<uint32_t> dying_groups FABRIC_GUARDED_BY(state_lock);
  uint32_t running_head FABRIC_GUARDED_BY(state_lock) = kNone;  ///< list of running operations

  std::shared_ptr<EngineCore> orphan{};  ///< a cycle: an engine that cannot be closed is leaked
  /// Dekker pairs: a call that close() must not miss first counts itself, then reads this flag
  /// (OpTable::take(), OutsideCall); close() first sets it, then reads the counts. Sequentially
  /// consistent on both sides, so at least one sees the other. All other reads are hints (acquire)
  /// or happen under the state lock (relaxed).
  std::atomic<bool> closing{false};
  /// Release after the worker has stopped: a thread that acquires it sees everything that it did.
  std::atomic<bool> closed{false};
  EventCount close_event_count{};
  /// Stored with release before the driver's wake(), read with acquire by turn() and arm(): the
  /// fences of the waker guarantee that a worker about to sleep either sees it or is woken.
  std::atomic<bool> kicked{false};
  std::atomic<uint32_t> outside{0};  ///< calls into networks without the state lock; see `closing`
  /// A refused submitter sets it, then checks for room once more; the thread that makes room reads
  /// it afterwards. Two variables, hence sequentially consistent on both sides.
  std::atomic<bool> room_wanted{false};
  std::atomic<uint32_t> waiting_ops{0};  ///< running expectations; a gauge, relaxed
  /// The threads in await(): how many in the low bits, above them the sum of their counter keys,
  /// which is the key itself while there is one.
  std::atomic<uint64_t> waiters{0};
  /// The worker may sleep through the first immediates that arrive. Dekker pairs with whatever else
  /// wants to see arrivals: the worker sets it, then reads `waiters`; a thread that waits counts
  /// itself there, then reads it and wakes the worker. Sequentially consistent on both sides. All
  /// other readers only poll (take_in_arrivals()). Stays set after the sleep, until the next one.
  std::atomic<bool> sleeps_through_arrivals{false};
  std::atomic<bool> inbox_room_wanted{false};  ///< as room_wanted, for the reader of an inbox
  std::atomic<bool> room_due{false};  ///< the next turn publishes kRoom; set before a kick()
  std::atomic<uint64_t> exhausted{0}, sleeps{0}, callbacks_run{0};  ///< statistics, relaxed
  uint64_t turns FABRIC_GUARDED_BY(state_lock) = 0;
  uint64_t stale_imms FABRIC_GUARDED_BY(state_lock) = 0;
  uint64_t control_bad FABRIC_GUARDED_BY(state_lock) = 0;
  ProtocolCounters protocol FABRIC_GUARDED_BY(state_lock){};
  /// What no rail counts, and the totals of closed rails.
  Traffic tx FABRIC_GUARDED_BY(state_lock){}, rx FABRIC_GUARDED_BY(state_lock){};

 private:
  struct Request;  // common to all requests
  Result<Op*> admit(const Request& request);
  Result<OpId> launch(Op& op);
  void discard(Op& op);
  void give_back(Op& op);
  bool all_reported();
  Result<void*> copy_list(Op& op, const void* data, uint64_t bytes, const char* what);
  Result<void> mask_everywhere(PeerId peer) FABRIC_EXCLUDES(state_lock);
  /// Why a blocking wait may not begin.
  Result<void> may_wait(Timeout timeout) const;
  /// How many immediates must arrive at least before anything can be done for one; 1 if that is
  /// not known, see `waiters`.
  uint32_t arrivals_needed() FABRIC_REQUIRES(state_lock);
  /// Waits for an armed expectation of this thread and takes its result.
  Result<void> await(const CounterTable::Expectation& mine, const CounterTable::Waiter& waiter,
                     Timeout timeout);
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

  /// Not checked: it runs in open(), before any other thread knows the engine.
  Result<void> open_networks() FABRIC_NO_THREAD_SAFETY_ANALYSIS;
  bool nothing_new() noexcept FABRIC_REQUIRES(state_lock);
  [[gnu::noinline]] TurnResult full_turn() noexcept FABRIC_REQUIRES(state_lock);
  enum class Take : uint8_t { kTransfers, kAll };
  uint32_t take_submissions(Take what) FABRIC_REQUIRES(state_lock);
  uint32_t take_completed_expectations() FABRIC_REQUIRES(state_lock);
  void begin(Op& op) FABRIC_REQUIRES(state_lock);
  uint32_t fire_timers() FABRIC_REQUIRES(state_lock);
  void report_completion(Op& op, const Event& event) FABRIC_REQUIRES(state_lock);
  /// Polls until done(); false at the limit. For conditions without a wake-up.
  bool wait_until(int64_t limit_ns, const std::function<bool()>& done);
  void complete_expectation(Op& op, Errc code) FABRIC_REQUIRES(state_lock);
  void link_running(Op& op) noexcept FABRIC_REQUIRES(state_lock);
  void unlink_running(Op& op) noexcept FABRIC_REQUIRES(state_lock);
  void release_lists(Op& op) noexcept FABRIC_REQUIRES(state_lock);
  uint32_t poll_control(NetworkSlot& network, uint8_t index) FABRIC_REQUIRES(state_lock);
  void drop_networks() FABRIC_REQUIRES(state_lock);

  nlohmann::json dump_object();

  /// Popped from the ring and not begun: operations that wait for the polls, or for the next turn.
  struct PoppedSubmissions {
    std::array<uint32_t, 64> slots{};
    uint32_t at = 0, count = 0;
    bool empty() const noexcept { return at == count; }
    std::span<const uint32_t> rest() const noexcept {
      return std::span(slots).subspan(at, count - at);
    }
  };
  PoppedSubmissions popped_ FABRIC_GUARDED_BY(state_lock){};
  /// The last turn left nothing to do before this time.
  int64_t idle_until_ns_ FABRIC_GUARDED_BY(state_lock) = 0;
  /// The network that made this turn a full one; it is not asked again.
  struct {
    size_t network = SIZE_MAX;
    OpenNetwork::PendingWork what{};
  } pending_network_ FABRIC_GUARDED_BY(state_lock){};
  bool has_submissions() const noexcept FABRIC_REQUIRES(state_lock) {
    return !popped_.empty() || !submissions.empty();
  }
  std::unique_ptr<std::byte[]> datagram_ FABRIC_GUARDED_BY(state_lock);  ///< receive buffer
  size_t datagram_bytes_max_ = 0;
};

/// The state lock for a set-up call, unless the engine is closed or closing: then the guard is
/// false and the lock is not held. The flag is read again under the lock, because close() destroys
/// the networks. Nothing is locked in a forked child, where the holder of the lock may not exist.
class FABRIC_SCOPED_CAPABILITY OpenStateGuard {
 public:
  explicit OpenStateGuard(const EngineCore& core) noexcept FABRIC_EXCLUDES(state_lock)
      : core_(core) {
    if (core.refuses()) return;
    core.state_mutex.lock();
    held_ = !core.closing.load(std::memory_order_acquire);  // pairs with close()
    if (!held_) core.state_mutex.unlock();
  }
  ~OpenStateGuard() FABRIC_RELEASE() {
    if (held_) core_.state_mutex.unlock();
  }
  OpenStateGuard(const OpenStateGuard&) = delete;
  OpenStateGuard& operator=(const OpenStateGuard&) = delete;
  explicit operator bool() const noexcept FABRIC_TRY_ACQUIRE(true, state_lock) { return held_; }

 private:
  const EngineCore& core_;
  bool held_ = false;
};

/// A call into the networks without the state lock, because it may block. It counts itself and then
/// reads `closing`; close() sets `closing` and then reads the count. At least one sees the other,
/// so the networks exist until the call is done.
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

/// Checks every field and applies the FABRICLIB_ variables. The error names the field or variable.
Result<Config> effective_config(const Config& config);

/// Adds the counters of a rail.
void merge(Traffic& sum, const Traffic& one) noexcept;

/// The histogram bucket of a duration.
inline size_t bucket_of(int64_t ns) noexcept {
  const auto value = static_cast<uint64_t>(ns) | 1;
  const auto bucket = static_cast<size_t>(std::bit_width(value)) - 1;
  return ns < 0 ? 0 : std::min(bucket, Histogram{}.bucket.size() - 1);
}

}  // namespace fabric::core

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include <fabric/notify.h>
#include <fabric/transfer.h>
#include <fabric/types.h>

#include "base/free_list.h"
#include "core/counter_table.h"
#include "core/page_list.h"
#include "core/timer_heap.h"
#include "core/write_list.h"

namespace fabric::core {

enum class OpKind : uint8_t {
  kWrite,
  kPaged,
  kListed,
  kScatter,
  kSignal,
  kSend,
  kTimer,
  kResolve,
  kFence,
  kDrop,  ///< a fence of a peer that is disconnected first
  kDeregister,
  kRevoke,
  kExpect,
};

const char* to_string(OpKind kind) noexcept;
constexpr bool is_fence(OpKind kind) noexcept {
  return kind == OpKind::kFence || kind == OpKind::kDrop;
}
constexpr bool is_transfer(OpKind kind) noexcept { return kind <= OpKind::kSignal; }

/// The life cycle of an operation slot.
enum class OpState : uint8_t {
  kFree,
  kQueued,     ///< filled by the submitter, in the submission ring
  kRunning,    ///< taken over by the worker
  kDraining,   ///< stopped (deadline, cancel, close); waits for its posted writes to retire
  kReporting,  ///< completed; the callback thread still has to run its callback
};

/// Page indices, scatter targets, names or message bytes, copied at submit into the arena.
struct OpList {
  void* data = nullptr;
  uint32_t count = 0;
  template <class T>
  std::span<T> as() const noexcept {
    return {static_cast<T*>(data), count};
  }
};

/// The request, filled by the submitter. The members of a write come first, in the order of Write.
struct OpRequest {
  RegionId source{};
  uint64_t source_offset = 0;
  RemoteRegion target{};
  uint64_t target_offset = 0;
  uint64_t size_bytes = 0;  ///< of the write, or of one page
  CounterKey counter_key{};
  uint16_t channel = 0;
  bool unsplit = false;
  /// Same source region, target region, batch, priority and deadline as the write just before it in
  /// the submission ring.
  bool same_flow = false;
  BatchId batch{};
  Notify notify{};
  PeerId peer{};
  GroupId group{};
  GrantId grant{};
  OpList list{};  ///< page indices of the request; targets; counter keys; names; bytes
  PageSide source_pages{}, target_pages{};
  uint32_t inner_count = 1;             ///< parts of a page
  const ListedWrite* listed = nullptr;  ///< of listed writes: the first one, ...
  WriteListSlot* write_list = nullptr;  ///< ... and the list, used until the operation completes
  std::span<CounterKey> resolved{};
  CounterTable::Expectation expectation{};
  uint64_t expected = 0;

  /// It holds memory that must be released when it completes.
  bool has_lists() const noexcept {
    return list.data != nullptr || source_pages.list != nullptr || target_pages.list != nullptr ||
           write_list != nullptr;
  }
};

/// How far a part has come that may be several work requests: a write, or a scatter target.
///
/// It may be cut into shards, one per rail, each of which carries one immediate, and a shard into
/// slices of at most `slice_bytes`, of which only the last carries the immediate. A slice is the
/// byte range of one work request.
struct SliceProgress {
  uint32_t slices = 1;  ///< of all shards
  uint32_t shards = 1;  ///< how many immediates the target counts for it
  uint32_t slices_completed = 0;
  uint32_t slices_failed = 0, slices_unknown = 0, slices_counted = 0;
  uint64_t slice_bytes = UINT64_MAX;
  Errc slice_code = Errc::kOk;  ///< of the first slice that failed
};

/// How far the operation has come. Only the worker changes it, except for `parts` and the early
/// completion of an expectation, which the submitter may set.
///
/// A part is what a completion counts: the write itself, one page, or one target. The
/// SliceProgress here is that of a write; a target that is cut has a CutTarget.
struct OpProgress : SliceProgress {
  Errc stop_code = Errc::kOk;    ///< why it was stopped
  Errc early_code = Errc::kOk;   ///< result of an expectation with ...
  bool completed_early = false;  ///< ... this set: it completed before the worker took it
  Errc code = Errc::kOk;         ///< of the first part that failed
  uint32_t parts = 1;
  uint32_t parts_completed = 0;
  uint32_t parts_delivered = 0, parts_failed = 0, parts_unknown = 0, first_failed = 0;
  uint32_t inflight = 0;          ///< made and not completed, writes in doubt included
  uint32_t pending = UINT32_MAX;  ///< head of its list of pending fragments
  uint32_t holds = 0;             ///< live OpHold objects
  uint64_t bytes_delivered = 0;
  PeerId failed_peer{};
  uint32_t step = 0;     ///< of a fence, a deregistration, or a drain that is forced
  uint32_t awaited = 0;  ///< replies that a fence or a deregistration waits for
  uint32_t ref = 0;      ///< number that a control reply refers to
};

/// Common to all kinds of operations.
struct OpHead {
  /// Release when the slot is given back pairs with the acquire in OpTable::find().
  std::atomic<uint32_t> generation{1};
  /// Release with kQueued pairs with the acquire in cancel(). Later states change under the state
  /// lock; a read without the lock is only a hint.
  std::atomic<OpState> state{OpState::kFree};
  /// Set and read under the state lock, hence relaxed; atomic, because the callback thread clears
  /// it without the lock.
  std::atomic<bool> cancel_requested{false};

  OpKind kind = OpKind::kWrite;
  Priority priority = Priority::kNormal;
  uint32_t slot = 0;                 ///< in OpTable
  uint32_t quota_peer = UINT32_MAX;  ///< slot of the peer whose quota it is charged to
  uint32_t post_batch = UINT32_MAX;  ///< a write in a compact post batch: the index of that
  int64_t submitted_ns = 0;
  int64_t deadline_ns = 0;

  OpId id() const noexcept { return OpId(slot, generation.load(std::memory_order_relaxed)); }
};

/// One accepted operation: what was requested, how far it has come, how it is to be reported.
///
/// Owner: the submitting thread from OpTable::take() until the slot number is in the submission
/// ring, then the worker, under the state lock, until the completion is reported. With a callback
/// the callback thread gives the slot back; otherwise the worker does. Any thread may read
/// `generation`, `state` and `cancel_requested`.
///
/// The thread that takes a slot resets OpRequest and OpProgress, with one exception: a write is
/// taken without resetting its OpProgress. While a write is in flight as an entry of a compact
/// post batch (`post_batch` is set), that batch accounts for it: its OpProgress is stale, it is not
/// in the list of running operations, and its own timer is not set. begin() or
/// Transfers::split_out() initialises all three when the write needs them.
///
/// An operation completes when every part has completed, nothing of it is in flight, and no OpHold
/// is left. The members that the fast path touches come first.
///
/// Not annotated with the state lock: the submitter fills OpRequest and OpHead without it, and only
/// the submission ring orders that before the worker's reads, which the analysis cannot follow.
struct alignas(64) Op : OpHead, OpRequest, OpProgress {
  HeapTimer timer{};
  uint32_t running_prev = UINT32_MAX, running_next = UINT32_MAX;
};

/// Defers the completion of an operation while a function still works with it: the last part may
/// complete inside, and completing the operation would give its slot back. The function calls
/// Transfers::complete_if_done() after the hold is gone. State lock held.
class OpHold {
 public:
  explicit OpHold(Op& op) noexcept : op_(op) { ++op_.holds; }
  ~OpHold() { --op_.holds; }
  OpHold(const OpHold&) = delete;
  OpHold& operator=(const OpHold&) = delete;

 private:
  Op& op_;
};

/// All operation slots of an engine: a bound on what is accepted and not yet reported.
///
/// Threads: take() and give_back() from any thread.
class OpTable {
 public:
  OpTable(uint32_t max, uint32_t peers_max)
      : ops_(std::make_unique<Op[]>(max)),
        charged_(std::make_unique<std::atomic<uint32_t>[]>(peers_max)),
        free_(max),
        max_(max) {
    for (uint32_t i = 0; i < max; ++i) ops_[i].slot = i;
  }

  /// Counts before it takes, sequentially consistent: close() sets its flag and then reads the
  /// count, a submitter counts itself and then reads the flag. At least one sees the other.
  Op* take() noexcept {
    uint32_t slot = 0;
    return take({&slot, 1}) == 1 ? &ops_[slot] : nullptr;
  }
  /// Takes as many as are free, at most slots.size().
  uint32_t take(std::span<uint32_t> slots) noexcept {
    const auto wanted = static_cast<uint32_t>(slots.size());
    taken_.fetch_add(wanted, std::memory_order_seq_cst);
    const uint32_t got = free_.pop_all(slots);
    if (got < wanted) taken_.fetch_sub(wanted - got, std::memory_order_seq_cst);
    return got;
  }
  /// Fair share: a peer may be charged at most seven times the number of free slots. Peers that
  /// never answer therefore cannot exhaust the table, and a single active peer can use seven
  /// eighths of it. The `more` slots in question are already taken, and so are `surplus` others
  /// that will be given back if the answer is no.
  bool within_quota(uint32_t peer, uint32_t more, uint32_t surplus = 0) const noexcept {
    // A gauge: it publishes nothing.
    const uint32_t charged = charged_[peer].load(std::memory_order_relaxed) + more;
    return max_ < kSharedFrom || charged <= kShare * (free_count() + surplus);
  }
  void charge(uint32_t peer, uint32_t more) noexcept {
    charged_[peer].fetch_add(more, std::memory_order_relaxed);  // a gauge
  }
  void uncharge(uint32_t peer, uint32_t less = 1) noexcept {
    charged_[peer].fetch_sub(less, std::memory_order_relaxed);  // a gauge
  }
  void give_back(Op& op) noexcept {
    if (op.quota_peer != UINT32_MAX) uncharge(op.quota_peer);
    reset(op);
    give_back({&op.slot, 1});
  }
  /// Ends this generation of the slot. The caller uncharges it and gives it back with others.
  static void reset(Op& op) noexcept {
    op.quota_peer = UINT32_MAX;
    op.cancel_requested.store(false, std::memory_order_relaxed);
    op.state.store(OpState::kFree, std::memory_order_relaxed);
    uint32_t next = op.generation.load(std::memory_order_relaxed) + 1;
    if (next == 0) next = 1;
    op.generation.store(next, std::memory_order_release);  // pairs with find()
  }
  /// Slots that were reset, or taken and not used.
  void give_back(std::span<const uint32_t> slots) noexcept {
    free_.push_all(slots);
    // Pairs with take() and close().
    taken_.fetch_sub(static_cast<uint32_t>(slots.size()), std::memory_order_seq_cst);
  }

  Op& at(uint32_t slot) noexcept { return ops_[slot]; }
  Op* find(OpId id) noexcept {
    if (id.slot >= max_) return nullptr;
    Op& op = ops_[id.slot];
    // Pairs with the release store in reset(): an OpId of an earlier generation is not found.
    return op.generation.load(std::memory_order_acquire) == id.generation ? &op : nullptr;
  }
  uint32_t max() const noexcept { return max_; }
  uint32_t free_count() const noexcept { return max_ - std::min(max_, in_flight()); }
  uint32_t in_flight() const noexcept { return taken_.load(std::memory_order_seq_cst); }

 private:
  static constexpr uint32_t kShare = 7;
  static constexpr uint32_t kSharedFrom = 64;  ///< smaller tables are not worth dividing
  std::unique_ptr<Op[]> ops_;
  std::unique_ptr<std::atomic<uint32_t>[]> charged_;  ///< by slot of the peer; gauges, relaxed
  FreeList free_;
  std::atomic<uint32_t> taken_{0};  ///< sequentially consistent, see take()
  uint32_t max_;
};

}  // namespace fabric::core

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
#include "core/timer_heap.h"

namespace fabric::core {

enum class OpKind : uint8_t {
  kWrite,
  kPaged,
  kScatter,
  kSignal,
  kSend,
  kTimer,
  kResolve,
  kFence,
  kDeregister,
  kExpect,
};

const char* to_string(OpKind kind) noexcept;
constexpr bool is_transfer(OpKind kind) noexcept { return kind <= OpKind::kSignal; }

/// Where an operation is in its life.
enum class OpState : uint8_t {
  kFree,
  kQueued,     ///< filled by the submitter, in the submission ring
  kRunning,    ///< the worker has it
  kDraining,   ///< stopped (deadline, cancel, close); waits for what was posted
  kReporting,  ///< ended; the callback thread still has to run its callback
};

/// A page list, scatter targets, names or message bytes, copied at submit into the arena.
struct OpList {
  void* data = nullptr;
  uint32_t count = 0;
  template <class T>
  std::span<T> as() const noexcept {
    return {static_cast<T*>(data), count};
  }
};

/// What was asked for. Filled by the submitter. A write comes first, in the order of its request.
struct OpRequest {
  RegionId source{};
  uint64_t source_offset = 0;
  RemoteRegion target{};
  uint64_t target_offset = 0;
  uint64_t size_bytes = 0;  ///< of the write, or of one page
  CounterKey imm{};
  uint16_t channel = 0;
  bool unsplit = false;
  /// A write that goes between the same regions as the one in front of it in the ring, in the same
  /// batch, and has the same priority and deadline.
  bool same_flow = false;
  BatchId batch{};
  Notify notify{};
  PeerId peer{};
  GroupId group{};
  OpList list{};  ///< first source then target indices; targets; keys; names; bytes
  uint64_t source_stride = 0, target_stride = 0;
  std::span<CounterKey> resolved{};
  CounterTable::Expectation expectation{};
  uint64_t expected = 0;
};

/// How far it has come. The worker's, but for `parts`.
struct OpProgress {
  Errc stop_code = Errc::kOk;  ///< why it was stopped
  Errc early_code = Errc::kOk;  ///< an expectation that ended before the worker took it ...
  bool completed_early = false;    ///< ... did so
  Errc code = Errc::kOk;       ///< of the first part that failed
  uint32_t parts = 1;          ///< writes, pages, targets
  uint32_t parts_completed = 0;
  uint32_t parts_delivered = 0, parts_failed = 0, parts_unknown = 0, first_failed = 0;
  uint32_t fragments_completed = 0;  ///< of a cut write, with how they ended:
  uint32_t fragments = 1;        ///< pieces that the write was cut and sliced into
  uint32_t shards = 1;           ///< of those, how many are counted
  uint32_t fragments_failed = 0, fragments_unknown = 0, fragments_counted = 0;
  uint32_t inflight = 0;     ///< in flight on rails
  uint32_t pending = UINT32_MAX;  ///< head of the list of queued entries
  uint64_t slice_bytes = UINT64_MAX;
  uint64_t bytes_delivered = 0;
  PeerId failed_peer{};
  uint32_t step = 0;     ///< of a fence or a deregistration
  uint32_t awaited = 0;  ///< answers a fence or a deregistration waits for
  uint32_t ref = 0;      ///< number under which a control answer comes back
};

/// What every operation has, whatever it is.
struct OpHead {
  /// Release when the slot is given back pairs with the acquire in OpTable::find().
  std::atomic<uint32_t> generation{1};
  /// Release with kQueued pairs with the acquire in cancel(); later stages change under the state
  /// lock, and who looks without it only learns an early answer.
  std::atomic<OpState> state{OpState::kFree};
  /// Set and looked at under the state lock, hence relaxed; atomic, because the callback thread
  /// clears it without.
  std::atomic<bool> cancel_asked{false};

  OpKind kind = OpKind::kWrite;
  Priority priority = Priority::kNormal;
  uint32_t self = 0;              ///< own slot
  uint32_t quota_peer = UINT32_MAX;  ///< the slot of the peer in whose share it counts
  uint32_t post_batch = UINT32_MAX;    ///< a write that went the short way: where it is in flight
  int64_t submitted_ns = 0;
  int64_t deadline_ns = 0;

  OpId id() const noexcept { return OpId(self, generation.load(std::memory_order_relaxed)); }
};

/// One accepted operation. Who takes its slot makes request and progress anew. What the short way
/// of a write touches stands in front.
///
/// Owner: the submitting thread until it is in the submission ring, then the worker, under the
/// state lock. `generation`, `state` and `cancel_asked` may be read by any thread.
struct alignas(64) Op : OpHead, OpRequest, OpProgress {
  HeapTimer timer{};
  uint32_t running_prev = UINT32_MAX, running_next = UINT32_MAX;
};

/// All operations of an engine: as many as may be accepted and not yet reported.
///
/// Threads: take() and give_back() from any thread.
class OpTable {
 public:
  OpTable(uint32_t max, uint32_t peers_max)
      : ops_(std::make_unique<Op[]>(max)),
        charged_(std::make_unique<std::atomic<uint32_t>[]>(peers_max)),
        free_(max),
        max_(max) {
    for (uint32_t i = 0; i < max; ++i) ops_[i].self = i;
  }

  /// Counted before it is taken, and sequentially consistent: close() sets its flag and then looks
  /// at the count, a submitter counts itself and then looks at the flag. One sees the other.
  Op* take() noexcept {
    uint32_t slot = 0;
    return take({&slot, 1}) == 1 ? &ops_[slot] : nullptr;
  }
  /// As many as there are.
  uint32_t take(std::span<uint32_t> slots) noexcept {
    const auto wanted = static_cast<uint32_t>(slots.size());
    taken_.fetch_add(wanted, std::memory_order_seq_cst);
    const uint32_t got = free_.pop_all(slots);
    if (got < wanted) taken_.fetch_sub(wanted - got, std::memory_order_seq_cst);
    return got;
  }
  /// Whether a peer may have `more` of the slots that were just taken. Not if it then has seven
  /// times as many as are free: so peers that never answer cannot fill the table between them, and
  /// one that is alone gets seven eighths.
  /// `surplus`: taken as well, and given back if it may not.
  bool within_quota(uint32_t peer, uint32_t more, uint32_t surplus = 0) const noexcept {
    // A gauge: nothing is published by it.
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
    give_back({&op.self, 1});
  }
  /// For one that is going to be given back with others, and let go: its life ends now.
  static void reset(Op& op) noexcept {
    op.quota_peer = UINT32_MAX;
    op.cancel_asked.store(false, std::memory_order_relaxed);
    op.state.store(OpState::kFree, std::memory_order_relaxed);
    uint32_t next = op.generation.load(std::memory_order_relaxed) + 1;
    if (next == 0) next = 1;
    op.generation.store(next, std::memory_order_release);  // pairs with find()
  }
  /// Of slots that were reset, or taken and not used.
  void give_back(std::span<const uint32_t> slots) noexcept {
    free_.push_all(slots);
    // Pairs with take() and close().
    taken_.fetch_sub(static_cast<uint32_t>(slots.size()), std::memory_order_seq_cst);
  }

  Op& at(uint32_t slot) noexcept { return ops_[slot]; }
  Op* find(OpId id) noexcept {
    if (id.slot >= max_) return nullptr;
    Op& op = ops_[id.slot];
    // Pairs with the release store in give_back(): a reused slot never answers for its last life.
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

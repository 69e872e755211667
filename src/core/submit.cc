#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "core/submit.h"

// The submitter's side: checks every argument against the current state, copies the request into an
// operation slot, and pushes its number into the submission ring. Any thread, and no lock: only the
// undo of a request that had joined a batch takes the state lock. A refused request leaves nothing
// behind.

namespace fabric::core {

namespace {

constexpr const char* kShareOfOnePeer = "ops_max: the share of one peer";

}  // namespace

Result<int64_t> EngineCore::deadline(Timeout timeout, bool may_be_forever) const {
  int64_t until = 0;
  const Errc code = deadline_after(driver->now_ns(), timeout, may_be_forever, until);
  if (code != Errc::kOk) return fail(code, "timeout");
  return until;
}

Errc EngineCore::deadline_after(int64_t now, Timeout timeout, bool may_be_forever,
                                int64_t& until) const noexcept {
  const int64_t ns = timeout.ns == Timeout::kDefault ? config.default_timeout.count() : timeout.ns;
  if (ns == Timeout::kForever) {
    until = kNeverNs;
    return may_be_forever ? Errc::kOk : Errc::kInvalidArgument;
  }
  if (ns <= 0) return Errc::kInvalidArgument;
  if (!may_be_forever && ns > config.timeout_max.count()) return Errc::kInvalidArgument;
  until = ns > kNeverNs - 1 - now ? kNeverNs - 1 : now + ns;
  return Errc::kOk;
}

Error EngineCore::exhausted_error(const char* what, uint32_t peer) {
  exhausted.fetch_add(1, std::memory_order_relaxed);
  // Operations in flight publish kRoom when they are reported; one that was reported just before
  // this store would not. So set first, then check for room; room_made() is called after a slot was
  // given back, and reads the flag then. Room beyond the quota of the peer does not count.
  room_wanted.store(true, std::memory_order_seq_cst);
  if (peer == kNone || ops.in_flight() == 0 || ops.within_quota(peer, 1)) room_made();
  return fail(Errc::kExhausted, what);
}

Result<void> EngineCore::reserve(const Notify& notify) {
  auto reserved = reporter.reserve(notify);
  if (reserved || reserved.error().code != Errc::kExhausted) return reserved;
  // Set first, then try once more; the reader makes room and then reads the flag.
  inbox_room_wanted.store(true, std::memory_order_seq_cst);  // pairs with inbox_read()
  reserved = reporter.reserve(notify);
  if (!reserved) exhausted.fetch_add(1, std::memory_order_relaxed);
  return reserved;
}

/// Reserves everything that is needed to report the operation: its slot, its membership in the
/// batch, its room in the inbox.
Result<Op*> EngineCore::admit(const Request& request) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  const bool waits = request.kind == OpKind::kExpect;
  const int64_t now = driver->now_ns();
  int64_t until = 0;
  if (const Errc code = deadline_after(now, request.timeout, waits, until); code != Errc::kOk) {
    return fail(code, "timeout");
  }
  if (request.priority > Priority::kBulk) return fail(Errc::kInvalidArgument, "priority");
  Op* op = ops.take();
  if (op == nullptr) return exhausted_error("ops_max");
  static_cast<OpRequest&>(*op) = {};
  static_cast<OpProgress&>(*op) = {};
  if (request.peer) {
    if (!ops.within_quota(request.peer.slot, 1)) {
      give_back(*op);
      return exhausted_error(kShareOfOnePeer, request.peer.slot);
    }
    ops.charge(request.peer.slot, 1);
    op->quota_peer = request.peer.slot;
  }
  if (closing.load(std::memory_order_seq_cst)) {  // pairs with close(), see OpTable::take()
    give_back(*op);
    return fail(Errc::kClosed, "engine");
  }
  if (auto reserved = reserve(*request.notify); !reserved) {
    give_back(*op);
    return reserved.error();
  }
  if (auto ok = reporter.enter_batch(request.batch); !ok) {
    reporter.unreserve(*request.notify);
    give_back(*op);
    return ok.error();
  }
  op->kind = request.kind;
  op->priority = request.priority;
  op->batch = request.batch;
  op->notify = *request.notify;
  op->deadline_ns = until;
  op->submitted_ns = now;
  op->state.store(OpState::kQueued, std::memory_order_release);  // pairs with cancel()
  return op;
}

/// Gives back an unused slot. Another submitter may have been refused while it was taken.
void EngineCore::give_back(Op& op) {
  ops.give_back(op);
  room_made();
}

/// Undoes admit(), when a later step fails.
void EngineCore::discard(Op& op) {
  arena.free(op.list.data);
  op.list = {};
  reporter.unreserve(op.notify);
  const BatchId batch = op.batch;
  give_back(op);
  if (batch) {
    const StateGuard lock(state_mutex);
    reporter.leave_batch(batch);
  }
}

Result<OpId> EngineCore::launch(Op& op) {
  const OpId id = op.id();
  // One entry per slot: it cannot be full.
  FABRIC_CHECK(submissions.push(op.slot), "submission ring overflow");
  driver->wake(*this);
  return id;
}

Result<void*> EngineCore::copy_list(Op& op, const void* data, uint64_t bytes, const char* what) {
  if (bytes > arena.largest()) {
    discard(op);
    return fail(Errc::kTooLarge, what);
  }
  void* block = arena.allocate(std::max<uint64_t>(bytes, 1));
  if (block == nullptr) {
    discard(op);
    return exhausted_error("index_arena_bytes");
  }
  if (data != nullptr && bytes > 0) std::memcpy(block, data, bytes);
  op.list.data = block;
  return block;
}

/// Writes are admitted in groups, a single write as a group of one: slots, quota and batch
/// membership are taken for all of them together.
struct EngineCore::WriteGroup {
  static constexpr uint32_t kMax = 64;
  std::array<uint32_t, kMax> slots;
  std::array<uint32_t, kMax> owners;  ///< peer slot of each target
  std::array<int64_t, kMax> until_ns;
  uint64_t same_flow = 0;    ///< one bit each: same flow as the write before (OpRequest::same_flow)
  bool mixed_flows = false;  ///< not all are of one flow
  bool has_notify = false;   ///< of at least one
  Error why{};               ///< of the first that is refused
  // Looked up for the last flow: most writes of a group have the same regions.
  uint64_t source_bytes = 0, target_bytes = 0;
  uint32_t owner = 0;
  int64_t until = 0;
};

/// Looks up what the writes of a flow have in common. False: `group.why` has the error.
[[gnu::always_inline]] inline bool EngineCore::look_up_regions(const Write& request, int64_t now,
                                                               WriteGroup& group) const noexcept {
  PeerId owner;
  Errc code = regions.local_size(request.source.region, group.source_bytes);
  const char* what = "source";
  if (code == Errc::kOk) {
    code = regions.remote_size(request.target.region, group.target_bytes, owner);
    what = "target";
  }
  if (code == Errc::kOk) {
    code = deadline_after(now, request.timeout, false, group.until);
    what = "timeout";
  }
  if (code == Errc::kOk && request.priority > Priority::kBulk) {
    code = Errc::kInvalidArgument;
    what = "priority";
  }
  group.owner = owner.slot;
  if (code != Errc::kOk) group.why = fail(code, what);
  return code == Errc::kOk;
}

/// Checks the group. Returns how many writes come before the first that is refused.
[[gnu::always_inline]] inline uint32_t EngineCore::check_writes(std::span<const Write> requests,
                                                                int64_t now,
                                                                WriteGroup& group) const noexcept {
  uint64_t same_flow = 0;
  bool has_notify = false;
  uint32_t n = 0;
  for (const Write* last = nullptr; n < requests.size(); ++n) {
    const Write& request = requests[n];
    const bool same = last != nullptr && request.source.region == last->source.region &&
                      request.target.region == last->target.region &&
                      request.batch == last->batch && request.timeout.ns == last->timeout.ns &&
                      request.priority == last->priority;
    if (!same && !look_up_regions(request, now, group)) break;
    const bool fits_source = fits(request.source.offset, request.size_bytes, group.source_bytes);
    if (!fits_source || !fits(request.target.offset, request.size_bytes, group.target_bytes)) {
      group.why = fail(Errc::kOutOfBounds, fits_source ? "target" : "source");
      break;
    }
    same_flow |= uint64_t{same} << n;
    has_notify = has_notify || !Reporter::is_silent(request.notify);
    group.owners[n] = group.owner;
    group.until_ns[n] = group.until;
    last = &request;
  }
  group.same_flow = same_flow;
  group.has_notify = has_notify;
  group.mixed_flows = n > 0 && (same_flow >> 1) + 1 != uint64_t{1} << (n - 1);
  return n;
}

/// Charges the slots to the quotas of their peers. Returns how many are within quota.
[[gnu::always_inline]] inline uint32_t EngineCore::charge_slots(uint32_t taken,
                                                                WriteGroup& group) noexcept {
  for (uint32_t i = 0; i < taken;) {
    const uint32_t owner = group.owners[i];
    uint32_t run = group.mixed_flows ? i : taken;
    while (run < taken && group.owners[run] == owner) ++run;
    uint32_t n = run - i;
    while (n > 0 && !ops.within_quota(owner, n, taken - i - n)) --n;
    ops.charge(owner, n);
    i += n;
    if (i < run) return i;
  }
  return taken;
}

/// Reserves room for the reports. Returns for how many writes.
[[gnu::always_inline]] inline uint32_t EngineCore::reserve_reports(std::span<const Write> requests,
                                                                   WriteGroup& group) {
  for (size_t i = 0; i < requests.size();) {
    const BatchId batch = requests[i].batch;
    const bool plain = !group.has_notify && !group.mixed_flows;
    size_t run = plain ? requests.size() : i;
    bool full = false;
    for (; run < requests.size() && requests[run].batch == batch; ++run) {
      if (Reporter::is_silent(requests[run].notify)) continue;
      if (auto ok = reserve(requests[run].notify); !ok) {
        group.why = ok.error();
        full = true;
        break;
      }
    }
    if (auto ok = reporter.enter_batch(batch, static_cast<uint32_t>(run - i)); !ok) {
      group.why = ok.error();
      for (; run > i; --run) reporter.unreserve(requests[run - 1].notify);
      full = true;
    }
    if (full) return static_cast<uint32_t>(run);
    i = run;
  }
  return static_cast<uint32_t>(requests.size());
}

/// Admits as many writes as possible, in order. The others leave nothing behind.
[[gnu::always_inline]] inline uint32_t EngineCore::admit_writes(std::span<const Write> requests,
                                                                int64_t now, WriteGroup& group) {
  const uint32_t checked = check_writes(requests, now, group);
  if (checked == 0) return 0;
  const char* exhausted_by = nullptr;
  uint32_t share_of = kNone;
  const uint32_t taken = ops.take(std::span(group.slots).first(checked));
  if (taken < checked) exhausted_by = "ops_max";
  uint32_t shared = charge_slots(taken, group);
  if (shared < taken) {
    exhausted_by = kShareOfOnePeer;
    share_of = group.owners[shared];
  }
  uint32_t kept = 0;
  if (closing.load(std::memory_order_seq_cst)) {  // pairs with close(), see OpTable::take()
    group.why = fail(Errc::kClosed, "engine");
    exhausted_by = nullptr;
  } else {
    kept = reserve_reports(requests.first(shared), group);
    if (kept < shared) exhausted_by = nullptr;
  }
  fill_writes(requests.first(kept), now, group);
  if (kept < taken) {
    for (; shared > kept; --shared) ops.uncharge(group.owners[shared - 1]);
    ops.give_back(std::span(group.slots).subspan(kept, taken - kept));
    room_made();
  }
  if (exhausted_by != nullptr) group.why = exhausted_error(exhausted_by, share_of);
  return kept;
}

[[gnu::always_inline]] inline void EngineCore::fill_writes(std::span<const Write> requests,
                                                           int64_t now,
                                                           const WriteGroup& group) noexcept {
  uint64_t same_flow = group.same_flow;
  for (size_t i = 0; i < requests.size(); ++i, same_flow >>= 1) {
    const Write& request = requests[i];
    Op& op = ops.at(group.slots[i]);
    op.kind = OpKind::kWrite;
    op.priority = request.priority;
    op.quota_peer = group.owners[i];
    op.submitted_ns = now;
    op.deadline_ns = group.until_ns[i];
    op.source = request.source.region;
    op.source_offset = request.source.offset;
    op.target = request.target.region;
    op.target_offset = request.target.offset;
    op.size_bytes = request.size_bytes;
    op.counter_key = request.imm;
    op.unsplit = request.unsplit;
    op.same_flow = (same_flow & 1) != 0;
    op.batch = request.batch;
    op.notify = request.notify;
    // Members of other kinds that completion reads.
    op.peer = {};
    op.group = {};
    op.list = {};
    op.state.store(OpState::kQueued, std::memory_order_release);  // pairs with cancel()
  }
}

Result<OpId> EngineCore::submit(const Write& request) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  WriteGroup group;
  if (admit_writes({&request, 1}, driver->now_ns(), group) == 0) return group.why;
  return launch(ops.at(group.slots[0]));
}

Result<uint32_t> EngineCore::submit(std::span<const Write> requests) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  if (requests.empty()) return fail(Errc::kInvalidArgument, "requests");
  const int64_t now = driver->now_ns();
  WriteGroup group;
  uint32_t taken = 0;
  while (taken < requests.size()) {
    const auto wanted = std::min<size_t>(WriteGroup::kMax, requests.size() - taken);
    const uint32_t n = admit_writes(requests.subspan(taken, wanted), now, group);
    // Pushed together, so that the worker posts them together.
    FABRIC_CHECK(submissions.push_all(std::span(group.slots).first(n)), "submission ring overflow");
    taken += n;
    if (n < wanted) break;
  }
  if (taken == 0) return group.why;
  driver->wake(*this);
  return taken;
}

Result<void> EngineCore::check_scatter(const Scatter& request) const {
  auto source = regions.local_size(request.source, "source");
  if (!source) return source.error();
  if (request.targets.empty()) return fail(Errc::kInvalidArgument, "targets");
  const GroupReader group(groups, request.group);
  if (request.group && !group) return fail(Errc::kNotFound, "group");
  if (group && group.peers().size() != request.targets.size()) {
    return fail(Errc::kInvalidArgument, "group");
  }
  for (size_t i = 0; i < request.targets.size(); ++i) {
    const ScatterTarget& target = request.targets[i];
    auto size = regions.remote_size(target.target.region, "targets.target");
    // A target whose peer is lost fails alone, later; the others are not affected.
    if (!size && size.error().code != Errc::kPeerLost) return size.error();
    if (size && !fits(target.target.offset, target.size_bytes, *size)) {
      return fail(Errc::kOutOfBounds, "targets.target");
    }
    if (size && group && regions.remote_peer(target.target.region) != group.peers()[i]) {
      return fail(Errc::kInvalidArgument, "group");
    }
    if (!fits(target.source_offset, target.size_bytes, *source)) {
      return fail(Errc::kOutOfBounds, "targets.source_offset");
    }
  }
  return {};
}

Result<OpId> EngineCore::submit(const Scatter& request) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  if (auto ok = check_scatter(request); !ok) return ok.error();
  auto admitted = admit({.kind = OpKind::kScatter,
                         .priority = request.priority,
                         .timeout = request.timeout,
                         .batch = request.batch,
                         .notify = &request.notify});
  if (!admitted) return admitted.error();
  Op& op = **admitted;
  auto list = copy_list(op, request.targets.data(), request.targets.size_bytes(), "targets");
  if (!list) return list.error();
  op.list.count = op.parts = static_cast<uint32_t>(request.targets.size());
  op.unsplit = request.unsplit;
  op.source = request.source;
  op.group = request.group;
  return launch(op);
}

Result<OpId> EngineCore::submit(const Signal& request) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  if (!request.group) return fail(Errc::kInvalidArgument, "group");
  const GroupReader group(groups, request.group);
  if (!group) return fail(Errc::kNotFound, "group");
  const auto n = static_cast<uint32_t>(group.peers().size());
  if (request.keys.size() != 1 && request.keys.size() != n) {
    return fail(Errc::kInvalidArgument, "keys");
  }
  if (std::any_of(request.keys.begin(), request.keys.end(), [](CounterKey key) { return !key; })) {
    return fail(Errc::kInvalidArgument, "keys");
  }
  auto admitted = admit({.kind = OpKind::kSignal,
                         .priority = request.priority,
                         .timeout = request.timeout,
                         .batch = request.batch,
                         .notify = &request.notify});
  if (!admitted) return admitted.error();
  Op& op = **admitted;
  auto list = copy_list(op, nullptr, n * sizeof(SignalTarget), "group");
  if (!list) return list.error();
  auto* targets = static_cast<SignalTarget*>(*list);
  for (uint32_t i = 0; i < n; ++i) {
    targets[i] = {group.peers()[i], request.keys[request.keys.size() == 1 ? 0 : i]};
  }
  op.list.count = op.parts = n;
  op.group = request.group;
  return launch(op);
}

Result<OpId> EngineCore::submit(const Send& request) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  if (!request.peer) return fail(Errc::kInvalidArgument, "peer");
  const PeerHead* peer = peers.find_unlocked(request.peer);
  if (peer == nullptr) return fail(Errc::kNotFound, "peer");
  if (peer->state.load(std::memory_order_acquire) >= PeerState::kLost) {
    return fail(Errc::kPeerLost, "peer");
  }
  // Until the peer has announced its maximum, our own applies.
  uint64_t most = peer->message_bytes_max.load(std::memory_order_relaxed);
  if (most == 0) most = config.message_bytes_max;
  if (request.bytes.size() > most) return fail(Errc::kTooLarge, "bytes");
  auto admitted = admit({.kind = OpKind::kSend,
                         .timeout = request.timeout,
                         .batch = request.batch,
                         .notify = &request.notify,
                         .peer = request.peer});
  if (!admitted) return admitted.error();
  Op& op = **admitted;
  auto list = copy_list(op, request.bytes.data(), request.bytes.size(), "bytes");
  if (!list) return list.error();
  op.list.count = static_cast<uint32_t>(request.bytes.size());
  op.peer = request.peer;
  op.channel = request.channel;
  return launch(op);
}

Result<OpId> EngineCore::submit(const Timer& request) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  if (request.after.count() < 0) return fail(Errc::kInvalidArgument, "after");
  auto admitted =
      admit({.kind = OpKind::kTimer, .batch = request.batch, .notify = &request.notify});
  if (!admitted) return admitted.error();
  Op& op = **admitted;
  const int64_t now = op.submitted_ns;
  op.deadline_ns =
      request.after.count() > kNeverNs - 1 - now ? kNeverNs - 1 : now + request.after.count();
  return launch(op);
}

Result<OpId> EngineCore::submit(const Resolve& request) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  if (!request.peer) return fail(Errc::kInvalidArgument, "peer");
  const PeerHead* peer = peers.find_unlocked(request.peer);
  if (peer == nullptr) return fail(Errc::kNotFound, "peer");
  if (peer->state.load(std::memory_order_acquire) >= PeerState::kLost) {
    return fail(Errc::kPeerLost, "peer");
  }
  if (request.names.empty()) return fail(Errc::kInvalidArgument, "names");
  if (request.names.size() > control::kNamesPerMessageMax) return fail(Errc::kTooLarge, "names");
  if (request.out.size() != request.names.size()) return fail(Errc::kInvalidArgument, "out");
  auto admitted = admit({.kind = OpKind::kResolve,
                         .timeout = request.timeout,
                         .batch = request.batch,
                         .notify = &request.notify,
                         .peer = request.peer});
  if (!admitted) return admitted.error();
  Op& op = **admitted;
  auto list = copy_list(op, request.names.data(), request.names.size_bytes(), "names");
  if (!list) return list.error();
  op.list.count = static_cast<uint32_t>(request.names.size());
  op.peer = request.peer;
  op.resolved = request.out;
  return launch(op);
}

Result<OpId> EngineCore::submit(const Fence& request) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  if (!request.peer) return fail(Errc::kInvalidArgument, "peer");
  if (peers.find_unlocked(request.peer) == nullptr) return fail(Errc::kNotFound, "peer");
  auto admitted = admit({.kind = OpKind::kFence,
                         .timeout = request.timeout,
                         .batch = request.batch,
                         .notify = &request.notify});
  if (!admitted) return admitted.error();
  (*admitted)->peer = request.peer;
  return launch(**admitted);
}

Result<OpId> EngineCore::submit(const Revoke& request) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  if (!request.grant) return fail(Errc::kInvalidArgument, "grant");
  auto admitted = admit({.kind = OpKind::kRevoke,
                         .timeout = request.timeout,
                         .batch = request.batch,
                         .notify = &request.notify});
  if (!admitted) return admitted.error();
  (*admitted)->grant = request.grant;
  return launch(**admitted);
}

Result<OpId> EngineCore::submit(const Deregister& request) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  if (auto size = regions.local_size(request.region, "region"); !size) return size.error();
  auto admitted = admit({.kind = OpKind::kDeregister,
                         .timeout = request.timeout,
                         .batch = request.batch,
                         .notify = &request.notify});
  if (!admitted) return admitted.error();
  (*admitted)->source = request.region;
  return launch(**admitted);
}

Result<void> EngineCore::mask_everywhere(PeerId peer) {
  const OpenStateGuard lock(*this);
  if (!lock) return fail(Errc::kClosed, "engine");
  return counters.mask_everywhere(peer);
}

Result<OpId> EngineCore::submit(const Drop& request) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  if (!request.peer) return fail(Errc::kInvalidArgument, "peer");
  const bool known = peers.find_unlocked(request.peer) != nullptr;
  Result<Op*> admitted(nullptr);
  if (known) {
    admitted = admit({.kind = OpKind::kDrop,
                      .timeout = request.timeout,
                      .batch = request.batch,
                      .notify = &request.notify});
    if (!admitted) return admitted.error();
  }
  // Before the operation is accepted: the caller's next wait is for the members that are left.
  if (auto masked = mask_everywhere(request.peer); !masked) {
    if (known) discard(**admitted);
    return masked.error();
  }
  if (!known) return fail(Errc::kNotFound, "peer");
  (*admitted)->peer = request.peer;
  return launch(**admitted);
}

Result<OpId> EngineCore::expect_group(CounterGroupState& group, uint64_t n, const Notify& notify,
                                      Timeout timeout) {
  const OpenStateGuard lock(*this);
  if (!lock) return fail(Errc::kClosed, "engine");
  if (auto ok = group.begin_expectation(n); !ok) return ok.error();
  CounterTable::Armed armed;
  auto op = expect({.key = group.parent, .n = group.owed, .value = group.shares_sum}, notify,
                   timeout, &armed);
  // Without an operation the round stays open for the next expectation.
  if (op) group.expectation_armed(armed);
  return op;
}

Result<OpId> EngineCore::expect(const Expected& expected, const Notify& notify, Timeout timeout,
                                CounterTable::Armed* armed_out) {
  auto admitted = admit({.kind = OpKind::kExpect, .timeout = timeout, .notify = &notify});
  if (!admitted) return admitted.error();
  Op& op = **admitted;
  op.expected = expected.value;
  op.expectation.key = expected.key;
  const OpId id = op.id();
  // From here on any thread may complete it: everything above is visible to that thread.
  Result<CounterTable::Armed> armed(CounterTable::Armed{.met = true});
  if (expected.n != 0) armed = counters.table.expect(expected.key, expected.n, op.slot);
  if (!armed) {
    discard(op);
    return armed.error();
  }
  op.expectation = armed->expectation;
  if (armed_out != nullptr) *armed_out = *armed;
  if (armed->met) {
    op.completed_early = true;
    op.early_code = Errc::kOk;
  }
  FABRIC_CHECK(submissions.push(op.slot), "submission ring overflow");
  driver->wake(*this);
  return id;
}

}  // namespace fabric::core

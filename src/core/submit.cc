#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "core/core.h"

// The submitter's half: every argument is checked against what is known now, the request is copied
// into an operation slot, and its number goes into the ring. No lock; nothing of a refused request
// stays behind.

namespace fabric::core {

namespace {

/// offset + size <= limit, without overflow.
bool fits(uint64_t offset, uint64_t size, uint64_t limit) noexcept {
  return offset <= limit && size <= limit - offset;
}

/// Every page of the list lies inside `limit`.
bool pages_fit(const Pages& pages, uint64_t page_bytes, uint64_t limit) noexcept {
  uint32_t largest = 0;
  for (const uint32_t index : pages.indices) largest = std::max(largest, index);
  uint64_t last = 0, end = 0;
  return !__builtin_mul_overflow(pages.stride_bytes, static_cast<uint64_t>(largest), &last) &&
         !__builtin_add_overflow(last, pages.offset_bytes, &end) && fits(end, page_bytes, limit);
}

}  // namespace

/// What all requests have in common.
struct EngineCore::Request {
  OpKind kind{};
  Priority priority = Priority::kNormal;
  Timeout timeout{};
  BatchId batch{};
  const Notify* notify = nullptr;
  int64_t now_ns = 0;  ///< 0: read the clock
  PeerId peer{};       ///< of operations with one peer, whose share of the slots is bounded
};

Result<int64_t> EngineCore::deadline(Timeout timeout, bool may_be_forever) const {
  return deadline_after(driver->now_ns(), timeout, may_be_forever);
}

Result<int64_t> EngineCore::deadline_after(int64_t now, Timeout timeout,
                                           bool may_be_forever) const {
  int64_t ns = timeout.ns == Timeout::kDefault ? config.default_timeout.count() : timeout.ns;
  if (ns == Timeout::kForever) {
    if (may_be_forever) return kNeverNs;
    return fail(Errc::kInvalidArgument, "timeout");
  }
  if (ns <= 0) return fail(Errc::kInvalidArgument, "timeout");
  if (!may_be_forever && ns > config.timeout_max.count()) {
    return fail(Errc::kInvalidArgument, "timeout");
  }
  return ns > kNeverNs - 1 - now ? kNeverNs - 1 : now + ns;
}

Error EngineCore::exhausted_error(const char* what) {
  exhausted.fetch_add(1, std::memory_order_relaxed);
  // Whatever is in flight tells when it ends; when nothing is, nobody else would. Asked first, then
  // looked, while who ends gives its slot back first and then looks whether somebody asked.
  room_wanted.store(true, std::memory_order_seq_cst);
  if (ops.in_flight() == 0) room_made();
  return fail(Errc::kExhausted, what);
}

/// Reserves everything an accepted operation needs to be reported: its slot, its place in the
/// batch, its place in the inbox.
Result<Op*> EngineCore::admit(const Request& request) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  const bool waits = request.kind == OpKind::kExpect;
  const int64_t now = request.now_ns != 0 ? request.now_ns : driver->now_ns();
  auto until = deadline_after(now, request.timeout, waits);
  if (!until) return until.error();
  if (request.priority > Priority::kBulk) return fail(Errc::kInvalidArgument, "priority");
  Op* op = ops.take();
  if (op == nullptr) return exhausted_error("ops_max");
  if (request.peer && !ops.hold(*op, request.peer.slot)) {
    give_back(*op);
    return exhausted_error("ops_max: the share of one peer");
  }
  if (closing.load(std::memory_order_seq_cst)) {  // pairs with close(), see OpTable::take()
    give_back(*op);
    return fail(Errc::kClosed, "engine");
  }
  auto reserved = report.reserve(*request.notify);
  if (!reserved && reserved.error().code == Errc::kExhausted) {
    // Asked first, then looked once more, while the reader makes room and then looks whether
    // somebody asked.
    inbox_room_wanted.store(true, std::memory_order_seq_cst);  // pairs with inbox_read()
    reserved = report.reserve(*request.notify);
  }
  if (!reserved) {
    give_back(*op);
    const bool full = reserved.error().code == Errc::kExhausted;
    if (full) exhausted.fetch_add(1, std::memory_order_relaxed);
    return reserved.error();
  }
  if (auto ok = report.enter_batch(request.batch); !ok) {
    report.unreserve(*request.notify);
    give_back(*op);
    return ok.error();
  }
  op->kind = request.kind;
  op->priority = request.priority;
  op->batch = request.batch;
  op->notify = *request.notify;
  op->deadline_ns = *until;
  op->submitted_ns = now;
  op->stage.store(OpStage::kQueued, std::memory_order_release);  // pairs with cancel()
  return op;
}

/// A slot that turned out not to be needed: somebody may have been refused while it was taken.
void EngineCore::give_back(Op& op) {
  ops.give_back(op);
  room_made();
}

/// Undoes admit(): the request turned out not to fit after all.
void EngineCore::discard(Op& op) {
  arena.free(op.list.data);
  op.list = {};
  report.unreserve(op.notify);
  const BatchId batch = op.batch;
  give_back(op);
  if (batch) {
    std::lock_guard lock(state_mutex);
    report.leave_batch(batch);
  }
}

Result<OpId> EngineCore::launch(Op& op) {
  const OpId id = op.id();
  // One place per slot: it cannot be full.
  FABRIC_CHECK(submissions.push(op.self), "submission ring overflow");
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

Result<void> EngineCore::check_write(const Write& request) const {
  auto source = regions.local_size(request.source.region, "source");
  if (!source) return source.error();
  auto target = regions.remote_size(request.target.region, "target");
  if (!target) return target.error();
  if (!fits(request.source.offset, request.size_bytes, *source)) {
    return fail(Errc::kOutOfBounds, "source");
  }
  if (!fits(request.target.offset, request.size_bytes, *target)) {
    return fail(Errc::kOutOfBounds, "target");
  }
  return {};
}

Result<Op*> EngineCore::admit_write(const Write& request, int64_t now) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  if (auto ok = check_write(request); !ok) return ok.error();
  auto admitted = admit({.kind = OpKind::kWrite,
                         .priority = request.priority,
                         .timeout = request.timeout,
                         .batch = request.batch,
                         .notify = &request.notify,
                         .now_ns = now,
                         .peer = regions.remote_peer(request.target.region)});
  if (!admitted) return admitted.error();
  Op& op = **admitted;
  op.source = request.source.region;
  op.source_offset = request.source.offset;
  op.target = request.target.region;
  op.target_offset = request.target.offset;
  op.size_bytes = request.size_bytes;
  op.imm = request.imm;
  op.whole = request.whole;
  return &op;
}

Result<OpId> EngineCore::submit(const Write& request) {
  auto op = admit_write(request, 0);
  if (!op) return op.error();
  return launch(**op);
}

Result<uint32_t> EngineCore::submit(std::span<const Write> requests) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  if (requests.empty()) return fail(Errc::kInvalidArgument, "requests");
  const int64_t now = driver->now_ns();
  // In groups that the worker sees at once: what is taken together is posted together.
  std::array<uint32_t, 64> group;
  uint32_t taken = 0, in_group = 0;
  Error why;
  for (const Write& request : requests) {
    auto op = admit_write(request, now);
    if (!op) {
      why = op.error();
      break;
    }
    group[in_group++] = (*op)->self;
    ++taken;
    if (in_group == group.size()) {
      FABRIC_CHECK(submissions.push_all(group), "submission ring overflow");
      in_group = 0;
    }
  }
  FABRIC_CHECK(submissions.push_all({group.data(), in_group}), "submission ring overflow");
  if (taken == 0) return why;
  driver->wake(*this);
  return taken;
}

Result<OpId> EngineCore::submit(const PagedWrite& request) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  auto source = regions.local_size(request.source, "source");
  if (!source) return source.error();
  auto target = regions.remote_size(request.target, "target");
  if (!target) return target.error();
  const size_t n = request.source_pages.indices.size();
  if (n == 0) return fail(Errc::kInvalidArgument, "source_pages.indices");
  if (n != request.target_pages.indices.size()) {
    return fail(Errc::kInvalidArgument, "target_pages.indices");
  }
  if (!pages_fit(request.source_pages, request.page_bytes, *source)) {
    return fail(Errc::kOutOfBounds, "source_pages");
  }
  if (!pages_fit(request.target_pages, request.page_bytes, *target)) {
    return fail(Errc::kOutOfBounds, "target_pages");
  }
  auto admitted = admit({.kind = OpKind::kPaged,
                         .priority = request.priority,
                         .timeout = request.timeout,
                         .batch = request.batch,
                         .notify = &request.notify,
                         .peer = regions.remote_peer(request.target)});
  if (!admitted) return admitted.error();
  Op& op = **admitted;
  auto list = copy_list(op, nullptr, 2 * n * sizeof(uint32_t), "source_pages.indices");
  if (!list) return list.error();
  auto* indices = static_cast<uint32_t*>(*list);
  std::copy_n(request.source_pages.indices.data(), n, indices);
  std::copy_n(request.target_pages.indices.data(), n, indices + n);
  op.list.count = static_cast<uint32_t>(2 * n);
  op.parts = static_cast<uint32_t>(n);
  op.source = request.source;
  op.source_offset = request.source_pages.offset_bytes;
  op.source_stride = request.source_pages.stride_bytes;
  op.target = request.target;
  op.target_offset = request.target_pages.offset_bytes;
  op.target_stride = request.target_pages.stride_bytes;
  op.size_bytes = request.page_bytes;
  op.imm = request.imm;
  return launch(op);
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
    // A target whose peer is gone fails alone, when its turn comes; the others go on.
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
  if (std::any_of(request.keys.begin(), request.keys.end(), [](Key key) { return !key; })) {
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
  const Peer* peer = peers.find(request.peer);
  if (peer == nullptr) return fail(Errc::kNotFound, "peer");
  if (peer->state.load(std::memory_order_acquire) >= PeerState::kLost) {
    return fail(Errc::kPeerLost, "peer");
  }
  // Before the peer has told its own maximum the format's is all that is known.
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

Result<OpId> EngineCore::submit(const Alarm& request) {
  if (refuses()) return fail(Errc::kClosed, "engine");
  if (request.after.count() < 0) return fail(Errc::kInvalidArgument, "after");
  auto admitted =
      admit({.kind = OpKind::kAlarm, .batch = request.batch, .notify = &request.notify});
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
  const Peer* peer = peers.find(request.peer);
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
  if (peers.find(request.peer) == nullptr) return fail(Errc::kNotFound, "peer");
  auto admitted = admit({.kind = OpKind::kFence,
                         .timeout = request.timeout,
                         .batch = request.batch,
                         .notify = &request.notify});
  if (!admitted) return admitted.error();
  (*admitted)->peer = request.peer;
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

Result<OpId> EngineCore::expect(Key key, uint64_t n, const Notify& notify, Timeout timeout,
                                CounterTable::Armed* told) {
  auto admitted = admit({.kind = OpKind::kExpect, .timeout = timeout, .notify = &notify});
  if (!admitted) return admitted.error();
  Op& op = **admitted;
  op.expected = n;
  op.expectation.key = key;
  const OpId id = op.id();
  // From here on it may be met by the worker: everything above is visible to who meets it.
  auto armed = counters.table.expect(key, n, op.self);
  if (!armed) {
    discard(op);
    return armed.error();
  }
  op.expectation = armed->expectation;
  if (told != nullptr) *told = *armed;
  if (armed->met) {
    op.ended_early = true;
    op.early_end = Errc::kOk;
  }
  FABRIC_CHECK(submissions.push(op.self), "submission ring overflow");
  driver->wake(*this);
  return id;
}

}  // namespace fabric::core

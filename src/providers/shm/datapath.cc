#include <algorithm>
#include <utility>

#include "providers/shm/handles.h"

// Outgoing writes, the hot code: stored into mapped memory, or posted to the target as pull
// requests.

namespace fabric::shm {

namespace {
constexpr uint32_t kNone = UINT32_MAX;
constexpr uint64_t kWakeBytes = 32u << 10;  ///< about a microsecond of copying
// The most that one section copies: it delays the first immediate of a burst by no more.
constexpr uint64_t kBurstBytes = kWakeBytes;
constexpr uint32_t kBurstWrites = 64;
}  // namespace

uint32_t ShmRail::post(std::span<const WriteOp> ops) noexcept {
  size_t taken = 0;
  while (taken < ops.size()) {
    // Every accepted write needs a slot for its completion, and one that is queued a QueuedWrite.
    const uint32_t room = kQueueDepth - completions_count_ - queued_ - pulls_outstanding_;
    if (room == 0) break;
    const WriteOp& op = ops[taken];
    OutPath* const path = out_path(op.path);
    if (path != nullptr && path->open && path->first == kNone) {
      const auto next = ops.subspan(taken, std::min<size_t>(room, ops.size() - taken));
      if (const uint32_t stored = store_burst(*path, next); stored != 0) {
        taken += stored;
        continue;
      }
    }
    ++taken;
    post_one(path, op);
  }
  flush_wake();
  return static_cast<uint32_t>(taken);
}

/// The slow path: anything but a burst of small writes to mapped memory.
void ShmRail::post_one(OutPath* path, const WriteOp& op) noexcept {
  if (path == nullptr) {
    // The path is already closed and reported. The core withdraws unposted writes, so this is rare.
    completion_slot(completions_count_++) = {.code = Errc::kRailLost,
                                             .remote = Remote::kNotDelivered,
                                             .cookie = op.cookie,
                                             .path = op.path};
    return;
  }
  if (path->closing) {
    complete(*path, op.cookie, {path->break_code(), Remote::kNotDelivered});
    return;
  }
  uint64_t copied = 0;
  // No write overtakes a queued one: the immediate of a later write may cover earlier fragments.
  if (path->first != kNone || advance(*path, op, copied) == Advance::kBlocked) {
    enqueue(*path, op, copied);
  }
}

/// The slots for the next immediates, up to the end of a lap of the ring: the upper half of their
/// words is the same. The target writes `taken`: no value of it leads out of the ring.
struct ImmSlots {
  std::atomic<uint64_t>*first, *last;
  uint64_t lap;
};
static ImmSlots imm_slots(Ring& ring, uint64_t posted, uint64_t taken) noexcept {
  const uint64_t lap_end = (posted / Ring::kImms + 1) * Ring::kImms;
  const uint64_t end = std::max(posted, std::min(taken + Ring::kImms, lap_end));
  std::atomic<uint64_t>* const first = &ring.imms[posted % Ring::kImms];
  return {first, first + (end - posted), Ring::imm_word(posted, 0)};
}

/// The fast path: stores the writes at the head of `ops` that go to the same region in one section.
/// All immediates but the first are put into the ring before it. The target does not see them yet,
/// because it reads the ring in order and the first one is the commit. Returns how many writes
/// completed; 0: the first one has to take the slow path.
uint32_t ShmRail::store_burst(OutPath& path, std::span<const WriteOp> ops) noexcept {
  const uint64_t rkey = ops[0].rkey;
  const uint64_t write_max = burst_write_bytes_max();
  if (ops[0].size_bytes - 1 >= write_max) return 0;  // also declines 0 bytes (wraps)
  const ShmPeer::RkeyView& view = path.to->rkey_view(rkey);
  if (view.access != ShmPeer::RkeyView::Access::kMapped) return 0;
  WriterSlot* const writer_slot = network_.writer_slot();
  if (writer_slot == nullptr) return 0;
  const uint64_t region_bytes = view.size_bytes;
  const uint32_t id = path.id;
  const uint64_t imms_before = path.imms_posted;
  const auto [first_imm, last_imm, lap] = imm_slots(*path.ring, imms_before, path.imms_taken);
  std::atomic<uint64_t>* imm_slot = first_imm;
  uint64_t bytes_left = std::min(kBurstBytes, copy_budget_);
  const uint64_t bytes_before = bytes_left;
  Commit commit;
  const WriteOp* op = ops.data();
  const WriteOp* const last = op + std::min<size_t>(ops.size(), kBurstWrites);
  RailEvent* newest = nullptr;
  uint32_t next_cookie = ops[0].cookie - 1;  // that would join the newest completion; at first none
  uint32_t completions = completions_count_;
  for (; op != last; ++op) {
    const uint64_t bytes = op->size_bytes;
    if (op->path != id || op->rkey != rkey) break;
    if (bytes - 1 >= write_max || bytes > bytes_left) break;
    if (op->target > region_bytes || bytes > region_bytes - op->target) break;
    if (op->has_imm != 0) {
      if (imm_slot == last_imm) break;
      const uint64_t word = lap | op->imm;
      if (imm_slot == first_imm) {
        commit = {imm_slot, word};
      } else {
        imm_slot->store(word, std::memory_order_relaxed);  // the commit publishes it
      }
      ++imm_slot;
    }
    bytes_left -= bytes;
    // Writes with consecutive cookies share one completion.
    if (op->cookie != next_cookie) [[unlikely]] {
      if (newest != nullptr) newest->value = next_cookie - newest->cookie - 1;
      newest = &completion_slot(completions++);
      *newest = {.cookie = op->cookie, .path = id};
    }
    next_cookie = op->cookie + 1;
  }
  if (newest != nullptr) newest->value = next_cookie - newest->cookie - 1;
  const auto burst = ops.first(static_cast<size_t>(op - ops.data()));
  if (burst.empty()) return 0;
  const Guard guard{path.guard.path_epoch, path.guard.path_value, view.validity_epoch,
                    view.generation};
  const auto count = static_cast<uint32_t>(burst.size());
  if (guarded_burst(*writer_slot, view.base, burst, guard, commit, path.to->needs_barrier()) ==
      Stored::kStale) {
    refuse_burst(path, burst, imms_before + static_cast<uint64_t>(imm_slot - first_imm));
    return count;
  }
  copy_budget_ -= bytes_before - bytes_left;
  completions_count_ = completions;
  path.last_completion = reported_ + completions_count_;
  if (commit.word != nullptr) {
    path.imms_posted = imms_before + static_cast<uint64_t>(imm_slot - first_imm);
    defer_wake(path);
  }
  return count;
}

/// The guard did not hold: the epoch of the path or of the rkey was revoked. `imms`: position up to
/// which immediates were put into the ring.
void ShmRail::refuse_burst(OutPath& path, std::span<const WriteOp> ops, uint64_t imms) noexcept {
  // Clears them, because the next commit would publish them.
  for (uint64_t at = path.imms_posted; at != imms; ++at) {
    path.ring->imms[at % Ring::kImms].store(0, std::memory_order_relaxed);
  }
  const bool open = path.guard.path_epoch->load(std::memory_order_relaxed) == path.guard.path_value;
  for (const WriteOp& op : ops) {
    complete(path, op.cookie,
             {open ? Errc::kRemoteAccess : Errc::kRailLost, Remote::kNotDelivered});
  }
  if (!open) break_path(path, Errc::kRailLost);
}

/// Checks a target's sleep_epoch once for a series of publications to it.
void ShmRail::defer_wake(OutPath& path) noexcept {
  if (wake_pending_ == &path) return;
  flush_wake();
  wake_pending_ = &path;
}

void ShmRail::flush_wake() noexcept {
  if (wake_pending_ == nullptr) return;
  OutPath& path = *std::exchange(wake_pending_, nullptr);
  const uint64_t sleep_epoch = path.to->unwoken_sleep();
  if (sleep_epoch != 0) [[unlikely]] {
    wake_target(path, sleep_epoch);
  }
}

/// The target sleeps: wakes it for a pull request, or if the immediates are the last that it waits
/// for.
[[gnu::noinline]] void ShmRail::wake_target(OutPath& path, uint64_t sleep_epoch) noexcept {
  if (path.pulls_posted == path.pulls_retired) {
    // Those it has taken do not count any more. Untrusted: at worst it counts too few itself.
    const uint64_t taken = path.ring->imms_taken.load(std::memory_order_relaxed);
    const uint64_t done = std::max(path.imms_counted, std::min(taken, path.imms_posted));
    path.imms_counted = path.imms_posted;
    if (!path.to->arrivals_wake(path.imms_posted - done)) return;
  }
  path.to->wake(sleep_epoch);
}

void ShmRail::enqueue(OutPath& path, const WriteOp& op, uint64_t copied) noexcept {
  const uint32_t index = free_queued_write_;
  QueuedWrite& queued = queued_writes_[index];
  free_queued_write_ = queued.next;
  queued = {op, copied, kNone};
  (path.first == kNone ? path.first : queued_writes_[path.last].next) = index;
  path.last = index;
  ++queued_;
}

/// Advances the queued writes of a path, in order, until one is blocked.
void ShmRail::advance_queue(OutPath& path) noexcept {
  while (path.first != kNone) {
    const uint32_t index = path.first;
    QueuedWrite& queued = queued_writes_[index];
    // Leaves the queue first, which makes room for its completion.
    --queued_;
    PostedPull& newest = path.posted_pulls[(path.pulls_posted - 1) % Ring::kPulls];
    const bool begun = path.pulls_posted != path.pulls_retired && !newest.last;
    if (path.closing && begun && newest.cookie == queued.op.cookie) {
      // Some requests of it are outstanding: it completes when the last of them is retired.
      newest.last = newest.aborted = true;
    } else if (path.closing) {
      WriteStatus status = std::exchange(path.failed, {});
      if (status.code == Errc::kOk) status = {path.break_code(), Remote::kNotDelivered};
      complete(path, queued.op.cookie, status);
    } else if (advance(path, queued.op, queued.copied_bytes) == Advance::kBlocked) {
      ++queued_;
      return;
    }
    path.first = queued.next;
    if (path.first == kNone) path.last = kNone;
    queued.next = free_queued_write_;
    free_queued_write_ = index;
  }
}

ShmRail::Advance ShmRail::advance(OutPath& path, const WriteOp& op, uint64_t& copied) noexcept {
  if (!path.open) return Advance::kBlocked;
  if (op.size_bytes == 0) {
    // Its immediate may cover earlier fragments, and those that are pulled have not landed yet.
    if (op.has_imm != 0 && path.pulls_posted != path.pulls_retired) return Advance::kBlocked;
    static constexpr ShmPeer::RkeyView kNowhere{};
    return store(path, op, copied, kNowhere);
  }
  const ShmPeer::RkeyView& view = path.to->rkey_view(op.rkey);
  switch (view.access) {
    case ShmPeer::RkeyView::Access::kRequested:
    case ShmPeer::RkeyView::Access::kUnknown:
      return Advance::kBlocked;
    case ShmPeer::RkeyView::Access::kStale:
      return refuse(path, op);
    case ShmPeer::RkeyView::Access::kMapped:
    case ShmPeer::RkeyView::Access::kPulled:
      break;
  }
  if (op.target > view.size_bytes || op.size_bytes > view.size_bytes - op.target) {
    return refuse(path, op);
  }
  return view.access == ShmPeer::RkeyView::Access::kMapped ? store(path, op, copied, view)
                                                           : post_pulls(path, op, copied);
}

ShmRail::Advance ShmRail::refuse(OutPath& path, const WriteOp& op) noexcept {
  complete(path, op.cookie, {Errc::kRemoteAccess, Remote::kNotDelivered});
  return Advance::kDequeued;
}

bool ShmRail::imm_room(OutPath& path) noexcept {
  if (path.imms_posted - path.imms_taken < Ring::kImms) return true;
  // Pairs with the release in take_imms(): the words before have been read. Untrusted: a value
  // above what was posted is ignored.
  const uint64_t taken = path.ring->imms_taken.load(std::memory_order_acquire);
  if (taken <= path.imms_posted) path.imms_taken = std::max(path.imms_taken, taken);
  return path.imms_posted - path.imms_taken < Ring::kImms;
}

/// Copies into the target's mapped memory, with the immediate as the commit of the last section.
ShmRail::Advance ShmRail::store(OutPath& path, const WriteOp& op, uint64_t& copied,
                                const ShmPeer::RkeyView& view) noexcept {
  if (op.has_imm != 0 && !imm_room(path)) return Advance::kBlocked;
  const uint64_t rest = op.size_bytes - copied;
  const uint64_t part_bytes = std::min(rest, copy_budget_);
  if (part_bytes == 0 && rest != 0) {
    copying_ = true;
    return Advance::kBlocked;
  }
  // Before a long copy to another target: it would delay the pending wake.
  if (part_bytes > kWakeBytes && wake_pending_ != nullptr && wake_pending_ != &path) flush_wake();
  WriterSlot* const writer_slot = network_.writer_slot();
  if (writer_slot == nullptr)
    return Advance::kBlocked;  // all slots are taken: a thread has to exit
  Guard guard = path.guard;
  if (rest != 0) {
    guard.rkey_epoch = view.validity_epoch;
    guard.rkey_value = view.generation;
  }
  const bool last = part_bytes == rest;
  Commit commit;
  if (last && op.has_imm != 0) {
    commit = {&path.ring->imms[path.imms_posted % Ring::kImms],
              Ring::imm_word(path.imms_posted, op.imm)};
  }
  if (rest != 0 || commit.word != nullptr) {
    std::byte* const target = rest == 0 ? nullptr : view.base + op.target + copied;
    const Stored stored =
        guarded_copy(*writer_slot, target, reinterpret_cast<const std::byte*>(op.source + copied),
                     part_bytes, guard, commit, path.to->needs_barrier(), op.size_bytes);
    if (stored == Stored::kStale) {
      refuse_burst(path, {&op, 1}, path.imms_posted);
      return Advance::kDequeued;
    }
  }
  copied += part_bytes;
  copy_budget_ -= part_bytes;
  if (!last) {
    copying_ = true;
    return Advance::kBlocked;
  }
  if (commit.word != nullptr) {
    ++path.imms_posted;
    defer_wake(path);
  }
  complete(path, op.cookie, {});
  return Advance::kDequeued;
}

/// Posts pull requests: for our own memory, or for the bounce buffer if the target cannot read
/// that.
ShmRail::Advance ShmRail::post_pulls(OutPath& path, const WriteOp& op,
                                     uint64_t& posted_bytes) noexcept {
  network_.take_writer_slot();
  for (;;) {
    if (path.pulls_posted - path.pulls_retired >= Ring::kPulls) return Advance::kBlocked;
    const bool bounced = !path.can_pull;
    uint64_t part_bytes = op.size_bytes - posted_bytes;
    uint64_t source = op.source + posted_bytes;
    if (bounced) {
      const uint64_t at = path.bounced % Ring::kBounceBytes;
      // A part is contiguous: it is cut at the end of the buffer.
      const uint64_t room = Ring::kBounceBytes - (path.bounced - path.bounce_freed);
      part_bytes = std::min({part_bytes, Ring::kBounceBytes - at, Ring::kBounceBytes / 4, room});
      if (part_bytes == 0) return Advance::kBlocked;
      if (copy_budget_ == 0) {
        copying_ = true;
        return Advance::kBlocked;
      }
      part_bytes = std::min(part_bytes, copy_budget_);
      // The ring is the target's memory, so the copy is guarded by the path's epoch.
      WriterSlot* const writer_slot = network_.writer_slot();
      if (writer_slot == nullptr) return Advance::kBlocked;
      const Stored stored = guarded_copy(*writer_slot, path.ring->bounce.data() + at,
                                         reinterpret_cast<const std::byte*>(source), part_bytes,
                                         path.guard, {}, path.to->needs_barrier());
      if (stored == Stored::kStale) {
        break_path(path, Errc::kRailLost);
        return Advance::kBlocked;  // advance_queue() completes it
      }
      copy_budget_ -= part_bytes;
      source = at;
    }
    const bool last = posted_bytes + part_bytes == op.size_bytes;
    PullRequest made;
    made.rkey.store(op.rkey, std::memory_order_relaxed);
    made.target.store(op.target + posted_bytes, std::memory_order_relaxed);
    made.source.store(source, std::memory_order_relaxed);
    made.size_bytes.store(part_bytes, std::memory_order_relaxed);
    made.imm.store(op.imm, std::memory_order_relaxed);
    made.flags.store((last && op.has_imm != 0 ? PullRequest::kHasImm : 0) |
                         (bounced ? PullRequest::kBounced : 0),
                     std::memory_order_relaxed);
    publish_pull(path, made,
                 {.cookie = op.cookie, .last = last, .bounce_bytes = bounced ? part_bytes : 0});
    posted_bytes += part_bytes;
    defer_wake(path);
    if (last) return Advance::kDequeued;
  }
}

void ShmRail::publish_pull(OutPath& path, const PullRequest& made,
                           const PostedPull& posted) noexcept {
  const uint64_t position = path.pulls_posted++;
  PullRequest& request = path.ring->pulls[position % Ring::kPulls];
  constexpr auto kRelaxed = std::memory_order_relaxed;
  request.rkey.store(made.rkey.load(kRelaxed), kRelaxed);
  request.target.store(made.target.load(kRelaxed), kRelaxed);
  request.source.store(made.source.load(kRelaxed), kRelaxed);
  request.size_bytes.store(made.size_bytes.load(kRelaxed), kRelaxed);
  request.imm.store(made.imm.load(kRelaxed), kRelaxed);
  request.flags.store(made.flags.load(kRelaxed), kRelaxed);
  path.posted_pulls[position % Ring::kPulls] = posted;
  path.bounced += posted.bounce_bytes;
  ++pulls_outstanding_;
  // Pairs with the acquire in begin_pull(). If the target has closed the path, it never reads this:
  // check_paths() withdraws the request when it sees the retired ring.
  request.word.store(PullRequest::word_of(position, PullRequest::kPublished),
                     std::memory_order_release);
}

/// Retires completed pull requests in posting order.
void ShmRail::retire_pulls(OutPath& path) noexcept {
  while (path.pulls_retired != path.pulls_posted) {
    const uint64_t position = path.pulls_retired;
    PullRequest& request = path.ring->pulls[position % Ring::kPulls];
    const uint64_t word =
        request.word.load(std::memory_order_acquire);  // pairs with finish_pulls()
    WriteStatus status;
    if (word == PullRequest::word_of(position, PullRequest::kDone)) {
      status = {};
    } else if (word == PullRequest::word_of(position, PullRequest::kRefused) ||
               word == PullRequest::word_of(position, PullRequest::kUnreadable)) {
      status = {Errc::kRemoteAccess, Remote::kNotDelivered};
    } else if (word == PullRequest::word_of(position, PullRequest::kClosed) ||
               word == PullRequest::word_of(position, PullRequest::kWithdrawn)) {
      status = {path.break_code(), Remote::kNotDelivered};
    } else if (word == PullRequest::word_of(position, PullRequest::kAbandoned)) {
      status = {path.break_code(), Remote::kUnknown};  // no immediate, but bytes may still land
    } else if (path.to->check_dead()) {                // visible before it disconnects
      status = {path.break_code(), Remote::kUnknown};  // the target died while serving it
    } else if (path.to->disconnected() &&
               word != PullRequest::word_of(position, PullRequest::kPublished)) {
      status = {path.break_code(), Remote::kUnknown};  // disconnected, or invalid state
    } else {
      return;
    }
    const PostedPull& posted = path.posted_pulls[position % Ring::kPulls];
    ++path.pulls_retired;
    --pulls_outstanding_;
    path.bounce_freed += posted.bounce_bytes;
    const bool worse = path.failed.code == Errc::kOk || status.remote == Remote::kUnknown;
    if (status.code != Errc::kOk && worse) path.failed = status;
    if (posted.aborted && path.failed.code == Errc::kOk) {
      path.failed = {path.break_code(), Remote::kNotDelivered};
    }
    if (!posted.last) continue;
    complete(path, posted.cookie, std::exchange(path.failed, {}));
  }
}

uint32_t ShmRail::poll_completions(std::span<RailEvent> out) noexcept {
  const auto count = static_cast<uint32_t>(std::min<size_t>(out.size(), completions_count_));
  const uint32_t straight = std::min(count, kQueueDepth - completions_head_);
  std::copy_n(completions_.begin() + completions_head_, straight, out.begin());
  std::copy_n(completions_.begin(), count - straight, out.begin() + straight);
  reported_ += count;
  completions_count_ -= count;
  // Restarts at 0 when empty, to reuse the same cache lines.
  completions_head_ = completions_count_ == 0 ? 0 : (completions_head_ + count) % kQueueDepth;
  return count;
}

/// The first path may fill `out`, so each poll starts with another path, and then with the other
/// kind. All paths are polled: a poll that does not fill `out` has reported everything that
/// arrived.
uint32_t ShmRail::poll_inbound(std::span<RailEvent> out) noexcept {
  const size_t paths = watched_.size();
  if (paths == 0) return 0;
  if (++next_in_ >= paths) {
    next_in_ = 0;
    pulls_first_ = !pulls_first_;
  }
  uint32_t n = 0;
  size_t at = next_in_;
  do {
    InPath& path = *watched_[at];
    if (pull_ready(path)) {
      n += take_inbound(path, out.subspan(n));
    } else if (imm_ready(path)) {
      n += take_imms(path, out.subspan(n));
    }
    at = at + 1 == paths ? 0 : at + 1;
  } while (at != next_in_);
  return n;
}

uint32_t ShmRail::take_inbound(InPath& path, std::span<RailEvent> out) noexcept {
  uint32_t n = pulls_first_ ? 0 : take_imms(path, out);
  if (!path.closing) n += take_pulls(path, out.subspan(n));
  return pulls_first_ ? n + take_imms(path, out.subspan(n)) : n;
}

/// poll_ongoing() has something to check.
inline bool ShmRail::has_ongoing() const noexcept {
  return (pulls_outstanding_ | queued_ | closing_out_ | closing_in_) != 0 || !fences_.empty() ||
         scan_seen_ != network_.scans() ||
         // Pairs with the release in deregister_memory().
         revoked_count_.load(std::memory_order_acquire) != 0;
}

uint32_t ShmRail::poll(std::span<RailEvent> out) noexcept {
  copy_budget_ = kTurnBytes;
  copying_ = false;
  uint32_t n = completions_count_ == 0 ? 0 : poll_completions(out);
  if (has_ongoing()) n += poll_ongoing(out.subspan(n));
  // Last, because a flood of arrivals could fill `out`.
  n += poll_inbound(out.subspan(n));
  polled_events_ = n != 0;
  return n;
}

/// Work that spans several polls: queued writes, pull requests, fences, closing paths.
uint32_t ShmRail::poll_ongoing(std::span<RailEvent> out) noexcept {
  uint32_t n = 0;
  if (pulls_outstanding_ != 0 || queued_ != 0) {
    for (const auto& path : out_) {
      if (!path->live) continue;
      if (path->pulls_posted != path->pulls_retired) retire_pulls(*path);
      if (path->first != kNone) advance_queue(*path);
    }
    flush_wake();
    n += poll_completions(out);
  }
  fresh_scan_ = scan_seen_ != network_.scans();
  if (fresh_scan_) check_paths();
  // Acquire as in poll().
  if (revoked_count_.load(std::memory_order_acquire) != 0 || !fences_.empty()) {
    n += poll_fences(out.subspan(n));
  }
  // After the writes: a path is down only when its last completion was reported.
  if (closing_out_ != 0) n += poll_closing_out(out.subspan(n));
  if (closing_in_ != 0) n += poll_closing_in(out.subspan(n));
  return n;
}

/// Whether advance_queue() would make progress.
bool ShmRail::can_advance(OutPath& path) noexcept {
  if (path.first == kNone) return false;
  if (path.closing) return true;
  if (!path.open) return false;
  const WriteOp& op = queued_writes_[path.first].op;
  using Access = ShmPeer::RkeyView::Access;
  const Access access = op.size_bytes == 0 ? Access::kMapped : path.to->rkey_view(op.rkey).access;
  switch (access) {
    case Access::kRequested:
    case Access::kUnknown:
      return false;
    case Access::kMapped:
      if (op.size_bytes == 0 && path.pulls_posted != path.pulls_retired) return false;
      return op.has_imm == 0 || imm_room(path);
    case Access::kPulled:
      return path.pulls_posted - path.pulls_retired < Ring::kPulls &&
             (path.can_pull || path.bounced - path.bounce_freed < Ring::kBounceBytes);
    case Access::kStale:
      return true;
  }
  return true;
}

bool ShmRail::pending_work() const noexcept {
  if (completions_count_ != 0 || copying_ || has_ongoing()) return true;
  for (const InPath* const path : watched_) {
    if (imm_ready(*path) || pull_ready(*path)) return true;
  }
  return false;
}

bool ShmRail::has_work() noexcept {
  if (completions_count_ != 0 || copying_ || scan_seen_ != network_.scans() ||
      revoked_count_.load(std::memory_order_acquire) != 0) {
    return true;
  }
  for (const InPath* const path : watched_) {
    if (imm_ready(*path)) return true;
    if (pull_ready(*path) && !path->closing) return true;
  }
  for (const auto& path : out_) {
    if (!path->live) continue;
    if (can_advance(*path) || (path->closing && path->idle(reported_))) return true;
    if (path->pulls_posted == path->pulls_retired) continue;
    const uint64_t at = path->pulls_retired;
    const uint64_t word = path->ring->pulls[at % Ring::kPulls].word.load(std::memory_order_acquire);
    // Only final states are work; an invalid state is waited for like kTaken.
    if (word >= PullRequest::word_of(at, PullRequest::kDone) &&
        word <= PullRequest::word_of(at, PullRequest::kAbandoned)) {
      return true;
    }
  }
  return false;
}

}  // namespace fabric::shm

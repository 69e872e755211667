#include <algorithm>
#include <utility>

#include "providers/shm/handles.h"

// What leaves: pieces are stored into mapped memory, or ordered from the target. The hot code.

namespace fabric::shm {

namespace {
constexpr uint32_t kNone = UINT32_MAX;
constexpr uint64_t kWakeBytes = 32u << 10;  ///< a microsecond
// What leaves in one section: nobody waits longer than that for the first of its counts.
constexpr uint64_t kRunBytes = kWakeBytes;
constexpr uint32_t kRunPieces = 64;
}  // namespace

uint32_t ShmRail::post(std::span<const WriteOp> ops) noexcept {
  size_t taken = 0;
  while (taken < ops.size()) {
    // Every piece needs a place for its end, and one that waits a place of its own.
    const uint32_t room = kQueueDepth - done_count_ - waiting_ - ordered_;
    if (room == 0) break;
    const WriteOp& op = ops[taken];
    OutPath* const path = out_path(op.path);
    if (path != nullptr && path->open && path->first == kNone) {
      const auto next = ops.subspan(taken, std::min<size_t>(room, ops.size() - taken));
      if (const uint32_t stored = store_run(*path, next); stored != 0) {
        taken += stored;
        continue;
      }
    }
    ++taken;
    post_one(path, op);
  }
  wake_published();
  return static_cast<uint32_t>(taken);
}

/// Anything that is not one of many small pieces for mapped memory.
void ShmRail::post_one(OutPath* path, const WriteOp& op) noexcept {
  if (path == nullptr) {
    // Closed and reported: the core withdraws what it had not posted, so this is a stray one.
    place_for_end(done_count_++) = {.code = Errc::kRailLost,
                                    .remote = Remote::kNotDelivered,
                                    .cookie = op.cookie,
                                    .path = op.path};
    return;
  }
  if (path->closing) {
    end(*path, op.cookie, {path->broken_by(), Remote::kNotDelivered});
    return;
  }
  uint64_t copied = 0;
  // Nothing overtakes what waits: slices are covered by the counted piece behind them.
  if (path->first != kNone || advance(*path, op, copied) == Step::kWaits) {
    wait_in_line(*path, op, copied);
  }
}

/// Stores the pieces at the head of `ops` that go to the same memory, in one section. Their counts
/// stand in the ring before it, and nobody sees them: a target reads its ring in order, and the
/// first of them is the commit. Returns how many have ended; 0: the first one goes another way.
uint32_t ShmRail::store_run(OutPath& path, std::span<const WriteOp> ops) noexcept {
  const uint64_t key = ops[0].remote_key;
  const uint64_t piece_max = run_piece_bytes_max();
  if (ops[0].size_bytes - 1 >= piece_max) return 0;  // nothing at all is too much as well
  const Neighbour::View& view = path.to->view(key);
  if (view.way != Neighbour::View::Way::kMapped) return 0;
  Card* const card = network_.card();
  if (card == nullptr) return 0;
  const uint64_t region_bytes = view.size_bytes;
  const uint32_t id = path.id;
  std::atomic<uint64_t>* const slots = path.ring->counts.data();
  uint64_t counts = path.counts;
  const uint64_t counts_end = path.counts_taken + Ring::kCounts;
  uint64_t bytes_left = std::min(kRunBytes, budget_);
  const uint64_t bytes_before = bytes_left;
  Commit commit;
  const WriteOp* op = ops.data();
  const WriteOp* const last = op + std::min<size_t>(ops.size(), kRunPieces);
  WireEvent* newest = nullptr;
  uint32_t ends = done_count_;
  for (; op != last; ++op) {
    const uint64_t bytes = op->size_bytes;
    if (op->path != id || op->remote_key != key) break;
    if (bytes - 1 >= piece_max || bytes > bytes_left) break;
    if (op->target > region_bytes || bytes > region_bytes - op->target) break;
    if (op->has_imm != 0) {
      if (counts == counts_end) break;
      std::atomic<uint64_t>* const slot = slots + counts % Ring::kCounts;
      const uint64_t word = Ring::count_word(counts++, op->imm);
      if (commit.word == nullptr) {
        commit = {slot, word};
      } else {
        slot->store(word, std::memory_order_relaxed);  // the commit publishes it
      }
    }
    bytes_left -= bytes;
    // One end for all whose cookies follow each other.
    if (newest != nullptr && op->cookie - newest->cookie == newest->value + 1) {
      ++newest->value;
    } else {
      newest = &place_for_end(ends++);
      *newest = {.cookie = op->cookie, .path = id};
    }
  }
  const auto run = ops.first(static_cast<size_t>(op - ops.data()));
  if (run.empty()) return 0;
  const Guard guard{path.guard.path, path.guard.path_value, view.permit, view.generation};
  const auto count = static_cast<uint32_t>(run.size());
  if (guarded_run(*card, view.base, run, guard, commit, path.to->needs_fence()) == Stored::kStale) {
    refuse_run(path, run, counts);
    return count;
  }
  budget_ -= bytes_before - bytes_left;
  done_count_ = ends;
  path.last_end = told_ + done_count_;
  if (commit.word != nullptr) {
    path.counts = counts;
    published(path);
  }
  return count;
}

/// A guard did not hold: the path's, or else the key's. `counts`: how far the ring was filled.
void ShmRail::refuse_run(OutPath& path, std::span<const WriteOp> ops, uint64_t counts) noexcept {
  // The next commit must not publish what stands behind it.
  for (uint64_t at = path.counts; at != counts; ++at) {
    path.ring->counts[at % Ring::kCounts].store(0, std::memory_order_relaxed);
  }
  const bool open = path.guard.path->load(std::memory_order_relaxed) == path.guard.path_value;
  for (const WriteOp& op : ops) {
    end(path, op.cookie, {open ? Errc::kRemoteAccess : Errc::kRailLost, Remote::kNotDelivered});
  }
  if (!open) break_out(path, Errc::kRailLost);
}

/// One look at the target's bell does for all that was published behind each other.
void ShmRail::published(OutPath& path) noexcept {
  if (published_ == &path) return;
  wake_published();
  published_ = &path;
}

void ShmRail::wake_published() noexcept {
  if (published_ != nullptr) std::exchange(published_, nullptr)->to->wake_if_asleep();
}

void ShmRail::wait_in_line(OutPath& path, const WriteOp& op, uint64_t copied) noexcept {
  const uint32_t index = free_piece_;
  Piece& piece = pieces_[index];
  free_piece_ = piece.next;
  piece = {op, copied, kNone};
  (path.first == kNone ? path.first : pieces_[path.last].next) = index;
  path.last = index;
  ++waiting_;
}

/// Takes pieces that wait one step further.
void ShmRail::go_on(OutPath& path) noexcept {
  while (path.first != kNone) {
    const uint32_t index = path.first;
    Piece& piece = pieces_[index];
    // The piece leaves the line before it ends: its end must find room.
    --waiting_;
    Ordered& newest = path.ordered[(path.orders - 1) % Ring::kOrders];
    const bool begun = path.orders != path.orders_ended && !newest.last;
    if (path.closing && begun && newest.cookie == piece.op.cookie) {
      // Parts of it are with the target: it ends behind the last of them.
      newest.last = newest.cut = true;
    } else if (path.closing) {
      Outcome outcome = std::exchange(path.failed, {});
      if (outcome.code == Errc::kOk) outcome = {path.broken_by(), Remote::kNotDelivered};
      end(path, piece.op.cookie, outcome);
    } else if (advance(path, piece.op, piece.copied_bytes) == Step::kWaits) {
      ++waiting_;
      return;
    }
    path.first = piece.next;
    if (path.first == kNone) path.last = kNone;
    piece.next = free_piece_;
    free_piece_ = index;
  }
}

ShmRail::Step ShmRail::advance(OutPath& path, const WriteOp& op, uint64_t& copied) noexcept {
  if (!path.open) return Step::kWaits;
  if (op.size_bytes == 0) {
    // It may be what covers the pieces before it, and those that are fetched are not there yet.
    if (op.has_imm != 0 && path.orders != path.orders_ended) return Step::kWaits;
    static constexpr Neighbour::View kNowhere{};
    return store(path, op, copied, kNowhere);
  }
  const Neighbour::View& view = path.to->view(op.remote_key);
  switch (view.way) {
    case Neighbour::View::Way::kAsked:
    case Neighbour::View::Way::kUnknown:
      return Step::kWaits;
    case Neighbour::View::Way::kStale:
      return refused(path, op);
    case Neighbour::View::Way::kMapped:
    case Neighbour::View::Way::kPulled:
      break;
  }
  if (op.target > view.size_bytes || op.size_bytes > view.size_bytes - op.target) {
    return refused(path, op);
  }
  return view.way == Neighbour::View::Way::kMapped ? store(path, op, copied, view)
                                                   : order(path, op, copied);
}

ShmRail::Step ShmRail::refused(OutPath& path, const WriteOp& op) noexcept {
  end(path, op.cookie, {Errc::kRemoteAccess, Remote::kNotDelivered});
  return Step::kEnded;
}

bool ShmRail::count_room(OutPath& path) noexcept {
  if (path.counts - path.counts_taken < Ring::kCounts) return true;
  // Pairs with the release in take_counts(): the words before have been read. From outside: more
  // than was published would make room for ever.
  const uint64_t taken = path.ring->counts_taken.load(std::memory_order_acquire);
  if (taken <= path.counts) path.counts_taken = std::max(path.counts_taken, taken);
  return path.counts - path.counts_taken < Ring::kCounts;
}

/// Bytes into the target's memory, and the count as the last of them.
ShmRail::Step ShmRail::store(OutPath& path, const WriteOp& op, uint64_t& copied,
                             const Neighbour::View& view) noexcept {
  if (op.has_imm != 0 && !count_room(path)) return Step::kWaits;
  const uint64_t rest = op.size_bytes - copied;
  const uint64_t stretch = std::min(rest, budget_);
  if (stretch == 0 && rest != 0) {
    copying_ = true;
    return Step::kWaits;
  }
  // Nobody sleeps through a long copy to somebody else.
  if (stretch > kWakeBytes && published_ != nullptr && published_ != &path) wake_published();
  Card* const card = network_.card();
  if (card == nullptr) return Step::kWaits;  // too many threads: one of them has to end
  Guard guard = path.guard;
  if (rest != 0) {
    guard.key = view.permit;
    guard.key_value = view.generation;
  }
  const bool last = stretch == rest;
  Commit commit;
  if (last && op.has_imm != 0) {
    commit = {&path.ring->counts[path.counts % Ring::kCounts],
              Ring::count_word(path.counts, op.imm)};
  }
  if (rest != 0 || commit.word != nullptr) {
    std::byte* const target = rest == 0 ? nullptr : view.base + op.target + copied;
    const Stored stored =
        guarded_copy(*card, target, reinterpret_cast<const std::byte*>(op.source + copied), stretch,
                     guard, commit, path.to->needs_fence(), op.size_bytes);
    if (stored == Stored::kStale) {
      refuse_run(path, {&op, 1}, path.counts);
      return Step::kEnded;
    }
  }
  copied += stretch;
  budget_ -= stretch;
  if (!last) {
    copying_ = true;
    return Step::kWaits;
  }
  if (commit.word != nullptr) {
    ++path.counts;
    published(path);
  }
  end(path, op.cookie, {});
  return Step::kEnded;
}

/// Memory that the target has to fetch for itself, or that goes through the ring's buffer.
ShmRail::Step ShmRail::order(OutPath& path, const WriteOp& op, uint64_t& given) noexcept {
  network_.show_life();
  for (;;) {
    if (path.orders - path.orders_ended >= Ring::kOrders) return Step::kWaits;
    const bool bounced = !path.pulls;
    uint64_t stretch = op.size_bytes - given;
    uint64_t source = op.source + given;
    if (bounced) {
      const uint64_t at = path.bounced % Ring::kBounceBytes;
      // A stretch lies in one piece: one that meets the end of the buffer is cut there.
      const uint64_t room = Ring::kBounceBytes - (path.bounced - path.bounce_freed);
      stretch = std::min({stretch, Ring::kBounceBytes - at, Ring::kBounceBytes / 4, room});
      if (stretch == 0) return Step::kWaits;
      if (budget_ == 0) {
        copying_ = true;
        return Step::kWaits;
      }
      stretch = std::min(stretch, budget_);
      // The ring is the target's memory: closing the path takes it back like any other.
      Card* const card = network_.card();
      if (card == nullptr) return Step::kWaits;
      const Stored stored = guarded_copy(*card, path.ring->bounce.data() + at,
                                         reinterpret_cast<const std::byte*>(source), stretch,
                                         path.guard, {}, path.to->needs_fence());
      if (stored == Stored::kStale) {
        break_out(path, Errc::kRailLost);
        return Step::kWaits;  // go_on() ends it
      }
      budget_ -= stretch;
      source = at;
    }
    const bool last = given + stretch == op.size_bytes;
    Order made;
    made.key.store(op.remote_key, std::memory_order_relaxed);
    made.target.store(op.target + given, std::memory_order_relaxed);
    made.source.store(source, std::memory_order_relaxed);
    made.size_bytes.store(stretch, std::memory_order_relaxed);
    made.imm.store(op.imm, std::memory_order_relaxed);
    made.flags.store(
        (last && op.has_imm != 0 ? Order::kCounted : 0) | (bounced ? Order::kBounced : 0),
        std::memory_order_relaxed);
    publish(path, made, {.cookie = op.cookie, .last = last, .bounce_bytes = bounced ? stretch : 0});
    given += stretch;
    published(path);
    if (last) return Step::kEnded;
  }
}

void ShmRail::publish(OutPath& path, const Order& made, const Ordered& note) noexcept {
  const uint64_t position = path.orders++;
  Order& order = path.ring->orders[position % Ring::kOrders];
  constexpr auto kRelaxed = std::memory_order_relaxed;
  order.key.store(made.key.load(kRelaxed), kRelaxed);
  order.target.store(made.target.load(kRelaxed), kRelaxed);
  order.source.store(made.source.load(kRelaxed), kRelaxed);
  order.size_bytes.store(made.size_bytes.load(kRelaxed), kRelaxed);
  order.imm.store(made.imm.load(kRelaxed), kRelaxed);
  order.flags.store(made.flags.load(kRelaxed), kRelaxed);
  path.ordered[position % Ring::kOrders] = note;
  path.bounced += note.bounce_bytes;
  ++ordered_;
  // Pairs with the acquire in begin_job(). An order that is published late, on a path that was
  // closed meanwhile, is not there: nobody looks into a retired ring.
  order.word.store(Order::word_of(position, Order::kPublished), std::memory_order_release);
}

/// Orders that the target is through with, in their order.
void ShmRail::collect_orders(OutPath& path) noexcept {
  while (path.orders_ended != path.orders) {
    const uint64_t position = path.orders_ended;
    Order& order = path.ring->orders[position % Ring::kOrders];
    const uint64_t word = order.word.load(std::memory_order_acquire);  // pairs with finish_orders()
    Outcome outcome;
    if (word == Order::word_of(position, Order::kDone)) {
      outcome = {};
    } else if (word == Order::word_of(position, Order::kRefused) ||
               word == Order::word_of(position, Order::kUnread)) {
      outcome = {Errc::kRemoteAccess, Remote::kNotDelivered};
    } else if (word == Order::word_of(position, Order::kClosed) ||
               word == Order::word_of(position, Order::kWithdrawn)) {
      outcome = {path.broken_by(), Remote::kNotDelivered};
    } else if (word == Order::word_of(position, Order::kAbandoned)) {
      outcome = {path.broken_by(), Remote::kUnknown};  // not counted, but it may still land
    } else if (path.to->look_for_death()) {            // which shows before it hangs up
      outcome = {path.broken_by(), Remote::kUnknown};  // it died at it
    } else if (path.to->left() && word != Order::word_of(position, Order::kPublished)) {
      outcome = {path.broken_by(), Remote::kUnknown};  // it hung up at it, or wrote nonsense
    } else {
      return;
    }
    const Ordered& note = path.ordered[position % Ring::kOrders];
    ++path.orders_ended;
    --ordered_;
    path.bounce_freed += note.bounce_bytes;
    const bool worse = path.failed.code == Errc::kOk || outcome.remote == Remote::kUnknown;
    if (outcome.code != Errc::kOk && worse) path.failed = outcome;
    if (note.cut && path.failed.code == Errc::kOk) {
      path.failed = {path.broken_by(), Remote::kNotDelivered};
    }
    if (!note.last) continue;
    end(path, note.cookie, std::exchange(path.failed, {}));
  }
}

uint32_t ShmRail::poll_done(std::span<WireEvent> out) noexcept {
  const auto count = static_cast<uint32_t>(std::min<size_t>(out.size(), done_count_));
  const uint32_t straight = std::min(count, kQueueDepth - done_head_);
  std::copy_n(done_.begin() + done_head_, straight, out.begin());
  std::copy_n(done_.begin(), count - straight, out.begin() + straight);
  told_ += count;
  done_count_ -= count;
  // From the start when it is empty: the same lines again.
  done_head_ = done_count_ == 0 ? 0 : (done_head_ + count) % kQueueDepth;
  return count;
}

/// Whoever comes first may fill the room, so it is another path each time, and then the other kind.
/// All of the room: a poll that leaves some says that everything which had arrived was told.
uint32_t ShmRail::poll_arrivals(std::span<WireEvent> out) noexcept {
  const size_t paths = watched_.size();
  if (paths == 0) return 0;
  if (++first_in_ >= paths) {
    first_in_ = 0;
    orders_first_ = !orders_first_;
  }
  uint32_t n = 0;
  size_t at = first_in_;
  do {
    InPath& path = *watched_[at];
    if (has_order(path)) {
      n += take_both(path, out.subspan(n));
    } else if (has_count(path)) {
      n += take_counts(path, out.subspan(n));
    }
    at = at + 1 == paths ? 0 : at + 1;
  } while (at != first_in_);
  return n;
}

uint32_t ShmRail::take_both(InPath& path, std::span<WireEvent> out) noexcept {
  uint32_t n = orders_first_ ? 0 : take_counts(path, out);
  if (!path.closing) n += take_orders(path, out.subspan(n));
  return orders_first_ ? n + take_counts(path, out.subspan(n)) : n;
}

/// Something that poll_rest() has to look at.
inline bool ShmRail::has_begun() const noexcept {
  return (ordered_ | waiting_ | closing_out_ | closing_in_) != 0 || !fences_.empty() ||
         looked_ != network_.looks() ||
         // Pairs with the release in deregister_memory().
         revoked_count_.load(std::memory_order_acquire) != 0;
}

uint32_t ShmRail::poll(std::span<WireEvent> out) noexcept {
  budget_ = kTurnBytes;
  copying_ = false;
  uint32_t n = done_count_ == 0 ? 0 : poll_done(out);
  if (has_begun()) n += poll_rest(out.subspan(n));
  // Last, because it may always have more; and a poll that is not filled has told everything.
  n += poll_arrivals(out.subspan(n));
  found_ = n != 0;
  return n;
}

/// What takes more than one poll.
uint32_t ShmRail::poll_rest(std::span<WireEvent> out) noexcept {
  uint32_t n = 0;
  if (ordered_ != 0 || waiting_ != 0) {
    for (const auto& path : out_) {
      if (!path->live) continue;
      if (path->orders != path->orders_ended) collect_orders(*path);
      if (path->first != kNone) go_on(*path);
    }
    wake_published();
    n += poll_done(out);
  }
  fresh_look_ = looked_ != network_.looks();
  if (fresh_look_) look_at_paths();
  // Acquire as in poll().
  if (revoked_count_.load(std::memory_order_acquire) != 0 || !fences_.empty()) {
    n += poll_fences(out.subspan(n));
  }
  // Behind the pieces: an end is down when its last piece is out.
  if (closing_out_ != 0) n += poll_out_ends(out.subspan(n));
  if (closing_in_ != 0) n += poll_in_ends(out.subspan(n));
  return n;
}

/// Whether the first piece that waits would get further now.
bool ShmRail::can_go_on(OutPath& path) noexcept {
  if (path.first == kNone) return false;
  if (path.closing) return true;
  if (!path.open) return false;
  const WriteOp& op = pieces_[path.first].op;
  using Way = Neighbour::View::Way;
  const Way way = op.size_bytes == 0 ? Way::kMapped : path.to->view(op.remote_key).way;
  switch (way) {
    case Way::kAsked:
    case Way::kUnknown:
      return false;
    case Way::kMapped:
      if (op.size_bytes == 0 && path.orders != path.orders_ended) return false;
      return op.has_imm == 0 || count_room(path);
    case Way::kPulled:
      return path.orders - path.orders_ended < Ring::kOrders &&
             (path.pulls || path.bounced - path.bounce_freed < Ring::kBounceBytes);
    case Way::kStale:
      return true;
  }
  return true;
}

bool ShmRail::pending_work() const noexcept {
  if (done_count_ != 0 || copying_ || has_begun()) return true;
  for (const InPath* const path : watched_) {
    if (has_count(*path) || has_order(*path)) return true;
  }
  return false;
}

bool ShmRail::has_work() noexcept {
  if (done_count_ != 0 || copying_ || looked_ != network_.looks() ||
      revoked_count_.load(std::memory_order_acquire) != 0) {
    return true;
  }
  for (const InPath* const path : watched_) {
    if (has_count(*path)) return true;
    if (has_order(*path) && !path->closing) return true;
  }
  for (const auto& path : out_) {
    if (!path->live) continue;
    if (can_go_on(*path) || (path->closing && path->quiet(told_))) return true;
    if (path->orders == path->orders_ended) continue;
    const uint64_t at = path->orders_ended;
    const uint64_t word =
        path->ring->orders[at % Ring::kOrders].word.load(std::memory_order_acquire);
    // Anything but an end, nonsense included, is waited for.
    if (word >= Order::word_of(at, Order::kDone) && word <= Order::word_of(at, Order::kAbandoned)) {
      return true;
    }
  }
  return false;
}

}  // namespace fabric::shm

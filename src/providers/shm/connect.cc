#include <algorithm>

#include "base/bytes.h"
#include "base/check.h"
#include "providers/shm/handles.h"

// Paths: open, accept, start, close, and the proof before an inbound path is reported down.

namespace fabric::shm {

namespace {

constexpr uint32_t kClosedPathsMax = 256;  ///< closed paths remembered per peer
/// Scans, a millisecond or more each, before a closing path abandons the pulls that are being
/// served.
constexpr uint32_t kAbandonScans = 50;

/// Allocates a path record with a new generation in its id; null if the table is full.
template <class Path>
Path* take(std::vector<std::unique_ptr<Path>>& paths, std::vector<uint32_t>& free,
           uint32_t& serial) {
  if (free.empty()) {
    if (paths.size() >> kSlotBits != 0) return nullptr;
    free.reserve(paths.size() + 1);  // so that freeing cannot fail
    paths.push_back(std::make_unique<Path>());
    free.push_back(static_cast<uint32_t>(paths.size() - 1));
  }
  const uint32_t slot = free.back();
  free.pop_back();
  *paths[slot] = Path{};
  paths[slot]->id = ++serial << kSlotBits | slot;
  paths[slot]->live = true;
  return paths[slot].get();
}

}  // namespace

Result<uint32_t> ShmRail::open_path(std::span<const std::byte> peer, uint32_t remote_rail,
                                    std::vector<std::byte>& hello) {
  if (remote_rail >= kRailsMax) return fail(Errc::kInvalidArgument, "remote_rail");
  auto to = network_.peer(peer);
  if (!to) return to.error();
  OutPath* const path = take(out_, out_free_, serial_);
  if (path == nullptr) return fail(Errc::kExhausted, "shm paths");
  path->to = *std::move(to);
  ++path->to->paths;
  hello = encode(PathHello{.from = network_.own_address(), .lane = lane_, .path = path->id});
  return path->id;
}

Result<uint32_t> ShmRail::accept_path(std::span<const std::byte> hello,
                                      std::vector<std::byte>& answer) {
  auto decoded = decode_hello(hello);
  if (!decoded) return decoded.error();
  if (decoded->lane >= kRailsMax) return fail(Errc::kBadFormat, "shm hello");
  auto from = network_.peer(decoded->from);
  if (!from) return from.error();
  const auto name = std::pair(decoded->lane, decoded->path);
  const auto& closed = (*from)->closed_paths;
  if (std::find(closed.begin(), closed.end(), name) != closed.end()) {
    network_.release_if_unused(**from);
    return fail(Errc::kClosed, "shm path");
  }
  ByteWriter writer;
  writer.u8(1);
  answer = writer.take();
  for (const auto& path : in_) {
    const bool same = path->live && path->from == *from && path->lane == decoded->lane &&
                      path->number == decoded->path;
    if (same) return path->id;
  }
  auto memory = make_memory(sizeof(Ring), PeerAccess::kReadWrite);
  if (!memory) return memory.error();
  auto path_epoch = network_.take_path_epoch();
  if (!path_epoch) return path_epoch.error();
  watched_.reserve(in_.size() + 1);
  InPath* const path = take(in_, in_free_, serial_);
  if (path == nullptr) {
    network_.free_path_epoch(path_epoch->first);
    return fail(Errc::kExhausted, "shm paths");
  }
  path->from = *std::move(from);
  ++path->from->paths;
  path->lane = decoded->lane;
  path->number = decoded->path;
  path->memory = *std::move(memory);
  path->ring = path->memory.mapping.as<Ring>();
  std::tie(path->epoch_index, path->epoch) = *path_epoch;
  network_.own_header().path_epochs[path->epoch_index].store(path->epoch,
                                                             std::memory_order_release);
  watched_.push_back(path);
  announce_ring(*path);
  return path->id;
}

Result<void> ShmRail::start_path(uint32_t path, std::span<const std::byte> answer) {
  ByteReader reader(answer);
  reader.require(reader.u8() == 1 && reader.remaining() == 0);
  if (!reader.ok()) return fail(Errc::kBadFormat, "shm answer");
  OutPath* const found = out_path(path);
  if (found == nullptr) return fail(Errc::kNotFound, "shm path");
  found->started = true;
  found->open = found->ring != nullptr && !found->closing;
  return {};
}

/// Sends the ring once it is known whether we can read the sender's memory. Until then its writes
/// are queued.
void ShmRail::announce_ring(InPath& path) {
  ShmPeer& from = *path.from;
  if (from.read_access == ShmPeer::ReadAccess::kUntried) network_.probe_read_access(from);
  const bool known = from.read_access == ShmPeer::ReadAccess::kGranted ||
                     from.read_access == ShmPeer::ReadAccess::kDenied;
  if (path.announced || path.closing || !known) return;
  // This side needs only the mapping.
  auto ring = std::make_shared<const UniqueFd>(std::move(path.memory.fd));
  path.announced = true;
  network_.share_arrivals(from);
  from.send(RingReady{.lane = path.lane,
                      .path = path.number,
                      .epoch_index = path.epoch_index,
                      .epoch = path.epoch,
                      .can_pull = from.read_access == ShmPeer::ReadAccess::kGranted},
            std::move(ring));
}

void ShmRail::announce_rings(ShmPeer& to) {
  for (const auto& path : in_) {
    if (path->live && path->from.get() == &to) announce_ring(*path);
  }
}

void ShmRail::ring_ready(ShmPeer& from, const RingReady& frame, UniqueFd ring) {
  OutPath* const path = out_path(frame.path);
  const bool awaited = path != nullptr && path->to.get() == &from && path->ring == nullptr;
  if (!awaited || frame.epoch_index >= SharedHeader::kPaths || path->closing) return;
  auto memory = map_foreign(ring.get(), sizeof(Ring), PeerAccess::kReadWrite);
  if (!memory) return break_path(*path, Errc::kRailLost);
  path->memory = *std::move(memory);
  path->ring = path->memory.as<Ring>();
  path->can_pull = frame.can_pull;
  path->guard.path_epoch = &from.their_header()->path_epochs[frame.epoch_index];
  path->guard.path_value = frame.epoch;
  path->open = path->started;
}

void ShmRail::close_path(uint32_t path, bool inbound) noexcept {
  if (!inbound) {
    if (OutPath* const found = out_path(path); found != nullptr) break_path(*found, Errc::kOk);
    return;
  }
  InPath* const found = in_path(path);
  if (found == nullptr || found->closing) return;
  found->closing = true;
  ++closing_in_;
  // No new section passes its guard after this; inbound_fenced() waits for the running ones.
  network_.own_header().path_epochs[found->epoch_index].store(0, std::memory_order_release);
}

/// Stops posting on the path. The next poll completes its queued writes.
void ShmRail::break_path(OutPath& path, Errc code) noexcept {
  if (path.closing) return;
  path.closing = true;
  path.open = false;
  path.code = code;
  ++closing_out_;
  withdraw_pulls(path);
}

/// The target does not serve withdrawn requests; those it has taken are not affected.
void ShmRail::withdraw_pulls(OutPath& path) noexcept {
  change_pull_states(path, PullRequest::kPublished, PullRequest::kWithdrawn);
}

void ShmRail::change_pull_states(OutPath& path, PullRequest::State from,
                                 PullRequest::State to) noexcept {
  for (uint64_t position = path.pulls_retired; position != path.pulls_posted; ++position) {
    uint64_t word = PullRequest::word_of(position, from);
    // Pairs with the exchanges in begin_pull() and finish_pulls().
    path.ring->pulls[position % Ring::kPulls].word.compare_exchange_strong(
        word, PullRequest::word_of(position, to), std::memory_order_acq_rel,
        std::memory_order_relaxed);
  }
}

/// After each scan: finds paths that the other side closed, and peers that are dead.
void ShmRail::check_paths() noexcept {
  scan_seen_ = network_.scans();
  for (const auto& path : out_) {
    if (!path->live) continue;
    if (path->to->check_dead()) {  // visible before it disconnects
      break_path(*path, Errc::kPeerLost);
    } else if (path->to->disconnected()) {
      break_path(*path, Errc::kRailLost);
    } else if (path->ring != nullptr && path->ring->retired.load(std::memory_order_acquire) !=
                                            0) {  // pairs with poll_closing_in()
      break_path(*path, Errc::kRailLost);
      // Also a request that was published after the target had closed its end.
      withdraw_pulls(*path);
    }
    // Otherwise a target that is stopped while it serves a pull would block the write's completion.
    if (path->closing && path->pulls_posted != path->pulls_retired &&
        ++path->closing_scans == kAbandonScans) {
      change_pull_states(*path, PullRequest::kTaken, PullRequest::kAbandoned);
    }
  }
  for (const auto& path : in_) {
    if (!path->live) continue;
    if (path->from->dead()) path->lost = true;
    if (path->lost) close_path(path->id, true);
    if (!path->announced) announce_ring(*path);
  }
}

uint32_t ShmRail::poll_closing_out(std::span<RailEvent> out) noexcept {
  uint32_t n = 0;
  for (const auto& path : out_) {
    if (n == out.size()) break;
    if (!path->live || !path->closing) continue;
    if (path->pulls_posted != path->pulls_retired) retire_pulls(*path);
    if (!path->idle(reported_)) continue;
    const bool dead = path->to->dead();
    out[n++] = {.kind = RailEvent::Kind::kPathDown,
                .code = dead ? Errc::kPeerLost : path->code,
                .path = path->id};
    --closing_out_;
    out_free_.push_back(slot_of(path->id));
    const std::shared_ptr<ShmPeer> to = std::move(path->to);
    *path = OutPath{};
    --to->paths;
    network_.release_if_unused(*to);
  }
  return n;
}

/// Whether it is proved that the sender cannot store through this path any more.
bool ShmRail::inbound_fenced(InPath& path) noexcept {
  if (path.proved) return true;
  ShmPeer& from = *path.from;
  if (!path.announced || from.writer_slots() == nullptr) return path.proved = true;
  if (!path.proof) {
    if (!heavy_barrier()) return false;
    path.proof.emplace(*from.writer_slots());
  }
  if (path.proof->proved(*from.writer_slots(), fresh_scan_)) {
    ++proved_by_[static_cast<size_t>(path.proof->by())];
  } else if (!fresh_scan_ || !from.exited()) {
    return false;
  }
  return path.proved = true;
}

uint32_t ShmRail::poll_closing_in(std::span<RailEvent> out) noexcept {
  uint32_t n = 0;
  for (const auto& path : in_) {
    if (n == out.size()) break;
    if (!path->live || !path->closing || !inbound_fenced(*path)) continue;
    std::erase(watched_, path.get());
    // Takes what was committed: its bytes have landed.
    n += take_imms(*path, out.subspan(n));
    if (n == out.size()) break;
    for (uint64_t at = path->pulls_taken; at != path->pulls_taken + Ring::kPulls; ++at) {
      PullRequest& request = path->ring->pulls[at % Ring::kPulls];
      uint64_t word = request.word.load(std::memory_order_acquire);
      if (word >> PullRequest::kStateBits != at || word == 0) break;
      if (word == PullRequest::word_of(at, PullRequest::kWithdrawn)) continue;
      // Pairs with retire_pulls(). Fails if the sender withdraws it now, which is as good.
      request.word.compare_exchange_strong(word, PullRequest::word_of(at, PullRequest::kClosed),
                                           std::memory_order_acq_rel, std::memory_order_relaxed);
    }
    path->ring->retired.store(1, std::memory_order_release);  // pairs with check_paths()
    path->from->wake_if_asleep();
    out[n++] = {.kind = RailEvent::Kind::kPathDown,
                .code = path->from->dead() ? Errc::kPeerLost : Errc::kOk,
                .inbound = 1,
                .path = path->id,
                .value = path->imms_delivered};
    --closing_in_;
    network_.free_path_epoch(path->epoch_index);
    in_free_.push_back(slot_of(path->id));
    const std::shared_ptr<ShmPeer> from = std::move(path->from);
    if (from->closed_paths.size() == kClosedPathsMax) from->closed_paths.pop_front();
    from->closed_paths.emplace_back(path->lane, path->number);
    *path = InPath{};
    --from->paths;
    network_.release_if_unused(*from);
  }
  return n;
}

}  // namespace fabric::shm

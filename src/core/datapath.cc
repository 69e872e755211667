#include <algorithm>
#include <utility>

#include "core/inflight.h"

// Scheduling, posting and polling: the hot part of Transfers that the fast and the slow path share.
// No allocation in the steady state.

namespace fabric::core {

namespace {

constexpr uint32_t kPollsPerTurn = 8;  // bounds a turn under a flood of events
constexpr uint32_t kPostsPerTurn = 8;
constexpr uint32_t kUrgent = static_cast<uint32_t>(Priority::kUrgent);
constexpr uint32_t kNormal = static_cast<uint32_t>(Priority::kNormal);
constexpr uint32_t kBulk = static_cast<uint32_t>(Priority::kBulk);

}  // namespace

uint32_t Transfers::poll(NetworkSlot& network) {
  uint32_t done = 0;
  const std::span<WireEvent> events = polled_;
  for (RailSlot& rail : network.rails) {
    for (uint32_t round = 0; round < kPollsPerTurn; ++round) {
      const uint32_t n = rail.rail->poll(events);
      for (uint32_t i = 0; i < n;) {
        const WireEvent& event = events[i];
        // Frequent kinds first.
        if (event.kind == WireEvent::Kind::kImm) {
          if (event.value == 0) {
            rail.arrived_imms.push_back(event.imm);
          } else {
            take_burst(rail, event.imm, static_cast<uint32_t>(event.value) + 1);
          }
        } else if (event.kind != WireEvent::Kind::kWritten) {
          on_event(network, rail, event);
        } else if (PostBatch::is_cookie(event.cookie)) {
          i += retire_batched(events.subspan(i, n - i));
          continue;
        } else {
          for (uint64_t more = 0; more <= event.value; ++more) {
            retire_write(event.cookie + static_cast<uint32_t>(more), {event.code, event.remote});
          }
        }
        ++i;
      }
      if (!rail.arrived_imms.empty()) take_counts(rail);
      done += n;
      if (n < events.size()) break;
      if (round + 1 == kPollsPerTurn) polls_exhausted_ = false;
    }
    // A copy in progress continues with the next poll: the worker must not sleep.
    if (rail.caps.cpu_copy && rail.rail->busy()) ++done;
  }
  return done;
}

/// Networks that copy by CPU have completed most of what was just posted: no need to wait a turn.
uint32_t Transfers::poll_again(NetworkSlot& network) {
  posted_ = false;
  bool posted_this_turn = false;
  for (RailSlot& rail : network.rails)
    posted_this_turn |= std::exchange(rail.posted_this_turn, false);
  return posted_this_turn && network.rails[0].caps.cpu_copy ? poll(network) : 0;
}

/// Counts the immediates of one poll together: the table merges runs of equal keys.
void Transfers::take_counts(RailSlot& rail) {
  const auto taken = static_cast<uint32_t>(rail.arrived_imms.size());
  core_.stale_imms += core_.counters.table.arrive(rail.arrived_imms);
  rail.rx.ops += taken;
  rail.rx.imms += taken;
  rail.arrived_imms.clear();
}

void Transfers::take_burst(RailSlot& rail, uint32_t imm, uint32_t n) {
  core_.stale_imms += core_.counters.table.arrive(imm, n);
  rail.rx.ops += n;
  rail.rx.imms += n;
}

void Transfers::on_event(NetworkSlot& network, RailSlot& rail, const WireEvent& event) {
  switch (event.kind) {
    case WireEvent::Kind::kWritten:
    case WireEvent::Kind::kImm:
      return;  // handled by poll()
    case WireEvent::Kind::kPathDown:
      // Immediates that arrived on the path count before its end is handled.
      if (!rail.arrived_imms.empty()) take_counts(rail);
      if (event.inbound) {
        core_.peers.on_inbound_down(rail, event);
      } else {
        on_path_down(rail, event);
      }
      return;
    case WireEvent::Kind::kRailDown:
    case WireEvent::Kind::kRailUp:
      on_rail_state(network, rail, event);
      return;
    case WireEvent::Kind::kFenced:
      core_.regions.on_fenced(event.cookie);
      return;
  }
}

uint32_t Transfers::post(NetworkSlot& network) {
  uint32_t done = 0;
  const std::span<WriteOp> batch = posting_;
  for (RailSlot& rail : network.rails) {
    if (!rail.up || (rail.listed == 0 && rail.refused.empty())) continue;
    for (uint32_t round = 0; round < kPostsPerTurn; ++round) {
      if (!rail.refused.empty()) {
        // Writes to a peer whose lease has expired stay here, and do not block the others.
        const auto held = std::stable_partition(
            rail.refused.begin(), rail.refused.end(),
            [&](const WriteOp& wire)
                FABRIC_REQUIRES(state_lock) { return may_post(inflight_[wire.cookie]); });
        const auto offered = static_cast<size_t>(held - rail.refused.begin());
        const uint32_t accepted = post(rail, std::span(rail.refused).first(offered));
        rail.refused.erase(rail.refused.begin(), rail.refused.begin() + accepted);
        done += accepted;
        refused_ = refused_ || !rail.refused.empty();
        if (accepted < offered) break;
      }
      const uint32_t n = make_writes(rail, batch);
      if (n == 0) break;
      const uint32_t accepted = post(rail, batch.first(n));
      rail.posted_this_turn = posted_ = true;
      done += accepted;
      keep_refused(rail, batch.subspan(accepted, n - accepted));
      if (accepted < n) break;
    }
  }
  return done;
}

bool Transfers::may_post(const InflightWrite& write) {
  Peer& peer = *core_.peers.at(write.peer);
  if (write.op == kProbe || !peer.lease_expired(core_.now_ns)) return true;
  core_.peers.renew_lease(peer);
  return false;
}

/// Offers work requests to the rail. Those that it accepts get their position among the immediates
/// of their path: the target counts only what was really sent. Returns how many it accepted.
uint32_t Transfers::post(RailSlot& rail, std::span<WriteOp> wrs) {
  const uint32_t accepted = rail.rail->post(wrs);
  for (uint32_t i = 0; i < accepted;) {
    const WriteOp& wire = wrs[i];
    if (PostBatch::is_cookie(wire.cookie)) {
      PostBatch& post_batch = *post_batches_.at(PostBatch::index_of(wire.cookie));
      const uint32_t n_posted = std::min(post_batch.count, accepted - i);
      on_posted(post_batch, n_posted);
      i += n_posted;
      continue;
    }
    InflightWrite& write = inflight_[wire.cookie];
    Path& path = *paths_[write.path];
    write.imms_before = path.imms_posted;
    path.imms_posted += wire.has_imm;
    ++i;
  }
  return accepted;
}

void Transfers::activate(Path& path, uint32_t priority) {
  if (path.listed[priority] || path.queue[priority].empty()) return;
  if (path.state != Path::State::kReady || path.needs_probe) return;
  RailSlot& rail = core_.networks[path.network].rails[path.rail];
  if (!room_for(rail, path)) return;
  path.listed[priority] = true;
  ++rail.listed;
  ++listed_;
  path.next_active[priority] = kNone;
  const uint32_t last = rail.last_active[priority];
  (last == kNone ? rail.first_active[priority] : paths_[last]->next_active[priority]) = path.index;
  rail.last_active[priority] = path.index;
}

/// Removes the first path of the list.
void Transfers::unlist(RailSlot& rail, uint32_t priority) {
  Path& path = *paths_[rail.first_active[priority]];
  rail.first_active[priority] = path.next_active[priority];
  if (rail.first_active[priority] == kNone) rail.last_active[priority] = kNone;
  path.next_active[priority] = kNone;
  path.listed[priority] = false;
  --rail.listed;
  --listed_;
}

/// Removes a path from anywhere in the list. Cold.
void Transfers::unlist_path(Path& path, uint32_t priority) {
  RailSlot& rail = core_.networks[path.network].rails[path.rail];
  uint32_t before = kNone;
  for (uint32_t i = rail.first_active[priority]; i != kNone; i = paths_[i]->next_active[priority]) {
    if (i == path.index) break;
    before = i;
  }
  const uint32_t next = path.next_active[priority];
  (before == kNone ? rail.first_active[priority] : paths_[before]->next_active[priority]) = next;
  if (rail.last_active[priority] == path.index) rail.last_active[priority] = before;
  path.next_active[priority] = kNone;
  path.listed[priority] = false;
  --rail.listed;
  --listed_;
}

bool Transfers::room_for_bulk(const RailSlot& rail, const Path& path) noexcept {
  if (rail.bulk_bytes == 0) return true;
  const PendingFragment& fragment = pending_.at(path.queue[kBulk].head);
  const Op& op = core_.ops.at(fragment.op);
  const uint64_t bytes = op.kind == OpKind::kWrite ? std::min(fragment.size_bytes, op.slice_bytes)
                                                   : part_of(op, fragment.part).size_bytes;
  return rail.bulk_bytes + bytes <= core_.config.bulk_slice_bytes;
}

/// The scheduler: strict priority (urgent, normal, bulk), round robin between the paths of each.
bool Transfers::next_path(RailSlot& rail, uint32_t& priority, Path*& path) {
  for (const uint32_t p : {kUrgent, kNormal, kBulk}) {
    while (rail.first_active[p] != kNone) {
      Path& candidate = *paths_[rail.first_active[p]];
      const bool ready = candidate.state == Path::State::kReady && !candidate.needs_probe &&
                         !candidate.queue[p].empty() && room_for(rail, candidate);
      if (!ready) {
        unlist(rail, p);  // activate() puts it back when that changes
        continue;
      }
      if (Peer& peer = *core_.peers.at(candidate.peer); peer.lease_expired(core_.now_ns)) {
        core_.peers.renew_lease(peer);
        unlist(rail, p);  // peer_resumed() puts it back
        continue;
      }
      if (p == kBulk && !room_for_bulk(rail, candidate)) break;
      priority = p;
      path = &candidate;
      return true;
    }
  }
  return false;
}

uint32_t Transfers::make_writes(RailSlot& rail, std::span<WriteOp> out) {
  uint32_t n = 0;
  uint32_t priority = 0;
  Path* path = nullptr;
  while (rail.listed != 0 && n < out.size() && rail.inflight < rail.caps.queue_depth &&
         next_path(rail, priority, path)) {
    const PendingFragment& fragment = pending_.at(path->queue[priority].head);
    const bool alone = rail.listed == 1 && priority != kBulk;  // no other path waits for its turn
    const OpKind kind = core_.ops.at(fragment.op).kind;
    if (alone && (kind == OpKind::kPaged || kind == OpKind::kListed)) {
      n += make_part_batch(rail, *path, priority, out.subspan(n));
    } else {
      const uint32_t cookie = make_write(rail, *path, priority);
      out[n++] = inflight_[cookie].wire;
    }
    unlist(rail, priority);  // and back to the end of the list: round robin
    activate(*path, priority);
  }
  return n;
}

uint32_t Transfers::make_write(RailSlot& rail, Path& path, uint32_t priority) {
  const uint32_t index = path.queue[priority].head;
  PendingFragment& fragment = pending_.at(index);
  Op& op = core_.ops.at(fragment.op);
  Peer& peer = *core_.peers.at(path.peer);
  PartSource source = op.kind == OpKind::kPaged ? page_of(op, fragment.part, fragment.pages)
                                                : part_of(op, fragment.part);
  bool last = true;
  if (op.kind == OpKind::kWrite) {
    source.source_offset += fragment.offset;
    source.target_offset += fragment.offset;
    source.size_bytes = std::min(fragment.size_bytes, op.slice_bytes);
    last = source.size_bytes == fragment.size_bytes;
  }
  if (!last) source.counter_key = {};  // only the last slice of a shard counts

  const uint32_t cookie = take_inflight();
  InflightWrite& write = inflight_[cookie];
  write.wire = {};
  write.wire.cookie = cookie;
  write.wire.priority = static_cast<uint8_t>(op.priority);
  write.part = fragment.part;
  write.offset = fragment.offset;
  write.shard = fragment.shard;
  fill_wire(write.wire, op, path, source);
  open_inflight(cookie, op, peer, path, rail,
                op.source ? core_.regions.at(op.source.slot) : nullptr);
  advance_pending(op, index, source.size_bytes);
  return cookie;
}

/// Makes a post batch of as many pages or listed writes of one pending fragment as there is room
/// for, at least one.
uint32_t Transfers::make_part_batch(RailSlot& rail, Path& path, uint32_t priority,
                                    std::span<WriteOp> out) {
  const uint32_t index = path.queue[priority].head;
  PendingFragment& fragment = pending_.at(index);
  Op& op = core_.ops.at(fragment.op);
  Peer& peer = *core_.peers.at(path.peer);
  LocalRegion* const region = core_.regions.at(op.source.slot);
  WriteOp wire{};
  wire.priority = static_cast<uint8_t>(op.priority);
  fill_wire(wire, op, path,
            {.target = op.target,
             .source_offset = op.source_offset,
             .target_offset = op.target_offset,
             .size_bytes = op.size_bytes,
             .counter_key = op.counter_key});
  const uint32_t n =
      std::min({static_cast<uint32_t>(out.size()), fragment.count, room_on(rail, path)});
  PostBatch& post_batch = new_post_batch(path, peer, rail, region, op);
  post_batch.op = op.self;
  post_batch.first_part = fragment.part;
  post_batch.stride = fragment.stride;
  post_batch.count = n;
  post_batch.inflight = PostBatch::low_bits(n);
  post_batch.with_imm = wire.has_imm != 0 ? post_batch.inflight : 0;
  wire.cookie = post_batch.cookie(0);
  if (op.kind == OpKind::kPaged) {
    post_batch.bytes = n * op.size_bytes;
    fill_pages(out.first(n), wire, op, fragment);
  } else {
    post_batch.bytes = fill_listed(out.first(n), wire, op, fragment);
  }
  path.inflight += n;
  rail.inflight += n;
  region->inflight += n;
  op.inflight += n;
  fragment.part += n * fragment.stride;
  fragment.count -= n;
  if (fragment.count == 0) {
    pending_.unlink(index);
    unlink_from_op(op, index);
    pending_.give_back(index);
  }
  return n;
}

/// Makes work requests for the next out.size() parts of a paged write. `wire` is what they have in
/// common: the cookie of the first one, and where page 0 would be.
[[gnu::always_inline]] inline void Transfers::fill_pages(std::span<WriteOp> out,
                                                         const WriteOp& wire, const Op& op,
                                                         PendingFragment& fragment) noexcept {
  const PageSide& from = op.source_pages;
  const PageSide& to = op.target_pages;
  const auto n = static_cast<uint32_t>(out.size());
  if (from.indices != nullptr && to.indices != nullptr && op.inner_count == 1) [[likely]] {
    const uint32_t* source = from.indices + fragment.part;
    const uint32_t* target = to.indices + fragment.part;
    for (uint32_t i = 0; i < n; ++i, source += fragment.stride, target += fragment.stride) {
      WriteOp& one = out[i];
      one = wire;
      one.cookie = wire.cookie + i;
      one.source = wire.source + *source * from.stride;
      one.target = wire.target + *target * to.stride;
    }
    return;
  }
  uint32_t page = fragment.part / op.inner_count;
  uint32_t inner = fragment.part % op.inner_count;
  const uint32_t page_step = fragment.stride / op.inner_count;
  const uint32_t inner_step = fragment.stride % op.inner_count;
  PageCursor cursor = fragment.pages;
  for (uint32_t i = 0; i < n; ++i) {
    WriteOp& one = out[i];
    one = wire;
    one.cookie = wire.cookie + i;
    one.source = wire.source + from.offset_of(page, inner, cursor.source_run);
    one.target = wire.target + to.offset_of(page, inner, cursor.target_run);
    page += page_step;
    inner += inner_step;
    if (inner >= op.inner_count) {
      inner -= op.inner_count;
      ++page;
    }
  }
  fragment.pages = cursor;
}

/// The same for listed writes. Returns the bytes of all of them.
[[gnu::always_inline]] inline uint64_t Transfers::fill_listed(
    std::span<WriteOp> out, const WriteOp& wire, const Op& op,
    const PendingFragment& fragment) noexcept {
  const ListedWrite* from = op.listed + fragment.part;
  uint64_t bytes = 0;
  uint32_t cookie = wire.cookie;
  for (WriteOp& one : out) {
    one = wire;
    one.cookie = cookie++;
    one.source = wire.source + from->source_offset;
    one.target = wire.target + from->target_offset;
    one.size_bytes = from->size_bytes;
    bytes += from->size_bytes;
    from += fragment.stride;
  }
  return bytes;
}

void Transfers::fill_wire(WriteOp& wire, const Op& op, const Path& path, const PartSource& source) {
  wire.path = path.id;
  wire.size_bytes = source.size_bytes;
  if (source.counter_key) {
    wire.has_imm = 1;
    wire.imm = make_imm(source.counter_key, op.kind == OpKind::kWrite ? op.shards : 1);
  }
  if (op.kind == OpKind::kSignal) return;
  const LocalRegion& region = *core_.regions.at(op.source.slot);
  const RemoteRegionSlot& remote = *core_.regions.remote_at(source.target.slot);
  wire.source = reinterpret_cast<uint64_t>(region.memory.address) + source.source_offset;
  wire.target = source.target_offset;
  wire.local_key = region.registration.local_keys[path.network][path.rail];
  const auto& theirs = remote.rkeys[path.network];
  wire.remote_key = theirs[path.remote_rail % theirs.size()][path.rail];
}

void Transfers::advance_pending(Op& op, uint32_t index, uint64_t bytes) {
  PendingFragment& fragment = pending_.at(index);
  if (op.kind == OpKind::kWrite) {
    fragment.offset += bytes;
    fragment.size_bytes -= bytes;
    if (fragment.size_bytes > 0) return;
  } else if (--fragment.count > 0) {
    fragment.part += fragment.stride;
    return;
  }
  pending_.unlink(index);
  unlink_from_op(op, index);
  pending_.give_back(index);
}

}  // namespace fabric::core

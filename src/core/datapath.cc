#include <algorithm>
#include <utility>

#include "core/inflight.h"

// Scheduling, posting and polling: the hot part of Transfers that the fast and the slow path share.
// No allocation in the steady state. State lock held throughout; rails are posted to and polled
// only by the worker.

namespace fabric::core {

namespace {

constexpr uint32_t kPollsPerTurn = 8;  // bounds a turn under a flood of events
constexpr uint32_t kPostsPerTurn = 8;
constexpr uint32_t kUrgent = static_cast<uint32_t>(Priority::kUrgent);
constexpr uint32_t kNormal = static_cast<uint32_t>(Priority::kNormal);
constexpr uint32_t kBulk = static_cast<uint32_t>(Priority::kBulk);

/// Work requests for whole pages, of two arrays of indices.
[[gnu::always_inline]] inline void fill_from_indices(std::span<WriteOp> out, const WriteOp& wr,
                                                     const Op& op,
                                                     const PendingFragment& fragment) noexcept {
  const uint32_t* source = op.source_pages.indices + fragment.part;
  const uint32_t* target = op.target_pages.indices + fragment.part;
  const auto n = static_cast<uint32_t>(out.size());
  for (uint32_t i = 0; i < n; ++i, source += fragment.stride, target += fragment.stride) {
    WriteOp& one = out[i];
    one = wr;
    one.cookie = wr.cookie + i;
    one.source = wr.source + *source * op.source_pages.stride;
    one.target = wr.target + *target * op.target_pages.stride;
  }
}

/// The same of runs: as long as both sides stay in their run, the addresses are equally spaced.
void fill_from_runs(std::span<WriteOp> out, const WriteOp& wr, const Op& op,
                    PendingFragment& fragment) noexcept {
  const PageSide& from = op.source_pages;
  const PageSide& to = op.target_pages;
  PageCursor& cursor = fragment.pages;
  const uint32_t step = fragment.stride;
  const uint64_t source_step = step * from.stride, target_step = step * to.stride;
  uint32_t page = fragment.part, cookie = wr.cookie;
  for (WriteOp *one = out.data(), *const end = one + out.size(); one != end;) {
    uint64_t source = wr.source + from.offset_of(page, 0, cursor.run_at_source);
    uint64_t target = wr.target + to.offset_of(page, 0, cursor.run_at_target);
    const uint32_t run_end = std::min(from.runs[cursor.run_at_source + 1].begin,
                                      to.runs[cursor.run_at_target + 1].begin);
    const uint32_t in_runs = step == 1 ? run_end - page : (run_end - page - 1) / step + 1;
    const auto n = static_cast<uint32_t>(std::min<ptrdiff_t>(in_runs, end - one));
    page += n * step;
    for (const WriteOp* const last = one + n; one != last; ++one) {
      *one = wr;
      one->cookie = cookie++;
      one->source = source;
      one->target = target;
      source += source_step;
      target += target_step;
    }
  }
}

/// The same of elements of pages, or of indices on one side and runs on the other.
void fill_one_by_one(std::span<WriteOp> out, const WriteOp& wr, const Op& op,
                     PendingFragment& fragment) noexcept {
  uint32_t page = fragment.part / op.inner_count, inner = fragment.part % op.inner_count;
  const uint32_t page_step = fragment.stride / op.inner_count;
  const uint32_t inner_step = fragment.stride % op.inner_count;
  uint32_t cookie = wr.cookie;
  for (WriteOp& one : out) {
    one = wr;
    one.cookie = cookie++;
    one.source += op.source_pages.offset_of(page, inner, fragment.pages.run_at_source);
    one.target += op.target_pages.offset_of(page, inner, fragment.pages.run_at_target);
    page += page_step;
    inner += inner_step;
    if (inner >= op.inner_count) {
      inner -= op.inner_count;
      ++page;
    }
  }
}

}  // namespace

uint32_t Transfers::poll(NetworkSlot& network) {
  uint32_t done = 0;
  const std::span<RailEvent> events = polled_;
  for (RailSlot& rail : network.rails) {
    for (uint32_t round = 0; round < kPollsPerTurn; ++round) {
      const uint32_t n = rail.rail->poll(events);
      for (uint32_t i = 0; i < n;) {
        const RailEvent& event = events[i];
        // Frequent kinds first.
        if (event.kind == RailEvent::Kind::kImm) {
          if (event.value == 0) {
            rail.arrived_imms.push_back(event.imm);
          } else {
            count_repeated_imm(rail, event.imm, static_cast<uint32_t>(event.value) + 1);
          }
        } else if (event.kind != RailEvent::Kind::kCompletion) {
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
      if (!rail.arrived_imms.empty()) count_arrived_imms(rail);
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

/// Counts the immediates of one poll together: the table merges runs of equal counter keys.
void Transfers::count_arrived_imms(RailSlot& rail) {
  const auto taken = static_cast<uint32_t>(rail.arrived_imms.size());
  core_.stale_imms += core_.counters.table.arrive(rail.arrived_imms);
  rail.rx.ops += taken;
  rail.rx.imms += taken;
  rail.arrived_imms.clear();
}

void Transfers::count_repeated_imm(RailSlot& rail, uint32_t imm, uint32_t n) {
  core_.stale_imms += core_.counters.table.arrive(imm, n);
  rail.rx.ops += n;
  rail.rx.imms += n;
}

void Transfers::on_event(NetworkSlot& network, RailSlot& rail, const RailEvent& event) {
  switch (event.kind) {
    case RailEvent::Kind::kCompletion:
    case RailEvent::Kind::kImm:
      return;  // handled by poll()
    case RailEvent::Kind::kPathDown:
      // Immediates that arrived on the path count before its end is handled.
      if (!rail.arrived_imms.empty()) count_arrived_imms(rail);
      if (event.inbound) {
        core_.peers.on_inbound_down(rail, event);
      } else {
        on_path_down(rail, event);
      }
      return;
    case RailEvent::Kind::kRailDown:
    case RailEvent::Kind::kRailUp:
      on_rail_state(network, rail, event);
      return;
    case RailEvent::Kind::kFenced:
      core_.regions.on_fenced(event.cookie);
      return;
  }
}

uint32_t Transfers::post_all() {
  uint32_t done = 0;
  has_backlog_ = false;
  for (NetworkSlot& network : core_.networks) done += post(network);
  return done;
}

uint32_t Transfers::post(NetworkSlot& network) {
  uint32_t done = 0;
  const std::span<WriteOp> batch = posting_;
  for (RailSlot& rail : network.rails) {
    if (!rail.up || (rail.active_paths == 0 && rail.backlog.empty())) continue;
    for (uint32_t round = 0; round < kPostsPerTurn; ++round) {
      if (!rail.backlog.empty()) {
        // Writes to a peer whose lease has expired stay here, and do not block the others.
        const auto held = std::stable_partition(rail.backlog.begin(), rail.backlog.end(),
                                                [&](const WriteOp& wr) FABRIC_REQUIRES(state_lock) {
                                                  return may_post(inflight_[wr.cookie]);
                                                });
        const auto offered = static_cast<size_t>(held - rail.backlog.begin());
        const uint32_t accepted = post(rail, std::span(rail.backlog).first(offered));
        rail.backlog.erase(rail.backlog.begin(), rail.backlog.begin() + accepted);
        done += accepted;
        has_backlog_ = has_backlog_ || !rail.backlog.empty();
        if (accepted < offered) break;
      }
      const uint32_t n = make_writes(rail, batch);
      if (n == 0) break;
      const uint32_t accepted = post(rail, batch.first(n));
      rail.posted_this_turn = posted_ = true;
      done += accepted;
      add_to_backlog(rail, batch.subspan(accepted, n - accepted));
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
    const WriteOp& wr = wrs[i];
    if (PostBatch::is_cookie(wr.cookie)) {
      PostBatch& post_batch = *post_batches_.at(PostBatch::index_of(wr.cookie));
      const uint32_t n_posted = std::min(post_batch.count, accepted - i);
      on_posted(post_batch, n_posted);
      i += n_posted;
      continue;
    }
    InflightWrite& write = inflight_[wr.cookie];
    Path& path = *paths_[write.path];
    write.imms_before = path.imms_posted;
    path.imms_posted += wr.has_imm;
    ++i;
  }
  return accepted;
}

void Transfers::activate(Path& path, uint32_t priority) {
  if (path.active[priority] || path.queue[priority].empty()) return;
  if (path.state != Path::State::kReady || path.needs_probe) return;
  RailSlot& rail = core_.networks[path.network].rails[path.rail];
  if (!room_for(rail, path)) return;
  path.active[priority] = true;
  ++rail.active_paths;
  ++active_total_;
  path.next_active[priority] = kNone;
  const uint32_t last = rail.last_active[priority];
  (last == kNone ? rail.first_active[priority] : paths_[last]->next_active[priority]) = path.index;
  rail.last_active[priority] = path.index;
}

/// Removes the first path of the list.
void Transfers::deactivate_first(RailSlot& rail, uint32_t priority) {
  Path& path = *paths_[rail.first_active[priority]];
  rail.first_active[priority] = path.next_active[priority];
  if (rail.first_active[priority] == kNone) rail.last_active[priority] = kNone;
  path.next_active[priority] = kNone;
  path.active[priority] = false;
  --rail.active_paths;
  --active_total_;
}

/// Removes a path from anywhere in the list. Cold.
void Transfers::deactivate(Path& path, uint32_t priority) {
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
  path.active[priority] = false;
  --rail.active_paths;
  --active_total_;
}

bool Transfers::room_for_bulk(const RailSlot& rail, const Path& path) noexcept {
  if (rail.bulk_bytes == 0) return true;
  const PendingFragment& fragment = pending_.at(path.queue[kBulk].head);
  Op& op = core_.ops.at(fragment.op);
  const SliceProgress* const sliced = slices_of(op, fragment.cut);
  const uint64_t bytes = sliced != nullptr ? std::min(fragment.size_bytes, sliced->slice_bytes)
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
        deactivate_first(rail, p);  // activate() puts it back when that changes
        continue;
      }
      if (Peer& peer = *core_.peers.at(candidate.peer); peer.lease_expired(core_.now_ns)) {
        core_.peers.renew_lease(peer);
        deactivate_first(rail, p);  // lease_renewed() puts it back
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
  while (rail.active_paths != 0 && n < out.size() && rail.inflight < rail.caps.queue_depth &&
         next_path(rail, priority, path)) {
    const PendingFragment& fragment = pending_.at(path->queue[priority].head);
    const bool alone =
        rail.active_paths == 1 && priority != kBulk;  // no other path waits for its turn
    const OpKind kind = core_.ops.at(fragment.op).kind;
    if (alone && (kind == OpKind::kPaged || kind == OpKind::kListed)) {
      n += make_part_batch(rail, *path, priority, out.subspan(n));
    } else {
      const uint32_t cookie = make_write(rail, *path, priority);
      out[n++] = inflight_[cookie].wr;
    }
    deactivate_first(rail, priority);  // and back to the end of the list: round robin
    activate(*path, priority);
  }
  return n;
}

uint32_t Transfers::make_write(RailSlot& rail, Path& path, uint32_t priority) {
  const uint32_t index = path.queue[priority].head;
  PendingFragment& fragment = pending_.at(index);
  Op& op = core_.ops.at(fragment.op);
  Peer& peer = *core_.peers.at(path.peer);
  PartSpec source = op.kind == OpKind::kPaged ? page_of(op, fragment.part, fragment.pages)
                                              : part_of(op, fragment.part);
  bool last = true;
  const SliceProgress* const sliced = slices_of(op, fragment.cut);
  if (sliced != nullptr) {
    source.source_offset += fragment.offset;
    source.target_offset += fragment.offset;
    source.size_bytes = std::min(fragment.size_bytes, sliced->slice_bytes);
    last = source.size_bytes == fragment.size_bytes;
  }
  if (!last) source.counter_key = {};  // only the last slice of a shard counts

  const uint32_t cookie = take_inflight();
  InflightWrite& write = inflight_[cookie];
  write.wr = {};
  write.wr.cookie = cookie;
  write.wr.priority = static_cast<uint8_t>(op.priority);
  write.part = fragment.part;
  write.offset = fragment.offset;
  write.shard = fragment.shard;
  write.cut = fragment.cut;
  fill_wr(write.wr, op, path, source, sliced != nullptr ? sliced->shards : 1);
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
  WriteOp wr{};
  wr.priority = static_cast<uint8_t>(op.priority);
  fill_wr(wr, op, path,
          {.target = op.target,
           .source_offset = op.source_offset,
           .target_offset = op.target_offset,
           .size_bytes = op.size_bytes,
           .counter_key = op.counter_key},
          1);
  const uint32_t n =
      std::min({static_cast<uint32_t>(out.size()), fragment.count, room_on(rail, path)});
  PostBatch& post_batch = new_post_batch(path, peer, rail, region, op);
  post_batch.op = op.slot;
  post_batch.first_part = fragment.part;
  post_batch.stride = fragment.stride;
  post_batch.count = n;
  post_batch.inflight = PostBatch::low_bits(n);
  post_batch.with_imm = wr.has_imm != 0 ? post_batch.inflight : 0;
  wr.cookie = post_batch.cookie(0);
  if (op.kind == OpKind::kPaged) {
    post_batch.bytes = n * op.size_bytes;
    fill_pages(out.first(n), wr, op, fragment);
  } else {
    post_batch.bytes = fill_listed(out.first(n), wr, op, fragment);
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

/// Makes work requests for the next out.size() parts of a paged write. `wr` is what they have in
/// common: the cookie of the first one, and where page 0 would be.
[[gnu::always_inline]] inline void Transfers::fill_pages(std::span<WriteOp> out, const WriteOp& wr,
                                                         const Op& op,
                                                         PendingFragment& fragment) noexcept {
  const bool source_runs = op.source_pages.indices == nullptr;
  const bool target_runs = op.target_pages.indices == nullptr;
  if (source_runs != target_runs || op.inner_count != 1) {
    fill_one_by_one(out, wr, op, fragment);
  } else if (source_runs) {
    fill_from_runs(out, wr, op, fragment);
  } else {
    fill_from_indices(out, wr, op, fragment);
  }
}

/// The same for listed writes. Returns the bytes of all of them.
[[gnu::always_inline]] inline uint64_t Transfers::fill_listed(
    std::span<WriteOp> out, const WriteOp& wr, const Op& op,
    const PendingFragment& fragment) noexcept {
  const ListedWrite* from = op.listed + fragment.part;
  const uint32_t stride = fragment.stride;
  uint64_t bytes = 0;
  uint32_t cookie = wr.cookie;
  for (WriteOp& one : out) {
    one = wr;
    one.cookie = cookie++;
    one.source = wr.source + from->source_offset;
    one.target = wr.target + from->target_offset;
    one.size_bytes = from->size_bytes;
    bytes += from->size_bytes;
    from += stride;
  }
  return bytes;
}

void Transfers::fill_wr(WriteOp& wr, const Op& op, const Path& path, const PartSpec& source,
                        uint32_t shards) {
  wr.path = path.id;
  wr.size_bytes = source.size_bytes;
  if (source.counter_key) {
    wr.has_imm = 1;
    wr.imm = make_imm(source.counter_key, shards);
  }
  if (op.kind == OpKind::kSignal) return;
  const LocalRegion& region = *core_.regions.at(op.source.slot);
  const RemoteRegionSlot& remote = *core_.regions.remote_at(source.target.slot);
  wr.source = reinterpret_cast<uint64_t>(region.memory.address) + source.source_offset;
  wr.target = source.target_offset;
  wr.lkey = region.registration.lkeys[path.network][path.rail];
  const auto& theirs = remote.rkeys[path.network];
  wr.rkey = theirs[path.remote_rail % theirs.size()][path.rail];
}

void Transfers::advance_pending(Op& op, uint32_t index, uint64_t bytes) {
  PendingFragment& fragment = pending_.at(index);
  if (slices_of(op, fragment.cut) != nullptr) {
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

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"
#include "core/inflight.h"

// The fast path, for writes and for targets of a scatter. A part is eligible if
// - it is one work request: not bulk, at most write_bytes_max, and, with several rails,
//   `unsplit` or smaller than 2 x stripe_bytes_min;
// - its route is cached: the session, the regions and every path of the route are ready;
// - it overtakes nothing: no fragments or refused writes wait for its rail, and there is room;
// - the lease is valid, and it is neither cancelled nor past its deadline.
// It goes straight into the work requests of the next post, and from a successful completion
// straight to the report. The sequence of steps is the same as on the slow path. What makes it fast
// is a compressed record: writes of one path, source region and user's batch that are posted
// together share a PostBatch, as do the targets of one scatter on one rail, and are retired by
// clearing bits. One Rail::post() call may carry several post batches.
//
// Everything else takes the slow path (route.cc, datapath.cc, transfer.cc), where only pages and
// listed writes are posted as PostBatches (make_part_batch()). A PostBatch of which one entry needs
// attention is expanded into the single records that the slow path works with.
//
// State lock held throughout, on the worker; threads that cancel, disconnect or close only expand
// post batches.

namespace fabric::core {

/// Caches the paths to a region that the slow path would choose. No paths: only the slow path can
/// handle it. Valid until routes_changed().
CachedRoute& Transfers::refresh_route(RemoteRegionSlot& remote, MemoryKind source_kind) {
  if (remote.route == nullptr) remote.route = std::make_unique<CachedRoute>();
  CachedRoute& route = *remote.route;
  route.epoch = epoch_;
  route.source_kind = source_kind;
  route.paths.clear();
  using Status = RemoteRegionSlot::Status;
  if (remote.status.load(std::memory_order_relaxed) != Status::kLive) return route;
  Peer* const peer = core_.peers.find(remote.owner());
  if (peer == nullptr || !peer->usable() || peer->fencing || !peer->revoked_keys.empty())
    return route;
  const uint8_t network_index =
      peer->route[static_cast<size_t>(source_kind)][static_cast<size_t>(remote.kind)];
  if (network_index == kNoNetwork || !remote.has_network[network_index]) return route;
  NetworkSlot& network = core_.networks[network_index];
  const RailSet up = rails_for_new_work(*peer, network);
  for (uint32_t i = 0; i < up.count; ++i) {
    const uint32_t index = peer->paths[network_index][up.index[i]];
    // Not ready: left to the slow path, which opens and probes paths.
    if (index == kNone || paths_[index]->state != Path::State::kReady ||
        paths_[index]->needs_probe) {
      route.paths.clear();
      return route;
    }
    Path& path = *paths_[index];
    const auto& rkeys = remote.rkeys[network_index];
    route.paths.push_back({.path = &path,
                           .rail = &network.rails[path.rail],
                           .rkey = rkeys[path.remote_rail % rkeys.size()][path.rail]});
  }
  route.peer = peer;
  route.network = network_index;
  route.network_slot = &network;
  route.uncut_bytes_max = network.rails[0].caps.write_bytes_max;
  if (up.count > 1) {
    route.uncut_bytes_max = std::min(route.uncut_bytes_max, 2 * network.stripe_bytes_min - 1);
  }
  return route;
}

/// Makes `flow_` describe this source and target. False: they need the slow path. The lease is
/// checked every time, because it expires without an event.
inline bool Transfers::select_flow(RegionId source, RemoteRegion target) {
  const bool cached = flow_.epoch == epoch_ && flow_.source == source && flow_.target == target;
  if (!cached && !look_up_flow(source, target)) {
    flow_ = {};
    return false;
  }
  return !flow_.route->peer->lease_expired(core_.now_ns);
}

/// Looks up both ends and the route between them. The source is kept if only the target differs.
bool Transfers::look_up_flow(RegionId source, RemoteRegion target) {
  if (flow_.epoch != epoch_ || flow_.source != source) {
    // Relaxed, because the state lock is held: close() takes it after setting the flag, and then
    // finds every operation that was admitted here.
    if (core_.closing.load(std::memory_order_relaxed)) return false;
    flow_ = {.epoch = epoch_, .source = source, .region = core_.regions.local(source)};
    if (flow_.region == nullptr) return false;
  }
  RemoteRegionSlot* const remote = core_.regions.remote(target);
  if (remote == nullptr) return false;
  const MemoryKind source_kind = flow_.region->memory.kind;
  const CachedRoute* route = remote->route.get();
  if (route == nullptr || route->epoch != epoch_ || route->source_kind != source_kind)
      [[unlikely]] {
    route = &refresh_route(*remote, source_kind);
  }
  if (route->paths.empty()) return false;
  flow_.target = target;
  flow_.route = route;
  flow_.lkeys = flow_.region->registration.lkeys[route->network].data();
  return true;
}

/// The path of the rail that is next (deal.cc). That of the only one takes no turn.
[[gnu::always_inline]] inline const CachedPath& Transfers::next_cached_path(
    const CachedRoute& route) {
  const auto paths = static_cast<uint32_t>(route.paths.size());
  if (paths == 1) return route.paths[0];
  const NetworkSlot& network = *route.network_slot;
  const CachedPath& next = route.paths[network.rotation % paths];
  if (next.rail->dealt_bytes <= network.dealt_max) [[likely]]
    return next;
  return least_dealt_path(route);
}

/// How many writes may be added on the path now: none if that would overtake queued ones.
[[gnu::always_inline]] inline uint32_t Transfers::fast_path_room(
    const CachedPath& cached_path) noexcept {
  const RailSlot& rail = *cached_path.rail;
  if (!rail.up || rail.active_paths != 0 || !rail.backlog.empty()) return 0;
  return std::min(room_on(rail, *cached_path.path), kPostMax - rail.staged_count);
}

/// Whether there is room for one. Between two writes kPostMax are never staged.
[[gnu::always_inline]] inline bool Transfers::has_fast_path_room(const RailSlot& rail,
                                                                 const Path& path) noexcept {
  return rail.up && rail.active_paths == 0 && rail.backlog.empty() &&
         rail.inflight < rail.caps.queue_depth && room_for(rail, path);
}

/// Whether the write itself, regardless of its route, is eligible for the fast path.
inline bool Transfers::fits_fast_path(const Op& op, int64_t now_ns) noexcept {
  return op.kind == OpKind::kWrite &&       //
         op.priority != Priority::kBulk &&  // bulk is sliced
         op.deadline_ns > now_ns &&         // else it times out before it is posted
         !op.cancel_requested.load(std::memory_order_relaxed);
}

uint32_t Transfers::try_add(std::span<const uint32_t> slots) {
  uint32_t n = 0;
  while (n < slots.size()) {
    Op& first = core_.ops.at(slots[n]);
    if (!fits_fast_path(first, core_.now_ns)) break;
    if (!select_flow(first.source, first.target)) break;
    if (first.batch != flow_.batch) {
      if (core_.reporter.batch_cancelled(first.batch)) break;
      flow_.batch = first.batch;
    }
    const uint32_t added = add_burst(slots.subspan(n));
    if (added == 0) break;
    n += added;
  }
  return n;
}

/// Adds as many writes of `flow_` as fit into one post batch. The first one is eligible.
[[gnu::always_inline]] inline uint32_t Transfers::add_burst(std::span<const uint32_t> slots) {
  const CachedPath& cached_path = next_cached_path(*flow_.route);
  RailSlot& rail = *cached_path.rail;
  const uint64_t size_max = rail.caps.write_bytes_max;
  auto most = static_cast<uint32_t>(std::min<size_t>(slots.size(), fast_path_room(cached_path)));
  const Op& first = core_.ops.at(slots[0]);
  if (flow_.route->paths.size() > 1) {
    // One write per path in turn. Writes that are striped take the slow path.
    if (!first.unsplit && first.size_bytes > flow_.route->uncut_bytes_max) return 0;
    most = std::min(most, 1u);
  }
  if (most == 0 || first.size_bytes > size_max) return 0;
  PostBatch& post_batch = post_batch_on(cached_path, first);
  const WriteOp base = wr_template(cached_path);
  WriteOp* const wrs = &rail.staged[rail.staged_count];
  const uint32_t first_entry = post_batch.count;
  int64_t deadline_ns = post_batch.deadline_ns;
  uint32_t n = 0, with_imm = 0;
  bool no_notify = post_batch.no_notify;
  for (; n < most; ++n) {
    Op& op = core_.ops.at(slots[n]);
    if (n > 0) {
      // same_flow refers to the previous ring entry, which is the previous slot here.
      const bool cancelled = op.cancel_requested.load(std::memory_order_relaxed);
      if (op.kind != OpKind::kWrite || !op.same_flow || cancelled || op.size_bytes > size_max)
        break;
    }
    post_batch.entry[first_entry + n] = op.slot;
    deadline_ns = std::min(deadline_ns, op.deadline_ns);
    no_notify = no_notify && Reporter::is_silent(op.notify);
    op.post_batch = post_batch.index;
    op.state.store(OpState::kRunning, std::memory_order_relaxed);
    const bool has_imm = fill_from(wrs[n], base, post_batch.cookie(first_entry + n), op.priority,
                                   {.source_offset = op.source_offset,
                                    .target_offset = op.target_offset,
                                    .size_bytes = op.size_bytes,
                                    .counter_key = op.counter_key});
    with_imm |= uint32_t{has_imm} << n;
  }
  post_batch.deadline_ns = deadline_ns;
  post_batch.no_notify = no_notify;
  post_batch.with_imm |= with_imm << first_entry;
  if (flow_.route->paths.size() > 1) deal(*flow_.route->network_slot, rail, first.size_bytes);
  account_added(post_batch, cached_path, n);
  return n;
}

/// Adds targets of a running scatter, from `first` on, up to the first that is not eligible: at
/// most `most`. Returns how many. Each has another peer, so `flow_` would be replaced for each.
uint32_t Transfers::add_targets(Op& op, uint32_t first, uint32_t most) {
  if (core_.closing.load(std::memory_order_relaxed)) return 0;  // as in look_up_flow()
  LocalRegion* const region = core_.regions.local(op.source);
  if (region == nullptr) return 0;
  const MemoryKind source_kind = region->memory.kind;
  const uint64_t source = reinterpret_cast<uint64_t>(region->memory.address) + op.source_offset;
  const ScatterTarget* target = op.list.as<ScatterTarget>().data() + first;
  uint32_t n = 0;
  for (; n < most; ++n, ++target) {
    RemoteRegionSlot* const remote = core_.regions.remote(target->target.region);
    if (remote == nullptr) break;
    const CachedRoute* route = remote->route.get();
    if (route == nullptr || route->epoch != epoch_ || route->source_kind != source_kind)
        [[unlikely]] {
      route = &refresh_route(*remote, source_kind);
    }
    if (route->paths.empty() || route->peer->lease_expired(core_.now_ns)) break;
    const CachedPath& cached_path = next_cached_path(*route);
    RailSlot& rail = *cached_path.rail;
    Path& path = *cached_path.path;
    const uint64_t size_max = op.unsplit ? rail.caps.write_bytes_max : route->uncut_bytes_max;
    if (target->size_bytes > size_max || !has_fast_path_room(rail, path)) break;
    PostBatch& post_batch = target_batch_on(rail, region, op);
    const uint32_t at = post_batch.count++;
    post_batch.entry[at] = first + n;
    post_batch.targets[at] = {
        .path = &path, .peer = route->peer, .seq = route->peer->next_write_seq++};
    post_batch.inflight |= 1u << at;
    const bool has_imm{target->imm};
    post_batch.with_imm |= uint32_t{has_imm} << at;
    rail.staged[rail.staged_count] = {
        .source = source + target->source_offset,
        .target = target->target.offset,
        .size_bytes = target->size_bytes,
        .lkey = region->registration.lkeys[route->network][rail.index],
        .rkey = cached_path.rkey,
        .cookie = post_batch.cookie(at),
        .path = path.id,
        .imm = has_imm ? make_imm(target->imm, 1) : 0,
        .has_imm = uint8_t{has_imm},
        .priority = static_cast<uint8_t>(op.priority)};
    const bool several = route->paths.size() > 1;
    if (several) deal(*route->network_slot, rail, target->size_bytes);
    ++path.inflight;
    ++rail.inflight;
    ++region->inflight;
    ++op.inflight;
    if (++rail.staged_count >= (several ? kTargetsPostMax : kPostMax)) post_staged();
  }
  return n;
}

/// A batch without a path and without entries.
PostBatch& Transfers::take_post_batch(RailSlot& rail, LocalRegion* region, const Op& op) {
  PostBatch& post_batch = post_batches_.take();
  post_batch.op = kNone;
  post_batch.stride = 1;
  post_batch.count = post_batch.inflight = post_batch.with_imm = 0;
  post_batch.compact = post_batch.no_notify = true;
  post_batch.bytes = 0;
  post_batch.batch = op.batch;
  post_batch.path = nullptr;
  post_batch.peer = nullptr;
  post_batch.rail = &rail;
  post_batch.region = region;
  post_batch.region_slot = op.source.slot;
  post_batch.submitted_ns = op.submitted_ns;
  post_batch.posted_ns = core_.now_ns;
  post_batch.deadline_ns = kNeverNs;
  return post_batch;
}

PostBatch& Transfers::new_post_batch(Path& path, Peer& peer, RailSlot& rail, LocalRegion* region,
                                     const Op& op) {
  PostBatch& post_batch = take_post_batch(rail, region, op);
  post_batch.path = &path;
  post_batch.peer = &peer;
  post_batch.seq = peer.next_write_seq;
  peer.next_write_seq += PostBatch::kEntriesMax;
  return post_batch;
}

/// The open post batch of the rail if a write of this flow can join it, else a new one.
[[gnu::always_inline]] inline PostBatch& Transfers::post_batch_on(const CachedPath& cached_path,
                                                                  const Op& op) {
  RailSlot& rail = *cached_path.rail;
  PostBatch* const last = rail.open_post_batch;
  const bool fits = last != nullptr && last->path == cached_path.path &&
                    last->region == flow_.region && last->op == kNone && last->batch == op.batch;
  if (fits) [[likely]]
    return *last;
  PostBatch& post_batch =
      new_post_batch(*cached_path.path, *flow_.route->peer, rail, flow_.region, op);
  if (rail.staged_count == 0) staged_rails_.push_back(&rail);
  rail.open_post_batch = &post_batch;
  return post_batch;
}

/// The same for a target of the scatter `op`.
[[gnu::always_inline]] inline PostBatch& Transfers::target_batch_on(RailSlot& rail,
                                                                    LocalRegion* region,
                                                                    const Op& op) {
  PostBatch* const last = rail.open_post_batch;
  if (last != nullptr && last->op == op.slot) [[likely]]
    return *last;
  PostBatch& post_batch = take_post_batch(rail, region, op);
  post_batch.op = op.slot;
  if (rail.staged_count == 0) staged_rails_.push_back(&rail);
  rail.open_post_batch = &post_batch;
  return post_batch;
}

/// What all work requests of `flow_` on this path have in common.
[[gnu::always_inline]] inline WriteOp Transfers::wr_template(
    const CachedPath& cached_path) const noexcept {
  return {.source = reinterpret_cast<uint64_t>(flow_.region->memory.address),
          .lkey = flow_.lkeys[cached_path.rail->index],
          .rkey = cached_path.rkey,
          .path = cached_path.path->id};
}

/// Fills one work request from the template. Returns whether it carries an immediate.
inline bool Transfers::fill_from(WriteOp& wr, const WriteOp& base, uint32_t cookie,
                                 Priority priority, const PartSpec& source) noexcept {
  const bool has_imm{source.counter_key};
  wr.source = base.source + source.source_offset;
  wr.target = source.target_offset;
  wr.size_bytes = source.size_bytes;
  wr.lkey = base.lkey;
  wr.rkey = base.rkey;
  wr.cookie = cookie;
  wr.path = base.path;
  wr.imm = has_imm ? make_imm(source.counter_key, 1) : 0;
  wr.has_imm = has_imm ? 1 : 0;
  wr.priority = static_cast<uint8_t>(priority);
  wr.reserved = 0;
  return has_imm;
}

/// Adds `n` new entries to the in-flight counts of post batch, path, rail and region. When this
/// rail has kPostMax entries staged, all rails are posted.
[[gnu::always_inline]] inline void Transfers::account_added(PostBatch& post_batch,
                                                            const CachedPath& cached_path,
                                                            uint32_t n) {
  RailSlot& rail = *cached_path.rail;
  rail.staged_count += n;
  post_batch.count += n;
  post_batch.inflight = PostBatch::low_bits(post_batch.count);
  cached_path.path->inflight += n;
  rail.inflight += n;
  post_batch.region->inflight += n;
  if (rail.staged_count == kPostMax) post_staged();
}

/// Posts everything that is staged, on all rails.
void Transfers::post_staged() {
  for (RailSlot* const rail : staged_rails_) {
    const std::span<WriteOp> made(rail->staged.data(), rail->staged_count);
    rail->staged_count = 0;
    rail->open_post_batch = nullptr;
    rail->posted_this_turn = posted_ = true;
    add_to_backlog(*rail, made.subspan(post(*rail, made)));
  }
  staged_rails_.clear();
}

/// The rail has accepted the first `accepted` entries, at least one. The submit_to_post histograms
/// count the refused ones too, as those of the slow path do.
void Transfers::on_posted(PostBatch& post_batch, uint32_t accepted) {
  if (post_batch.has_targets()) return on_posted_targets(post_batch, accepted);
  post_batch.imms_before = post_batch.path->imms_posted;
  post_batch.path->imms_posted +=
      PostBatch::popcount(post_batch.with_imm & PostBatch::low_bits(accepted));
  if (post_batch.deadline_ns != kNeverNs)
    core_.timers.set(post_batch.timer, post_batch.deadline_ns);
  const size_t bucket = bucket_of(core_.now_ns - post_batch.submitted_ns);
  post_batch.rail->tx.submit_to_post.bucket[bucket] += post_batch.count;
  post_batch.peer->tx().submit_to_post.bucket[bucket] += post_batch.count;
}

/// The same for a batch of targets, which needs no timer: their operation has one.
void Transfers::on_posted_targets(PostBatch& post_batch, uint32_t accepted) {
  for (uint32_t at = 0; at < accepted; ++at) {
    PostBatch::Target& target = post_batch.targets[at];
    target.imms_before = target.path->imms_posted;
    target.path->imms_posted += post_batch.with_imm >> at & 1;
  }
  const size_t bucket = bucket_of(core_.now_ns - post_batch.submitted_ns);
  post_batch.rail->tx.submit_to_post.bucket[bucket] += post_batch.count;
  for (uint32_t at = 0; at < post_batch.count; ++at) {
    ++post_batch.targets[at].peer->tx().submit_to_post.bucket[bucket];
  }
}

/// Moves one entry into an InflightWrite of its own; its state on the rail does not change. If the
/// entry is an operation of its own, this also puts it in the list of running operations. The
/// caller updates the post batch.
uint32_t Transfers::split_out(PostBatch& post_batch, uint32_t at) {
  const bool own = post_batch.op == kNone;
  Op& op = core_.ops.at(own ? post_batch.entry[at] : post_batch.op);
  const bool is_target = post_batch.has_targets();
  const PostBatch::Target& target = post_batch.targets[at];
  Path& path = is_target ? *target.path : *post_batch.path;
  const uint32_t part = is_target ? post_batch.entry[at]
                        : own     ? 0
                                  : post_batch.first_part + at * post_batch.stride;
  const PartSpec source = part_of(op, part);
  const uint32_t cookie = take_inflight();
  InflightWrite& write = inflight_[cookie];
  write = InflightWrite{};
  write.wr.cookie = cookie;
  write.wr.path = path.id;
  write.wr.size_bytes = source.size_bytes;
  write.wr.has_imm = static_cast<uint8_t>(post_batch.with_imm >> at & 1);
  write.op = op.slot;
  write.part = part;
  write.path = path.index;
  write.peer = path.peer;
  write.region_slot = post_batch.region_slot;
  write.seq = post_batch.seq + at;
  write.posted_ns = post_batch.posted_ns;
  write.priority = op.priority;
  write.imms_before =
      post_batch.imms_before + PostBatch::popcount(post_batch.with_imm & PostBatch::low_bits(at));
  if (is_target) {
    write.seq = target.seq;
    write.imms_before = target.imms_before;
  }
  if (own) {
    op.post_batch = kNone;
    static_cast<OpProgress&>(op) = {};
    op.inflight = 1;
    write.shard = {0, op.size_bytes};
    const Caps& caps = post_batch.rail->caps;
    if (!op.counter_key || caps.slice_safe) op.slice_bytes = caps.write_bytes_max;
    core_.add_running(op);
  }
  insert_inflight(path, cookie);
  return cookie;
}

/// Inserts into the path's list, sorted by sequence number.
void Transfers::insert_inflight(Path& path, uint32_t cookie) {
  InflightWrite& write = inflight_[cookie];
  uint32_t before = path.last_inflight;
  while (before != kNone && inflight_[before].seq > write.seq) before = inflight_[before].prev;
  write.prev = before;
  write.next = before == kNone ? path.first_inflight : inflight_[before].next;
  (before == kNone ? path.first_inflight : inflight_[before].next) = cookie;
  (write.next == kNone ? path.last_inflight : inflight_[write.next].prev) = cookie;
}

void Transfers::expand(PostBatch& post_batch) {
  if (!std::exchange(post_batch.compact, false)) return;
  core_.timers.clear(post_batch.timer);
  for (uint32_t rest = post_batch.inflight; rest != 0; rest &= rest - 1) {
    const auto at = static_cast<uint32_t>(std::countr_zero(rest));
    post_batch.entry[at] = split_out(post_batch, at);
  }
}

void Transfers::expand_all() {
  routes_changed();
  post_batches_.each([this](PostBatch& post_batch)
                         FABRIC_REQUIRES(state_lock) { expand(post_batch); });
}

/// Keeps what the rail did not accept; post() offers it again. Entries of a post batch get their
/// own InflightWrite.
void Transfers::add_to_backlog(RailSlot& rail, std::span<WriteOp> rest) {
  for (WriteOp& wr : rest) {
    if (PostBatch::is_cookie(wr.cookie)) {
      PostBatch& post_batch = *post_batches_.at(PostBatch::index_of(wr.cookie));
      const uint32_t at = PostBatch::entry_of(wr.cookie);
      wr.cookie = split_out(post_batch, at);
      inflight_[wr.cookie].imms_before = UINT64_MAX;
      inflight_[wr.cookie].wr.cookie = wr.cookie;
      post_batch.inflight &= ~(1u << at);
      if (post_batch.inflight == 0) post_batches_.give_back(post_batch);
    }
    rail.backlog.push_back(wr);
    has_backlog_ = true;
  }
}

/// Retires batch entries. Successful completions of one batch at the head of `events` are handled
/// together. Returns how many events were consumed.
uint32_t Transfers::retire_batched(std::span<const RailEvent> events) {
  const RailEvent& first = events.front();
  PostBatch* const post_batch = post_batches_.at(PostBatch::index_of(first.cookie));
  if (post_batch == nullptr) return 1;  // unknown cookie: the provider was never given such a write
  const uint32_t left = PostBatch::kEntriesMax - PostBatch::entry_of(first.cookie);
  if (first.value >= left) [[unlikely]]
    return retire_across_batches(first, left);
  if (!post_batch->compact || first.code != Errc::kOk) {
    for (uint32_t i = 0; i <= first.value; ++i)
      retire_expanded(*post_batch, first.cookie + i, first);
    return 1;
  }
  uint32_t n = 0, bits = 0;
  const uint32_t lowest = post_batch->cookie(0);
  for (const RailEvent& event : events) {
    const uint32_t at = event.cookie - lowest;
    const bool in_this_batch =
        at < PostBatch::kEntriesMax && event.value < PostBatch::kEntriesMax - at;
    if (event.kind != RailEvent::Kind::kCompletion || event.code != Errc::kOk || !in_this_batch)
      break;
    bits |= PostBatch::low_bits(static_cast<uint32_t>(event.value) + 1) << at;
    ++n;
  }
  bits &= post_batch->inflight;  // ignores entries that were reported before
  if (bits == 0) return n;
  if (post_batch->has_targets()) {
    retire_delivered_targets(*post_batch, bits);
  } else {
    retire_delivered_batch(*post_batch, bits);
  }
  return n;
}

/// One event for a run of cookies that continues in the next batch.
[[gnu::noinline]] uint32_t Transfers::retire_across_batches(const RailEvent& run, uint32_t left) {
  RailEvent head = run, tail = run;
  head.value = left - 1;
  tail.value -= left;
  tail.cookie += left;
  retire_batched({&head, 1});
  retire_batched({&tail, 1});
  return 1;
}

/// Retires the successful entries of a compact batch. retire_write() does the same for one record,
/// and handles failures.
void Transfers::retire_delivered_batch(PostBatch& post_batch, uint32_t bits) {
  Path& path = *post_batch.path;
  RailSlot& rail = *post_batch.rail;
  Peer& peer = *post_batch.peer;
  post_batch.inflight &= ~bits;
  const auto n = PostBatch::popcount(bits);
  const uint64_t bytes =
      post_batch.op == kNone ? complete_writes(post_batch, bits, n) : bytes_of(post_batch, bits, n);
  const auto imms = PostBatch::popcount(bits & post_batch.with_imm);
  const size_t bucket = bucket_of(core_.now_ns - post_batch.posted_ns);
  for (Traffic* t : {&rail.tx, &peer.tx()}) {
    t->ops += n;
    t->bytes += bytes;
    t->imms += imms;
    t->post_to_done.bucket[bucket] += n;
  }
  path.inflight -= n;
  rail.inflight -= n;
  path.imms_done += imms;
  core_.peers.on_host_alive(peer, core_.now_ns);
  post_batch.region->inflight -= n;
  if (post_batch.region->phase != LocalRegion::Phase::kLive) {
    core_.regions.source_drained(post_batch.region_slot);
  }
  const uint32_t owner_op = post_batch.op;
  if (post_batch.inflight == 0) {
    core_.timers.clear(post_batch.timer);
    post_batches_.give_back(post_batch);
  }
  if (owner_op != kNone) complete_batched_parts(owner_op, n, bytes);
  after_retire(peer, path);
}

/// The same for targets of a scatter.
void Transfers::retire_delivered_targets(PostBatch& post_batch, uint32_t bits) {
  RailSlot& rail = *post_batch.rail;
  const uint32_t owner_op = post_batch.op;
  const auto targets = core_.ops.at(owner_op).list.as<ScatterTarget>();
  const size_t bucket = bucket_of(core_.now_ns - post_batch.posted_ns);
  post_batch.inflight &= ~bits;
  uint64_t bytes = 0;
  uint32_t n = 0;
  for (uint32_t rest = bits; rest != 0; rest &= rest - 1, ++n) {
    const auto at = static_cast<uint32_t>(std::countr_zero(rest));
    const PostBatch::Target& target = post_batch.targets[at];
    const uint64_t size = targets[post_batch.entry[at]].size_bytes;
    const uint32_t has_imm = post_batch.with_imm >> at & 1;
    Traffic& tx = target.peer->tx();
    ++tx.ops;
    tx.bytes += size;
    tx.imms += has_imm;
    ++tx.post_to_done.bucket[bucket];
    --target.path->inflight;
    target.path->imms_done += has_imm;
    core_.peers.on_host_alive(*target.peer, core_.now_ns);
    bytes += size;
  }
  rail.tx.ops += n;
  rail.tx.bytes += bytes;
  rail.tx.imms += PostBatch::popcount(bits & post_batch.with_imm);
  rail.tx.post_to_done.bucket[bucket] += n;
  rail.inflight -= n;
  post_batch.region->inflight -= n;
  if (post_batch.region->phase != LocalRegion::Phase::kLive) {
    core_.regions.source_drained(post_batch.region_slot);
  }
  for (uint32_t rest = bits; rest != 0; rest &= rest - 1) {
    const auto at = static_cast<uint32_t>(std::countr_zero(rest));
    after_retire(*post_batch.targets[at].peer, *post_batch.targets[at].path);
  }
  if (post_batch.inflight == 0) post_batches_.give_back(post_batch);
  complete_batched_parts(owner_op, n, bytes);
}

/// `n` parts that were batched are delivered.
[[gnu::always_inline]] inline void Transfers::complete_batched_parts(uint32_t owner_op, uint32_t n,
                                                                     uint64_t bytes) {
  Op& op = core_.ops.at(owner_op);
  op.inflight -= n;
  op.parts_completed += n;
  op.parts_delivered += n;
  op.bytes_delivered += bytes;
  core_.reporter.defer_parts(op, n);
  if (op.parts_completed < op.parts) return;
  FABRIC_DCHECK(op.inflight == 0 && op.holds == 0,
                "the parts are complete, and no OpHold exists during a poll");
  core_.complete_transfer(op);
}

/// Completes the operations of these entries. Returns their bytes.
[[gnu::always_inline]] inline uint64_t Transfers::complete_writes(const PostBatch& post_batch,
                                                                  uint32_t bits, uint32_t n) {
  Reporter& reporter = core_.reporter;
  uint64_t bytes = 0;
  for (uint32_t rest = bits; rest != 0; rest &= rest - 1) {
    Op& op = core_.ops.at(post_batch.entry[static_cast<uint32_t>(std::countr_zero(rest))]);
    bytes += op.size_bytes;
    op.post_batch = kNone;
    if (post_batch.no_notify) {
      reporter.defer_slot(op);
    } else {
      core_.complete_write(op);
    }
  }
  // Only after the slots are deferred: a thread that sees the user's batch empty may submit.
  if (post_batch.no_notify) reporter.defer_writes(post_batch.batch, post_batch.path->peer, n);
  return bytes;
}

uint64_t Transfers::bytes_of(const PostBatch& post_batch, uint32_t bits,
                             uint32_t n) const noexcept {
  if (n == post_batch.count) return post_batch.bytes;
  const Op& op = core_.ops.at(post_batch.op);
  if (op.kind != OpKind::kListed) return n * op.size_bytes;
  uint64_t bytes = 0;
  for (uint32_t rest = bits; rest != 0; rest &= rest - 1) {
    const auto at = static_cast<uint32_t>(std::countr_zero(rest));
    bytes += op.listed[post_batch.first_part + at * post_batch.stride].size_bytes;
  }
  return bytes;
}

/// Retires one entry of an expanded batch, or one that failed, which expands it.
void Transfers::retire_expanded(PostBatch& post_batch, uint32_t batch_cookie,
                                const RailEvent& event) {
  const uint32_t at = PostBatch::entry_of(batch_cookie);
  if ((post_batch.inflight >> at & 1) == 0) return;  // reported before
  expand(post_batch);
  post_batch.inflight &= ~(1u << at);
  const uint32_t cookie = post_batch.entry[at];
  if (post_batch.inflight == 0) post_batches_.give_back(post_batch);
  retire_write(cookie, {event.code, event.remote});
}

/// Retires a successful write that has a record of its own.
void Transfers::retire_delivered(uint32_t cookie) {
  InflightWrite& write = inflight_[cookie];
  Path& path = *paths_[write.path];
  RailSlot& rail = core_.networks[path.network].rails[path.rail];
  Peer& peer = *core_.peers.at(path.peer);
  close_inflight(write, path, rail);
  const uint64_t bytes = write.wr.size_bytes;
  const uint8_t has_imm = write.wr.has_imm;
  const size_t bucket = bucket_of(core_.now_ns - write.posted_ns);
  for (Traffic* t : {&rail.tx, &peer.tx()}) {
    ++t->ops;
    t->bytes += bytes;
    t->imms += has_imm;
    ++t->post_to_done.bucket[bucket];
  }
  core_.peers.on_host_alive(peer, core_.now_ns);
  path.imms_done += has_imm;
  const InflightWrite retired = write;
  give_back_inflight(cookie);
  complete_inflight(retired, {});
  after_retire(peer, path);
}

/// A path has free slots again: activates its queued fragments, and sends drain replies that are
/// due.
[[gnu::always_inline]] inline void Transfers::after_retire(Peer& peer, Path& path) {
  const bool waited_for =
      !path.queue[0].empty() || !path.queue[1].empty() || !path.queue[2].empty();
  if (waited_for && path.state == Path::State::kReady) {
    for (uint32_t p = 0; p < 3; ++p) activate(path, p);
  }
  if (!peer.drain_replies.empty()) core_.peers.check_drains(peer);
}

}  // namespace fabric::core

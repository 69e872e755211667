#include <algorithm>
#include <bit>
#include <utility>

#include "core/inflight.h"

// The short way of parts that need no cutting and have nobody to wait for: from the submission
// straight into a post_batch that leaves next, and from a good completion straight to the report.
// Whatever is unusual takes the long way (route.cc, transfer.cc), which does the same and more; a
// post_batch that something unusual happens to is dissolved into the writes of the long way.

namespace fabric::core {

/// Which paths lead to a region, as the long way would choose them, and whether anything speaks
/// against them: then there are none. Good until routes_changed().
CachedRoute& Transfers::find_route(RemoteRegionSlot& remote, MemoryKind here) {
  if (remote.route == nullptr) remote.route = std::make_unique<CachedRoute>();
  CachedRoute& route = *remote.route;
  route.epoch = epoch_;
  route.source_kind = here;
  route.paths.clear();
  using Status = RemoteRegionSlot::Status;
  if (remote.status.load(std::memory_order_relaxed) != Status::kLive) return route;
  Peer* const peer = core_.peers.find(remote.owner());
  if (peer == nullptr || !peer->usable() || peer->fencing || !peer->revoked_keys.empty()) return route;
  const uint8_t chosen = peer->route[static_cast<size_t>(here)][static_cast<size_t>(remote.kind)];
  if (chosen == kNoNetwork || !remote.has_network[chosen]) return route;
  NetworkSlot& network = core_.networks[chosen];
  const UpRails up = up_rails(*peer, network);
  for (uint32_t i = 0; i < up.count; ++i) {
    const uint32_t index = peer->paths[chosen][up.index[i]];
    // A path that is not open yet is opened by the long way.
    if (index == kNone || paths_[index]->state != Path::State::kReady || paths_[index]->needs_probe) {
      route.paths.clear();
      return route;
    }
    Path& path = *paths_[index];
    const auto& theirs = remote.rkeys[chosen];
    route.paths.push_back({.path = &path,
                           .rail = &network.rails[path.rail],
                           .remote_key = theirs[path.remote_rail % theirs.size()][path.rail]});
  }
  route.peer = peer;
  route.network = chosen;
  return route;
}

/// Whether the two ends are known, or can be; a lease runs out by itself. False: only the long way
/// leads there.
inline bool Transfers::has_flow(RegionId source, RemoteRegion target) {
  const bool cached = flow_.epoch == epoch_ && flow_.source == source && flow_.target == target;
  if (!cached && !look_up_flow(source, target)) {
    flow_ = {};
    return false;
  }
  return !flow_.route->peer->lease_expired(core_.now_ns);
}

/// Looks up both ends and the way between them; many targets may have one source.
bool Transfers::look_up_flow(RegionId source, RemoteRegion target) {
  if (flow_.epoch != epoch_ || flow_.source != source) {
    // Under the state lock: who is let through here is found by close() when it gets that lock.
    if (core_.closing.load(std::memory_order_relaxed)) return false;
    flow_ = {.epoch = epoch_, .source = source, .region = core_.regions.local(source)};
    if (flow_.region == nullptr) return false;
  }
  RemoteRegionSlot* const remote = core_.regions.remote(target);
  if (remote == nullptr) return false;
  const MemoryKind here = flow_.region->memory.kind;
  const CachedRoute* route = remote->route.get();
  if (route == nullptr || route->epoch != epoch_ || route->source_kind != here) [[unlikely]] {
    route = &find_route(*remote, here);
  }
  if (route->paths.empty()) return false;
  flow_.target = target;
  flow_.route = route;
  flow_.local_keys = flow_.region->registration.local_keys[route->network].data();
  return true;
}

/// The cached_path whose turn it is.
[[gnu::always_inline]] inline const CachedPath& Transfers::next_cached_path() const noexcept {
  const CachedRoute& route = *flow_.route;
  const auto paths = static_cast<uint32_t>(route.paths.size());
  return route.paths[paths == 1 ? 0 : route.peer->rotation % paths];
}

/// How many writes may leave by the cached_path now: nobody is overtaken.
[[gnu::always_inline]] inline uint32_t Transfers::fast_path_room(const CachedPath& cached_path) noexcept {
  const RailSlot& rail = *cached_path.rail;
  if (!rail.up || rail.listed != 0 || !rail.refused.empty()) return 0;
  return std::min(room_on(rail, *cached_path.path), kPostMax - rail.staged_count);
}

/// Whether a write may go the short way, as far as it alone is concerned.
inline bool Transfers::fits_fast_path(const Op& op, int64_t now_ns) noexcept {
  return op.kind == OpKind::kWrite &&       //
         op.priority != Priority::kBulk &&  // is sliced
         op.deadline_ns > now_ns &&         // else its timer comes before its post
         !op.cancel_asked.load(std::memory_order_relaxed);
}

uint32_t Transfers::try_add(std::span<const uint32_t> slots) {
  uint32_t n = 0;
  while (n < slots.size()) {
    Op& first = core_.ops.at(slots[n]);
    if (!fits_fast_path(first, core_.now_ns)) break;
    if (!has_flow(first.source, first.target)) break;
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

/// As many writes between the two known ends as may go together. The first one may board.
[[gnu::always_inline]] inline uint32_t Transfers::add_burst(std::span<const uint32_t> slots) {
  const CachedPath& cached_path = next_cached_path();
  RailSlot& rail = *cached_path.rail;
  const uint64_t size_max = rail.caps.write_bytes_max;
  auto most = static_cast<uint32_t>(std::min<size_t>(slots.size(), fast_path_room(cached_path)));
  const Op& first = core_.ops.at(slots[0]);
  if (flow_.route->paths.size() > 1) {
    // Dealt out over the paths one by one; what would be cut is not for this way.
    if (!first.unsplit && first.size_bytes >= 2 * core_.config.stripe_bytes_min) return 0;
    most = std::min(most, 1u);
  }
  if (most == 0 || first.size_bytes > size_max) return 0;
  PostBatch& post_batch = post_batch_on(cached_path, first, kNone, 0);
  const WriteOp base = wire_template(cached_path);
  WriteOp* const wires = &rail.staged[rail.staged_count];
  const uint32_t first_entry = post_batch.count;
  int64_t deadline_ns = post_batch.deadline_ns;
  uint32_t n = 0, with_imm = 0;
  bool silent = post_batch.silent;
  for (; n < most; ++n) {
    Op& op = core_.ops.at(slots[n]);
    if (n > 0) {
      // In the ring next to the one before, and so of the same submit().
      const bool cancelled = op.cancel_asked.load(std::memory_order_relaxed);
      if (op.kind != OpKind::kWrite || !op.same_flow || cancelled || op.size_bytes > size_max) break;
    }
    post_batch.entry[first_entry + n] = op.self;
    deadline_ns = std::min(deadline_ns, op.deadline_ns);
    silent = silent && Reporter::is_silent(op.notify);
    op.post_batch = post_batch.index;
    op.state.store(OpState::kRunning, std::memory_order_relaxed);
    const bool has_imm = fill_from(wires[n], base, post_batch.cookie(first_entry + n), op.priority,
                              {.source_offset = op.source_offset,
                               .target_offset = op.target_offset,
                               .size_bytes = op.size_bytes,
                               .imm = op.imm});
    with_imm |= uint32_t{has_imm} << n;
  }
  post_batch.deadline_ns = deadline_ns;
  post_batch.silent = silent;
  post_batch.with_imm |= with_imm << first_entry;
  account_added(post_batch, cached_path, n);
  return n;
}

/// The same for a part of an operation that the worker has already.
bool Transfers::try_add_part(Op& op, uint32_t part, const PartSource& source) {
  if (!has_flow(op.source, source.target)) return false;
  const CachedPath& cached_path = next_cached_path();
  if (fast_path_room(cached_path) == 0 || source.size_bytes > cached_path.rail->caps.write_bytes_max) return false;
  PostBatch& post_batch = post_batch_on(cached_path, op, op.self, part);
  ++op.inflight;
  post_batch.bytes += source.size_bytes;
  const bool has_imm = fill_from(cached_path.rail->staged[cached_path.rail->staged_count], wire_template(cached_path),
                            post_batch.cookie(post_batch.count), op.priority, source);
  post_batch.with_imm |= uint32_t{has_imm} << post_batch.count;
  account_added(post_batch, cached_path, 1);
  return true;
}

PostBatch& Transfers::new_post_batch(Path& path, Peer& peer, RailSlot& rail, LocalRegion* region,
                            const Op& op) {
  PostBatch& post_batch = post_batches_.take();
  post_batch.op = kNone;
  post_batch.stride = 1;
  post_batch.count = post_batch.inflight = post_batch.with_imm = 0;
  post_batch.compact = post_batch.silent = true;
  post_batch.bytes = 0;
  post_batch.batch = op.batch;
  post_batch.path = &path;
  post_batch.peer = &peer;
  post_batch.rail = &rail;
  post_batch.region = region;
  post_batch.region_slot = op.source.slot;
  post_batch.seq = peer.next_write_seq;
  peer.next_write_seq += PostBatch::kEntriesMax;
  post_batch.submitted_ns = op.submitted_ns;
  post_batch.posted_ns = core_.now_ns;
  post_batch.deadline_ns = kNeverNs;
  return post_batch;
}

/// The post_batch that leaves next by the cached_path; a new one when the last is of another sort.
[[gnu::always_inline]] inline PostBatch& Transfers::post_batch_on(const CachedPath& cached_path, const Op& op,
                                                         uint32_t of, uint32_t part) {
  RailSlot& rail = *cached_path.rail;
  PostBatch* const last = rail.open_batch;
  const bool fits = last != nullptr && last->path == cached_path.path && last->region == flow_.region &&
                    last->op == of && last->batch == op.batch &&
                    (of == kNone || part == last->first_part + last->count);
  if (fits) [[likely]]
    return *last;
  PostBatch& post_batch = new_post_batch(*cached_path.path, *flow_.route->peer, rail, flow_.region, op);
  post_batch.op = of;
  post_batch.first_part = part;
  if (rail.staged_count == 0) staged_rails_.push_back(&rail);
  rail.open_batch = &post_batch;
  return post_batch;
}

/// What all writes by the cached_path between the two known ends have in common.
[[gnu::always_inline]] inline WriteOp Transfers::wire_template(const CachedPath& cached_path) const noexcept {
  return {.source = reinterpret_cast<uint64_t>(flow_.region->memory.address),
          .local_key = flow_.local_keys[cached_path.rail->index],
          .remote_key = cached_path.remote_key,
          .path = cached_path.path->id};
}

/// Makes one of them. Returns whether it is with_imm.
inline bool Transfers::fill_from(WriteOp& wire, const WriteOp& base, uint32_t cookie, Priority priority,
                            const PartSource& source) noexcept {
  const bool has_imm{source.imm};
  wire.source = base.source + source.source_offset;
  wire.target = source.target_offset;
  wire.size_bytes = source.size_bytes;
  wire.local_key = base.local_key;
  wire.remote_key = base.remote_key;
  wire.cookie = cookie;
  wire.path = base.path;
  wire.imm = has_imm ? make_imm(source.imm, 1) : 0;
  wire.has_imm = has_imm ? 1 : 0;
  wire.priority = static_cast<uint8_t>(priority);
  wire.reserved = 0;
  return has_imm;
}

/// `n` more are in the post_batch, and in the account of everybody who keeps one.
[[gnu::always_inline]] inline void Transfers::account_added(PostBatch& post_batch, const CachedPath& cached_path, uint32_t n) {
  RailSlot& rail = *cached_path.rail;
  rail.staged_count += n;
  post_batch.count += n;
  post_batch.inflight = PostBatch::low_bits(post_batch.count);
  post_batch.peer->rotation += n;
  cached_path.path->inflight += n;
  rail.inflight += n;
  post_batch.region->inflight += n;
  if (rail.staged_count == kPostMax) post_staged();
}

/// Posts what went the short way. Behind it nothing of that sort is left anywhere.
void Transfers::post_staged() {
  for (RailSlot* const rail : staged_rails_) {
    const std::span<WriteOp> made(rail->staged.data(), rail->staged_count);
    rail->staged_count = 0;
    rail->open_batch = nullptr;
    rail->posted_this_turn = posted_ = true;
    refuse(*rail, made.subspan(post(*rail, made)));
  }
  staged_rails_.clear();
}

/// The rail has taken the first `taken` of a post_batch.
void Transfers::on_posted(PostBatch& post_batch, uint32_t taken) {
  post_batch.imms_before = post_batch.path->imms_posted;
  post_batch.path->imms_posted += PostBatch::popcount(post_batch.with_imm & PostBatch::low_bits(taken));
  if (post_batch.deadline_ns != kNeverNs) core_.timers.set(post_batch.timer, post_batch.deadline_ns);
  const size_t bucket = bucket_of(core_.now_ns - post_batch.submitted_ns);
  post_batch.rail->tx.submit_to_post.bucket[bucket] += post_batch.count;
  post_batch.peer->tx().submit_to_post.bucket[bucket] += post_batch.count;
}

/// The end of the short way for one of a post_batch: it becomes a write of its own, in flight as before.
uint32_t Transfers::split_out(PostBatch& post_batch, uint32_t at) {
  const bool own = post_batch.op == kNone;
  Op& op = core_.ops.at(own ? post_batch.entry[at] : post_batch.op);
  Path& path = *post_batch.path;
  const uint32_t part = own ? 0 : post_batch.first_part + at * post_batch.stride;
  const PartSource source = part_of(op, part);
  const uint32_t cookie = take_inflight();
  InflightWrite& write = inflight_[cookie];
  write = InflightWrite{};
  write.wire.cookie = cookie;
  write.wire.path = path.id;
  write.wire.size_bytes = source.size_bytes;
  write.wire.has_imm = static_cast<uint8_t>(post_batch.with_imm >> at & 1);
  write.op = op.self;
  write.part = part;
  write.path = path.index;
  write.peer = path.peer;
  write.region_slot = post_batch.region_slot;
  write.seq = post_batch.seq + at;
  write.posted_ns = post_batch.posted_ns;
  write.priority = op.priority;
  write.imms_before = post_batch.imms_before + PostBatch::popcount(post_batch.with_imm & PostBatch::low_bits(at));
  if (own) {
    op.post_batch = kNone;
    static_cast<OpProgress&>(op) = {};
    op.inflight = 1;
    write.shard = {0, op.size_bytes};
    const Caps& caps = post_batch.rail->caps;
    if (!op.imm || caps.slice_safe) op.slice_bytes = caps.write_bytes_max;
    core_.add_running(op);
  }
  link_inflight(path, cookie);
  return cookie;
}

/// Pieces of a path stand in the order of their numbers.
void Transfers::link_inflight(Path& path, uint32_t cookie) {
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
  post_batches_.each([this](PostBatch& post_batch) { expand(post_batch); });
}

/// What the rail did not take: its post_batch leaves without it.
void Transfers::refuse(RailSlot& rail, std::span<WriteOp> rest) {
  for (WriteOp& wire : rest) {
    if (PostBatch::is_cookie(wire.cookie)) {
      PostBatch& post_batch = *post_batches_.at(PostBatch::index_of(wire.cookie));
      const uint32_t at = PostBatch::entry_of(wire.cookie);
      wire.cookie = split_out(post_batch, at);
      inflight_[wire.cookie].imms_before = UINT64_MAX;
      inflight_[wire.cookie].wire.cookie = wire.cookie;
      post_batch.inflight &= ~(1u << at);
      if (post_batch.inflight == 0) post_batches_.give_back(post_batch);
    }
    rail.refused.push_back(wire);
    refused_ = true;
  }
}

/// Ends of writes in post batches: those at the head of `events` that are good and of one post_batch go
/// together. Returns how many.
uint32_t Transfers::retire_batched(std::span<const WireEvent> events) {
  const WireEvent& first = events.front();
  PostBatch* const post_batch = post_batches_.at(PostBatch::index_of(first.cookie));
  if (post_batch == nullptr) return 1;  // of a network that makes things up
  const uint32_t left = PostBatch::kEntriesMax - PostBatch::entry_of(first.cookie);
  if (first.value >= left) [[unlikely]]
    return retire_across_batches(first, left);
  if (!post_batch->compact || first.code != Errc::kOk) {
    for (uint32_t i = 0; i <= first.value; ++i) retire_expanded(*post_batch, first.cookie + i, first);
    return 1;
  }
  uint32_t n = 0, bits = 0;
  const uint32_t lowest = post_batch->cookie(0);
  for (const WireEvent& event : events) {
    const uint32_t at = event.cookie - lowest;
    const bool of_it = at < PostBatch::kEntriesMax && event.value < PostBatch::kEntriesMax - at;
    if (event.kind != WireEvent::Kind::kWritten || event.code != Errc::kOk || !of_it) break;
    bits |= PostBatch::low_bits(static_cast<uint32_t>(event.value) + 1) << at;
    ++n;
  }
  bits &= post_batch->inflight;  // or it was told twice
  if (bits != 0) retire_delivered_batch(*post_batch, bits);
  return n;
}

/// A run that goes on in the next post_batch.
[[gnu::noinline]] uint32_t Transfers::retire_across_batches(const WireEvent& run, uint32_t left) {
  WireEvent head = run, tail = run;
  head.value = left - 1;
  tail.value -= left;
  tail.cookie += left;
  retire_batched({&head, 1});
  retire_batched({&tail, 1});
  return 1;
}

/// Everything that a failure needs beside it is in retire_write().
void Transfers::retire_delivered_batch(PostBatch& post_batch, uint32_t bits) {
  Path& path = *post_batch.path;
  RailSlot& rail = *post_batch.rail;
  Peer& peer = *post_batch.peer;
  post_batch.inflight &= ~bits;
  const auto n = PostBatch::popcount(bits);
  const uint64_t bytes = post_batch.op == kNone ? complete_writes(post_batch, bits, n) : bytes_of(post_batch, bits, n);
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
  const uint32_t of = post_batch.op;
  if (post_batch.inflight == 0) {
    core_.timers.clear(post_batch.timer);
    post_batches_.give_back(post_batch);
  }
  if (of != kNone) {
    Op& op = core_.ops.at(of);
    op.inflight -= n;
    op.parts_completed += n;
    op.parts_delivered += n;
    op.bytes_delivered += bytes;
    core_.reporter.defer_parts(op, n);
    complete_if_done(op);
  }
  after_retire(peer, path);
}

/// The operations behind bits that arrived. Returns their bytes.
[[gnu::always_inline]] inline uint64_t Transfers::complete_writes(const PostBatch& post_batch, uint32_t bits,
                                                             uint32_t n) {
  Reporter& reporter = core_.reporter;
  uint64_t bytes = 0;
  for (uint32_t rest = bits; rest != 0; rest &= rest - 1) {
    Op& op = core_.ops.at(post_batch.entry[static_cast<uint32_t>(std::countr_zero(rest))]);
    bytes += op.size_bytes;
    op.post_batch = kNone;
    if (post_batch.silent) {
      reporter.defer_slot(op);
    } else {
      core_.complete_write(op);
    }
  }
  // Behind the slots: who sees the end of its batch may submit at once.
  if (post_batch.silent) reporter.defer_writes(post_batch.batch, post_batch.path->peer, n);
  return bytes;
}

uint64_t Transfers::bytes_of(const PostBatch& post_batch, uint32_t bits, uint32_t n) const noexcept {
  if (n == post_batch.count) return post_batch.bytes;
  const Op& op = core_.ops.at(post_batch.op);
  if (op.kind == OpKind::kPaged) return n * op.size_bytes;
  uint64_t bytes = 0;
  for (uint32_t rest = bits; rest != 0; rest &= rest - 1) {
    const auto at = static_cast<uint32_t>(std::countr_zero(rest));
    bytes += part_of(op, post_batch.first_part + at * post_batch.stride).size_bytes;
  }
  return bytes;
}

/// One of a post_batch that is none any more, or that ends with this.
void Transfers::retire_expanded(PostBatch& post_batch, uint32_t batch_cookie, const WireEvent& event) {
  const uint32_t at = PostBatch::entry_of(batch_cookie);
  if ((post_batch.inflight >> at & 1) == 0) return;  // told twice
  expand(post_batch);
  post_batch.inflight &= ~(1u << at);
  const uint32_t cookie = post_batch.entry[at];
  if (post_batch.inflight == 0) post_batches_.give_back(post_batch);
  retire_write(cookie, {event.code, event.remote});
}

/// A write that arrived by itself.
void Transfers::retire_delivered(uint32_t cookie) {
  InflightWrite& write = inflight_[cookie];
  Path& path = *paths_[write.path];
  RailSlot& rail = core_.networks[path.network].rails[path.rail];
  Peer& peer = *core_.peers.at(path.peer);
  close_inflight(write, path, rail);
  const uint64_t bytes = write.wire.size_bytes;
  const uint8_t has_imm = write.wire.has_imm;
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

/// Something has left a path: whoever waits for its room or its end comes next.
[[gnu::always_inline]] inline void Transfers::after_retire(Peer& peer, Path& path) {
  const bool waited_for =
      !path.queue[0].empty() || !path.queue[1].empty() || !path.queue[2].empty();
  if (waited_for && path.state == Path::State::kReady) {
    for (uint32_t p = 0; p < 3; ++p) activate(path, p);
  }
  if (!peer.drain_replies.empty()) core_.peers.check_drains(peer);
}

}  // namespace fabric::core

#include <algorithm>
#include <bit>
#include <utility>

#include "core/inflight.h"

// The short way of parts that need no cutting and have nobody to wait for: from the submission
// straight into a train that leaves next, and from a good completion straight to the report.
// Whatever is unusual takes the long way (route.cc, transfer.cc), which does the same and more; a
// train that something unusual happens to is dissolved into the pieces of the long way.

namespace fabric::core {

/// Which paths lead to a region, as the long way would choose them, and whether anything speaks
/// against them: then there are none. Good until routes_changed().
Route& Transfers::find_route(RemoteRegionSlot& remote, MemoryKind here) {
  if (remote.route == nullptr) remote.route = std::make_unique<Route>();
  Route& route = *remote.route;
  route.epoch = epoch_;
  route.here = here;
  route.lanes.clear();
  using Status = RemoteRegionSlot::Status;
  if (remote.status.load(std::memory_order_relaxed) != Status::kLive) return route;
  Peer* const peer = core_.peers.find(remote.owner());
  if (peer == nullptr || !peer->usable() || peer->ending || !peer->revoked.empty()) return route;
  const uint8_t chosen = peer->route[static_cast<size_t>(here)][static_cast<size_t>(remote.kind)];
  if (chosen == kNoNetwork || !remote.has_network[chosen]) return route;
  NetworkSlot& network = core_.networks[chosen];
  const UpRails up = up_rails(*peer, network);
  for (uint32_t i = 0; i < up.count; ++i) {
    const uint32_t index = peer->paths[chosen][up.index[i]];
    // A path that is not open yet is opened by the long way.
    if (index == kNone || paths_[index]->state != Path::State::kReady || paths_[index]->suspect) {
      route.lanes.clear();
      return route;
    }
    Path& path = *paths_[index];
    const auto& theirs = remote.keys[chosen];
    route.lanes.push_back({.path = &path,
                           .rail = &network.rails[path.rail],
                           .remote_key = theirs[path.remote_rail % theirs.size()][path.rail]});
  }
  route.peer = peer;
  route.network = chosen;
  return route;
}

/// Whether the two ends are known, or can be; a lease runs out by itself. False: only the long way
/// leads there.
inline bool Transfers::knows(RegionId source, RemoteRegion target) {
  const bool known = known_.epoch == epoch_ && known_.source == source && known_.target == target;
  if (!known && !know(source, target)) {
    known_ = {};
    return false;
  }
  return !known_.route->peer->lease_over(core_.now_ns);
}

/// Looks up both ends and the way between them; many targets may have one source.
bool Transfers::know(RegionId source, RemoteRegion target) {
  if (known_.epoch != epoch_ || known_.source != source) {
    // Under the state lock: who is let through here is found by close() when it gets that lock.
    if (core_.closing.load(std::memory_order_relaxed)) return false;
    known_ = {.epoch = epoch_, .source = source, .region = core_.regions.local(source)};
    if (known_.region == nullptr) return false;
  }
  RemoteRegionSlot* const remote = core_.regions.remote(target);
  if (remote == nullptr) return false;
  const MemoryKind here = known_.region->memory.kind;
  const Route* route = remote->route.get();
  if (route == nullptr || route->epoch != epoch_ || route->here != here) [[unlikely]] {
    route = &find_route(*remote, here);
  }
  if (route->lanes.empty()) return false;
  known_.target = target;
  known_.route = route;
  known_.local_keys = known_.region->keys.local_keys[route->network].data();
  return true;
}

/// The lane whose turn it is.
[[gnu::always_inline]] inline const Lane& Transfers::next_lane() const noexcept {
  const Route& route = *known_.route;
  const auto lanes = static_cast<uint32_t>(route.lanes.size());
  return route.lanes[lanes == 1 ? 0 : route.peer->rotation % lanes];
}

/// How many pieces may leave by the lane now: nobody is overtaken.
[[gnu::always_inline]] inline uint32_t Transfers::places_on(const Lane& lane) noexcept {
  const RailSlot& rail = *lane.rail;
  if (!rail.up || rail.listed != 0 || !rail.refused.empty()) return 0;
  return std::min(room_on(rail, *lane.path), kPostMax - rail.express_count);
}

/// Whether a write may go the short way, as far as it alone is concerned.
inline bool Transfers::may_board(const Op& op, int64_t now_ns) noexcept {
  return op.kind == OpKind::kWrite &&       //
         op.priority != Priority::kBulk &&  // is sliced
         op.deadline_ns > now_ns &&         // else its timer comes before its post
         !op.cancel_asked.load(std::memory_order_relaxed);
}

uint32_t Transfers::board(std::span<const uint32_t> slots) {
  uint32_t n = 0;
  while (n < slots.size()) {
    Op& first = core_.ops.at(slots[n]);
    if (!may_board(first, core_.now_ns)) break;
    if (!knows(first.source, first.target)) break;
    if (first.batch != known_.batch) {
      if (core_.report.batch_refuses(first.batch)) break;
      known_.batch = first.batch;
    }
    const uint32_t boarded = board_run(slots.subspan(n));
    if (boarded == 0) break;
    n += boarded;
  }
  return n;
}

/// As many writes between the two known ends as may go together. The first one may board.
[[gnu::always_inline]] inline uint32_t Transfers::board_run(std::span<const uint32_t> slots) {
  const Lane& lane = next_lane();
  RailSlot& rail = *lane.rail;
  const uint64_t size_max = rail.caps.write_bytes_max;
  auto most = static_cast<uint32_t>(std::min<size_t>(slots.size(), places_on(lane)));
  const Op& first = core_.ops.at(slots[0]);
  if (known_.route->lanes.size() > 1) {
    // Dealt out over the lanes one by one; what would be cut is not for this way.
    if (!first.unsplit && first.size_bytes >= 2 * core_.config.stripe_bytes_min) return 0;
    most = std::min(most, 1u);
  }
  if (most == 0 || first.size_bytes > size_max) return 0;
  Train& train = train_on(lane, first, kNone, 0);
  const WriteOp stamp = stamp_of(lane);
  WriteOp* const wires = &rail.express[rail.express_count];
  const uint32_t cars = train.count;
  int64_t deadline_ns = train.deadline_ns;
  uint32_t n = 0, counted = 0;
  bool silent = train.silent;
  for (; n < most; ++n) {
    Op& op = core_.ops.at(slots[n]);
    if (n > 0) {
      // In the ring next to the one before, and so of the same submit().
      const bool cancelled = op.cancel_asked.load(std::memory_order_relaxed);
      if (op.kind != OpKind::kWrite || !op.alike || cancelled || op.size_bytes > size_max) break;
    }
    train.car[cars + n] = op.self;
    deadline_ns = std::min(deadline_ns, op.deadline_ns);
    silent = silent && Reporter::is_silent(op.notify);
    op.train = train.index;
    op.stage.store(OpStage::kRunning, std::memory_order_relaxed);
    const bool has_imm = load(wires[n], stamp, train.cookie(cars + n), op.priority,
                              {.source_offset = op.source_offset,
                               .target_offset = op.target_offset,
                               .size_bytes = op.size_bytes,
                               .imm = op.imm});
    counted |= uint32_t{has_imm} << n;
  }
  train.deadline_ns = deadline_ns;
  train.silent = silent;
  train.counted |= counted << cars;
  boarded(train, lane, n);
  return n;
}

/// The same for a part of an operation that the worker has already.
bool Transfers::board_part(Op& op, uint32_t part, const PartSource& source) {
  if (!knows(op.source, source.target)) return false;
  const Lane& lane = next_lane();
  if (places_on(lane) == 0 || source.size_bytes > lane.rail->caps.write_bytes_max) return false;
  Train& train = train_on(lane, op, op.self, part);
  ++op.pieces_posted;
  train.bytes += source.size_bytes;
  const bool has_imm = load(lane.rail->express[lane.rail->express_count], stamp_of(lane),
                            train.cookie(train.count), op.priority, source);
  train.counted |= uint32_t{has_imm} << train.count;
  boarded(train, lane, 1);
  return true;
}

Train& Transfers::new_train(Path& path, Peer& peer, RailSlot& rail, LocalRegion* region,
                            const Op& op) {
  Train& train = trains_.take();
  train.op = kNone;
  train.stride = 1;
  train.count = train.out = train.counted = 0;
  train.whole = train.silent = true;
  train.bytes = 0;
  train.batch = op.batch;
  train.path = &path;
  train.peer = &peer;
  train.rail = &rail;
  train.region = region;
  train.region_slot = op.source.slot;
  train.seq = peer.next_piece_seq;
  peer.next_piece_seq += Train::kCars;
  train.submitted_ns = op.submitted_ns;
  train.posted_ns = core_.now_ns;
  train.deadline_ns = kNeverNs;
  return train;
}

/// The train that leaves next by the lane; a new one when the last is of another sort.
[[gnu::always_inline]] inline Train& Transfers::train_on(const Lane& lane, const Op& op,
                                                         uint32_t of, uint32_t part) {
  RailSlot& rail = *lane.rail;
  Train* const last = rail.boarding;
  const bool fits = last != nullptr && last->path == lane.path && last->region == known_.region &&
                    last->op == of && last->batch == op.batch &&
                    (of == kNone || part == last->first_part + last->count);
  if (fits) [[likely]]
    return *last;
  Train& train = new_train(*lane.path, *known_.route->peer, rail, known_.region, op);
  train.op = of;
  train.first_part = part;
  if (rail.express_count == 0) express_rails_.push_back(&rail);
  rail.boarding = &train;
  return train;
}

/// What all pieces by the lane between the two known ends have in common.
[[gnu::always_inline]] inline WriteOp Transfers::stamp_of(const Lane& lane) const noexcept {
  return {.source = reinterpret_cast<uint64_t>(known_.region->memory.address),
          .local_key = known_.local_keys[lane.rail->index],
          .remote_key = lane.remote_key,
          .path = lane.path->id};
}

/// Makes one of them. Returns whether it is counted.
inline bool Transfers::load(WriteOp& wire, const WriteOp& stamp, uint32_t cookie, Priority priority,
                            const PartSource& source) noexcept {
  const bool has_imm{source.imm};
  wire.source = stamp.source + source.source_offset;
  wire.target = source.target_offset;
  wire.size_bytes = source.size_bytes;
  wire.local_key = stamp.local_key;
  wire.remote_key = stamp.remote_key;
  wire.cookie = cookie;
  wire.path = stamp.path;
  wire.imm = has_imm ? make_imm(source.imm, 1) : 0;
  wire.has_imm = has_imm ? 1 : 0;
  wire.priority = static_cast<uint8_t>(priority);
  wire.reserved = 0;
  return has_imm;
}

/// `n` more are in the train, and in the account of everybody who keeps one.
[[gnu::always_inline]] inline void Transfers::boarded(Train& train, const Lane& lane, uint32_t n) {
  RailSlot& rail = *lane.rail;
  rail.express_count += n;
  train.count += n;
  train.out = Train::first(train.count);
  train.peer->rotation += n;
  lane.path->posted += n;
  rail.posted += n;
  train.region->posted += n;
  if (rail.express_count == kPostMax) post_express();
}

/// Posts what went the short way. Behind it nothing of that sort is left anywhere.
void Transfers::post_express() {
  for (RailSlot* const rail : express_rails_) {
    const std::span<WriteOp> made(rail->express.data(), rail->express_count);
    rail->express_count = 0;
    rail->boarding = nullptr;
    rail->turned = posted_ = true;
    refuse(*rail, made.subspan(post(*rail, made)));
  }
  express_rails_.clear();
}

/// The rail has taken the first `taken` of a train.
void Transfers::depart(Train& train, uint32_t taken) {
  train.imms_before = train.path->imms_posted;
  train.path->imms_posted += Train::number(train.counted & Train::first(taken));
  if (train.deadline_ns != kNeverNs) core_.timers.set(train.timer, train.deadline_ns);
  const size_t bucket = bucket_of(core_.now_ns - train.submitted_ns);
  train.rail->tx.submit_to_post.bucket[bucket] += train.count;
  train.peer->tx().submit_to_post.bucket[bucket] += train.count;
}

/// The end of the short way for one of a train: it becomes a piece of its own, in flight as before.
uint32_t Transfers::get_off(Train& train, uint32_t at) {
  const bool own = train.op == kNone;
  Op& op = core_.ops.at(own ? train.car[at] : train.op);
  Path& path = *train.path;
  const uint32_t part = own ? 0 : train.first_part + at * train.stride;
  const PartSource source = part_of(op, part);
  const uint32_t cookie = take_piece();
  Piece& piece = pieces_[cookie];
  piece = Piece{};
  piece.wire.cookie = cookie;
  piece.wire.path = path.id;
  piece.wire.size_bytes = source.size_bytes;
  piece.wire.has_imm = static_cast<uint8_t>(train.counted >> at & 1);
  piece.op = op.self;
  piece.part = part;
  piece.path = path.index;
  piece.peer = path.peer;
  piece.region_slot = train.region_slot;
  piece.seq = train.seq + at;
  piece.posted_ns = train.posted_ns;
  piece.priority = op.priority;
  piece.imms_before = train.imms_before + Train::number(train.counted & Train::first(at));
  if (own) {
    op.train = kNone;
    static_cast<OpProgress&>(op) = {};
    op.pieces_posted = 1;
    piece.shard = {0, op.size_bytes};
    const Caps& caps = train.rail->caps;
    if (!op.imm || caps.slice_safe) op.slice_bytes = caps.write_bytes_max;
    core_.run(op);
  }
  link_piece(path, cookie);
  return cookie;
}

/// Pieces of a path stand in the order of their numbers.
void Transfers::link_piece(Path& path, uint32_t cookie) {
  Piece& piece = pieces_[cookie];
  uint32_t before = path.last_piece;
  while (before != kNone && pieces_[before].seq > piece.seq) before = pieces_[before].prev;
  piece.prev = before;
  piece.next = before == kNone ? path.first_piece : pieces_[before].next;
  (before == kNone ? path.first_piece : pieces_[before].next) = cookie;
  (piece.next == kNone ? path.last_piece : pieces_[piece.next].prev) = cookie;
}

void Transfers::dissolve(Train& train) {
  if (!std::exchange(train.whole, false)) return;
  core_.timers.clear(train.timer);
  for (uint32_t rest = train.out; rest != 0; rest &= rest - 1) {
    const auto at = static_cast<uint32_t>(std::countr_zero(rest));
    train.car[at] = get_off(train, at);
  }
}

void Transfers::dissolve_all() {
  routes_changed();
  trains_.each([this](Train& train) { dissolve(train); });
}

/// What the rail did not take: its train leaves without it.
void Transfers::refuse(RailSlot& rail, std::span<WriteOp> rest) {
  for (WriteOp& wire : rest) {
    if (Train::has(wire.cookie)) {
      Train& train = *trains_.at(Train::index_of(wire.cookie));
      const uint32_t at = Train::car_of(wire.cookie);
      wire.cookie = get_off(train, at);
      pieces_[wire.cookie].imms_before = UINT64_MAX;
      pieces_[wire.cookie].wire.cookie = wire.cookie;
      train.out &= ~(1u << at);
      if (train.out == 0) trains_.give_back(train);
    }
    rail.refused.push_back(wire);
    refused_ = true;
  }
}

/// Ends of pieces in trains: those at the head of `events` that are good and of one train go
/// together. Returns how many.
uint32_t Transfers::cars_ended(std::span<const WireEvent> events) {
  const WireEvent& first = events.front();
  Train* const train = trains_.at(Train::index_of(first.cookie));
  if (train == nullptr) return 1;  // of a network that makes things up
  const uint32_t left = Train::kCars - Train::car_of(first.cookie);
  if (first.value >= left) [[unlikely]]
    return cars_of_several(first, left);
  if (!train->whole || first.code != Errc::kOk) {
    for (uint32_t i = 0; i <= first.value; ++i) car_ended(*train, first.cookie + i, first);
    return 1;
  }
  uint32_t n = 0, cars = 0;
  const uint32_t lowest = train->cookie(0);
  for (const WireEvent& event : events) {
    const uint32_t at = event.cookie - lowest;
    const bool of_it = at < Train::kCars && event.value < Train::kCars - at;
    if (event.kind != WireEvent::Kind::kWritten || event.code != Errc::kOk || !of_it) break;
    cars |= Train::first(static_cast<uint32_t>(event.value) + 1) << at;
    ++n;
  }
  cars &= train->out;  // or it was told twice
  if (cars != 0) cars_arrived(*train, cars);
  return n;
}

/// A run that goes on in the next train.
[[gnu::noinline]] uint32_t Transfers::cars_of_several(const WireEvent& run, uint32_t left) {
  WireEvent head = run, tail = run;
  head.value = left - 1;
  tail.value -= left;
  tail.cookie += left;
  cars_ended({&head, 1});
  cars_ended({&tail, 1});
  return 1;
}

/// Everything that a failure needs beside it is in piece_ended().
void Transfers::cars_arrived(Train& train, uint32_t cars) {
  Path& path = *train.path;
  RailSlot& rail = *train.rail;
  Peer& peer = *train.peer;
  train.out &= ~cars;
  const auto n = Train::number(cars);
  const uint64_t bytes = train.op == kNone ? end_writes(train, cars, n) : bytes_of(train, cars, n);
  const auto imms = Train::number(cars & train.counted);
  const size_t bucket = bucket_of(core_.now_ns - train.posted_ns);
  for (Traffic* t : {&rail.tx, &peer.tx()}) {
    t->ops += n;
    t->bytes += bytes;
    t->imms += imms;
    t->post_to_done.bucket[bucket] += n;
  }
  path.posted -= n;
  rail.posted -= n;
  path.imms_done += imms;
  core_.peers.on_host_answers(peer, core_.now_ns);
  train.region->posted -= n;
  if (train.region->end != LocalRegion::End::kAlive) {
    core_.regions.source_drained(train.region_slot);
  }
  const uint32_t of = train.op;
  if (train.out == 0) {
    core_.timers.clear(train.timer);
    trains_.give_back(train);
  }
  if (of != kNone) {
    Op& op = core_.ops.at(of);
    op.pieces_posted -= n;
    op.parts_ended += n;
    op.parts_delivered += n;
    op.bytes_delivered += bytes;
    core_.report.parts_delivered(op, n);
    finish_if_ended(op);
  }
  look_for_work(peer, path);
}

/// The operations behind cars that arrived. Returns their bytes.
[[gnu::always_inline]] inline uint64_t Transfers::end_writes(const Train& train, uint32_t cars,
                                                             uint32_t n) {
  Reporter& report = core_.report;
  uint64_t bytes = 0;
  for (uint32_t rest = cars; rest != 0; rest &= rest - 1) {
    Op& op = core_.ops.at(train.car[static_cast<uint32_t>(std::countr_zero(rest))]);
    bytes += op.size_bytes;
    op.train = kNone;
    if (train.silent) {
      report.slot_done(op);
    } else {
      core_.write_arrived(op);
    }
  }
  // Behind the slots: who sees the end of its batch may submit at once.
  if (train.silent) report.writes_delivered(train.batch, train.path->peer, n);
  return bytes;
}

uint64_t Transfers::bytes_of(const Train& train, uint32_t cars, uint32_t n) const noexcept {
  if (n == train.count) return train.bytes;
  const Op& op = core_.ops.at(train.op);
  if (op.kind == OpKind::kPaged) return n * op.size_bytes;
  uint64_t bytes = 0;
  for (uint32_t rest = cars; rest != 0; rest &= rest - 1) {
    const auto at = static_cast<uint32_t>(std::countr_zero(rest));
    bytes += part_of(op, train.first_part + at * train.stride).size_bytes;
  }
  return bytes;
}

/// One of a train that is none any more, or that ends with this.
void Transfers::car_ended(Train& train, uint32_t train_cookie, const WireEvent& event) {
  const uint32_t at = Train::car_of(train_cookie);
  if ((train.out >> at & 1) == 0) return;  // told twice
  dissolve(train);
  train.out &= ~(1u << at);
  const uint32_t cookie = train.car[at];
  if (train.out == 0) trains_.give_back(train);
  piece_ended(cookie, {event.code, event.remote});
}

/// A piece that arrived by itself.
void Transfers::piece_delivered(uint32_t cookie) {
  Piece& piece = pieces_[cookie];
  Path& path = *paths_[piece.path];
  RailSlot& rail = core_.networks[path.network].rails[path.rail];
  Peer& peer = *core_.peers.at(path.peer);
  piece_left(piece, path, rail);
  const uint64_t bytes = piece.wire.size_bytes;
  const uint8_t has_imm = piece.wire.has_imm;
  const size_t bucket = bucket_of(core_.now_ns - piece.posted_ns);
  for (Traffic* t : {&rail.tx, &peer.tx()}) {
    ++t->ops;
    t->bytes += bytes;
    t->imms += has_imm;
    ++t->post_to_done.bucket[bucket];
  }
  core_.peers.on_host_answers(peer, core_.now_ns);
  path.imms_done += has_imm;
  const Piece ended = piece;
  give_piece(cookie);
  end_piece(ended, {});
  look_for_work(peer, path);
}

/// Something has left a path: whoever waits for its room or its end comes next.
[[gnu::always_inline]] inline void Transfers::look_for_work(Peer& peer, Path& path) {
  const bool waited_for =
      !path.queue[0].empty() || !path.queue[1].empty() || !path.queue[2].empty();
  if (waited_for && path.state == Path::State::kReady) {
    for (uint32_t p = 0; p < 3; ++p) activate(path, p);
  }
  if (!peer.drains.empty()) core_.peers.check_drains(peer);
}

}  // namespace fabric::core

#include <algorithm>

#include "core/pieces.h"

// The short way of parts that need no cutting and have nobody to wait for: from the submission
// straight into the batch that is posted next, and from a good completion straight to the report.
// Whatever is unusual takes the long way (route.cc, transfer.cc), which does the same and more.

namespace fabric::core {

/// Which paths lead to a region, as the long way would choose them. Good while nothing about
/// networks, rails and paths has changed; what changes with every write is looked at each time.
const Route* Transfers::route_to(RemoteRegionSlot& remote, MemoryKind here) {
  if (remote.route == nullptr) remote.route = std::make_unique<Route>();
  Route& route = *remote.route;
  if (route.epoch == epoch_ && route.here == here) [[likely]] {
    return route.lanes.empty() ? nullptr : &route;
  }
  route.epoch = epoch_;
  route.here = here;
  route.lanes.clear();
  Peer* const peer = core_.peers.find(remote.owner());
  if (peer == nullptr || !peer->usable()) return nullptr;
  const uint8_t chosen = peer->route[static_cast<size_t>(here)][static_cast<size_t>(remote.kind)];
  if (chosen == kNoNetwork || !remote.has_network[chosen]) return nullptr;
  NetworkSlot& network = core_.networks[chosen];
  const UpRails up = up_rails(*peer, network);
  for (uint32_t i = 0; i < up.count; ++i) {
    const uint32_t index = peer->paths[chosen][up.index[i]];
    // A path that is not open yet is opened by the long way.
    if (index == kNone || paths_[index]->state != Path::State::kReady || paths_[index]->suspect) {
      route.lanes.clear();
      return nullptr;
    }
    Path& path = *paths_[index];
    const auto& theirs = remote.keys[chosen];
    route.lanes.push_back({.path = &path,
                           .rail = &network.rails[path.rail],
                           .remote_key = theirs[path.remote_rail % theirs.size()][path.rail]});
  }
  route.peer = peer;
  route.network = chosen;
  return route.lanes.empty() ? nullptr : &route;
}

bool Transfers::express(Op& op) {
  if (op.priority == Priority::kBulk) return false;  // is sliced
  if (op.deadline_ns <= core_.now_ns) return false;  // its timer comes before its post
  return express_part(op, 0,
                      {.target = op.target,
                       .source_offset = op.source_offset,
                       .target_offset = op.target_offset,
                       .size_bytes = op.size_bytes,
                       .imm = op.imm});
}

/// Looks up both ends and the way between them. False: only the long way leads there.
bool Transfers::know(RegionId source, RemoteRegion target) {
  known_ = {};
  RemoteRegionSlot* const remote = core_.regions.remote(target);
  LocalRegion* const region = core_.regions.local(source);
  if (remote == nullptr || region == nullptr) return false;
  using Status = RemoteRegionSlot::Status;
  if (remote->status.load(std::memory_order_relaxed) != Status::kLive) return false;
  const Route* const route = route_to(*remote, region->memory.kind);
  if (route == nullptr) return false;
  const Peer& peer = *route->peer;
  if (peer.ending || !peer.usable() || !peer.revoked.empty() || peer.lease_over(core_.now_ns)) {
    return false;
  }
  known_ = {.source = source, .target = target, .region = region, .route = route};
  return true;
}

bool Transfers::express_part(Op& op, uint32_t part, const PartSource& source) {
  const bool known =
      known_.route != nullptr && known_.source == op.source && known_.target == source.target;
  if (!known && !know(op.source, source.target)) return false;
  const Route* const route = known_.route;
  LocalRegion* const region = known_.region;
  Peer& peer = *route->peer;
  const auto lanes = static_cast<uint32_t>(route->lanes.size());
  const bool one_lane = op.whole || source.size_bytes < 2 * core_.config.stripe_bytes_min;
  if (lanes > 1 && op.kind == OpKind::kWrite && !one_lane) return false;
  const Route::Lane& lane = route->lanes[lanes == 1 ? 0 : peer.rotation % lanes];
  Path& path = *lane.path;
  RailSlot& rail = *lane.rail;
  // Nobody is overtaken.
  if (!rail.up || rail.listed != 0 || !rail.refused.empty() || !room_for(rail, path) ||
      rail.posted >= rail.caps.queue_depth || source.size_bytes > rail.caps.write_bytes_max) {
    return false;
  }
  ++peer.rotation;
  if (op.kind == OpKind::kWrite && (!op.imm || rail.caps.slice_safe)) {
    op.slice_bytes = rail.caps.write_bytes_max;
  }
  const uint32_t cookie = take_piece();
  Piece& piece = pieces_[cookie];
  const uint64_t address =
      reinterpret_cast<uint64_t>(region->memory.address) + source.source_offset;
  const uint64_t local_key = region->keys.local_keys[route->network][path.rail];
  // Twice, field by field: a copy would read wider than what has just been stored, and wait for it.
  const auto fill = [&](WriteOp& wire) {
    wire.source = address;
    wire.target = source.target_offset;
    wire.size_bytes = source.size_bytes;
    wire.local_key = local_key;
    wire.remote_key = lane.remote_key;
    wire.cookie = cookie;
    wire.path = path.id;
    wire.imm = source.imm ? make_imm(source.imm, 1) : 0;
    wire.has_imm = source.imm ? 1 : 0;
    wire.priority = static_cast<uint8_t>(op.priority);
  };
  fill(piece.wire);
  piece.part = part;
  piece.offset = 0;
  piece.shard = {0, op.kind == OpKind::kWrite ? source.size_bytes : 0};
  piece_made(cookie, op, peer, path, rail, region);
  if (rail.express_count == 0) express_rails_.push_back(&rail);
  fill(rail.express[rail.express_count++]);
  if (rail.express_count == rail.express.size()) post_express();
  return true;
}

/// Posts what went the short way. Behind it nothing of that sort is left anywhere.
void Transfers::post_express() {
  for (RailSlot* const rail : express_rails_) {
    const std::span<const WriteOp> made(rail->express.data(), rail->express_count);
    const uint32_t taken = post(*rail, made);
    rail->refused.insert(rail->refused.end(), made.begin() + taken, made.end());
    rail->express_count = 0;
    rail->turned = posted_ = true;
    refused_ = refused_ || !rail->refused.empty();
  }
  express_rails_.clear();
}

/// A piece that arrived. Everything that a failure needs beside it is in piece_ended().
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

  Op& op = core_.ops.at(piece.op);
  if (op.kind == OpKind::kWrite && (op.shards != 1 || op.shards_failed != 0)) {
    const Piece ended = piece;
    give_piece(cookie);
    end_piece(ended, {});
  } else {
    give_piece(cookie);
    --op.pieces_posted;
    ++op.parts_ended;
    ++op.parts_delivered;
    op.bytes_delivered += bytes;
    core_.report.part_delivered(op);
    if (op.parts_ended == op.parts && op.pieces_posted == 0) core_.finish_transfer(op);
  }
  const bool waited_for =
      !path.queue[0].empty() || !path.queue[1].empty() || !path.queue[2].empty();
  if (waited_for && path.state == Path::State::kReady) {
    for (uint32_t p = 0; p < 3; ++p) activate(path, p);
  }
  if (!peer.drains.empty()) core_.peers.check_drains(peer);
}

}  // namespace fabric::core

#include "core/transfer.h"

#include <algorithm>

#include "base/check.h"
#include "core/inflight.h"

// The ends of pieces and operations, and the life of paths. Posting is in datapath.cc, the way from
// an operation to its paths in route.cc.

namespace fabric::core {

Transfers::Transfers(EngineCore& core) : core_(core) {}

Transfers::PartSource Transfers::part_of(const Op& op, uint32_t part) const noexcept {
  switch (op.kind) {
    case OpKind::kPaged: {
      const auto indices = op.list.as<uint32_t>();
      return {.target = op.target,
              .source_offset = op.source_offset + indices[part] * op.source_stride,
              .target_offset = op.target_offset + indices[op.parts + part] * op.target_stride,
              .size_bytes = op.size_bytes,
              .imm = op.imm};
    }
    case OpKind::kScatter: {
      const ScatterTarget& target = op.list.as<ScatterTarget>()[part];
      return {.target = target.target.region,
              .source_offset = op.source_offset + target.source_offset,
              .target_offset = target.target.offset,
              .size_bytes = target.size_bytes,
              .imm = target.imm};
    }
    case OpKind::kSignal:
      return {.imm = op.list.as<SignalTarget>()[part].key};
    default:
      return {.target = op.target,
              .source_offset = op.source_offset,
              .target_offset = op.target_offset,
              .size_bytes = op.size_bytes,
              .imm = op.imm};
  }
}

void Transfers::stop(Op& op, Errc code) {
  if (op.stage.load(std::memory_order_relaxed) == OpStage::kDraining) return;
  if (op.train != kNone) dissolve_train(op.train);
  op.stage.store(OpStage::kDraining, std::memory_order_relaxed);
  op.stop_code = code;
  core_.steps.take(op.pieces_posted == 0 ? Step::kStoppedQueued : Step::kStoppedPosted);
  ++op.pieces_posted;  // holds it until everything unposted has been ended
  while (op.entries != kNone) drop_entry(op.entries, code);
  for (NetworkSlot& network : core_.networks) {
    for (RailSlot& rail : network.rails) {
      std::vector<uint32_t> withdrawn;
      std::erase_if(rail.refused, [&](const WriteOp& wire) {
        if (pieces_[wire.cookie].op != op.self) return false;
        withdrawn.push_back(wire.cookie);
        return true;
      });
      for (const uint32_t cookie : withdrawn) piece_ended(cookie, {code, Remote::kNotDelivered});
    }
  }
  --op.pieces_posted;
  if (op.parts_ended < op.parts) {
    // Three quarters for the NIC, the last one for the peer's word about what it took (P2).
    core_.timers.set(op.timer, core_.now_ns + core_.config.drain_timeout.count() / 4 * 3);
  }
  finish_if_ended(op);
}

void Transfers::force(Op& op) {
  dissolve_all();
  if (op.step++ == 0) {
    for (const Piece& piece : pieces_) {
      if (piece.op != op.self || piece.stranded) continue;
      Path& path = *paths_[piece.path];
      if (path.state != Path::State::kReady) continue;
      FABRIC_LOG(core_.log, kWarning, "core", "an operation does not drain: its path is torn down",
                 {"op", op.id()}, {"peer", core_.peers.at(path.peer)->id()}, {"rail", path.rail});
      core_.steps.take(Step::kPathTornDown);
      close_path(path);
    }
    core_.timers.set(op.timer, core_.now_ns + core_.config.drain_timeout.count() / 4);
    return;
  }
  core_.steps.take(Step::kBoundPassed);
  // The bound has passed. What its NIC still holds ends with its path; nobody is waited for.
  ++op.pieces_posted;  // holds it
  for (uint32_t i = 0; i < pieces_.size(); ++i) {
    if (pieces_[i].op == op.self && pieces_[i].stranded) end_stranded(i, pieces_[i].end);
  }
  --op.pieces_posted;
  finish_if_ended(op);
}

void Transfers::piece_ended(uint32_t cookie, const PieceEnd& end) {
  if (cookie >= pieces_.size() || pieces_[cookie].op == kNone || pieces_[cookie].stranded) return;
  if (end.code == Errc::kOk && pieces_[cookie].op != kProbe) [[likely]] {
    piece_delivered(cookie);
    return;
  }
  Piece& piece = pieces_[cookie];
  Path& path = *paths_[piece.path];
  RailSlot& rail = core_.networks[path.network].rails[path.rail];
  Peer& peer = *core_.peers.at(path.peer);
  piece_left(piece, path, rail);
  PieceEnd told = end;
  if (told.code != Errc::kOk && path.peer_gone) told.code = peer.lost_code;
  const size_t bucket = bucket_of(core_.now_ns - piece.posted_ns);
  for (Traffic* t : {&rail.tx, &peer.tx()}) {
    ++t->ops;
    t->failed += told.code != Errc::kOk;
    ++t->post_to_done.bucket[bucket];
  }
  if (told.code == Errc::kOk || told.code == Errc::kRemoteAccess) {
    core_.peers.on_host_answers(peer, core_.now_ns);
  } else if (told.code == Errc::kRailLost && path.state == Path::State::kReady) {
    path.broke = exact(path);  // by itself: nobody has closed it
    if (told.remote == Remote::kUnknown && rail.up) nobody_answers(peer, path);
  }
  if (told.code == Errc::kOk) {
    path.imms_done += piece.wire.has_imm;
  } else if (exact(path) && piece.imms_before != UINT64_MAX) {
    close_path(path);  // or its numbers would not fit the target's any more
  }

  if (piece.op == kProbe) {
    give_piece(cookie);
    probe_ended(path, told);
  } else if (may_strand(piece, path, told)) {
    strand(cookie, path, told);
  } else {
    // Nobody waits for it any more, but it may still land: whoever asks for quiet has to wait until
    // the target has spoken. Where it never will, Peer::unproved says so at once.
    if (told.code == Errc::kRailLost && exact(path)) {
      path.stranded_seq = std::min(path.stranded_seq, piece.seq);
    }
    const Piece ended = piece;
    give_piece(cookie);
    if (!given_up(ended, path, told)) {
      // It certainly did not arrive, and would have gone again but for that.
      const bool barred = told.code == Errc::kRailLost && told.remote == Remote::kNotDelivered &&
                          ended.barred != Errc::kOk;
      if (barred) told.code = ended.barred;
      end_piece(ended, told);
    }
  }
  if (path.state == Path::State::kReady) {
    for (uint32_t p = 0; p < 3; ++p) activate(path, p);
  }
  core_.peers.check_drains(peer);
}

/// Tells the operation of a piece, which has its slot no more, how it ended.
void Transfers::end_piece(const Piece& piece, const PieceEnd& end) {
  Op& op = core_.ops.at(piece.op);
  const PeerId peer = core_.peers.at(piece.peer)->id();
  --op.pieces_posted;
  if (op.kind == OpKind::kWrite) {
    if (end.code == Errc::kOk && piece.wire.has_imm != 0) ++op.shards_counted;
    ++op.pieces_posted;  // holds it
    shard_ended(op, peer, end, piece.wire.size_bytes);
    // A count behind a slice that did not arrive would vouch for bytes that are not there (P6).
    while (op.shards_failed > 0 && op.entries != kNone) drop_entry(op.entries, end.code);
    --op.pieces_posted;
  } else {
    part_ended(op, piece.part, peer, end, piece.wire.size_bytes);
  }
  finish_if_ended(op);
}

void Transfers::shard_ended(Op& op, PeerId peer, const PieceEnd& end, uint64_t bytes) {
  ++op.shards_ended;
  if (end.code == Errc::kOk) {
    op.bytes_delivered += bytes;
  } else {
    ++op.shards_failed;
    if (end.remote != Remote::kNotDelivered) ++op.shards_unknown;
    if (op.code == Errc::kOk) {
      op.code = end.code;
      op.failed_peer = peer;
    }
  }
  if (op.shards_ended < op.shards) return;
  PieceEnd whole{op.code, Remote::kDelivered};
  if (op.shards_failed > 0) {
    // Nothing of it lands any more; but a shard that was counted has left its share at the key.
    const bool known = op.shards_unknown == 0 && op.shards_counted == 0;
    whole.remote = known ? Remote::kNotDelivered : Remote::kUnknown;
  }
  part_ended(op, 0, peer, whole, 0);
}

void Transfers::part_ended(Op& op, uint32_t part, PeerId peer, const PieceEnd& end,
                           uint64_t bytes) {
  ++op.parts_ended;
  if (end.code == Errc::kOk) {
    ++op.parts_delivered;
    op.bytes_delivered += bytes;
  } else {
    if (op.parts_failed == 0) {
      op.first_failed = part;
      op.failed_peer = peer;
      op.code = end.code;
    }
    ++op.parts_failed;
    if (end.remote == Remote::kUnknown) {
      ++op.parts_unknown;
      spoil(op, part, peer, end.code);
    }
  }
  const Remote remote = end.code == Errc::kOk ? Remote::kDelivered : end.remote;
  const Errc code = end.code != Errc::kOk && op.stop_code != Errc::kOk ? op.stop_code : end.code;
  core_.report.part_ended(op, {.part = part, .peer = peer, .code = code, .remote = remote});
}

/// A counted write of unknown fate makes its key unusable: half of it and half of a retry would
/// count as one (P10). The receiver is told to end whoever waits.
void Transfers::spoil(const Op& op, uint32_t part, PeerId peer_id, Errc code) {
  const CounterKey key = part_of(op, part).imm;
  Peer* peer = core_.peers.find(peer_id);
  if (!key || peer == nullptr || !peer->usable()) return;
  core_.steps.take(Step::kKeySpoiled);
  core_.peers.send(*peer, control::MessageType::kAbortKey,
                   control::encode(control::AbortKey{.key = key.wire(), .code = code}));
}

void Transfers::finish_if_ended(Op& op) {
  if (op.parts_ended < op.parts || op.pieces_posted > 0) return;
  core_.finish_transfer(op);
}

void Transfers::drop_path_entries(Path& path, Errc code) {
  for (EntryQueue& queue : path.queue) {
    while (!queue.empty()) drop_entry(queue.head, code);
  }
}

void Transfers::close_path(Path& path) {
  if (path.state != Path::State::kOpening && path.state != Path::State::kReady) return;
  withdraw(path);
  core_.networks[path.network].rails[path.rail].rail->close_path(path.id, false);
}

/// Nothing more is posted. What the rail never took cannot come back through it.
void Transfers::withdraw(Path& path) {
  routes_changed();
  trains_.each([&](Train& train) {
    if (train.path == &path) dissolve(train);
  });
  path.state = Path::State::kClosing;
  path.probe_until_ns = kNeverNs;
  std::vector<uint32_t> withdrawn;
  std::erase_if(core_.networks[path.network].rails[path.rail].refused, [&](const WriteOp& wire) {
    if (wire.path != path.id) return false;
    withdrawn.push_back(wire.cookie);
    return true;
  });
  for (const uint32_t cookie : withdrawn) {
    piece_ended(cookie, {Errc::kRailLost, Remote::kNotDelivered});
  }
}

void Transfers::on_path_down(const RailSlot& rail, const WireEvent& event) {
  const auto found = std::find_if(paths_.begin(), paths_.end(), [&](const auto& path) {
    return path->state != Path::State::kFree && path->state != Path::State::kResting &&
           path->network == rail.network && path->rail == rail.index && path->id == event.path;
  });
  if (found == paths_.end()) return;
  Path& path = **found;
  if (path.state != Path::State::kClosing) {
    path.broke = true;
    withdraw(path);
  }
  FABRIC_CHECK(path.posted == 0, "a path is down only after the end of its last piece");
  path_down(path, event.code);
}

void Transfers::path_down(Path& path, Errc code) {
  routes_changed();
  Peer& peer = *core_.peers.at(path.peer);
  for (uint32_t p = 0; p < 3; ++p) {
    while (path.listed[p]) unlist_path(path, p);
  }
  if (code == Errc::kPeerLost && !path.peer_gone) {
    path.state = Path::State::kResting;  // nothing of it is open
    core_.peers.on_peer_gone(peer);
    return;
  }
  const bool broke = path.broke;
  if (broke) {
    core_.steps.take(Step::kPathBroke);
    FABRIC_LOG(core_.log, kWarning, "core", "a path broke", {"peer", peer.id()},
               {"rail", path.rail});
  }
  if (path.peer_gone || path.unwanted) {
    drop_path_entries(path, path.peer_gone ? peer.lost_code : Errc::kUnreachable);
    peer.paths[path.network][path.rail] = kNone;
    forget_path(path);
    core_.peers.check_drains(peer);
    return;
  }
  path.state = Path::State::kResting;
  if (path.started) make_wreck(path);
  // Settling it may have found that the peer has to go, and the path with it.
  if (path.state == Path::State::kResting) next_life(path, !broke);
}

void Transfers::stop_queued(Peer& peer, Errc code) {
  dissolve_all();
  while (!peer.waiting.empty()) drop_entry(peer.waiting.head, code);
  for (const auto& wreck : wrecks_) {
    if (wreck->peer != peer.slot) continue;
    while (!wreck->begun.empty()) drop_entry(wreck->begun.head, code);
  }
  // Whatever comes back from a NIC later must not be sent again.
  for (Piece& piece : pieces_) {
    if (piece.op < kProbe && piece.peer == peer.slot) piece.barred = code;
  }
  for (auto& rails : peer.paths) {
    for (const uint32_t index : rails) {
      if (index != kNone) drop_path_entries(*paths_[index], code);
    }
  }
}

void Transfers::peer_lost(Peer& peer, Errc code) {
  stop_queued(peer, code);
  for (auto& rails : peer.paths) {
    for (uint32_t& index : rails) {
      if (index == kNone) continue;
      Path& path = *paths_[index];
      path.peer_gone = true;
      for (const uint32_t cookie : std::exchange(path.stranded, {})) {
        end_stranded(cookie, {code, pieces_[cookie].end.remote});
      }
      if (path.state == Path::State::kResting) {
        index = kNone;  // nothing of it is open
        forget_path(path);
      } else {
        close_path(path);
      }
    }
  }
  for (size_t at = wrecks_.size(); at > 0; --at) {
    Wreck& wreck = *wrecks_[at - 1];
    if (wreck.peer != peer.slot) continue;
    for (const uint32_t cookie : std::exchange(wreck.pieces, {})) {
      if (pieces_[cookie].stranded) end_stranded(cookie, {code, pieces_[cookie].end.remote});
    }
    drop_wreck(at - 1);
  }
}

void Transfers::region_revoked(RemoteRegion handle) {
  dissolve_all();
  drop_entries_where(
      [&](const Op& op, const Entry& entry) {
        return op.kind != OpKind::kSignal && part_of(op, entry.part).target == handle;
      },
      Errc::kNotFound);
  for (Piece& piece : pieces_) {
    if (piece.op >= kProbe) continue;
    const Op& op = core_.ops.at(piece.op);
    const bool there = op.kind != OpKind::kSignal && part_of(op, piece.part).target == handle;
    if (there) piece.barred = Errc::kNotFound;
  }
}

void Transfers::key_revoked(const Peer& peer, CounterKey key) {
  if (!key) return;  // would be every write without an immediate
  dissolve_all();
  drop_entries_where(
      [&](const Op& op, const Entry& entry) {
        return entry.peer == peer.slot && part_of(op, entry.part).imm == key;
      },
      Errc::kReleased);
  for (Piece& piece : pieces_) {
    if (piece.op >= kProbe || piece.peer != peer.slot) continue;
    if (part_of(core_.ops.at(piece.op), piece.part).imm == key) piece.barred = Errc::kReleased;
  }
}

template <class F>
void Transfers::drop_entries_where(F&& wanted, Errc code) {
  std::vector<OpId> running;
  for (uint32_t i = core_.running_head; i != kNone; i = core_.ops.at(i).running_next) {
    if (is_transfer(core_.ops.at(i).kind)) running.push_back(core_.ops.at(i).id());
  }
  for (const OpId id : running) {
    Op* op = core_.ops.find(id);
    if (op == nullptr) continue;
    ++op->pieces_posted;  // holds it
    for (uint32_t index = op->entries; index != kNone;) {
      const uint32_t next = entries_.at(index).op_next;
      if (wanted(*op, entries_.at(index))) drop_entry(index, code);
      index = next;
    }
    --op->pieces_posted;
    finish_if_ended(*op);
  }
}

uint64_t Transfers::oldest_piece(const Peer& peer) const noexcept {
  uint64_t oldest = UINT64_MAX;
  for (const auto& rails : peer.paths) {
    for (const uint32_t index : rails) {
      if (index == kNone) continue;
      const Path& path = *paths_[index];
      if (path.first_piece != kNone) oldest = std::min(oldest, pieces_[path.first_piece].seq);
      oldest = std::min(oldest, path.stranded_seq);
    }
  }
  trains_.each([&](const Train& train) {
    if (train.whole && train.peer == &peer) oldest = std::min(oldest, train.seq);
  });
  // Of what a broken path carried only the target knows, whether or not anybody still waits for it.
  for (const auto& wreck : wrecks_) {
    if (wreck->peer == peer.slot) oldest = std::min(oldest, wreck->oldest_seq);
  }
  return oldest;
}

uint64_t Transfers::queued_parts(const Op& op) noexcept {
  uint64_t n = 0;
  for (uint32_t i = op.entries; i != kNone; i = entries_.at(i).op_next) n += entries_.at(i).count;
  return n;
}

uint64_t Transfers::queued_on(const Path& path) noexcept {
  uint64_t n = 0;
  for (const EntryQueue& queue : path.queue) {
    for (uint32_t i = queue.head; i != kNone; i = entries_.at(i).next) n += entries_.at(i).count;
  }
  return n;
}

bool Transfers::idle() const noexcept {
  const bool idle = std::all_of(paths_.begin(), paths_.end(),
                                [](const auto& path) { return path->state == Path::State::kFree; });
  // A leak: nothing is left that could give them back.
  FABRIC_DCHECK(!idle || pieces_free_ == pieces_.size(), "a piece outlives its path");
  FABRIC_DCHECK(!idle || trains_.empty(), "a train outlives its path");
  FABRIC_DCHECK(!idle || wrecks_.empty(), "a wreck outlives its peer");
  FABRIC_DCHECK(!idle || entries_.held() == 0, "an entry outlives its operation");
  return idle;
}

}  // namespace fabric::core

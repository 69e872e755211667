#include <algorithm>
#include <utility>

#include "core/inflight.h"

// What happens to the pieces of a connection that broke (P10, docs/design/0008-failover.md).
//
// Only the target knows what it took. So a piece that a break gave back is stranded: it waits with
// its connection's wreck until the target has closed its end too, drained it, and said how many
// immediates came through. Everything up to that one was delivered, everything behind it never will
// be, and is sent again: same cut, same immediate, by another path.

namespace fabric::core {

namespace {
constexpr int64_t kRestNs = 10'000'000;         // after the second failure in a row; doubles ...
constexpr int64_t kRestMaxNs = 1'000'000'000;   // ... up to here
constexpr int64_t kProbeMaxNs = 1'000'000'000;  // a NIC that retries for ever is not waited for
constexpr int64_t kWrecksMax = 1024;            // of one peer

int64_t rest_ns(uint32_t failures) {
  if (failures <= 1) return 0;
  return std::min(kRestMaxNs, kRestNs << std::min(failures - 2, 16u));
}

/// Not one of several slices that only together are covered by a count.
bool is_whole(const Op& op, const Piece& piece) {
  return op.kind != OpKind::kWrite || piece.shard.end - piece.shard.begin == piece.wire.size_bytes;
}

uint64_t slices_before(const Op& op, const Shard& shard, uint64_t offset) {
  return offset == shard.begin ? 0 : (offset - shard.begin - 1) / op.slice_bytes + 1;
}
}  // namespace

// ---- Rails --------------------------------------------------------------------------------------

/// Where new work for the peer goes: rails with a good path or none yet; if every path is in doubt,
/// all rails that are up, so that it waits for the first that comes back.
Transfers::UpRails Transfers::up_rails(const Peer& peer, const NetworkSlot& network) const {
  const auto& paths = peer.paths[network.rails[0].network];
  UpRails good, up;
  for (const RailSlot& rail : network.rails) {
    if (!rail.up) continue;
    up.index[up.count++] = rail.index;
    const uint32_t path = paths[rail.index];
    const bool doubtful =
        path != kNone && (paths_[path]->suspect || paths_[path]->state == Path::State::kClosing);
    if (!doubtful) good.index[good.count++] = rail.index;
  }
  return good.count > 0 ? good : up;
}

void Transfers::on_rail_state(NetworkSlot& network, RailSlot& rail, const WireEvent& event) {
  const bool up = event.kind == WireEvent::Kind::kRailUp;
  if (std::exchange(rail.up, up) == up) return;
  routes_changed();
  core_.steps.take(up ? Step::kRailUp : Step::kRailDown);
  FABRIC_LOG(core_.log, kWarning, "core", up ? "a rail came back" : "a rail went down",
             {"network", network.name}, {"rail", rail.index});
  core_.report.publish(Event{.kind = EventKind::kRail, .code = event.code, .rail = rail.index});
  for (size_t i = 0; i < paths_.size(); ++i) {
    Path& path = *paths_[i];
    if (path.network != rail.network || path.rail != rail.index) continue;
    if (!up && path.state == Path::State::kResting) {
      path.retry_ns = kNeverNs;  // opened on a dead rail, it could die without another word
    } else if (!up) {
      close_path(path);
    } else if (path.state == Path::State::kResting) {
      path.failures = 0;
      path.retry_ns = core_.now_ns;
      next_ns_ = std::min(next_ns_, path.retry_ns);
    }
  }
  // A port event is as good a reason as any other: the senders are told what came in by it.
  if (!up) core_.peers.rail_lost(rail.network, rail.index);
  if (core_.config.reroute) core_.peers.choose_routes_again();
}

// ---- Paths that broke ---------------------------------------------------------------------------

/// A break says nothing of what the target did; a refusal does, and is the end of its piece. Where
/// the target keeps no account there is nothing to wait for either.
bool Transfers::may_strand(const Piece& piece, const Path& path, const PieceEnd& end) const {
  if (end.code != Errc::kRailLost || path.peer_gone || !exact(path)) return false;
  const Op& op = core_.ops.at(piece.op);
  const bool bound_passed =
      op.stage.load(std::memory_order_relaxed) == OpStage::kDraining && op.step > 1;
  return !bound_passed;
}

bool Transfers::exact(const Path& path) const noexcept {
  return core_.networks[path.network].rails[path.rail].caps.exact_replay;
}

/// A network without connections gave one piece up. The others on the path are not touched, but new
/// work goes elsewhere until a probe has come back. True: the piece goes again, because it
/// certainly did not arrive. What may have arrived is never sent again, counted or not: the first
/// copy could land after the second was reported as done.
bool Transfers::given_up(const Piece& piece, Path& path, const PieceEnd& end) {
  if (end.code != Errc::kRailLost || path.peer_gone || exact(path)) return false;
  if (end.remote == Remote::kUnknown) {
    core_.peers.at(path.peer)->unproved = true;
    core_.steps.take(Step::kPieceGivenUp);
  }
  if (path.state == Path::State::kReady && !std::exchange(path.suspect, true)) {
    routes_changed();
    ++path.failures;
    // Not posted here: the end of the path may be among the events that are being looked at.
    path.retry_ns = core_.now_ns;
    next_ns_ = std::min(next_ns_, path.retry_ns);
    reroute(path);
  }
  Op& op = core_.ops.at(piece.op);
  const bool again = end.remote == Remote::kNotDelivered && (is_whole(op, piece) || !op.imm) &&
                     piece.barred == Errc::kOk && may_repeat(op);
  if (!again) return false;
  core_.steps.take(Step::kPieceGivenUpAgain);
  Entry entry{.part = piece.part, .count = 1};
  if (op.kind == OpKind::kWrite) {
    entry.offset = piece.offset;
    entry.size_bytes = piece.wire.size_bytes;
    entry.shard = {piece.offset, piece.offset + piece.wire.size_bytes};
  }
  send_again(op, *core_.peers.at(piece.peer), path.network, entry);
  --op.pieces_posted;
  finish_if_ended(op);
  return true;
}

/// Whether a piece of the operation that was not delivered is worth sending again.
bool Transfers::may_repeat(const Op& op) const noexcept {
  if (op.stage.load(std::memory_order_relaxed) == OpStage::kDraining) return false;
  return op.kind != OpKind::kWrite || op.shards_failed == 0;
}

void Transfers::strand(uint32_t cookie, Path& path, const PieceEnd& end) {
  Piece& piece = pieces_[cookie];
  piece.stranded = true;
  core_.steps.take(Step::kPieceStranded);
  piece.end = end;
  piece.prev = piece.next = kNone;
  path.stranded_seq = std::min(path.stranded_seq, piece.seq);
  // Completions may come in any order; what is sent again keeps the order of posting.
  const auto at = std::find_if(path.stranded.begin(), path.stranded.end(),
                               [&](uint32_t other) { return pieces_[other].seq > piece.seq; });
  path.stranded.insert(at, cookie);
  // Whoever sees a reason tears its end down; it need not be told twice.
  close_path(path);
}

/// Leaves a connection behind that this side has drained, and asks the target for its word.
void Transfers::make_wreck(Path& path) {
  Peer& peer = *core_.peers.at(path.peer);
  auto wreck = std::make_unique<Wreck>();
  wreck->peer = path.peer;
  wreck->ref = path.ref;
  wreck->network = path.network;
  wreck->rail = path.rail;
  wreck->imms_done = std::exchange(path.imms_done, 0);
  wreck->pieces = std::exchange(path.stranded, {});
  wreck->oldest_seq = std::exchange(path.stranded_seq, UINT64_MAX);
  path.imms_posted = 0;
  path.started = false;
  for (EntryQueue& queue : path.queue) {
    for (uint32_t i = queue.head; i != kNone;) {
      const uint32_t next = entries_.at(i).next;
      const Entry& entry = entries_.at(i);
      // Its earlier slices went by the old connection; only together are they covered by a count.
      if (core_.ops.at(entry.op).kind == OpKind::kWrite && entry.offset != entry.shard.begin) {
        entries_.unlink(i);
        entries_.append(wreck->begun, i);
      }
      i = next;
    }
  }
  const FarEnd far = std::exchange(path.far, {});
  wrecks_.push_back(std::move(wreck));
  const auto owed = std::count_if(wrecks_.begin(), wrecks_.end(),
                                  [&](const auto& w) { return w->peer == peer.slot; });
  if (owed > kWrecksMax) {
    FABRIC_LOG(core_.log, kWarning, "core", "a peer never says what became of its paths",
               {"peer", peer.id()});
    core_.peers.lose(peer, PeerState::kLost, Errc::kExhausted, true);
    return;
  }
  if (far.said) {
    settle(*wrecks_.back(), far);
    return;
  }
  core_.peers.send(peer, control::MessageType::kPathClose,
                   control::encode(control::PathClose{.ref = path.ref}));
}

void Transfers::path_state(Peer& peer, const control::PathState& state) {
  const FarEnd far{.said = true, .exact = state.exact, .taken = state.taken};
  const auto wreck = std::find_if(wrecks_.begin(), wrecks_.end(), [&](const auto& w) {
    return w->peer == peer.slot && w->ref == state.ref;
  });
  if (wreck != wrecks_.end()) {
    settle(**wreck, far);
    return;
  }
  const auto path = std::find_if(paths_.begin(), paths_.end(), [&](const auto& p) {
    return p->peer == peer.slot && p->ref == state.ref && p->state != Path::State::kFree &&
           p->state != Path::State::kResting;
  });
  if (path == paths_.end()) return;  // of a path that never carried anything
  // The peer's word is a reason like an error of our own.
  (*path)->far = far;
  (*path)->far_closed = true;
  close_path(**path);
}

void Transfers::drop_wreck(size_t at) {
  wrecks_.erase(wrecks_.begin() + static_cast<std::ptrdiff_t>(at));
}

/// By value: `end` may be the piece's own, whose slot is given back.
void Transfers::end_stranded(uint32_t cookie, PieceEnd end) {
  const Piece piece = pieces_[cookie];
  std::erase(paths_[piece.path]->stranded, cookie);
  for (const auto& wreck : wrecks_) std::erase(wreck->pieces, cookie);
  give_piece(cookie);
  end_piece(piece, end);
}

void Transfers::settle(Wreck& wreck, const FarEnd& far) {
  Peer& peer = *core_.peers.at(wreck.peer);
  const uint32_t ref = wreck.ref;
  const RailSlot& rail = core_.networks[wreck.network].rails[wreck.rail];
  if (rail.caps.exact_replay && far.taken < wreck.imms_done) {
    // It acknowledged what it never counted: its NIC died in between, or its queue overflowed. We
    // have said ok to somebody, so nobody may go on as if nothing had happened.
    FABRIC_LOG(core_.log, kError, "core", "a peer acknowledged counts that it never took",
               {"peer", peer.id()}, {"acknowledged", wreck.imms_done}, {"taken", far.taken});
    core_.peers.lose(peer, PeerState::kLost, Errc::kPeerLost, true);
    return;
  }
  if (!far.exact && !wreck.pieces.empty()) {
    peer.unproved = true;
    core_.steps.take(Step::kSettledUnproved);
  }
  settle_pieces(wreck, far);
  const auto at = std::find_if(wrecks_.begin(), wrecks_.end(), [&](const auto& w) {
    return w->peer == peer.slot && w->ref == ref;
  });
  if (at != wrecks_.end()) drop_wreck(static_cast<size_t>(at - wrecks_.begin()));
  core_.peers.check_drains(peer);
}

void Transfers::settle_pieces(Wreck& wreck, const FarEnd& far) {
  while (!wreck.pieces.empty()) {
    const uint32_t cookie = wreck.pieces.front();
    const Piece& piece = pieces_[cookie];
    const Op& op = core_.ops.at(piece.op);
    const bool took = far.exact && piece.imms_before < far.taken;
    // A piece that never left needs nobody's word, but a slice stands and falls with its shard.
    const bool never_left = piece.end.remote == Remote::kNotDelivered;
    const bool not_taken = far.exact || (never_left && is_whole(op, piece));
    if (took) {
      core_.steps.take(Step::kPieceFoundTaken);
      end_stranded(cookie, {Errc::kOk, Remote::kDelivered});
    } else if (not_taken && piece.barred != Errc::kOk) {
      end_stranded(cookie, {piece.barred, Remote::kNotDelivered});
    } else if (not_taken && may_repeat(op)) {
      repeat(wreck, cookie);
    } else {
      end_stranded(cookie, {Errc::kRailLost, not_taken ? Remote::kNotDelivered : Remote::kUnknown});
    }
  }
  while (!wreck.begun.empty()) {
    const Entry entry = entries_.at(wreck.begun.head);
    Op& op = core_.ops.at(entry.op);
    if (far.exact && may_repeat(op)) {
      repeat_shard(wreck, op, entry.shard, entry.offset);
    } else {
      drop_entry(wreck.begun.head, Errc::kRailLost);
    }
  }
}

/// Turns a piece that was not delivered into queued work again. A slice takes its shard with it.
void Transfers::repeat(Wreck& wreck, uint32_t cookie) {
  const Piece piece = pieces_[cookie];
  Op& op = core_.ops.at(piece.op);
  if (op.kind == OpKind::kWrite) {
    repeat_shard(wreck, op, piece.shard, piece.offset);
    return;
  }
  core_.steps.take(Step::kPieceRepeated);
  std::erase(wreck.pieces, cookie);
  give_piece(cookie);
  send_again(op, *core_.peers.at(wreck.peer), wreck.network, {.part = piece.part, .count = 1});
  --op.pieces_posted;
  finish_if_ended(op);
}

/// Sends a shard again from its beginning: its count must come by the path of all its bytes.
/// `from`: the first byte whose end the operation has not been told yet.
void Transfers::repeat_shard(Wreck& wreck, Op& op, const Shard& shard, uint64_t from) {
  core_.steps.take(Step::kShardRepeated);
  ++op.pieces_posted;  // holds it
  const auto mine = [&](const Piece& piece) { return piece.op == op.self && piece.shard == shard; };
  std::erase_if(wreck.pieces, [&](uint32_t cookie) {
    if (!mine(pieces_[cookie])) return false;
    give_piece(cookie);
    --op.pieces_posted;
    return true;
  });
  for (uint32_t i = wreck.begun.head; i != kNone;) {
    const uint32_t next = entries_.at(i).next;
    if (entries_.at(i).op == op.self && entries_.at(i).shard == shard) {
      entries_.unlink(i);
      unlink_from_op(op, i);
      entries_.give_back(i);
    }
    i = next;
  }
  op.shards_ended -= static_cast<uint32_t>(slices_before(op, shard, from));
  op.bytes_delivered -= from - shard.begin;
  Entry entry{.count = 1, .offset = shard.begin, .size_bytes = shard.end - shard.begin};
  entry.shard = shard;
  send_again(op, *core_.peers.at(wreck.peer), wreck.network, entry);
  --op.pieces_posted;
  finish_if_ended(op);
}

void Transfers::send_again(Op& op, Peer& peer, uint8_t network_index, Entry entry) {
  NetworkSlot& network = core_.networks[network_index];
  for (Traffic* t : {&peer.tx(), &core_.tx}) ++t->retried;
  const UpRails up = up_rails(peer, network);
  if (up.count == 0) {
    end_parts(op, entry, peer.id(), Errc::kRailLost);
    return;
  }
  enqueue(op, peer, network, up.index[peer.rotation++ % up.count], entry);
}

// ---- The next life of a path --------------------------------------------------------------------

/// A connection is over. What was queued for it goes elsewhere if it can, and the path is tried
/// again: at once when it was closed on purpose, with growing rests when it breaks again and again.
void Transfers::next_life(Path& path, bool on_purpose) {
  // Closed before it proved that it works, or by the other side: it is left alone for a while too.
  if (!on_purpose || path.suspect || path.far_closed) ++path.failures;
  path.far_closed = false;
  path.suspect = true;
  path.broke = false;
  path.probe = kNone;
  path.far = {};
  path.stranded.clear();
  rest(path);
  reroute(path);
}

void Transfers::rest(Path& path) {
  core_.steps.take(Step::kPathRested);
  path.state = Path::State::kResting;
  path.retry_ns = core_.now_ns + rest_ns(path.failures);
  if (core_.networks[path.network].rails[path.rail].up) {
    next_ns_ = std::min(next_ns_, path.retry_ns);
  } else {
    path.retry_ns = kNeverNs;  // on_rail_state() sets it when the rail comes back
  }
}

/// Moves what is queued on a path in doubt to good ones, if there are any.
void Transfers::reroute(Path& path) {
  Peer& peer = *core_.peers.at(path.peer);
  NetworkSlot& network = core_.networks[path.network];
  const UpRails up = up_rails(peer, network);
  if (up.count == 0) {
    drop_path_entries(path, Errc::kRailLost);
    return;
  }
  const auto own = std::find(up.index.begin(), up.index.begin() + up.count, path.rail);
  if (own != up.index.begin() + up.count) return;  // no better one
  for (EntryQueue& queue : path.queue) {
    for (uint32_t index = queue.head, next = kNone; index != kNone; index = next) {
      const Entry& entry = entries_.at(index);
      next = entry.next;
      // What went before it went by this path, and only there does its count cover it.
      const bool begun = entry.offset != entry.shard.begin;
      if (core_.ops.at(entry.op).kind == OpKind::kWrite && begun) continue;
      Path* to = path_for(peer, network, up.index[peer.rotation++ % up.count]);
      if (to == nullptr) {
        drop_entry(index, Errc::kUnreachable);
      } else {
        move_entry(index, *to);
      }
    }
  }
}

void Transfers::move_entry(uint32_t entry_index, Path& to) {
  Entry& entry = entries_.at(entry_index);
  const auto priority = static_cast<uint32_t>(core_.ops.at(entry.op).priority);
  entries_.unlink(entry_index);
  entry.path = to.index;
  entries_.append(to.queue[priority], entry_index);
  activate(to, priority);
}

uint32_t Transfers::tick(int64_t now_ns) {
  if (now_ns < next_ns_) return 0;
  next_ns_ = kNeverNs;
  uint32_t done = 0;
  for (size_t i = 0; i < paths_.size(); ++i) {
    Path& path = *paths_[i];
    if (path.state == Path::State::kResting && path.retry_ns <= now_ns) {
      ++done;
      Peer& peer = *core_.peers.at(path.peer);
      pair_rails(peer, path);
      if (open_path(peer, path) != Errc::kOk) {
        ++path.failures;
        rest(path);
        reroute(path);  // another rail may have become good meanwhile
      }
    } else if (path.state == Path::State::kReady && path.probe_until_ns <= now_ns) {
      ++done;
      close_path(path);
    } else if (path.state == Path::State::kReady && path.retry_ns <= now_ns) {
      ++done;
      start_probe(path);
    }
    if (path.state == Path::State::kResting) next_ns_ = std::min(next_ns_, path.retry_ns);
    if (path.state == Path::State::kReady) {
      next_ns_ = std::min({next_ns_, path.probe_until_ns, path.retry_ns});
    }
  }
  return done;
}

// ---- Probes -------------------------------------------------------------------------------------

/// Posts a write without bytes and without a count: it touches nothing and comes back if the host
/// at the other end answers.
void Transfers::start_probe(Path& path) {
  core_.steps.take(Step::kProbeSent);
  RailSlot& rail = core_.networks[path.network].rails[path.rail];
  const uint32_t cookie = take_piece();
  Piece& piece = pieces_[cookie];
  piece = Piece{};
  piece.op = kProbe;
  piece.path = path.index;
  piece.peer = path.peer;
  piece.seq = core_.peers.at(path.peer)->next_piece_seq++;
  piece.posted_ns = core_.now_ns;
  piece.priority = Priority::kUrgent;
  piece.wire.cookie = cookie;
  piece.wire.path = path.id;
  piece.wire.priority = static_cast<uint8_t>(Priority::kUrgent);
  piece.prev = path.last_piece;
  (path.last_piece == kNone ? path.first_piece : pieces_[path.last_piece].next) = cookie;
  path.last_piece = cookie;
  ++path.posted;
  ++rail.posted;
  path.probe = cookie;
  path.retry_ns = kNeverNs;
  path.probe_until_ns = core_.now_ns + kProbeMaxNs;
  next_ns_ = std::min(next_ns_, path.probe_until_ns);
  if (rail.refused.empty() && post(rail, {&piece.wire, 1}) == 1) return;
  rail.refused.push_back(piece.wire);
  refused_ = true;
}

void Transfers::probe_ended(Path& path, const PieceEnd& end) {
  core_.steps.take(end.code == Errc::kOk ? Step::kProbeAnswered : Step::kProbeFailed);
  routes_changed();
  path.probe = kNone;
  path.probe_until_ns = kNeverNs;
  if (end.code == Errc::kOk) {
    path.suspect = false;
    path.failures = 0;
    return;  // what is queued goes on with the end of this piece
  }
  if (exact(path)) {
    close_path(path);
  } else if (path.state == Path::State::kReady) {
    // There is no connection to set up again, and closing would cut off what may still arrive.
    path.suspect = true;
    ++path.failures;
    path.retry_ns = core_.now_ns + std::max(rest_ns(path.failures), kRestNs);
    next_ns_ = std::min(next_ns_, path.retry_ns);
  }
}

bool Transfers::can_probe(const Peer& peer) const noexcept {
  return std::any_of(peer.paths.begin(), peer.paths.end(), [&](const auto& rails) {
    return std::any_of(rails.begin(), rails.end(), [&](uint32_t index) {
      return index != kNone && paths_[index]->state == Path::State::kReady;
    });
  });
}

/// A write to the peer was given up without an answer. One path of several may be at fault: the
/// others are asked before anything is said of the peer.
void Transfers::nobody_answers(Peer& peer, const Path& failed) {
  bool asked = false;
  for (const auto& rails : peer.paths) {
    for (const uint32_t index : rails) {
      if (index == kNone || index == failed.index) continue;
      Path& path = *paths_[index];
      if (path.state != Path::State::kReady || path.suspect) continue;
      asked = true;
      ask_host(path);
    }
  }
  if (!asked) core_.peers.on_unreachable(peer);
}

/// What is in flight on it answers the question as well.
void Transfers::ask_host(Path& path) {
  if (path.posted > 0 || path.retry_ns != kNeverNs) return;
  path.retry_ns = core_.now_ns;  // not now: its rail may be in the middle of telling us something
  next_ns_ = std::min(next_ns_, path.retry_ns);
}

void Transfers::probe(Peer& peer) {
  for (const auto& rails : peer.paths) {
    for (const uint32_t index : rails) {
      if (index != kNone && paths_[index]->state == Path::State::kReady) ask_host(*paths_[index]);
    }
  }
}

}  // namespace fabric::core

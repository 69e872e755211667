#include "core/transfer.h"

#include <algorithm>

#include "base/check.h"
#include "core/inflight.h"

// Retiring and completing writes one by one, stopping operations, closing paths. Posting is in
// datapath.cc, routing in route.cc, the common case of a successful completion in fast_path.cc.
// State lock held throughout: on the worker, and on threads that cancel, disconnect or close.

namespace fabric::core {

Transfers::Transfers(EngineCore& core) : core_(core) {}

Transfers::PartSpec Transfers::part_of(const Op& op, uint32_t part) const noexcept {
  switch (op.kind) {
    case OpKind::kPaged: {
      PageCursor cursor;
      return page_of(op, part, cursor);
    }
    case OpKind::kListed: {
      const ListedWrite& write = op.listed[part];
      return {.target = op.target,
              .source_offset = op.source_offset + write.source_offset,
              .target_offset = op.target_offset + write.target_offset,
              .size_bytes = write.size_bytes,
              .counter_key = op.counter_key};
    }
    case OpKind::kScatter: {
      const ScatterTarget& target = op.list.as<ScatterTarget>()[part];
      return {.target = target.target.region,
              .source_offset = op.source_offset + target.source_offset,
              .target_offset = target.target.offset,
              .size_bytes = target.size_bytes,
              .counter_key = target.imm};
    }
    case OpKind::kSignal:
      return {.counter_key = op.list.as<SignalTarget>()[part].key};
    default:
      return {.target = op.target,
              .source_offset = op.source_offset,
              .target_offset = op.target_offset,
              .size_bytes = op.size_bytes,
              .counter_key = op.counter_key};
  }
}

Transfers::PartSpec Transfers::page_of(const Op& op, uint32_t part,
                                       PageCursor& cursor) const noexcept {
  const uint32_t page = op.inner_count == 1 ? part : part / op.inner_count;
  const uint32_t inner = part - page * op.inner_count;
  return {.target = op.target,
          .source_offset =
              op.source_offset + op.source_pages.offset_of(page, inner, cursor.run_at_source),
          .target_offset =
              op.target_offset + op.target_pages.offset_of(page, inner, cursor.run_at_target),
          .size_bytes = op.size_bytes,
          .counter_key = op.counter_key};
}

void Transfers::stop(Op& op, Errc code) {
  if (op.state.load(std::memory_order_relaxed) == OpState::kDraining) return;
  if (op.post_batch != kNone) expand_post_batch(op.post_batch);
  op.state.store(OpState::kDraining, std::memory_order_relaxed);
  op.stop_code = code;
  core_.protocol.count(op.inflight == 0 ? ProtocolEvent::kStoppedQueued
                                        : ProtocolEvent::kStoppedPosted);
  {
    const OpHold hold(op);  // until everything unposted has completed
    while (op.pending != kNone) drop_pending(op.pending, code);
    for (NetworkSlot& network : core_.networks) {
      for (RailSlot& rail : network.rails) {
        std::vector<uint32_t> withdrawn;
        std::erase_if(rail.backlog, [&](const WriteOp& wr) FABRIC_REQUIRES(state_lock) {
          if (inflight_[wr.cookie].op != op.slot) return false;
          withdrawn.push_back(wr.cookie);
          return true;
        });
        for (const uint32_t cookie : withdrawn) retire_write(cookie, {code, Remote::kNotDelivered});
      }
    }
  }
  if (op.parts_completed < op.parts) {
    // Three quarters of the bound for the NIC, the last quarter for the peer's drain report
    // (contracts.md P2).
    core_.timers.set(op.timer, core_.now_ns + core_.config.drain_timeout.count() / 4 * 3);
  }
  complete_if_done(op);
}

void Transfers::force_drain(Op& op) {
  expand_all();
  if (op.step++ == 0) {
    for (const InflightWrite& write : inflight_) {
      if (write.op != op.slot || write.in_doubt) continue;
      Path& path = *paths_[write.path];
      if (path.state != Path::State::kReady) continue;
      FABRIC_LOG(core_.log, kWarning, "core", "an operation does not drain: closing its path",
                 {"op", op.id()}, {"peer", core_.peers.at(path.peer)->id()}, {"rail", path.rail});
      core_.protocol.count(ProtocolEvent::kPathTornDown);
      close_path(path);
    }
    core_.timers.set(op.timer, core_.now_ns + core_.config.drain_timeout.count() / 4);
    return;
  }
  core_.protocol.count(ProtocolEvent::kDrainTimedOut);
  // The drain bound has passed: stops waiting for peers. What the NIC still holds retires with its
  // path.
  {
    const OpHold hold(op);
    for (uint32_t i = 0; i < inflight_.size(); ++i) {
      if (inflight_[i].op != op.slot || !inflight_[i].in_doubt) continue;
      complete_in_doubt(i, inflight_[i].status);
    }
  }
  complete_if_done(op);
}

void Transfers::retire_write(uint32_t cookie, const CompletionStatus& reported) {
  if (cookie >= inflight_.size() || inflight_[cookie].op == kNone || inflight_[cookie].in_doubt)
    return;
  if (reported.code == Errc::kOk && inflight_[cookie].op != kProbe) [[likely]] {
    retire_delivered(cookie);
    return;
  }
  InflightWrite& write = inflight_[cookie];
  Path& path = *paths_[write.path];
  RailSlot& rail = core_.networks[path.network].rails[path.rail];
  Peer& peer = *core_.peers.at(path.peer);
  close_inflight(write, path, rail);
  CompletionStatus status = reported;
  if (status.code != Errc::kOk && path.peer_lost) status.code = peer.lost_code;
  const size_t bucket = bucket_of(core_.now_ns - write.posted_ns);
  for (Traffic* t : {&rail.tx, &peer.tx()}) {
    ++t->ops;
    t->failed += status.code != Errc::kOk;
    ++t->post_to_done.bucket[bucket];
  }
  if (status.code == Errc::kOk || status.code == Errc::kRemoteAccess) {
    core_.peers.on_host_alive(peer, core_.now_ns);
  } else if (status.code == Errc::kRailLost && path.state == Path::State::kReady) {
    path.broke = replay_is_exact(path);  // it was ready: this side has not closed it
    if (status.remote == Remote::kUnknown && rail.up) on_ack_timeout(peer, path);
  }
  if (status.code == Errc::kOk) {
    path.imms_done += write.wr.has_imm;
  } else if (replay_is_exact(path) && write.imms_before != UINT64_MAX) {
    close_path(path);  // one failed write, and imms_before no longer match the target's count
  }

  if (write.op == kProbe) {
    give_back_inflight(cookie);
    complete_probe(path, status);
  } else if (goes_in_doubt(write, path, status)) {
    put_in_doubt(cookie, path, status);
  } else {
    // The operation does not wait for it any more, but it may still land: a drain of the peer has
    // to wait for the target's report. Where there is none, drain_unprovable is set at once.
    if (status.code == Errc::kRailLost && replay_is_exact(path)) {
      path.in_doubt_seq = std::min(path.in_doubt_seq, write.seq);
    }
    const InflightWrite retired = write;
    give_back_inflight(cookie);
    if (!on_given_up(retired, path, status)) {
      // Certainly not delivered; it would have been replayed but for that code.
      const bool no_replay = status.code == Errc::kRailLost &&
                             status.remote == Remote::kNotDelivered &&
                             retired.replay_error != Errc::kOk;
      if (no_replay) status.code = retired.replay_error;
      complete_inflight(retired, status);
    }
  }
  if (path.state == Path::State::kReady) {
    for (uint32_t p = 0; p < 3; ++p) activate(path, p);
  }
  core_.peers.check_drains(peer);
}

/// Completes the part or slice of a retired write, whose record was given back already. The
/// operation counts the write as in flight until the end, so that it does not complete inside.
void Transfers::complete_inflight(const InflightWrite& write, const CompletionStatus& status) {
  Op& op = core_.ops.at(write.op);
  const PeerId peer = core_.peers.at(write.peer)->id();
  if (SliceProgress* const sliced = slices_of(op, write.cut); sliced != nullptr) {
    if (status.code == Errc::kOk && write.wr.has_imm != 0) ++sliced->slices_counted;
    const bool complete =
        complete_slice(op, write.part, write.cut, peer, status, write.wr.size_bytes);
    // An immediate after a slice that did not arrive would vouch for bytes that are not there (P6).
    if (!complete && sliced->slices_failed > 0) drop_slices(op, write.cut, sliced->slice_code);
  } else {
    complete_part(op, write.part, peer, status, write.wr.size_bytes);
  }
  --op.inflight;
  complete_if_done(op);
}

/// Null: the part is one work request.
SliceProgress* Transfers::slices_of(Op& op, uint32_t cut) noexcept {
  if (cut != kNone) return &cut_targets_.at(cut);
  return op.kind == OpKind::kWrite ? &op : nullptr;
}

/// True: it was the last one, and the part has completed.
bool Transfers::complete_slice(Op& op, uint32_t part, uint32_t cut, PeerId peer,
                               const CompletionStatus& status, uint64_t bytes) {
  SliceProgress& sliced = *slices_of(op, cut);
  ++sliced.slices_completed;
  if (status.code == Errc::kOk) {
    op.bytes_delivered += bytes;
  } else {
    ++sliced.slices_failed;
    if (status.remote != Remote::kNotDelivered) ++sliced.slices_unknown;
    if (sliced.slice_code == Errc::kOk) sliced.slice_code = status.code;
  }
  if (sliced.slices_completed < sliced.slices) return false;
  CompletionStatus part_status{sliced.slice_code, Remote::kDelivered};
  if (sliced.slices_failed > 0) {
    // Nothing of it can land any more, but a shard that was counted has changed the counter.
    const bool known = sliced.slices_unknown == 0 && sliced.slices_counted == 0;
    part_status.remote = known ? Remote::kNotDelivered : Remote::kUnknown;
  }
  if (cut != kNone) cut_targets_.give_back(cut);
  complete_part(op, part, peer, part_status, 0);
  return true;
}

/// Completes what is pending of a write, or of one cut target of a scatter.
void Transfers::drop_slices(Op& op, uint32_t cut, Errc code) {
  for (uint32_t index = op.pending; index != kNone;) {
    const uint32_t next = pending_.at(index).op_next;
    if (pending_.at(index).cut == cut) drop_pending(index, code);
    index = next;
  }
}

void Transfers::complete_part(Op& op, uint32_t part, PeerId peer, const CompletionStatus& status,
                              uint64_t bytes) {
  ++op.parts_completed;
  if (status.code == Errc::kOk) {
    ++op.parts_delivered;
    op.bytes_delivered += bytes;
  } else {
    if (op.parts_failed == 0) {
      op.first_failed = part;
      op.failed_peer = peer;
      op.code = status.code;
    }
    ++op.parts_failed;
    if (status.remote == Remote::kUnknown) {
      ++op.parts_unknown;
      poison_key(op, part, peer, status.code);
    }
  }
  const Remote remote = status.code == Errc::kOk ? Remote::kDelivered : status.remote;
  const Errc code =
      status.code != Errc::kOk && op.stop_code != Errc::kOk ? op.stop_code : status.code;
  core_.reporter.report_part(op, {.part = part, .peer = peer, .code = code, .remote = remote});
}

/// A counted write whose delivery is unknown poisons its counter key: part of it and part of a
/// retry would count as one write (P10). The receiver then fails the expectations on the counter
/// key.
void Transfers::poison_key(const Op& op, uint32_t part, PeerId peer_id, Errc code) {
  const CounterKey key = part_of(op, part).counter_key;
  Peer* peer = core_.peers.find(peer_id);
  if (!key || peer == nullptr || !peer->usable()) return;
  core_.protocol.count(ProtocolEvent::kKeyPoisoned);
  core_.peers.send(*peer, control::MessageType::kAbortKey,
                   control::encode(control::AbortKey{.key = key.wire(), .code = code}));
}

void Transfers::complete_if_done(Op& op) {
  if (op.parts_completed < op.parts || (op.inflight | op.holds) != 0) return;
  core_.complete_transfer(op);
}

void Transfers::drop_path_pending(Path& path, Errc code) {
  for (PendingQueue& queue : path.queue) {
    while (!queue.empty()) drop_pending(queue.head, code);
  }
}

void Transfers::close_path(Path& path) {
  if (path.state != Path::State::kOpening && path.state != Path::State::kReady) return;
  begin_close(path);
  core_.networks[path.network].rails[path.rail].rail->close_path(path.id, false);
}

/// From here on nothing is posted on the path. What the rail never accepted is retired here,
/// because the rail will not report it.
void Transfers::begin_close(Path& path) {
  routes_changed();
  post_batches_.each([&](PostBatch& post_batch) FABRIC_REQUIRES(state_lock) {
    if (post_batch.compact && post_batch.uses(&path)) expand(post_batch);
  });
  path.state = Path::State::kClosing;
  path.probe_deadline_ns = kNeverNs;
  std::vector<uint32_t> withdrawn;
  std::erase_if(core_.networks[path.network].rails[path.rail].backlog,
                [&](const WriteOp& wr) FABRIC_REQUIRES(state_lock) {
                  if (wr.path != path.id) return false;
                  withdrawn.push_back(wr.cookie);
                  return true;
                });
  for (const uint32_t cookie : withdrawn) {
    retire_write(cookie, {Errc::kRailLost, Remote::kNotDelivered});
  }
}

void Transfers::on_path_down(const RailSlot& rail, const RailEvent& event) {
  const auto found =
      std::find_if(paths_.begin(), paths_.end(), [&](const auto& path) FABRIC_REQUIRES(state_lock) {
        return path->state != Path::State::kFree && path->state != Path::State::kBackingOff &&
               path->network == rail.network && path->rail == rail.index && path->id == event.path;
      });
  if (found == paths_.end()) return;
  Path& path = **found;
  if (path.state != Path::State::kClosing) {
    path.broke = true;
    begin_close(path);
  }
  FABRIC_CHECK(path.inflight == 0, "a path is down only after its last write has retired");
  path_down(path, event.code);
}

void Transfers::path_down(Path& path, Errc code) {
  routes_changed();
  Peer& peer = *core_.peers.at(path.peer);
  for (uint32_t p = 0; p < 3; ++p) {
    while (path.active[p]) deactivate(path, p);
  }
  if (code == Errc::kPeerLost && !path.peer_lost) {
    path.state = Path::State::kBackingOff;  // it has no connection
    core_.peers.on_peer_dead(peer);
    return;
  }
  const bool broke = path.broke;
  if (broke) {
    core_.protocol.count(ProtocolEvent::kPathBroke);
    FABRIC_LOG(core_.log, kWarning, "core", "a path broke", {"peer", peer.id()},
               {"rail", path.rail});
  }
  if (path.peer_lost || path.rejected) {
    drop_path_pending(path, path.peer_lost ? peer.lost_code : Errc::kUnreachable);
    peer.paths[path.network][path.rail] = kNone;
    free_path(path);
    core_.peers.check_drains(peer);
    return;
  }
  path.state = Path::State::kBackingOff;
  if (path.started) record_broken(path);
  // Reconciling it may have lost the peer, and the path with it.
  if (path.state == Path::State::kBackingOff) schedule_reopen(path, !broke);
}

void Transfers::stop_queued(Peer& peer, Errc code) {
  expand_all();
  while (!peer.waiting.empty()) drop_pending(peer.waiting.head, code);
  for (const auto& broken : broken_) {
    if (broken->peer != peer.slot) continue;
    while (!broken->partly_posted.empty()) drop_pending(broken->partly_posted.head, code);
  }
  // What a NIC fails later must not be replayed.
  for (InflightWrite& write : inflight_) {
    if (write.op < kProbe && write.peer == peer.slot) write.replay_error = code;
  }
  for (auto& rails : peer.paths) {
    for (const uint32_t index : rails) {
      if (index != kNone) drop_path_pending(*paths_[index], code);
    }
  }
}

void Transfers::peer_lost(Peer& peer, Errc code) {
  stop_queued(peer, code);
  for (auto& rails : peer.paths) {
    for (uint32_t& index : rails) {
      if (index == kNone) continue;
      Path& path = *paths_[index];
      path.peer_lost = true;
      for (const uint32_t cookie : std::exchange(path.in_doubt, {})) {
        complete_in_doubt(cookie, {code, inflight_[cookie].status.remote});
      }
      if (path.state == Path::State::kBackingOff) {
        index = kNone;  // it has no connection
        free_path(path);
      } else {
        close_path(path);
      }
    }
  }
  for (size_t at = broken_.size(); at > 0; --at) {
    BrokenConnection& broken = *broken_[at - 1];
    if (broken.peer != peer.slot) continue;
    for (const uint32_t cookie : std::exchange(broken.writes, {})) {
      if (inflight_[cookie].in_doubt)
        complete_in_doubt(cookie, {code, inflight_[cookie].status.remote});
    }
    drop_broken(at - 1);
  }
}

void Transfers::region_revoked(RemoteRegion handle) {
  expand_all();
  drop_pending_where(
      [&](const Op& op, const PendingFragment& fragment) FABRIC_REQUIRES(state_lock) {
        return op.kind != OpKind::kSignal && part_of(op, fragment.part).target == handle;
      },
      Errc::kNotFound);
  for (InflightWrite& write : inflight_) {
    if (write.op >= kProbe) continue;
    const Op& op = core_.ops.at(write.op);
    const bool there = op.kind != OpKind::kSignal && part_of(op, write.part).target == handle;
    if (there) write.replay_error = Errc::kNotFound;
  }
}

void Transfers::key_revoked(const Peer& peer, CounterKey key) {
  if (!key) return;  // it would match every write without an immediate
  expand_all();
  drop_pending_where(
      [&](const Op& op, const PendingFragment& fragment) FABRIC_REQUIRES(state_lock) {
        return fragment.peer == peer.slot && part_of(op, fragment.part).counter_key == key;
      },
      Errc::kReleased);
  for (InflightWrite& write : inflight_) {
    if (write.op >= kProbe || write.peer != peer.slot) continue;
    if (part_of(core_.ops.at(write.op), write.part).counter_key == key)
      write.replay_error = Errc::kReleased;
  }
}

template <class F>
void Transfers::drop_pending_where(F&& wanted, Errc code) {
  std::vector<OpId> running;
  for (uint32_t i = core_.running_head; i != kNone; i = core_.ops.at(i).running_next) {
    if (is_transfer(core_.ops.at(i).kind)) running.push_back(core_.ops.at(i).id());
  }
  for (const OpId id : running) {
    Op* op = core_.ops.find(id);
    if (op == nullptr) continue;
    {
      const OpHold hold(*op);
      for (uint32_t index = op->pending; index != kNone;) {
        const uint32_t next = pending_.at(index).op_next;
        if (wanted(*op, pending_.at(index))) drop_pending(index, code);
        index = next;
      }
    }
    complete_if_done(*op);
  }
}

uint64_t Transfers::oldest_inflight(const Peer& peer) const noexcept {
  uint64_t oldest = UINT64_MAX;
  for (const auto& rails : peer.paths) {
    for (const uint32_t index : rails) {
      if (index == kNone) continue;
      const Path& path = *paths_[index];
      if (path.first_inflight != kNone)
        oldest = std::min(oldest, inflight_[path.first_inflight].seq);
      oldest = std::min(oldest, path.in_doubt_seq);
    }
  }
  post_batches_.each([&](const PostBatch& post_batch) {
    if (post_batch.compact) oldest = std::min(oldest, post_batch.oldest_to(&peer));
  });
  // Writes of a broken connection may still land, even if their operation has completed by now.
  for (const auto& broken : broken_) {
    if (broken->peer == peer.slot) oldest = std::min(oldest, broken->oldest_seq);
  }
  return oldest;
}

uint64_t Transfers::queued_parts(const Op& op) noexcept {
  uint64_t n = 0;
  for (uint32_t i = op.pending; i != kNone; i = pending_.at(i).op_next) n += pending_.at(i).count;
  return n;
}

uint64_t Transfers::queued_on(const Path& path) noexcept {
  uint64_t n = 0;
  for (const PendingQueue& queue : path.queue) {
    for (uint32_t i = queue.head; i != kNone; i = pending_.at(i).next) n += pending_.at(i).count;
  }
  return n;
}

bool Transfers::idle() const noexcept {
  const bool idle =
      std::all_of(paths_.begin(), paths_.end(), [](const auto& path) FABRIC_REQUIRES(state_lock) {
        return path->state == Path::State::kFree;
      });
  // Otherwise it leaked: nothing is left that could give it back.
  FABRIC_DCHECK(!idle || free_inflight_count_ == inflight_.size(), "a write outlives its path");
  FABRIC_DCHECK(!idle || post_batches_.empty(), "a post batch outlives its path");
  FABRIC_DCHECK(!idle || broken_.empty(), "a broken connection outlives its peer");
  FABRIC_DCHECK(!idle || pending_.held() == 0, "a pending fragment outlives its operation");
  FABRIC_DCHECK(!idle || cut_targets_.held() == 0, "a cut target outlives its operation");
  return idle;
}

}  // namespace fabric::core

#include <algorithm>
#include <utility>

#include "core/inflight.h"

// Broken connections: which of their writes were delivered, and replay of the others
// (contracts.md P10, docs/design/0008-failover.md).
//
// Only the target knows what arrived. A write that was in flight when its connection broke is
// therefore in doubt: it stays with the BrokenConnection until the target has closed and drained
// its own end, and has reported how many immediates it received. Writes up to the last immediate
// that arrived were delivered. Later ones were not counted and can no longer land; those without an
// immediate may have landed already, which a replay does not change. They are replayed in the same
// shards and with the same immediates, on another path or on a new connection of this path.
//
// State lock held throughout: on the worker, and on threads that cancel, disconnect or close.

namespace fabric::core {

namespace {
constexpr int64_t kBackOffNs = 10'000'000;        // after the second failure in a row; doubles ...
constexpr int64_t kBackOffMaxNs = 1'000'000'000;  // ... up to here
constexpr int64_t kProbeMaxNs = 1'000'000'000;    // some NICs retry forever
constexpr int64_t kBrokenConnectionsMax = 1024;   // of one peer

int64_t back_off_ns(uint32_t failures) {
  if (failures <= 1) return 0;
  return std::min(kBackOffMaxNs, kBackOffNs << std::min(failures - 2, 16u));
}

/// True if the write is not a slice of a larger shard: its own immediate, if any, covers all of its
/// bytes.
bool is_unsliced(const Op& op, const InflightWrite& write) FABRIC_REQUIRES(state_lock) {
  const bool one_request = op.kind != OpKind::kWrite && write.cut == kNone;
  return one_request || write.shard.end - write.shard.begin == write.wr.size_bytes;
}

uint64_t slices_before(const SliceProgress& sliced, const Shard& shard, uint64_t offset) {
  return offset == shard.begin ? 0 : (offset - shard.begin - 1) / sliced.slice_bytes + 1;
}
}  // namespace

// ---- Rails --------------------------------------------------------------------------------------

/// The rails for new work to the peer: those whose path is good or not opened yet. If there are
/// none, all rails that are up, so that the work waits for the first path that recovers.
Transfers::RailSet Transfers::rails_for_new_work(const Peer& peer,
                                                 const NetworkSlot& network) const {
  const auto& paths = peer.paths[network.rails[0].network];
  RailSet good, up;
  for (const RailSlot& rail : network.rails) {
    if (!rail.up) continue;
    up.index[up.count++] = rail.index;
    const uint32_t path = paths[rail.index];
    const bool avoided = path != kNone && (paths_[path]->needs_probe ||
                                           paths_[path]->state == Path::State::kClosing);
    if (!avoided) good.index[good.count++] = rail.index;
  }
  return good.count > 0 ? good : up;
}

void Transfers::on_rail_state(NetworkSlot& network, RailSlot& rail, const RailEvent& event) {
  const bool up = event.kind == RailEvent::Kind::kRailUp;
  if (std::exchange(rail.up, up) == up) return;
  routes_changed();
  core_.protocol.count(up ? ProtocolEvent::kRailUp : ProtocolEvent::kRailDown);
  FABRIC_LOG(core_.log, kWarning, "core", up ? "a rail came back" : "a rail went down",
             {"network", network.name}, {"rail", rail.index});
  core_.reporter.publish(Event{.kind = EventKind::kRail, .code = event.code, .rail = rail.index});
  for (size_t i = 0; i < paths_.size(); ++i) {
    Path& path = *paths_[i];
    if (path.network != rail.network || path.rail != rail.index) continue;
    if (!up && path.state == Path::State::kBackingOff) {
      path.retry_ns = kNeverNs;  // a path opened on a rail that is down might never report its end
    } else if (!up) {
      close_path(path);
    } else if (path.state == Path::State::kBackingOff) {
      path.failures = 0;
      path.retry_ns = core_.now_ns;
      next_ns_ = std::min(next_ns_, path.retry_ns);
    }
  }
  // Inbound connections are closed too, and their senders get a drain report.
  if (!up) core_.peers.rail_lost(rail.network, rail.index);
  if (core_.config.reroute) core_.peers.reroute_all();
}

// ---- Paths that broke ---------------------------------------------------------------------------

/// Whether a failed write waits for a drain report. A lost connection leaves its delivery unknown;
/// every other error is final. On a network without exact replay the drain report could not decide
/// it.
bool Transfers::goes_in_doubt(const InflightWrite& write, const Path& path,
                              const CompletionStatus& status) const {
  if (status.code != Errc::kRailLost || path.peer_lost || !replay_is_exact(path)) return false;
  const Op& op = core_.ops.at(write.op);
  // The second force_drain() has run: the operation no longer waits for a report.
  const bool bound_passed =
      op.state.load(std::memory_order_relaxed) == OpState::kDraining && op.step > 1;
  return !bound_passed;
}

bool Transfers::replay_is_exact(const Path& path) const noexcept {
  return core_.networks[path.network].rails[path.rail].caps.exact_replay;
}

/// A network without exact replay (SRD) gave up on one write. The others on the path are not
/// affected, but new work uses other paths until a probe completes. Returns true if the write is
/// resent, because it certainly did not arrive. What may have arrived is never resent, with or
/// without an immediate: the first copy could land after the second has been reported as complete.
bool Transfers::on_given_up(const InflightWrite& write, Path& path,
                            const CompletionStatus& status) {
  if (status.code != Errc::kRailLost || path.peer_lost || replay_is_exact(path)) return false;
  if (status.remote == Remote::kUnknown) {
    core_.peers.at(path.peer)->drain_unprovable = true;
    core_.protocol.count(ProtocolEvent::kWriteGivenUp);
  }
  if (path.state == Path::State::kReady && !std::exchange(path.needs_probe, true)) {
    routes_changed();
    ++path.failures;
    // The probe is not posted here: the path may go down with an event of the current poll.
    path.retry_ns = core_.now_ns;
    next_ns_ = std::min(next_ns_, path.retry_ns);
    reroute(path);
  }
  Op& op = core_.ops.at(write.op);
  const bool again = status.remote == Remote::kNotDelivered &&
                     (is_unsliced(op, write) || !part_of(op, write.part).counter_key) &&
                     write.replay_error == Errc::kOk && may_replay(op, write.cut);
  if (!again) return false;
  core_.protocol.count(ProtocolEvent::kGivenUpWriteResent);
  PendingFragment fragment{.part = write.part, .count = 1, .cut = write.cut};
  if (slices_of(op, write.cut) != nullptr) {
    fragment.offset = write.offset;
    fragment.size_bytes = write.wr.size_bytes;
    fragment.shard = {write.offset, write.offset + write.wr.size_bytes};
  }
  resend(op, *core_.peers.at(write.peer), path.network, fragment);
  --op.inflight;
  complete_if_done(op);
  return true;
}

/// Whether a write of the operation that was not delivered should be replayed: not if its part has
/// failed already.
bool Transfers::may_replay(Op& op, uint32_t cut) noexcept {
  if (op.state.load(std::memory_order_relaxed) == OpState::kDraining) return false;
  const SliceProgress* const sliced = slices_of(op, cut);
  return sliced == nullptr || sliced->slices_failed == 0;
}

void Transfers::put_in_doubt(uint32_t cookie, Path& path, const CompletionStatus& status) {
  InflightWrite& write = inflight_[cookie];
  write.in_doubt = true;
  core_.protocol.count(ProtocolEvent::kWriteInDoubt);
  write.status = status;
  write.prev = write.next = kNone;
  path.in_doubt_seq = std::min(path.in_doubt_seq, write.seq);
  // Completions may come in any order; the replay keeps the order of posting.
  const auto at = std::find_if(
      path.in_doubt.begin(), path.in_doubt.end(),
      [&](uint32_t other) FABRIC_REQUIRES(state_lock) { return inflight_[other].seq > write.seq; });
  path.in_doubt.insert(at, cookie);
  // Either side closes its end when it sees an error.
  close_path(path);
}

/// Moves what is in doubt on a drained connection into a BrokenConnection, and requests the drain
/// report, unless the target has sent it already.
void Transfers::record_broken(Path& path) {
  Peer& peer = *core_.peers.at(path.peer);
  auto broken = std::make_unique<BrokenConnection>();
  broken->peer = path.peer;
  broken->ref = path.ref;
  broken->network = path.network;
  broken->rail = path.rail;
  broken->imms_done = std::exchange(path.imms_done, 0);
  broken->writes = std::exchange(path.in_doubt, {});
  broken->oldest_seq = std::exchange(path.in_doubt_seq, UINT64_MAX);
  path.imms_posted = 0;
  path.started = false;
  for (PendingQueue& queue : path.queue) {
    for (uint32_t i = queue.head; i != kNone;) {
      const uint32_t next = pending_.at(i).next;
      const PendingFragment& fragment = pending_.at(i);
      // Its earlier slices used the old connection. One immediate must cover them all.
      if (fragment.offset != fragment.shard.begin) {
        pending_.unlink(i);
        pending_.append(broken->partly_posted, i);
      }
      i = next;
    }
  }
  const DrainReport report = std::exchange(path.drain_report, {});
  broken_.push_back(std::move(broken));
  const auto unreconciled = std::count_if(broken_.begin(), broken_.end(),
                                          [&](const auto& connection) FABRIC_REQUIRES(state_lock) {
                                            return connection->peer == peer.slot;
                                          });
  if (unreconciled > kBrokenConnectionsMax) {
    FABRIC_LOG(core_.log, kWarning, "core", "a peer never sends drain reports: closing the session",
               {"peer", peer.id()});
    core_.peers.lose(peer, PeerState::kLost, Errc::kExhausted, true);
    return;
  }
  if (report.received) {
    reconcile(*broken_.back(), report);
    return;
  }
  core_.peers.send(peer, control::MessageType::kPathClose,
                   control::encode(control::PathClose{.ref = path.ref}));
}

void Transfers::on_drain_report(Peer& peer, const control::PathDrained& state) {
  const DrainReport report{
      .received = true, .exact = state.exact, .imms_received = state.imms_received};
  const auto broken = std::find_if(
      broken_.begin(), broken_.end(), [&](const auto& connection) FABRIC_REQUIRES(state_lock) {
        return connection->peer == peer.slot && connection->ref == state.ref;
      });
  if (broken != broken_.end()) {
    reconcile(**broken, report);
    return;
  }
  const auto path =
      std::find_if(paths_.begin(), paths_.end(), [&](const auto& p) FABRIC_REQUIRES(state_lock) {
        return p->peer == peer.slot && p->ref == state.ref && p->state != Path::State::kFree &&
               p->state != Path::State::kBackingOff;
      });
  if (path == paths_.end()) return;  // of a path that never carried a write
  // The target closed its end first: close ours, as after an error.
  (*path)->drain_report = report;
  (*path)->remote_closed = true;
  close_path(**path);
}

void Transfers::drop_broken(size_t at) {
  broken_.erase(broken_.begin() + static_cast<std::ptrdiff_t>(at));
}

/// `status` by value: it may refer into the InflightWrite that is freed here.
void Transfers::complete_in_doubt(uint32_t cookie, CompletionStatus status) {
  const InflightWrite write = inflight_[cookie];
  std::erase(paths_[write.path]->in_doubt, cookie);
  for (const auto& broken : broken_) std::erase(broken->writes, cookie);
  give_back_inflight(cookie);
  complete_inflight(write, status);
}

void Transfers::reconcile(BrokenConnection& broken, const DrainReport& report) {
  Peer& peer = *core_.peers.at(broken.peer);
  const uint32_t ref = broken.ref;
  const RailSlot& rail = core_.networks[broken.network].rails[broken.rail];
  if (rail.caps.exact_replay && report.imms_received < broken.imms_done) {
    // The target acknowledged immediates that it never received: its NIC failed in between, or its
    // queue overflowed. Their writes were reported as delivered, so the session cannot continue.
    FABRIC_LOG(core_.log, kError, "core", "a peer acknowledged immediates that it never received",
               {"peer", peer.id()}, {"acknowledged", broken.imms_done},
               {"received", report.imms_received});
    core_.peers.lose(peer, PeerState::kLost, Errc::kPeerLost, true);
    return;
  }
  if (!report.exact && !broken.writes.empty()) {
    peer.drain_unprovable = true;
    core_.protocol.count(ProtocolEvent::kReconciledUnproved);
  }
  reconcile_writes(broken, report);
  const auto at = std::find_if(broken_.begin(), broken_.end(),
                               [&](const auto& connection) FABRIC_REQUIRES(state_lock) {
                                 return connection->peer == peer.slot && connection->ref == ref;
                               });
  if (at != broken_.end()) drop_broken(static_cast<size_t>(at - broken_.begin()));
  core_.peers.check_drains(peer);
}

void Transfers::reconcile_writes(BrokenConnection& broken, const DrainReport& report) {
  while (!broken.writes.empty()) {
    const uint32_t cookie = broken.writes.front();
    const InflightWrite& write = inflight_[cookie];
    Op& op = core_.ops.at(write.op);
    const bool delivered = report.exact && write.imms_before < report.imms_received;
    // A write that was not sent needs no report, but a slice must be decided with its shard.
    const bool not_sent = write.status.remote == Remote::kNotDelivered;
    const bool not_delivered = report.exact || (not_sent && is_unsliced(op, write));
    if (delivered) {
      core_.protocol.count(ProtocolEvent::kWriteFoundDelivered);
      complete_in_doubt(cookie, {Errc::kOk, Remote::kDelivered});
    } else if (not_delivered && write.replay_error != Errc::kOk) {
      complete_in_doubt(cookie, {write.replay_error, Remote::kNotDelivered});
    } else if (not_delivered && may_replay(op, write.cut)) {
      replay(broken, cookie);
    } else {
      complete_in_doubt(
          cookie, {Errc::kRailLost, not_delivered ? Remote::kNotDelivered : Remote::kUnknown});
    }
  }
  while (!broken.partly_posted.empty()) {
    const PendingFragment fragment = pending_.at(broken.partly_posted.head);
    Op& op = core_.ops.at(fragment.op);
    if (report.exact && may_replay(op, fragment.cut)) {
      replay_shard(broken, op, fragment);
    } else {
      drop_pending(broken.partly_posted.head, Errc::kRailLost);
    }
  }
}

/// Makes a write that was not delivered pending again; a slice, with its entire shard.
void Transfers::replay(BrokenConnection& broken, uint32_t cookie) {
  const InflightWrite write = inflight_[cookie];
  Op& op = core_.ops.at(write.op);
  if (slices_of(op, write.cut) != nullptr) {
    replay_shard(
        broken, op,
        {.part = write.part, .offset = write.offset, .shard = write.shard, .cut = write.cut});
    return;
  }
  core_.protocol.count(ProtocolEvent::kWriteReplayed);
  std::erase(broken.writes, cookie);
  give_back_inflight(cookie);
  resend(op, *core_.peers.at(broken.peer), broken.network, {.part = write.part, .count = 1});
  --op.inflight;
  complete_if_done(op);
}

/// Replays a shard from its beginning: its immediate must use the same path as all of its bytes.
/// Everything before `rest.offset` has completed, and is subtracted from the progress again.
void Transfers::replay_shard(BrokenConnection& broken, Op& op, PendingFragment rest) {
  core_.protocol.count(ProtocolEvent::kShardReplayed);
  {
    const OpHold hold(op);
    std::erase_if(broken.writes, [&](uint32_t cookie) FABRIC_REQUIRES(state_lock) {
      const InflightWrite& write = inflight_[cookie];
      if (write.op != op.slot || write.cut != rest.cut || write.shard != rest.shard) return false;
      give_back_inflight(cookie);
      --op.inflight;
      return true;
    });
    for (uint32_t i = broken.partly_posted.head; i != kNone;) {
      const PendingFragment& other = pending_.at(i);
      const uint32_t next = other.next;
      if (other.op == op.slot && other.cut == rest.cut && other.shard == rest.shard) {
        pending_.unlink(i);
        unlink_from_op(op, i);
        pending_.give_back(i);
      }
      i = next;
    }
    SliceProgress& sliced = *slices_of(op, rest.cut);
    sliced.slices_completed -=
        static_cast<uint32_t>(slices_before(sliced, rest.shard, rest.offset));
    op.bytes_delivered -= rest.offset - rest.shard.begin;
    resend(op, *core_.peers.at(broken.peer), broken.network,
           {.part = rest.part,
            .count = 1,
            .offset = rest.shard.begin,
            .size_bytes = rest.shard.end - rest.shard.begin,
            .shard = rest.shard,
            .cut = rest.cut});
  }
  complete_if_done(op);
}

void Transfers::resend(Op& op, Peer& peer, uint8_t network_index, PendingFragment fragment) {
  NetworkSlot& network = core_.networks[network_index];
  for (Traffic* t : {&peer.tx(), &core_.tx}) ++t->retried;
  const RailSet up = rails_for_new_work(peer, network);
  if (up.count == 0) {
    complete_unposted(op, fragment, peer.id(), Errc::kRailLost);
    return;
  }
  const uint32_t rail = deal_one(network, up, bytes_to_post(op, fragment));
  enqueue(op, peer, network, rail, fragment);
}

// ---- Opening a path again -----------------------------------------------------------------------

/// A connection is closed. What is queued on the path moves to others if there are better ones. The
/// path is opened again: at once if this side closed it on purpose, with growing back-off if it
/// fails repeatedly.
void Transfers::schedule_reopen(Path& path, bool on_purpose) {
  // Closed before a probe completed, or by the target: that counts as a failure as well.
  if (!on_purpose || path.needs_probe || path.remote_closed) ++path.failures;
  path.remote_closed = false;
  path.needs_probe = true;
  path.broke = false;
  path.probe = kNone;
  path.drain_report = {};
  path.in_doubt.clear();
  back_off(path);
  reroute(path);
}

void Transfers::back_off(Path& path) {
  core_.protocol.count(ProtocolEvent::kPathBackedOff);
  path.state = Path::State::kBackingOff;
  path.retry_ns = core_.now_ns + back_off_ns(path.failures);
  if (core_.networks[path.network].rails[path.rail].up) {
    next_ns_ = std::min(next_ns_, path.retry_ns);
  } else {
    path.retry_ns = kNeverNs;  // on_rail_state() sets it when the rail comes back
  }
}

/// Moves what is queued on a path that is not good to good ones, if there are any.
void Transfers::reroute(Path& path) {
  Peer& peer = *core_.peers.at(path.peer);
  NetworkSlot& network = core_.networks[path.network];
  const RailSet up = rails_for_new_work(peer, network);
  if (up.count == 0) {
    drop_path_pending(path, Errc::kRailLost);
    return;
  }
  const auto own = std::find(up.index.begin(), up.index.begin() + up.count, path.rail);
  if (own != up.index.begin() + up.count) return;  // this path is as good as any
  for (PendingQueue& queue : path.queue) {
    for (uint32_t index = queue.head, next = kNone; index != kNone; index = next) {
      const PendingFragment& fragment = pending_.at(index);
      next = fragment.next;
      // Its earlier slices used this path. One immediate must cover them all.
      if (fragment.offset != fragment.shard.begin) continue;
      const uint64_t bytes = bytes_to_post(core_.ops.at(fragment.op), fragment);
      Path* to = path_for(peer, network, deal_one(network, up, bytes));
      if (to == nullptr) {
        drop_pending(index, Errc::kUnreachable);
      } else {
        move_pending(index, *to);
      }
    }
  }
}

void Transfers::move_pending(uint32_t index, Path& to) {
  PendingFragment& fragment = pending_.at(index);
  const auto priority = static_cast<uint32_t>(core_.ops.at(fragment.op).priority);
  pending_.unlink(index);
  fragment.path = to.index;
  pending_.append(to.queue[priority], index);
  activate(to, priority);
}

uint32_t Transfers::tick(int64_t now_ns) {
  if (now_ns < next_ns_) return 0;
  next_ns_ = kNeverNs;
  uint32_t done = 0;
  for (size_t i = 0; i < paths_.size(); ++i) {
    Path& path = *paths_[i];
    if (path.state == Path::State::kBackingOff && path.retry_ns <= now_ns) {
      ++done;
      Peer& peer = *core_.peers.at(path.peer);
      pair_rails(peer, path);
      if (open_path(peer, path) != Errc::kOk) {
        ++path.failures;
        back_off(path);
        reroute(path);  // another rail may have become good by now
      }
    } else if (path.state == Path::State::kReady && path.probe_deadline_ns <= now_ns) {
      ++done;
      close_path(path);
    } else if (path.state == Path::State::kReady && path.retry_ns <= now_ns) {
      ++done;
      start_probe(path);
    }
    if (path.state == Path::State::kBackingOff) next_ns_ = std::min(next_ns_, path.retry_ns);
    if (path.state == Path::State::kReady) {
      next_ns_ = std::min({next_ns_, path.probe_deadline_ns, path.retry_ns});
    }
  }
  return done;
}

// ---- Probes -------------------------------------------------------------------------------------

/// Posts a zero-byte write without an immediate. It changes nothing at the target, and completes if
/// the host there answers.
void Transfers::start_probe(Path& path) {
  core_.protocol.count(ProtocolEvent::kProbeSent);
  RailSlot& rail = core_.networks[path.network].rails[path.rail];
  const uint32_t cookie = take_inflight();
  InflightWrite& write = inflight_[cookie];
  write = InflightWrite{};
  write.op = kProbe;
  write.path = path.index;
  write.peer = path.peer;
  write.seq = core_.peers.at(path.peer)->next_write_seq++;
  write.posted_ns = core_.now_ns;
  write.priority = Priority::kUrgent;
  write.wr.cookie = cookie;
  write.wr.path = path.id;
  write.wr.priority = static_cast<uint8_t>(Priority::kUrgent);
  write.prev = path.last_inflight;
  (path.last_inflight == kNone ? path.first_inflight : inflight_[path.last_inflight].next) = cookie;
  path.last_inflight = cookie;
  ++path.inflight;
  ++rail.inflight;
  path.probe = cookie;
  path.retry_ns = kNeverNs;
  path.probe_deadline_ns = core_.now_ns + kProbeMaxNs;
  next_ns_ = std::min(next_ns_, path.probe_deadline_ns);
  if (rail.backlog.empty() && post(rail, {&write.wr, 1}) == 1) return;
  rail.backlog.push_back(write.wr);
  has_backlog_ = true;
}

void Transfers::complete_probe(Path& path, const CompletionStatus& status) {
  core_.protocol.count(status.code == Errc::kOk ? ProtocolEvent::kProbeAnswered
                                                : ProtocolEvent::kProbeFailed);
  routes_changed();
  path.probe = kNone;
  path.probe_deadline_ns = kNeverNs;
  if (status.code == Errc::kOk) {
    path.needs_probe = false;
    path.failures = 0;
    return;  // retire_write() activates what is queued
  }
  if (replay_is_exact(path)) {
    close_path(path);
  } else if (path.state == Path::State::kReady) {
    // There is no connection to set up again, and closing would abandon other writes in flight that
    // may still arrive. tick() does close the path of a probe that gets no completion at all: some
    // NICs retry forever, and then closing is the only way to complete those writes.
    path.needs_probe = true;
    ++path.failures;
    path.retry_ns = core_.now_ns + std::max(back_off_ns(path.failures), kBackOffNs);
    next_ns_ = std::min(next_ns_, path.retry_ns);
  }
}

bool Transfers::can_probe(const Peer& peer) const noexcept {
  return std::any_of(peer.paths.begin(), peer.paths.end(), [&](const auto& rails) {
    return std::any_of(rails.begin(), rails.end(), [&](uint32_t index) FABRIC_REQUIRES(state_lock) {
      return index != kNone && paths_[index]->state == Path::State::kReady;
    });
  });
}

/// A write to the peer got no answer. If there are other good paths, they are probed before the
/// peer is considered unreachable: the fault may lie with this path.
void Transfers::on_ack_timeout(Peer& peer, const Path& failed) {
  bool asked = false;
  for (const auto& rails : peer.paths) {
    for (const uint32_t index : rails) {
      if (index == kNone || index == failed.index) continue;
      Path& path = *paths_[index];
      if (path.state != Path::State::kReady || path.needs_probe) continue;
      asked = true;
      request_probe(path);
    }
  }
  if (!asked) core_.peers.on_unreachable(peer);
}

/// No probe is needed if a write is in flight: its completion answers the question as well.
void Transfers::request_probe(Path& path) {
  if (path.inflight > 0 || path.retry_ns != kNeverNs) return;
  // tick() posts it, because this may run while events of its rail are handled.
  path.retry_ns = core_.now_ns;
  next_ns_ = std::min(next_ns_, path.retry_ns);
}

void Transfers::probe(Peer& peer) {
  for (const auto& rails : peer.paths) {
    for (const uint32_t index : rails) {
      if (index != kNone && paths_[index]->state == Path::State::kReady)
        request_probe(*paths_[index]);
    }
  }
}

}  // namespace fabric::core

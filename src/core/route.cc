#include <algorithm>

#include "base/check.h"
#include "core/core.h"
#include "core/shard.h"
#include "core/transfer.h"

// The slow path from an accepted operation to pending fragments on paths: which network, how it is
// cut, which rail. Also opens these paths. start() offers the targets of a scatter to the fast path
// first; for writes the caller has done so. State lock held throughout, on the
// worker; connect() opens paths ahead of time on its own thread.

namespace fabric::core {

void Transfers::start(Op& op) {
  core_.state_mutex.assert_held();
  {
    const OpHold hold(op);  // the last part may fail while others are not started
    const bool one_target =
        op.kind == OpKind::kWrite || op.kind == OpKind::kPaged || op.kind == OpKind::kListed;
    if (one_target) {
      start_parts(op, 0, op.parts);
    } else {
      const bool may_batch = op.kind == OpKind::kScatter && op.priority != Priority::kBulk;
      for (uint32_t i = 0; i < op.parts;) {
        // The first target alone: the NIC works while the others are prepared.
        const uint32_t most = i == 0 ? 1 : op.parts - i;
        const uint32_t added = may_batch ? add_targets(op, i, most) : 0;
        if (i == 0 && added != 0) post_staged();
        i += added;
        if (added == most) continue;
        flush_staged();
        start_parts(op, i, 1);
        if (i == 0 && op.kind == OpKind::kScatter && may_post()) post_all();
        ++i;
      }
    }
  }
  complete_if_done(op);
}

void Transfers::start_parts(Op& op, uint32_t first, uint32_t count) {
  PendingFragment fragment{
      .op = op.slot, .part = first, .count = count, .size_bytes = op.size_bytes};
  PeerId id{};
  Errc code = Errc::kOk;
  if (op.kind == OpKind::kSignal) {
    id = op.list.as<SignalTarget>()[first].peer;
  } else {
    const RemoteRegion target =
        op.kind == OpKind::kScatter ? op.list.as<ScatterTarget>()[first].target.region : op.target;
    RemoteRegionSlot* remote = core_.regions.remote(target);
    using Status = RemoteRegionSlot::Status;
    const Status status =
        remote == nullptr ? Status::kPeerLost : remote->status.load(std::memory_order_relaxed);
    if (remote != nullptr) id = remote->owner();
    if (status == Status::kRevoked) code = Errc::kNotFound;
    if (status == Status::kPeerLost) code = Errc::kPeerLost;
  }
  Peer* peer = core_.peers.find(id);
  const bool lost = peer == nullptr || peer->fencing ||
                    peer->state.load(std::memory_order_relaxed) >= PeerState::kLost;
  if (code == Errc::kOk && lost) code = Errc::kPeerLost;
  if (code == Errc::kOk && !peer->revoked_keys.empty()) [[unlikely]] {
    // Parts that are started together have the same counter key.
    if (peer->revoked_keys.contains(part_of(op, first).counter_key.wire())) code = Errc::kReleased;
  }
  if (code != Errc::kOk) {
    complete_unposted(op, fragment, id, code);
    return;
  }
  fragment.peer = peer->slot;
  const uint32_t index = pending_.take();
  pending_.at(index) = fragment;
  link_to_op(op, index);
  pending_.append(peer->waiting, index);
  if (peer->usable()) route(index);
}

void Transfers::peer_connected(Peer& peer) {
  while (!peer.waiting.empty()) route(peer.waiting.head);
  if (peer.options.warm) warm(peer);
  // An inline peer is silent while its application computes. Then only a probe of its NIC can show
  // that its host is alive, and that needs an open path.
  if (peer.hello.is_inline) warm(peer, 1);
}

void Transfers::warm(Peer& peer, uint32_t rails) {
  const uint8_t chosen = peer.route[0][0];
  if (chosen == kNoNetwork) return;
  NetworkSlot& network = core_.networks[chosen];
  for (uint32_t rail = 0; rail < network.rails.size() && rail < rails; ++rail) {
    path_for(peer, network, rail);
  }
}

NetworkSlot* Transfers::choose_network(const Op& op, uint32_t part, const Peer& peer, Errc& why) {
  MemoryKind here = MemoryKind::kHost, there = MemoryKind::kHost;
  RemoteRegionSlot* remote = nullptr;
  if (op.kind != OpKind::kSignal) {
    const LocalRegion* region = core_.regions.local(op.source);
    remote = core_.regions.remote(part_of(op, part).target);
    if (region == nullptr || remote == nullptr) {
      why = Errc::kNotFound;
      return nullptr;
    }
    here = region->memory.kind;
    there = remote->kind;
  }
  const uint8_t chosen = peer.route[static_cast<size_t>(here)][static_cast<size_t>(there)];
  why = Errc::kUnreachable;
  if (chosen == kNoNetwork) return nullptr;
  if (remote != nullptr && !remote->has_network[chosen]) return nullptr;
  return &core_.networks[chosen];
}

/// Takes a fragment that waited for its peer and puts its parts on paths, or completes them with an
/// error if there is no route.
void Transfers::route(uint32_t index) {
  const PendingFragment fragment = pending_.at(index);
  Op& op = core_.ops.at(fragment.op);
  Peer& peer = *core_.peers.at(fragment.peer);
  pending_.unlink(index);
  unlink_from_op(op, index);
  pending_.give_back(index);

  {
    const OpHold hold(op);
    Errc why = Errc::kOk;
    NetworkSlot* network = choose_network(op, fragment.part, peer, why);
    const RailSet up = network == nullptr ? RailSet{} : rails_for_new_work(peer, *network);
    if (network == nullptr || up.count == 0) {
      complete_unposted(op, fragment, peer.id(), network == nullptr ? why : Errc::kRailLost);
    } else if (op.kind == OpKind::kListed) {
      route_listed(op, peer, *network, up);
    } else if (op.kind == OpKind::kWrite || op.kind == OpKind::kScatter) {
      route_sliced(op, fragment.part, peer, *network, up);
    } else if (part_of(op, fragment.part).size_bytes > network->rails[0].caps.write_bytes_max) {
      complete_unposted(op, fragment, peer.id(), Errc::kTooLarge);
    } else if (op.kind == OpKind::kPaged) {
      route_paged(op, peer, *network, up);
    } else {
      enqueue(op, peer, *network, deal_one(*network, up, 0), fragment);  // of a signal
    }
  }
  complete_if_done(op);
}

/// Cuts a write or a scatter target over the rails, and slices the shards.
void Transfers::route_sliced(Op& op, uint32_t part, Peer& peer, NetworkSlot& network,
                             const RailSet& up) {
  const PartSpec source = part_of(op, part);
  const Caps& caps = network.rails[0].caps;
  CutRule rule{.shards_max = op.unsplit ? 1 : up.count,
               .stripe_bytes_min = network.stripe_bytes_min,
               .align = core_.config.stripe_align};
  Cut cut = cut_write(source.size_bytes, rule);
  SliceProgress progress;
  const bool sliceable = !source.counter_key || caps.slice_safe;
  if (sliceable) {
    // Two slices of half of bulk_slice_bytes keep the NIC busy, and urgent work waits for no more
    // than bulk_slice_bytes.
    const uint64_t slice_bytes = op.priority == Priority::kBulk
                                     ? std::max<uint64_t>(1, core_.config.bulk_slice_bytes / 2)
                                     : caps.write_bytes_max;
    progress.slice_bytes = std::min(slice_bytes, caps.write_bytes_max);
  } else if (cut.begin[1] - cut.begin[0] > caps.write_bytes_max && !op.unsplit) {
    // Too large for one work request and not sliceable: cut finer, several shards per rail.
    cut = cut_write(source.size_bytes, {.shards_max = kRailsMax, .align = rule.align});
  }
  if (!sliceable && cut.begin[1] - cut.begin[0] > caps.write_bytes_max) {
    complete_unposted(op, {.part = part, .count = 1}, peer.id(), Errc::kTooLarge);
    return;
  }
  progress.shards = cut.count;
  progress.slices = 0;
  for (uint32_t i = 0; i < cut.count; ++i) {
    progress.slices += slice_count(cut.begin[i + 1] - cut.begin[i], progress.slice_bytes);
  }
  const uint32_t first = next_rail(network, up);
  for (uint32_t i = 0; i < cut.count; ++i) {
    deal_to(network, up, first + i, cut.begin[i + 1] - cut.begin[i]);
  }
  if (op.kind != OpKind::kWrite && progress.slices == 1) {
    enqueue(op, peer, network, up.index[first], {.part = part, .count = 1});
    return;
  }
  uint32_t cut_target = kNone;
  if (op.kind == OpKind::kWrite) {
    static_cast<SliceProgress&>(op) = progress;
  } else {
    cut_target = cut_targets_.take(progress);
  }
  for (uint32_t i = 0; i < cut.count; ++i) {
    enqueue(op, peer, network, up.index[(first + i) % up.count],
            {.part = part,
             .count = 1,
             .offset = cut.begin[i],
             .size_bytes = cut.begin[i + 1] - cut.begin[i],
             .shard = {cut.begin[i], cut.begin[i + 1]},
             .cut = cut_target});
  }
}

void Transfers::route_paged(Op& op, Peer& peer, NetworkSlot& network, const RailSet& up) {
  const uint32_t rails = std::min(up.count, op.parts);
  const uint32_t first = next_rail(network, up);
  for (uint32_t i = 0; i < rails; ++i) {
    const uint32_t count = (op.parts - i + rails - 1) / rails;
    deal_to(network, up, first + i, count * op.size_bytes, count);
    enqueue(op, peer, network, up.index[(first + i) % up.count],
            {.part = i, .stride = rails, .count = count});
  }
}

/// Each rail gets a run of the writes. If the list has writes that are too large for one work
/// request, those of this range fail alone, and the others take turns.
void Transfers::route_listed(Op& op, Peer& peer, NetworkSlot& network, const RailSet& up) {
  const uint64_t most = network.rails[0].caps.write_bytes_max;
  if (op.write_list->entries.size_max <= most) [[likely]] {
    deal_listed(op, peer, network, up);
    return;
  }
  for (uint32_t i = 0; i < op.parts; ++i) {
    const PendingFragment one{.part = i, .count = 1};
    if (op.listed[i].size_bytes > most) {
      complete_unposted(op, one, peer.id(), Errc::kTooLarge);
    } else {
      enqueue(op, peer, network, deal_one(network, up, op.listed[i].size_bytes), one);
    }
  }
}

void Transfers::enqueue(Op& op, Peer& peer, NetworkSlot& network, uint32_t rail,
                        PendingFragment fragment) {
  Path* path = path_for(peer, network, rail);
  if (path == nullptr) {
    complete_unposted(op, fragment, peer.id(), Errc::kUnreachable);
    return;
  }
  const bool is_backing_off = path->state == Path::State::kBackingOff;
  fragment.op = op.slot;
  fragment.peer = peer.slot;
  fragment.path = path->index;
  fragment.queue = nullptr;
  fragment.prev = fragment.next = fragment.op_prev = fragment.op_next = kNone;
  const uint32_t index = pending_.take();
  pending_.at(index) = fragment;
  link_to_op(op, index);
  const auto priority = static_cast<uint32_t>(op.priority);
  pending_.append(path->queue[priority], index);
  activate(*path, priority);
  if (is_backing_off) reroute(*path);  // if it failed to open just now, another rail may be better
}

/// Completes every part of a fragment that was not posted.
void Transfers::complete_unposted(Op& op, const PendingFragment& fragment, PeerId peer, Errc code) {
  const CompletionStatus status{code, Remote::kNotDelivered};
  const OpHold hold(op);
  if (const SliceProgress* const sliced = slices_of(op, fragment.cut); sliced != nullptr) {
    // One slice: not routed yet, or not cut; it is the entire write.
    const uint32_t n =
        sliced->slices == 1 ? 1 : slice_count(fragment.size_bytes, sliced->slice_bytes);
    for (uint32_t i = 0; i < n; ++i)
      complete_slice(op, fragment.part, fragment.cut, peer, status, 0);
  } else {
    for (uint32_t i = 0; i < fragment.count; ++i) {
      complete_part(op, fragment.part + i * fragment.stride, peer, status, 0);
    }
  }
}

void Transfers::drop_pending(uint32_t index, Errc code) {
  const PendingFragment fragment = pending_.at(index);
  Op& op = core_.ops.at(fragment.op);
  pending_.unlink(index);
  unlink_from_op(op, index);
  pending_.give_back(index);
  complete_unposted(op, fragment, core_.peers.at(fragment.peer)->id(), code);
  complete_if_done(op);
}

void Transfers::link_to_op(Op& op, uint32_t index) {
  PendingFragment& fragment = pending_.at(index);
  fragment.op_prev = kNone;
  fragment.op_next = op.pending;
  if (op.pending != kNone) pending_.at(op.pending).op_prev = index;
  op.pending = index;
}

void Transfers::unlink_from_op(Op& op, uint32_t index) {
  PendingFragment& fragment = pending_.at(index);
  (fragment.op_prev == kNone ? op.pending : pending_.at(fragment.op_prev).op_next) =
      fragment.op_next;
  if (fragment.op_next != kNone) pending_.at(fragment.op_next).op_prev = fragment.op_prev;
  fragment.op_prev = fragment.op_next = kNone;
}

Path* Transfers::path_for(Peer& peer, NetworkSlot& network, uint32_t rail) {
  const auto index = static_cast<uint8_t>(&network - core_.networks.data());
  uint32_t& slot = peer.paths[index][rail];
  if (slot != kNone) return paths_[slot].get();
  const int section = peer.section_of[index];
  FABRIC_CHECK(section >= 0, "a route uses only networks that both sides have");
  Path* path = take_path();
  path->peer = peer.slot;
  path->network = index;
  path->rail = static_cast<uint8_t>(rail);
  pair_rails(peer, *path);
  const Errc code = open_path(peer, *path);
  if (code != Errc::kOk && code != Errc::kExhausted) {
    free_path(*path);
    return nullptr;
  }
  slot = path->index;
  if (code == Errc::kExhausted) {  // temporary
    ++path->failures;
    path->needs_probe = true;
    back_off(*path);
  }
  return path;
}

/// Rails pair by index, modulo the number of the peer's (contracts.md P17). Only if the peer has no
/// good path left, its other rails are tried in turn.
void Transfers::pair_rails(const Peer& peer, Path& path) {
  routes_changed();
  const auto section = static_cast<size_t>(peer.section_of[path.network]);
  const uint32_t theirs = peer.remote.networks[section].rails;
  const auto& paths = peer.paths[path.network];
  const bool others =
      std::any_of(paths.begin(), paths.end(), [&](uint32_t index) FABRIC_REQUIRES(state_lock) {
        return index != kNone && index != path.index && !paths_[index]->needs_probe;
      });
  if (!others && path.failures > 0 && theirs > 1)
    core_.protocol.count(ProtocolEvent::kOtherRailPaired);
  path.remote_rail = static_cast<uint8_t>((path.rail + (others ? 0 : path.failures)) % theirs);
}

Errc Transfers::open_path(Peer& peer, Path& path) {
  NetworkSlot& network = core_.networks[path.network];
  const auto& section = peer.remote.networks[static_cast<size_t>(peer.section_of[path.network])];
  std::vector<std::byte> hello;
  auto id = network.rails[path.rail].rail->open_path(section.address, path.remote_rail, hello);
  if (!id) {
    FABRIC_LOG(core_.log, kWarning, "core", "a path could not be opened", {"peer", peer.id()},
               {"network", network.name}, {"rail", path.rail}, {"error", id.error()});
    return id.error().code;
  }
  path.id = *id;
  path.state = Path::State::kOpening;
  path.ref = peer.next_ref++;
  control::PathOpen body{.ref = path.ref, .provider = network.provider, .network = network.name};
  body.rail = path.rail;
  body.remote_rail = path.remote_rail;
  body.hello = std::move(hello);
  core_.peers.send(peer, control::MessageType::kPathOpen, control::encode(body));
  return Errc::kOk;
}

void Transfers::path_answered(Peer& peer, uint32_t ref, Errc code,
                              std::span<const std::byte> answer) {
  Path* asked = nullptr;
  for (const auto& rails : peer.paths) {
    for (const uint32_t index : rails) {
      Path* candidate = index == kNone ? nullptr : paths_[index].get();
      if (candidate == nullptr || candidate->ref != ref) continue;
      if (candidate->state == Path::State::kOpening) asked = candidate;
    }
  }
  if (asked == nullptr) {
    // The path was closed before the reply came. The peer has opened an end that stays unused.
    if (code == Errc::kOk) {
      core_.peers.send(peer, control::MessageType::kPathClose,
                       control::encode(control::PathClose{.ref = ref}));
    }
    return;
  }
  Path& path = *asked;
  if (code == Errc::kOk) {
    Rail& rail = *core_.networks[path.network].rails[path.rail].rail;
    code = rail.start_path(path.id, answer).error().code;
  }
  if (code != Errc::kOk) {
    // A rail that is down there comes back, and so does room; every other error is final.
    path.rejected = code != Errc::kRailLost && code != Errc::kExhausted;
    if (path.rejected && code != Errc::kPeerLost) {  // being fenced is reported elsewhere
      FABRIC_LOG(core_.log, kWarning, "core", "a path was refused", {"peer", peer.id()},
                 {"rail", path.rail}, {"code", code});
    }
    if (path.rejected) drop_path_pending(path, code);
    path.remote_closed = true;  // schedule_reopen() counts the failure once the path is down
    close_path(path);
    return;
  }
  path.state = Path::State::kReady;
  path.started = true;
  routes_changed();
  core_.protocol.count(ProtocolEvent::kPathOpened);
  if (path.needs_probe) {
    start_probe(path);
    return;
  }
  for (uint32_t p = 0; p < 3; ++p) activate(path, p);
}

Path* Transfers::take_path() {
  if (!free_paths_.empty()) {
    Path* path = paths_[free_paths_.back()].get();
    free_paths_.pop_back();
    return path;
  }
  paths_.push_back(std::make_unique<Path>());
  paths_.back()->index = static_cast<uint32_t>(paths_.size() - 1);
  return paths_.back().get();
}

void Transfers::free_path(Path& path) {
  routes_changed();
  const uint32_t index = path.index;
  path = Path{};
  path.index = index;
  free_paths_.push_back(index);
}

}  // namespace fabric::core

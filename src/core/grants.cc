#include <algorithm>
#include <utility>

#include "base/check.h"
#include "core/core.h"
#include "core/region.h"

// Grants: access to a region for one peer, under rkeys of its own. A grant ends alone (Revoke),
// with the session of its peer, or with its region; in each case as a deregistration does
// (deregister.cc): the importer is asked to drain first, then every rail deregisters the rkeys, and
// the confirmations are the proof that no write under the grant can land (contracts.md P13).

namespace fabric::core {

namespace {
// As for a deregistration: only an importer that did not reply in time may lose a path.
constexpr int64_t kGrantGraceNs = 1'000'000'000;
}  // namespace

Result<Grant> Regions::grant(RegionId id, PeerId peer_id) {
  const OutsideCall outside(core_);
  if (!outside) return fail(Errc::kClosed, "engine");
  Memory memory;
  {
    const StateGuard lock(core_.state_mutex);
    auto granted = may_grant(id, peer_id);
    if (!granted) return granted.error();
    memory = local(id)->memory;
  }
  // Separate rkeys, so that the grant can be revoked where only deregistration can do that.
  auto keys = register_on_rails(memory);
  if (!keys) return keys.error();
  const StateGuard lock(core_.state_mutex);
  // Again: a grant to a peer that is lost by now would never be released.
  auto granted = may_grant(id, peer_id);
  uint32_t slot = 0;
  GrantSlot* grant = granted ? grants_.acquire(slot) : nullptr;
  if (grant == nullptr) {
    release_registration(*keys, kNone);
    if (!granted) return granted.error();
    return fail(Errc::kExhausted, "regions_max");
  }
  const Peer& peer = *core_.peers.find(peer_id);
  grant->number = next_grant_++;
  grant->to_engine = peer.remote.engine_id;
  grant->session = peer.remote_session;
  grant->peer = peer_id;
  grant->region = id;
  grant->registration = *std::move(keys);
  grant->phase = GrantSlot::Phase::kLive;
  grant->peer_waits = grant->region_waits = false;
  grant->fences_awaited = 0;
  grant->revoke_op = kNone;
  grant->unproved_op = {};
  LocalRegion& region = *local(id);
  region.grants.push_back(slot);
  const GrantId granted_id(slot, grants_.publish(slot));
  auto desc = encode_desc(region, id, grant->registration, grant);
  if (!desc) {
    release_grant(slot);
    return desc.error();
  }
  return Grant{.id = granted_id, .desc = *std::move(desc)};
}

Result<void> Regions::may_grant(RegionId id, PeerId peer_id) const {
  const LocalRegion* region = local(id);
  if (region == nullptr) return fail(Errc::kNotFound, "region");
  if (!region->memory.remote_write) return fail(Errc::kPermission, "region");
  const Peer* peer = core_.peers.find(peer_id);
  if (peer == nullptr) return fail(Errc::kNotFound, "peer");
  if (peer->state.load(std::memory_order_relaxed) >= PeerState::kLost) {
    return fail(Errc::kPeerLost, "peer");
  }
  return {};
}

void Regions::start_revoke(Op& op) {
  GrantSlot* grant = grants_.find(op.grant.slot, op.grant.generation);
  if (grant == nullptr) {
    // A grant leaves the table only with the proof. An id that grant() did not return,
    // such as one of another engine, proves nothing.
    const bool ended = grants_.was_published(op.grant.slot, op.grant.generation);
    core_.complete(op, ended ? Errc::kOk : Errc::kNotFound,
                   ended ? Remote::kDelivered : Remote::kUnknown);
    return;
  }
  if (grant->revoke_op != kNone) {
    core_.complete(op, Errc::kBusy, Remote::kUnknown);
    return;
  }
  grant->revoke_op = op.slot;
  const int64_t half = core_.now_ns + (op.deadline_ns - core_.now_ns) / 2;
  core_.timers.set(op.timer, std::min(core_.now_ns + kGrantGraceNs, half));
  if (grant->phase == GrantSlot::Phase::kLive) ask_importer(op.grant.slot);
}

void Regions::ask_importer(uint32_t slot) {
  GrantSlot& grant = *grants_.at(slot);
  grant.phase = GrantSlot::Phase::kRevoking;
  Peer* peer = core_.peers.find(grant.peer);
  if (peer == nullptr || (!peer->usable() && !peer->half_open())) {
    release_grant(slot);
    return;
  }
  const uint32_t ref = peer->next_ref++;
  peer->region_revocations[ref] = {.grant = GrantId(slot, grant.last_generation)};
  core_.peers.send(*peer, control::MessageType::kRevokeRegion,
                   control::encode(control::RevokeRegion{
                       .ref = ref, .region = grant.region, .grant = grant.number}));
}

void Regions::revoke_answered(const Revocation& revocation) {
  if (!revocation.grant) {
    revoke_answered(revocation.region);
    return;
  }
  const GrantId id = revocation.grant;
  const GrantSlot* grant = grants_.find(id.slot, id.generation);
  if (grant != nullptr && grant->phase == GrantSlot::Phase::kRevoking) release_grant(id.slot);
}

/// The importer did not reply within its grace period: the rails refuse what it still writes.
void Regions::skip_answer(Op& op) {
  const GrantSlot* grant = grants_.find(op.grant.slot, op.grant.generation);
  if (grant == nullptr || grant->phase != GrantSlot::Phase::kRevoking) return;
  core_.protocol.count(ProtocolEvent::kGraceExpired);
  release_grant(op.grant.slot);
}

void Regions::release_grant(uint32_t slot) {
  core_.state_mutex.assert_held();
  GrantSlot& grant = *grants_.at(slot);
  if (grant.phase == GrantSlot::Phase::kReleasing) return;
  grant.phase = GrantSlot::Phase::kReleasing;
  grant.fences_awaited = 1;  // held until all rails are asked
  release_registration(grant.registration, kGrantCookie | slot);
  on_grant_fenced(slot);
}

void Regions::on_grant_fenced(uint32_t slot) {
  GrantSlot& grant = *grants_.at(slot);
  if (grant.fences_awaited == 0 || --grant.fences_awaited > 0) return;
  const uint32_t op = std::exchange(grant.revoke_op, kNone);
  const OpId unproved = std::exchange(grant.unproved_op, {});
  std::erase(locals_.at(grant.region.slot)->grants, slot);
  grant.registration = {};
  const PeerId peer = grant.peer;
  const RegionId region = grant.region;
  const bool peer_waits = grant.peer_waits, region_waits = grant.region_waits;
  grants_.recycle(slot);
  if (op != kNone) {
    core_.protocol.count(ProtocolEvent::kGrantProved);
    core_.complete(core_.ops.at(op), Errc::kOk, Remote::kDelivered);
  }
  if (unproved && !core_.closing.load(std::memory_order_relaxed)) {
    core_.protocol.count(ProtocolEvent::kGrantProvedLate);
    Event event{.kind = EventKind::kFenceProved};  // without a peer, which is not fenced
    event.op = unproved;
    core_.reporter.publish(event);
  }
  if (peer_waits) core_.peers.grant_released(peer.slot);
  if (region_waits) on_fenced(region.slot);
}

void Regions::stop_revoke(Op& op, Errc code) {
  GrantSlot* grant = grants_.find(op.grant.slot, op.grant.generation);
  if (grant != nullptr && grant->revoke_op == op.slot) {
    grant->revoke_op = kNone;
    grant->unproved_op = op.id();
    release_grant(op.grant.slot);  // the proof may still come, as an event
  }
  core_.complete(op, code, Remote::kUnknown);
}

/// The session with the peer ends: so do its grants.
void Regions::release_grants_of(PeerId peer) {
  for (uint32_t slot = 0; slot < grants_.made(); ++slot) {
    GrantSlot& grant = *grants_.at(slot);
    if (grant.generation.load(std::memory_order_relaxed) == 0 || grant.peer != peer) continue;
    if (std::exchange(grant.peer_waits, true)) continue;
    ++core_.peers.at(peer.slot)->grants_awaited;
    release_grant(slot);
  }
}

const Registration* Regions::own_keys(RegionId id, uint32_t grant) const {
  const LocalRegion* region = local(id);
  if (region == nullptr || grant == 0) return region == nullptr ? nullptr : &region->registration;
  for (const uint32_t slot : region->grants) {
    const GrantSlot& one = *grants_.at(slot);
    if (one.number == grant && one.phase == GrantSlot::Phase::kLive) return &one.registration;
  }
  return nullptr;
}

}  // namespace fabric::core

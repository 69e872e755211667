#include <algorithm>
#include <utility>

#include "base/check.h"
#include "core/core.h"
#include "core/region.h"

// Deregistration (contracts.md P13). Importers are asked to drain first, so that a correct peer
// does not lose a connection to a rejected write; our own writes out of the region drain; then
// every rail deregisters it, and their confirmations are the proof that no write can land. Without
// the proof the memory stays quarantined, and a late proof is reported as an event. State lock held
// throughout: on the worker, and on the thread that destroys a MemoryRegion or closes the engine.

namespace fabric::core {

namespace {
// Importers get at most this long to drain before the rails deregister anyway: only an importer
// that did not reply may lose a path by that.
constexpr int64_t kGraceNs = 1'000'000'000;
}  // namespace

void Regions::start_deregister(Op& op) {
  LocalRegion* region = local(op.source);
  if (region == nullptr || region->deregister_op != kNone) {
    core_.complete(op, Errc::kNotFound, Remote::kNotDelivered);
    return;
  }
  const uint32_t slot = op.source.slot;
  region->deregister_op = op.slot;
  const int64_t half = core_.now_ns + (op.deadline_ns - core_.now_ns) / 2;
  core_.timers.set(op.timer, std::min(core_.now_ns + kGraceNs, half));
  begin_deregister(slot);
}

void Regions::begin_deregister(uint32_t slot) {
  core_.state_mutex.assert_held();
  LocalRegion& region = *locals_.at(slot);
  const RegionId id(slot, region.last_generation);
  region.phase = LocalRegion::Phase::kRevoking;
  region.answers_awaited = 1;  // held until all revocations are sent
  locals_.hide(slot);          // no new operation finds it
  core_.stop_where([&](const Op& op) { return is_transfer(op.kind) && op.source == id; },
                   Errc::kNotFound);
  for (Peer* peer : core_.peers.all()) {
    if (!region.memory.remote_write) continue;
    if (!peer->usable() && !peer->half_open()) continue;
    const uint32_t ref = peer->next_ref++;
    peer->region_revocations[ref] = {.region = id};
    ++region.answers_awaited;
    core_.peers.send(*peer, control::MessageType::kRevokeRegion,
                     control::encode(control::RevokeRegion{.ref = ref, .region = id}));
  }
  revoke_answered(id);
}

void Regions::revoke_answered(RegionId id) {
  LocalRegion& region = *locals_.at(id.slot);
  // A reply that comes after the grace period may find the next generation of the slot.
  if (region.last_generation != id.generation || region.phase != LocalRegion::Phase::kRevoking)
    return;
  if (region.answers_awaited == 0 || --region.answers_awaited > 0) return;
  source_drained(id.slot);
}

void Regions::skip_answers(uint32_t slot) {
  LocalRegion& region = *locals_.at(slot);
  if (region.phase != LocalRegion::Phase::kRevoking || region.answers_awaited == 0) return;
  core_.protocol.count(ProtocolEvent::kGraceExpired);
  region.answers_awaited = 0;
  source_drained(slot);
}

void Regions::source_drained(uint32_t slot) {
  LocalRegion& region = *locals_.at(slot);
  if (region.phase != LocalRegion::Phase::kRevoking) return;
  if (region.answers_awaited > 0 || region.inflight > 0) return;
  release_rails(slot);
}

void Regions::release_rails(uint32_t slot) {
  LocalRegion& region = *locals_.at(slot);
  region.phase = LocalRegion::Phase::kReleasing;
  region.fences_awaited = 1;  // held until all rails are asked
  release_registration(region.registration, slot);
  const std::vector<uint32_t> grants = region.grants;  // one that ends leaves the list
  for (const uint32_t grant : grants) {
    grants_.at(grant)->region_waits = true;
    ++region.fences_awaited;
    release_grant(grant);
  }
  on_fenced(slot);
}

/// Offloaded, because deregistration may block in the kernel. `cookie`: the region's slot,
/// kGrantCookie and the grant's slot, or kNone for a registration that was never handed out.
void Regions::release_registration(const Registration& keys, uint32_t cookie) {
  for (size_t n = 0; n < keys.lkeys.size(); ++n) {
    for (RailSlot& rail : core_.networks[n].rails) {
      if (keys.wire_rkeys[n][rail.index].empty()) continue;
      if (cookie == kNone) {
        // Never handed out: no proof is needed.
      } else if ((cookie & kGrantCookie) != 0) {
        ++grants_.at(cookie & ~kGrantCookie)->fences_awaited;
      } else {
        ++locals_.at(cookie)->fences_awaited;
      }
      const uint64_t key = keys.lkeys[n][rail.index];
      core_.offload([target = rail.rail, key, cookie] { target->deregister_memory(key, cookie); });
    }
  }
}

void Regions::on_fenced(uint32_t cookie) {
  if (cookie == kNone) return;  // a registration that was never handed out
  if ((cookie & kGrantCookie) != 0) {
    on_grant_fenced(cookie & ~kGrantCookie);
    return;
  }
  const uint32_t slot = cookie;
  LocalRegion& region = *locals_.at(slot);
  if (region.fences_awaited == 0 || --region.fences_awaited > 0) return;
  const uint32_t op = region.deregister_op;
  region.deregister_op = kNone;
  region.phase = LocalRegion::Phase::kLive;
  region.registration = {};
  FABRIC_DCHECK(region.grants.empty(), "a region is released after its grants");
  region.pages.unmap();
  locals_.recycle(slot);
  if (op != kNone) {
    core_.protocol.count(ProtocolEvent::kRegionProved);
    core_.complete(core_.ops.at(op), Errc::kOk, Remote::kDelivered);
  } else if (!core_.closing.load(std::memory_order_relaxed)) {
    core_.protocol.count(ProtocolEvent::kRegionProvedLate);
    Event event{.kind = EventKind::kFenceProved};
    event.op = region.unproved_op;
    event.value = slot;
    core_.reporter.publish(event);
  }
  core_.peers.check_fences();
}

void Regions::stop_deregister(Op& op, Errc code) {
  const uint32_t slot = op.source.slot;
  LocalRegion* region = locals_.at(slot);
  if (region != nullptr && region->deregister_op == op.slot) {
    region->deregister_op = kNone;
    region->unproved_op = op.id();
    skip_answers(slot);  // the proof may still come, as an event
  }
  core_.complete(op, code, Remote::kUnknown);
}

void Regions::close_all() {
  for (uint32_t slot = 0; slot < locals_.made(); ++slot) {
    LocalRegion& region = *locals_.at(slot);
    const bool alive = region.generation.load(std::memory_order_relaxed) != 0;
    if (!alive || region.phase != LocalRegion::Phase::kLive) continue;
    locals_.hide(slot);
    region.phase = LocalRegion::Phase::kRevoking;
    region.answers_awaited = 0;
    source_drained(slot);
  }
}

bool Regions::adopt_pages(RegionId id, OwnedPages& pages) noexcept {
  if (released(id)) return false;
  locals_.at(id.slot)->pages = std::move(pages);
  return true;
}

bool Regions::released(RegionId id) const noexcept {
  const LocalRegion* region = locals_.at(id.slot);
  return region == nullptr || region->last_generation != id.generation ||
         (region->generation.load(std::memory_order_relaxed) == 0 &&
          region->phase == LocalRegion::Phase::kLive);
}

}  // namespace fabric::core

#include "swarm/runner.h"

// Grants in the swarm: each import of granted memory has a grant of its own, and some are revoked
// alone while the session goes on.

namespace fabric::swarm {

Result<std::vector<std::byte>> Runner::describe_arena(Session& session, uint32_t arena) {
  const MemoryRegion& region = *arenas_[arena].region;
  if (!plan_.grants) return region.desc();
  auto grant = region.grant(session.peer_at_target);
  if (!grant) return grant.error();
  GrantModel& model = grants_.emplace_back();
  model.session = session.number;
  model.arena = arena;
  model.id = grant->id;
  session.grants[arena] = static_cast<uint32_t>(grants_.size() - 1);
  return std::move(grant->desc);
}

void Runner::revoke(Process& process, Rng& rng) {
  for (uint32_t i = 0; i < grants_.size(); ++i) {
    GrantModel& grant = grants_[i];
    Session& session = sessions_[grant.session];
    if (session.to_incarnation != process.incarnation || grant.revoked || rng.chance(0.5)) continue;
    grant.revoked = true;
    // Later writes of the session get a new grant.
    if (const auto used = session.grants.find(grant.arena);
        used != session.grants.end() && used->second == i) {
      session.grants.erase(used);
      session.regions.erase(grant.arena);
    }
    const Nanos timeout = draw_op_timeout(rng);
    PendingOp op = begin(process, PendingOp::Kind::kRevoke, timeout);
    op.subject = i;
    return submit(process, std::move(op), Revoke{.grant = grant.id, .timeout = timeout}, rng);
  }
}

void Runner::revoke_completed(const PendingOp& op, const Event& event) {
  if (event.code == Errc::kOk) return grant_fenced(op.subject);
  grants_[op.subject].late = op.id;
}

/// The revocation was proved: no write under the grant can land any more.
void Runner::grant_fenced(uint32_t grant) {
  grants_[grant].fenced_at = std::min(grants_[grant].fenced_at, now());
  for (const Part& part : parts_) {
    if (part.grant == grant) arenas_[part.arena].memory.seal(part.slot);
  }
}

bool Runner::grant_revoked(const Part& part) const {
  return part.grant != kNone && grants_[part.grant].revoked;
}

bool Runner::delivered_after_revoke(const Part& part) const {
  return part.grant != kNone && part.submitted > grants_[part.grant].fenced_at;
}

}  // namespace fabric::swarm

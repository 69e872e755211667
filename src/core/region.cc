#include "core/region.h"

#include <algorithm>

#include "base/check.h"
#include "core/core.h"

// Registration, descriptors and import. Grants are in grants.cc, deregistration is in
// deregister.cc. Submitters look sizes up without a lock. register_memory() and desc() run on
// application threads, call the rails without the lock and take it themselves. Everything else runs
// under the state lock.

namespace fabric::core {

namespace {
/// Imported regions of all peers together, per peer Config::regions_max bounds them; and grants.
uint32_t remotes_max(const Config& config) noexcept {
  constexpr uint64_t kRemotesMax = 1u << 20;
  // Twice as many: revoked regions keep their slots for a while.
  const uint64_t all = uint64_t{config.peers_max + 1} * config.regions_max * 2;
  return static_cast<uint32_t>(std::min(all, kRemotesMax));
}
}  // namespace

Regions::Regions(EngineCore& core)
    : core_(core),
      locals_(core.config.regions_max),
      remotes_(remotes_max(core.config)),
      grants_(remotes_max(core.config)) {}

Result<uint64_t> Regions::local_size(RegionId region, const char* what) const noexcept {
  uint64_t size_bytes = 0;
  if (const Errc code = local_size(region, size_bytes); code != Errc::kOk) return fail(code, what);
  return size_bytes;
}

Result<uint64_t> Regions::remote_size(RemoteRegion region, const char* what) const noexcept {
  uint64_t size_bytes = 0;
  PeerId owner;
  if (const Errc code = remote_size(region, size_bytes, owner); code != Errc::kOk) {
    return fail(code, what);
  }
  return size_bytes;
}

Result<Registration> Regions::register_on_rails(const Memory& memory) {
  Registration keys;
  keys.lkeys.resize(core_.networks.size());
  keys.wire_rkeys.resize(core_.networks.size());
  for (size_t n = 0; n < core_.networks.size(); ++n) {
    NetworkSlot& network = core_.networks[n];
    if ((network.memory_kinds & kind_bit(memory.kind)) == 0) continue;
    for (RailSlot& rail : network.rails) {
      auto key = rail.rail->register_memory(memory, keys.wire_rkeys[n][rail.index]);
      if (!key) {
        FABRIC_LOG(core_.log, kWarning, "core", "memory could not be registered",
                   {"network", network.name}, {"rail", rail.index}, {"error", key.error()});
        // Undoes the registrations on earlier rails; no peer has an rkey of them yet.
        for (size_t done = 0; done <= n; ++done) {
          for (RailSlot& taken : core_.networks[done].rails) {
            if (done == n && taken.index >= rail.index) break;
            if (keys.wire_rkeys[done][taken.index].empty()) continue;
            taken.rail->deregister_memory(keys.lkeys[done][taken.index], kNone);
          }
        }
        return key.error();
      }
      keys.lkeys[n][rail.index] = *key;
    }
  }
  return keys;
}

Result<RegionId> Regions::register_memory(const Memory& memory) {
  if (memory.address == nullptr) return fail(Errc::kInvalidArgument, "memory.address");
  if (memory.size_bytes == 0) return fail(Errc::kInvalidArgument, "memory.size_bytes");
  if (reinterpret_cast<uint64_t>(memory.address) + memory.size_bytes < memory.size_bytes) {
    return fail(Errc::kOutOfBounds, "memory.size_bytes");
  }
  if (memory.kind > MemoryKind::kRocm) return fail(Errc::kInvalidArgument, "memory.kind");
  const OutsideCall outside(core_);
  if (!outside) return fail(Errc::kClosed, "engine");
  const bool reachable =
      std::any_of(core_.networks.begin(), core_.networks.end(), [&](const NetworkSlot& network) {
        return (network.memory_kinds & kind_bit(memory.kind)) != 0;
      });
  if (!reachable) return fail(Errc::kUnsupported, "memory.kind");

  auto keys = register_on_rails(memory);  // may block: outside the lock
  if (!keys) return keys.error();
  const StateGuard lock(core_.state_mutex);
  uint32_t slot = 0;
  LocalRegion* region = core_.refuses() ? nullptr : locals_.acquire(slot);
  if (region == nullptr) {
    release_registration(*keys, kNone);
    if (core_.refuses()) return fail(Errc::kClosed, "engine");
    return fail(Errc::kExhausted, "regions_max");
  }
  region->memory = memory;
  region->memory.dmabuf_fd = -1;  // borrowed for the call only
  region->registration = *std::move(keys);
  region->grants.clear();
  region->phase = LocalRegion::Phase::kLive;
  region->inflight = 0;
  region->has_open_desc = false;
  region->unproved_op = {};
  region->deregister_op = kNone;
  region->size_bytes.store(memory.size_bytes, std::memory_order_relaxed);
  const uint32_t generation = locals_.publish(slot);
  return RegionId(slot, generation);
}

Result<std::vector<std::byte>> Regions::encode_desc(const LocalRegion& region, RegionId id,
                                                    const Registration& keys,
                                                    const GrantSlot* grant) const {
  control::RegionDesc desc{.owner_engine = core_.engine_id,
                           .owner_incarnation = core_.incarnation,
                           .region = id,
                           .size_bytes = region.memory.size_bytes,
                           .kind = region.memory.kind,
                           .gpu = region.memory.gpu,
                           .granted_to = grant == nullptr ? 0 : grant->to_engine,
                           .grant = grant == nullptr ? 0 : grant->number,
                           .session = grant == nullptr ? 0 : grant->session};
  for (size_t n = 0; n < core_.networks.size(); ++n) {
    const NetworkSlot& network = core_.networks[n];
    // This engine looks its own rkeys up directly: a section for "self" would only take room.
    if (network.is_self || (network.memory_kinds & kind_bit(region.memory.kind)) == 0) continue;
    control::RegionDesc::Section section{.network = network.name};
    for (const RailSlot& rail : network.rails) {
      section.rail_keys.push_back(keys.wire_rkeys[n][rail.index]);
    }
    desc.networks.push_back(std::move(section));
  }
  return control::encode(desc);
}

Result<std::vector<std::byte>> Regions::desc(RegionId id) {
  const OpenStateGuard lock(core_);
  if (!lock) return fail(Errc::kClosed, "engine");
  LocalRegion* region = local(id);
  if (region == nullptr) return fail(Errc::kNotFound, "region");
  if (!region->memory.remote_write) return fail(Errc::kPermission, "region");
  region->has_open_desc = true;
  return encode_desc(*region, id, region->registration, nullptr);
}

bool Regions::writable_by(PeerId peer) const noexcept {
  for (uint32_t i = 0; i < locals_.made(); ++i) {
    const LocalRegion& region = *locals_.at(i);
    const bool there = region.generation.load(std::memory_order_relaxed) != 0 ||
                       region.phase != LocalRegion::Phase::kLive;
    if (!there) continue;
    if (region.has_open_desc) return true;
    const bool granted = std::any_of(
        region.grants.begin(), region.grants.end(),
        [&](uint32_t slot) FABRIC_REQUIRES(state_lock) { return grants_.at(slot)->peer == peer; });
    if (granted) return true;
  }
  return false;
}

/// Imports a descriptor of the peer. Idempotent: the same region and grant give the same handle.
/// A revoked region gives kNotFound, as long as its slot is kept.
Result<RemoteRegion> Regions::import(Peer& owner, std::span<const std::byte> bytes) {
  auto desc = control::decode_desc(bytes);
  if (!desc) return desc.error();
  if (desc->owner_engine != owner.remote.engine_id) {
    if (core_.peers.all_sessions_lost(desc->owner_engine)) return fail(Errc::kPeerLost, "desc");
    return fail(Errc::kInvalidArgument, "owner");
  }
  if (desc->owner_incarnation != owner.remote.incarnation) return fail(Errc::kPeerLost, "desc");
  if (desc->granted_to != 0 && desc->granted_to != core_.engine_id) {
    return fail(Errc::kPermission, "desc");
  }
  // The rkeys of a grant are released with the session that they were granted in.
  if (desc->session != 0 && desc->session != owner.local_session)
    return fail(Errc::kPeerLost, "desc");
  uint32_t live = 0;
  for (const uint32_t i : owner.imported) {
    const RemoteRegionSlot* slot = remotes_.at(i);
    const bool is_live =
        slot->status.load(std::memory_order_relaxed) == RemoteRegionSlot::Status::kLive;
    if (slot->owner_region == desc->region && slot->grant == desc->grant) {
      if (!is_live) return fail(Errc::kNotFound, "desc");
      return RemoteRegion(i, slot->generation.load(std::memory_order_relaxed));
    }
    live += is_live ? 1 : 0;
  }
  if (live >= core_.config.regions_max) return fail(Errc::kExhausted, "regions_max");
  return import_new(owner, *desc);
}

Result<RemoteRegion> Regions::import_new(Peer& owner, const control::RegionDesc& desc) {
  std::vector<std::vector<RailKeys>> keys(core_.networks.size());
  std::vector<bool> has_network(core_.networks.size());
  const Registration* own = owner.is_self ? own_keys(desc.region, desc.grant) : nullptr;
  if (owner.is_self && own == nullptr) return fail(Errc::kNotFound, "desc");
  for (size_t n = 0; n < core_.networks.size(); ++n) {
    NetworkSlot& network = core_.networks[n];
    const auto section = std::find_if(desc.networks.begin(), desc.networks.end(),
                                      [&](const auto& s) { return s.network == network.name; });
    if (network.is_self ? own == nullptr : section == desc.networks.end()) continue;
    const size_t theirs = network.is_self ? network.rails.size() : section->rail_keys.size();
    keys[n].resize(theirs);
    for (size_t their = 0; their < theirs; ++their) {
      const std::vector<std::byte>& wr =
          network.is_self ? own->wire_rkeys[n][their] : section->rail_keys[their];
      if (wr.empty()) continue;
      for (RailSlot& rail : network.rails) {
        auto key = rail.rail->import_rkey(wr);
        if (!key) return key.error();
        keys[n][their][rail.index] = *key;
        has_network[n] = true;
      }
    }
  }
  uint32_t slot = 0;
  RemoteRegionSlot* remote = remotes_.acquire(slot);
  if (remote == nullptr) return fail(Errc::kExhausted, "regions_max");
  remote->set_owner(owner.id());
  remote->kind = desc.kind;
  remote->owner_region = desc.region;
  remote->grant = desc.grant;
  remote->rkeys = std::move(keys);
  if (remote->route != nullptr) remote->route->epoch = 0;  // of the slot's previous region
  remote->has_network = std::move(has_network);
  remote->size_bytes.store(desc.size_bytes, std::memory_order_relaxed);
  remote->status.store(RemoteRegionSlot::Status::kLive, std::memory_order_relaxed);
  owner.imported.push_back(slot);
  return RemoteRegion(slot, remotes_.publish(slot));
}

void Regions::revoke(Peer& owner, RegionId region, uint32_t grant) {
  for (uint32_t i = 0; i < remotes_.made(); ++i) {
    RemoteRegionSlot* slot = remotes_.at(i);
    const uint32_t generation = slot->generation.load(std::memory_order_relaxed);
    if (generation == 0 || slot->owner() != owner.id() || slot->owner_region != region) continue;
    if (grant != 0 && slot->grant != grant) continue;
    if (slot->status.load(std::memory_order_relaxed) != RemoteRegionSlot::Status::kLive) continue;
    slot->status.store(RemoteRegionSlot::Status::kRevoked, std::memory_order_release);
    core_.transfers.region_revoked(RemoteRegion(i, generation));
    revoked_.push_back(RemoteRegion(i, generation));
  }
  // No operation is queued for these any more. Old handles get kNotFound by their generation.
  for (; revoked_.size() > core_.config.regions_max; revoked_.pop_front()) {
    RemoteRegionSlot* slot = remote(revoked_.front());
    if (slot == nullptr) continue;  // recycled with its peer
    if (Peer* was = core_.peers.find(slot->owner())) {
      std::erase(was->imported, revoked_.front().slot);
    }
    slot->set_owner({});
    remotes_.recycle(revoked_.front().slot);
  }
}

void Regions::peer_lost(PeerId peer) {
  core_.transfers.routes_changed();
  release_grants_of(peer);
  for (uint32_t i = 0; i < remotes_.made(); ++i) {
    RemoteRegionSlot* slot = remotes_.at(i);
    if (slot->owner() != peer) continue;
    slot->status.store(RemoteRegionSlot::Status::kPeerLost, std::memory_order_release);
  }
}

void Regions::forget_peer(PeerId peer) {
  core_.transfers.routes_changed();
  for (uint32_t i = 0; i < remotes_.made(); ++i) {
    RemoteRegionSlot* slot = remotes_.at(i);
    if (slot->generation.load(std::memory_order_relaxed) == 0 || slot->owner() != peer) continue;
    slot->set_owner({});
    remotes_.recycle(i);
  }
}

}  // namespace fabric::core

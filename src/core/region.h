#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include <fabric/memory.h>
#include <fabric/provider.h>

#include "control/descriptor.h"
#include "core/pages.h"
#include "core/slot_table.h"
#include "core/state_mutex.h"

// Local registered memory, and peers' regions after import.

namespace fabric::core {

class EngineCore;
struct Op;
struct Peer;
struct Revocation;

/// Flag in a cookie of deregister_memory(): the rest is the slot of a grant.
inline constexpr uint32_t kGrantCookie = 1u << 31;

using RailKeys = std::array<uint64_t, kRailsMax>;

/// The lkeys and rkeys of one registration on every rail, per network. Each region has one for its
/// open descriptor, and one more for each grant.
struct Registration {
  std::vector<RailKeys> lkeys{};
  std::vector<std::array<std::vector<std::byte>, kRailsMax>> wire_rkeys{};  ///< rkeys as sent
};

/// Access to a region for one peer, under rkeys of its own. Guarded by the state lock.
struct GrantSlot : SlotHead {
  uint32_t number = 0;  ///< names it to the peer, never reused
  uint64_t to_engine = 0;
  uint64_t session = 0;  ///< the peer's session number
  PeerId peer{};
  RegionId region{};
  Registration registration{};

  // Its end: kRevoking until the importer has drained, then kReleasing until every rail has
  // deregistered its rkeys.
  enum class Phase : uint8_t { kLive, kRevoking, kReleasing };
  Phase phase = Phase::kLive;
  bool peer_waits = false;      ///< counted in Peer::grants_awaited
  bool region_waits = false;    ///< counted in LocalRegion::fences_awaited
  uint32_t fences_awaited = 0;  ///< rails that have not confirmed, +1 while they are being asked
  uint32_t revoke_op = UINT32_MAX;
  OpId unproved_op{};  ///< the Revoke that completed without proof
};

/// Registered local memory. Guarded by the state lock, except for `size_bytes`.
struct LocalRegion : SlotHead {
  std::atomic<uint64_t> size_bytes{0};  ///< read by submitters; published by the generation
  Memory memory{};
  Registration registration{};
  std::vector<uint32_t> grants{};  ///< slots of its grants that are not released
  uint32_t inflight = 0;           ///< in-flight writes that read it
  bool has_open_desc = false;      ///< a descriptor was made that any engine may use

  // Deregistration: kRevoking until importers and our own writes have drained, then kReleasing
  // until every rail has deregistered it.
  enum class Phase : uint8_t { kLive, kRevoking, kReleasing };
  Phase phase = Phase::kLive;
  uint32_t answers_awaited = 0;  ///< importers that have not replied kRegionRevoked
  /// Confirmations outstanding (per rail, and per grant), +1 while they are being requested.
  uint32_t fences_awaited = 0;
  uint32_t deregister_op = UINT32_MAX;  ///< none: it timed out, and the proof will be an event
  OpId unproved_op{};                   ///< the deregistration that timed out
  OwnedPages pages{};                   ///< from allocate(), unmapped once released
};

struct NetworkSlot;
struct Path;
struct RailSlot;

/// The route of a remote region, cached by the fast path (fast_path.cc).
struct CachedPath {
  Path* path = nullptr;
  RailSlot* rail = nullptr;
  uint64_t rkey = 0;
};
struct CachedRoute {
  uint64_t epoch = 0;  ///< valid while it equals Transfers::epoch_
  MemoryKind source_kind{};
  uint8_t network = 0;
  Peer* peer = nullptr;
  NetworkSlot* network_slot = nullptr;
  /// Larger writes are cut, unless they are `unsplit`; at most write_bytes_max.
  uint64_t uncut_bytes_max = 0;
  std::vector<CachedPath> paths{};  ///< empty: slow path only
};

/// A region of a peer after import. Guarded by the state lock, except for the atomics, which
/// submitters read without it.
struct RemoteRegionSlot : SlotHead {
  enum class Status : uint8_t { kLive, kRevoked, kPeerLost };
  std::atomic<Status> status{Status::kLive};  ///< submitters read it to reject early
  std::atomic<uint64_t> size_bytes{0};        ///< published by the generation
  MemoryKind kind = MemoryKind::kHost;
  RegionId owner_region{};
  uint32_t grant = 0;
  /// Per network and rail of the owner: the rkey for each local rail. All pairs of rails, because a
  /// path may pair its rails differently after a rail was lost.
  std::vector<std::vector<RailKeys>> rkeys{};
  std::vector<bool> has_network{};  ///< which networks the descriptor has rkeys for
  std::unique_ptr<CachedRoute> route{};

  void set_owner(PeerId id) noexcept {
    owner_.store(uint64_t{id.generation} << 32 | id.slot, std::memory_order_relaxed);
  }
  PeerId owner() const noexcept {
    const uint64_t both = owner_.load(std::memory_order_relaxed);
    return PeerId(static_cast<uint32_t>(both), static_cast<uint32_t>(both >> 32));
  }

 private:
  std::atomic<uint64_t> owner_{0};  ///< read by submitters; published by the generation
};

/// State of the public MemoryRegion handle.
struct RegionState {
  std::shared_ptr<EngineCore> core{};
  RegionId id{};
  Memory memory{};
  OwnedPages owned{};  ///< from allocate()
};

/// Registered local memory (LocalRegion) and imported regions of peers (RemoteRegionSlot):
/// registration, descriptors and import (region.cc), grants and their revocation (grants.cc),
/// deregistration with its proof (deregister.cc).
///
/// Owns both tables and the registrations on the rails. Threads: size look-ups run on submitting
/// threads without a lock; register_memory(), desc() and grant() take the state lock themselves and
/// call the rails outside of it, because a registration may block; for everything else the state
/// lock is held.
///
/// Invariants: a slot of a local region is recycled, and its pages are unmapped, only after every
/// rail has confirmed its deregistration, and those of its grants: no write can land in it by then
/// (contracts.md P13). The slot of a grant is recycled only after every rail has confirmed. A
/// revoked imported region keeps its slot for a while, so that old handles get kNotFound and not
/// another region.
class Regions {
 public:
  explicit Regions(EngineCore& core);

  /// As for ListTable. Before the engine is shared, so without the lock.
  void set_first_grant_generation(uint32_t generation) noexcept FABRIC_NO_THREAD_SAFETY_ANALYSIS {
    grants_.set_generation(generation);
  }

  // Any thread, no lock. `what` names the argument in the error.
  Result<uint64_t> local_size(RegionId region, const char* what) const noexcept;
  Result<uint64_t> remote_size(RemoteRegion region, const char* what) const noexcept;
  /// The same for the hot path: kOk, or the error's code.
  Errc local_size(RegionId region, uint64_t& size_bytes) const noexcept {
    if (!region) return Errc::kInvalidArgument;
    const LocalRegion* slot = locals_.find(region.slot, region.generation);
    if (slot == nullptr) return Errc::kNotFound;
    size_bytes = slot->size_bytes.load(std::memory_order_relaxed);
    return Errc::kOk;
  }
  /// `owner` gets the owning peer. It may be stale if the region is revoked concurrently; the
  /// worker then fails the operation.
  Errc remote_size(RemoteRegion region, uint64_t& size_bytes, PeerId& owner) const noexcept {
    if (!region) return Errc::kInvalidArgument;
    const RemoteRegionSlot* slot = remotes_.find(region.slot, region.generation);
    if (slot == nullptr) return Errc::kNotFound;
    size_bytes = slot->size_bytes.load(std::memory_order_relaxed);
    owner = slot->owner();
    using Status = RemoteRegionSlot::Status;
    const Status status = slot->status.load(std::memory_order_acquire);  // pairs with revoke()
    if (status == Status::kLive) [[likely]]
      return Errc::kOk;
    return status == Status::kRevoked ? Errc::kNotFound : Errc::kPeerLost;
  }
  PeerId remote_peer(RemoteRegion region) const noexcept {
    const RemoteRegionSlot* slot = remotes_.find(region.slot, region.generation);
    return slot == nullptr ? PeerId{} : slot->owner();
  }

  // Any thread, state lock not held: registers on the rails, which may block.
  Result<RegionId> register_memory(const Memory& memory) FABRIC_EXCLUDES(state_lock);
  Result<std::vector<std::byte>> desc(RegionId region) FABRIC_EXCLUDES(state_lock);
  Result<Grant> grant(RegionId region, PeerId peer) FABRIC_EXCLUDES(state_lock);

  // State lock held.
  LocalRegion* local(RegionId region) const noexcept FABRIC_REQUIRES(state_lock) {
    return locals_.find(region.slot, region.generation);
  }
  RemoteRegionSlot* remote(RemoteRegion region) const noexcept FABRIC_REQUIRES(state_lock) {
    return remotes_.find(region.slot, region.generation);
  }
  LocalRegion* at(uint32_t slot) const noexcept FABRIC_REQUIRES(state_lock) {
    return locals_.at(slot);
  }
  RemoteRegionSlot* remote_at(uint32_t slot) const noexcept FABRIC_REQUIRES(state_lock) {
    return remotes_.at(slot);
  }
  Result<RemoteRegion> import(Peer& owner, std::span<const std::byte> desc)
      FABRIC_REQUIRES(state_lock);
  /// The owner revoked an imported region. grant 0: the region and all its grants.
  void revoke(Peer& owner, RegionId region, uint32_t grant) FABRIC_REQUIRES(state_lock);
  void peer_lost(PeerId peer) FABRIC_REQUIRES(state_lock);
  void forget_peer(PeerId peer) FABRIC_REQUIRES(state_lock);  ///< recycles the slots of its regions

  void start_deregister(Op& op) FABRIC_REQUIRES(state_lock);
  void begin_deregister(uint32_t slot)
      FABRIC_REQUIRES(state_lock);  ///< also without an operation that waits for it
  void stop_deregister(Op& op, Errc code) FABRIC_REQUIRES(state_lock);
  void start_revoke(Op& op) FABRIC_REQUIRES(state_lock);
  void stop_revoke(Op& op, Errc code) FABRIC_REQUIRES(state_lock);
  void skip_answer(Op& op) FABRIC_REQUIRES(state_lock);
  /// One importer has drained, or is lost.
  void revoke_answered(const Revocation& revocation) FABRIC_REQUIRES(state_lock);
  void skip_answers(uint32_t slot)
      FABRIC_REQUIRES(state_lock);  ///< the grace period of the importers is over
  void source_drained(uint32_t slot) FABRIC_REQUIRES(state_lock);
  void on_fenced(uint32_t cookie) FABRIC_REQUIRES(state_lock);
  void close_all() FABRIC_REQUIRES(state_lock);
  /// Takes ownership of pages whose handle cannot wait for the release of the region. False: the
  /// region is released already, and the caller keeps the pages.
  bool adopt_pages(RegionId region, OwnedPages& pages) noexcept FABRIC_REQUIRES(state_lock);
  /// True once the region is deregistered on every rail: no write can land in it.
  bool released(RegionId region) const noexcept FABRIC_REQUIRES(state_lock);
  uint32_t live() const noexcept FABRIC_REQUIRES(state_lock) { return locals_.live(); }
  /// Some rkey that the peer may have is still registered: of an open descriptor, or of its grant.
  bool writable_by(PeerId peer) const noexcept FABRIC_REQUIRES(state_lock);

 private:
  Result<Registration> register_on_rails(const Memory& memory);

  Result<void> may_grant(RegionId region, PeerId peer) const FABRIC_REQUIRES(state_lock);
  void ask_importer(uint32_t slot) FABRIC_REQUIRES(state_lock);
  void release_grant(uint32_t slot) FABRIC_REQUIRES(state_lock);
  void release_grants_of(PeerId peer) FABRIC_REQUIRES(state_lock);
  void on_grant_fenced(uint32_t slot) FABRIC_REQUIRES(state_lock);
  /// The keys of a descriptor that this engine made; null when it has ended.
  const Registration* own_keys(RegionId region, uint32_t grant) const FABRIC_REQUIRES(state_lock);
  void revoke_answered(RegionId region) FABRIC_REQUIRES(state_lock);
  void release_rails(uint32_t slot) FABRIC_REQUIRES(state_lock);
  void release_registration(const Registration& keys, uint32_t cookie) FABRIC_REQUIRES(state_lock);
  Result<RemoteRegion> import_new(Peer& owner, const control::RegionDesc& desc)
      FABRIC_REQUIRES(state_lock);
  Result<std::vector<std::byte>> encode_desc(const LocalRegion& region, RegionId id,
                                             const Registration& keys, const GrantSlot* grant) const
      FABRIC_REQUIRES(state_lock);

  EngineCore& core_;
  SlotTable<LocalRegion> locals_;
  SlotTable<RemoteRegionSlot> remotes_;
  SlotTable<GrantSlot> grants_ FABRIC_GUARDED_BY(state_lock);
  /// Revoked imported regions, oldest first; the oldest slots beyond regions_max are recycled.
  std::deque<RemoteRegion> revoked_ FABRIC_GUARDED_BY(state_lock);
  uint32_t next_grant_ FABRIC_GUARDED_BY(state_lock) = 1;
};

}  // namespace fabric::core

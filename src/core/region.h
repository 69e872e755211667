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

// Local registered memory, and peers' regions after import.

namespace fabric::core {

class EngineCore;
struct Op;
struct Peer;

/// In a cookie of deregister_memory(): the keys were granted to the peer in that slot.
inline constexpr uint32_t kGrantCookie = 1u << 31;

using RailKeys = std::array<uint64_t, kRailsMax>;

/// One registration on every rail: the open descriptor of a region, or a grant to one peer.
struct Registration {
  std::vector<RailKeys> local_keys{};  ///< per network
  std::vector<std::array<std::vector<std::byte>, kRailsMax>> wire_keys{};
};

struct Grant {
  uint32_t number = 0;
  uint64_t to_engine = 0;
  uint64_t session = 0;  ///< the peer's number
  PeerId peer{};
  Registration registration{};
};

struct LocalRegion : SlotHead {
  std::atomic<uint64_t> size_bytes{0};  ///< read by submitters; published by the generation
  Memory memory{};
  Registration registration{};
  std::vector<Grant> grants{};
  uint32_t inflight = 0;  ///< pieces in flight that read it
  bool has_open_desc = false;  ///< a descriptor went out that is good for anybody

  // Its end, in steps: importers are told and drain, own writes drain, the rails let go.
  enum class Phase : uint8_t { kLive, kRevoking, kReleasing };
  Phase phase = Phase::kLive;
  uint32_t answers_awaited = 0;         ///< importers that have not said that they are quiet
  uint32_t fences_awaited = 0;          ///< rails that have not proved it
  uint32_t deregister_op = UINT32_MAX;  ///< none: it timed out, and the proof will be an event
  OpId unproved_op{};                      ///< that one
  OwnedPages pages{};                   ///< from allocate(), to be unmapped at its end
};

struct Path;
struct RailSlot;

/// The paths to a region, as found out by its last write (express.cc).
struct CachedPath {
  Path* path = nullptr;
  RailSlot* rail = nullptr;
  uint64_t remote_key = 0;
};
struct CachedRoute {
  uint64_t epoch = 0;  ///< of Transfers: another one, and it is found out again
  MemoryKind source_kind{};   ///< of the source
  uint8_t network = 0;
  Peer* peer = nullptr;
  std::vector<CachedPath> paths{};  ///< none: only the long way
};

struct RemoteRegionSlot : SlotHead {
  enum class Status : uint8_t { kLive, kRevoked, kPeerLost };
  std::atomic<Status> status{Status::kLive};  ///< state lock; others get an early answer
  std::atomic<uint64_t> size_bytes{0};        ///< published by the generation
  MemoryKind kind = MemoryKind::kHost;
  RegionId owner_region{};
  uint32_t grant = 0;
  /// Per network and rail of the owner: what each local rail posts with. The rails of a path may
  /// pair in another way after a loss.
  std::vector<std::vector<RailKeys>> rkeys{};
  std::vector<bool> has_network{};  ///< which networks the descriptor speaks of
  std::unique_ptr<CachedRoute> route{};   ///< the worker's

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

/// What the public MemoryRegion holds.
struct RegionState {
  std::shared_ptr<EngineCore> core{};
  RegionId id{};
  Memory memory{};
  OwnedPages owned{};  ///< from allocate()
};

class Regions {
 public:
  explicit Regions(EngineCore& core);

  // Any thread, no lock. `what` names the argument in the error.
  Result<uint64_t> local_size(RegionId region, const char* what) const noexcept;
  Result<uint64_t> remote_size(RemoteRegion region, const char* what) const noexcept;
  /// The same for hot code: kOk, or what the error says.
  Errc local_size(RegionId region, uint64_t& size_bytes) const noexcept {
    if (!region) return Errc::kInvalidArgument;
    const LocalRegion* slot = locals_.find(region.slot, region.generation);
    if (slot == nullptr) return Errc::kNotFound;
    size_bytes = slot->size_bytes.load(std::memory_order_relaxed);
    return Errc::kOk;
  }
  /// `owner`: whose it is. Of a region that goes meanwhile it may be wrong; its operation then
  /// fails anyway.
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

  // Any thread; registers on the rails outside the state lock, because that may block.
  Result<RegionId> register_memory(const Memory& memory);
  Result<std::vector<std::byte>> desc(RegionId region);
  Result<std::vector<std::byte>> grant(RegionId region, PeerId peer);

  // State lock held.
  LocalRegion* local(RegionId region) const noexcept {
    return locals_.find(region.slot, region.generation);
  }
  RemoteRegionSlot* remote(RemoteRegion region) const noexcept {
    return remotes_.find(region.slot, region.generation);
  }
  LocalRegion* at(uint32_t slot) const noexcept { return locals_.at(slot); }
  RemoteRegionSlot* remote_at(uint32_t slot) const noexcept { return remotes_.at(slot); }
  Result<RemoteRegion> import(Peer& owner, std::span<const std::byte> desc);
  /// The owner of an imported region took it back. grant 0: all of it.
  void revoke(Peer& owner, RegionId region, uint32_t grant);
  void peer_lost(PeerId peer);
  void forget_peer(PeerId peer);  ///< its slots may be used again

  void start_deregister(Op& op);
  void begin_deregister(uint32_t slot);  ///< without an operation that waits for it
  void stop_deregister(Op& op, Errc code);
  void revoke_answered(RegionId region);  ///< one importer is quiet, or lost
  void skip_answers(uint32_t slot);       ///< their grace is over
  void source_drained(uint32_t slot);
  void on_fenced(uint32_t cookie);
  void close_all();
  /// Takes over pages whose handle cannot wait for the end of the region. False: it has ended, and
  /// they are still the caller's.
  bool adopt_pages(RegionId region, OwnedPages& pages) noexcept;
  /// True when the region is gone and nothing can land in it any more.
  bool released(RegionId region) const noexcept;
  uint32_t live() const noexcept { return locals_.live(); }
  /// A key is not proved to be gone that the peer may have: one for anybody, or one of its own.
  bool writable_by(PeerId peer) const noexcept;

 private:
  Result<Registration> register_on_rails(const Memory& memory);

  void release_rails(uint32_t slot);
  void release_registration(const Registration& keys, uint32_t slot);
  Result<RemoteRegion> import_new(Peer& owner, const control::RegionDesc& desc);
  Result<std::vector<std::byte>> encode_desc(const LocalRegion& region, RegionId id,
                                             const Registration& keys, const Grant* grant) const;

  EngineCore& core_;
  SlotTable<LocalRegion> locals_;
  SlotTable<RemoteRegionSlot> remotes_;
  /// Imported regions that were taken back, oldest first: their slots say so for a while.
  std::deque<RemoteRegion> revoked_;
  uint32_t next_grant_ = 1;
};

}  // namespace fabric::core

#pragma once

#include <memory>
#include <vector>

#include <fabric/export.h>
#include <fabric/result.h>
#include <fabric/types.h>

namespace fabric {

class Engine;
namespace core {
struct RegionState;
}

enum class MemoryKind : uint8_t { kHost, kCuda, kRocm };

FABRIC_EXPORT const char* to_string(MemoryKind kind) noexcept;

/// Memory to be registered. A struct and not a span: GPU memory has no host pointer, DMA-BUF has a
/// file descriptor.
struct Memory {
  void* address = nullptr;  ///< for GPU memory, the GPU's pointer
  uint64_t size_bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
  int32_t gpu = -1;    ///< ordinal of the GPU; -1 = host memory
  int dmabuf_fd = -1;  ///< borrowed for the call; -1 = none
  uint64_t dmabuf_offset = 0;
  bool remote_write = true;  ///< false: a source only, peers cannot write to it
};

/// What Engine::allocate() makes: zeroed pages, registered on every network.
///
/// If a same-host network is open, the pages are a sealed memfd: populated up front so that peers
/// never fault on a hole, one file descriptor per block, and not inherited across fork(). When the
/// process has no file descriptor left, the pages are ordinary ones, with a warning in the log, and
/// writes to them on the same host take a slower path.
struct AllocateOptions {
  uint64_t size_bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
  int32_t gpu = -1;
  bool huge_pages = true;  ///< where the system has them, else ordinary pages
};

/// What MemoryRegion::grant() makes.
struct Grant {
  GrantId id{};                   ///< for Revoke
  std::vector<std::byte> desc{};  ///< what the peer imports; at most MemoryRegion::kDescBytesMax
};

/// Registered memory. Owns the bytes when it came from Engine::allocate().
///
/// Lifetime: for register_memory() the bytes must outlive the region. The region may outlive the
///   engine. The destructor deregisters and waits until fenced (contracts.md P13), at most
///   Config::drain_timeout. Without proof in that time the failure goes to the subscribers and
///   allocated pages are leaked on purpose. Inside a callback the destructor does not wait: it only
///   submits the deregistration. Code that must not block submits Deregister first.
/// Threads: immutable after creation; share it freely.
/// Cost: registering pins pages and takes milliseconds. Do it at start-up, not per request.
class FABRIC_EXPORT MemoryRegion {
 public:
  static constexpr uint32_t kDescBytesMax = 512;

  MemoryRegion(MemoryRegion&&) noexcept;
  MemoryRegion& operator=(MemoryRegion&&) noexcept;
  ~MemoryRegion();

  RegionId id() const noexcept;
  uint64_t size_bytes() const noexcept;
  std::span<std::byte> bytes() const noexcept;  ///< empty for GPU memory
  LocalRef at(uint64_t offset) const noexcept { return {id(), offset}; }
  /// The reference to a pointer inside (a tensor in an allocator's block). Fails with kOutOfBounds.
  Result<LocalRef> find(const void* address, uint64_t size_bytes) const noexcept;

  /// The descriptor that peers need in order to write here: versioned bytes, at most kDescBytesMax.
  /// Every peer that has it may write. Fails with kPermission for a region without remote_write.
  Result<std::vector<std::byte>> desc() const;
  /// Access for one peer, under rkeys of its own. Each call makes another grant, and each ends
  /// alone: Revoke{grant} ends one, Fence{peer} all of the peer's, without affecting other peers.
  /// A peer that has a grant and no desc() of the region can write here only until then.
  ///
  /// Lifetime: until it is revoked, its session ends, or the region is deregistered.
  /// Cost: a registration on every rail, as for the region itself.
  /// Fails with kPermission for a region without remote_write, kNotFound, kPeerLost, kExhausted
  /// (grants are bounded by peers_max times regions_max, and by what the networks can register).
  Result<Grant> grant(PeerId peer) const;

 private:
  friend class Engine;
  explicit MemoryRegion(std::shared_ptr<core::RegionState> state) noexcept;
  std::shared_ptr<core::RegionState> state_;
};

}  // namespace fabric

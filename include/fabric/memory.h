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

/// Memory to be registered. A struct and not a span: device memory has no CPU bytes, DMA-BUF has a
/// descriptor.
struct Memory {
  void* address = nullptr;  ///< the device pointer for device memory
  uint64_t size_bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
  int32_t gpu = -1;  ///< device ordinal; -1 = host
  int dmabuf_fd = -1;   ///< borrowed for the call; -1 = none
  uint64_t dmabuf_offset = 0;
  bool remote_write = true;  ///< false: a source only, least privilege
};

/// What Engine::allocate() makes: zeroed pages, registered on every network.
///
/// Where a network maps memory (same host) they are shared pages: all had at once, so that no peer
/// stumbles over one that is missing, for one descriptor a block; and a child of fork() does not
/// have them. Without a descriptor they are ordinary ones, with a warning: writes to them then go
/// another, slower way.
struct AllocateOptions {
  uint64_t size_bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
  int32_t gpu = -1;
  bool huge_pages = true;  ///< where the system has them; ordinary pages otherwise
};

/// Registered memory, and its bytes too when it came from Engine::allocate().
///
/// Lifetime: for register_memory() the bytes must outlive the region. The region may outlive the
///   engine. The destructor deregisters and waits until fenced (P13), at most
///   Config::drain_timeout. When no proof comes in that time the failure goes to the subscribers
///   and allocated pages are leaked on purpose. Inside a callback it cannot wait: it submits the
///   deregistration and lets go. Code that may not block submits Deregister first.
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
  std::span<std::byte> bytes() const noexcept;  ///< empty for device memory
  LocalRef at(uint64_t offset) const noexcept { return {id(), offset}; }
  /// Offset of a pointer inside (a tensor in an allocator's block). Fails with kOutOfBounds.
  Result<LocalRef> find(const void* address, uint64_t size_bytes) const noexcept;

  /// What peers need in order to write here: versioned bytes, at most kDescBytesMax. Anyone who has
  /// them may write. Fails with kPermission for a region without remote_write.
  Result<std::vector<std::byte>> desc() const;
  /// The same for one peer only, so that Fence{peer} can take it back without disturbing others.
  Result<std::vector<std::byte>> grant(PeerId peer) const;

 private:
  friend class Engine;
  explicit MemoryRegion(std::shared_ptr<core::RegionState> state) noexcept;
  std::shared_ptr<core::RegionState> state_;
};

}  // namespace fabric

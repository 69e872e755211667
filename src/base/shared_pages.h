#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <fabric/result.h>

#include "base/unique_fd.h"

namespace fabric {

/// Memory that another process can map: a block of zeroed pages in a memfd, sealed against
/// shrinking and growing, so that no process that maps it gets SIGBUS for a truncated file.
///
/// All pages are populated up front. A page that the system could not provide later would raise
/// SIGBUS in the process that touches it, possibly a peer in the middle of a copy; so a shortage is
/// reported by allocate(). The cost is the zeroing, about a quarter of a second per GiB. The limit
/// of a memory cgroup applies as for all memory: the kernel kills a process that exceeds it.
///
/// Lifetime: the destructor unmaps. A child of fork() does not inherit the pages (MADV_DONTFORK): a
///   peer's write must never reach two processes. The objects that a child inherits do nothing.
/// Threads: an object: one thread at a time; allocate() and find(): any thread.
class SharedPages {
 public:
  /// Fails with kUnsupported when this process cannot create a memfd (native errno: EMFILE, ENOSYS,
  /// EPERM) and with kExhausted when there is not enough memory. `huge`: from the huge page pool if
  /// it has enough, otherwise transparent huge pages where the system provides them.
  static Result<SharedPages> allocate(uint64_t bytes, bool huge);

  /// Where a memory range lies.
  struct Location {
    /// Shared, so that the descriptor number is not reused for another file while a Location
    /// exists, even if the pages are unmapped.
    std::shared_ptr<const UniqueFd> file{};
    uint64_t offset = 0;       ///< of the range in the block
    uint64_t block_bytes = 0;  ///< the whole file
    uint64_t block = 0;        ///< number of the block in this process, never reused
  };
  /// Only when the whole range lies in one block that is mapped now.
  static std::optional<Location> find(const void* address, uint64_t bytes) noexcept;

  SharedPages(SharedPages&& other) noexcept;
  SharedPages& operator=(SharedPages&& other) noexcept;
  ~SharedPages() { unmap(); }

  void* address() const noexcept { return address_; }
  uint64_t size_bytes() const noexcept { return bytes_; }

  /// Keeps the pages mapped until the process exits, because a peer may still write to them. find()
  /// still finds them.
  void leak() noexcept { address_ = nullptr; }

 private:
  struct Registry;
  SharedPages(Registry& home, void* address, uint64_t bytes) noexcept
      : home_(&home), address_(address), bytes_(bytes) {}
  static Registry& own_registry();
  void unmap() noexcept;

  Registry* home_;
  void* address_;
  uint64_t bytes_;
};

}  // namespace fabric

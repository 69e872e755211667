#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <fabric/result.h>

#include "base/unique_fd.h"

namespace fabric {

/// Memory of this process that another one can map: a block of zeroed pages behind a memfd, which
/// can neither shrink nor grow, so that nobody who maps it is ever ended by a hole in it.
///
/// All pages are had at once, as registering pins them on other networks. A page that the system
/// could not give later would end whoever touched it with SIGBUS, and that may be a peer in the
/// middle of its copy; so a shortage shows in allocate(). It costs the zeroing, about a quarter of
/// a second a GiB. A memory cgroup's limit remains what it is for all memory: who passes it is
/// ended by the kernel.
///
/// Lifetime: the destructor unmaps. A child of fork() does not have the pages (MADV_DONTFORK): what
///   a peer writes must never go to two processes. The objects it inherits do nothing there.
/// Threads: one at a time; find() from any thread.
class SharedPages {
 public:
  /// Fails with kUnsupported when this process cannot have a memfd (the errno says why: EMFILE,
  /// ENOSYS, EPERM) and with kExhausted when there is not that much memory. `huge`: from the pool
  /// of huge pages when it has enough, else transparent ones as far as the system gives them.
  static Result<SharedPages> allocate(uint64_t bytes, bool huge);

  /// Where a piece of memory lies.
  struct Location {
    /// Stays open for as long as the place is kept, also when the pages are unmapped meanwhile:
    /// nobody gets the number of another file instead.
    std::shared_ptr<const UniqueFd> file{};
    uint64_t offset = 0;       ///< of the piece in the block
    uint64_t block_bytes = 0;  ///< the whole file
    uint64_t block = 0;        ///< its number in this process, never used again
  };
  /// Only when all of it lies in one block that is mapped now.
  static std::optional<Location> find(const void* address, uint64_t bytes) noexcept;

  SharedPages(SharedPages&& other) noexcept;
  SharedPages& operator=(SharedPages&& other) noexcept;
  ~SharedPages() { unmap(); }

  void* address() const noexcept { return address_; }
  uint64_t size_bytes() const noexcept { return bytes_; }

  /// Lets go of the pages without unmapping them, for the rest of the process's life: somebody may
  /// still write there. find() goes on finding them.
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

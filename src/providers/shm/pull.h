#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <fabric/result.h>

#include "base/unique_fd.h"

// Reads from another process's address space: how bytes come out of memory that nobody can map.

namespace fabric::shm {

/// Some random bytes of a process's memory: who can read them there can fetch from it, and it is
/// the process that it seems to be. Its number does not say that: in another pid namespace it is
/// somebody else's, and that of a dead process is used again.
struct Beacon {
  static constexpr uint32_t kBytes = 16;
  uint64_t address = 0;
  std::array<std::byte, kBytes> value{};
};

/// The own address space as a file, for a target that may not read it otherwise (Yama, another pid
/// namespace). Who gets it can read everything here and change nothing. None when procfs is hidden
/// or the process is not dumpable.
UniqueFd open_own_memory() noexcept;

struct Extent {
  uint64_t source = 0;  ///< address there; may be any number
  std::byte* target = nullptr;
  uint64_t bytes = 0;
};

/// Reads one source process, in the best method that was found to work.
///
/// A source can make its own pages wait (userfaultfd, a file on a network), and a read waits with
/// it; no call waits for anything else.
///
/// Threads: one at a time.
class Puller {
 public:
  enum class Method : uint8_t {
    kNone,     ///< the source has to bring its bytes itself
    kProcessVm,  ///< process_vm_readv
    kMemFile,  ///< its memory as a file
  };

  /// Each is tried on the beacon. True: read() goes this method from now on.
  /// `pid` is the source as this process sees it; 0 when it does not.
  bool try_process(int32_t pid, const Beacon& beacon) noexcept;
  /// `memory` is from outside: anything but some process's memory is closed unread, because to read
  /// it could block.
  bool try_mem_file(UniqueFd memory, const Beacon& beacon) noexcept;

  Method method() const noexcept { return method_; }
  /// Why the last attempt failed.
  Error last_error() const noexcept { return last_error_; }

  /// Reads all of it, or fails with kRemoteAccess (a page is not there or not readable), kPeerLost
  /// (the process is gone, or has become another program), kPermission (it may not be read any
  /// more), kUnsupported (no method was found). Some bytes may have been stored then. The targets are
  /// memory of the caller's own: it has checked them.
  ///
  /// Cost: kProcessVm: a system call for every kExtentsMax extents or kCallBytesMax bytes.
  ///   kMemFile: one for every extent.
  Result<void> read(std::span<const Extent> extents) noexcept;

  static constexpr uint32_t kExtentsMax = 256;
  static constexpr uint64_t kCallBytesMax = 1u << 30;  ///< the kernel takes less than 2 GiB

 private:
  bool verify(Method method, const Beacon& beacon) noexcept;
  Result<void> read_process(std::span<const Extent> extents) noexcept;
  Result<void> read_mem_file(std::span<const Extent> extents) noexcept;

  Method method_ = Method::kNone;
  int32_t pid_ = 0;
  UniqueFd memory_{};
  Beacon beacon_{};
  Error last_error_{};
};

/// For tests: the ways that are found from now on.
void allow_read_methods(bool process, bool memory) noexcept;

/// For people: "process_vm_readv", "memory file", "none".
const char* to_string(Puller::Method method) noexcept;

}  // namespace fabric::shm

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <fabric/result.h>

#include "base/unique_fd.h"

// Reads from the address space of another process, for memory that cannot be mapped.

namespace fabric::shm {

/// A random nonce at a known address of a process. Reading the right value there proves both that
/// the memory is readable and that it is the expected process. A pid does not prove that: it
/// differs between pid namespaces and is reused after the process dies.
struct Beacon {
  static constexpr uint32_t kBytes = 16;
  uint64_t address = 0;
  std::array<std::byte, kBytes> value{};
};

/// Opens /proc/self/mem read-only, to be sent to a target that may not call process_vm_readv()
/// (Yama, another pid namespace). Its holder can read all our memory and change none. Empty if
/// procfs is hidden or the process is not dumpable.
UniqueFd open_own_memory() noexcept;

/// One contiguous range to read.
struct Extent {
  uint64_t source = 0;  ///< address in the source process; untrusted
  std::byte* target = nullptr;
  uint64_t bytes = 0;
};

/// Reads the memory of one source process, by the first method that was verified to work.
///
/// A read can block only on the source's own pages (userfaultfd, a file on a network).
///
/// Owner: the ShmPeer of the source. Threads: one at a time (the worker).
/// Invariant: every read is checked against the beacon or goes through a file that is bound to the
///   address space, so bytes of another process are never taken for the source's.
class Puller {
 public:
  enum class Method : uint8_t {
    kNone,       ///< none works: the source has to use the bounce buffer
    kProcessVm,  ///< process_vm_readv
    kMemFile,    ///< /proc/pid/mem, opened by the source
  };

  /// Verifies a method by reading the beacon. True: read() uses it from now on. `pid` is the source
  /// in our pid namespace; 0 if it is not visible there.
  bool try_process(int32_t pid, const Beacon& beacon) noexcept;
  /// The same. `memory` is untrusted: unless it is a /proc/pid/mem it is closed unread, because a
  /// read could block.
  bool try_mem_file(UniqueFd memory, const Beacon& beacon) noexcept;

  Method method() const noexcept { return method_; }
  /// Why the last attempt failed.
  Error last_error() const noexcept { return last_error_; }

  /// Reads all extents, or fails with kRemoteAccess (a page is missing or unreadable), kPeerLost
  /// (the process exited or called exec()), kPermission (no longer allowed), kUnsupported (no
  /// method). After a failure some bytes may have been stored. The caller has validated the
  /// targets.
  ///
  /// Cost: kProcessVm: one system call per kExtentsMax extents or kCallBytesMax bytes.
  ///   kMemFile: one per extent.
  Result<void> read(std::span<const Extent> extents) noexcept;

  static constexpr uint32_t kExtentsMax = 256;
  static constexpr uint64_t kCallBytesMax = 1u << 30;  ///< below the kernel's limit of 2 GiB

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

/// For tests: which methods may be verified from now on.
void allow_read_methods(bool process, bool memory) noexcept;

/// For messages: "process_vm_readv", "memory file", "none".
const char* to_string(Puller::Method method) noexcept;

}  // namespace fabric::shm

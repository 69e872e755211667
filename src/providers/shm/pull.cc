#include "providers/shm/pull.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <atomic>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>
#include <utility>

namespace fabric::shm {

namespace {

// Relaxed: tests set them while no peer connects.
std::atomic<bool> process_allowed{true}, memory_allowed{true};

/// Whether it is a /proc/pid/mem. Reading other files of procfs may block (kmsg), and so may files
/// of FUSE or network file systems.
bool is_process_memory(int file) noexcept {
  struct statfs system {};
  if (::fstatfs(file, &system) != 0 || system.f_type != PROC_SUPER_MAGIC) return false;
  char link[32] = "/proc/self/fd/";
  const size_t prefix = std::strlen(link);
  *std::to_chars(link + prefix, std::end(link) - 1, file).ptr = '\0';
  char name[128];
  const ssize_t size = ::readlink(link, name, sizeof(name));
  return size > 0 && std::string_view(name, static_cast<size_t>(size)).ends_with("/mem");
}

Error from_errno(const char* call, int code) noexcept {
  switch (code) {
    case ESRCH:
      return fail(Errc::kPeerLost, call, code);
    case EPERM:
    case EACCES:
      return fail(Errc::kPermission, call, code);
    case ENOSYS:
      return fail(Errc::kUnsupported, call, code);
    case ENOMEM:
      return fail(Errc::kExhausted, call, code);
    default:  // EFAULT, EIO; EINVAL if the address is no valid file offset
      return fail(Errc::kRemoteAccess, call, code);
  }
}

void* pointer(uint64_t address) noexcept { return reinterpret_cast<void*>(address); }

}  // namespace

UniqueFd open_own_memory() noexcept {
  return UniqueFd(::open("/proc/self/mem", O_RDONLY | O_CLOEXEC));
}

bool Puller::try_process(int32_t pid, const Beacon& beacon) noexcept {
  if (pid <= 0) {
    last_error_ = fail(Errc::kUnsupported, "shm: the process is in another pid namespace");
    return false;
  }
  const int32_t before = std::exchange(pid_, pid);
  if (verify(Method::kProcessVm, beacon)) return true;
  pid_ = before;
  return false;
}

bool Puller::try_mem_file(UniqueFd memory, const Beacon& beacon) noexcept {
  if (!memory || !is_process_memory(memory.get())) {
    last_error_ =
        fail(memory ? Errc::kBadFormat : Errc::kUnsupported, "shm: not a process memory file");
    return false;
  }
  UniqueFd before = std::exchange(memory_, std::move(memory));
  if (verify(Method::kMemFile, beacon)) return true;
  memory_ = std::move(before);
  return false;
}

bool Puller::verify(Method method, const Beacon& beacon) noexcept {
  const auto& allowed = method == Method::kProcessVm ? process_allowed : memory_allowed;
  if (!allowed.load(std::memory_order_relaxed)) {
    last_error_ = fail(Errc::kUnsupported, to_string(method));
    return false;
  }
  const Method method_before = std::exchange(method_, method);
  const Beacon beacon_before = std::exchange(beacon_, beacon);
  std::array<std::byte, Beacon::kBytes> seen{};
  const Extent extent{beacon.address, seen.data(), seen.size()};
  auto ok = read({&extent, 1});
  if (ok && seen != beacon.value)
    ok = fail(Errc::kPeerLost, "shm: the pid belongs to another process");
  last_error_ = ok.error();
  if (ok) return true;
  method_ = method_before;
  beacon_ = beacon_before;
  return false;
}

Result<void> Puller::read(std::span<const Extent> extents) noexcept {
  switch (method_) {
    case Method::kProcessVm:
      return read_process(extents);
    case Method::kMemFile:
      return read_mem_file(extents);
    case Method::kNone:
      break;
  }
  return fail(Errc::kUnsupported, "shm: no method to read the source process");
}

/// Every call starts with the beacon. One call reads one address space throughout, so if the beacon
/// matches, all bytes came from the source, even if the pid is reused later.
Result<void> Puller::read_process(std::span<const Extent> extents) noexcept {
  constexpr const char* kCall = "process_vm_readv";
  std::array<iovec, 1 + kExtentsMax> here, there;
  std::array<std::byte, Beacon::kBytes> seen{};
  here[0] = {seen.data(), seen.size()};
  there[0] = {pointer(beacon_.address), seen.size()};
  uint64_t done = 0;  // bytes of the first remaining extent
  while (!extents.empty()) {
    uint32_t count = 1, sources = 1;
    uint64_t bytes = 0, source_end = 0;
    while (!extents.empty() && count < here.size() && bytes < kCallBytesMax) {
      const Extent& extent = extents.front();
      const uint64_t part = std::min(extent.bytes - done, kCallBytesMax - bytes);
      here[count++] = {extent.target + done, part};
      // Merging extents that are adjacent in the source, such as pages of one buffer, saves a
      // third.
      if (sources > 1 && extent.source + done == source_end) {
        there[sources - 1].iov_len += part;
      } else {
        there[sources++] = {pointer(extent.source + done), part};
      }
      source_end = extent.source + done + part;
      bytes += part;
      done += part;
      if (done < extent.bytes) break;
      done = 0;
      extents = extents.subspan(1);
    }
    const ssize_t got = ::process_vm_readv(pid_, here.data(), count, there.data(), sources, 0);
    if (got < 0 && errno != EFAULT) return from_errno(kCall, errno);
    if (got < static_cast<ssize_t>(seen.size()) || seen != beacon_.value) {
      return fail(Errc::kPeerLost, "shm: the source process was replaced", got < 0 ? errno : 0);
    }
    if (static_cast<uint64_t>(got) < seen.size() + bytes) {
      return fail(Errc::kRemoteAccess, kCall, EFAULT);
    }
  }
  return {};
}

/// The file is bound to one address space: once that is gone reads return 0, even if the pid is
/// reused.
Result<void> Puller::read_mem_file(std::span<const Extent> extents) noexcept {
  for (const Extent& extent : extents) {
    for (uint64_t done = 0; done < extent.bytes;) {
      const ssize_t got = ::pread(memory_.get(), extent.target + done, extent.bytes - done,
                                  static_cast<off_t>(extent.source + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return from_errno("pread", errno);
      if (got == 0) return fail(Errc::kPeerLost, "pread");
      done += static_cast<uint64_t>(got);
    }
  }
  return {};
}

const char* to_string(Puller::Method method) noexcept {
  switch (method) {
    case Puller::Method::kNone:
      return "none";
    case Puller::Method::kProcessVm:
      return "process_vm_readv";
    case Puller::Method::kMemFile:
      return "memory file";
  }
  return "?";
}

void allow_read_methods(bool process, bool memory) noexcept {
  process_allowed.store(process, std::memory_order_relaxed);
  memory_allowed.store(memory, std::memory_order_relaxed);
}

}  // namespace fabric::shm

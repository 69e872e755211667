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

// Relaxed: for tests, which set them while nobody connects.
std::atomic<bool> process_allowed{true}, memory_allowed{true};

/// Procfs has one name of that kind. Its other files may block (kmsg), and so may those of other
/// file systems, in user space or on a network.
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
    default:  // EFAULT, EIO; EINVAL where the address is no offset of a file
      return fail(Errc::kRemoteAccess, call, code);
  }
}

void* pointer(uint64_t address) noexcept { return reinterpret_cast<void*>(address); }

}  // namespace

UniqueFd open_own_memory() noexcept {
  return UniqueFd(::open("/proc/self/mem", O_RDONLY | O_CLOEXEC));
}

bool Puller::by_process(int32_t pid, const Beacon& beacon) noexcept {
  if (pid <= 0) {
    obstacle_ = fail(Errc::kUnsupported, "a process of another pid namespace");
    return false;
  }
  const int32_t before = std::exchange(pid_, pid);
  if (try_out(Way::kProcess, beacon)) return true;
  pid_ = before;
  return false;
}

bool Puller::by_memory(UniqueFd memory, const Beacon& beacon) noexcept {
  if (!memory || !is_process_memory(memory.get())) {
    obstacle_ = fail(memory ? Errc::kBadFormat : Errc::kUnsupported, "the memory of a process");
    return false;
  }
  UniqueFd before = std::exchange(memory_, std::move(memory));
  if (try_out(Way::kMemFile, beacon)) return true;
  memory_ = std::move(before);
  return false;
}

bool Puller::try_out(Way way, const Beacon& beacon) noexcept {
  const auto& allowed = way == Way::kProcess ? process_allowed : memory_allowed;
  if (!allowed.load(std::memory_order_relaxed)) {
    obstacle_ = fail(Errc::kUnsupported, to_string(way));
    return false;
  }
  const Way way_before = std::exchange(way_, way);
  const Beacon beacon_before = std::exchange(beacon_, beacon);
  std::array<std::byte, Beacon::kBytes> seen{};
  const Stretch stretch{beacon.address, seen.data(), seen.size()};
  auto ok = read({&stretch, 1});
  if (ok && seen != beacon.value) ok = fail(Errc::kPeerLost, "another process");
  obstacle_ = ok.error();
  if (ok) return true;
  way_ = way_before;
  beacon_ = beacon_before;
  return false;
}

Result<void> Puller::read(std::span<const Stretch> stretches) noexcept {
  switch (way_) {
    case Way::kProcess:
      return read_process(stretches);
    case Way::kMemFile:
      return read_mem_file(stretches);
    case Way::kNone:
      break;
  }
  return fail(Errc::kUnsupported, "no way to read the source");
}

/// Every call begins with the beacon. A call reads one address space from its first byte to its
/// last, so what it brought came from the right one, whatever has the number afterwards.
Result<void> Puller::read_process(std::span<const Stretch> stretches) noexcept {
  constexpr const char* kCall = "process_vm_readv";
  std::array<iovec, 1 + kStretchesMax> here, there;
  std::array<std::byte, Beacon::kBytes> seen{};
  here[0] = {seen.data(), seen.size()};
  there[0] = {pointer(beacon_.address), seen.size()};
  uint64_t done = 0;  // of the first stretch that is left
  while (!stretches.empty()) {
    uint32_t count = 1, sources = 1;
    uint64_t bytes = 0, source_end = 0;
    while (!stretches.empty() && count < here.size() && bytes < kCallBytesMax) {
      const Stretch& stretch = stretches.front();
      const uint64_t part = std::min(stretch.bytes - done, kCallBytesMax - bytes);
      here[count++] = {stretch.target + done, part};
      // Neighbours there, as the pages of one buffer are, cost a third less as one.
      if (sources > 1 && stretch.source + done == source_end) {
        there[sources - 1].iov_len += part;
      } else {
        there[sources++] = {pointer(stretch.source + done), part};
      }
      source_end = stretch.source + done + part;
      bytes += part;
      done += part;
      if (done < stretch.bytes) break;
      done = 0;
      stretches = stretches.subspan(1);
    }
    const ssize_t got = ::process_vm_readv(pid_, here.data(), count, there.data(), sources, 0);
    if (got < 0 && errno != EFAULT) return from_errno(kCall, errno);
    if (got < static_cast<ssize_t>(seen.size()) || seen != beacon_.value) {
      return fail(Errc::kPeerLost, "another program", got < 0 ? errno : 0);
    }
    if (static_cast<uint64_t>(got) < seen.size() + bytes) {
      return fail(Errc::kRemoteAccess, kCall, EFAULT);
    }
  }
  return {};
}

/// The file is that of one address space: when it is gone the file is empty, whoever has the number
/// of its process.
Result<void> Puller::read_mem_file(std::span<const Stretch> stretches) noexcept {
  for (const Stretch& stretch : stretches) {
    for (uint64_t done = 0; done < stretch.bytes;) {
      const ssize_t got = ::pread(memory_.get(), stretch.target + done, stretch.bytes - done,
                                  static_cast<off_t>(stretch.source + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return from_errno("pread", errno);
      if (got == 0) return fail(Errc::kPeerLost, "pread");
      done += static_cast<uint64_t>(got);
    }
  }
  return {};
}

const char* to_string(Puller::Way way) noexcept {
  switch (way) {
    case Puller::Way::kNone:
      return "none";
    case Puller::Way::kProcess:
      return "process_vm_readv";
    case Puller::Way::kMemFile:
      return "memory file";
  }
  return "?";
}

void allow_ways(bool process, bool memory) noexcept {
  process_allowed.store(process, std::memory_order_relaxed);
  memory_allowed.store(memory, std::memory_order_relaxed);
}

}  // namespace fabric::shm

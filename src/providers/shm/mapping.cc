#include "providers/shm/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace fabric::shm {

namespace {

Result<Mapping> map(int fd, uint64_t bytes, int protection) {
  void* at = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return fail(Errc::kExhausted, "shm mapping", errno);
  Mapping mapping(static_cast<std::byte*>(at), bytes);
  // Otherwise a child could write into the parent's memory.
  if (::madvise(at, bytes, MADV_DONTFORK) != 0) {
    return fail(Errc::kExhausted, "shm mapping", errno);
  }
  return mapping;
}

}  // namespace

void Mapping::populate(uint64_t from, uint64_t bytes) const noexcept {
  if (from >= bytes_) return;
  // Best effort: failure only costs page faults later.
  (void)::madvise(at_ + from, std::min(bytes, bytes_ - from), MADV_POPULATE_WRITE);
}

Mapping::~Mapping() {
  if (at_ != nullptr) ::munmap(at_, bytes_);
}

Result<SharedMemory> make_memory(uint64_t bytes, PeerAccess access) {
  SharedMemory made;
  made.fd.reset(::memfd_create("fabric", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!made.fd) return fail(Errc::kExhausted, "shm memory", errno);
  if (::ftruncate(made.fd.get(), static_cast<off_t>(bytes)) != 0) {
    return fail(Errc::kExhausted, "shm memory", errno);
  }
  auto mapping = map(made.fd.get(), bytes, PROT_READ | PROT_WRITE);
  if (!mapping) return mapping.error();
  made.mapping = *std::move(mapping);
  int seals = F_SEAL_SHRINK | F_SEAL_GROW;
  // The existing mapping, ours, stays writable; new ones cannot be.
  if (access == PeerAccess::kReadOnly) seals |= kSealFutureWrite;
  if (::fcntl(made.fd.get(), F_ADD_SEALS, seals) != 0) {
    return fail(Errc::kUnsupported, "shm memory", errno);
  }
  return made;
}

Result<Mapping> map_foreign(int fd, uint64_t bytes, PeerAccess access) {
  struct stat info {};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  // If it could shrink, our next access could fault.
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd, &info) != 0 ||
      static_cast<uint64_t>(info.st_size) != bytes || bytes == 0) {
    return fail(Errc::kBadFormat, "shm descriptor");
  }
  return map(fd, bytes, access == PeerAccess::kReadWrite ? PROT_READ | PROT_WRITE : PROT_READ);
}

}  // namespace fabric::shm

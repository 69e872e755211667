#include "core/pages.h"

#include <sys/mman.h>

#include <cerrno>

// Called by the owner of the pages, on any thread; no lock is needed.

namespace fabric::core {

Result<OwnedPages> OwnedPages::allocate(uint64_t bytes, bool huge, bool shared, Log& log) {
  constexpr uint64_t kHugeBytes = 2u << 20;
  const uint64_t unit = huge && bytes >= kHugeBytes ? kHugeBytes : 4096;
  if (bytes > UINT64_MAX - unit) return fail(Errc::kTooLarge, "size_bytes");
  OwnedPages pages;
  if (shared) {
    auto made = SharedPages::allocate(bytes, huge);
    if (made) {
      pages.address_ = made->address();
      pages.bytes_ = made->size_bytes();
      pages.shared_ = *std::move(made);
      return pages;
    }
    if (made.error().code != Errc::kUnsupported) return made.error();
    FABRIC_LOG(log, kWarning, "core", "allocated memory cannot be mapped by peers",
               {"bytes", bytes}, {"error", made.error()});
  }
  const uint64_t size = (bytes + unit - 1) / unit * unit;
  void* address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return fail(Errc::kExhausted, "size_bytes", errno);
  // A hint: ordinary pages work too, only slower.
  if (unit == kHugeBytes) (void)::madvise(address, size, MADV_HUGEPAGE);
  pages.address_ = address;
  pages.bytes_ = size;
  return pages;
}

OwnedPages& OwnedPages::operator=(OwnedPages&& other) noexcept {
  if (this == &other) return *this;
  leak();
  address_ = std::exchange(other.address_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  shared_ = std::exchange(other.shared_, std::nullopt);
  return *this;
}

void OwnedPages::unmap() noexcept {
  void* address = std::exchange(address_, nullptr);
  if (shared_) {
    shared_.reset();
  } else if (address != nullptr) {
    ::munmap(address, bytes_);
  }
}

void OwnedPages::leak() noexcept {
  address_ = nullptr;
  if (shared_) shared_->leak();
  shared_.reset();
}

}  // namespace fabric::core

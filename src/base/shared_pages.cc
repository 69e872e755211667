#include "base/shared_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <string_view>
#include <utility>

#include "base/fork_guard.h"

// Newer than the headers of some systems that we build on; the values are kernel ABI.
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB (21U << 26)
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace fabric {

namespace {

constexpr uint64_t kHugeBytes = 2u << 20;

struct Block {
  uint64_t bytes = 0;
  uint64_t number = 0;
  std::shared_ptr<const UniqueFd> file{};
};

uint64_t rounded(uint64_t bytes, uint64_t unit) noexcept {
  return bytes > UINT64_MAX - unit ? UINT64_MAX / unit * unit : (bytes + unit - 1) / unit * unit;
}

/// The kernel's estimate of the memory that can be allocated without invoking the OOM killer.
/// Unlimited when procfs is not available.
uint64_t available_bytes() noexcept {
  const UniqueFd file(::open("/proc/meminfo", O_RDONLY | O_CLOEXEC));
  char text[4096];
  const ssize_t size = file ? ::read(file.get(), text, sizeof(text)) : 0;
  const std::string_view all(text, size > 0 ? static_cast<size_t>(size) : 0);
  uint64_t kib = 0;
  for (const std::string_view name : {"MemAvailable:", "SwapFree:"}) {
    const size_t at = all.find(name);
    if (at == all.npos) return UINT64_MAX;
    const size_t digits = std::min(all.find_first_not_of(' ', at + name.size()), all.size());
    uint64_t value = 0;
    std::from_chars(all.data() + digits, all.data() + all.size(), value);
    kib += value;
  }
  return kib * 1024;
}

Result<UniqueFd> make_memfd(uint64_t bytes, unsigned flags) noexcept {
  // Systems that forbid executable memfds require MFD_NOEXEC_SEAL; older kernels reject it.
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  UniqueFd file(::memfd_create("fabric", kFlags | MFD_NOEXEC_SEAL | flags));
  if (!file && errno == EINVAL) file.reset(::memfd_create("fabric", kFlags | flags));
  if (!file) {
    return fail(errno == ENOMEM ? Errc::kExhausted : Errc::kUnsupported, "memfd_create", errno);
  }
  if (bytes > INT64_MAX || ::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    return fail(Errc::kExhausted, "ftruncate", bytes > INT64_MAX ? EFBIG : errno);
  }
  if (::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return fail(Errc::kUnsupported, "F_ADD_SEALS", errno);
  }
  return file;
}

/// Allocates the pages of the file, for kernels without MADV_POPULATE_WRITE. A signal undoes the
/// fallocate() that it interrupts, so steps get smaller until one fits between two signals.
int reserve_by_file(int file, uint64_t bytes) noexcept {
  uint64_t step = 64u << 20;
  for (uint64_t at = 0; at < bytes;) {
    const uint64_t size = std::min(step, bytes - at);
    if (::fallocate(file, 0, static_cast<off_t>(at), static_cast<off_t>(size)) == 0) {
      at += size;
    } else if (errno == EINTR) {
      step = std::max(step / 2, kHugeBytes);
    } else {
      return errno;
    }
  }
  return 0;
}

/// Maps the file and populates all of its pages.
Result<void*> map_all(int file, uint64_t bytes, bool huge) noexcept {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (address == MAP_FAILED) return fail(Errc::kExhausted, "mmap", errno);
  // A hint: ordinary pages work too, only slower. It is set on the mapping, so the pages must be
  // populated through the mapping as well; fallocate() would ignore it.
  if (huge) (void)::madvise(address, bytes, MADV_HUGEPAGE);
  int code = ::madvise(address, bytes, MADV_DONTFORK) == 0 ? 0 : errno;
  if (code == 0 && ::madvise(address, bytes, MADV_POPULATE_WRITE) != 0) {
    code = errno == EINVAL ? reserve_by_file(file, bytes) : errno;
  }
  if (code == 0) return address;
  ::munmap(address, bytes);
  return fail(Errc::kExhausted, "size_bytes", code);
}

}  // namespace

/// The blocks of one process. A child of fork() creates a new registry: it has none of its parent's
/// pages, and the parent's mutex may have been locked at the fork().
struct SharedPages::Registry {
  ForkGuard guard{};
  std::mutex mutex{};
  std::map<uint64_t, Block> blocks{};  ///< by address

  // Release in own_registry(), acquire by readers: the registry is constructed.
  static std::atomic<Registry*> current;
  static std::atomic<uint64_t> blocks_made;  ///< a count: pairs with nothing
};
std::atomic<SharedPages::Registry*> SharedPages::Registry::current{nullptr};
std::atomic<uint64_t> SharedPages::Registry::blocks_made{0};

/// Never destroyed: pages may be leaked on purpose, and live as long as the process.
SharedPages::Registry& SharedPages::own_registry() {
  Registry* now = Registry::current.load(std::memory_order_acquire);
  while (now == nullptr || now->guard.forked()) {
    auto fresh = std::make_unique<Registry>();
    // Pairs with the loads here and in find().
    if (Registry::current.compare_exchange_strong(now, fresh.get(), std::memory_order_acq_rel,
                                                  std::memory_order_acquire)) {
      return *fresh.release();
    }
  }
  return *now;
}

Result<SharedPages> SharedPages::allocate(uint64_t bytes, bool huge) {
  if (bytes == 0) return fail(Errc::kInvalidArgument, "size_bytes");
  try {
    Registry& registry = own_registry();
    const auto register_block = [&](UniqueFd file, void* address,
                                    uint64_t size) -> Result<SharedPages> {
      SharedPages pages(registry, address, size);
      Block block{.bytes = size,
                  .number = 1 + Registry::blocks_made.fetch_add(1, std::memory_order_relaxed),
                  .file = std::make_shared<const UniqueFd>(std::move(file))};
      const std::lock_guard lock(registry.mutex);
      registry.blocks.emplace(reinterpret_cast<uint64_t>(address), std::move(block));
      return pages;
    };
    huge = huge && bytes >= kHugeBytes;
    if (huge) {
      const uint64_t size = rounded(bytes, kHugeBytes);
      if (auto file = make_memfd(size, MFD_HUGETLB | MFD_HUGE_2MB)) {
        // Mapping fails when the huge page pool has too few free pages.
        auto address = map_all(file->get(), size, huge);
        if (address) return register_block(*std::move(file), *address, size);
      }
    }
    const uint64_t size = rounded(bytes, static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)));
    // A larger allocation would not fail; the OOM killer would kill a process.
    if (size > available_bytes()) return fail(Errc::kExhausted, "size_bytes", ENOMEM);
    auto file = make_memfd(size, 0);
    if (!file) return file.error();
    auto address = map_all(file->get(), size, huge);
    if (!address) return address.error();
    return register_block(*std::move(file), *address, size);
  } catch (const std::bad_alloc&) {
    return fail(Errc::kExhausted, "memory for the list of blocks");
  }
}

std::optional<SharedPages::Location> SharedPages::find(const void* address,
                                                       uint64_t bytes) noexcept {
  Registry* registry = Registry::current.load(std::memory_order_acquire);  // see own_registry()
  if (registry == nullptr || registry->guard.forked()) return std::nullopt;
  const auto at = reinterpret_cast<uint64_t>(address);
  const std::lock_guard lock(registry->mutex);
  auto next = registry->blocks.upper_bound(at);
  if (next == registry->blocks.begin()) return std::nullopt;
  const auto& [begin, block] = *--next;
  const uint64_t offset = at - begin;
  if (offset >= block.bytes || bytes > block.bytes - offset) return std::nullopt;
  return Location{block.file, offset, block.bytes, block.number};
}

SharedPages::SharedPages(SharedPages&& other) noexcept
    : home_(other.home_), address_(std::exchange(other.address_, nullptr)), bytes_(other.bytes_) {}

SharedPages& SharedPages::operator=(SharedPages&& other) noexcept {
  if (this == &other) return *this;
  unmap();
  home_ = other.home_;
  address_ = std::exchange(other.address_, nullptr);
  bytes_ = other.bytes_;
  return *this;
}

void SharedPages::unmap() noexcept {
  void* address = std::exchange(address_, nullptr);
  // In a child the address and the descriptor number may be in use for something else.
  if (address == nullptr || home_->guard.forked()) return;
  {
    // Before the munmap(): after it, the next block may get the same address.
    const std::lock_guard lock(home_->mutex);
    home_->blocks.erase(reinterpret_cast<uint64_t>(address));
  }
  ::munmap(address, bytes_);
}

}  // namespace fabric

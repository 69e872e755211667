#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <fabric/result.h>

#include "base/unique_fd.h"

namespace fabric::shm {

/// Mapped memory, unmapped at the end. Children of fork() do not get it.
class Mapping {
 public:
  Mapping() = default;
  Mapping(std::byte* at, uint64_t bytes) noexcept : at_(at), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept
      : at_(std::exchange(other.at_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(at_, other.at_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  std::byte* data() const noexcept { return at_; }
  uint64_t size() const noexcept { return bytes_; }
  explicit operator bool() const noexcept { return at_ != nullptr; }
  /// Enters `bytes` of its pages from `from` on into the page table, so that stores find them
  /// there. Where the kernel cannot, the first store to each page does it.
  void populate(uint64_t from, uint64_t bytes) const noexcept;
  template <class T>
  T* as() const noexcept {
    return reinterpret_cast<T*>(at_);
  }

 private:
  std::byte* at_ = nullptr;
  uint64_t bytes_ = 0;
};

/// Zeroed memory that can be passed to other processes, mapped here for writing.
struct SharedMemory {
  UniqueFd fd;
  Mapping mapping;
};

enum class PeerAccess : uint8_t { kReadWrite, kReadOnly };

/// It can neither shrink nor grow, so that nobody's access can fault. Fails with kExhausted.
Result<SharedMemory> make_memory(uint64_t bytes, PeerAccess access);

/// Maps what another process passed over. Fails with kBadFormat unless it is memory of exactly
/// `bytes` that cannot shrink, kExhausted.
Result<Mapping> map_foreign(int fd, uint64_t bytes, PeerAccess access);

}  // namespace fabric::shm

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include <fabric/result.h>

#include "base/unique_fd.h"

namespace fabric::shm {

/// F_SEAL_FUTURE_WRITE, which older C libraries lack.
inline constexpr int kSealFutureWrite = 0x0010;

/// Owns a memory mapping and unmaps it on destruction. Children of fork() do not inherit it.
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
  /// Prefaults `bytes` from offset `from`, so that stores do not take page faults. Best effort:
  /// without kernel support the first store to each page faults it in.
  void populate(uint64_t from, uint64_t bytes) const noexcept;
  template <class T>
  T* as() const noexcept {
    return reinterpret_cast<T*>(at_);
  }

 private:
  std::byte* at_ = nullptr;
  uint64_t bytes_ = 0;
};

/// A sealed memfd of our own, zeroed and mapped read-write, whose descriptor can go to peers.
struct SharedMemory {
  UniqueFd fd;
  Mapping mapping;
};

enum class PeerAccess : uint8_t { kReadWrite, kReadOnly };

/// Sealed against resizing, so that no access can fault. `access` is what peers may map. Fails with
/// kExhausted, or kUnsupported (no seals).
Result<SharedMemory> make_memory(uint64_t bytes, PeerAccess access);

/// Maps a descriptor that another process sent. Fails with kBadFormat unless it is a memfd of
/// exactly `bytes` that cannot shrink; with kExhausted if it cannot be mapped.
Result<Mapping> map_foreign(int fd, uint64_t bytes, PeerAccess access);

}  // namespace fabric::shm

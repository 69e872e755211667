#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace fabric::test {

/// Bytes that one process leaves for the others, in memory that they share: an address, a
/// descriptor.
struct Note {
  std::atomic<uint32_t> size{0};  ///< 0: not there yet
  std::array<std::byte, 4096> bytes{};

  void put(std::span<const std::byte> what) {
    std::memcpy(bytes.data(), what.data(), what.size());
    size.store(static_cast<uint32_t>(what.size()), std::memory_order_release);
  }
  std::span<const std::byte> get() const {
    return std::span(bytes).first(size.load(std::memory_order_acquire));
  }
};

}  // namespace fabric::test

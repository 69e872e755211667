#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "providers/verbs/wire.h"

namespace fabric::verbs {

/// A datagram part fits into the usual MTU of 1500 bytes, so that IP does not fragment it:
/// firewalls often drop IP fragments.
inline constexpr uint32_t kDatagramPartBytes = 1400;
/// The largest control message of the core and its header.
inline constexpr uint32_t kControlBytesMax = (64u << 10) + 4096;

/// Reassembles control datagrams from their parts. Loss, repetition and reordering are normal; at
/// most kOpenMax datagrams are incomplete at a time, and the oldest is evicted first.
class Assembler {
 public:
  static constexpr size_t kOpenMax = 32;

  /// The datagram that this part completes, or nothing. Valid until the next call.
  std::span<const std::byte> take(const DatagramPartHead& head, std::span<const std::byte> bytes);

 private:
  struct Open {
    DatagramPartHead head{};
    uint32_t missing = 0;
    size_t size_bytes = 0;
    std::vector<bool> have{};
    std::vector<std::byte> bytes{};
  };
  std::list<Open> open_;  ///< the oldest first
  std::vector<std::byte> whole_;
};

constexpr uint32_t datagram_parts_of(size_t bytes) noexcept {
  return static_cast<uint32_t>((bytes + kDatagramPartBytes - 1) / kDatagramPartBytes);
}

}  // namespace fabric::verbs

#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "providers/verbs/wire.h"

namespace fabric::verbs {

/// A fragment fits into a packet of every network with the usual 1500 bytes, so that no router has
/// to cut it, and a firewall that drops cut packets lets it through.
inline constexpr uint32_t kFragmentBytes = 1400;
/// The largest control message of the core and its header.
inline constexpr uint32_t kControlBytesMax = (64u << 10) + 4096;

/// Control datagrams that came in several fragments, until they are whole. Loss, repetition and
/// any order are normal; what stays incomplete is pushed out by what comes later.
class Assembler {
 public:
  static constexpr size_t kOpenMax = 32;

  /// The whole datagram that this fragment completes, or nothing. It is valid until the next call.
  std::span<const std::byte> take(const FragmentHead& head, std::span<const std::byte> bytes);

 private:
  struct Open {
    FragmentHead head{};
    uint32_t missing = 0;
    size_t size_bytes = 0;
    std::vector<bool> have{};
    std::vector<std::byte> bytes{};
  };
  std::list<Open> open_;  ///< the oldest first
  std::vector<std::byte> whole_;
};

constexpr uint32_t fragments_of(size_t bytes) noexcept {
  return static_cast<uint32_t>((bytes + kFragmentBytes - 1) / kFragmentBytes);
}

}  // namespace fabric::verbs

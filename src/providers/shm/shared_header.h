#pragma once

#include <array>
#include <atomic>
#include <cstdint>

// What an engine shows to its peers: one piece of memory that only it writes. PeerAccess map it
// read-only and believe nothing in it that they have not checked.

namespace fabric::shm {

enum class RkeyKind : uint32_t {
  kNone = 0,
  kMapped = 1,  ///< in shared pages: writers map them and store
  kPulled = 2,  ///< anything else: the owner fetches the bytes
};

/// One registration. `validity_epoch` is the rkey's generation while it is good, and anything else after.
/// The rest is written while it is not, so whoever finds the validity_epoch before and behind has read
/// what belongs together.
struct alignas(64) RkeyEntry {
  std::atomic<uint64_t> validity_epoch;
  std::atomic<uint64_t> block;   ///< kMapped: number of the shared pages
  std::atomic<uint64_t> offset;  ///< kMapped: of the region in them
  std::atomic<uint64_t> block_bytes;
  std::atomic<uint64_t> size_bytes;
  std::atomic<uint32_t> kind;
};

struct SharedHeader {
  static constexpr uint32_t kRkeys = 1u << 17;
  static constexpr uint32_t kPaths = 1u << 16;
  static constexpr uint32_t kConnections = 1u << 16;

  /// Odd: its worker sleeps, or is about to. Another number for every sleep.
  alignas(64) std::atomic<uint64_t> sleep_epoch;
  /// Per outgoing line: frames frames_sent. A peer that polls sees by it that there is something to read.
  alignas(64) std::array<std::atomic<uint32_t>, kConnections> frames_sent;
  /// Per inbound path: the number that its writer was told, while it may write.
  alignas(64) std::array<std::atomic<uint64_t>, kPaths> path_epochs;
  alignas(64) std::array<RkeyEntry, kRkeys> rkeys;
};

}  // namespace fabric::shm

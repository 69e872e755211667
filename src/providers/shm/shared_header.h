#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

// The memory that an engine shares with its peers. Only that engine writes it; peers map it
// read-only and validate everything they read. The layout is part of the wire format.

namespace fabric::shm {

enum class RkeyKind : uint32_t {
  kNone = 0,
  kMapped = 1,  ///< in shared pages: writers map them and store directly
  kPulled = 2,  ///< any other memory: the owner pulls the bytes from the writer
};

/// One registered region, looked up by the index in an rkey. A generation-validated entry:
/// `validity_epoch` equals the rkey's generation while the entry is valid. The other fields change
/// only while it does not, so a reader that sees that epoch before and after reading them has a
/// consistent entry, and any other reader has a revoked rkey. Writers check the epoch again inside
/// each copy section; that check is what makes a revocation effective.
///
/// Writer: RkeyTable, under its lock. Readers: ShmPeer::rkey_view(), guarded_copy().
struct alignas(64) RkeyEntry {
  std::atomic<uint64_t> validity_epoch;
  std::atomic<uint64_t> block;   ///< kMapped: number of the block of shared pages
  std::atomic<uint64_t> offset;  ///< kMapped: of the region in the block
  std::atomic<uint64_t> block_bytes;
  std::atomic<uint64_t> size_bytes;
  std::atomic<uint32_t> kind;
};

/// What an engine publishes about itself: whether it sleeps, which paths and rkeys are valid, and
/// how many frames it has sent. One per engine, in a sealed memfd that goes to each peer with the
/// greeting.
///
/// Owner: ShmNetwork. Writer: the engine only (worker thread; rkey entries under RkeyTable's lock).
struct SharedHeader {
  static constexpr uint32_t kRkeys = 1u << 17;
  static constexpr uint32_t kPaths = 1u << 16;
  static constexpr uint32_t kConnections = 1u << 16;

  /// Odd while the worker sleeps or is about to; a new odd value for each sleep. A writer that sees
  /// an odd value sends a wake frame, once per value.
  alignas(64) std::atomic<uint64_t> sleep_epoch;
  /// While it sleeps: the ArrivalCount (arrivals.h) at which immediates wake it, or kEachWakes.
  /// Everything else wakes it at once.
  std::atomic<uint64_t> wake_at;
  /// Per outgoing connection: frames sent. Lets the peer poll memory instead of the socket.
  alignas(64) std::array<std::atomic<uint32_t>, kConnections> frames_sent;
  /// Per inbound path: the epoch that was given to its sender, while that sender may write.
  alignas(64) std::array<std::atomic<uint64_t>, kPaths> path_epochs;
  alignas(64) std::array<RkeyEntry, kRkeys> rkeys;
};
// `wake_at` is where earlier versions have padding, which is zero: kEachWakes.
static_assert(offsetof(SharedHeader, wake_at) == 8 && offsetof(SharedHeader, frames_sent) == 64);

}  // namespace fabric::shm

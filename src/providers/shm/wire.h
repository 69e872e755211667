#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <fabric/result.h>

#include "providers/shm/pull.h"

// The wire format between same-host engines: addresses, path hellos, rkeys, and the frames on their
// sockets. All input is untrusted.

namespace fabric::shm {

/// Identifies an engine and the socket it listens on.
struct Address {
  std::array<std::byte, 16> host{};  ///< the kernel's boot id: the same in all containers of a host
  uint64_t net_namespace = 0;        ///< scope of abstract socket names
  uint64_t instance = 0;             ///< random, one per opened network
  uint32_t user = 0;
  std::string directory{};  ///< of the socket file; empty: an abstract name

  bool operator==(const Address&) const = default;
};

inline constexpr uint32_t kDirectoryBytesMax = 72;  // sun_path holds 108 bytes

std::vector<std::byte> encode(const Address& address);
Result<Address> decode_address(std::span<const std::byte> bytes);

/// Identifies a path; numbers are not reused.
struct PathHello {
  Address from{};
  uint32_t lane = 0;  ///< of the sender
  uint32_t path = 0;
};
std::vector<std::byte> encode(const PathHello& hello);
Result<PathHello> decode_hello(std::span<const std::byte> bytes);

/// An rkey on the wire. The rest is in the RkeyEntry at `index` of the owner's SharedHeader.
struct WireRkey {
  uint32_t index = 0, generation = 0;
};
std::vector<std::byte> encode(const WireRkey& rkey);
Result<WireRkey> decode_rkey(std::span<const std::byte> bytes);

// Frames. The number of descriptors attached to a frame is part of the format.

/// The first frame on every connection. Descriptors: writer slots, SharedHeader.
struct Greeting {
  Address from{};
  uint32_t connection = 0;  ///< index in the sender's SharedHeader::frames_sent
  bool membarrier = false;  ///< the sender is registered for membarrier
  /// The sender understands Arrivals. Only together with `membarrier`: one byte carries both, so
  /// that versions that know only `membarrier` read it right.
  bool counts_arrivals = false;
  Beacon beacon{};
};
/// A control datagram of the core.
struct Datagram {
  std::span<const std::byte> bytes{};  ///< borrowed
};
/// Wakes a sleeping worker; carries nothing.
struct Wake {};
/// The target has its end of a path ready. Descriptor: the Ring.
struct RingReady {
  uint32_t lane = 0;  ///< of the sender, as in the hello
  uint32_t path = 0;
  uint32_t epoch_index = 0;  ///< in the target's SharedHeader::path_epochs
  uint64_t epoch = 0;
  bool can_pull = false;  ///< the target can read the sender's memory; else bytes are bounced
};
/// Asks for the descriptor of a block of shared pages, to map it.
struct BlockRequest {
  uint64_t block = 0;
};
/// Descriptor: the shared pages, or none if the block no longer exists.
struct BlockReply {
  uint64_t block = 0, size_bytes = 0;
};
/// The block has no rkey any more: unmap it.
struct BlockReleased {
  uint64_t block = 0;
};
/// Asks for a descriptor of the peer's address space, to pull from it.
struct MemoryRequest {};
/// Descriptor: /proc/self/mem of the sender, read-only; or none.
struct MemoryReply {};

/// Only to a peer whose greeting says that it counts. Descriptor: the sender's ArrivalCount.
struct Arrivals {};

/// The index of a type is its number on the wire.
using Frame = std::variant<Greeting, Datagram, Wake, RingReady, BlockRequest, BlockReply,
                           BlockReleased, MemoryRequest, MemoryReply, Arrivals>;

inline constexpr uint32_t kDescriptorsMax = 2;
inline constexpr uint32_t kFrameHeadBytesMax = 256;  ///< without the bytes of a datagram

/// Without the bytes of a datagram, which the caller sends after it.
std::vector<std::byte> encode(const Frame& frame);
/// `descriptors`: how many were attached. Fails with kBadFormat.
Result<Frame> decode_frame(std::span<const std::byte> bytes, uint32_t descriptors);

}  // namespace fabric::shm

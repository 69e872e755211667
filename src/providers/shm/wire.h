#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include <fabric/result.h>

#include "providers/shm/pull.h"

// What same-host engines say to each other in bytes: addresses, the hellos of paths, and the frames
// on their sockets. Everything decoded here is from outside.

namespace fabric::shm {

/// Where an engine listens.
struct Address {
  std::array<std::byte, 16> host{};  ///< the kernel's boot id: the same in all containers of a host
  uint64_t net_namespace = 0;        ///< names without a directory exist in one of these only
  uint64_t instance = 0;             ///< random, one per opened network
  uint32_t user = 0;
  std::string directory{};  ///< of the socket file; empty: an abstract name

  bool operator==(const Address&) const = default;
};

inline constexpr uint32_t kDirectoryBytesMax = 72;  // a socket's path holds 108

std::vector<std::byte> encode(const Address& address);
Result<Address> decode_address(std::span<const std::byte> bytes);

/// Names a path for its whole life: numbers are not used again.
struct PathHello {
  Address from{};
  uint32_t lane = 0;  ///< of the sender
  uint32_t path = 0;
};
std::vector<std::byte> encode(const PathHello& hello);
Result<PathHello> decode_hello(std::span<const std::byte> bytes);

/// What a peer needs in request to write: the rest stands in the owner's header.
struct WireRkey {
  uint32_t index = 0, generation = 0;
};
std::vector<std::byte> encode(const WireRkey& rkey);
Result<WireRkey> decode_rkey(std::span<const std::byte> bytes);

// Frames. The number of descriptors that come along is part of the format.

struct Greeting {  ///< the first on every connection; descriptors: slots, header
  Address from{};
  uint32_t connection = 0;  ///< its place in SharedHeader::frames_sent
  bool membarrier = false;
  Beacon beacon{};
};
struct Datagram {
  std::span<const std::byte> bytes{};  ///< borrowed
};
struct Wake {};       ///< somebody slept
struct RingReady {    ///< the target's half of a path; descriptor: the ring
  uint32_t lane = 0;  ///< of the sender, as in the hello
  uint32_t path = 0;
  uint32_t epoch_index = 0;  ///< place in SharedHeader::path_epochs
  uint64_t epoch = 0;
  bool can_pull = false;  ///< the target can read the sender's memory; else bytes bounce
};
struct BlockRequest {
  uint64_t block = 0;
};
struct BlockReply {  ///< descriptor: the shared pages, or none when they are not there any more
  uint64_t block = 0, size_bytes = 0;
};
struct BlockReleased {
  uint64_t block = 0;
};
struct MemoryRequest {};
struct MemoryReply {};  ///< descriptor: the sender's own address space, for reading

using Frame = std::variant<Greeting, Datagram, Wake, RingReady, BlockRequest, BlockReply, BlockReleased,
                           MemoryRequest, MemoryReply>;

inline constexpr uint32_t kDescriptorsMax = 2;
inline constexpr uint32_t kFrameHeadBytesMax = 256;  ///< all of a frame but a datagram's bytes

/// Without a datagram's bytes, which follow.
std::vector<std::byte> encode(const Frame& frame);
/// `descriptors`: how many came along. Fails with kBadFormat.
Result<Frame> decode_frame(std::span<const std::byte> bytes, uint32_t descriptors);

}  // namespace fabric::shm

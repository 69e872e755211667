#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <span>

#include <fabric/result.h>

#include "base/unique_fd.h"
#include "providers/shm/wire.h"

// SOCK_SEQPACKET Unix sockets that carry frames and descriptors. No call blocks.

namespace fabric::shm {

/// The host, user and network namespace of this process. Fails with kUnsupported if procfs does not
/// show them.
Result<Address> own_address();

/// Fails with kExhausted, or kPermission if the directory cannot be used.
Result<UniqueFd> listen_at(const Address& address);
/// Removes the socket file, if there is one.
void unlisten(const Address& address) noexcept;
/// Removes the socket files of dead engines from the directory.
void remove_stale_sockets(const std::string& directory) noexcept;

/// Fails with kUnreachable (no listener), kBusy (the listen backlog is full), kNotFound (the socket
/// file is not visible to this process), kPermission (the listener is of another user).
Result<UniqueFd> connect_to(const Address& address);

/// The process at the other end.
struct Credentials {
  pid_t pid = 0;  ///< 0: not visible in our pid namespace
  uid_t user = 0;
};
Result<Credentials> credentials(int socket);

enum class SendStatus : uint8_t { kSent, kFull, kBroken };
SendStatus send_frame(int socket, std::span<const std::byte> head, std::span<const std::byte> rest,
                      std::span<const int> descriptors) noexcept;

struct Received {
  enum class Kind : uint8_t { kFrame, kNothing, kClosed };
  Kind kind = Kind::kNothing;
  uint32_t size_bytes = 0;
  uint32_t descriptor_count = 0;
  bool truncated = false;  ///< descriptors were dropped: this process has none left
  std::array<UniqueFd, kDescriptorsMax> descriptors{};
};
/// A frame that exceeds `buffer`, or carries too many descriptors, closes its connection.
Received receive_frame(int socket, std::span<std::byte> buffer) noexcept;

}  // namespace fabric::shm

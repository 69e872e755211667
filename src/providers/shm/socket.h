#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <span>

#include <fabric/result.h>

#include "base/unique_fd.h"
#include "providers/shm/wire.h"

// Unix sockets that keep the borders of frames and carry descriptors. Nothing here blocks.

namespace fabric::shm {

/// Where this process is: host, user and namespaces. Fails with kUnsupported when the kernel does
/// not say.
Result<Address> own_address();

/// Fails with kExhausted, or kPermission for a directory that cannot be used.
Result<UniqueFd> listen_at(const Address& address);
/// Takes the name of a socket file away again.
void unlisten(const Address& address) noexcept;
/// Removes files in the directory that dead engines left.
void remove_stale_sockets(const std::string& directory) noexcept;

/// Fails with kUnreachable (nobody listens there), kBusy (too many wait to be let in), kNotFound
/// (its socket is in no directory of this process), kPermission (somebody of another user).
Result<UniqueFd> connect_to(const Address& address);

/// Whoever is at the other end.
struct Credentials {
  pid_t pid = 0;  ///< 0: in a pid namespace that this one does not see
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
  bool truncated = false;  ///< descriptors came for which this process had no room
  std::array<UniqueFd, kDescriptorsMax> descriptors{};
};
/// A frame that is longer than `buffer` or brings more descriptors is the end of its connection.
Received receive_frame(int socket, std::span<std::byte> buffer) noexcept;

}  // namespace fabric::shm
